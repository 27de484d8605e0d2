"""Promises 2, 3 and 4 over random workloads, policies and aborts, on a simulated engine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from helpers.build import interrupting, tokens_by_rule
from hypothesis import given, settings
from hypothesis import strategies as st

from llmserve.costmodel import CostModel, SimulatedEngine
from llmserve.loop import Loop, serve
from llmserve.metrics import SLO, output_token_ids, request_times, summarise
from llmserve.policies import (
    Bucketed,
    Chunked,
    Continuous,
    Dynamic,
    Mixed,
    Policy,
    ShortestRemaining,
    Static,
    first_come,
)
from llmserve.request import Request
from llmserve.run import Run

VOCAB = 13  # few ids, so that the end-of-sequence token and stop tokens come up by themselves
MAX_MODEL_LEN = 24


def shortest(sequence: Any) -> int:
    return sequence.request.expected_tokens


def priority(sequence: Any) -> int:
    return sequence.request.priority


@dataclass(frozen=True)
class Case:
    """One random experiment. `policy` is built anew for each run: an interrupting one counts."""

    requests: list[Request]
    policy: Callable[[], Policy]
    engine: SimulatedEngine
    aborts: list[tuple[int, int]]  # (before this step, this request)

    def serve(self) -> Run:
        return serve(self.requests, self.policy(), self.engine)


@st.composite
def requests(draw: st.DrawFn) -> list[Request]:
    lengths = st.integers(1, 15)
    times = st.one_of(st.integers(0, 6).map(float), st.floats(0, 40, allow_nan=False))
    return [
        Request(
            id=f"r{i}",
            prompt_token_ids=tuple(draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=15))),
            max_tokens=draw(lengths),  # some prompts + outputs exceed MAX_MODEL_LEN: refused
            arrival_time=draw(times),
            ignore_eos=draw(st.booleans()),
            priority=draw(st.integers(0, 2)),
            stop_token_ids=draw(st.sampled_from([(), (5,), (2, 11)])),
            expected_tokens=draw(lengths),
        )
        for i in range(draw(st.integers(0, 10)))
    ]


@st.composite
def cases(draw: st.DrawFn, preempting: bool = True) -> Case:
    slots = draw(st.integers(1, 4))
    key = draw(st.sampled_from([first_come, shortest, priority]))
    kinds = [Static, Dynamic, Bucketed, Continuous, Mixed, Chunked]
    kind = draw(st.sampled_from([*kinds, ShortestRemaining] if preempting else kinds))
    parameters: dict[str, Any] = {}
    if kind is Dynamic:
        parameters["max_wait"] = draw(st.sampled_from([0.0, 0.1, 0.7, 3.0, math.inf]))
    if kind is Chunked:
        parameters["max_num_batched_tokens"] = slots + draw(st.integers(0, 8))
    if kind is ShortestRemaining:
        parameters["tokens_per_step"] = draw(st.sampled_from([1, 4, math.inf]))
    if preempting and issubclass(kind, Continuous) and draw(st.booleans()):
        kind = interrupting(kind)
    cost = draw(
        st.sampled_from(
            [
                CostModel(overhead=1.0),
                CostModel(weights=0.3, per_token=0.1, per_context=0.003, per_row=0.01),
                CostModel(overhead=1e-9),
            ]
        )
    )
    engine = SimulatedEngine(
        max_num_seqs=draw(st.integers(1, 5)),  # memory may hold fewer than the policy's batch
        max_model_len=MAX_MODEL_LEN,
        cost=cost,
        vocab_size=VOCAB,
        eos_token_id=draw(st.sampled_from([None, 3])),
    )
    aborts = draw(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), max_size=3))
    return Case(draw(requests()), lambda: kind(slots, key=key, **parameters), engine, sorted(aborts))


SETTINGS = settings(max_examples=200, deadline=None, derandomize=True)


def run_with_checks(case: Case) -> tuple[Loop, set[str]]:
    """Drive the loop by hand, with aborts, checking caps, memory and time at every step."""
    policy = case.policy()
    loop = Loop(policy, case.engine)
    refused = set()
    for request in case.requests:
        try:
            loop.submit(request)
        except ValueError:
            refused.add(request.id)
    loop.close()
    aborts, last_end = list(case.aborts), 0.0
    most_steps = 100 + sum(4 * (len(r.prompt_token_ids) + r.max_tokens) for r in case.requests)
    for number in range(most_steps):
        while aborts and aborts[0][0] <= number:
            victim = f"r{aborts.pop(0)[1]}"
            if victim in loop._sequences:
                loop.abort(victim)
        step = loop.step()
        loop.pool.check()
        assert loop.pool.free_tokens + loop.pool.reserved_tokens == loop.pool.total_tokens
        if step is None:
            return loop, refused
        assert len(loop.running) <= policy.max_num_seqs
        assert 1 <= len(step.chunks) <= min(policy.max_num_seqs, case.engine.max_num_seqs)
        assert len({chunk.request_id for chunk in step.chunks}) == len(step.chunks)
        assert len({chunk.place for chunk in step.chunks}) == len(step.chunks)
        assert any(chunk.kind != "zombie" for chunk in step.chunks)
        if policy.max_num_batched_tokens is not None:
            assert sum(chunk.num_tokens for chunk in step.chunks) <= policy.max_num_batched_tokens
        assert last_end <= step.start <= step.end == loop.now
        assert all(arrival > loop.now for arrival, *_ in loop.future), "who has arrived is in the queue"
        assert step.used_tokens <= step.reserved_tokens <= loop.pool.total_tokens
        last_end = step.end
    raise AssertionError(f"not at an end after {most_steps} steps")


@given(cases())
@SETTINGS
def test_every_request_ends_once_with_its_own_tokens_and_all_memory_comes_back(case: Case) -> None:
    loop, refused = run_with_checks(case)
    run = loop.run
    assert loop.pool.free_tokens == loop.pool.total_tokens
    assert (loop.running, loop.waiting, loop.future) == ([], [], [])
    assert loop.num_ended == len(run.submitted) == len(case.requests) - len(refused)

    ends = Counter(event.request_id for event in run.events if event.kind in ("finish", "abort"))
    assert ends == {request.id: 1 for request in run.submitted}
    assert {request.id for request in run.submitted} | refused == {request.id for request in case.requests}

    tokens = output_token_ids(run)
    for request, times in zip(run.submitted, request_times(run), strict=True):
        expected = tokens_by_rule(request, VOCAB, case.engine.eos_token_id)
        received = tokens[request.id]
        assert times.finish_reason in ("length", "stop", "abort")
        if times.finish_reason == "abort":
            assert received == expected[: len(received)] and len(received) < len(expected)
        else:
            assert received == expected
            at_eos = received[-1] == case.engine.eos_token_id and not request.ignore_eos
            stopped = at_eos or received[-1] in request.stop_token_ids
            assert times.finish_reason == ("stop" if stopped else "length")
        assert times.token_times == sorted(times.token_times)
        if times.token_times:
            assert times.ttft >= 0 and times.e2e >= times.ttft
            assert times.arrival <= times.admitted


@given(cases())
@SETTINGS
def test_a_simulated_run_is_the_same_to_the_last_bit_when_run_again(case: Case) -> None:
    assert repr(case.serve()) == repr(case.serve())


@given(cases())
@SETTINGS
def test_serve_refuses_what_submit_refuses_and_ends_all_others(case: Case) -> None:
    run = case.serve()
    refused = {r.id for r in case.requests if len(r.prompt_token_ids) + r.max_tokens > MAX_MODEL_LEN}
    assert {event.request_id for event in run.events if event.kind == "refuse"} == refused
    assert {event.request_id for event in run.events if event.kind == "finish"} == {
        r.id for r in case.requests
    } - refused


@given(cases(preempting=False))
@SETTINGS
def test_without_preemption_each_token_is_computed_once_and_each_prompt_in_order(case: Case) -> None:
    run = case.serve()
    assert not any(event.kind == "preempt" for event in run.events)
    done = {request.id: 0 for request in run.submitted}
    for step in run.log:
        for chunk in step.chunks:
            if chunk.kind == "zombie":
                assert (chunk.start, chunk.num_tokens) == (done[chunk.request_id] - 1, 1)
            else:
                assert chunk.start == done[chunk.request_id]
                done[chunk.request_id] += chunk.num_tokens
    outputs = output_token_ids(run)
    for request in run.submitted:  # the last token needs no K and V
        assert done[request.id] == len(request.prompt_token_ids) + len(outputs[request.id]) - 1


@given(cases(), st.floats(0.01, 20), st.floats(0.01, 3))
@SETTINGS
def test_goodput_never_exceeds_throughput_and_efficiency_lies_between_0_and_1(
    case: Case, ttft: float, tpot: float
) -> None:
    summary = summarise(case.serve(), SLO(ttft, tpot))
    if summary.n:
        assert 0 <= summary.goodput_tokens <= summary.throughput
        assert summary.goodput_requests * summary.seconds <= summary.n + 1e-9
        assert 0 < summary.slot_efficiency <= 1
        assert summary.live_rows <= case.policy().max_num_seqs or math.isnan(summary.live_rows)
