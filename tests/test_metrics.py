"""Each metric against a log worked out by hand."""

from __future__ import annotations

import math

import pytest
from helpers.build import ask

from llmserve.metrics import (
    DEFINITIONS,
    SLO,
    count_rows,
    expected_static_efficiency,
    latency,
    makespan,
    output_token_ids,
    percentile,
    request_times,
    summarise,
)
from llmserve.run import ChunkRow, Event, Run, Step


def row(request_id: str, start: int, num_tokens: int, kind: str, token_id: int | None) -> ChunkRow:
    return ChunkRow(request_id, 0, start, num_tokens, kind, token_id)


def step(start: float, seconds: float, *rows: ChunkRow, cpu: float | None = None) -> Step:
    return Step(start, seconds, cpu, 0, 0, 0, list(rows))


@pytest.fixture
def run() -> Run:
    """A: 4 tokens, stalled by B's and C's prompts. B: 3 tokens. C: one token, then a zombie. D: aborted."""
    return Run(
        "by hand",
        4,
        submitted=[ask("A", 2, 4), ask("B", 3, 3, at=1.0), ask("C", 1, 1, at=5.0), ask("D", 6, 9, at=6.0)],
        events=[
            Event(0.0, "admit", "A", "0"),
            Event(0.0, "refuse", "E", "request 'E': too long"),
            Event(3.0, "admit", "B", "1"),
            Event(7.0, "admit", "C", "2"),
            Event(7.0, "admit", "D", "3"),
            Event(8.0, "finish", "C", "length"),
            Event(9.0, "abort", "D"),
            Event(9.0, "finish", "A", "length"),
            Event(10.0, "finish", "B", "stop"),
        ],
        log=[
            step(0.5, 1.5, row("A", 0, 2, "prefill", 11)),
            step(2.0, 1.0, row("A", 2, 1, "decode", 12)),
            step(3.0, 4.0, row("B", 0, 3, "prefill", 21)),
            step(7.0, 1.0, row("A", 3, 1, "decode", 13), row("B", 3, 1, "decode", 22),
                 row("C", 0, 1, "prefill", 31), row("D", 0, 4, "prefill", None)),
            step(8.0, 1.0, row("A", 4, 1, "decode", 14), row("C", 0, 1, "zombie", 32),
                 row("D", 4, 2, "prefill", 41)),
            step(9.0, 1.0, row("B", 4, 1, "decode", 23), row("C", 0, 1, "zombie", 32)),
        ],
    )  # fmt: skip


def test_request_times_are_those_of_the_log(run: Run) -> None:
    a, b, c, d = request_times(run)
    assert (a.token_times, b.token_times, c.token_times, d.token_times) == (
        [2.0, 3.0, 8.0, 9.0],
        [7.0, 8.0, 10.0],
        [8.0],
        [9.0],
    )
    assert [t.ttft for t in (a, b, c)] == [2.0, 6.0, 3.0]
    assert [t.e2e for t in (a, b, c)] == [9.0, 9.0, 3.0]
    assert [t.admitted for t in (a, b, c, d)] == [0.0, 3.0, 7.0, 7.0]
    assert [t.finish_reason for t in (a, b, c, d)] == ["length", "stop", "length", "abort"]
    assert [t.prompt_tokens for t in (a, b, c, d)] == [2, 3, 1, 6]


def test_tpot_is_the_mean_gap_after_the_first_token_and_undefined_for_one_token(run: Run) -> None:
    a, b, c, _ = request_times(run)
    assert (a.tpot, b.tpot, c.tpot) == (7 / 3, 3 / 2, None)


def test_itl_is_every_gap_and_never_the_wait_for_the_first_token(run: Run) -> None:
    assert [t.gaps for t in request_times(run)] == [[1.0, 5.0, 1.0], [1.0, 2.0], [], []]
    summary = summarise(run)
    assert (summary.itl_p50, summary.itl_p99, summary.itl_max) == (1.0, 5.0, 5.0)
    assert summary.ttft_p99 == 6.0 > summary.itl_max


def test_zombie_tokens_reach_no_one(run: Run) -> None:
    assert output_token_ids(run) == {"A": [11, 12, 13, 14], "B": [21, 22, 23], "C": [31], "D": [41]}


def test_slot_efficiency_counts_kept_rows_over_rows_computed_for_a_token(run: Run) -> None:
    rows = count_rows(run.log)
    # 9 kept (D's one too, before it was aborted); two zombies; the prompt chunk without a head is no row
    assert (rows.kept, rows.zombie) == (9, 2)
    assert rows.slot_efficiency == 9 / 11
    # five decode rows in four steps that decode
    assert (rows.live_decode_rows, rows.decode_steps, rows.live_rows_per_step) == (5, 4, 1.25)


def test_a_step_whose_only_decode_row_is_a_zombies_decodes_nothing_useful() -> None:
    log = [step(0.0, 1.0, row("A", 0, 1, "prefill", 5), row("B", 3, 1, "zombie", 6))]
    rows = count_rows(log)
    assert (rows.decode_steps, rows.live_rows_per_step, rows.slot_efficiency) == (1, 0.0, 0.5)


def test_rates_count_finished_requests_from_the_first_arrival_to_the_last_step(run: Run) -> None:
    summary = summarise(run)
    assert (summary.n, summary.tokens, summary.seconds) == (3, 8, 10.0)
    assert summary.throughput == 0.8
    assert (summary.ttft_p50, summary.tpot_p50) == (3.0, 3 / 2)
    assert math.isnan(summary.goodput_tokens) and math.isnan(summary.goodput_requests)
    assert math.isnan(summary.slo_share)
    run.submitted[:] = [ask(r.id, 1, 1, at=r.arrival_time + 0.25) for r in run.submitted]
    assert makespan(run) == 9.75


