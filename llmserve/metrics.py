"""One definition of each metric, on plain lists. See DEFINITIONS for the sentences the book prints.

Times are seconds. Percentiles are nearest rank: the smallest value with at least q % of all at or below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from .run import Run, Step

DEFINITIONS = {
    "TTFT": "time to first token: arrival to first output token",
    "ITL": "inter-token latency: every gap between consecutive tokens of one request, pooled over requests",
    "TPOT": "time per output token: (last - first) / (n - 1) of one request; undefined for one token",
    "E2E": "end-to-end latency: arrival to last token",
    "throughput": "output tokens of finished requests per second, from the first arrival to the last token",
    "goodput": "the same from requests that met every limit, in tokens/s and in requests/s",
    "slot efficiency": "rows whose token is kept / rows computed for a next token, a prompt's last row too",
}


def percentile(values: Sequence[float], q: float) -> float:
    """Nearest rank: value number ceil(q/100 * n) of n in order (the first for q = 0); nan of none."""
    if not 0 <= q <= 100:
        raise ValueError(f"q={q}: a percentile lies between 0 and 100")
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(1, math.ceil(q * len(ordered) / 100)) - 1]


@dataclass(frozen=True)
class SLO:
    """Limits in seconds that a request must meet. One-token outputs have no TPOT: that limit passes them."""

    ttft: float
    tpot: float

    def __post_init__(self) -> None:
        for name, limit in (("ttft", self.ttft), ("tpot", self.tpot)):
            if not limit >= 0:
                raise ValueError(f"{name}={limit!r}: a limit is in seconds, 0 or more; math.inf for none")

    @classmethod
    def relative(cls, decode_step: float, ttft_steps: float = 25, tpot_steps: float = 3) -> SLO:
        """The post's limits: so many full-batch decode steps of this machine."""
        return cls(ttft=ttft_steps * decode_step, tpot=tpot_steps * decode_step)

    def met_by(self, request: RequestTimes) -> bool:
        if request.finish_reason not in ("length", "stop"):
            return False
        return request.ttft <= self.ttft and (request.tpot is None or request.tpot <= self.tpot)


@dataclass
class RequestTimes:
    """When one request arrived, entered, got each token, and how it ended."""

    id: str
    arrival: float
    prompt_tokens: int
    admitted: float = math.nan  # the last time, if it was preempted
    token_times: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    preemptions: int = 0

    @property
    def output_tokens(self) -> int:
        return len(self.token_times)

    @property
    def ttft(self) -> float:
        return self.token_times[0] - self.arrival if self.token_times else math.nan

    @property
    def e2e(self) -> float:
        return self.token_times[-1] - self.arrival if self.token_times else math.nan

    @property
    def tpot(self) -> float | None:
        times = self.token_times
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in zip(self.token_times, self.token_times[1:], strict=False)]


def request_times(run: Run) -> list[RequestTimes]:
    """One record a submitted request, in order of submission (refused ones are in `run.events` only)."""
    times = {r.id: RequestTimes(r.id, r.arrival_time, len(r.prompt_token_ids)) for r in run.submitted}
    for event in run.events:
        request = times.get(event.request_id)
        if request is None or event.kind == "refuse":
            continue
        if event.kind == "admit":
            request.admitted = event.time
        elif event.kind == "preempt":
            request.preemptions += 1
        else:
            request.finish_reason = "abort" if event.kind == "abort" else event.detail
    for step in run.log:
        for chunk in step.chunks:
            if chunk.kept:
                times[chunk.request_id].token_times.append(step.end)
    return list(times.values())


def output_token_ids(run: Run) -> dict[str, list[int]]:
    """The tokens each request received, in order."""
    tokens: dict[str, list[int]] = {request.id: [] for request in run.submitted}
    for step in run.log:
        for chunk in step.chunks:
            if chunk.kept:
                tokens[chunk.request_id].append(chunk.token_id)
    return tokens


@dataclass(frozen=True)
class RowCount:
    """Rows computed for a next token: how many gave a token, how many were zombies, over how many steps."""

    kept: int
    zombie: int
    decode_steps: int
    live_decode_rows: int

    @property
    def slot_efficiency(self) -> float:
        computed = self.kept + self.zombie
        return self.kept / computed if computed else math.nan

    @property
    def live_rows_per_step(self) -> float:
        """Useful decode rows of a step, averaged over the steps that decode."""
        return self.live_decode_rows / self.decode_steps if self.decode_steps else math.nan


def count_rows(steps: list[Step]) -> RowCount:
    """Of a run's log, or of a part of it."""
    kept = zombie = decode_steps = live = 0
    for step in steps:
        rows = [chunk.kind for chunk in step.chunks]
        kept += sum(chunk.kept for chunk in step.chunks)
        zombie += rows.count("zombie")
        live += rows.count("decode")
        decode_steps += "decode" in rows or "zombie" in rows
    return RowCount(kept, zombie, decode_steps, live)


