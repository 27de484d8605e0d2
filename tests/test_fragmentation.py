"""Allocators on schedules worked by hand, and conservation on real ones."""

from __future__ import annotations

from functools import partial

import pytest
from helpers.build import POLICIES

from llmserve.costmodel import CostModel, SimulatedEngine
from llmserve.fragmentation import Blocks, FirstFit, Slots, Stay, replay, stays
from llmserve.loop import serve
from llmserve.policies import Chunked, Continuous, Static
from llmserve.request import Request
from llmserve.run import Run
from llmserve.workload import HEADLINE


def run_of(policy, shapes: list[tuple[int, int, float]], slots: int = 2) -> Run:
    requests = [Request(f"r{i}", [0] * p, n, at, True) for i, (p, n, at) in enumerate(shapes)]
    return serve(requests, policy, SimulatedEngine(slots, 64, CostModel(overhead=1.0)))


def stay(name: str, need: int, tokens: int = 1) -> Stay:
    return Stay(name, 0, [tokens], need)


def test_a_stay_grows_by_a_token_a_step_and_counts_its_stalls() -> None:
    run = run_of(Continuous(2), [(3, 4, 0.0), (5, 2, 1.5)])
    first, second = stays(run)
    # Steps: prompt r0, decode, prompt r1 (r0 stalls), two decodes.
    assert (first.first, first.tokens, first.need) == (0, [3, 4, 4, 5, 6], 7)
    assert (second.first, second.tokens, second.last) == (2, [5, 6], 3)


def test_a_zombie_stays_and_does_not_grow() -> None:
    short = stays(run_of(Static(2), [(2, 1, 0.0), (2, 4, 0.0)]))[0]
    assert short.tokens == [2, 2, 2, 2]


def test_a_prompt_in_slices_grows_slice_by_slice() -> None:
    long = stays(run_of(Chunked(2, 4), [(10, 2, 0.0)]))[0]
    assert long.tokens == [4, 8, 10, 11]


def test_slots_hold_one_each_whatever_the_need() -> None:
    pool = Slots(total=20, slot=10)
    assert pool.enter(stay("a", 2)) and pool.enter(stay("b", 10))
    assert pool.reserved == 20 and not pool.enter(stay("c", 1))
    pool.leave(stay("a", 2))
    assert pool.reserved == 10 and not pool.enter(stay("d", 11))


def test_first_fit_takes_the_first_gap_that_is_large_enough() -> None:
    pool = FirstFit(total=20)
    for name, need in (("a", 5), ("b", 5), ("c", 5)):
        assert pool.enter(stay(name, need))
    pool.leave(stay("a", 5))
    assert pool.reserved == 10
    assert not pool.enter(stay("d", 6))  # 10 are free, in two gaps of 5
    assert pool.enter(stay("e", 4)) and pool.pieces["e"] == (0, 4)
    pool.leave(stay("b", 5))
    assert pool.enter(stay("f", 6)) and pool.pieces["f"] == (4, 6)
    assert pool.enter(stay("g", 5)) and pool.pieces["g"] == (15, 5)


def test_blocks_round_up_and_grow_one_at_a_time() -> None:
    pool = Blocks(total=12, block=4)
    assert pool.enter(stay("a", 9, tokens=3)) and pool.reserved == 4
    assert pool.grow(stay("a", 9), 4) and pool.reserved == 4
    assert pool.grow(stay("a", 9), 5) and pool.reserved == 8
    assert pool.enter(stay("b", 4, tokens=4)) and pool.reserved == 12
    assert not pool.grow(stay("a", 9), 9) and pool.held == {"a": 2, "b": 1}  # nothing has changed
    pool.leave(stay("b", 4))
    assert pool.grow(stay("a", 9), 9) and pool.reserved == 12


def test_refusals_tell_lack_of_memory_from_lack_of_one_piece() -> None:
    # Three enter together, the middle one stays; then one comes that needs both gaps.
    shapes = [(4, 2, 0.0), (4, 12, 0.0), (4, 2, 0.0), (9, 2, 4.0)]
    run = run_of(Continuous(3), shapes, slots=3)
    apart = replay(run, partial(FirstFit, 28))  # 6 + 16 + 6; the gaps are 6 and 6
    assert apart.refused == ["r3"] and apart.despite_room == ["r3"]
    assert replay(run, partial(FirstFit, 33)).refused == []
    small = replay(run, partial(FirstFit, 22))
    assert small.refused == ["r2", "r3"] and small.despite_room == []
    assert replay(run, partial(Blocks, 28, block=1)).refused == []


def test_who_cannot_grow_is_ousted_and_its_memory_is_free_again() -> None:
    run = run_of(Continuous(2), [(2, 6, 0.0), (2, 6, 0.0)])
    tight = replay(run, partial(Blocks, 8, block=1))
    assert tight.ousted == ["r0"] and tight.refused == []
    assert max(tight.reserved) == 8 and tight.reserved[-1] == tight.used[-1] == 7


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_the_replay_uses_what_the_run_used(policy) -> None:
    workload = HEADLINE.with_(num_requests=20)
    clock = SimulatedEngine(4, 416, CostModel(weights=0.03, per_token=0.001))
    run = serve(workload.requests(0.03), policy(4), clock)
    plenty = 4 * 416
    slots, blocks = (
        replay(run, partial(make, plenty)) for make in (partial(Slots, slot=416), partial(Blocks, block=16))
    )
    assert not slots.refused and not slots.ousted and not blocks.refused
    assert slots.used == blocks.used == [step.used_tokens for step in run.log]
    assert slots.reserved == [step.reserved_tokens for step in run.log]
    assert all(
        used <= reserved <= plenty for used, reserved in zip(blocks.used, blocks.reserved, strict=True)
    )
    assert 0 < blocks.waste < slots.waste < 1
    one = replay(run, partial(Blocks, plenty, block=1))
    assert one.waste == 0.0 and one.reserved == one.used
