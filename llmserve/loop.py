"""The serving loop: the policy proposes, the loop disposes. One loop for real and simulated engines."""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from .policies import Policy
from .policies.base import Plan
from .pool import Pool
from .progress import default_progress
from .proposals import wrong_members, wrong_plan, wrong_timer
from .request import Chunk, Request, Sequence, StepResult, checked
from .run import ChunkRow, Event, Run, Step

FULL_MEMORY = "full memory"  # why the loop itself preempts
MOST_PREEMPTIONS = 100  # of one sequence while no one gets a token: then nothing will ever end


class Engine(Protocol):
    """What the loop needs of an engine, real or simulated."""

    vocab_size: int
    max_model_len: int
    eos_token_id: int | None

    def new_pool(self) -> Pool: ...

    def step(self, chunks: list[Chunk]) -> StepResult: ...


class PolicyError(RuntimeError):
    """A policy proposed something that cannot be done, or nothing that would ever end."""


class Loop:
    """Serve requests step by step. Time is the sum of what the steps took, and jumps when idle."""

    def __init__(
        self, policy: Policy, engine: Engine, stop: Callable[[Sequence], bool] | None = None
    ) -> None:
        self.policy = policy
        self.engine = engine
        self.stop = stop
        self.pool = engine.new_pool()
        self.now = 0.0
        self.closed = False
        self.future: list[tuple[float, int, Sequence]] = []
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.run = Run(repr(policy), policy.max_num_seqs)
        self.num_ended = 0
        self._sequences: dict[str, Sequence] = {}
        self._in_vain: Counter[str] = Counter()  # preemptions since anyone last got a token

    # -- the user's side ---------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Take a request in; ValueError, and nothing changed, if it could never run."""
        if self.closed:
            raise ValueError(f"request {request.id!r}: the loop is closed; submit before close()")
        engine = self.engine
        request = checked(request, engine.vocab_size, engine.max_model_len, self.pool.longest)
        if request.id in self._sequences:
            raise ValueError(f"request id {request.id!r} was submitted before: give each request its own id")
        sequence = Sequence(request, order=len(self._sequences))
        self._sequences[request.id] = sequence
        self.run.submitted.append(request)
        heapq.heappush(self.future, (request.arrival_time, sequence.order, sequence))

    def abort(self, request_id: str) -> bool:
        """End a request now, wherever it is. False if it had ended before; ValueError if unknown."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            raise ValueError(f"no request with id {request_id!r} was submitted")
        if sequence.is_finished:
            return False
        if sequence in self.running:
            self._leave(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        else:
            self.future = [entry for entry in self.future if entry[2] is not sequence]
            heapq.heapify(self.future)
        sequence.finish_reason = "abort"
        self._end("abort", sequence)
        return True

    def close(self) -> None:
        """No further request will come: a last batch need not wait to fill."""
        self.closed = True

    @property
    def more_coming(self) -> bool:
        return bool(self.future) or not self.closed

    # -- one step ----------------------------------------------------------------------------------

    def step(self) -> Step | None:
        """Run one engine step, after a jump to the next arrival or timer if nothing can run now.

        None when there is nothing to do: all has ended, or the loop waits for a submission.
        """
        while True:
            self._arrive()
            self._release()
            self._admit()
            plan = self._plan()
            secured = self._secure(plan)
            if any(not sequence.is_finished for sequence, _ in secured):
                return self._compute(secured)
            if len(secured) == len(plan) and not self._jump():
                return self._idle(plan)

    def _arrive(self) -> None:
        while self.future and self.future[0][0] <= self.now:
            self._enqueue(heapq.heappop(self.future)[2])

    def _enqueue(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=self._order)

    def _order(self, sequence: Sequence) -> tuple[Any, int]:
        return self.policy.key(sequence), sequence.order

    def _admit(self) -> None:
        if not self.waiting:
            return
        proposed = self.policy.admit(list(self.waiting), list(self.running), self.now, self.more_coming)
        self._require(wrong_members(proposed, self.waiting, "admit", "the queue"))
        if len(self.running) + len(proposed) > self.policy.max_num_seqs:
            raise self._error(
                f"admit returned {len(proposed)} sequences with {len(self.running)} running, "
                f"over max_num_seqs={self.policy.max_num_seqs}"
            )
        for sequence in proposed:
            cached = self.pool.admit(sequence)
            if cached is None:
                break  # the longest prefix that memory can hold
            sequence.num_computed_tokens = cached
            self.waiting.remove(sequence)
            self.running.append(sequence)
            self._record("admit", sequence, str(self.pool.row(sequence)))

    def _plan(self) -> Plan:
        if not self.running:
            return []
        plan = self.policy.compose(list(self.running))
        self._require(wrong_plan(plan, self.running, self.policy.max_num_batched_tokens))
        return plan

    def _secure(self, plan: Plan) -> Plan:
        """Memory for each chunk, in the plan's order; while there is none, the last by key is preempted."""
        for sequence, tokens in plan:
            end = sequence.num_computed_tokens - sequence.is_finished + tokens
            while sequence in self.running and not self.pool.extend(sequence, end):
                unfinished = [one for one in self.running if not one.is_finished]
                self._preempt(max(unfinished, key=self._order), FULL_MEMORY)
        return [(sequence, tokens) for sequence, tokens in plan if sequence in self.running]

    def _compute(self, plan: Plan) -> Step:
        # The loop derives `start`: a zombie row is the last computed position again.
        chunks = [
            Chunk(seq, seq.num_computed_tokens - seq.is_finished, tokens, self.pool.place(seq))
            for seq, tokens in plan
        ]
        result = self.engine.step(chunks)
        start, self.now = self.now, self.now + result.seconds
        rows = []
        for (sequence, first, tokens, _), token_id in zip(chunks, result.token_ids, strict=True):
            kind = _kind(sequence)
            rows.append(ChunkRow(sequence.id, self.pool.row(sequence), first, tokens, kind, token_id))
            if kind != "zombie":
                self._advance(sequence, tokens, token_id)
        self._arrive()
        memory = (self.pool.reserved_tokens, self.pool.used_tokens)
        step = Step(start, result.seconds, result.cpu_share, len(self.waiting), *memory, rows)
        self.run.log.append(step)
        self._release()
        return step

    def _advance(self, sequence: Sequence, tokens: int, token_id: int | None) -> None:
        sequence.num_computed_tokens += tokens
        if token_id is not None:
            self._in_vain.clear()
            sequence.token_ids.append(token_id)
            reason = self._finish_reason(sequence)
            if reason:
                sequence.finish_reason = reason
                self._end("finish", sequence, reason)

    def _finish_reason(self, sequence: Sequence) -> str | None:
        request, last = sequence.request, sequence.token_ids[-1]
        at_eos = last == self.engine.eos_token_id and not request.ignore_eos
        if at_eos or last in request.stop_token_ids or (self.stop and self.stop(sequence)):
            return "stop"
        return "length" if sequence.num_output_tokens >= request.max_tokens else None

    def _release(self) -> None:
        if not self.running:
            return
        leaving = self.policy.release(list(self.running), list(self.waiting), self.now)
        self._require(wrong_members(leaving, self.running, "release", "the running batch"))
        for sequence in leaving:
            if sequence.is_finished:
                self._leave(sequence)
            else:
                self._preempt(sequence, "release")

    def _preempt(self, sequence: Sequence, why: str) -> None:
        """Back to the queue without memory: it computes its K and V again when its turn comes."""
        self._in_vain[sequence.id] += 1
        if self._in_vain[sequence.id] > MOST_PREEMPTIONS:
            raise self._error(
                f"{why} threw out {sequence.id!r} {self._in_vain[sequence.id]} times while no request got "
                "a token: keep who has started until it has one"
            )
        self._leave(sequence)
        sequence.num_computed_tokens = 0
        self._record("preempt", sequence, why)
        self._enqueue(sequence)

    def _leave(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.pool.free(sequence)

    def _jump(self) -> bool:
        """Move the clock to the next arrival or timer; False if there is none later than now."""
        timer = self.policy.wake_at(list(self.waiting)) if self.waiting else math.inf
        self._require(wrong_timer(timer))
        arrival = self.future[0][0] if self.future else math.inf
        later = [time for time in (arrival, timer) if self.now < time < math.inf]
        if later:
            self.now = min(later)
        return bool(later)

    def _idle(self, plan: Plan) -> None:
        """Nothing runs and no clock will change that: all done, waiting for a submission, or stuck."""
        if self.running or (self.waiting and self.closed):
            done = (
                "composed zombie rows only"
                if plan
                else "composed nothing"
                if self.running
                else "admitted no one"
            )
            names = ", ".join(repr(sequence.id) for sequence in [*self.running, *self.waiting][:8])
            raise self._error(f"it {done}, and no arrival or timer can change that; stuck: {names}")
        self.pool.check()

    # -- small change ------------------------------------------------------------------------------

    def _record(self, kind: str, sequence: Sequence, detail: str = "") -> None:
        self.run.events.append(Event(self.now, kind, sequence.id, detail))

    def _end(self, kind: str, sequence: Sequence, detail: str = "") -> None:
        self.num_ended += 1
        self._record(kind, sequence, detail)

    def _require(self, wrong: str | None) -> None:
        if wrong:
            raise self._error(wrong)

    def _error(self, what: str) -> PolicyError:
        return PolicyError(f"{self.policy!r} at step {len(self.run.log)}, t={self.now:.6g} s: {what}")


def _kind(sequence: Sequence) -> str:
    if sequence.is_finished:
        return "zombie"
    return "decode" if sequence.is_decoding else "prefill"


def serve(
    requests: Iterable[Request],
    policy: Policy,
    engine: Engine,
    stop: Callable[[Sequence], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Run:
    """Serve a list of requests to the end and return the log.

    A request that can never run is logged as refused and the others go on. `stop` ends a sequence
    on anything it can see (stop strings, say). `progress(ended, total)` is called after each step;
    by default a live notebook shows a bar.
    """
    loop = Loop(policy, engine, stop)
    for request in requests:
        try:
            loop.submit(request)
        except ValueError as reason:
            loop.run.events.append(Event(loop.now, "refuse", request.id, str(reason)))
    loop.close()
    with default_progress(repr(policy), progress) as report:
        while loop.step():
            report(loop.num_ended, len(loop.run.submitted))
    return loop.run
