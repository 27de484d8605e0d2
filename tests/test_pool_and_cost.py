"""The memory pool's books and the cost model's arithmetic."""

from __future__ import annotations

import pytest
from helpers.build import ask, tokens_by_rule

from llmserve.costmodel import CostModel, SimulatedEngine
from llmserve.pool import SlotPool
from llmserve.request import Chunk, Sequence


def sequences(names: str) -> list[Sequence]:
    return [Sequence(ask(name)) for name in names]


def test_the_pool_gives_the_lowest_free_slot_and_none_when_full() -> None:
    pool = SlotPool(3, 10)
    a, b, c, d, e = sequences("abcde")
    assert [pool.admit(one) for one in (a, b, c, d)] == [0, 0, 0, None]
    assert [pool.place(one) for one in (a, b, c)] == [0, 1, 2]
    pool.free(c)
    pool.free(a)
    assert pool.admit(e) == 0 and pool.place(e) == pool.row(e) == 0


def test_the_pools_books_balance() -> None:
    pool = SlotPool(3, 10)
    a, b = sequences("ab")
    pool.admit(a)
    pool.admit(b)
    pool.free(a)
    b.num_computed_tokens = 7
    assert (pool.total_tokens, pool.free_tokens, pool.reserved_tokens, pool.used_tokens) == (30, 20, 10, 7)
    pool.check()


@pytest.mark.parametrize("damage", ["lost", "twice", "free and held"])
def test_the_pools_check_finds_a_slot_that_is_lost_or_held_twice(damage: str) -> None:
    pool = SlotPool(3, 10)
    a, b = sequences("ab")
    pool.admit(a)
    if damage == "lost":
        pool._free.pop()
    elif damage == "twice":
        pool._slot_of[b] = 0
    else:
        pool._free.append(0)
    with pytest.raises(RuntimeError, match="slots lost or held twice"):
        pool.check()


def test_freeing_what_is_not_held_is_an_error() -> None:
    pool = SlotPool(1, 10)
    [a] = sequences("a")
    pool.admit(a)
    pool.free(a)
    with pytest.raises(KeyError):
        pool.free(a)


@pytest.mark.parametrize(("slots", "tokens", "word"), [(0, 1, "num_slots=0"), (1, 0, "slot_tokens=0")])
def test_a_pool_without_room_is_refused(slots: int, tokens: int, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        SlotPool(slots, tokens)


def test_a_steps_seconds_are_the_stated_sum() -> None:
    a, b, c = (Sequence(ask(name, n)) for name, n in (("a", 8), ("b", 5), ("c", 4)))
    c.num_computed_tokens, c.finish_reason = 4, "length"
    chunks = [Chunk(a, 2, 3, 0), Chunk(b, 4, 1, 1), Chunk(c, 3, 1, 2)]
    # a attends to 3 + 4 + 5 tokens, b to 5, the zombie to 4; heads: b (its prompt's end) and the zombie
    tokens, context, rows = 5, 12 + 5 + 4, 2
    assert CostModel(overhead=7.0).seconds(chunks) == 7.0
    assert CostModel(per_token=2.0).seconds(chunks) == 2.0 * tokens
    assert CostModel(per_context=0.5).seconds(chunks) == 0.5 * context
    assert CostModel(per_row=0.25).seconds(chunks) == 0.25 * rows
    assert CostModel(weights=9.0, per_token=2.0).seconds(chunks) == 10.0, "more arithmetic than weights"
    assert CostModel(weights=11.0, per_token=2.0).seconds(chunks) == 11.0, "hidden behind the weights"
    assert CostModel(1.0, 11.0, 2.0, 0.5, 0.25).seconds(chunks) == 1.0 + 11.0 + 0.5 * context + 0.25 * rows


def test_the_simulated_token_depends_on_the_last_token_and_its_position_only() -> None:
    engine = SimulatedEngine(2, 64)
    seq = Sequence(ask("a", 6))
    whole = engine.step([Chunk(seq, 0, 6, 0)]).token_ids
    parts = [engine.step([Chunk(seq, start, 3, 1)]).token_ids[0] for start in (0, 3)]
    assert [parts[1]] == whole == tokens_by_rule(ask("a", 6), 50257)
    assert parts[0] is None


def test_a_chunk_is_due_a_token_only_at_the_end_of_what_is_known() -> None:
    seq = Sequence(ask("a", 6))
    assert [Chunk(seq, start, n, 0).needs_token for start, n in ((0, 5), (0, 6), (5, 1), (2, 3))] == [
        False, True, True, False,
    ]  # fmt: skip
    seq.finish_reason = "stop"
    assert Chunk(seq, 2, 1, 0).needs_token, "a zombie row's token is computed too, and thrown away"


def test_decoding_is_one_output_token_behind_and_anything_else_is_prefill() -> None:
    seq = Sequence(ask("a", 1))
    assert not seq.is_decoding, "a prompt of one token is still a prompt"
    seq.num_computed_tokens = 1
    seq.token_ids.append(9)
    assert seq.is_decoding and seq.num_output_tokens == 1
    seq.num_computed_tokens = 0
    assert not seq.is_decoding and seq.num_uncomputed_tokens == 2, "recomputation after a preemption"
