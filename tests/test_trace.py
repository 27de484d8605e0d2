"""A run as a Chrome trace: what Perfetto is told, checked against a schedule worked out by hand."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from helpers.build import POLICIES, ask, finish, interrupting, open_loop, unit_engine

from llmserve.loop import serve
from llmserve.policies import Continuous, Static
from llmserve.run import Run
from llmserve.trace import levels, trace_events, write_trace

REQUESTS = [ask("A", 3, 2), ask("B", 2, 4), ask("C", 2, 2, at=0.5)]
MANY = [ask(f"r{i}", 1 + i % 4, 1 + 3 * i % 7, at=0.7 * i) for i in range(12)]


def of_phase(run: Run, phase: str) -> list[dict[str, Any]]:
    return [event for event in trace_events(run) if event["ph"] == phase]


def lane_names(run: Run) -> dict[int, str]:
    return {e["tid"]: e["args"]["name"] for e in of_phase(run, "M") if e["name"] == "thread_name"}


def test_the_file_is_json_in_the_format_that_perfetto_reads(tmp_path: Path) -> None:
    write_trace(serve(REQUESTS, Static(2), unit_engine(2)), tmp_path / "run.json")
    trace = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert trace["otherData"]["policy"] == "Static(max_num_seqs=2)"
    for event in trace["traceEvents"]:
        assert {"ph", "pid", "tid", "name"} <= event.keys()
        assert event["ph"] == "M" or event["ts"] >= 0
        assert event["ph"] != "X" or event["dur"] >= 0
        assert event["ph"] != "i" or event["s"] in ("t", "p", "g")
        assert event["ph"] != "C" or all(isinstance(v, int) for v in event["args"].values())


def test_a_bar_is_a_chunk_in_the_lane_of_its_slot_in_microseconds() -> None:
    run = serve(REQUESTS, Static(2), unit_engine(2))
    names = lane_names(run)
    bars = [
        (names[e["tid"]], e["name"], e["ts"], e["dur"], *[e["args"][k] for k in ("kind", "tokens", "start")])
        for e in of_phase(run, "X")
    ]
    assert bars[:6] == [
        ("slot 0", "A", 0.0, 1e6, "prefill", 3, 0),
        ("slot 1", "B", 0.0, 1e6, "prefill", 2, 0),
        ("slot 0", "A", 1e6, 1e6, "decode", 1, 3),
        ("slot 1", "B", 1e6, 1e6, "decode", 1, 2),
        ("slot 0", "A", 2e6, 1e6, "zombie", 1, 3),
        ("slot 1", "B", 2e6, 1e6, "decode", 1, 3),
    ]
    assert len(bars) == sum(len(step.chunks) for step in run.log)


def test_bars_of_a_lane_never_overlap() -> None:
    engine = unit_engine(3)
    engine.cost = type(engine.cost)(overhead=0.1, per_token=0.0371)  # times that no float holds exactly
    lanes: dict[int, list[tuple[float, float]]] = {}
    for bar in of_phase(serve(MANY, Continuous(3), engine), "X"):
        lanes.setdefault(bar["tid"], []).append((bar["ts"], bar["ts"] + bar["dur"]))
    for bars in lanes.values():
        assert all(end <= start + 1e-3 for (_, end), (start, _) in pairwise(bars))


def test_marks_say_who_came_and_went_in_which_slot() -> None:
    run = serve(REQUESTS, Static(2), unit_engine(2))
    names = lane_names(run)
    marks = [(e["ts"], e["name"], names[e["tid"]], e["args"]["detail"]) for e in of_phase(run, "i")]
    assert marks == [
        (0.0, "admit A", "slot 0", "0"),
        (0.0, "admit B", "slot 1", "1"),
        (2e6, "finish A", "slot 0", "length"),
        (4e6, "finish B", "slot 1", "length"),
        (4e6, "admit C", "slot 0", "0"),
        (6e6, "finish C", "slot 0", "length"),
    ]


def test_the_counters_follow_arrivals_admissions_and_ends() -> None:
    run = serve(REQUESTS, Static(2), unit_engine(2))
    assert levels(run) == [(0.0, 0, 2), (0.5, 1, 2), (2.0, 1, 1), (4.0, 0, 1), (6.0, 0, 0)]
    queue = [(e["ts"], e["args"]["requests"]) for e in of_phase(run, "C") if e["name"] == "queue"]
    assert queue == [(0.0, 0), (5e5, 1), (2e6, 1), (4e6, 0), (6e6, 0)]
    running = [e["args"]["requests"] for e in of_phase(run, "C") if e["name"] == "running"]
    assert running == [2, 2, 1, 1, 0]


@pytest.mark.parametrize("name", ["continuous", "mixed", "chunked"])
def test_counters_stay_in_bounds_and_end_at_zero_also_with_preemptions(name: str) -> None:
    base = POLICIES[name](3)
    interrupted = interrupting(type(base))
    policy = interrupted.__new__(interrupted)
    vars(policy).update(vars(base), _thrown=set())
    run = serve(MANY, policy, unit_engine(3))
    found = levels(run)
    assert found[-1][1:] == (0, 0)
    assert all(0 <= waiting <= len(MANY) and 0 <= running <= 3 for _, waiting, running in found)
    counted = {e["name"].split()[0] for e in of_phase(run, "i")}
    assert counted == {"admit", "preempt", "finish"}


def test_who_is_aborted_is_marked_wherever_it_was() -> None:
    loop = open_loop(Continuous(1), [ask("A", 1, 9), ask("B", 1, 9), ask("C", 1, 9, at=50.0)])
    loop.step()
    for one in ("A", "B", "C"):
        loop.abort(one)
    run = finish(loop)
    names = lane_names(run)
    marks = [(e["name"], names[e["tid"]]) for e in of_phase(run, "i")]
    assert marks == [
        ("admit A", "slot 0"), ("abort A", "slot 0"), ("abort B", "no slot"), ("abort C", "no slot"),
    ]  # fmt: skip
    assert levels(run) == [(0.0, 1, 1), (1.0, 0, 0), (50.0, 0, 0)]  # C never waits


def test_a_refused_request_is_marked_and_counts_nowhere() -> None:
    run = serve([ask("A", 1, 1), ask("long", 60, 60)], Continuous(1), unit_engine(1))
    (mark,) = [e for e in of_phase(run, "i") if e["name"] == "refuse long"]
    assert "max_model_len=64" in mark["args"]["detail"]
    assert levels(run) == [(0.0, 0, 1), (1.0, 0, 0)]


def test_lanes_stand_in_the_order_of_the_slots() -> None:
    run = serve([ask(f"r{i}", 1, 3) for i in range(12)], Continuous(12), unit_engine(12))
    assert list(lane_names(run).values()) == ["no slot", *[f"slot {i}" for i in range(12)]]


def test_a_saved_run_gives_the_same_trace(tmp_path: Path) -> None:
    run = serve(REQUESTS, Continuous(2), unit_engine(2))
    run.save(tmp_path / "run.gz")
    assert trace_events(Run.load(tmp_path / "run.gz")) == trace_events(run)
    assert trace_events(Run("none", 1)) == [
        event for event in trace_events(Run("none", 1)) if event["ph"] == "M"
    ]
