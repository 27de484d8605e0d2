"""A fit finds the cost model behind simulated runs, each run's own speed, and little else."""

from __future__ import annotations

import math
from dataclasses import fields
from functools import cache
from statistics import fmean, median, pstdev

import pytest
from helpers.build import ask

from llmserve.costmodel import CostModel, SimulatedEngine
from llmserve.fit import FEWEST_STEPS, Fit, computed_seconds, counted, fit, scaled, speed_of
from llmserve.loop import serve
from llmserve.policies import Chunked, Continuous, Mixed, Policy, Static
from llmserve.run import Run
from llmserve.workload import HEADLINE, LONG_PROMPTS, SHORT, Workload

TRUE = CostModel(5e-3, 15e-3, 6e-4, 2.5e-7, 5e-4, 1.5e-6, 1.2e-3, jumps=((5, 4e-3),))
DECODE_STEP = 0.03  # roughly what TRUE takes for eight decodes
FITTED = ((Static(8), SHORT), (Continuous(8), HEADLINE), (Mixed(8), SHORT), (Chunked(8, 64), HEADLINE))


def simulate(policy: Policy, workload: Workload, cost: CostModel = TRUE, **noise: object) -> Run:
    engine = SimulatedEngine(8, workload.max_model_len, cost, **noise)
    return serve(workload.requests(DECODE_STEP), policy, engine)


def simulate_all(*speeds: float) -> list[Run]:
    return [
        simulate(policy, workload, scaled(TRUE, speed))
        for (policy, workload), speed in zip(FITTED, speeds, strict=True)
    ]


def with_seconds(run: Run, seconds: list[float]) -> Run:
    """The same run, each step's seconds replaced."""
    log = [step._replace(seconds=taken) for step, taken in zip(run.log, seconds, strict=True)]
    return Run(run.policy, run.max_num_seqs, run.submitted, run.events, log)


@cache
def unseen() -> Run:
    """Of a policy and a workload that no fit here has seen."""
    return simulate(Chunked(8, 128), LONG_PROMPTS)


@cache
def plain_fit() -> Fit:
    return fit(simulate_all(1.0, 1.0, 1.0, 1.0))


def worst_error(cost: CostModel, run: Run) -> float:
    pairs = zip(computed_seconds(cost, run), run.log, strict=True)
    return max(abs(computed / step.seconds - 1) for computed, step in pairs)


def test_computed_seconds_are_what_the_simulated_engine_logged() -> None:
    assert computed_seconds(TRUE, unseen()) == [step.seconds for step in unseen().log]


def test_work_is_counted_for_each_logged_step() -> None:
    run = serve([ask("a", prompt=3, output=2)], Continuous(1), SimulatedEngine(1, 8))
    assert counted(run.log).tolist() == [[3, 1, 3, 6, 1], [1, 1, 4, 4, 0]]


def test_a_fit_predicts_every_step_of_a_run_that_it_has_not_seen() -> None:
    assert worst_error(plain_fit().cost, unseen()) < 0.01


def test_a_fit_finds_the_knee_and_the_jump() -> None:
    cost = plain_fit().cost
    assert cost.knee == pytest.approx(TRUE.knee, rel=0.05)
    assert dict(cost.jumps)[5] == pytest.approx(4e-3, rel=0.1)
    assert sum(seconds for _, seconds in cost.jumps) == pytest.approx(4e-3, rel=0.1)


def test_a_noiseless_fit_leaves_nothing_over() -> None:
    runs, found = simulate_all(1.0, 1.0, 1.0, 1.0), plain_fit()
    assert found.speeds == pytest.approx([1.0] * 4, rel=0.01)
    with_prompts = [any(c.num_tokens > 1 for c in step.chunks) for run in runs for step in run.log]
    assert [len(kind) for kind in found.noise] == [with_prompts.count(False), with_prompts.count(True)]
    assert all(abs(factor - 1) < 0.01 for kind in found.noise for factor in kind)


