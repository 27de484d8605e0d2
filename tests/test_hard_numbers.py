"""Numbers that broke other engines: ties, NaN, ragged batches, odd runs, cost models, saved runs."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.build import ask, open_loop, unit_engine
from helpers.tiny import VOCAB, generate, prompt_ids, reference, slot_engine, tiny_model
from helpers.worlds import BATCHED, LOOP, PADDED, SIMULATED, World, assert_as_alone, padded_engine

from llmserve.costmodel import FAR, CostModel, SimulatedEngine, Work
from llmserve.fit import fit
from llmserve.kv import SlotCache
from llmserve.loop import serve
from llmserve.metrics import SLO, output_token_ids, percentile, request_times, summarise
from llmserve.policies import Chunked, Continuous, Mixed, Static
from llmserve.request import Request
from llmserve.run import ChunkRow, DamagedRun, Run, Step

REAL = pytest.mark.parametrize("world", [BATCHED, LOOP, PADDED], ids=lambda world: world.name)

# -- 12. ties and NaN ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_of_equal_logits_the_lowest_id_wins_whatever_the_batch(size: int, dtype: torch.dtype) -> None:
    vocabulary = torch.zeros(VOCAB, 32, dtype=dtype)
    vocabulary[[9, 50, 100], 0] = 5.0
    edits = {
        "transformer.wte.weight": vocabulary,
        "transformer.ln_f.weight": torch.zeros(32, dtype=dtype),
        "transformer.ln_f.bias": torch.eye(32, dtype=dtype)[0],
    }
    requests = [Request(f"r{i}", prompt_ids(1 + 7 * i, seed=i), 4) for i in range(size)]
    run = serve(requests, Mixed(size), slot_engine(size, dtype, edits=edits))
    assert {chunk.token_id for step in run.log for chunk in step.chunks} == {9}


POISON = VOCAB - 1  # this token's embedding is made NaN; its logit stays a number
HEALTHY = [
    Request("A", (*prompt_ids(4, seed=3)[:3], 5), 12),
    Request("C", (7, 8, 9), 9, arrival_time=3.0),
    Request("D", tuple(range(40)), 12, arrival_time=3.0),
]
SICK = Request("B", (POISON, *range(29)), 4)


def poisoned(world: World, slots: int) -> Any:
    engine = world.engine(slots)
    embedding = engine.model.token_embedding.clone()
    embedding[POISON] = math.nan
    engine.model.token_embedding = embedding
    return engine


def test_none_of_the_healthy_ones_meets_the_poison() -> None:
    for request in HEALTHY:
        assert POISON not in (*request.prompt_token_ids, *generate(request))


@pytest.mark.parametrize("world", [BATCHED, LOOP], ids=lambda world: world.name)
@pytest.mark.parametrize("policy", [Mixed(2), Continuous(2), Chunked(2, 8)], ids=repr)
def test_nan_in_one_request_names_it_and_once_it_is_aborted_the_others_go_on(
    world: World, policy: Any
) -> None:
    engine = poisoned(world, 2)
    loop = open_loop(policy, [HEALTHY[0], SICK, *HEALTHY[1:]], engine)
    with pytest.raises(RuntimeError, match=r"not a finite number for 1 of \d requests \('B'\).*abort those"):
        while loop.step():
            pass
    loop.abort("B")
    loop.close()
    while loop.step():
        pass
    assert_as_alone(loop.run, HEALTHY, world)
    assert_as_alone(serve(HEALTHY, policy, engine), HEALTHY, world)


def test_nan_in_a_padded_batch_names_it_and_leaves_nothing_behind() -> None:
    engine = poisoned(PADDED, 2)
    loop = open_loop(Static(2), [SICK, HEALTHY[0]], engine)
    with pytest.raises(RuntimeError, match=r"for 1 of 2 requests \('B'\)"):
        loop.step()
    loop.abort("B")
    loop.close()
    while loop.step():
        pass
    assert_as_alone(loop.run, HEALTHY[:1], PADDED)
    assert_as_alone(serve(HEALTHY, Static(2), engine), HEALTHY, PADDED)


@pytest.mark.parametrize("name", ["transformer.wpe.weight", "transformer.h.0.attn.c_attn.bias"])
@REAL
def test_nan_weights_are_an_error_for_all_and_not_token_0_for_ever(world: World, name: str) -> None:
    edits = {name: torch.full_like(reference().state_dict()[name], math.nan)}
    engine = world.engine(2)
    engine.model = tiny_model(edits=edits)
    with pytest.raises(RuntimeError, match=r"for 2 of 2 requests \('A', 'B'\): the weights hold NaN"):
        serve([Request("A", (3, 4), 5), Request("B", (5, 6), 5)], Static(2), engine)


# -- 13. ragged batches ----------------------------------------------------------------------------

RAGGED = [Request(f"n{n}", prompt_ids(n, seed=n), 6) for n in (1, 2, 17, 1000)]


@pytest.fixture(scope="module")
def alone_in_1024() -> dict[str, list[int]]:
    return {request.id: generate(request, positions=1024) for request in RAGGED}


@pytest.mark.parametrize("form", ["loop", "batched", "padded"])
@pytest.mark.parametrize("policy", [Static(4), Mixed(4), Chunked(4, 64)], ids=repr)
def test_prompts_of_1_2_17_and_1000_tokens_in_one_batch_equal_solo_runs(
    form: str, policy: Any, alone_in_1024: dict[str, list[int]]
) -> None:
    if form == "padded" and isinstance(policy, Continuous):
        pytest.skip("padded batches are static")
    if form == "padded":
        network = tiny_model(positions=1024)
        engine = type(padded_engine())(network, SlotCache(network.config, 4, 1024, network.dtype))
    else:
        engine = slot_engine(4, attention=form, positions=1024)
    assert output_token_ids(serve(RAGGED, policy, engine)) == alone_in_1024


# -- 14. metrics of odd runs -----------------------------------------------------------------------


def test_one_request_of_one_token_has_a_ttft_and_no_gaps() -> None:
    summary = summarise(serve([ask("A", 3, 1, at=5.0)], Static(4), unit_engine(4)), SLO(1.0, 0.0))
    assert (summary.n, summary.tokens, summary.seconds, summary.throughput) == (1, 1, 1.0, 1.0)
    assert summary.ttft_p50 == summary.ttft_p99 == 1.0
    assert all(math.isnan(value) for value in (summary.tpot_p50, summary.itl_p50, summary.itl_max))
    assert (summary.goodput_tokens, summary.goodput_requests, summary.slo_share) == (1.0, 1.0, 1.0)


def test_where_none_meets_the_limits_goodput_is_zero_and_throughput_is_not() -> None:
    run = serve([ask(f"r{i}", 3, 4) for i in range(5)], Mixed(2), unit_engine(2))
    summary = summarise(run, SLO(0.5, 0.5))
    assert (summary.goodput_tokens, summary.goodput_requests, summary.slo_share) == (0.0, 0.0, 0.0)
    assert summary.throughput > 0


def test_a_long_wait_for_the_first_token_is_in_no_gap() -> None:
    run = serve([ask("A", 3, 90), ask("B", 3, 5)], Continuous(1), unit_engine(1, max_model_len=128))
    b = request_times(run)[1]
    assert (b.ttft, b.gaps) == (91.0, [1.0] * 4)
    assert (summarise(run).itl_max, summarise(run).ttft_p99) == (1.0, 91.0)


@pytest.mark.parametrize("q", [0, 1, 50, 99, 100])
def test_every_percentile_of_one_value_is_that_value(q: float) -> None:
    assert percentile([2.5], q) == 2.5


@pytest.mark.parametrize("limits", [(math.nan, 1.0), (1.0, math.nan), (-0.1, 1.0), (1.0, -1.0)])
def test_limits_that_are_no_times_are_refused(limits: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="a limit is in seconds, 0 or more"):
        SLO(*limits)


# -- 15. cost models -------------------------------------------------------------------------------


def run_of(steps: list[tuple[int, float]]) -> Run:
    """A run of decode steps: (rows, seconds) each."""
    log = [
        Step(0.0, seconds, None, 0, 0, 0, [ChunkRow(f"r{i}", i, 99, 1, "decode", 5) for i in range(rows)])
        for rows, seconds in steps
    ]
    return Run("by hand", 8, [], [], log)


def test_a_fit_to_constant_steps_says_that_constant_there() -> None:
    cost = fit([run_of([(4, 0.025)] * 150)]).cost
    assert cost.price(Work(4, 4, 400, 400, 0)) == pytest.approx(0.025, rel=1e-3)


def test_one_step_in_a_hundred_that_took_ten_times_as_long_moves_a_fit_by_its_share_of_the_time() -> None:
    steps = [(1 + i % 8, 0.02 + 0.001 * (i % 8)) for i in range(400)]
    hit = [(rows, 10 * seconds if i % 100 == 50 else seconds) for i, (rows, seconds) in enumerate(steps)]
    clean, disturbed = fit([run_of(steps)]).cost, fit([run_of(hit)]).cost
    for rows in range(1, 9):
        work = Work(rows, rows, 100 * rows, 100 * rows, 0)
        assert 0.99 < disturbed.price(work) / clean.price(work) < 1.11


@pytest.mark.parametrize("seconds", [0.0, math.inf, math.nan])
def test_steps_without_a_time_cannot_be_fitted(seconds: float) -> None:
    with pytest.raises(ValueError, match="a step took no time, or no finite time"):
        fit([run_of([(4, 0.025)] * 150 + [(4, seconds)])])


@pytest.mark.parametrize("price", [-1e-9, math.nan, math.inf])
def test_a_price_that_could_make_a_step_cheaper_by_more_work_is_refused(price: float) -> None:
    for name in (f.name for f in fields(CostModel) if f.name not in ("jumps", "fitted")):
        with pytest.raises(ValueError, match=f"{name}={price!r}: a price is a number of seconds, 0 or more"):
            CostModel(**{name: price})
    with pytest.raises(ValueError, match="jumps="):
        CostModel(jumps=((4, price),))


def test_a_fitted_model_says_when_a_step_is_far_outside_what_it_was_fitted_to() -> None:
    cost = fit([run_of([(1 + i % 8, 0.02 + 0.001 * (i % 8)) for i in range(160)])]).cost
    assert cost.fitted == Work(8, 8, 800, 800, 0)
    assert cost.beyond(Work(FAR * 8, 8, 800, 800, 0)) == []
    assert cost.beyond(Work(17, 8, 1601, 0, 0)) == [
        "17 tokens, at most 8 fitted",
        "1601 cached, at most 800 fitted",
    ]
    engine = SimulatedEngine(2, 64, replace(cost, fitted=Work(8, 8, 800, 800, 8)))
    with pytest.warns(
        UserWarning, match="a step with 30 tokens, at most 8 fitted: the cost model is guessing"
    ):
        serve([ask("A", 30, 3), ask("B", 29, 3)], Continuous(2), replace(engine, max_num_seqs=1))


def test_within_what_it_was_fitted_to_a_model_says_nothing(recwarn: pytest.WarningsRecorder) -> None:
    cost = CostModel(overhead=1.0, fitted=Work(8, 2, 30, 60, 2))
    serve([ask("A", 8, 3), ask("B", 2, 3)], Continuous(2), SimulatedEngine(2, 64, cost))
    serve([ask("A", 60, 3)], Continuous(2), SimulatedEngine(2, 64, CostModel(overhead=1.0)))
    assert not recwarn.list


# -- 16. saved runs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [3],
        ["text"],
        [["run"]],
        [["run", []]],
        [["run", {}]],
        [["run", {"format": "x"}]],
        [["run", {"format": 1}], ["end", 0]],
        [["run", {"format": 1, "policy": "p", "max_num_seqs": 1}], ["riddle", 1], ["end", 1]],
        [["run", {"format": 1, "policy": "p", "max_num_seqs": 1}], ["step", [1, 2]], ["end", 1]],
        [["run", {"format": 1, "policy": "p", "max_num_seqs": 1}], ["request", {"id": "A"}], ["end", 1]],
        [["run", {"format": 1, "policy": "p", "max_num_seqs": 1}], ["event", []], ["end", 0]],
    ],
    ids=lambda lines: f"{len(lines)} lines",
)
def test_a_file_of_something_else_is_one_clear_error(lines: list, tmp_path: Path) -> None:
    path = tmp_path / "run.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    with pytest.raises(DamagedRun, match=r"run\.gz: (the file is |)(cut short|format)"):
        Run.load(path)


def test_a_million_steps_are_saved_and_loaded_without_loss(tmp_path: Path) -> None:
    row = [ChunkRow("A", 0, 7, 1, "decode", 5)]
    log = [Step(i * 0.03, 0.03, None, 0, 64, 8, row) for i in range(1_000_000)]
    Run("long", 1, [ask("A")], [], log).save(tmp_path / "run.gz")
    loaded = Run.load(tmp_path / "run.gz")
    assert loaded.log == log and len(loaded.submitted) == 1


def test_a_run_of_a_simulated_engine_says_the_same_after_a_save(tmp_path: Path) -> None:
    run = serve([ask("A", 5, 6), ask("B", 2, 3, at=0.5)], Mixed(2), SIMULATED.engine(2))
    run.save(tmp_path / "run.gz")
    assert summarise(Run.load(tmp_path / "run.gz"), SLO(3, 2)) == summarise(run, SLO(3, 2))
