"""What happened to one request or in one slot, and who made whom wait: read from a run's log."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from .run import Event, Run, Step


class Phase(NamedTuple):
    """waiting, prefill, decode or stalled, from `start` to `end` seconds."""

    kind: str
    start: float
    end: float


@dataclass(frozen=True)
class Stall:
    """A gap between two tokens of one request that spans steps without its chunk.

    `prompts` are the requests whose prompts those steps computed, `prompt_tokens` how many tokens.
    """

    request_id: str
    start: float
    gap: float
    lost: float  # seconds of the steps without it
    prompts: tuple[str, ...]
    prompt_tokens: int


def phases(run: Run, request_id: str) -> list[Phase]:
    """One request's life from arrival to its last token, without holes; equal neighbours are merged."""
    request = next(request for request in run.submitted if request.id == request_id)
    parts: list[Phase] = []
    now, tokens = request.arrival_time, 0

    def add(kind: str, start: float, end: float) -> None:
        if end <= start:
            return
        if parts and parts[-1].kind == kind:
            parts[-1] = Phase(kind, parts[-1].start, end)
        else:
            parts.append(Phase(kind, start, end))

    ends = {event.request_id: event.time for event in run.events if event.kind in ("finish", "abort")}
    for step in run.log:
        if step.end <= now:
            continue
        if now >= ends.get(request_id, float("inf")):
            break
        mine = [chunk for chunk in step.chunks if chunk.request_id == request_id]
        add("stalled" if tokens else "waiting", now, step.start)
        start = max(now, step.start)
        if mine:
            add(mine[0].kind, start, step.end)
            tokens += mine[0].kept
        else:
            add("stalled" if tokens else "waiting", start, step.end)
        now = step.end
    return parts


def stalls(run: Run) -> list[Stall]:
    """Every stall of a run, in order of time; the first token's wait is TTFT and no stall."""
    last_token: dict[str, int] = {}  # request -> the step that gave its last token
    found: list[Stall] = []
    for now, step in enumerate(run.log):
        for chunk in step.chunks:
            if not chunk.kept:
                continue
            before = last_token.get(chunk.request_id)
            last_token[chunk.request_id] = now
            if before is not None and now > before + 1:
                found.append(_stall(chunk.request_id, run.log[before : now + 1]))
    return sorted(found, key=lambda stall: stall.start)


def _stall(request_id: str, steps: list[Step]) -> Stall:
    """`steps` run from the one with the last token before the gap to the one with the next token."""
    without = [s for s in steps[1:-1] if all(chunk.request_id != request_id for chunk in s.chunks)]
    prompts = [chunk for step in without for chunk in step.chunks if chunk.kind == "prefill"]
    return Stall(
        request_id=request_id,
        start=steps[0].end,
        gap=steps[-1].end - steps[0].end,
        lost=sum(step.seconds for step in without),
        prompts=tuple(dict.fromkeys(chunk.request_id for chunk in prompts)),
        prompt_tokens=sum(chunk.num_tokens for chunk in prompts),
    )


@dataclass
class Span:
    """Neighbouring steps in which one slot did the same for the same request."""

    place: int
    request_id: str
    kind: str
    start: float
    end: float
    steps: int = 1


def spans(steps: list[Step], merge: bool = True) -> list[Span]:
    """The log as spans: equal neighbours merged, or one for each step."""
    done: list[Span] = []
    last: dict[int, Span] = {}
    for step in steps:
        for chunk in step.chunks:
            before = last.get(chunk.place)
            same = merge and before and (before.request_id, before.kind) == (chunk.request_id, chunk.kind)
            if same and abs(before.end - step.start) < 1e-9:
                before.end, before.steps = step.end, before.steps + 1
            else:
                last[chunk.place] = Span(chunk.place, chunk.request_id, chunk.kind, step.start, step.end)
                done.append(last[chunk.place])
    return done


def launches(run: Run) -> list[tuple[float, int]]:
    """(time, how many requests entered together), in order: the batch sizes of a static-like run."""
    sizes: dict[float, int] = {}
    for event in run.events:
        if event.kind == "admit":
            sizes[event.time] = sizes.get(event.time, 0) + 1
    return sorted(sizes.items())


@dataclass(frozen=True)
class Preemption:
    """A slot that was taken back.

    winner   who got the slot at once; None if nobody did
    tokens   computed again for it: all whose K and V it threw away, but for those that prefix sharing found
    seconds  that this took: their part of those steps, by tokens
    gain     seconds until the first of all others in a slot was done: without this one preemption the
             winner would have waited so long; nan if there is no other slot
    """

    request_id: str
    winner: str | None
    time: float
    tokens: int
    seconds: float
    gain: float


def preemptions(run: Run) -> list[Preemption]:
    """Every preemption of a run, in order, with its price and what it brought."""
    ends = {event.request_id: event.time for event in run.events if event.kind in ("finish", "abort")}
    found: list[Preemption] = []
    admitted: dict[str, Event] = {}  # the last time, of each
    for number, (time, kind, who, _) in enumerate(run.events):
        if kind == "admit":
            admitted[who] = run.events[number]
        if kind != "preempt":
            continue
        _, _, _, place = admitted[who]
        then = [event for event in run.events[number + 1 :] if event.time == time]
        winner = next((e.request_id for e in then if (e.kind, e.detail) == ("admit", place)), None)
        parts, since = _parts(run, who), admitted[who].time
        reached = max((part.end for part in parts if since <= part.time < time), default=0)
        tokens, seconds = _again([part for part in parts if part.time >= time], reached)
        others = [ends[other] for other in _inside(run, time) - {winner} if other in ends]
        gain = min(others, default=math.nan) - time
        found.append(Preemption(who, winner, time, tokens, seconds, gain))
    return found


def _inside(run: Run, time: float) -> set[str]:
    """Who has a slot at this time, after all that happens then."""
    inside: set[str] = set()
    for event in run.events:
        if event.time <= time and event.kind == "admit":
            inside.add(event.request_id)
        elif event.time <= time:
            inside.discard(event.request_id)
    return inside


class _Part(NamedTuple):
    """What one step computed for a request: its tokens from start to end, so many seconds each."""

    time: float
    start: int
    end: int
    for_one: float


def _parts(run: Run, request_id: str) -> list[_Part]:
    return [
        _Part(
            step.start,
            chunk.start,
            chunk.start + chunk.num_tokens,
            step.seconds / sum(other.num_tokens for other in step.chunks),
        )
        for step in run.log
        for chunk in step.chunks
        if chunk.request_id == request_id
    ]


def _again(after: list[_Part], reached: int) -> tuple[int, float]:
    """Of a request's tokens before `reached`: how many were computed after a preemption, in how many seconds.

    Each counts the first time only, since a later preemption has a price of its own.
    """
    tokens, seconds, at = 0, 0.0, 0
    for part in after:
        count = max(0, min(part.end, reached) - max(part.start, at))
        tokens, seconds, at = tokens + count, seconds + count * part.for_one, max(at, part.end)
    return tokens, seconds


class Slice(NamedTuple):
    """A step's part of one prompt: its tokens, and how many the budget had left when its turn came."""

    step: int
    tokens: int
    left: int


def slices(run: Run, request_id: str, budget: int) -> list[Slice]:
    """How one prompt was cut up under a token budget, in order (a step's chunks are logged as planned)."""
    found = []
    for number, step in enumerate(run.log):
        left = budget
        for chunk in step.chunks:
            if chunk.request_id == request_id and chunk.kind == "prefill":
                found.append(Slice(number, chunk.num_tokens, left))
            left -= chunk.num_tokens
    return found