def test_each_runs_own_speed_is_found_and_kept_out_of_the_model() -> None:
    speeds = [1.0, 1.3, 0.9, 1.1]
    runs = simulate_all(*speeds)
    found = fit(runs)
    mean = math.prod(speeds) ** (1 / 4)  # speeds are relative to the runs' geometric mean
    assert found.speeds == pytest.approx([speed / mean for speed in speeds], rel=0.01)
    assert worst_error(scaled(found.cost, 1 / mean), unseen()) < 0.02
    assert all(abs(factor - 1) < 0.02 for kind in found.noise for factor in kind)
    assert [speed_of(found.cost, run) for run in runs] == pytest.approx(found.speeds, rel=1e-4)


def test_a_few_interrupted_steps_barely_move_a_fit() -> None:
    runs = simulate_all(1.0, 1.0, 1.0, 1.0)
    prompts = [(run, i) for run in runs for i, step in enumerate(run.log) if step.chunks[-1].num_tokens > 1]
    hit = {(id(run), i) for run, i in prompts[7::25]}  # all of one kind, so that no factor makes up for them
    interrupted = [
        with_seconds(run, [s.seconds * (10 if (id(run), i) in hit else 1) for i, s in enumerate(run.log)])
        for run in runs
    ]
    found = fit(interrupted)
    without, within = found.noise
    assert len(hit) > 5
    assert (sum(factor > 5 for factor in without), sum(factor > 5 for factor in within)) == (0, len(hit))
    # whole runs are right on average, interruptions included; the shape is that of the other steps
    pairs = zip(computed_seconds(found.cost, unseen()), unseen().log, strict=True)
    middle = median(computed / step.seconds for computed, step in pairs)
    assert 1.0 < middle < 1.1
    assert worst_error(scaled(found.cost, 1 / middle), unseen()) < 0.002  # 0.006 if squares counted


def test_no_price_is_negative_even_where_more_work_takes_less_time() -> None:
    run = simulate(Mixed(8), SHORT)
    upside_down = with_seconds(run, [1 / (20 + sum(c.num_tokens for c in step.chunks)) for step in run.log])
    cost = fit([upside_down]).cost
    prices = [getattr(cost, field.name) for field in fields(cost) if field.name not in ("jumps", "fitted")]
    assert min(prices + [seconds for _, seconds in cost.jumps]) >= 0
    computed = computed_seconds(cost, run)
    assert max(computed) < 1.02 * min(computed), "flat is the nearest it can get"


def test_a_fit_hands_the_spread_of_each_kind_of_step_on_to_a_simulation() -> None:
    noise = ((0.95, 1.0, 1.05), (0.9, 1.1))
    found = fit([simulate(policy, workload, noise=noise, seed=5) for policy, workload in FITTED])
    assert [fmean(factors) for factors in found.noise] == pytest.approx([1.0, 1.0], abs=0.05)
    assert [pstdev(factors) for factors in found.noise] == pytest.approx([0.041, 0.1], rel=0.1)
    again = simulate(Static(8), SHORT, found.cost, noise=found.noise, seed=6)
    assert speed_of(found.cost, again) == pytest.approx(1.0, abs=0.02)


def test_scaling_a_model_and_reading_its_speed_are_each_others_inverse() -> None:
    slow = scaled(TRUE, 1.7)
    assert speed_of(TRUE, simulate(Static(8), SHORT, slow)) == pytest.approx(1.7)
    assert slow.jumps == ((5, pytest.approx(1.7 * 4e-3)),)
    assert slow.knee == pytest.approx(TRUE.knee)
    back = scaled(slow, 1 / 1.7)
    assert computed_seconds(back, unseen()) == pytest.approx(computed_seconds(TRUE, unseen()))


def test_too_few_steps_are_refused_with_their_number() -> None:
    run = simulate(Static(8), SHORT)
    short = Run(run.policy, 8, log=run.log[: FEWEST_STEPS - 1])
    with pytest.raises(ValueError, match=f"{FEWEST_STEPS - 1} steps are too few"):
        fit([short])
    with pytest.raises(ValueError, match="0 steps"):
        fit([Run("empty", 8)])