@pytest.mark.parametrize(
    ("ttft", "tpot", "good"),
    [
        (6.0, 7 / 3, "ABC"),  # a limit that is just met is met
        (5.9, 7 / 3, "AC"),
        (6.0, 2.3, "BC"),
        (3.0, 0.1, "C"),  # a one-token output has no TPOT to miss
        (1.0, 9.0, ""),
        (math.inf, math.inf, "ABC"),  # never D, which was aborted
    ],
)
def test_goodput_counts_tokens_and_requests_that_met_every_limit(
    run: Run, ttft: float, tpot: float, good: str
) -> None:
    slo = SLO(ttft, tpot)
    assert "".join(t.id for t in request_times(run) if slo.met_by(t)) == good
    summary = summarise(run, slo)
    assert summary.goodput_requests == len(good) / 10
    assert summary.slo_share == len(good) / 4, "of all submitted: D too, which was aborted; not E, refused"
    assert summary.goodput_tokens == sum({"A": 4, "B": 3, "C": 1}[name] for name in good) / 10
    assert summary.goodput_tokens <= summary.throughput


def test_the_posts_limits_are_so_many_decode_steps() -> None:
    assert SLO.relative(0.04) == SLO(ttft=25 * 0.04, tpot=3 * 0.04)
    assert SLO.relative(2.0, ttft_steps=10, tpot_steps=1.5) == SLO(20.0, 3.0)


@pytest.mark.parametrize(
    ("values", "q", "expected"),
    [
        ([15, 20, 35, 40, 50], 5, 15),
        ([50, 20, 40, 15, 35], 30, 20),
        ([15, 20, 35, 40, 50], 40, 20),
        ([15, 20, 35, 40, 50], 50, 35),
        ([15, 20, 35, 40, 50], 100, 50),
        ([15, 20, 35, 40, 50], 0, 15),
        (list(range(1, 101)), 7, 7),  # 0.07 x 100 is a little over 7 in floating point
        (list(range(1, 101)), 99, 99),
        (list(range(1, 65)), 99, 64),  # of fewer than 100, p99 is the maximum
        ([3.5], 50, 3.5),
    ],
)
def test_percentiles_are_nearest_rank(values: list[float], q: float, expected: float) -> None:
    assert percentile(values, q) == expected


def test_percentiles_of_nothing_are_nan_and_out_of_range_is_an_error() -> None:
    assert math.isnan(percentile([], 50))
    for q in (-1, 101, math.nan):
        with pytest.raises(ValueError, match="between 0 and 100"):
            percentile([1.0], q)


@pytest.mark.parametrize(
    ("lengths", "slots", "expected"),
    [
        ([10, 4, 6], 3, 20 / 30),
        ([10, 4, 6, 5], 3, 25 / 35),  # a last batch of one wastes nothing
        ([10, 4, 6, 5], 1, 1.0),
        ([7, 7, 7, 7], 2, 1.0),
    ],
)
def test_expected_static_efficiency_is_mean_over_mean_of_maxima(
    lengths: list[int], slots: int, expected: float
) -> None:
    assert expected_static_efficiency(lengths, slots) == expected


def test_cpu_share_is_weighted_by_time_and_nan_where_nothing_measured_it() -> None:
    log = [step(0, 3.0, cpu=0.5), step(3, 1.0, cpu=1.0), step(4, 50.0, cpu=None)]
    assert summarise(Run("p", 1, [ask("A")], [], log)).cpu_share == 0.625
    assert math.isnan(summarise(Run("p", 1, [ask("A")], [], log[2:])).cpu_share)


def test_the_latency_of_some_is_of_those_that_finished(run: Run) -> None:
    found = latency(request_times(run))  # D was aborted
    assert (found.n, found.ttft_p50, found.ttft_max) == (3, 3.0, 6.0)
    assert (found.e2e_mean, found.e2e_p50, found.e2e_max) == (7.0, 9.0, 9.0)
    assert latency([r for r in request_times(run) if r.output_tokens == 1]).e2e_max == 3.0
    nobody = latency([])
    assert nobody.n == 0 and math.isnan(nobody.ttft_max) and math.isnan(nobody.e2e_mean)


@pytest.mark.parametrize("submitted", [[], [ask("A")]], ids=["nothing submitted", "nothing ran"])
def test_an_empty_run_has_no_numbers_rather_than_an_error(submitted: list) -> None:
    summary = summarise(Run("p", 1, submitted), SLO(1, 1))
    assert (summary.n, summary.tokens) == (0, 0)
    assert summary.slo_share == 0.0 if submitted else math.isnan(summary.slo_share)
    for name in (
        "seconds",
        "throughput",
        "goodput_tokens",
        "goodput_requests",
        "ttft_p50",
        "itl_p99",
        "slot_efficiency",
        "live_rows",
    ):
        assert math.isnan(getattr(summary, name)), name


def test_a_run_that_took_no_time_has_no_rates() -> None:
    log = [step(0.0, 0.0, row("A", 0, 1, "prefill", 5))]
    summary = summarise(Run("p", 1, [ask("A")], [Event(0.0, "finish", "A", "length")], log), SLO(1, 1))
    assert (summary.n, summary.seconds, summary.ttft_p50) == (1, 0.0, 0.0)
    assert math.isnan(summary.throughput) and math.isnan(summary.goodput_tokens)


def test_every_metric_has_a_sentence() -> None:
    assert {"TTFT", "ITL", "TPOT", "E2E", "throughput", "goodput", "slot efficiency"} <= set(DEFINITIONS)
