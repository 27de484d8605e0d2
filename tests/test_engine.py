"""The engine's numbers: logits of ragged steps, chunks, zombie rows, ties, NaN, and what caches refuse."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.tiny import (
    POSITIONS,
    VOCAB,
    cat_engine,
    compute,
    prompt_ids,
    reference,
    reference_logits,
    sequence,
    slot_engine,
    tiny_model,
)

from llmserve.engine import Engine, measure_loop_seconds
from llmserve.kv import SlotCache
from llmserve.loop import serve
from llmserve.models.linear import PackedLinear, PlainLinear, choose_linear, why_not_packed
from llmserve.policies import Continuous, Mixed, Static
from llmserve.request import Chunk, Request, Sequence

FORMS = pytest.mark.parametrize("attention", ["loop", "batched"])
CLOSE = {"rtol": 0, "atol": 1e-11}  # float64; the logits spread over about 3


def assert_logits(found: torch.Tensor | None, seq: Sequence) -> None:
    """They are the reference's after the tokens computed so far."""
    torch.testing.assert_close(found, reference_logits(seq.token_ids[: seq.num_computed_tokens]), **CLOSE)


@FORMS
def test_logits_of_a_ragged_step_are_transformers(attention: str) -> None:
    engine = slot_engine(6, attention=attention)
    a, b, c, d = (
        sequence(name, prompt_ids(n, seed=n)) for name, n in (("a", 12), ("b", 20), ("c", 30), ("d", 9))
    )
    one = sequence("one", prompt_ids(1, seed=1))
    compute(engine, (b, 19, 4), (a, 11, 1), (c, 13, 2))
    # two decodes with a slot between them, the middle of one prompt, two whole prompts, one of one token
    logits = compute(engine, (c, 10, 2), (b, 1, 4), (d, 9, 0), (a, 1, 1), (one, 1, 5))
    assert logits[0] is None, "no token is due in the middle of a prompt"
    for found, seq in zip(logits[1:], (b, d, a, one), strict=True):
        assert_logits(found, seq)
    assert_logits(compute(engine, (c, 7, 2))[0], c)


@FORMS
@pytest.mark.parametrize("sizes", [(30,), (29, 1), (1, 29), (7, 1, 13, 9), (1,) * 30], ids=str)
def test_a_prompt_in_chunks_gives_the_logits_of_the_whole(sizes: tuple[int, ...], attention: str) -> None:
    engine = slot_engine(2, attention=attention)
    seq = sequence("a", prompt_ids(30, seed=3))
    logits = [compute(engine, (seq, size, 1))[0] for size in sizes]
    assert all(row is None for row in logits[:-1])
    assert_logits(logits[-1], seq)


@FORMS
def test_a_reused_slot_shows_nothing_of_its_last_holder(attention: str) -> None:
    engine = slot_engine(2, attention=attention)
    compute(engine, (sequence("old", prompt_ids(40, seed=1)), 40, 0))
    engine.cache.k[:, 0, :, 20:], engine.cache.v[:, 0, :, 20:] = 1e6, -1e6
    new, other = sequence("new", prompt_ids(6, seed=2)), sequence("other", prompt_ids(30, seed=3))
    compute(engine, (new, 5, 0), (other, 29, 1))
    for found, seq in zip(compute(engine, (new, 1, 0), (other, 1, 1)), (new, other), strict=True):
        assert_logits(found, seq)


@FORMS
def test_a_zombie_row_is_computed_and_leaves_the_cache_as_it_was(attention: str) -> None:
    engine = slot_engine(3, attention=attention)
    zombie, live = sequence("z", prompt_ids(8, seed=1)), sequence("l", prompt_ids(9, seed=2))
    compute(engine, (zombie, 8, 0), (live, 8, 2))
    zombie.finish_reason = "length"
    engine.cache.k[:, 0] += 1e-9  # what the row would write differs from what is there
    before = engine.cache.k.clone(), engine.cache.v.clone()
    chunks = [Chunk(zombie, 7, 1, 0), Chunk(live, 8, 1, 2)]
    logits = engine.logits(chunks)
    for now, was in zip((engine.cache.k, engine.cache.v), before, strict=True):
        assert torch.equal(now[:, :2], was[:, :2]), "the zombie's slot, and one that took no part"
        changed = (now[:, 2] != was[:, 2]).flatten(0, 1).any(-1).any(0).nonzero().flatten().tolist()
        assert changed == [8], "the live row wrote its own position and no other"
    torch.testing.assert_close(logits[0], reference_logits(zombie.token_ids), rtol=0, atol=1e-5)
    torch.testing.assert_close(logits[1], reference_logits(live.token_ids), **CLOSE)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (7, 50), (99, 100)])
def test_of_equal_logits_the_lowest_id_wins(low: int, high: int) -> None:
    # the head sees a vector of one 1 and zeros: a logit is one number of the vocabulary's row, exactly
    vocabulary = torch.zeros(VOCAB, 32, dtype=torch.float64)
    vocabulary[[low, high], 0] = 5.0
    bias = torch.eye(32, dtype=torch.float64)[0]
    edits = {
        "transformer.wte.weight": vocabulary,
        "transformer.ln_f.weight": torch.zeros(32, dtype=torch.float64),
        "transformer.ln_f.bias": bias,
    }
    engine = slot_engine(1, edits=edits)
    chunk = Chunk(sequence("a", (3, 4)), 0, 2, 0)
    logits = engine.logits([chunk])[0]
    assert logits[low] == logits[high] == logits.max()
    assert engine.step([chunk]).token_ids == [low]


