"""A GPT-2 small enough to check everything against `transformers`, and engines around it."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import cache

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from llmserve.engine import Engine
from llmserve.kv import CatCache, PagedCache, SlotCache
from llmserve.models.gpt2 import GPT2
from llmserve.models.load import config_of
from llmserve.request import Chunk, Request, Sequence, StepResult

VOCAB, POSITIONS = 101, 64

torch.set_num_threads(1)  # tiny products gain nothing from more


@cache
def reference(dtype: torch.dtype = torch.float64, positions: int = POSITIONS) -> GPT2LMHeadModel:
    """Weights spread far wider than a fresh GPT-2's, whose greedy text is one token repeated."""
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=positions, n_embd=32, n_layer=2, n_head=4,
        initializer_range=0.5, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return GPT2LMHeadModel(config).to(dtype).eval()


def generate(
    request: Request,
    eos: int | None = None,
    dtype: torch.dtype = torch.float64,
    positions: int = POSITIONS,
) -> list[int]:
    """What `transformers` generates for this request alone, greedily."""
    prompt = torch.tensor([list(request.prompt_token_ids)])
    eos = None if request.ignore_eos else eos
    tokens = reference(dtype, positions).generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=request.max_tokens,
        do_sample=False, eos_token_id=eos, pad_token_id=0,
    )  # fmt: skip
    return tokens[0, prompt.shape[1] :].tolist()


@torch.inference_mode()
def reference_logits(token_ids: Seq[int], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """The logits after the last of these tokens, from `transformers`, alone and without a cache."""
    return reference(dtype)(torch.tensor([list(token_ids)])).logits[0, -1]


class SteadyEngine(Engine):
    """The real engine on a clock that gives each step one second: the same schedule on every machine."""

    def step(self, chunks: list[Chunk]) -> StepResult:
        return super().step(chunks)._replace(seconds=1.0)


def tiny_model(
    dtype: torch.dtype = torch.float64,
    linear: str = "auto",
    eos: int | None = None,
    edits: dict[str, torch.Tensor] | None = None,
    positions: int = POSITIONS,
) -> GPT2:
    """Our network with the reference's weights, some of them replaced."""
    source = reference(dtype, positions)
    state = {name: tensor.clone() for name, tensor in source.state_dict().items()} | (edits or {})
    config = replace(config_of(source.config), eos_token_id=eos)
    return GPT2(config, state, dtype=dtype, linear=linear)


def slot_engine(
    slots: int = 4,
    dtype: torch.dtype = torch.float64,
    attention: str = "batched",
    **model: object,
) -> SteadyEngine:
    network = tiny_model(dtype, **model)
    length = network.config.max_positions
    return SteadyEngine(network, SlotCache(network.config, slots, length, dtype, attention=attention))


def paged_engine(
    slots: int = 4,
    num_blocks: int | None = None,
    block_size: int = 8,
    dtype: torch.dtype = torch.float64,
    attention: str = "gathered",
    sharing: bool = True,
    reserve: int = 0,
    **model: object,
) -> SteadyEngine:
    """As much memory as so many slots, unless told; in blocks small enough that sequences have several."""
    network = tiny_model(dtype, **model)
    length = network.config.max_positions
    blocks = num_blocks or slots * length // block_size
    more = {"attention": attention, "sharing": sharing, "reserve": reserve}
    return SteadyEngine(network, PagedCache(network.config, blocks, block_size, length, dtype, **more))


def cat_engine(slots: int = 4) -> SteadyEngine:
    network = tiny_model()
    return SteadyEngine(network, CatCache(network.config, slots, POSITIONS))


def prompt_ids(length: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, VOCAB, (length,), generator=generator).tolist())


def sequence(request_id: str, token_ids: Seq[int], computed: int = 0) -> Sequence:
    """A sequence of these tokens of which the first `computed` are in the cache."""
    made = Sequence(Request(request_id, tuple(token_ids), max_tokens=1))
    made.num_computed_tokens = computed
    return made


def compute(engine: Engine, *work: tuple[Sequence, int, int]) -> list[torch.Tensor | None]:
    """Run (sequence, tokens, slot) triples as one step; returns their logits."""
    chunks = [Chunk(seq, seq.num_computed_tokens, tokens, slot) for seq, tokens, slot in work]
    logits = engine.logits(chunks)
    for chunk in chunks:
        chunk.sequence.num_computed_tokens += chunk.num_tokens
    return logits
