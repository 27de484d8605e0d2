"""Fit a cost model to the logged steps of runs, and say how well it fits."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from .costmodel import CostModel, Work, step_work
from .run import Run, Step

# A first guess for each number of CostModel; it only sets the scale of the search.
GUESS = {
    "overhead": 5e-3,
    "weights": 15e-3,
    "per_token": 8e-4,
    "per_context": 2e-7,
    "per_row": 4e-4,
    "per_cached": 2e-6,
    "per_prompt": 1e-3,
}
FEW = 16  # a jump is looked for at each number of tokens up to this that the steps really had
FEWEST_STEPS = 100
SMALLEST_JUMP = 1e-6  # seconds; below it is what the search leaves of a zero
OUTLIER = 0.05  # relative errors beyond this count less and less: a step that something interrupted


@dataclass(frozen=True)
class Fit:
    """A cost model, the runs' own speeds, and what is left over.

    speeds   a factor a run: how much slower than the model its steps were, all taken together.
             The machine's speed drifts from one minute to the next; without these factors
             the drift would be taken for a property of whatever ran in that minute.
    noise    measured / computed seconds of each step, its run's speed taken out: of the steps without
             prompts, and of those with
    """

    cost: CostModel
    speeds: tuple[float, ...]
    noise: tuple[tuple[float, ...], tuple[float, ...]]


def fit(runs: Sequence[Run]) -> Fit:
    """The cost model with the smallest relative errors over the steps of the runs, no price negative.

    ValueError if the runs have fewer than FEWEST_STEPS steps, or steps that took no time.
    """
    counts = [counted(run.log) for run in runs]
    seconds = [np.array([step.seconds for step in run.log]) for run in runs]
    steps = sum(map(len, seconds))
    if steps < FEWEST_STEPS:
        raise ValueError(f"{steps} steps are too few to fit a cost model: log at least {FEWEST_STEPS}")
    if not all(0 < taken < np.inf for taken in itertools.chain(*seconds)):
        raise ValueError("a step took no time, or no finite time: fit to runs of an engine with a clock")
    of_run = np.repeat(np.arange(len(runs)), [len(one) for one in seconds])
    all_counts, all_seconds = np.concatenate(counts), np.concatenate(seconds)
    jumps_at = sorted(int(n) for n in set(all_counts[:, 0]) if 1 < n <= FEW)
    scale = np.array([*GUESS.values(), *[1e-3] * len(jumps_at)])

    def errors(unknowns: np.ndarray) -> np.ndarray:
        prices, logs = unknowns[: len(scale)] * scale, unknowns[len(scale) :]
        speeds = np.exp(logs - logs.mean())
        computed = _priced(prices, jumps_at, all_counts)
        # The last terms tie down the one direction that the speeds leave free: their mean.
        return np.concatenate([computed * speeds[of_run] / all_seconds - 1, 1e-3 * logs])

    start = np.concatenate([np.ones(len(GUESS)), np.full(len(jumps_at), 0.1), np.zeros(len(runs))])
    least = np.concatenate([np.zeros(len(scale)), np.full(len(runs), -3.0)])
    found = least_squares(errors, start, bounds=(least, np.inf), loss="soft_l1", f_scale=OUTLIER)
    prices = found.x[: len(scale)] * scale
    computed = [_priced(prices, jumps_at, one) for one in counts]
    speeds = np.array([one.sum() / model.sum() for one, model in zip(seconds, computed, strict=True)])
    middle = float(np.exp(np.log(speeds).mean()))  # so that the runs are right on average, not at the median
    left = all_seconds / np.concatenate(computed) / speeds[of_run]
    with_prompts = all_counts[:, Work._fields.index("prompts")] > 0
    return Fit(
        _cost_model(prices * middle, jumps_at, Work(*all_counts.max(axis=0).astype(int).tolist())),
        tuple(float(speed / middle) for speed in speeds),
        (tuple(left[~with_prompts].tolist()), tuple(left[with_prompts].tolist())),
    )


def _cost_model(prices: np.ndarray, jumps_at: list[int], fitted: Work) -> CostModel:
    jumps = zip(jumps_at, prices[len(GUESS) :].tolist(), strict=True)
    return CostModel(
        **dict(zip(GUESS, prices.tolist(), strict=False)),
        jumps=tuple((tokens, seconds) for tokens, seconds in jumps if seconds > SMALLEST_JUMP),
        fitted=fitted,
    )


def scaled(cost: CostModel, speed: float) -> CostModel:
    """The same model on a machine that is so many times slower."""
    return replace(
        cost,
        **{name: speed * getattr(cost, name) for name in GUESS},
        jumps=tuple((tokens, speed * seconds) for tokens, seconds in cost.jumps),
    )


def speed_of(cost: CostModel, run: Run) -> float:
    """Measured over computed seconds of a whole run: how slow the machine was in that minute."""
    return sum(step.seconds for step in run.log) / sum(computed_seconds(cost, run))


def computed_seconds(cost: CostModel, run: Run) -> list[float]:
    """What the model says each logged step takes."""
    return [cost.price(step_work(step)) for step in run.log]


def counted(steps: Sequence[Step]) -> np.ndarray:
    """Work of each step, (steps, 5), from the log."""
    return np.array([step_work(step) for step in steps], dtype=float)


def _priced(prices: np.ndarray, jumps_at: list[int], counts: np.ndarray) -> np.ndarray:
    """CostModel.price for many steps at once; prices: GUESS's, then the jumps'; counts: (steps, 5)."""
    price = dict(zip(GUESS, prices, strict=False))
    tokens, rows, cached, pairs, prompts = counts.T
    jumped = (tokens[:, None] >= np.array(jumps_at, dtype=float)) @ prices[len(GUESS) :]
    return (
        price["overhead"]
        + np.maximum(price["weights"], tokens * price["per_token"])
        + jumped
        + pairs * price["per_context"]
        + rows * price["per_row"]
        + cached * price["per_cached"]
        + prompts * price["per_prompt"]
    )
