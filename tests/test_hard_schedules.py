"""Schedules that broke other engines: budgets, slots, last batches, odd arrivals, policies that go wrong."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from helpers.build import POLICIES, ask, events, finish, lanes, open_loop, plans, tokens_by_rule, unit_engine
from helpers.tiny import VOCAB, prompt_ids, slot_engine, tiny_model
from helpers.worlds import BATCHED, LOOP, SIMULATED, World, assert_as_alone, every_world

from llmserve.costmodel import SimulatedEngine
from llmserve.kv import CatCache, SlotCache
from llmserve.loop import PolicyError, serve
from llmserve.metrics import output_token_ids, request_times, summarise
from llmserve.policies import Bucketed, Chunked, Continuous, Dynamic, Mixed, Static
from llmserve.pool import SlotPool
from llmserve.request import Request

every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)

# -- 4. prompts at and over the budget -------------------------------------------------------------


@every_world
@pytest.mark.parametrize("prompt", [7, 8, 9, 24])
def test_a_prompt_at_or_over_the_budget_is_cut_not_stuck(world: World, prompt: int) -> None:
    request = Request("A", prompt_ids(prompt, seed=prompt), 3)
    run = serve([request], Chunked(2, 8), world.engine(2))
    sizes = [plan[0][2] for plan in plans(run)]
    full, rest = divmod(prompt, 8)
    assert sizes == [8] * full + [rest] * (rest > 0) + [1, 1]
    assert_as_alone(run, [request], world)


@every_world
def test_a_budget_of_one_computes_one_token_a_step(world: World) -> None:
    requests = [Request("A", prompt_ids(5, seed=1), 3), Request("B", prompt_ids(2, seed=2), 2)]
    run = serve(requests, Chunked(1, 1), world.engine(1))
    assert [sum(n for *_, n in plan) for plan in plans(run)] == [1] * (5 + 2 + 2 + 1)
    assert_as_alone(run, requests, world)


@pytest.mark.parametrize("budget", [0, -1, 7, 8.0, None, "8", True])
def test_a_budget_that_cannot_give_every_decode_its_token_is_refused(budget: Any) -> None:
    with pytest.raises(ValueError, match=rf"max_num_batched_tokens={budget!r}: .* at least max_num_seqs=8"):
        Chunked(8, budget)


# -- 5. slots --------------------------------------------------------------------------------------


@every_world
@every_policy
def test_with_one_slot_requests_run_one_after_the_other(world: World, policy: Any) -> None:
    requests = [ask(f"r{i}", prompt_ids(4 + i, seed=i), 3) for i in range(4)]
    run = serve(requests, policy(1), world.engine(3))
    assert all(len(step.chunks) == 1 for step in run.log)
    order = [step.chunks[0].request_id for step in run.log]
    assert order == sorted(order), "none was prefilled before its turn"
    assert_as_alone(run, requests, world)


@pytest.mark.parametrize("slots", [0, -1, 2.5, None, "8", True], ids=repr)
def test_no_slots_are_refused_by_policies_pools_caches_and_simulators(slots: Any) -> None:
    for policy in POLICIES.values():
        with pytest.raises((ValueError, TypeError)):
            policy(slots)
    with pytest.raises(ValueError, match=f"max_num_seqs={slots!r}: a batch needs a whole number"):
        Static(slots)
    with pytest.raises(ValueError, match=f"num_slots={slots!r}: a pool needs a whole number"):
        SlotPool(slots, 16)
    with pytest.raises(ValueError, match=f"num_slots={slots!r}"):
        SimulatedEngine(slots, 16).new_pool()
    for cache in (SlotCache, CatCache):
        with pytest.raises(ValueError, match=f"num_slots={slots!r}: a cache needs a whole number"):
            cache(tiny_model().config, slots, 16)


def test_numbers_of_slots_may_be_numpys() -> None:
    assert repr(Chunked(np.int64(2), np.int32(8))) == repr(Chunked(2, 8))


@pytest.mark.parametrize(
    "world", (SIMULATED, BATCHED, LOOP), ids=lambda world: world.name
)  # blocks have no slots
@every_policy
@pytest.mark.parametrize(("asked", "there"), [(4, 2), (2, 4), (9, 9)], ids=str)
def test_policy_and_engine_may_disagree_on_slots_and_the_smaller_number_holds(
    world: World, policy: Any, asked: int, there: int
) -> None:
    requests = [ask(f"r{i}", prompt_ids(3, seed=i), 2 + i % 3, at=0.5 * i) for i in range(7)]
    run = serve(requests, policy(asked), world.engine(there))
    assert max(len(step.chunks) for step in run.log) <= min(asked, there)
    assert max(step.reserved_tokens for step in run.log) <= min(asked, there) * 64
    assert_as_alone(run, requests, world)


# -- 6. a long prompt beside a decode --------------------------------------------------------------


@every_world
def test_chunked_lets_no_decode_skip_a_step_while_a_long_prompt_is_computed(world: World) -> None:
    short = Request("A", prompt_ids(2, seed=1), 12)
    long = Request("B", prompt_ids(40, seed=2), 2, arrival_time=1.5)
    run = serve([short, long], Chunked(2, 8), world.engine(2))
    for plan in plans(run)[1:12]:
        assert plan[0][0] == "A", "the decode is in every step, and first"
    assert [plan[1][2] for plan in plans(run)[2:8]] == [7, 7, 7, 7, 7, 5]
    assert request_times(run)[0].gaps == [1.0] * 11
    assert_as_alone(run, [short, long], world)
    blocked = serve([short, long], Continuous(2), world.engine(2))
    assert max(request_times(blocked)[0].gaps) == 2.0, "prefill-first: one step without it"


# -- 7. the shortest outputs -----------------------------------------------------------------------


@every_world
@every_policy
def test_one_token_takes_one_step_has_no_tpot_and_frees_its_slot_for_the_next_step(
    world: World, policy: Any
) -> None:
    requests = [ask("A", prompt_ids(3, seed=1), 1), ask("B", prompt_ids(2, seed=2), 1)]
    run = serve(requests, policy(1), world.engine(1))
    assert lanes(run) in (["AB"], ["BA"])  # an oracle of prompts takes the shorter one first
    assert [times.tpot for times in request_times(run)] == [None, None]
    assert [times.gaps for times in request_times(run)] == [[], []]
    assert_as_alone(run, requests, world)


@pytest.mark.parametrize("world", ["simulated", "real"])
@pytest.mark.parametrize(("at", "reason"), [(1, "stop"), (2, "stop"), (4, "stop"), (None, "length")])
@every_policy
def test_the_end_of_sequence_token_ends_a_request_even_as_its_first_or_with_its_last(
    policy: Any, world: str, at: int | None, reason: str
) -> None:
    request = ask("A", prompt_ids(6, seed=4), 4, ignore_eos=False)
    engines = {"simulated": lambda eos: unit_engine(2, vocab_size=VOCAB, eos_token_id=eos),
               "real": lambda eos: slot_engine(2, eos=eos)}  # fmt: skip
    free = output_token_ids(serve([request], Static(1), engines[world](None)))["A"]
    assert len(set(free)) == 4, "each token comes once, so that it can be the end"
    run = serve([request], policy(2), engines[world](free[at - 1] if at else None))
    assert output_token_ids(run)["A"] == free[:at]
    assert [times.finish_reason for times in request_times(run)] == [reason]


# -- 10. arrivals ----------------------------------------------------------------------------------

TIMES = {
    "all at once": [0.0] * 6,
    "all at one later instant": [7.25] * 6,
    "out of order": [5.0, 0.5, 9.0, 0.5, 3.0, 0.0],
    "in the far future": [1e6 + i for i in (0, 0.5, 2, 0, 40, 1e6)],
    "beyond what a second can be added to": [1e300] * 6,
}


@every_world
@every_policy
@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES)
def test_whenever_requests_arrive_each_is_served_once_and_none_before_its_time(
    world: World, policy: Any, times: list[float]
) -> None:
    requests = [ask(f"r{i}", prompt_ids(2 + i, seed=i), 3, at=at) for i, at in enumerate(times)]
    run = serve(requests, policy(2), world.engine(2))
    assert len(run.log) <= 6 * 5, "the run jumps over the time in which nothing happens"
    assert run.log[0].start >= min(times)
    assert all(one.admitted >= one.arrival for one in request_times(run))
    assert_as_alone(run, requests, world)


@every_policy
@pytest.mark.parametrize("at", [math.nan, math.inf, -math.inf, -1e-9])
def test_an_arrival_at_no_time_is_refused(policy: Any, at: float) -> None:
    run = serve([ask("bad", at=at), ask("A", 2, 2)], policy(2), unit_engine(2))
    assert events(run, "refuse") == ["bad"] and events(run, "finish") == ["A"]


@every_world
@every_policy
def test_no_request_is_a_run_without_steps_and_one_is_a_batch(world: World, policy: Any) -> None:
    nothing = serve([], policy(4), world.engine(4))
    assert (nothing.log, nothing.events, summarise(nothing).n) == ([], [], 0)
    one = ask("A", prompt_ids(5, seed=1), 4)
    assert_as_alone(serve([one], policy(4), world.engine(4)), [one], world)


# -- 11. batches that never fill, and policies that go wrong ---------------------------------------


@every_policy
def test_a_last_batch_that_never_fills_runs_once_no_more_can_come(policy: Any) -> None:
    loop = open_loop(policy(4), [ask(f"r{i}", 2, 2) for i in range(5)])
    assert len(events(finish(loop), "finish")) == 5


@pytest.mark.parametrize("policy", [Static(3), Dynamic(3, math.inf), Bucketed(3)], ids=repr)
def test_a_batch_waits_for_its_last_member_as_long_as_one_is_announced(policy: Any) -> None:
    run = serve([ask("A", 2, 2), ask("B", 2, 2), ask("C", 2, 2, at=1e5)], policy, unit_engine(3))
    assert run.log[0].start == 1e5


def test_dynamic_without_patience_starts_at_once() -> None:
    run = serve([ask("A", 2, 2), ask("B", 2, 2, at=0.5)], Dynamic(3, 0), unit_engine(3))
    assert lanes(run) == ["AABB"]


@pytest.mark.parametrize("max_wait", [-1, math.nan, "soon", None])
def test_a_wait_that_is_no_time_is_refused(max_wait: Any) -> None:
    with pytest.raises(ValueError, match=f"max_wait={max_wait!r}: give seconds"):
        Dynamic(2, max_wait)


def test_bucketed_with_equal_lengths_is_static() -> None:
    requests = [ask(f"r{i}", 2, 3, at=0.4 * i) for i in range(9)]
    bucketed, static = (serve(requests, policy(2), unit_engine(2)) for policy in (Bucketed, Static))
    assert bucketed.log == static.log


def test_bucketed_does_not_let_a_huge_outlier_wait_for_ever() -> None:
    first = [ask(f"first{i}", 2, 2) for i in range(4)]
    later = [ask(f"later{i}", 2, 2, at=0.6 * i + 0.6) for i in range(60)]
    run = serve([*first, ask("huge", 2, 60, at=0.5), *later], Bucketed(2), unit_engine(2))
    before = events(run, "admit")[: events(run, "admit").index("huge")]
    assert sorted(before)[:4] == [one.id for one in first] and len(before) <= 5, "it is the oldest then"


def answer(**methods: Any) -> Continuous:
    return type("Mine", (Continuous,), methods)(2)


WRONG = {
    "forgot to return": (
        answer(admit=lambda self, *_: None),
        "admit returned None; return a list of sequences",
    ),
    "a generator": (
        answer(admit=lambda self, waiting, *_: (s for s in waiting)),
        "admit returned <generator",
    ),
    "ids for sequences": (
        answer(admit=lambda self, waiting, *_: [s.id for s in waiting[:1]]),
        "admit named 'A', which is no sequence",
    ),
    "compose forgot": (
        answer(compose=lambda self, running: None),
        r"compose returned None; return a list of \(sequence, number of tokens\) pairs",
    ),
    "no pairs": (answer(compose=lambda self, running: running), "compose returned .*pairs"),
    "half a token": (
        answer(compose=lambda self, running: [(running[0], 1.5)]),
        "compose gave 'A' 1.5 tokens; it can take a whole number, 1 to 3",
    ),
    "release forgot": (answer(release=lambda self, *_: None), "release returned None"),
    "no time": (
        answer(admit=lambda self, *_: [], wake_at=lambda self, waiting: None),
        "wake_at returned None; return seconds, math.inf for never",
    ),
    "not a time": (
        answer(admit=lambda self, *_: [], wake_at=lambda self, waiting: math.nan),
        "wake_at returned nan",
    ),
}


@pytest.mark.parametrize(("policy", "words"), WRONG.values(), ids=WRONG)
def test_an_answer_of_the_wrong_kind_is_named_with_the_right_one(policy: Any, words: str) -> None:
    with pytest.raises(PolicyError, match=rf"Mine\(max_num_seqs=2\) at step \d+, t=[01] s: {words}"):
        serve([ask("A", 3, 4), ask("B", 2, 2)], policy, unit_engine(2))


class Hasty(Chunked):
    """Throws everyone out after every step: no prompt of more than one chunk ever ends."""

    def release(self, running: list, waiting: list, now: float) -> list:
        return running


@every_world
def test_preempting_for_ever_is_an_error_and_no_livelock(world: World) -> None:
    long = Request("A", prompt_ids(9, seed=1), 4)
    with pytest.raises(PolicyError, match="release threw out 'A' 101 times while no request got a token"):
        serve([long], Hasty(2, 4), world.engine(2))
    short = Request("B", prompt_ids(2, seed=2), 2)  # fits the budget: each time it comes back with a token
    run = serve([short], Hasty(2, 4), world.engine(2))
    assert_as_alone(run, [short], world)


def test_mixed_cannot_be_starved_by_newcomers() -> None:
    requests = [ask("A", 2, 30), *[ask(f"r{i}", 20, 1, at=float(i)) for i in range(1, 29)]]
    run = serve(requests, Mixed(2), unit_engine(2))
    assert request_times(run)[0].gaps == [1.0] * 29
    assert output_token_ids(run)["A"] == tokens_by_rule(requests[0], 50257)
