"""Paged memory in the loop and the engine: the same tokens, whatever is preempted, shared or aborted."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from helpers.build import POLICIES, ask, events, finish, open_loop, plans, tokens_by_rule, unit_engine
from helpers.tiny import generate, paged_engine, prompt_ids, slot_engine, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from llmserve.blocks import BlockPool
from llmserve.costmodel import CostModel, SimulatedEngine
from llmserve.engine import Engine
from llmserve.kv import PagedCache
from llmserve.life import preemptions
from llmserve.loop import Loop, serve
from llmserve.metrics import output_token_ids
from llmserve.paging import recomputed_tokens
from llmserve.policies import Chunked, Continuous, Mixed, Policy, Static
from llmserve.race import race
from llmserve.request import Request
from llmserve.run import Run

SYSTEM = prompt_ids(18, seed=99)  # two blocks of 8, and a little
SHAPES = [
    (1, 12, 0.0), (2, 20, 0.0), (17, 9, 0.0), (12, 14, 1.0),
    (5, 1, 3.0), (9, 18, 3.5), (24, 6, 9.0), (1, 16, 11.0),
]  # fmt: skip
REQUESTS = [
    Request(
        f"r{i}", (SYSTEM if i % 2 else ()) + prompt_ids(prompt, seed=i), output, at, expected_tokens=output
    )
    for i, (prompt, output, at) in enumerate(SHAPES)
]


@pytest.fixture(scope="module")
def expected() -> dict[str, list[int]]:
    return {request.id: generate(request) for request in REQUESTS}


def first_starts(run: Run) -> dict[str, int]:
    """Where each request's first chunk began: what it found in the cache."""
    return {c.request_id: c.start for step in reversed(run.log) for c in reversed(step.chunks)}


def driven(loop: Loop) -> Run:
    """To the end, with the books checked after every step."""
    loop.close()
    while loop.step():
        loop.pool.check()
    assert loop.pool.free_tokens == loop.pool.total_tokens
    return loop.run


# -- the same tokens -------------------------------------------------------------------------------


@pytest.mark.parametrize("sharing", [True, False], ids=["sharing", "alone"])
@pytest.mark.parametrize(
    ("block_size", "num_blocks"), [(1, 64), (1, 150), (4, 16), (8, 8), (8, 13), (16, 4), (64, 2)]
)
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_every_policy_gives_the_same_tokens_in_any_memory(
    policy: type[Policy], block_size: int, num_blocks: int, sharing: bool, expected: dict[str, list[int]]
) -> None:
    engine = paged_engine(num_blocks=num_blocks, block_size=block_size, sharing=sharing)
    run = driven(open_loop(policy(4), REQUESTS, engine))
    assert output_token_ids(run) == expected
    if num_blocks != 13:  # which is too little for some policies only
        assert bool(events(run, "preempt")) == (num_blocks * block_size == 64)


def test_prefixes_are_found_in_those_runs() -> None:
    run = serve(REQUESTS, Continuous(4), paged_engine(num_blocks=30, block_size=8))
    found = {name: start for name, start in first_starts(run).items() if start}
    assert found == {"r3": 16, "r5": 16, "r7": 16}, "r1 was the first with this beginning"


def test_paged_logits_are_the_slot_caches_to_the_last_bits(expected: dict[str, list[int]]) -> None:
    slots, paged = slot_engine(4), paged_engine(4)
    loops = [open_loop(Mixed(4), REQUESTS, engine) for engine in (slots, paged)]
    seen: list[list[Any]] = [[], []]
    for loop, kept in zip(loops, seen, strict=True):
        compute = loop.engine.step

        def step(chunks: list[Any], loop: Loop = loop, kept: list[Any] = kept, compute: Any = compute) -> Any:
            kept.append([x for x in loop.engine.logits(chunks) if x is not None])
            return compute(chunks)

        loop.engine.step = step
        finish(loop)
    compared = 0
    for one, other in zip(*seen, strict=True):
        for a, b in zip(one, other, strict=False):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
            compared += 1
    assert compared > 90


