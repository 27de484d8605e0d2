"""The wait for a batch to fill, against a simulation of arrivals and against what must hold."""

from __future__ import annotations

import math
import random
from functools import cache
from statistics import quantiles

import pytest

from llmserve.queueing import fill_wait, fill_wait_tail


@cache
def waits(slots: int, rate: float, batches: int = 6000) -> list[float]:
    """Until the last of each batch of arrivals has come."""
    draws, now, found = random.Random(f"{slots}/{rate}"), 0.0, []
    for _ in range(batches):
        times = []
        for _ in range(slots):
            now += draws.expovariate(rate)
            times.append(now)
        found += [now - time for time in times]
    return found


@pytest.mark.parametrize(("slots", "rate"), [(2, 1.0), (4, 0.5), (8, 3.0)])
def test_the_formula_agrees_with_simulated_arrivals(slots: int, rate: float) -> None:
    simulated = waits(slots, rate)
    for seconds in (0.0, 0.3 / rate, 1 / rate, slots / rate):
        share = sum(wait > seconds for wait in simulated) / len(simulated)
        assert fill_wait_tail(slots, rate, seconds) == pytest.approx(share, abs=0.012)
    percentiles = quantiles(simulated, n=100)
    for q in (60, 75, 90, 95):
        assert fill_wait(slots, rate, q) == pytest.approx(percentiles[q - 1], rel=0.04)


def test_two_slots_by_hand() -> None:
    # the second never waits, the first waits one exponential gap
    assert fill_wait_tail(2, 3.0, 0.7) == pytest.approx(math.exp(-2.1) / 2)
    assert fill_wait(2, 3.0, 90) == pytest.approx(math.log(5) / 3)
    assert fill_wait_tail(3, 1.0, 2.0) == pytest.approx((math.exp(-2) + 3 * math.exp(-2)) / 3)


def test_the_percentile_is_where_the_tail_has_that_share() -> None:
    for q in (50.0, 90.0, 99.0, 99.9):
        assert fill_wait_tail(8, 2.0, fill_wait(8, 2.0, q)) == pytest.approx(1 - q / 100)


def test_a_batch_of_one_is_full_at_once() -> None:
    assert fill_wait_tail(1, 2.0, 0.0) == 0.0
    assert fill_wait(1, 2.0, 99) == pytest.approx(0.0, abs=1e-9)


def test_the_last_of_a_batch_waits_for_no_one() -> None:
    assert fill_wait_tail(4, 1.0, 0.0) == 3 / 4
    assert fill_wait(4, 1.0, 24.9) == pytest.approx(0.0, abs=1e-9)
    assert fill_wait(4, 1.0, 25.5) > 1e-3


def test_more_slots_a_lower_rate_and_a_higher_percentile_all_wait_longer() -> None:
    by_q = [fill_wait(8, 2.0, q) for q in (20, 50, 90, 99, 99.9)]
    by_gap = [fill_wait(8, rate, 90) for rate in (8.0, 4.0, 1.0, 0.1)]
    by_slots = [fill_wait(slots, 2.0, 90) for slots in (1, 2, 4, 8, 16)]
    for values in (by_q, by_gap, by_slots):
        assert values == sorted(set(values))
    assert fill_wait(8, 1.0, 90) == pytest.approx(10 * fill_wait(8, 10.0, 90)), "only rate x time counts"


@pytest.mark.parametrize(
    ("slots", "rate", "q"), [(0, 1.0, 50), (4, 0.0, 50), (4, -1.0, 50), (4, 1.0, -1), (4, 1.0, 100)]
)
def test_what_has_no_answer_is_refused(slots: int, rate: float, q: float) -> None:
    with pytest.raises(ValueError, match=f"slots={slots}, rate={rate}, q={q}"):
        fill_wait(slots, rate, q)
