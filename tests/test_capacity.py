"""Capacities of queues that are worked out by hand, and of sets of loads that pass by decree."""

from __future__ import annotations

import math

import pytest
from helpers.build import unit_engine

from llmserve import sweep as module
from llmserve.metrics import SLO
from llmserve.policies import Continuous, Policy, Static
from llmserve.sweep import capacity, highest_load
from llmserve.workload import Lognormal, Prompts, Workload


@pytest.mark.parametrize("tolerance", [0.5, 0.1, 0.01, 1e-6])
@pytest.mark.parametrize(
    ("passing", "expected"),
    [
        ([(0.0, 0.73)], 0.73),
        ([(0.3, 0.93)], 0.93),  # not at the lightest loads
        ([(0.1, 0.3), (0.8, 1.234)], 1.234),  # the higher of two ranges
        ([(0.0, 0.1)], 0.1),  # just met at a load of the grid
        ([(0.0, 0.999)], 0.999),
    ],
)
def test_the_highest_load_passes_and_a_little_more_does_not(
    passing: list[tuple[float, float]], expected: float, tolerance: float
) -> None:
    asked: list[float] = []

    def sustains(load: float) -> bool:
        asked.append(load)
        return any(low <= load <= high for low, high in passing)

    load, at_least = highest_load(sustains, module.LOADS, tolerance)
    assert sustains(load) and not at_least
    assert expected - tolerance <= load <= expected
    assert asked.count(load) == 2 and len(set(asked)) == len(asked) - 1, "the last one was ours"


def test_no_load_passes_or_the_highest_does() -> None:
    assert highest_load(lambda load: False, (0.5, 1.0), 0.01) == (0.0, False)
    assert highest_load(lambda load: load < 0.4, (0.5, 1.0), 0.01) == (0.0, False), "below the grid"
    assert highest_load(lambda load: True, (0.5, 1.0), 0.01) == (1.0, True)
    assert highest_load(lambda load: True, (0.5,), 0.01) == (0.5, True)
    assert highest_load(lambda load: load < 1.0, (0.5, 1.0), 0.6) == (0.5, False), "wide enough already"


# One token in, one token out, one second a step: a queue whose waits are worked out without the loop.
TICKS = Workload("ticks", 60, 2, 2, Lognormal(1, 0.0, 1, 1), Prompts(1, 1))


def share_by_hand(batch: int, load: float, seed: int, limit: float, full: bool) -> float:
    """Of single-step requests served `batch` at a time (full batches only, or whoever is there)."""
    arrivals = [time / (2 * load) for time in TICKS.with_(load=load, seed=seed).unit_arrivals()]
    now, met, left = 0.0, 0, list(arrivals)
    while left:
        now = max(now, left[min(batch, len(left)) - 1 if full else 0])
        served = [time for time in left[:batch] if time <= now]
        del left[: len(served)]
        now += 1.0
        met += sum(now - time <= limit for time in served)
    return met / len(arrivals)


@pytest.mark.parametrize(
    ("policy", "full", "limit", "share"),
    [(Continuous(2), False, 2.5, 0.9), (Static(2), True, 3.0, 0.8), (Static(2), True, 2.5, 0.75)],
)
def test_capacity_is_that_of_a_queue_worked_out_by_hand(
    policy: Policy, full: bool, limit: float, share: float
) -> None:
    slo = SLO(ttft=limit, tpot=math.inf)
    loads = (0.1, 0.3, 0.5, 0.7, 0.9, 1.1, 1.5)
    table = capacity({"it": policy}, TICKS, [0, 1], unit_engine(1), 1.0, slo, share, loads, 0.02, n_jobs=1)
    assert list(table["policy"]) == ["it", "it"] and list(table["seed"]) == [0, 1]
    for seed, load, at_least in table[["seed", "load", "at_least"]].itertuples(index=False):
        passing = [at for at in loads if share_by_hand(2, at, seed, limit, full) >= share]
        assert max(passing) <= load < max(passing) + 0.4 and not at_least
        assert share_by_hand(2, load, seed, limit, full) >= share
        above = [load + 0.02 * i / 20 for i in range(1, 21)]
        assert any(share_by_hand(2, at, seed, limit, full) < share for at in above)
        assert (loads[0] in passing) != full, "static fails at the lightest load too"


def test_capacity_bounds() -> None:
    policies = {"a": Continuous(2), "b": Static(2)}
    arguments = (policies, TICKS, [3, 1], unit_engine(1), 1.0)
    never = capacity(*arguments, SLO(0.5, 1.0), 0.5, loads=(0.2, 0.8), n_jobs=1)
    assert list(never["policy"]) == ["a", "a", "b", "b"] and list(never["seed"]) == [3, 1, 3, 1]
    assert (never["load"] == 0.0).all() and not never["at_least"].any()
    always = capacity(*arguments, SLO(math.inf, math.inf), 1.0, loads=(0.2, 0.8), n_jobs=2)
    assert (always["load"] == 0.8).all() and always["at_least"].all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"policies": {}}, r"policies=\{\}: nothing to run"),
        ({"seeds": []}, r"seeds=\[\]"),
        ({"seeds": [2, 2]}, "2 is there twice"),
        ({"share": 0.0}, "share=0.0"),
        ({"share": 95}, "share=95: give the share .* up to 1"),
        ({"tolerance": 0.0}, "tolerance=0.0: give .* 0.000001 or more"),
        ({"tolerance": math.nan}, "tolerance=nan"),
        ({"loads": ()}, r"loads=\(\): give at least one load"),
        ({"loads": (0.5, 0.5)}, r"loads=\(0.5, 0.5\): .* each above the one before"),
        ({"loads": (0.0, 0.5)}, r"load=0.0"),
        ({"decode_step": 0.0}, "decode_step=0.0"),
    ],
)
def test_a_bad_capacity_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, change: dict, words: str
) -> None:
    good = {
        "policies": {"a": Static(2)}, "workload": TICKS, "seeds": [0], "engine": unit_engine(1),
        "decode_step": 1.0, "slo": SLO(1.0, 1.0), "share": 0.9,
    }  # fmt: skip
    monkeypatch.setattr(module, "_in_parallel", lambda *_: pytest.fail("something ran"))
    with pytest.raises(ValueError, match=words):
        capacity(**{**good, **change})


def test_a_workload_that_is_refused_as_a_whole_has_no_capacity() -> None:
    with pytest.raises(ValueError, match=r"'ticks': every request is refused; request 'r0': .* 0\.\.\.0"):
        capacity({"a": Static(2)}, TICKS, [0], unit_engine(1, vocab_size=1), 1.0, SLO(1, 1), 0.9, n_jobs=1)
