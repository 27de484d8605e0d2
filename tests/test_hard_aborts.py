"""An abort ends one request, gives its memory back, and changes no token of the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers.build import events, finish, open_loop
from helpers.tiny import prompt_ids
from helpers.worlds import SIMULATED, World, assert_as_alone, every_cache, every_world

from llmserve.loop import Loop
from llmserve.metrics import output_token_ids, request_times, summarise
from llmserve.policies import Chunked, Dynamic, Mixed, Policy, Static
from llmserve.pool import SlotPool
from llmserve.request import Request

EQUAL = [Request(f"r{i}", prompt_ids(6, seed=i), 5) for i in range(6)]  # lengths that every cache serves
LONG = [Request(f"r{i}", prompt_ids(20 - i, seed=i), 5) for i in range(4)]


def stepped(world: World, policy: Policy, requests: list[Request], steps: int) -> Loop:
    loop = open_loop(policy, requests, world.engine(policy.max_num_seqs))
    for _ in range(steps):
        assert loop.step() is not None
    return loop


def assert_gone(loop: Loop, victim: str, requests: list[Request], world: World) -> None:
    """No token of the victim after this, its memory back, and the others as if it had never been."""
    had = len(output_token_ids(loop.run)[victim])
    assert loop.abort(victim) is True
    loop.pool.check()
    assert victim not in [sequence.id for sequence in (*loop.running, *loop.waiting)]
    if isinstance(loop.pool, SlotPool):
        assert loop.pool.reserved_tokens == len(loop.running) * loop.pool.slot_tokens
    assert loop.abort(victim) is False, "it has ended"
    run = finish(loop)
    assert loop.pool.free_tokens == loop.pool.total_tokens
    assert len(output_token_ids(run)[victim]) == had
    assert {times.id: times.finish_reason for times in request_times(run)}[victim] == "abort"
    assert_as_alone(run, [request for request in requests if request.id != victim], world)


@every_cache
@pytest.mark.parametrize("policy", [Static(3), Dynamic(3, 1.0)], ids=repr)
@pytest.mark.parametrize("victim", range(6))
@pytest.mark.parametrize("steps", [1, 3])
def test_of_a_static_batch_a_member_or_one_who_waits_can_be_aborted(
    world: World, policy: Policy, victim: int, steps: int
) -> None:
    loop = stepped(world, policy, EQUAL, steps)
    assert [sequence.id for sequence in loop.running] == ["r0", "r1", "r2"]
    assert_gone(loop, f"r{victim}", EQUAL, world)


@every_cache
def test_a_whole_batch_can_be_aborted_and_the_next_takes_its_place(world: World) -> None:
    loop = stepped(world, Static(3), EQUAL, 2)
    for victim in ("r1", "r0"):
        assert loop.abort(victim) is True
    assert_gone(loop, "r2", EQUAL[2:], world)
    assert events(loop.run, "abort") == ["r1", "r0", "r2"]


MOMENTS: dict[str, tuple[int, Callable[[Loop], bool]]] = {
    "before its first chunk": (1, lambda loop: loop.running[1].num_computed_tokens == 0),
    "in the middle of its prompt": (3, lambda loop: 0 < loop.running[1].num_computed_tokens < 19),
    "while it decodes": (6, lambda loop: loop.running[1].is_decoding),
}


@every_world
@pytest.mark.parametrize(("steps", "is_then"), MOMENTS.values(), ids=MOMENTS)
def test_a_chunked_prefill_can_be_aborted_at_any_point(
    world: World, steps: int, is_then: Callable[[Loop], bool]
) -> None:
    loop = stepped(world, Chunked(2, 8), LONG, steps)
    assert loop.running[1].id == "r1" and is_then(loop)
    assert_gone(loop, "r1", LONG, world)


@every_world
def test_who_takes_an_aborted_ones_slot_reads_nothing_of_it(world: World) -> None:
    requests = [Request("long", prompt_ids(40, seed=1), 20), Request("gone", prompt_ids(45, seed=2), 10)]
    loop = stepped(world, Mixed(2), requests, 3)
    slot = loop.pool.row(loop.running[1])
    loop.abort("gone")
    loop.submit(Request("next", prompt_ids(2, seed=3), 12))
    loop.step()
    assert loop.running[1].id == "next" and loop.pool.row(loop.running[1]) == slot
    run = finish(loop)
    assert_as_alone(run, [requests[0], Request("next", prompt_ids(2, seed=3), 12)], world)


@every_world
def test_an_abort_of_an_unknown_id_is_an_error_and_disturbs_nothing(world: World) -> None:
    loop = stepped(world, Mixed(2), LONG, 2)
    before = (list(loop.running), list(loop.waiting), list(loop.run.events))
    with pytest.raises(ValueError, match="no request with id 'nobody' was submitted"):
        loop.abort("nobody")
    assert (loop.running, loop.waiting, loop.run.events) == before
    assert_as_alone(finish(loop), LONG, world)


def test_a_run_cut_short_by_aborts_has_metrics_of_what_was_finished() -> None:
    loop = stepped(SIMULATED, Mixed(2), LONG, 2)
    for request in LONG:
        loop.abort(request.id)
    summary = summarise(finish(loop))
    assert (summary.n, summary.tokens, summary.throughput) == (0, 0, 0.0)
    assert summary.slot_efficiency == 1.0, "rows were computed and their tokens kept, before the aborts"
    assert summary.itl_max != summary.itl_max and summary.ttft_p50 != summary.ttft_p50