@pytest.mark.parametrize("name", ["transformer.h.1.mlp.c_fc.weight", "transformer.ln_f.bias"])
def test_a_nan_weight_is_an_error_and_no_token(name: str) -> None:
    weight = reference().state_dict()[name].clone()
    weight.view(-1)[5] = math.nan
    with pytest.raises(RuntimeError, match="not a finite number"):
        serve(
            [Request("a", (3, 4), 5), Request("b", (5,), 5)], Mixed(2), slot_engine(2, edits={name: weight})
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)  # in float32 packed, if it can be
def test_a_step_without_a_due_token_returns_none_for_all(dtype: torch.dtype) -> None:
    engine = slot_engine(2, dtype)
    chunks = [Chunk(sequence("a", prompt_ids(9, seed=1)), 0, 4, 0), Chunk(sequence("b", (1, 2, 3)), 0, 1, 1)]
    assert engine.step(chunks).token_ids == [None, None]


def test_loop_seconds_are_added_to_what_the_clock_measured() -> None:
    model = tiny_model()
    engine = Engine(model, SlotCache(model.config, 1, POSITIONS, torch.float64), loop_seconds=1000.0)
    result = engine.step([Chunk(sequence("a", (1, 2)), 0, 2, 0)])
    assert 1000.0 < result.seconds < 1100.0
    assert result.cpu_share is not None and result.cpu_share >= 0


def test_the_loops_own_cost_is_measured_on_an_engine_that_does_nothing() -> None:
    assert 0 < measure_loop_seconds(max_num_seqs=2, output_tokens=20) < 1


# -- the cat cache ---------------------------------------------------------------------------------


def equal(*outputs: int, prompt: int = 5, at: float = 0.0) -> list[Request]:
    return [
        Request(f"r{i}", prompt_ids(prompt, seed=i), n, arrival_time=at * i, ignore_eos=True)
        for i, n in enumerate(outputs)
    ]


def test_cat_cache_logits_are_transformers_in_chunks_too() -> None:
    engine = cat_engine(3)
    batch = [sequence(name, prompt_ids(12, seed=i)) for i, name in enumerate("abc")]
    for size in (5, 4, 2, 1):
        logits = compute(engine, *[(seq, size, slot) for slot, seq in enumerate(batch)])
    for found, seq in zip(logits, batch, strict=True):
        assert_logits(found, seq)


@pytest.mark.parametrize(
    ("requests", "policy", "words"),
    [
        ([*equal(4), Request("long", prompt_ids(8, seed=9), 4)], Static(2), r"lockstep.*counts \[5, 8\]"),
        (
            equal(4, 4, at=2.0),
            Mixed(2),
            r"batch of \['r0'\] and was given \['r0', 'r1'\]: none can join or leave",
        ),
        (equal(4, 4, at=2.0), Continuous(2), r"none can join or leave; use a SlotCache"),
        (equal(2, 5), Continuous(2), r"batch of \['r0', 'r1'\] and was given \['r1'\]"),
        (equal(2, 5), Static(2), r"lockstep: after \d tokens it was given starts"),  # a zombie row
    ],
    ids=["unequal prompts", "a join", "a join after a prefill", "a leave", "a zombie"],
)
def test_the_cat_cache_refuses_all_but_lockstep(requests: list[Request], policy: Static, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        serve(requests, policy, cat_engine(2))


# -- what is refused when an engine is built -------------------------------------------------------


def test_a_slot_cache_refuses_what_it_cannot_hold() -> None:
    config = tiny_model().config
    with pytest.raises(ValueError, match="attention='flash': choose one of batched, streamed, loop"):
        SlotCache(config, 1, POSITIONS, attention="flash")
    for length in (0, POSITIONS + 1):
        with pytest.raises(
            ValueError, match=f"max_model_len={length}: the model knows positions for 1 to 64"
        ):
            SlotCache(config, 1, length)


def test_the_form_of_the_products_is_chosen_by_what_works_here() -> None:
    assert choose_linear("plain", torch.float32, "cpu") is PlainLinear
    assert choose_linear("auto", torch.float64, "cpu") is PlainLinear
    works = why_not_packed(torch.float32, "cpu") is None
    assert choose_linear("auto", torch.float32, "cpu") is (PackedLinear if works else PlainLinear)
    with pytest.raises(ValueError, match="cannot be used here: packed products are for float32"):
        choose_linear("packed", torch.float64, "cpu")
    with pytest.raises(ValueError, match="linear='fast': choose one of auto, streamed, packed, plain"):
        choose_linear("fast", torch.float32, "cpu")


def test_an_engine_knows_its_models_limits_and_makes_pools_of_its_caches_shape() -> None:
    engine = slot_engine(3, eos=42)
    pool = engine.new_pool()
    assert (engine.vocab_size, engine.max_model_len, engine.eos_token_id) == (VOCAB, POSITIONS, 42)
    assert (pool.num_slots, pool.slot_tokens, pool.total_tokens) == (3, POSITIONS, 3 * POSITIONS)
