"""A user who submits, steps, aborts and drains at random, against a plain model of what must happen."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from helpers.build import POLICIES, tokens_by_rule
from helpers.tiny import POSITIONS, VOCAB, generate, slot_engine
from helpers.worlds import simulated_engine
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llmserve.blocks import BlockPool
from llmserve.loop import Loop
from llmserve.request import Request

PROMPTS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)


@dataclass
class Expected:
    """What the model knows of one request: its tokens, how many it has had, how far it is computed."""

    request: Request
    tokens: list[int]
    had: int = 0
    computed: int = 0
    aborted: bool = False

    @property
    def ended(self) -> bool:
        return self.aborted or self.had == len(self.tokens)


@dataclass
class Model:
    requests: dict[str, Expected] = field(default_factory=dict)
    steps: int = 0
    events: int = 0  # of the log, seen so far


class Serving(RuleBasedStateMachine):
    """Simulated: tokens by a rule. `Real` below puts the tiny model in its place."""

    @initialize(
        policy=st.sampled_from(sorted(POLICIES)),
        slots=st.integers(1, 4),
        there=st.integers(1, 4),
        eos=st.sampled_from([None, 3, 17]),
    )
    def open(self, policy: str, slots: int, there: int, eos: int | None) -> None:
        self.policy, self.eos, self.model = POLICIES[policy](slots), eos, Model()
        self.loop = Loop(self.policy, self.engine(there, eos))

    def engine(self, slots: int, eos: int | None) -> Any:
        return simulated_engine(slots, eos_token_id=eos)

    def alone(self, request: Request) -> list[int]:
        return tokens_by_rule(request, VOCAB, self.eos)

    def found(self, start: int) -> int:
        """Tokens of a request that enters which are in the cache already, if it starts there."""
        return 0

    def most(self, pool: Any) -> int:
        """How many can hold memory; with slots, each holds as much."""
        assert pool.reserved_tokens == len(self.loop.running) * pool.slot_tokens
        return pool.num_slots

    @rule(prompt=PROMPTS, output=st.integers(1, 9), later=st.sampled_from([0.0, 0.0, 0.5, 7.0]))
    def submit(self, prompt: list[int], output: int, later: float) -> None:
        name = f"r{len(self.model.requests)}"
        request = Request(name, tuple(prompt), output, self.loop.now + later, expected_tokens=output)
        self.loop.submit(request)
        self.model.requests[name] = Expected(request, self.alone(request))

    @rule(wrong=st.sampled_from([((), 1), ((VOCAB,), 1), ((1,), 0), ((1,) * POSITIONS, 1), ("text", 2)]))
    def submit_what_can_never_run(self, wrong: tuple[Any, int]) -> None:
        before = self.state()
        with pytest.raises(ValueError, match="'bad'"):
            self.loop.submit(Request("bad", *wrong))
        assert self.state() == before

    @precondition(lambda self: self.model.requests)
    @rule(data=st.data())
    def submit_twice(self, data: st.DataObject) -> None:
        before = self.state()
        with pytest.raises(ValueError, match="submitted before"):
            self.loop.submit(data.draw(st.sampled_from(list(self.model.requests.values()))).request)
        assert self.state() == before

    @precondition(lambda self: self.model.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model.requests)))
        expected = self.model.requests[name]
        assert self.loop.abort(name) == (not expected.ended)
        expected.aborted = expected.aborted or not expected.ended

    @rule()
    def abort_a_stranger(self) -> None:
        before = self.state()
        with pytest.raises(ValueError, match="no request with id 'nobody'"):
            self.loop.abort("nobody")
        assert self.state() == before

    @rule()
    def step(self) -> None:
        self.advance()

    def advance(self) -> bool:
        step = self.loop.step()
        if step is None:
            return False
        self.model.steps += 1
        events = self.loop.run.events
        entered = {event.request_id for event in events[self.model.events :] if event.kind == "admit"}
        self.model.events = len(events)
        assert any(chunk.kind != "zombie" for chunk in step.chunks)
        for chunk in step.chunks:
            expected = self.model.requests[chunk.request_id]
            known = len(expected.request.prompt_token_ids) + expected.had
            if chunk.kind == "zombie":
                assert expected.ended and (chunk.start, chunk.num_tokens) == (expected.computed - 1, 1)
                continue
            assert not expected.ended, "no one computes for who has ended"
            if chunk.request_id in entered:  # at first, or again after a preemption
                expected.computed = self.found(chunk.start)
            assert chunk.start == expected.computed and expected.request.arrival_time <= step.start
            expected.computed += chunk.num_tokens
            assert expected.computed <= known
            if expected.computed == known:
                assert chunk.token_id == expected.tokens[expected.had]
                expected.had += 1
            else:
                assert chunk.token_id is None
        return True

    @rule()
    def drain(self) -> None:
        while self.advance():
            pass

    def state(self) -> tuple[Any, ...]:
        loop = self.loop
        queues = (list(loop.running), list(loop.waiting), sorted(entry[:2] for entry in loop.future))
        return (*queues, loop.now, list(loop.run.submitted), list(loop.run.events), loop.pool.free_tokens)

    @invariant()
    def books_balance(self) -> None:
        loop, pool = self.loop, self.loop.pool
        pool.check()
        assert pool.free_tokens + pool.reserved_tokens == pool.total_tokens
        assert len(loop.running) <= min(self.policy.max_num_seqs, self.most(pool))
        where = [*loop.running, *loop.waiting, *(entry[2] for entry in loop.future)]
        assert len({sequence.id for sequence in where}) == len(where), "each is in one place"
        alive = {name for name, expected in self.model.requests.items() if not expected.ended}
        assert {sequence.id for sequence in where if not sequence.is_finished} == alive
        assert loop.num_ended == len(self.model.requests) - len(alive)

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.loop.close()
        self.drain()
        assert all(expected.ended for expected in self.model.requests.values())
        assert self.loop.pool.free_tokens == self.loop.pool.total_tokens


class Real(Serving):
    def engine(self, slots: int, eos: int | None) -> Any:
        return slot_engine(slots, eos=eos)

    def alone(self, request: Request) -> list[int]:
        return generate(request, self.eos)


class Paged(Serving):
    """In blocks of four, so few that sequences are preempted, with beginnings that are found again."""

    def engine(self, slots: int, eos: int | None) -> Any:
        memory = partial(BlockPool, 5 + slots, 4, slots % 2)
        return simulated_engine(slots, eos_token_id=eos, memory=memory)

    def found(self, start: int) -> int:
        assert start % 4 == 0
        return start

    def most(self, pool: Any) -> int:
        return pool.num_blocks


TestSimulated = Serving.TestCase
TestSimulated.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, derandomize=True)
TestPaged = Paged.TestCase
TestPaged.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, derandomize=True)
TestReal = Real.TestCase
TestReal.settings = settings(max_examples=12, stateful_step_count=25, deadline=None, derandomize=True)
