"""Policies side by side on the same requests: the table, and what it says of a policy that breaks."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
from helpers.build import ask, unit_engine
from helpers.tiny import slot_engine

from llmserve import recorded
from llmserve.costmodel import CostModel, SimulatedEngine, Work
from llmserve.loop import serve
from llmserve.metrics import SLO, summarise
from llmserve.policies import Chunked, Continuous, Mixed, Policy, Static
from llmserve.race import full_decode_step, race, recorded_engine
from llmserve.request import StepResult
from llmserve.workload import HEADLINE, ZOMBIES

REQUESTS = [ask(f"r{i}", 2 + i % 3, 1 + 3 * i % 7, at=0.7 * i) for i in range(9)]


class Broken(Continuous):
    def compose(self, running: list) -> list:
        return []


class Buggy(Continuous):
    def compose(self, running: list) -> list:
        if any(seq.num_output_tokens == 2 for seq in running):
            return running[0].nothing
        return super().compose(running)


class Forgetful(Continuous):
    def __init__(self) -> None:
        pass


def test_each_row_is_the_policy_alone_on_the_same_requests() -> None:
    slo, engine = SLO(5.0, 2.0), unit_engine(2)
    found = race([Static(2), Chunked(2, 6)], REQUESTS, engine, slo)
    assert [entry.policy for entry in found.entries] == ["Static(2)", "Chunked(2, 6)"]
    for entry, policy in zip(found.entries, (Static(2), Chunked(2, 6)), strict=True):
        alone = serve(REQUESTS, policy, unit_engine(2))
        assert entry.run == alone and entry.summary == summarise(alone, slo)
    assert not found.errors and list(found.runs) == ["Static(2)", "Chunked(2, 6)"]


def test_the_table_has_a_row_a_policy_and_units_in_its_heads() -> None:
    slo = SLO(5.0, 2.0)
    found = race([Static(2), Mixed(2)], REQUESTS, unit_engine(2), slo)
    table = found.table
    gaps = sum(r.max_tokens for r in REQUESTS) - len(REQUESTS)
    assert list(table.index) == ["Static(2)", "Mixed(2)"]
    assert list(table.columns) == [
        "tokens/s", "TTFT p50, s", "TTFT max (n = 9), s", "TPOT p50, ms", f"ITL max (n = {gaps}), ms",
        "goodput, tokens/s", "slot efficiency",
    ]  # fmt: skip
    summary = summarise(found.runs["Mixed(2)"], slo)
    assert list(table.loc["Mixed(2)"]) == [
        summary.throughput, summary.ttft_p50, summary.ttft_p99, 1e3 * summary.tpot_p50,
        1e3 * summary.itl_p99, summary.goodput_tokens, summary.slot_efficiency,
    ]  # fmt: skip


def test_a_p99_of_a_hundred_is_called_one() -> None:
    requests = [ask(f"r{i}", 1, 2) for i in range(100)]
    columns = race([Static(4)], requests, unit_engine(4)).columns
    assert "TTFT p99, s" in columns and "ITL p99, ms" in columns


BREAKS = {
    "a broken plan": (Broken(2), "Broken(max_num_seqs=2) at step 0, t=5.6 s: it composed nothing"),
    "an exception of its own": (Buggy(2), "AttributeError in compose, line "),
    "a forgotten super().__init__": (Forgetful(), "has no attribute 'max_num_seqs'"),
    "a class": (Chunked, "this is the class, not a policy: make one, as in Chunked(...)"),
    "too many slots": (Static(9), "max_num_seqs=9, but the engine has 2: give the policy fewer slots"),
}


@pytest.mark.parametrize(("policy", "words"), BREAKS.values(), ids=BREAKS)
def test_a_policy_that_breaks_is_a_row_that_says_how_and_the_others_go_on(policy: Any, words: str) -> None:
    found = race([Static(2), policy, Mixed(2)], REQUESTS, unit_engine(2))
    (name, told), = found.errors.items()  # fmt: skip
    assert words in told
    assert list(found.runs) == ["Static(2)", "Mixed(2)"]
    assert found.runs["Mixed(2)"] == serve(REQUESTS, Mixed(2), unit_engine(2))
    assert found.table.loc[name, "error"] == told and math.isnan(found.table.loc[name, "tokens/s"])
    assert found.table.loc["Static(2)", "error"] == ""
    line = next(line for line in str(found).splitlines() if line.startswith(name))
    assert told in line and told in found._repr_html_().replace("&#x27;", "'")


def test_an_exception_of_a_policy_says_at_which_step() -> None:
    (told,) = race([Buggy(1)], [ask("A", 1, 5)], unit_engine(1)).errors.values()
    assert "at step 2: 'Sequence' object has no attribute 'nothing'" in told


def test_an_error_of_the_engine_is_not_blamed_on_the_policy() -> None:
    class Failing(SimulatedEngine):
        def step(self, chunks: list) -> StepResult:
            raise RuntimeError("the engine is out of order")

    with pytest.raises(RuntimeError, match="out of order"):
        race([Static(2)], REQUESTS, Failing(2, 64, CostModel(overhead=1.0)))


def test_the_same_policy_twice_has_two_rows() -> None:
    found = race([Static(2), Static(2), Static(2, key=len)], REQUESTS[:1], unit_engine(2))
    assert [entry.policy for entry in found.entries] == ["Static(2)", "Static(2) #2", "Static(2, len)"]


def test_refused_requests_are_counted_under_the_table() -> None:
    found = race([Static(2)], [*REQUESTS, ask("long", 60, 60)], unit_engine(2))
    assert "10 requests" in found.note and "1 refused, the first: request 'long'" in found.note
    assert "every request was refused" in race([Static(2)], [ask("long", 60, 60)], unit_engine(2)).errors[
        "Static(2)"
    ]  # fmt: skip


@pytest.mark.parametrize(("policies", "requests"), [([], REQUESTS), ([Static(2)], [])])
def test_nothing_to_race_is_refused(policies: list[Policy], requests: list) -> None:
    with pytest.raises(ValueError, match="nothing to"):
        race(policies, requests)


def test_without_an_engine_the_recorded_machine_is_simulated() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = race([Static(4), Continuous(8)])
    requests = HEADLINE.requests(full_decode_step(recorded_engine([Continuous(8)], HEADLINE)))
    engine = SimulatedEngine(8, HEADLINE.max_model_len, recorded.recorded_cost())
    assert found.runs["Static(4)"] == serve(requests, Static(4), engine)
    assert found.note.startswith(
        f"Simulated at the prices of a machine ({recorded.recorded_on()}). 64 requests"
    )
    assert "realised load 0." in found.note


def test_steps_beyond_the_fit_are_told_in_the_note_and_not_warned_of_besides() -> None:
    cost = CostModel(overhead=1.0, fitted=Work(8, 8, 100, 100, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        far = race([Static(2), Continuous(2)], [ask("long", 40, 1)], SimulatedEngine(2, 64, cost)).note
        near = race([Static(2)], REQUESTS, SimulatedEngine(2, 64, cost)).note
    assert far.endswith(
        "are a guess, beyond what was fitted: 40 tokens, at most 8 fitted; 820 pairs, at most 100 fitted."
    )
    assert "guess" not in near


def test_one_policy_may_come_without_a_list_and_a_workload_queued_at_the_start() -> None:
    found = race(Static(8), ZOMBIES, SimulatedEngine(8, 224, CostModel(overhead=1.0)))
    assert found.note.startswith("Simulated. 48 requests, all queued at the start; limits: TTFT 25 s")


def test_a_full_decode_step_is_computed_with_every_slot_busy() -> None:
    cost = CostModel(overhead=1.0, per_token=0.5, per_row=0.25, per_cached=0.001)
    engine = SimulatedEngine(4, 416, cost)
    assert full_decode_step(engine) == cost.price(Work(4, 4, 4 * 120, 4 * 120, 0))
    assert full_decode_step(SimulatedEngine(4, 64, cost)) == cost.price(Work(4, 4, 4 * 64, 4 * 64, 0))


def test_the_real_engine_races_too() -> None:
    requests = [ask(f"r{i}", 3, 4) for i in range(4)]
    found = race([Static(2), Broken(2), Continuous(2)], requests, slot_engine(2))
    assert found.note.startswith("Measured, one round. 4 requests")
    assert list(found.runs) == ["Static(2)", "Continuous(2)"]
