"""Rounds are interleaved, disturbed ones taken again; made-up steps are what they say they are."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from helpers.tiny import slot_engine, tiny_model

from llmserve.hardware import machine, measure_peak, resident_bytes
from llmserve.kv import SlotCache
from llmserve.measure import (
    MOST_REDONE,
    decode_chunks,
    decode_steps,
    full_batch_decode_step,
    interleave,
    prefill_chunks,
    product_seconds,
    ragged_decode_chunks,
    thirds,
)
from llmserve.models.linear import PlainLinear
from llmserve.pool import SlotPool
from llmserve.profiling import PARTS, profile_steps
from llmserve.request import Chunk, StepResult
from llmserve.run import ChunkRow, Run, Step


def contestant(name: str, shares: list[float], calls: list[str]) -> Callable[[], Run]:
    """Its n-th run has one decode step with the n-th CPU share (the last one for ever after)."""

    def run() -> Run:
        turn = calls.count(name)
        calls.append(name)
        share = shares[min(turn, len(shares) - 1)]
        chunks = [ChunkRow("r", 0, 0, 1, "decode", 5)]
        return Run(f"{name}{turn}", 1, log=[Step(0.0, 1.0, share, 0, 0, 0, chunks)])

    return run


def test_contestants_take_turns_in_every_round() -> None:
    calls: list[str] = []
    rounds = interleave({name: contestant(name, [1.0], calls) for name in "ab"}, rounds=3)
    assert calls == list("ababab")
    assert rounds.redone == 0
    assert [run.policy for run in rounds.runs["b"]] == ["b0", "b1", "b2"]


def test_a_disturbed_round_is_taken_again_for_all() -> None:
    calls: list[str] = []
    contestants = {"a": contestant("a", [1.0], calls), "b": contestant("b", [0.5, 1.0], calls)}
    rounds = interleave(contestants, rounds=1)
    assert calls == list("abab")
    assert rounds.redone == 1
    assert rounds.first("b").policy == "b1"


def test_a_round_that_stays_disturbed_is_kept_after_two_more_tries() -> None:
    calls: list[str] = []
    contestants = {"a": contestant("a", [1.0], calls), "b": contestant("b", [0.5], calls)}
    rounds = interleave(contestants, rounds=2)
    assert rounds.redone == 2 * MOST_REDONE
    assert calls == list("ab") * 2 * (1 + MOST_REDONE)
    assert "had to be taken again" in rounds.note(requests=1)


def test_made_up_decodes_read_their_context_and_want_one_token_each() -> None:
    chunks = decode_chunks(batch=3, context=9)
    assert [(c.start, c.num_tokens, c.place, c.needs_token) for c in chunks] == [
        (8, 1, place, True) for place in range(3)
    ]


def test_made_up_decodes_may_have_a_context_each() -> None:
    chunks = ragged_decode_chunks([9, 1, 30])
    assert [(c.start, c.num_tokens, c.place, c.needs_token) for c in chunks] == [
        (8, 1, 0, True),
        (0, 1, 1, True),
        (29, 1, 2, True),
    ]
    assert [len(c.sequence.token_ids) for c in chunks] == [9, 1, 30]
    assert len({c.sequence.id for c in chunks}) == 3


class ScriptedEngine:
    """Three slots, and seconds and CPU shares as written down; `asked` are the batch sizes it was given."""

    max_num_seqs = 3

    def new_pool(self) -> SlotPool:
        return SlotPool(3, 16)

    def __init__(self, *tries: tuple[list[float], float | None]) -> None:
        self.script = iter([(taken, share) for seconds, share in tries for taken in seconds])
        self.asked: list[int] = []

    def step(self, chunks: list[Chunk]) -> StepResult:
        self.asked.append(len(chunks))
        return StepResult([1] * len(chunks), *next(self.script))


# Each try is a warm-up and three readings.
SLOW, FAST, FASTEST = [0.1, 5.0, 7.0, 6.0], [99.0, 4.0, 3.0, 8.0], [99.0, 2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("tries", "steps", "expected"),
    [
        ([(SLOW, 0.95), (FAST, 0.95)], 4, 6.0),
        ([(SLOW, None), (FAST, None)], 4, 6.0),
        ([(SLOW, 0.5), (FAST, 0.95), (FASTEST, 0.95)], 8, 4.0),
        ([(FAST, 0.5), (SLOW, 0.95), (FASTEST, 0.95)], 8, 4.0),
        ([(SLOW, 0.5), (FAST, 0.5), (SLOW, 0.5), (FASTEST, 0.5)], 12, 4.0),
    ],
    ids=["undisturbed", "no share known", "disturbed once", "disturbed and still faster", "always disturbed"],
)
def test_the_full_batch_step_is_taken_again_while_disturbed_and_the_fastest_median_counts(
    tries: list[tuple[list[float], float | None]], steps: int, expected: float
) -> None:
    engine = ScriptedEngine(*tries)
    assert full_batch_decode_step(engine, context=6, repeats=3) == expected
    assert engine.asked == [3] * steps, "every slot busy in every step"


def test_made_up_prompts_are_whole() -> None:
    chunks = prefill_chunks([7, 7])
    assert [(c.start, c.num_tokens, c.place, c.needs_token) for c in chunks] == [
        (0, 7, 0, True),
        (0, 7, 1, True),
    ]


def test_thirds_are_three_interleaved_rounds() -> None:
    assert thirds([1, 10, 100, 2, 20, 200, 3, 30, 300]) == [2, 20, 200]


def test_every_reading_is_kept_but_the_warm_up() -> None:
    engine = slot_engine(slots=4)
    steps = decode_steps(engine, [1, 4], context=6, repeats=5)
    assert {batch: len(taken) for batch, taken in steps.items()} == {1: 5, 4: 5}
    assert full_batch_decode_step(engine, context=6, repeats=3) > 0
    products = product_seconds([1, 3], [PlainLinear], tiny_model(), repeats=2)
    assert {rows: len(taken) for rows, taken in products["PlainLinear"].items()} == {1: 2, 3: 2}


def test_the_parts_of_a_step_are_all_named_and_the_large_ones_found() -> None:
    engine, chunks = slot_engine(slots=4), decode_chunks(4, 6)
    calls = {name: lambda: engine.step(chunks) for name in "ab"}
    by_step = profile_steps(calls, repeats=2)
    assert list(by_step) == ["a", "b"]
    parts = by_step["b"]
    assert tuple(parts) == PARTS
    assert all(seconds >= 0 for seconds in parts.values())
    assert all(
        parts[name] > 0 for name in ("weight products", "vocabulary", "attention", "cache write", "norms")
    )


def test_a_machines_peaks_and_name() -> None:
    peak = measure_peak(rounds=1)
    assert peak.ridge == peak.flops / peak.bandwidth > 0
    assert {"cpu", "cores", "memory_gib", "python"} <= set(machine())


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count pages that were only read")
def test_a_cache_takes_memory_only_where_it_is_written() -> None:
    before = resident_bytes()
    cache = SlotCache(tiny_model().config, 2000, 64)  # 65 MB
    size = cache.k.nbytes + cache.v.nbytes
    assert cache.k.sum() == 0 and size > 60e6
    assert resident_bytes() - before < size / 4
    cache.k.fill_(1.0)
    assert resident_bytes() - before > size / 3
