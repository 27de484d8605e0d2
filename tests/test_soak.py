"""Ten thousand requests per policy, with aborts, every book checked after every step."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
from helpers.build import POLICIES, interrupting

from llmserve.blocks import BlockPool
from llmserve.costmodel import CostModel, SimulatedEngine
from llmserve.loop import FULL_MEMORY, Loop
from llmserve.metrics import count_rows, request_times
from llmserve.policies import Chunked
from llmserve.workload import Lognormal, Prompts, Workload

SLOTS = 8
SOAK = Workload(
    "soak", 10_000, SLOTS, 64, Lognormal(8, 1.0, 1, 40), Prompts(1, 12, 24, 0.05), load=0.7, burstiness=0.5
)
ALL = {**POLICIES, "preempting": lambda slots: interrupting(Chunked)(slots, slots + 3)}
MEMORIES = {"slots": None, "blocks": partial(BlockPool, 30, 4, 1)}  # few blocks: some are preempted


@pytest.mark.parametrize("memory", MEMORIES.values(), ids=MEMORIES)
@pytest.mark.parametrize("policy", ALL.values(), ids=ALL)
def test_ten_thousand_requests_all_end_and_no_memory_is_lost(policy: Any, memory: Any) -> None:
    costs = CostModel(weights=0.03, per_token=0.001)
    loop = Loop(policy(SLOTS), SimulatedEngine(SLOTS, 64, costs, memory=memory))
    for request in SOAK.requests(decode_step=0.03):
        loop.submit(request)
    loop.close()
    draws, last = random.Random(0), 0.0
    while step := loop.step():
        loop.pool.check()
        assert memory or loop.pool.reserved_tokens == 64 * len(loop.running) <= 64 * SLOTS
        assert last <= step.start < step.end == loop.now
        last = step.end
        if draws.random() < 0.01 and loop.running:
            loop.abort(draws.choice(loop.running).id)
    assert (loop.running, loop.waiting, loop.future) == ([], [], [])
    assert loop.pool.free_tokens == loop.pool.total_tokens
    assert loop.num_ended == len(loop.run.submitted) == 10_000
    assert not memory or any(event.detail == FULL_MEMORY for event in loop.run.events)
    ended = request_times(loop.run)
    assert all(times.finish_reason in ("length", "abort") for times in ended)
    asked = {request.id: request.max_tokens for request in loop.run.submitted}
    for times in ended:
        assert times.output_tokens == asked[times.id] or times.finish_reason == "abort"
    assert count_rows(loop.run.log).kept == sum(times.output_tokens for times in ended)
