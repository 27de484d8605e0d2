"""Sweeps: the same table on every backend, row by row what a direct run gives; capacities by hand."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, fields
from typing import Any

import joblib
import pandas as pd
import pytest
from joblib.parallel import ThreadingBackend

from llmserve import sweep as module
from llmserve.costmodel import CostModel, SimulatedEngine
from llmserve.loop import PolicyError, serve
from llmserve.metrics import SLO, Summary, summarise
from llmserve.policies import Chunked, Continuous, Dynamic, Policy, Static
from llmserve.sweep import Point, sweep
from llmserve.workload import Lognormal, Prompts, Workload, coefficient_of_variation, realised_load

COST = CostModel(overhead=0.5, weights=0.5, per_token=0.1, per_context=0.001, per_row=0.01)
ENGINE = SimulatedEngine(1, 1, COST)  # a sweep takes slots and lengths from the workloads
STEP, SLOW = 1.0, SLO(ttft=10.0, tpot=2.0)
SMALL = Workload("small", 12, 3, 40, Lognormal(6, 0.8, 1, 20), Prompts(2, 8, 20, 0.1), load=0.7)
QUEUED = SMALL.with_(name="queued", load=None, max_num_seqs=2)
GRID = [
    Point(policy, workload)
    for workload in (SMALL, QUEUED, SMALL.with_(load=1.3))
    for policy in (Static(3), Dynamic(2, 1.5), Continuous(3), Chunked(2, 8))
]
SEEDS = (4, 0)


def same(a: pd.DataFrame, b: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(a, b, check_exact=True)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return sweep(GRID, SEEDS, ENGINE, STEP, SLOW, n_jobs=1)


@pytest.fixture
def many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TASK_REQUESTS", 30)  # three runs each


# -- the table -------------------------------------------------------------------------------------


def test_a_row_is_a_direct_run_and_its_summary_in_grid_order(table: pd.DataFrame) -> None:
    expected = []
    for point in GRID:
        for seed in SEEDS:
            workload = point.workload.with_(seed=seed)
            requests = workload.requests(STEP)
            engine = SimulatedEngine(workload.max_num_seqs, 40, COST)
            expected.append(
                {
                    "policy": type(point.policy).__name__,
                    "policy_repr": repr(point.policy),
                    "workload": workload.name,
                    "load": math.nan if workload.load is None else workload.load,
                    "realised_load": realised_load(requests, workload.max_num_seqs, STEP),
                    "output_cv": coefficient_of_variation(workload.output_lengths()),
                    "max_num_seqs": workload.max_num_seqs,
                    "seed": seed,
                    **asdict(summarise(serve(requests, point.policy, engine), SLOW)),
                }
            )
    same(table, pd.DataFrame(expected))
    assert list(table.columns[8:]) == [field.name for field in fields(Summary)]
    assert list(table["policy"][:8]) == [
        name for name in ("Static", "Dynamic", "Continuous", "Chunked") for _ in SEEDS
    ]
    assert list(table["seed"]) == [4, 0] * len(GRID)


def test_seeds_change_the_draw_and_nothing_else_does(table: pd.DataFrame) -> None:
    for column in ("realised_load", "output_cv", "seconds"):
        by_seed = table[table["load"] == 0.7].groupby("seed")[column]
        assert by_seed.first().nunique() == 2, column
    draws = table.groupby(["load", "seed"])[["realised_load", "output_cv"]].nunique()
    assert (draws == 1).all(axis=None), "policies are compared on the same requests"
    same(sweep(GRID[:1], SEEDS[1:], ENGINE, STEP, SLOW, n_jobs=1), table.iloc[[1]].reset_index(drop=True))


def test_queued_requests_need_no_decode_step_and_offer_an_infinite_load() -> None:
    (row,) = sweep([Point(Continuous(2), QUEUED)], [0], ENGINE, n_jobs=1).to_dict("records")
    assert (row["realised_load"], row["n"]) == (math.inf, 12)
    assert math.isnan(row["load"]) and math.isnan(row["slo_share"])


# -- where it runs ---------------------------------------------------------------------------------


class AllAtOnce(ThreadingBackend):
    """A backend that cannot give results one by one, as Ray's cannot."""

    supports_return_generator = False


@pytest.mark.usefixtures("many_tasks")
def test_two_processes_give_the_same_table_to_the_last_bit(table: pd.DataFrame) -> None:
    same(sweep(GRID, SEEDS, ENGINE, STEP, SLOW, n_jobs=2), table)


@pytest.mark.usefixtures("many_tasks")
@pytest.mark.parametrize(
    "backend", ["threading", "sequential", AllAtOnce()], ids=["threads", "one process", "all at once"]
)
def test_a_surrounding_configuration_chooses_the_backend(table: pd.DataFrame, backend: Any) -> None:
    with joblib.parallel_config(backend=backend, n_jobs=2):
        same(sweep(GRID, SEEDS, ENGINE, STEP, SLOW), table)


NOTEBOOK = """
from llmserve.policies import Continuous

class OneAtATime(Continuous):
    def admit(self, waiting, running, now, more_coming):
        return [] if running else ADMITTED
"""


