"""The block pool alone: tables, sharing, eviction, and books that balance."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.build import ask
from hypothesis import given, settings
from hypothesis import strategies as st

from llmserve.blocks import BlockPool
from llmserve.request import Sequence


def seq(name: str, *token_ids: int) -> Sequence:
    return Sequence(ask(name, token_ids))


def computed(sequence: Sequence, tokens: int | None = None) -> Sequence:
    sequence.num_computed_tokens = len(sequence.token_ids) if tokens is None else tokens
    return sequence


def enter(pool: BlockPool, sequence: Sequence) -> int | None:
    """Admit it as the loop does: what is there already counts as computed."""
    found = pool.admit(sequence)
    if found is not None:
        sequence.num_computed_tokens = found
    pool.check()
    return found


def leave(pool: BlockPool, sequence: Sequence) -> None:
    pool.free(sequence)
    pool.check()


# -- tables ----------------------------------------------------------------------------------------


def test_a_sequence_gets_blocks_for_its_prompt_and_one_more_whenever_the_last_is_full() -> None:
    pool = BlockPool(4, block_size=3)
    a = seq("a", 1, 2, 3, 4)
    assert enter(pool, a) == 0 and len(pool.place(a)) == 2
    table = pool.place(a)
    assert pool.extend(a, 6) and pool.place(a) == table
    assert pool.extend(a, 7) and pool.place(a)[:2] == table and len(pool.place(a)) == 3
    assert (pool.reserved_tokens, pool.free_tokens, pool.total_tokens) == (9, 3, 12)
    assert len(set(pool.place(a))) == 3


def test_what_there_is_no_room_for_changes_nothing() -> None:
    pool = BlockPool(3, block_size=2)
    a, b = seq("a", 1, 2, 3), seq("b", 4, 5, 6)
    enter(pool, a)
    before = pool.place(a)
    assert enter(pool, b) is None and not pool.extend(a, 7)
    assert pool.place(a) == before and pool.free_tokens == 2
    assert pool.extend(a, 6)


def test_rows_are_the_lowest_free_numbers() -> None:
    pool = BlockPool(9, block_size=1)
    a, b, c, d = (seq(name, 1) for name in "abcd")
    assert [pool.row(one) for one in (a, b, c) if enter(pool, one) is not None] == [0, 1, 2]
    leave(pool, b)
    enter(pool, d)
    assert pool.row(d) == 1


@pytest.mark.parametrize("reserve", [0, 1, 2])
def test_the_reserve_is_left_free_by_admissions_but_not_by_growth(reserve: int) -> None:
    pool = BlockPool(4, block_size=2, reserve=reserve)
    a, b = seq("a", 1, 2), seq("b", 3, 4, 5)
    assert enter(pool, a) == 0
    assert (enter(pool, b) is not None) == (reserve <= 1), "3 are free, and it needs 2"
    assert pool.extend(a, 4)


def test_the_reserve_is_ignored_when_no_one_runs() -> None:
    pool = BlockPool(2, block_size=2, reserve=5)
    assert enter(pool, seq("a", 1, 2, 3)) == 0


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [("num_blocks", 0, 1), ("block_size", 0, 1), ("reserve", -1, 0), ("block_size", 1.5, 1)],
)
def test_a_pool_of_nothing_is_refused(name: str, value: Any, least: int) -> None:
    with pytest.raises(ValueError, match=f"{name}={value}: a pool needs a whole number, at least {least}"):
        BlockPool(**{"num_blocks": 2, name: value})


# -- sharing ---------------------------------------------------------------------------------------


def test_a_second_prompt_shares_the_full_blocks_that_it_begins_with() -> None:
    pool = BlockPool(8, block_size=2)
    a, b = seq("a", 1, 2, 3, 4, 5), seq("b", 1, 2, 3, 4, 6, 7)
    enter(pool, a)
    computed(a)
    assert enter(pool, b) == 4
    assert pool.place(b)[:2] == pool.place(a)[:2] and pool.place(b)[2] != pool.place(a)[2]
    assert pool.reserved_tokens == 8 and pool.used_tokens == 5, "what is shared is counted once"
    leave(pool, a)
    computed(b, 5)
    assert pool.reserved_tokens == 6 and pool.used_tokens == 5 and pool.cached_tokens == 0


def test_only_what_has_been_computed_is_shared() -> None:
    pool = BlockPool(8, block_size=2)
    a = seq("a", 1, 2, 3, 4, 5)
    enter(pool, a)
    assert enter(pool, seq("b", *a.token_ids)) == 0
    computed(a, 3)
    assert enter(pool, seq("c", 1, 2, 3)) == 2


@pytest.mark.parametrize("length", range(1, 9))
def test_one_token_at_least_is_computed_again(length: int) -> None:
    pool = BlockPool(16, block_size=2)
    ids = range(1, length + 1)
    enter(pool, a := seq("a", *ids))
    computed(a)
    assert enter(pool, seq("b", *ids)) == 2 * ((length - 1) // 2)


def test_a_block_in_the_middle_is_found_only_behind_its_own_beginning() -> None:
    pool = BlockPool(16, block_size=2)
    enter(pool, a := seq("a", 1, 2, 3, 4, 9))
    computed(a)
    assert enter(pool, seq("b", 8, 8, 3, 4, 9)) == 0
    assert enter(pool, seq("c", 3, 4, 9)) == 0


def test_tokens_with_equal_hashes_are_told_apart() -> None:
    big = 2**61 - 1  # its hash is that of 0
    assert hash((0, (5, 0))) == hash((0, (5, big)))
    pool = BlockPool(8, block_size=2)
    enter(pool, a := seq("a", 5, 0, 1))
    computed(a)
    assert enter(pool, seq("b", 5, big, 1)) == 0
    assert enter(pool, seq("c", 5, 0, 1)) == 2


def test_freed_blocks_are_found_again_until_their_memory_is_needed() -> None:
    pool = BlockPool(4, block_size=2)
    enter(pool, a := seq("a", 1, 2, 3, 4, 5))
    leave(pool, computed(a))
    assert (pool.cached_tokens, pool.free_tokens, pool.reserved_tokens) == (4, 8, 0)
    b = seq("b", *a.token_ids)
    assert enter(pool, b) == 4
    leave(pool, computed(b))
    enter(pool, c := seq("c", *range(20, 27)))  # all four blocks
    assert pool.cached_tokens == 0
    leave(pool, c)
    assert enter(pool, seq("d", *a.token_ids)) == 0


def test_the_least_recently_used_goes_first_and_the_end_of_a_prompt_before_its_beginning() -> None:
    pool = BlockPool(5, block_size=1)
    for one in (seq("a", 1, 2), seq("b", 3, 4)):
        enter(pool, one)
        leave(pool, computed(one))
    again = seq("a2", 1, 2, 9)  # a's two blocks are used again, and the fifth: b's are now the oldest
    assert enter(pool, again) == 2
    leave(pool, computed(again))
    enter(pool, seq("new", 7))  # takes one block: the last of b
    assert enter(pool, seq("b2", 3, 4, 5)) == 1


def test_without_sharing_nothing_is_found_or_kept() -> None:
    pool = BlockPool(8, block_size=2, sharing=False)
    enter(pool, a := seq("a", 1, 2, 3, 4, 5))
    computed(a)
    assert enter(pool, seq("b", *a.token_ids)) == 0
    leave(pool, a)
    assert pool.cached_tokens == 0


def test_a_copy_is_not_kept_beside_what_is_known() -> None:
    pool = BlockPool(8, block_size=2)
    a, b = seq("a", 1, 2, 3), seq("b", 1, 2, 3)
    enter(pool, a)
    enter(pool, b)  # before a has computed anything
    leave(pool, computed(a))
    leave(pool, computed(b))
    assert pool.cached_tokens == 2


# -- the books -------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["lost", "held twice", "miscounted", "wrong tokens", "kept for nothing"])
def test_the_check_finds_damage(damage: str) -> None:
    pool = BlockPool(6, block_size=2)
    enter(pool, a := seq("a", 1, 2, 3))
    enter(pool, b := seq("b", 4, 5, 6))
    computed(a)
    leave(pool, computed(b))
    pool.check()
    match damage:
        case "lost":
            pool._free.pop()
        case "held twice":
            pool._free.append(pool.place(a)[0])
        case "miscounted":
            pool._holders[pool.place(a)[0]] = 2
        case "wrong tokens":
            pool._known[0, (9, 9)] = pool._known.popitem()[1]
        case "kept for nothing":
            pool._cached[pool._free.pop()] = None
    with pytest.raises(RuntimeError):
        pool.check()


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["admit", "grow", "grow", "free"]), st.integers(0, 5), st.integers(1, 9)),
    max_size=60,
)


@given(OPERATIONS, st.integers(1, 12), st.integers(1, 4), st.integers(0, 3), st.booleans())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_any_use_keeps_the_books_and_shares_only_equal_beginnings(
    operations: list[Any], num_blocks: int, block_size: int, reserve: int, sharing: bool
) -> None:
    pool = BlockPool(num_blocks, block_size, reserve, sharing)
    here: dict[int, Sequence] = {}
    for what, who, number in operations:
        if what == "admit" and who not in here:
            one = seq(str(who), *[number % 2] * (3 * number % 7), *range(number))
            if enter(pool, one) is not None:
                here[who] = computed(one)
        elif what == "grow" and who in here:
            one = here[who]
            if pool.extend(one, len(one.token_ids) + number):
                one.token_ids += [number] * number
                computed(one)
        elif what == "free" and who in here:
            pool.free(here.pop(who))
        pool.check()
        for first in here.values():
            for second in here.values():
                both = zip(pool.place(first), pool.place(second), strict=False)
                for at, (mine, its) in enumerate(both):
                    end = (at + 1) * block_size
                    if mine == its and first is not second:
                        assert first.token_ids[:end] == second.token_ids[:end]
        distinct = {block for one in here.values() for block in pool.place(one)}
        assert pool.reserved_tokens == len(distinct) * block_size
        assert pool.used_tokens == sum(
            max(
                min(block_size, one.num_computed_tokens - at * block_size)
                for one in here.values()
                for at, its in enumerate(pool.place(one))
                if its == block
            )
            for block in distinct
        )
