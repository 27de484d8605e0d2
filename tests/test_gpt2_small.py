"""GPT-2 small's own shapes in float32, as the chapters run it, against `transformers` on a ragged batch."""

from __future__ import annotations

import gc

import pytest
import torch
from helpers.tiny import compute, sequence
from transformers import GPT2Config, GPT2LMHeadModel

from llmserve.engine import Engine
from llmserve.kv import SlotCache
from llmserve.models.load import SEED, load_gpt2

LENGTHS = (1, 9, 40, 75)
TOLERANCE = 5e-5  # of logits that spread over about 0.6


def token_ids(length: int) -> list[int]:
    return torch.randint(0, 50256, (length,), generator=torch.Generator().manual_seed(length)).tolist()


@torch.inference_mode()
def transformers_logits() -> list[torch.Tensor]:
    """After each of the prompts, alone; the model is gone when this returns."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = GPT2LMHeadModel(GPT2Config()).eval()
    return [model(torch.tensor([token_ids(n)]), logits_to_keep=1).logits[0, -1] for n in LENGTHS]


def test_logits_of_a_ragged_batch_are_transformers_within_a_stated_tolerance() -> None:
    expected = transformers_logits()
    gc.collect()
    model = load_gpt2("random")
    engine = Engine(model, SlotCache(model.config, len(LENGTHS), 128))
    sequences = [sequence(str(n), token_ids(n)) for n in LENGTHS]
    compute(engine, (sequences[1], 8, 1), (sequences[3], 33, 3))
    # one step: a prompt of one token, a decode, a whole prompt and the rest of another
    found = compute(engine, *[(seq, seq.num_uncomputed_tokens, slot) for slot, seq in enumerate(sequences)])
    spread = torch.stack(expected).std().item()
    assert spread == pytest.approx(0.6, abs=0.2)
    for logits, alone in zip(found, expected, strict=True):
        assert (logits - alone).abs().max().item() < TOLERANCE
        assert logits.argmax() == alone.argmax()