def expected_static_efficiency(output_tokens: Sequence[int], max_num_seqs: int) -> float:
    """Static's slot efficiency from the workload alone, before anything runs.

    Each batch computes as many rows as its longest member needs, for every member:
    sum of lengths / sum over batches of size x longest (mean length / mean of maxima if all are full).
    """
    batches = _batches(output_tokens, max_num_seqs)
    return sum(output_tokens) / sum(len(batch) * max(batch) for batch in batches)


def expected_static_live_rows(output_tokens: Sequence[int], max_num_seqs: int) -> float:
    """Useful rows of an average decode step: the prefill gives each request its first token."""
    steps = sum(max(batch) - 1 for batch in _batches(output_tokens, max_num_seqs))
    return sum(length - 1 for length in output_tokens) / steps if steps else math.nan


def _batches(lengths: Sequence[int], size: int) -> list[Sequence[int]]:
    return [lengths[i : i + size] for i in range(0, len(lengths), size)]


def makespan(run: Run) -> float:
    """Seconds from the first arrival to the end of the last step; nan for an empty run."""
    if not run.log:
        return math.nan
    return run.log[-1].end - min(request.arrival_time for request in run.submitted)


@dataclass(frozen=True)
class Summary:
    """A run in numbers: `n` finished requests; rates a second; times in seconds.

    slo_share   of the requests submitted, those that met every limit (aborted ones met none); nan
                without limits. Refused requests were never submitted.
    """

    n: int
    tokens: int
    seconds: float
    throughput: float
    goodput_tokens: float
    goodput_requests: float
    slo_share: float
    ttft_p50: float
    ttft_p99: float
    tpot_p50: float
    itl_p50: float
    itl_p99: float
    itl_max: float
    slot_efficiency: float
    live_rows: float
    cpu_share: float


def summarise(run: Run, slo: SLO | None = None) -> Summary:
    """All metrics of a run. Goodput is nan without limits; aborted requests count for no rate."""
    submitted = request_times(run)
    done = [r for r in submitted if r.finish_reason in ("length", "stop")]
    good = [r for r in done if slo and slo.met_by(r)]
    seconds, rows = makespan(run), count_rows(run.log)
    ttft = [r.ttft for r in done]
    gaps = sorted(gap for r in done for gap in r.gaps)  # once: sorting what is sorted costs little
    tokens = sum(r.output_tokens for r in done)
    return Summary(
        n=len(done),
        tokens=tokens,
        seconds=seconds,
        throughput=tokens / (seconds or math.nan),  # a run on a free cost model takes no time
        goodput_tokens=sum(r.output_tokens for r in good) / (seconds or math.nan) if slo else math.nan,
        goodput_requests=len(good) / (seconds or math.nan) if slo else math.nan,
        slo_share=len(good) / len(submitted) if slo and submitted else math.nan,
        ttft_p50=percentile(ttft, 50),
        ttft_p99=percentile(ttft, 99),
        tpot_p50=percentile([r.tpot for r in done if r.tpot is not None], 50),
        itl_p50=percentile(gaps, 50),
        itl_p99=percentile(gaps, 99),
        itl_max=percentile(gaps, 100),
        slot_efficiency=rows.slot_efficiency,
        live_rows=rows.live_rows_per_step,
        cpu_share=mean_cpu_share(run),
    )


@dataclass(frozen=True)
class Latency:
    """Seconds that some requests of a run took, to the first token and in all; nan of none."""

    n: int
    ttft_p50: float
    ttft_max: float
    e2e_mean: float
    e2e_p50: float
    e2e_max: float


def latency(requests: Sequence[RequestTimes]) -> Latency:
    """Of those among them that finished: the short ones of a run, say, or those of one priority."""
    done = [r for r in requests if r.finish_reason in ("length", "stop")]
    ttft, e2e = [r.ttft for r in done], [r.e2e for r in done]
    return Latency(
        n=len(done),
        ttft_p50=percentile(ttft, 50),
        ttft_max=percentile(ttft, 100),
        e2e_mean=fmean(e2e) if e2e else math.nan,
        e2e_p50=percentile(e2e, 50),
        e2e_max=percentile(e2e, 100),
    )


def mean_cpu_share(run: Run) -> float:
    """CPU share of the whole run, weighted by time; nan where no engine measured it."""
    measured = [(s.cpu_share, s.seconds) for s in run.log if s.cpu_share is not None]
    total = math.fsum(seconds for _, seconds in measured)
    return math.fsum(share * seconds for share, seconds in measured) / total if total else math.nan
