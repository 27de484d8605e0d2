"""What is read from a log about memory; what the measurements of blocks are made of."""

from __future__ import annotations

from functools import partial

import pytest
from helpers.build import ask, unit_engine
from helpers.tiny import tiny_model

from llmserve.blockcost import return_seconds, scattered, step_seconds
from llmserve.blocks import BlockPool
from llmserve.life import preemptions
from llmserve.loop import serve
from llmserve.measure import decode_chunks
from llmserve.paging import behind, found_tokens, memory_use, recomputed_tokens
from llmserve.policies import Continuous, Mixed, Policy, Static
from llmserve.request import Request
from llmserve.run import Run

TWO = [Request(name, (token,) * 34, 35, ignore_eos=True) for name, token in (("A", 1), ("B", 2))]


def run(requests: list[Request], policy: Policy, blocks: int, sharing: bool = True) -> Run:
    memory = partial(BlockPool, blocks, 16, 0, sharing)
    return serve(requests, policy, unit_engine(4, 256, memory=memory))


def test_what_is_computed_again_after_a_preemption() -> None:
    alone = run(TWO, Continuous(2), 7, sharing=False)
    use = memory_use(alone)
    assert recomputed_tokens(alone) == {"A": 0, "B": 48}, "34 of the prompt and 14 of the output"
    assert (use.preemptions, use.recomputed, use.found, use.most_running) == (1, 48, 0, 2)


@pytest.mark.parametrize("sharing", [False, True])
def test_the_price_of_a_preemption_is_what_is_really_computed_again(sharing: bool) -> None:
    tight = run(TWO, Continuous(2), 7, sharing)
    (one,) = preemptions(tight)
    assert (one.request_id, one.winner, one.tokens) == ("B", None, 16 if sharing else 48)
    # B returns alone, with 49 tokens: each takes its part of a step of 1 s and more.
    (back,) = [step for step in tight.log if step.start == one.time + one.gain]
    assert one.seconds == one.tokens * back.seconds / (one.tokens + 1)


def test_what_it_finds_of_itself_is_neither_recomputed_nor_a_hit() -> None:
    use = memory_use(run(TWO, Continuous(2), 7))
    assert (use.preemptions, use.recomputed, use.found) == (1, 48 - 32, 0)


def test_a_policys_own_preemptions_are_not_memorys() -> None:
    class Once(Mixed):
        thrown = False

        def release(self, running: list, waiting: list, now: float) -> list:
            if not Once.thrown and now >= 3:
                Once.thrown = True
                return [running[0]]
            return super().release(running, waiting, now)

    use = memory_use(run([ask("A", 5, 9)], Once(1), 4, sharing=False))
    assert use.preemptions == 0 and use.recomputed == 7


def test_a_shared_beginning_is_found_by_all_but_the_first() -> None:
    requests = behind(range(50, 90), [ask(f"r{i}", 5, 2, at=9.0 * i) for i in range(4)])
    assert [len(request.prompt_token_ids) for request in requests] == [45] * 4
    shared = run(requests, Mixed(2), 12)
    assert found_tokens(shared) == {"r0": 0, "r1": 32, "r2": 32, "r3": 32}
    use = memory_use(shared)
    assert (use.found, use.prompt_tokens) == (96, 180) and use.hit_rate == 96 / 180
    assert memory_use(run(requests, Mixed(2), 12, sharing=False)).hit_rate == 0


def test_the_useful_share_and_who_runs() -> None:
    # Two of 8 tokens in a block each: 8, 9, 10 of 16; then A alone (B is done): 11, 12.
    done = run([ask("A", 8, 5), ask("B", 8, 3)], Mixed(2), 4, sharing=False)
    use = memory_use(done)
    assert use.useful == pytest.approx((16 + 18 + 20 + 11 + 12) / (32 + 32 + 32 + 16 + 16))
    assert use.running == pytest.approx((3 * 2 + 2 * 1) / 5) and use.most_running == 2


def test_a_run_in_which_nothing_happened() -> None:
    use = memory_use(run([], Static(2), 4))
    assert (use.useful, use.running, use.most_running, use.hit_rate) == (0.0, 0.0, 0, 0.0)


def test_scattered_tables_hold_each_block_once_and_enough_of_them() -> None:
    chunks = scattered(decode_chunks(3, 33), size=16, num_blocks=9)
    tables = [chunk.place for chunk in chunks]
    assert [len(table) for table in tables] == [3, 3, 3]
    assert sorted(block for table in tables for block in table) == list(range(9))
    assert list(range(9)) != [block for table in tables for block in table]


def test_steps_with_slots_and_blocks_are_all_timed() -> None:
    readings = step_seconds(tiny_model(), batch=2, contexts=[8, 30], sizes=[1, 16], repeats=2)
    assert set(readings) == {
        (name, context)
        for name in ("slots", "gathered, blocks of 1", "gathered, blocks of 16")
        for context in (8, 30)
    }
    assert all(len(taken) == 2 and min(taken) > 0 for taken in readings.values())


def test_both_ways_back_are_timed() -> None:
    readings = return_seconds(tiny_model(), contexts=[5, 40], block_size=8, repeats=2)
    assert set(readings) == {(way, n) for way in ("computed again", "copied out and back") for n in (5, 40)}
    assert all(min(taken) > 0 for taken in readings.values())
