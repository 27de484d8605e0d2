"""What a run did with its memory, read from its log: how much was of use, found, and computed again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from .loop import FULL_MEMORY
from .request import Request
from .run import Run
from .trace import levels


@dataclass(frozen=True)
class MemoryUse:
    """One run's memory.

    useful          share of the reserved tokens that held K and V, over the steps
    running         requests admitted and unfinished, averaged over the time in which there was one
    most_running    at most
    preemptions     because memory ran out
    found           prompt tokens that were in the cache when a request first entered
    prompt_tokens   of all requests that entered
    recomputed      tokens computed a second time, or more often, after preemptions
    """

    useful: float
    running: float
    most_running: int
    preemptions: int
    found: int
    prompt_tokens: int
    recomputed: int

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that were found. What a preempted request finds again is no hit."""
        return self.found / self.prompt_tokens if self.prompt_tokens else 0.0


def memory_use(run: Run) -> MemoryUse:
    reserved = sum(step.reserved_tokens for step in run.log)
    at = levels(run)
    counts = [(end - start, running) for (start, _, running), (end, _, _) in pairwise(at) if running]
    busy = sum(seconds for seconds, _ in counts)
    lengths = {request.id: len(request.prompt_token_ids) for request in run.submitted}
    found = found_tokens(run)
    return MemoryUse(
        useful=sum(step.used_tokens for step in run.log) / reserved if reserved else 0.0,
        running=sum(seconds * running for seconds, running in counts) / busy if busy else 0.0,
        most_running=max((running for _, _, running in at), default=0),
        preemptions=sum(event.kind == "preempt" and event.detail == FULL_MEMORY for event in run.events),
        found=sum(found.values()),
        prompt_tokens=sum(lengths[name] for name in found),
        recomputed=sum(recomputed_tokens(run).values()),
    )


def found_tokens(run: Run) -> dict[str, int]:
    """By request: where its first chunk began, so how many prompt tokens it found in the cache."""
    found: dict[str, int] = {}
    for name, start, _ in _live_chunks(run):
        found.setdefault(name, start)
    return found


def recomputed_tokens(run: Run) -> dict[str, int]:
    """By request: tokens computed although it had had their K and V before."""
    again: dict[str, int] = {}
    reached: dict[str, int] = {}
    for name, start, tokens in _live_chunks(run):
        before = reached.get(name, 0)
        again[name] = again.get(name, 0) + max(0, min(start + tokens, before) - start)
        reached[name] = max(before, start + tokens)
    return again


def _live_chunks(run: Run) -> Iterator[tuple[str, int, int]]:
    for step in run.log:
        for chunk in step.chunks:
            if chunk.kind != "zombie":
                yield chunk.request_id, chunk.start, chunk.num_tokens


def behind(beginning: Iterable[int], requests: Iterable[Request]) -> list[Request]:
    """The requests with the same beginning, a system prompt say, before each prompt."""
    shared = tuple(beginning)
    return [
        replace(request, prompt_token_ids=shared + tuple(request.prompt_token_ids)) for request in requests
    ]
