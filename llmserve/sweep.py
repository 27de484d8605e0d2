"""Grids of simulated runs through joblib: one core, all of them or a cluster, and the same table to the bit.

Where the runs go is joblib's affair: all cores of this machine, unless the caller says otherwise with
`n_jobs=` or with a `joblib.parallel_config(...)` around the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import joblib
import pandas as pd
from joblib.parallel import BACKENDS, DEFAULT_BACKEND, get_active_backend

from .costmodel import SimulatedEngine
from .loop import serve
from .metrics import SLO, summarise
from .policies import Policy
from .progress import default_progress, silent
from .request import Request
from .run import Run
from .settings import available_cores
from .workload import Workload, coefficient_of_variation, realised_load

T = TypeVar("T")
R = TypeVar("R")

TASK_REQUESTS = 1000  # what one task serves, about: long enough to make its pickling and start-up small
LOADS = (0.05, *(tenth / 10 for tenth in range(1, 21)))


@dataclass(frozen=True)
class Point:
    """One point of a grid: a policy on a workload (its seed is replaced by each of the sweep's)."""

    policy: Policy
    workload: Workload


def sweep(
    grid: Iterable[Point],
    seeds: Iterable[int],
    engine: SimulatedEngine,
    decode_step: float | None = None,
    slo: SLO | None = None,
    n_jobs: int | None = None,
) -> pd.DataFrame:
    """Simulate every point with every seed: one row each, in the order of the grid, then of the seeds.

    `engine` gives the costs; each workload brings its own slots and `max_model_len`. `decode_step` is
    the engine's full-batch decode step in seconds; a grid whose requests are all queued needs none.
    `n_jobs` is joblib's; None: what a surrounding `parallel_config` says, else all cores.

    Columns: policy (its class), policy_repr, workload, load (nan: all queued), realised_load,
    output_cv (coefficient of variation of the output lengths), max_num_seqs, seed, and the fields of
    `metrics.Summary`. ValueError, before anything runs, on an empty grid, seeds that are missing or
    repeated, and a load that comes without a positive `decode_step`.
    """
    grid, seeds = list(grid), _checked(seeds)
    if not grid:
        raise ValueError(f"grid={grid}: nothing to run; give at least one Point(policy, workload)")
    for point in grid:
        if point.workload.load is not None:
            _check_load(point.workload, decode_step)
    tasks = _tasks([(point, seed) for point in grid for seed in seeds])
    rows = _in_parallel(partial(_rows, engine, decode_step, slo), tasks, "sweep", n_jobs)
    return pd.DataFrame([row for task in rows for row in task])


def _tasks(runs: list[tuple[Point, int]]) -> list[list[tuple[Point, int]]]:
    """The runs in order, cut into tasks of about TASK_REQUESTS requests, however many workers there are."""
    tasks, requests = [], TASK_REQUESTS
    for point, seed in runs:
        if requests >= TASK_REQUESTS:
            tasks.append([])
            requests = 0
        tasks[-1].append((point, seed))
        requests += point.workload.num_requests
    return tasks


def _rows(
    engine: SimulatedEngine, decode_step: float | None, slo: SLO | None, runs: list[tuple[Point, int]]
) -> list[dict[str, Any]]:
    rows = []
    for point, seed in runs:
        workload = point.workload.with_(seed=seed)
        requests = workload.requests(decode_step)
        run = _simulate(point.policy, workload, requests, engine)
        rows.append(
            {
                "policy": type(point.policy).__name__,
                "policy_repr": repr(point.policy),
                "workload": workload.name,
                "load": math.nan if workload.load is None else workload.load,
                "realised_load": realised_load(requests, workload.max_num_seqs, decode_step),
                "output_cv": coefficient_of_variation([request.max_tokens for request in requests]),
                "max_num_seqs": workload.max_num_seqs,
                "seed": seed,
                **asdict(summarise(run, slo)),
            }
        )
    return rows


def _simulate(policy: Policy, workload: Workload, requests: list[Request], engine: SimulatedEngine) -> Run:
    engine = replace(
        engine,
        max_num_seqs=workload.max_num_seqs,
        max_model_len=workload.max_model_len,
        seed=workload.seed,  # a seed draws its own noise too
    )
    return serve(requests, policy, engine, progress=silent)


def capacity(
    policies: Mapping[str, Policy],
    workload: Workload,
    seeds: Iterable[int],
    engine: SimulatedEngine,
    decode_step: float,
    slo: SLO,
    share: float,
    loads: Sequence[float] = LOADS,
    tolerance: float = 0.01,
    n_jobs: int | None = None,
) -> pd.DataFrame:
    """The highest load that each policy sustains with `share` of its requests inside the limits.

    One row a policy and seed: policy (its name), seed, load, at_least. The share does not simply fall
    with the load: static batching also fails at a light one, where a batch takes long to fill. So the
    ascending grid `loads` comes first. Of its loads that pass, the highest is taken, and the gap to
    the next is halved until it is no wider than `tolerance`: the load given passed, and one at most
    `tolerance` above it did not. A range of passing loads that lies between two of the grid's is not
    seen. 0.0: no load of the grid passed; `at_least`: the last one did, so the capacity lies above it.

    The workload's own load and seed are replaced. ValueError, before anything runs, on a bad argument;
    and if every request is refused, which no load could change.
    """
    seeds, loads = _checked(seeds), tuple(loads)
    if not policies:
        raise ValueError(f"policies={policies}: nothing to run; give at least one policy by its name")
    if not 0 < share <= 1:
        raise ValueError(
            f"share={share!r}: give the share of requests that must be inside, above 0 and up to 1"
        )
    if not 1e-6 <= tolerance < math.inf:
        raise ValueError(f"tolerance={tolerance!r}: give the width of load to stop at, 0.000001 or more")
    if not loads or any(low >= high for low, high in pairwise(loads)):
        raise ValueError(f"loads={loads}: give at least one load, each above the one before")
    for load in loads:
        _check_load(workload.with_(load=load), decode_step)
    tasks = [(name, policy, seed) for name, policy in policies.items() for seed in seeds]
    find = partial(_capacity, workload, engine, decode_step, slo, share, loads, tolerance)
    found = _in_parallel(find, tasks, "capacity", n_jobs)
    rows = [(name, seed, *result) for (name, _, seed), result in zip(tasks, found, strict=True)]
    return pd.DataFrame(rows, columns=["policy", "seed", "load", "at_least"])


def _capacity(
    workload: Workload,
    engine: SimulatedEngine,
    decode_step: float,
    slo: SLO,
    share: float,
    loads: tuple[float, ...],
    tolerance: float,
    task: tuple[str, Policy, int],
) -> tuple[float, bool]:
    _, policy, seed = task

    def sustains(load: float) -> bool:
        offered = workload.with_(load=load, seed=seed)
        run = _simulate(policy, offered, offered.requests(decode_step), engine)
        if not run.submitted:
            raise ValueError(f"workload {workload.name!r}: every request is refused; {run.events[0].detail}")
        return summarise(run, slo).slo_share >= share

    return highest_load(sustains, loads, tolerance)


def highest_load(
    sustains: Callable[[float], bool], loads: Sequence[float], tolerance: float
) -> tuple[float, bool]:
    """The highest load that passes, and whether it is a lower bound only; see `capacity`.

    `sustains` is asked once a load, from the top of the grid down to the first that passes.
    """
    above = None
    for low in reversed(loads):
        if sustains(low):
            break
        above = low
    else:
        return 0.0, False
    if above is None:
        return low, True
    while above - low > tolerance:
        middle = (low + above) / 2
        if sustains(middle):
            low = middle
        else:
            above = middle
    return low, False


def _in_parallel(call: Callable[[T], R], tasks: list[T], label: str, n_jobs: int | None) -> list[R]:
    """The results in the order of the tasks, from whatever backend joblib is set to."""
    backend, configured = get_active_backend()
    if n_jobs is None:
        n_jobs = configured
    if n_jobs is None:  # on a cluster, -1 is all of it
        n_jobs = available_cores() if isinstance(backend, BACKENDS[DEFAULT_BACKEND]) else -1
    # Ray's pool and multiprocessing's give their results only when all are there.
    return_as = "generator" if backend.supports_return_generator else "list"
    results: list[R] = []
    with default_progress(label, unit="task") as report:
        for result in joblib.Parallel(n_jobs, return_as=return_as)(map(joblib.delayed(call), tasks)):
            results.append(result)
            report(len(results), len(tasks))
    return results


def _checked(seeds: Iterable[int]) -> list[int]:
    seeds = list(seeds)
    if not seeds:
        raise ValueError(f"seeds={seeds}: nothing to run; give at least one seed, as in seeds=range(3)")
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise ValueError(f"seeds={seeds}: {seed} is there twice and draws the same twice; give it once")
    return seeds


def _check_load(workload: Workload, decode_step: float | None) -> None:
    if decode_step is None or not 0 < decode_step < math.inf:
        raise ValueError(
            f"decode_step={decode_step!r}: workload {workload.name!r} offers load {workload.load}; give "
            "this engine's full-batch decode step in seconds, above 0"
        )
