"""A run's log: saved and loaded without loss, damaged files refused, and its tables."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
from helpers.build import POLICIES, ask, interrupting, unit_engine

from llmserve.costmodel import CostModel, SimulatedEngine
from llmserve.loop import Loop, serve
from llmserve.metrics import SLO
from llmserve.policies import Continuous, Mixed
from llmserve.run import FORMAT, ChunkRow, Event, Run, Step

KINDS = {"admit", "preempt", "abort", "refuse", "finish"}


@pytest.fixture
def run() -> Run:
    """One of everything: a refusal, an abort, a preemption, EOS, stop tokens, several chunks of a prompt."""
    requests = [
        ask("A", 3, 9, priority=-1, stop_token_ids=(7, 8)),
        ask("Bé'\"\n", 2, 4, at=0.1 + 0.2, expected_tokens=None, ignore_eos=True),
        ask("C", 2, 50, at=1.0),
        ask("D", 60, 60),
    ]
    cost = CostModel(weights=0.1, per_token=0.03, per_context=1e-3)
    loop = Loop(interrupting(Continuous)(2), SimulatedEngine(2, 64, cost))
    for request in requests:
        try:
            loop.submit(request)
        except ValueError as reason:
            loop.run.events.append(Event(0.0, "refuse", request.id, str(reason)))
    loop.close()
    for _ in range(9):
        loop.step()
    loop.abort("C")
    while loop.step():
        pass
    assert {event.kind for event in loop.run.events} == KINDS
    return loop.run


def test_a_saved_run_loads_without_loss(run: Run, tmp_path: Path) -> None:
    run.save(tmp_path / "run.gz")
    loaded = Run.load(tmp_path / "run.gz")
    assert loaded == run
    assert repr(loaded) == repr(run), "types too, and every float to the last bit"


def test_infinities_nothings_and_large_numbers_survive(tmp_path: Path) -> None:
    log = [
        Step(0.1, math.inf, None, 0, 0, 0, [ChunkRow("A", 3, 0, 2, "prefill", None)]),
        Step(5e-324, 1 / 3, 0.97, 1, 2**60, 5, []),
    ]
    run = Run("p", 1, [ask("A", at=1e300)], [Event(-0.0, "admit", "A")], log)
    run.save(tmp_path / "run.gz")
    assert repr(Run.load(tmp_path / "run.gz")) == repr(run)


def test_a_request_of_numpy_integers_is_served_and_saved(tmp_path: Path) -> None:
    plain = ask("A", (5, 6, 7), 3)
    numpy = ask("A", np.array([5, 6, 7]), np.int64(3), expected_tokens=np.int64(3))
    run = serve([numpy], Mixed(1), unit_engine(1))
    run.save(tmp_path / "run.gz")
    assert Run.load(tmp_path / "run.gz") == serve([plain], Mixed(1), unit_engine(1))


def test_an_empty_run_is_saved_and_loaded(tmp_path: Path) -> None:
    Run("p", 4).save(tmp_path / "run.gz")
    assert Run.load(tmp_path / "run.gz") == Run("p", 4)


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.gz"
    serve([ask("A", 2, 3)], Mixed(1), unit_engine(1)).save(path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"run\.gz"):
            Run.load(path)


@pytest.mark.parametrize("drop", [slice(0, 1), slice(1, 2), slice(-1, None), slice(3, None)])
def test_a_file_that_lacks_lines_is_refused(drop: slice, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "run.gz"
    run.save(path)
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    del lines[drop]
    path.write_bytes(gzip.compress(b"".join(lines)))
    with pytest.raises(ValueError, match=r"cut short|format none"):
        Run.load(path)


def test_damaged_bytes_and_other_files_are_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "run.gz"
    run.save(path)
    whole = path.read_bytes()
    middle = len(whole) // 2
    for content in (
        whole[:middle] + bytes(byte ^ 0xFF for byte in whole[middle : middle + 8]) + whole[middle + 8 :],
        b"not gzip at all",
        gzip.compress(b"not a run\n"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"run\.gz"):
            Run.load(path)


def test_a_newer_format_is_refused_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "run.gz"
    lines = [["run", {"format": FORMAT + 1, "anything": "else"}], ["novelty", {}], ["end", 1]]
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    with pytest.raises(
        ValueError, match=f"format {FORMAT + 1}, but this llmserve reads up to {FORMAT}: update"
    ):
        Run.load(path)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Run.load(tmp_path / "nowhere.gz")


# -- tables ----------------------------------------------------------------------------------------


def test_the_requests_table_has_a_row_a_request_with_refused_ones_at_the_end(run: Run) -> None:
    table = run.requests
    assert list(table.columns) == [
        "request", "arrival", "prompt_tokens", "output_tokens", "admitted",
        "ttft", "tpot", "e2e", "preemptions", "finish_reason",
    ]  # fmt: skip
    assert list(table["request"]) == ["A", "Bé'\"\n", "C", "D"]
    assert list(table["finish_reason"]) == ["length", "length", "abort", "refused"]
    assert list(table["output_tokens"]) == [9, 4, table["output_tokens"][2], 0]
    assert table["preemptions"].sum() > 0
    assert (table["ttft"][:2] > 0).all() and math.isnan(table["ttft"][3])


def test_the_steps_table_counts_each_steps_rows_and_tokens(run: Run) -> None:
    table = run.steps
    assert len(table) == len(run.log)
    assert list(table["step"]) == list(range(len(run.log)))
    assert list(table["tokens"]) == [sum(chunk.num_tokens for chunk in step.chunks) for step in run.log]
    rows = table["prefill_rows"] + table["decode_rows"] + table["zombie_rows"]
    assert list(rows) == [len(step.chunks) for step in run.log]
    assert set(table["kind"]) == {"prefill", "decode"}
    assert {"start", "seconds", "cpu_share", "waiting", "reserved_tokens", "used_tokens"} <= set(
        table.columns
    )


def test_the_chunks_table_has_a_row_a_chunk_and_marks_head_rows() -> None:
    table = serve([ask("A", 5, 2), ask("B", 1, 1)], POLICIES["chunked"](1), unit_engine(1)).chunks
    assert table.to_dict("list") == {
        "step": [0, 1, 2, 3],
        "request": ["A", "A", "A", "B"],
        "place": [0, 0, 0, 0],
        "start": [0, 4, 5, 0],
        "num_tokens": [4, 1, 1, 1],
        "kind": ["prefill", "prefill", "decode", "prefill"],
        "head": [False, True, True, True],
    }


def test_the_summary_is_one_row_named_by_its_policy(run: Run) -> None:
    table = run.summary(SLO(5.0, 1.0))
    assert list(table.index) == [run.policy] and table.index.name == "policy"
    assert table["n"][run.policy] == 2 and table["tokens"][run.policy] == 13
    assert {"throughput", "goodput_tokens", "ttft_p99", "itl_p99", "slot_efficiency", "live_rows"} <= set(
        table
    )


def test_memory_is_that_of_a_step_before_anyone_left_and_the_queue_holds_who_came_meanwhile() -> None:
    requests = [ask("A", 3, 2), ask("B", 5, 1), ask("C", 1, 1), ask("D", 1, 1, at=0.5)]
    run = serve(requests, Mixed(2), unit_engine(2, max_model_len=10))
    steps = [(step.reserved_tokens, step.used_tokens, step.num_waiting) for step in run.log]
    assert steps == [(20, 8, 2), (20, 5, 1), (10, 1, 0)]


def test_empty_tables_do_not_fail() -> None:
    empty = Run("p", 1)
    assert (len(empty.requests), len(empty.steps), len(empty.chunks)) == (0, 0, 0)
    assert len(empty.summary()) == 1