def in_a_notebook(admitted: str = "waiting[:1]") -> Policy:
    """A policy whose class no worker can import: it was written in a cell."""
    cell: dict = {"__name__": "__main__"}
    exec(NOTEBOOK.replace("ADMITTED", admitted), cell)
    return cell["OneAtATime"](3)


@pytest.fixture(scope="module")
def one_at_a_time() -> pd.DataFrame:
    return sweep([Point(in_a_notebook(), SMALL)], SEEDS, ENGINE, STEP, SLOW, n_jobs=1)


@pytest.mark.usefixtures("many_tasks")
def test_a_policy_written_in_a_notebook_runs_in_other_processes(one_at_a_time: pd.DataFrame) -> None:
    table = sweep([Point(in_a_notebook(), SMALL)] * 3, SEEDS, ENGINE, STEP, SLOW, n_jobs=2)
    assert set(table["policy"]) == {"OneAtATime"} and (table["live_rows"] == 1).all()
    same(table, pd.concat([one_at_a_time] * 3, ignore_index=True))


@pytest.mark.usefixtures("many_tasks")
@pytest.mark.filterwarnings("error")
def test_a_dask_cluster_gives_the_same_tables_and_closes_cleanly(
    table: pd.DataFrame, one_at_a_time: pd.DataFrame
) -> None:
    from dask.distributed import Client, LocalCluster

    cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)
    with cluster, Client(cluster) as client, joblib.parallel_config(backend="dask"):
        same(sweep(GRID, SEEDS, ENGINE, STEP, SLOW), table)
        same(sweep([Point(in_a_notebook(), SMALL)], SEEDS, ENGINE, STEP, SLOW), one_at_a_time)
        assert any(client.run(lambda: "llmserve.sweep" in sys.modules).values()), "it ran there, not here"
    assert cluster.status.name == "closed"


@pytest.mark.parametrize(
    ("around", "given", "expected"),
    [
        ({}, None, 5),
        ({}, 2, 2),
        ({"n_jobs": 1}, None, 1),
        ({"n_jobs": 1}, 3, 3),
        ({"backend": "threading"}, None, -1),
        ({"backend": "threading", "n_jobs": 2}, None, 2),
    ],
)
def test_all_real_cores_are_used_unless_the_caller_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, around: dict, given: int | None, expected: int
) -> None:
    asked, parallel = [], joblib.Parallel

    def watched(n_jobs: int, **more: object) -> joblib.Parallel:
        asked.append(n_jobs)
        return parallel(1, **more)

    monkeypatch.setattr(module, "available_cores", lambda: 5)
    monkeypatch.setattr(joblib, "Parallel", watched)
    with joblib.parallel_config(**around):
        sweep(GRID[:1], [0], ENGINE, STEP, n_jobs=given)
    assert asked == [expected]


def test_runs_are_cut_into_tasks_by_their_requests_in_order() -> None:
    def sizes(*requests: int) -> list[list[int]]:
        runs = [(Point(Static(1), SMALL.with_(num_requests=n)), 0) for n in requests]
        tasks = module._tasks(runs)
        assert [run for task in tasks for run in task] == runs
        return [[point.workload.num_requests for point, _ in task] for task in tasks]

    assert sizes(*[300] * 9) == [[300] * 4, [300] * 4, [300]]
    assert sizes(5000, 5000, 400, 400, 400, 1) == [[5000], [5000], [400, 400, 400], [1]]
    assert sizes(1000, 999, 1, 7) == [[1000], [999, 1], [7]]


@pytest.mark.parametrize("live", [False, True])
def test_one_bar_in_a_live_notebook_and_silence_elsewhere(
    live: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("llmserve.progress.in_live_notebook", lambda: live)
    monkeypatch.setattr(module, "TASK_REQUESTS", 1)
    sweep(GRID[:3], SEEDS, ENGINE, STEP, n_jobs=1)
    out, err = capfd.readouterr()
    assert out == ""
    assert ("sweep" in err) == live and "request" not in err


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"grid": []}, r"grid=\[\]: nothing to run; give at least one Point"),
        ({"seeds": []}, r"seeds=\[\]: nothing to run; give at least one seed"),
        ({"seeds": [1, 2, 1]}, r"seeds=\[1, 2, 1\]: 1 is there twice .* give it once"),
        ({"decode_step": None}, "decode_step=None: workload 'small' offers load 0.7; give .* seconds"),
        ({"decode_step": 0.0}, "decode_step=0.0"),
        ({"decode_step": math.nan}, "decode_step=nan"),
        ({"decode_step": math.inf}, "decode_step=inf"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, change: dict, words: str
) -> None:
    monkeypatch.setattr(module, "_in_parallel", lambda *_: pytest.fail("something ran"))
    with pytest.raises(ValueError, match=words):
        sweep(**{"grid": GRID, "seeds": SEEDS, "engine": ENGINE, "decode_step": STEP, **change})


def test_an_error_in_a_worker_comes_back_as_itself() -> None:
    with pytest.raises(PolicyError, match=r"OneAtATime\(max_num_seqs=3\) at step 0.* named 'r0' twice"):
        sweep([Point(in_a_notebook("waiting[:1] * 2"), SMALL)] * 2, [0], ENGINE, STEP, n_jobs=2)