def test_policies_race_on_a_paged_engine_as_on_any_other() -> None:
    network = tiny_model()
    engines = [
        Engine(network, PagedCache(network.config, 40, 4, 64, network.dtype, max_num_seqs=n)) for n in (2, 30)
    ]
    result = race([Continuous(2), Chunked(2, 9)], REQUESTS, engines[0])
    assert not result.errors and set(result.runs) == {"Continuous(2)", "Chunked(2, 9)"}
    with pytest.raises(ValueError, match="30 sequences, the first of 64 tokens, do not fit 160 tokens"):
        race([Continuous(3)], REQUESTS, engines[1])


# -- named cases -----------------------------------------------------------------------------------


def paged(
    num_blocks: int, block_size: int = 16, reserve: int = 0, sharing: bool = True, **more: Any
) -> SimulatedEngine:
    memory = partial(BlockPool, num_blocks, block_size, reserve, sharing)
    return unit_engine(8, 2048, memory=memory, **more)


def test_seven_blocks_for_two_that_grow_to_five_force_a_preemption() -> None:
    requests = [Request(name, (1, 2) * 17, 35, ignore_eos=True) for name in ("A", "B")]
    run = driven(open_loop(Continuous(2), requests, paged(7, sharing=False)))
    [preempted] = [event for event in run.events if event.kind == "preempt"]
    assert (preempted.request_id, preempted.detail) == ("B", "full memory"), "the youngest"
    # Both hold 3 of 7 blocks, full with 48 tokens each: 34 of the prompt and 14 of the output. In the step
    # after that A takes the seventh, and there is none for B.
    assert preempted.time == 15.0
    waits = [event for event in run.events if event.request_id == "B" and event.kind == "admit"]
    assert [event.time for event in waits] == [0.0, 35.0], "it comes back when A is done"
    again = [c for step in run.log for c in step.chunks if c.request_id == "B" and c.kind == "prefill"]
    assert [(c.start, c.num_tokens) for c in again] == [(0, 34), (0, 34 + 15)], "prompt and output so far"


def test_an_engine_livelocked_here_at_its_ninth_token() -> None:
    request = Request("long", tuple(range(1000)), 24, ignore_eos=True)
    run = driven(open_loop(Continuous(4), [request], paged(69)))
    assert len(output_token_ids(run)["long"]) == 24 and not events(run, "preempt")


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_one_block_too_small_is_refused_and_just_large_enough_runs_alone(policy: type[Policy]) -> None:
    request = ask("x", 30, 35)  # 64 tokens of K and V: the last token needs none
    assert events(serve([request], policy(4), paged(3)), "refuse") == ["x"]
    run = driven(open_loop(policy(4), [request], paged(4)))
    assert len(output_token_ids(run)["x"]) == 35 and not events(run, "preempt")


def test_the_refusal_names_the_request_the_limit_and_the_remedy() -> None:
    told = (
        "request 'x': 30 prompt tokens + max_tokens=35 exceed the 49 tokens of a request for which all cache "
        "memory is enough; shorten the prompt, ask for fewer tokens or give the pool more"
    )
    loop = Loop(Continuous(4), paged(3))
    with pytest.raises(ValueError, match=re.escape(told)):
        loop.submit(ask("x", 30, 35))
    assert loop.submit(ask("y", 30, 19)) is None


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_two_that_each_need_all_memory_run_one_after_the_other(policy: type[Policy]) -> None:
    requests = [ask("A", (1,) * 10, 39), ask("B", (2,) * 10, 39)]
    run = driven(open_loop(policy(2), requests, paged(3, sharing=False)))
    assert events(run, "finish") == ["A", "B"]
    assert events(run, "preempt") == ["B"], "once: it needs more than it gave up, and so it waits"


