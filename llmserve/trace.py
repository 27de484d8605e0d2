"""A run as a Chrome trace, for ui.perfetto.dev or chrome://tracing: a lane a slot, a counter a queue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .run import Event, Run

PROCESS = 1  # a trace has processes and threads: the run is the one process, a slot is a thread
NO_LANE = 0  # what happens to a request that holds no slot

TraceEvent = dict[str, Any]  # one line of the format, whose keys are the format's


def write_trace(run: Run, path: str | Path) -> None:
    """Write the run as JSON in the Chrome Trace Event Format; times in microseconds of the run's clock.

    A bar is one sequence's chunk in one step: its name the request, its args kind (prefill, decode or
    zombie), tokens and start. Marks say admit, preempt, abort, finish and refuse. Two counters, queue and
    running, count requests: `running` those admitted and unfinished, so a zombie is not in it.
    OSError if the file cannot be written.
    """
    trace = {
        "displayTimeUnit": "ms",
        "otherData": {"policy": run.policy, "max_num_seqs": run.max_num_seqs},
        "traceEvents": trace_events(run),
    }
    Path(path).write_text(json.dumps(trace, allow_nan=False), encoding="utf-8")


def trace_events(run: Run) -> list[TraceEvent]:
    """The lines of the trace: names of the lanes, bars, marks, counters."""
    lanes = _lanes(run)
    return [*_names(run, lanes), *_bars(run, lanes), *_marks(run, lanes), *_counters(run)]


def _lanes(run: Run) -> dict[str, int]:
    """A thread number for each place that was ever held, from 1 on; places as the log's events write them."""
    places = {str(chunk.place) for step in run.log for chunk in step.chunks}
    places |= {event.detail for event in run.events if event.kind == "admit"}
    in_order = sorted(places, key=lambda name: (len(name), name))  # slot 9 before slot 10
    return {name: lane for lane, name in enumerate(in_order, start=1)}


def _names(run: Run, lanes: dict[str, int]) -> Iterator[TraceEvent]:
    yield _line("M", "process_name", NO_LANE, args={"name": run.policy})
    yield _line("M", "thread_name", NO_LANE, args={"name": "no slot"})
    for place, lane in lanes.items():
        yield _line("M", "thread_name", lane, args={"name": f"slot {place}"})
        yield _line("M", "thread_sort_index", lane, args={"sort_index": lane})


def _bars(run: Run, lanes: dict[str, int]) -> Iterator[TraceEvent]:
    for number, step in enumerate(run.log):
        length = round(_micro(step.end) - _micro(step.start), 3)  # so that a bar ends where the next begins
        for chunk in step.chunks:
            args = {"kind": chunk.kind, "tokens": chunk.num_tokens, "start": chunk.start, "step": number}
            lane = lanes[str(chunk.place)]
            yield _line("X", chunk.request_id, lane, step.start, dur=length, cat=chunk.kind, args=args)


def _marks(run: Run, lanes: dict[str, int]) -> Iterator[TraceEvent]:
    held: dict[str, int] = {}  # the lane of each request that is in a slot
    for event in run.events:
        if event.kind == "admit":
            held[event.request_id] = lanes[event.detail]
        lane = held.get(event.request_id, NO_LANE)
        if event.kind in ("preempt", "abort"):  # who has finished may stay in its slot, as a zombie
            held.pop(event.request_id, None)
        args = {"request": event.request_id, "detail": event.detail}
        name = f"{event.kind} {event.request_id}"
        yield _line("i", name, lane, event.time, s="t", cat=event.kind, args=args)


def _counters(run: Run) -> Iterator[TraceEvent]:
    for time, waiting, running in levels(run):
        yield _line("C", "queue", NO_LANE, time, args={"requests": waiting})
        yield _line("C", "running", NO_LANE, time, args={"requests": running})


def levels(run: Run) -> list[tuple[float, int, int]]:
    """(seconds, requests waiting, requests running) at each moment at which one of the two may change."""
    arrivals = [Event(request.arrival_time, "arrive", request.id) for request in run.submitted]
    happened = [event for event in run.events if event.kind != "refuse"]
    waiting, running, ended = set(), set(), set()
    found: dict[float, tuple[int, int]] = {}
    # The sort is stable: at equal times an arrival comes first, then events in the log's order.
    for event in sorted([*arrivals, *happened], key=lambda event: event.time):
        one = event.request_id
        waiting.discard(one)
        running.discard(one)
        if event.kind == "admit":
            running.add(one)
        elif event.kind in ("finish", "abort"):
            ended.add(one)
        elif one not in ended:  # it has come, or was preempted; who is aborted before it comes never waits
            waiting.add(one)
        found[event.time] = (len(waiting), len(running))
    return [(time, *counts) for time, counts in found.items()]


def _line(phase: str, name: str, lane: int, seconds: float | None = None, **more: Any) -> TraceEvent:
    """One event; `phase` is the format's letter for its kind."""
    at = {} if seconds is None else {"ts": _micro(seconds)}
    return {"ph": phase, "name": name, "pid": PROCESS, "tid": lane, **at, **more}


def _micro(seconds: float) -> float:
    """Microseconds, to a nanosecond."""
    return round(seconds * 1e6, 3)
