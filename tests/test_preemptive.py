"""A slot is taken back only where everybody gains by it, nobody plays ping-pong, the log tells the price."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.build import ask, events, lanes, tokens_by_rule, unit_engine
from helpers.tiny import generate, prompt_ids, slot_engine
from hypothesis import given, settings
from hypothesis import strategies as st

from llmserve.costmodel import CostModel, SimulatedEngine
from llmserve.life import Preemption, preemptions
from llmserve.loop import serve
from llmserve.metrics import latency, output_token_ids, request_times
from llmserve.policies import (
    Chunked,
    Continuous,
    ShortestRemaining,
    aged,
    by_priority,
    first_come,
    shortest_first,
    shortest_remaining,
)
from llmserve.request import Request, Sequence
from llmserve.run import Run
from llmserve.workload import CONVOY, guessed

SETTINGS = settings(max_examples=300, deadline=None, derandomize=True)
LONG = [ask("A", 1, 12), ask("B", 1, 14)]


def preempted(requests: list[Request], tokens_per_step: float = 4, slots: int = 2) -> list[str]:
    return events(serve(requests, ShortestRemaining(slots, tokens_per_step), unit_engine(slots)), "preempt")


# -- when a slot is taken back ---------------------------------------------------------------------


def test_the_longest_to_go_makes_room_for_who_is_done_before_anybody_else() -> None:
    requests = [*LONG, ask("C", 1, 3, at=2.5)]
    assert lanes(serve(requests, Continuous(2, key=shortest_first), unit_engine(2))) == [
        "AAAAAAAAAAAACCC",
        "BBBBBBBBBBBB BB",
    ]
    # At 3 s A has 9 steps left and B 11, of which 3 tokens are computed: 3 steps for C + 3/4 < 9.
    run = serve(requests, ShortestRemaining(2, 4), unit_engine(2))
    assert lanes(run) == [
        "AAA AA AAAAAAA",
        "BBBCCCBBBBBBBBBBB",
    ]
    assert preemptions(run) == [Preemption("B", "C", time=3.0, tokens=3, seconds=0.75, gain=11.0)]


@pytest.mark.parametrize(
    ("comer", "tokens_per_step", "out"),
    [
        # At 3 s, as above: A has 9 steps left, B 11 with 3 tokens computed.
        (ask("C", 1, 8, at=2.5), 4, ["B"]),  # 8 + 3/4 < 9
        (ask("C", 1, 8, at=2.5), 3, []),  # 8 + 3/3: as late as A, and nothing is won
        (ask("C", 1, 9, at=2.5), math.inf, []),
        (ask("C", 10, 3, at=2.5), 4, ["B"]),  # its own prompt counts too: 9/4 + 3 + 3/4 < 9
        (ask("C", 10, 3, at=2.5), 2, []),  # 9/2 + 3 + 3/2 = 9
    ],
)
def test_the_newcomers_work_and_the_price_must_be_over_before_anybody_else_is(
    comer: Request, tokens_per_step: float, out: list[str]
) -> None:
    assert preempted([*LONG, comer], tokens_per_step) == out


def test_nobody_is_thrown_out_while_a_slot_is_free_or_soon_will_be() -> None:
    assert preempted([*LONG, ask("C", 1, 3, at=2.5)], slots=3) == []
    assert preempted([*LONG, ask("S", 1, 4), ask("C", 1, 3, at=1.5)], slots=3) == [], "S is done in 2 steps"


def test_each_newcomer_is_let_in_by_one_slot_and_one_slot_only() -> None:
    comers = [ask("C", 1, 2, at=2.5), ask("D", 1, 3, at=2.5)]
    assert preempted([*LONG, *comers], slots=3) == ["B"], "C has the free slot, D takes B's"
    run = serve([*LONG, ask("L", 1, 20), *comers], ShortestRemaining(3, 4), unit_engine(3))
    # Both slots are free at 3 s, and C, the first, takes the lower one. It is done at 5 s, and D at 7, since
    # B's return stops it for a step. Without its own preemption each would have waited for the other.
    found = [(one.request_id, one.winner, one.gain) for one in preemptions(run)]
    assert found == [("L", "D", 2.0), ("B", "C", 4.0)]


def test_who_outlived_its_hint_is_about_to_be_done_and_stays() -> None:
    late = [replace(one, expected_tokens=2) for one in LONG]
    assert preempted([*late, ask("C", 1, 1, at=4.5)]) == []


def test_its_order_is_its_own_unless_a_key_is_given_and_then_both_must_agree() -> None:
    requests = [*LONG, ask("C", 1, 3, at=2.5, priority=1)]
    for key, out in ((None, ["B"]), (aged(shortest_first, 1), ["B"]), (first_come, []), (by_priority(9), [])):
        run = serve(requests, ShortestRemaining(2, 4, key=key), unit_engine(2))
        assert events(run, "preempt") == out


def test_ageing_bounds_the_wait_of_who_is_thrown_out_too() -> None:
    stream = [ask(f"s{i}", 1, 3, at=3.0 * i + 1) for i in range(60)]
    starved, aged_run = (
        serve([ask("L", 1, 20), *stream], ShortestRemaining(1, 8, key=key), unit_engine(1))
        for key in (None, aged(shortest_first, 1.0))
    )
    assert events(starved, "finish")[-1] == "L"
    # The last that is ahead of it is the one whose arrival + 3 is below 0 + 20.
    order = events(aged_run, "finish")
    assert order[: order.index("L")] == [f"s{i}" for i in range(6)]


def test_it_takes_its_slots_back_on_top_of_another_policy_too() -> None:
    class InSlices(ShortestRemaining, Chunked):
        def __init__(self, max_num_seqs: int, budget: int) -> None:
            Chunked.__init__(self, max_num_seqs, budget, key=shortest_remaining(budget))
            self.tokens_per_step = budget

    run = serve([*LONG, ask("C", 9, 3, at=2.5)], InSlices(2, 4), unit_engine(2))
    assert events(run, "preempt") == ["B"]
    assert max(sum(chunk.num_tokens for chunk in step.chunks) for step in run.log) == 4


def test_its_name_says_its_price() -> None:
    assert repr(ShortestRemaining(8, 32)) == (
        "ShortestRemaining(max_num_seqs=8, key=shortest_remaining(32), tokens_per_step=32)"
    )
    with pytest.raises(ValueError, match="tokens_per_step=0: give the prompt tokens"):
        ShortestRemaining(8, 0)


# -- no ping-pong ----------------------------------------------------------------------------------

KEYS: list[Callable[[Sequence], Any] | None] = [
    None, first_come, shortest_first, by_priority(2.0), by_priority(math.inf), aged(shortest_first, 0.5),
    aged(shortest_remaining(3), 2.0),
]  # fmt: skip


@st.composite
def crowds(draw: st.DrawFn) -> tuple[list[Request], ShortestRemaining, CostModel]:
    """Requests in a hurry, some with wrong hints, under a policy whose prices need not be the engine's."""
    shapes = st.tuples(st.integers(1, 20), st.integers(1, 30), st.integers(0, 60), st.integers(1, 40))
    requests = [
        ask(
            f"r{i}",
            prompt,
            output,
            at / 2,
            priority=i % 3,
            expected_tokens=draw(st.sampled_from([output, hint])),
        )
        for i, (prompt, output, at, hint) in enumerate(draw(st.lists(shapes, max_size=14)))
    ]
    policy = ShortestRemaining(
        draw(st.integers(1, 4)),
        draw(st.sampled_from([0.5, 3, 30, math.inf])),
        key=draw(st.sampled_from(KEYS)),
    )
    return requests, policy, draw(st.sampled_from([CostModel(1.0), CostModel(weights=0.5, per_token=0.1)]))


