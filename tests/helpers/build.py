"""Requests, simulated engines and pictures of runs, for hand-worked schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llmserve.costmodel import CostModel, SimulatedEngine
from llmserve.loop import Loop
from llmserve.policies import Bucketed, Chunked, Continuous, Dynamic, Mixed, Policy, ShortestRemaining, Static
from llmserve.request import Request
from llmserve.run import Run

# Each policy by name, for a number of slots; timer, budget and price are small enough to matter.
POLICIES: dict[str, Callable[..., Policy]] = {
    "static": Static,
    "dynamic": lambda slots, **more: Dynamic(slots, 1.5, **more),
    "bucketed": Bucketed,
    "continuous": Continuous,
    "mixed": Mixed,
    "chunked": lambda slots, **more: Chunked(slots, slots + 3, **more),
    "shortest remaining": lambda slots, **more: ShortestRemaining(slots, 4, **more),
}


def ask(
    request_id: str, prompt: int | Sequence[int] = 1, output: int = 1, at: float = 0.0, **more: Any
) -> Request:
    """A request of so many prompt tokens (or these), so many output tokens, arriving at a time."""
    ids = tuple(range(1, prompt + 1)) if isinstance(prompt, int) else prompt
    more = {"expected_tokens": output, **more}
    return Request(request_id, ids, output, arrival_time=at, **more)


def unit_engine(slots: int, max_model_len: int = 64, **more: Any) -> SimulatedEngine:
    """Every step takes one second, so that step numbers are times."""
    return SimulatedEngine(slots, max_model_len, CostModel(overhead=1.0), **more)


def tokens_by_rule(request: Request, vocab_size: int, eos: int | None = None) -> list[int]:
    """The simulated engine's tokens for a request, computed without any schedule."""
    tokens = list(request.prompt_token_ids)
    for _ in range(request.max_tokens):
        position = len(tokens)
        tokens.append((tokens[-1] * 31 + position * 17 + 7) % vocab_size)
        if (tokens[-1] == eos and not request.ignore_eos) or tokens[-1] in request.stop_token_ids:
            break
    return tokens[len(request.prompt_token_ids) :]


def lanes(run: Run) -> list[str]:
    """The post's diagram of a run: a line a slot, a column a step.

    A letter is a useful row of that request, '.' a zombie row, ' ' a slot that computed nothing.
    """
    slots = 1 + max(chunk.place for step in run.log for chunk in step.chunks)
    rows = [[" "] * len(run.log) for _ in range(slots)]
    for column, step in enumerate(run.log):
        for chunk in step.chunks:
            assert rows[chunk.place][column] == " ", "two chunks in one slot"
            rows[chunk.place][column] = "." if chunk.kind == "zombie" else chunk.request_id
    return ["".join(row).rstrip() for row in rows]


def plans(run: Run) -> list[list[tuple[str, int, int]]]:
    """What each step computed: (request, start, tokens), in the policy's order."""
    return [[(c.request_id, c.start, c.num_tokens) for c in step.chunks] for step in run.log]


def events(run: Run, kind: str) -> list[str]:
    """Who an event of this kind happened to, in order."""
    return [event.request_id for event in run.events if event.kind == kind]


def open_loop(policy: Policy, requests: Sequence[Request], engine: SimulatedEngine | None = None) -> Loop:
    """A loop with these requests submitted, not closed."""
    loop = Loop(policy, engine or unit_engine(policy.max_num_seqs))
    for request in requests:
        loop.submit(request)
    return loop


def finish(loop: Loop) -> Run:
    """Close the loop and step it to the end."""
    loop.close()
    while loop.step():
        pass
    return loop.run


def interrupting(base: type[Policy]) -> type[Policy]:
    """A policy that also throws out unfinished sequences: each once in its prompt, twice while decoding.

    It counts, unlike a real policy, so that no sequence can be thrown out for ever.
    """

    class Interrupting(base):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            self._thrown: set[tuple[str, str]] = set()

        def release(self, running: list, waiting: list, now: float) -> list:
            leaving = super().release(running, waiting, now)
            for seq in running:
                moment = None
                if seq.num_output_tokens == 0 and seq.num_computed_tokens > 0:
                    moment = "in its prompt"
                elif seq.is_decoding and seq.num_output_tokens in (2, 5):
                    moment = f"after {seq.num_output_tokens}"
                if seq not in leaving and moment and (seq.id, moment) not in self._thrown:
                    self._thrown.add((seq.id, moment))
                    leaving.append(seq)
                    break
            return leaving

    return Interrupting
