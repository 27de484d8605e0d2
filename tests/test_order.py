"""Keys order the queue as they say, ageing bounds how long anybody is passed over, bad values are told."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from helpers.build import ask, events, unit_engine
from hypothesis import given, settings
from hypothesis import strategies as st

from llmserve.loop import serve
from llmserve.metrics import request_times
from llmserve.policies import (
    Continuous,
    Static,
    aged,
    by_priority,
    first_come,
    shortest_first,
    shortest_remaining,
)
from llmserve.race import race
from llmserve.request import Request, Sequence

SETTINGS = settings(max_examples=200, deadline=None, derandomize=True)


def served(requests: list[Request], key: Callable[[Sequence], Any]) -> list[str]:
    """Who finishes in which order on one slot."""
    return events(serve(requests, Continuous(1, key=key), unit_engine(1)), "finish")


def test_shortest_first_goes_by_the_expected_output_and_not_by_the_prompt() -> None:
    requests = [ask("A", 1, 9), ask("B", 20, 3), ask("C", 5, 3), ask("D", 30, 1)]
    assert served(requests, shortest_first) == ["D", "B", "C", "A"]


@pytest.mark.parametrize(
    ("tokens_per_step", "order"),
    # steps left, (prompt - 1) / tokens_per_step + output: A 9, B 19/t + 3, C 4/t + 4
    [(1, ["C", "A", "B"]), (4, ["C", "B", "A"]), (19, ["B", "C", "A"]), (math.inf, ["B", "C", "A"])],
)
def test_shortest_remaining_counts_the_prompt_at_its_price(tokens_per_step: float, order: list[str]) -> None:
    requests = [ask("A", 1, 9), ask("B", 20, 3), ask("C", 5, 4)]
    assert served(requests, shortest_remaining(tokens_per_step)) == order


def test_what_a_preemption_threw_away_counts_again() -> None:
    sequence, left = Sequence(ask("A", 11, 9)), shortest_remaining(10)
    assert left(sequence) == 1 + 9
    sequence.token_ids += [7, 7, 7]  # its prompt is computed, and two of three output tokens
    sequence.num_computed_tokens = 13
    assert left(sequence) == 6
    sequence.num_computed_tokens = 0
    assert left(sequence) == 1.3 + 6


def test_who_has_more_output_than_expected_is_expected_to_be_done_next() -> None:
    sequence = Sequence(ask("A", 3, 9, expected_tokens=2))
    sequence.token_ids += [7] * 5
    sequence.num_computed_tokens = 7
    assert shortest_remaining(4)(sequence) == 1


# -- ageing ----------------------------------------------------------------------------------------


def test_without_seconds_ageing_is_first_come_and_with_endless_ones_the_key_alone() -> None:
    requests = [
        ask("A", 1, 9, at=0.0),
        ask("B", 1, 5, at=0.2),
        ask("C", 1, 2, at=0.4),
        ask("D", 1, 5, at=0.1),
    ]
    assert served(requests, aged(shortest_first, 0)) == served(requests, first_come) == ["A", "D", "B", "C"]
    assert served(requests, aged(shortest_first, math.inf)) == ["A", "C", "D", "B"]


def test_priorities_go_by_class_unless_somebody_has_waited_for_a_class() -> None:
    first = ask("first", 1, 6)
    late = [ask("low", 1, 1, at=0.5, priority=1), ask("high", 1, 1, at=2.0), ask("higher", 1, 1, at=4.0)]
    assert served([first, *late], by_priority(math.inf)) == ["first", "high", "higher", "low"]
    assert served([first, *late], by_priority(3)) == ["first", "high", "low", "higher"]
    assert served([first, *late], by_priority(1)) == ["first", "low", "high", "higher"]


@pytest.mark.parametrize("shorts", [6, 20, 200])
def test_ageing_bounds_a_long_request_s_wait_whatever_comes_after_it(shorts: int) -> None:
    # A short request takes 2 s and one comes every 2 s, so the only slot is never free for a long one.
    stream = [ask(f"s{i}", 1, 2, at=2.0 * i) for i in range(shorts)]
    requests = [*stream, ask("long", 1, 10, at=1.0)]

    def entered(key: Callable[[Sequence], Any]) -> float:
        run = serve(requests, Continuous(1, key=key), unit_engine(1))
        return request_times(run)[-1].admitted

    assert entered(first_come) == 2.0
    assert entered(shortest_first) == 2.0 * shorts, "it waits for as long as anybody shorter comes"
    # Who is 8 tokens shorter goes before it until 8 s after it came: those that arrive at 2, 4, 6 and 8 s.
    assert entered(aged(shortest_first, 1.0)) == 10.0
    assert entered(aged(shortest_first, 0.5)) == 6.0


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), min_size=2, max_size=8),
    st.integers(1, 9),
    st.integers(50, 99),
)
@SETTINGS
def test_the_key_orders_as_priorities_that_fall_while_they_wait_at_any_time(
    waiting: list[tuple[int, int]], seconds: int, now: int
) -> None:
    sequences = [Sequence(ask(f"r{i}", at=at, priority=p), i) for i, (at, p) in enumerate(waiting)]
    key = by_priority(seconds)

    def falling(sequence: Sequence) -> float:  # times `seconds`, so that all numbers are whole
        return seconds * sequence.request.priority - (now - sequence.arrival_time)

    assert sorted(sequences, key=key) == sorted(sequences, key=falling)


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), min_size=2, max_size=12),
    st.integers(1, 3),
    st.sampled_from([0.5, 1.0, 3.0]),
)
@SETTINGS
def test_nobody_is_passed_by_who_came_later_than_the_key_makes_up_for(
    shapes: list[tuple[int, int]], slots: int, seconds: float
) -> None:
    requests = [ask(f"r{i}", 1, output, at=float(at)) for i, (at, output) in enumerate(shapes)]
    policy = Continuous(slots, key=aged(shortest_first, seconds))
    times = request_times(serve(requests, policy, unit_engine(slots)))
    for passed in times:
        for passer in times:
            if passer.admitted < passed.admitted and passer.arrival > passed.arrival:
                shorter = passed.output_tokens - passer.output_tokens
                assert passer.arrival - passed.arrival <= seconds * shorter


# -- names and bad values --------------------------------------------------------------------------


def test_an_order_is_named_in_reprs_and_in_the_rows_of_a_race() -> None:
    assert repr(Static(2, key=shortest_first)) == "Static(max_num_seqs=2, key=shortest_first)"
    assert repr(Static(2, key=by_priority(1.5))) == "Static(max_num_seqs=2, key=by_priority(1.5))"
    found = race(
        [
            Continuous(2),
            Continuous(2, key=aged(shortest_first, 0.05)),
            Continuous(2, key=shortest_remaining(32)),
        ],
        [ask("A", 1, 2), ask("B", 1, 2)],
        unit_engine(2),
    )
    assert [entry.policy for entry in found.entries] == [
        "Continuous(2)", "Continuous(2, aged(shortest_first, 0.05))", "Continuous(2, shortest_remaining(32))",
    ]  # fmt: skip


@pytest.mark.parametrize("value", [0, -1, math.nan, None, "32", True])
def test_a_price_of_prompts_that_cannot_be_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=rf"tokens_per_step={value!r}: give the prompt tokens"):
        shortest_remaining(value)


@pytest.mark.parametrize("value", [-0.1, math.nan, None, "1", True])
def test_ageing_by_no_time_at_all_is_refused(value: Any) -> None:
    for make in (by_priority, lambda seconds: aged(shortest_first, seconds)):
        with pytest.raises(ValueError, match=rf"ageing of {value!r} seconds: give the seconds of waiting"):
            make(value)


@pytest.mark.parametrize("key", [shortest_first, shortest_remaining(4), aged(shortest_first, 1.0)])
def test_an_oracle_without_a_hint_says_whose_is_missing(key: Callable[[Sequence], Any]) -> None:
    with pytest.raises(ValueError, match=r"'B' has no expected_tokens.*set Request\(expected_tokens"):
        serve([ask("A"), ask("B", expected_tokens=None)], Continuous(2, key=key), unit_engine(2))