def check_swaps(run: Run) -> list[Preemption]:
    """Each lets one newcomer in, so nobody takes a slot twice, or one from whoever took its own."""
    found, entered = preemptions(run), {}
    for event in run.events:
        if event.kind == "admit":
            entered.setdefault(event.request_id, event.time)
    assert all(one.winner and entered[one.winner] == one.time for one in found), "only who never ran before"
    winners = [one.winner for one in found]
    assert len(set(winners)) == len(winners), "each at most once"
    pairs = {(one.winner, one.request_id) for one in found}
    assert not {(loser, winner) for winner, loser in pairs} & pairs, "never both ways"
    return found


@given(crowds())
@SETTINGS
def test_a_slot_is_taken_only_by_who_never_ran_so_there_is_no_ping_pong(
    crowd: tuple[list[Request], ShortestRemaining, CostModel],
) -> None:
    requests, policy, cost = crowd
    run = serve(requests, policy, SimulatedEngine(policy.max_num_seqs, 64, cost))
    check_swaps(run)
    assert len(events(run, "preempt")) <= len(requests)
    assert sorted(events(run, "finish")) == sorted(request.id for request in requests)
    computed = sum(chunk.num_tokens for step in run.log for chunk in step.chunks)
    needed = sum(len(request.prompt_token_ids) + request.max_tokens - 1 for request in requests)
    assert computed == needed + sum(one.tokens for one in preemptions(run)), "the price is all that is extra"


def test_the_property_is_not_about_nothing() -> None:
    found = []
    for seed in range(5):
        workload = CONVOY.with_(seed=seed, num_requests=120, queued=20)
        engine = SimulatedEngine(4, 192, CostModel(weights=0.03, per_token=0.001))
        for sigma in (0.0, 2.0):
            requests = guessed(workload.requests(0.03), sigma)
            found += check_swaps(serve(requests, ShortestRemaining(4, 30), engine))
    assert len(found) > 50


# -- promises --------------------------------------------------------------------------------------


def test_tokens_are_those_of_first_come_and_the_short_ones_get_theirs_sooner() -> None:
    engine = SimulatedEngine(4, 192, CostModel(weights=0.03, per_token=0.001))
    requests = CONVOY.requests(0.03)
    plain, taken = (serve(requests, policy, engine) for policy in (Continuous(4), ShortestRemaining(4, 30)))
    assert len(events(taken, "preempt")) >= 3
    assert output_token_ids(taken) == output_token_ids(plain)
    assert output_token_ids(taken) == {r.id: tokens_by_rule(r, engine.vocab_size) for r in requests}
    short = [latency([r for r in request_times(run) if r.output_tokens < 128]) for run in (plain, taken)]
    assert short[1].ttft_p50 < short[0].ttft_p50 / 4 and short[1].ttft_max < short[0].ttft_max


@pytest.mark.parametrize("attention", ["loop", "batched"])
def test_the_real_engine_gives_who_was_thrown_out_the_tokens_it_gets_alone(attention: str) -> None:
    shapes = [(5, 20, 0.0), (9, 24, 0.0), (3, 22, 0.0), (4, 2, 2.5), (7, 3, 6.0), (2, 2, 9.0), (6, 4, 14.0)]
    requests = [
        Request(f"r{i}", prompt_ids(prompt, seed=i), output, at, True, expected_tokens=output)
        for i, (prompt, output, at) in enumerate(shapes)
    ]
    run = serve(requests, ShortestRemaining(2, 8), slot_engine(2, torch.float64, attention=attention))
    assert len(events(run, "preempt")) >= 2
    assert output_token_ids(run) == {request.id: generate(request) for request in requests}