def test_who_is_last_by_key_goes_not_who_came_last() -> None:
    requests = [
        Request("A", (1,) * 16, 33, priority=5, ignore_eos=True),
        Request("B", (2,) * 16, 33, priority=1, ignore_eos=True),
    ]
    policy = Mixed(2, key=lambda sequence: sequence.request.priority)
    run = driven(open_loop(policy, requests, paged(5, sharing=False)))
    assert set(events(run, "preempt")) == {"A"} and events(run, "finish") == ["B", "A"]


def test_a_prompt_of_exactly_some_blocks() -> None:
    run = driven(open_loop(Mixed(1), [ask("A", (3,) * 32, 2), ask("B", (3,) * 32, 2)], paged(6)))
    assert first_starts(run) == {"A": 0, "B": 16}, "its last block again: one token has to be computed"


def test_prompts_that_share_all_but_the_last_token() -> None:
    requests = [ask("A", (*range(32), 40), 1), ask("B", (*range(32), 41), 1)]
    run = driven(open_loop(Mixed(1), requests, paged(6)))
    assert first_starts(run) == {"A": 0, "B": 32}


def test_recomputation_finds_its_own_blocks_unless_they_have_been_taken() -> None:
    requests = [Request(name, (token,) * 34, 35, ignore_eos=True) for name, token in (("A", 1), ("B", 2))]
    run = driven(open_loop(Continuous(2), requests, paged(7)))
    back = [c for step in run.log for c in step.chunks if c.request_id == "B" and c.kind == "prefill"]
    # Three full blocks were kept. A grows from four to five, and takes the last of them.
    assert [(c.start, c.num_tokens) for c in back] == [(0, 34), (32, 34 + 15 - 32)]


def test_zombies_hold_their_blocks_and_write_to_none() -> None:
    requests = [ask("A", SYSTEM[:17], 1), ask("B", prompt_ids(4, 1), 9), ask("C", SYSTEM[:17], 4, at=2.0)]
    engine = paged_engine(num_blocks=8, block_size=8)
    run = driven(open_loop(Static(2), requests, engine))
    assert any(c.kind == "zombie" for step in run.log for c in step.chunks)
    assert first_starts(run)["C"] == 16
    assert output_token_ids(run) == {request.id: generate(request) for request in requests}


def test_a_spoiled_block_is_cleared_for_whoever_takes_it_next() -> None:
    engine = paged_engine(num_blocks=4, block_size=8)
    cache = engine.cache
    cache.spoil([(0, 2)])
    cache.k[:, 0], cache.v[:, 2] = torch.nan, torch.nan
    requests = [ask("A", prompt_ids(9, 1), 15)]
    run = driven(open_loop(Mixed(1), requests, engine))
    assert output_token_ids(run)["A"] == generate(requests[0])
    assert not cache.k.isnan().any()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"num_blocks": 0}, "num_blocks=0"),
        ({"block_size": 0}, "block_size=0"),
        ({"max_model_len": 65}, "max_model_len=65: the model knows positions for 1 to 64"),
        ({"attention": "loop"}, "attention='loop': choose one of gathered, streamed"),
        ({"attention": "streamed", "dtype": torch.float64}, "use 'gathered'"),
    ],
)
def test_a_cache_that_cannot_be_made_is_refused(wrong: dict[str, Any], told: str) -> None:
    config = paged_engine().model.config
    with pytest.raises(ValueError, match=told):
        PagedCache(config, **{"num_blocks": 4, **wrong})


