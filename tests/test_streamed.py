"""Streamed products and attention against their plain forms, and what happens where they cannot be had."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from llmserve.engine import Engine
from llmserve.kv import PagedCache, SlotCache
from llmserve.loop import serve
from llmserve.measure import prefill_chunks, ragged_decode_chunks
from llmserve.metrics import output_token_ids
from llmserve.models import streamed
from llmserve.models.gpt2 import GPT2, Config
from llmserve.models.linear import PackedLinear, PlainLinear, choose_linear, why_not_streamed
from llmserve.models.norm import Norm
from llmserve.models.streamed import StreamedLinear, library
from llmserve.policies import Chunked, Static
from llmserve.profiling import profile_steps
from llmserve.request import Request

WHY_NOT = why_not_streamed(torch.float32, "cpu")
needs_a_compiler = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
POSITIONS = 256
SMALL = Config(num_layers=2, num_heads=4, hidden=64, vocab_size=211, max_positions=POSITIONS)


@needs_a_compiler
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 12, 13, 24, 37, 130])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 16), (31, 5), (32, 64), (97, 768), (768, 97)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_streamed_product_is_the_plain_one(rows: int, outputs: int, inputs: int, bias: bool) -> None:
    draw = torch.Generator().manual_seed(rows + outputs)
    weight = torch.randn(outputs, inputs, generator=draw)
    offsets = torch.randn(outputs, generator=draw) if bias else None
    x = torch.randn(rows, inputs + 3, generator=draw)[:, :inputs]  # rows lie further apart than they are long
    expected = F.linear(x.double(), weight.double(), None if offsets is None else offsets.double())
    found = StreamedLinear(weight, offsets)(x)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5 * math.sqrt(inputs))


@needs_a_compiler
@pytest.mark.parametrize("rows", [1, 8, 15, 43])
@pytest.mark.parametrize(("outputs", "inputs"), [(31, 5), (97, 768), (768, 97)])
@pytest.mark.parametrize("gelu", [True, False])
def test_norm_gelu_and_residual_are_those_of_the_plain_form(
    rows: int, outputs: int, inputs: int, gelu: bool
) -> None:
    draw = torch.Generator().manual_seed(rows + outputs)
    weight = torch.randn(outputs, inputs, generator=draw) / math.sqrt(inputs)
    scale, shift, offsets = (torch.randn(n, generator=draw) for n in (inputs, inputs, outputs))
    x, residual = 3 + torch.randn(rows, inputs, generator=draw), torch.randn(rows, outputs, generator=draw)
    in_double = PlainLinear(
        weight.double(), offsets.double(), gelu, Norm(scale.double(), shift.double(), 1e-5)
    )
    expected = in_double(x.double(), residual.double())
    for form in (StreamedLinear, PackedLinear, PlainLinear):
        found = form(weight, offsets, gelu, Norm(scale, shift, 1e-5))(x, residual)
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4, msg=form.__name__)


@needs_a_compiler
def test_a_row_gets_the_same_numbers_whatever_is_beside_it() -> None:
    draw = torch.Generator().manual_seed(3)
    product = StreamedLinear(torch.randn(100, 96, generator=draw))
    x = torch.randn(40, 96, generator=draw)
    together = product(x)
    for i in range(40):
        assert torch.equal(product(x[i : i + 1])[0], together[i]), i


@needs_a_compiler
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_a_number_stays_so(value: float) -> None:
    weight = torch.ones(40, 8)
    weight[17, 3] = value
    y = StreamedLinear(weight)(torch.ones(2, 8))
    assert not y[:, 17].isfinite().any() and y[:, [0, 16, 18, 39]].isfinite().all()


def model(linear: str) -> GPT2:
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        source = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=211,
                n_positions=POSITIONS,
                n_embd=64,
                n_layer=2,
                n_head=4,
                initializer_range=0.3,
                bos_token_id=None,
                eos_token_id=None,
            )
        )
    return GPT2(SMALL, dict(source.state_dict()), linear=linear)


@needs_a_compiler
@pytest.mark.parametrize("longest", [140, 9], ids=["layer by layer", "in one call"])
def test_a_step_with_streamed_products_and_attention_is_the_plain_step(longest: int) -> None:
    engines = [
        Engine(model(linear), SlotCache(SMALL, 6, POSITIONS, attention=attention))
        for linear, attention in (("plain", "loop"), ("streamed", "streamed"))
    ]
    batch = prefill_chunks([5, 1, 90, 17])
    for engine in engines:
        engine.logits(batch)
    contexts = [6, 2, 91, 18]
    decodes = ragged_decode_chunks(contexts)
    decodes[1].sequence.finish_reason = "length"  # a zombie: computed, not written
    short, long = (c._replace(place=p) for c, p in zip(prefill_chunks([9, longest]), (4, 5), strict=True))
    mixed = [*decodes, short, long]
    before = engines[1].cache.k[:, 1].clone()
    plain, fast = (engine.logits(mixed) for engine in engines)
    for a, b in zip(plain, fast, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert torch.equal(engines[1].cache.k[:, 1], before), "a zombie's row is not written"
    torch.testing.assert_close(engines[0].cache.k, engines[1].cache.k, rtol=1e-4, atol=1e-4)


@needs_a_compiler
@pytest.mark.parametrize("block_size", [1, 7, 16])
def test_streamed_attention_over_blocks_is_that_over_slots(block_size: int) -> None:
    plain = Engine(model("plain"), SlotCache(SMALL, 6, POSITIONS, attention="loop"))
    blocks = 6 * -(-POSITIONS // block_size)
    paged = PagedCache(SMALL, blocks, block_size, POSITIONS, attention="streamed")
    requests = [Request(f"r{i}", [i + 1] * n, 9, ignore_eos=True) for i, n in enumerate((5, 1, 90, 17, 33))]
    for policy in (Static(3), Chunked(4, 9), Chunked(4, 200)):
        runs = [serve(requests, policy, engine) for engine in (plain, Engine(model("streamed"), paged))]
        assert output_token_ids(runs[0]) == output_token_ids(runs[1])


@needs_a_compiler
def test_a_profile_sees_the_parts_of_a_compiled_step() -> None:
    engine = Engine(model("streamed"), SlotCache(SMALL, 6, POSITIONS, attention="streamed"))
    decodes = ragged_decode_chunks([9, 4])
    parts = profile_steps({"decode": lambda: engine.step(decodes)}, repeats=2)["decode"]
    for part in ("weight products", "vocabulary", "attention"):
        assert parts[part] > 0, part


def test_other_dtypes_and_devices_say_why_not() -> None:
    assert "float32 on a CPU, not torch.float64" in why_not_streamed(torch.float64, "cpu")
    with pytest.raises(ValueError, match="linear='streamed' cannot be used here"):
        choose_linear("streamed", torch.float64, "cpu")


@pytest.mark.parametrize(("heads", "dtype"), [(4, torch.float64), (16, torch.float32), (1, torch.float32)])
def test_a_cache_refuses_streamed_attention_that_it_cannot_give(heads: int, dtype: torch.dtype) -> None:
    config = Config(num_layers=1, num_heads=heads, hidden=192 if heads == 1 else 64, max_positions=32)
    with pytest.raises(ValueError, match=r"attention='streamed' cannot be used here: .* use 'batched'"):
        SlotCache(config, 1, 32, dtype, attention="streamed")


def test_without_a_compiler_everything_else_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(streamed.shutil, "which", lambda name: None)
    try:
        assert "no C compiler" in why_not_streamed(torch.float32, "cpu")
        assert choose_linear("auto", torch.float32, "cpu") in (PackedLinear, PlainLinear)
        monkeypatch.setenv("CC", "false")
        assert "false failed" in why_not_streamed(torch.float32, "cpu")
    finally:
        library.cache_clear()