# -- any workload ----------------------------------------------------------------------------------


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Request], Policy, SimulatedEngine, list[tuple[int, int]]]:
    block_size = draw(st.sampled_from([1, 2, 4, 16]))
    requests = []
    for i in range(draw(st.integers(1, 9))):
        shared, own = draw(st.integers(0, 12)), draw(st.lists(st.integers(0, 2), min_size=1, max_size=8))
        output, at = draw(st.integers(1, 14)), draw(st.sampled_from([0.0, 0.0, 1.0, 2.5, 9.0]))
        priority = draw(st.integers(0, 2))
        requests.append(
            Request(
                f"r{i}", (7,) * shared + tuple(own), output, at, priority=priority, expected_tokens=output
            )
        )
    num_blocks = draw(st.integers(1, 5)) + (20 // block_size)
    memory = partial(BlockPool, num_blocks, block_size, draw(st.integers(0, 3)), draw(st.booleans()))
    engine = SimulatedEngine(8, 64, CostModel(overhead=1.0), vocab_size=13, eos_token_id=3, memory=memory)
    policy = POLICIES[draw(st.sampled_from(sorted(POLICIES)))](draw(st.integers(1, 6)))
    policy.key = draw(st.sampled_from([policy.key, lambda sequence: sequence.request.priority]))
    return (
        requests,
        policy,
        engine,
        draw(st.lists(st.tuples(st.integers(0, 25), st.integers(0, 8)), max_size=3)),
    )


@given(worlds())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_everyone_ends_once_with_its_own_tokens_and_all_blocks_come_back(world: Any) -> None:
    requests, policy, engine, aborts = world
    loop = Loop(policy, engine)
    for request in requests:
        if len(request.prompt_token_ids) + request.max_tokens <= loop.pool.longest:
            loop.submit(request)
        else:
            with pytest.raises(ValueError, match="all cache memory"):
                loop.submit(request)
    loop.close()
    gone = set()
    for number in range(2000):
        for _, who in [abort for abort in aborts if abort[0] == number]:
            if any(request.id == f"r{who}" for request in loop.run.submitted) and loop.abort(f"r{who}"):
                gone.add(f"r{who}")
        if loop.step() is None:
            break
        loop.pool.check()
        last = loop.run.log[-1]
        assert 0 <= last.used_tokens <= last.reserved_tokens <= loop.pool.total_tokens
        assert loop.pool.free_tokens + loop.pool.reserved_tokens == loop.pool.total_tokens
    else:
        raise AssertionError("2,000 steps and no end")
    assert (loop.running, loop.waiting, loop.future) == ([], [], [])
    assert loop.pool.free_tokens == loop.pool.total_tokens
    ends = Counter(event.request_id for event in loop.run.events if event.kind in ("finish", "abort"))
    assert ends == {request.id: 1 for request in loop.run.submitted}
    for name, tokens in output_token_ids(loop.run).items():
        [request] = [request for request in requests if request.id == name]
        alone = tokens_by_rule(request, 13, 3)
        assert tokens == (alone[: len(tokens)] if name in gone else alone)
    again = sum(recomputed_tokens(loop.run).values())
    assert sum(one.tokens for one in preemptions(loop.run)) == again, "the price of each, and of all"


@given(worlds())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_simulated_run_in_blocks_is_the_same_when_run_again(world: Any) -> None:
    requests, policy, engine, _ = world
    assert repr(serve(requests, policy, engine)) == repr(serve(requests, policy, engine))


def test_a_plan_may_list_first_who_is_preempted_for_what_follows() -> None:
    class LastFirst(Mixed):
        def compose(self, running: list[Any]) -> list[Any]:
            return super().compose(running)[::-1]

    requests = [ask("A", (1,) * 4, 6), ask("B", (2,) * 3, 6)]
    run = driven(open_loop(LastFirst(2), requests, paged(5, block_size=2, sharing=False)))
    assert events(run, "preempt")[0] == "B"
    dropped = next(i for i, step in enumerate(run.log) if [c.request_id for c in step.chunks] == ["A"])
    assert plans(run)[dropped][0][0] == "A"


def test_two_caches_of_one_size_may_lie_in_the_same_memory_and_take_turns(
    expected: dict[str, list[int]],
) -> None:
    slots, paged = slot_engine(4), paged_engine(4)
    paged.cache.lie_in(slots.cache)
    assert paged.cache.k.data_ptr() == slots.cache.k.data_ptr()
    for engine in (slots, paged, slots, paged):
        assert output_token_ids(serve(REQUESTS, Mixed(4), engine)) == expected
    with pytest.raises(ValueError, match="make both caches of one size and dtype"):
        paged_engine(3).cache.lie_in(slots.cache)
