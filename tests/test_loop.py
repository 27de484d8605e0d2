"""The loop's own promises: what it refuses, when it jumps, what aborts and errors do to the others."""

from __future__ import annotations

import math
from typing import Any

import pytest
from helpers.build import (
    POLICIES,
    ask,
    events,
    finish,
    interrupting,
    lanes,
    open_loop,
    plans,
    tokens_by_rule,
    unit_engine,
)

from llmserve.loop import Loop, serve
from llmserve.metrics import output_token_ids, request_times
from llmserve.policies import Continuous, Dynamic, Mixed, Static
from llmserve.pool import SlotPool
from llmserve.request import Request, Sequence

# -- refusals --------------------------------------------------------------------------------------

REFUSED = [
    (ask("bad", 60, 5), r"60 prompt tokens \+ max_tokens=5 exceed max_model_len=64; shorten"),
    (ask("bad", []), "at least one token id"),
    (ask("bad", "text"), "list of at least one token id, not 'text'"),
    (ask("bad", [3, 100]), r"token 100 is not a token id in 0\.\.\.99"),
    (ask("bad", [-1]), r"token -1 is not a token id in 0\.\.\.99"),
    (ask("bad", [1.5]), "token 1.5 is not a token id"),
    (ask("bad", [True]), "token True is not a token id"),
    (ask("bad", 3, 0), "max_tokens=0; ask for a whole number of tokens, 1 or more"),
    (ask("bad", 3, 2.5), "max_tokens=2.5; ask for a whole number"),
    (ask("bad", 3, 2, at=-1.0), "arrival_time=-1.0; give seconds from 0"),
    (ask("bad", 3, 2, at=math.inf), "arrival_time=inf; give seconds"),
    (ask("bad", 3, 2, at=math.nan), "arrival_time=nan; give seconds"),
]


@pytest.mark.parametrize(("request_", "words"), REFUSED, ids=[words[:24] for _, words in REFUSED])
def test_a_request_that_can_never_run_is_refused_and_the_others_go_on(request_: Request, words: str) -> None:
    engine = unit_engine(2, vocab_size=100)
    loop = Loop(Continuous(2), engine)
    with pytest.raises(ValueError, match=f"request 'bad': .*{words}"):
        loop.submit(request_)
    assert (loop.run.submitted, loop.future) == ([], [])

    good = [ask("A", 3, 4), ask("B", 2, 2, at=1.0)]
    run = serve([good[0], request_, good[1]], Continuous(2), engine)
    assert run.log == serve(good, Continuous(2), engine).log
    (refusal,) = [event for event in run.events if event.kind == "refuse"]
    assert refusal.request_id == "bad" and refusal.detail.startswith("request 'bad': ")


def test_the_longest_request_that_fits_is_served() -> None:
    run = serve([ask("A", 60, 4)], Continuous(1), unit_engine(1, max_model_len=64))
    assert len(output_token_ids(run)["A"]) == 4


def test_an_id_is_taken_once_and_the_first_of_that_name_is_served() -> None:
    run = serve([ask("A", 2, 3), ask("A", 5, 5), ask("B", 1, 1)], Continuous(2), unit_engine(2))
    assert events(run, "refuse") == ["A"]
    assert [(t.id, t.output_tokens, t.finish_reason) for t in request_times(run)] == [
        ("A", 3, "length"),
        ("B", 1, "length"),
    ]


def test_nothing_can_be_submitted_after_close() -> None:
    loop = open_loop(Continuous(1), [])
    loop.close()
    with pytest.raises(ValueError, match=r"'A': the loop is closed; submit before close\(\)"):
        loop.submit(ask("A"))


# -- aborts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "steps", "victim"),
    [("waiting", 1, "C"), ("prefilling", 1, "A"), ("decoding", 4, "B"), ("in the future", 1, "D")],
)
def test_an_abort_ends_a_request_wherever_it_is_and_harms_no_other(
    where: str, steps: int, victim: str
) -> None:
    requests = [ask("A", 9, 3), ask("B", 2, 6), ask("C", 3, 2), ask("D", 1, 2, at=9.0)]
    loop = open_loop(POLICIES["chunked"](2), requests)
    for _ in range(steps):
        loop.step()
    sequence = loop._sequences[victim]
    assert where == (
        "in the future"
        if sequence.arrival_time > loop.now
        else "waiting"
        if sequence in loop.waiting
        else "decoding"
        if sequence.is_decoding
        else "prefilling"
    )
    assert loop.abort(victim) is True
    assert loop.abort(victim) is False, "it had ended"
    loop.pool.check()
    run = finish(loop)
    assert events(run, "abort") == [victim]
    assert loop.pool.free_tokens == loop.pool.total_tokens
    assert all(chunk.request_id != victim for step in run.log[steps:] for chunk in step.chunks)
    for request in requests:
        expected = tokens_by_rule(request, 50257)
        received = output_token_ids(run)[request.id]
        assert received == (expected[: len(received)] if request.id == victim else expected)


def test_an_abort_takes_a_request_out_of_a_static_batch_and_ends_a_batch_of_zombies() -> None:
    loop = open_loop(Static(2), [ask("A", 1, 2), ask("B", 1, 9), ask("C", 1, 2)])
    for _ in range(4):
        loop.step()
    assert loop.abort("A") is False, "a zombie has ended already"
    assert loop.abort("B") is True
    assert lanes(finish(loop)) == ["AA..CC", "BBBB"]


def test_an_abort_of_an_ended_request_changes_nothing_and_of_an_unknown_one_is_an_error() -> None:
    loop = open_loop(Continuous(1), [ask("A", 1, 1)])
    loop.step()
    before = list(loop.run.events)
    assert loop.abort("A") is False
    assert loop.run.events == before
    with pytest.raises(ValueError, match="no request with id 'Z'"):
        loop.abort("Z")


def test_an_abort_of_a_future_request_leaves_the_arrivals_in_order() -> None:
    loop = open_loop(Continuous(1), [ask(f"r{at}", at=at) for at in (10, 50, 20, 60, 70, 30, 40)])
    loop.abort("r50")
    assert [step.start for step in finish(loop).log] == [10, 20, 30, 40, 60, 70]


# -- the clock -------------------------------------------------------------------------------------


def test_the_clock_jumps_to_the_next_arrival_when_nothing_can_run() -> None:
    requests = [ask("A", 1, 2, at=5.0), ask("B", 1, 1, at=100.0), ask("C", 1, 1, at=100.5)]
    run = serve(requests, Continuous(1), unit_engine(1))
    assert [step.start for step in run.log] == [5.0, 6.0, 100.0, 101.0]
    assert [t.ttft for t in request_times(run)] == [1.0, 1.0, 1.5]


def test_the_clock_jumps_to_a_timer_before_the_next_arrival() -> None:
    run = serve([ask("A", 1, 1), ask("B", 1, 1, at=7.0)], Dynamic(2, 3.0), unit_engine(2))
    assert [(step.start, step.end) for step in run.log] == [(3.0, 4.0), (7.0, 8.0)]


def test_a_busy_loop_does_not_wait_between_steps() -> None:
    requests = [ask(f"r{i}", 2, 4, at=0.3 * i) for i in range(8)]
    run = serve(requests, Mixed(3), unit_engine(3))
    assert [step.start for step in run.log] == [float(i) for i in range(len(run.log))]


@pytest.mark.parametrize("policy", [Static(2), Continuous(2)], ids=repr)
def test_an_open_loop_says_none_when_idle_and_goes_on_with_the_next_submission(policy: Any) -> None:
    loop = open_loop(policy, [])
    assert loop.step() is None
    loop.submit(ask("A", 1, 2))
    loop.submit(ask("B", 1, 1))
    assert [loop.step().start for _ in range(2)] == [0.0, 1.0]
    assert loop.step() is None
    loop.submit(ask("C", 1, 1, at=0.5))  # a time gone by: it enters now, and its TTFT counts from 0.5
    loop.close()
    assert loop.step().start == 2.0
    assert loop.step() is None
    assert request_times(loop.run)[2].ttft == 2.5


def test_an_open_static_loop_waits_for_its_batch_to_fill_until_it_is_closed() -> None:
    loop = open_loop(Static(2), [ask("A", 1, 1)])
    assert loop.step() is None
    loop.close()
    assert loop.step().start == 0.0


def test_memory_smaller_than_the_policys_batch_lets_in_the_longest_prefix() -> None:
    requests = [ask(name, 1, n) for name, n in zip("ABCD", (5, 2, 3, 1), strict=True)]
    run = serve(requests, Mixed(4), unit_engine(2))
    assert lanes(run) == ["AAAAAD", "BBCCC"]
    assert events(run, "admit") == ["A", "B", "C", "D"]


class ShyPool(SlotPool):
    """Room for B only when no one else is there."""

    def admit(self, sequence: Sequence) -> int | None:
        return None if sequence.id == "B" and self.reserved_tokens else super().admit(sequence)


def test_no_one_overtakes_a_sequence_that_memory_cannot_hold_yet() -> None:
    engine = unit_engine(3)
    engine.memory = lambda: ShyPool(3, 64)
    run = serve([ask("A", 1, 2), ask("B", 1, 2), ask("C", 1, 1)], Mixed(3), engine)
    assert plans(run) == [[("A", 0, 1)], [("A", 1, 1)], [("B", 0, 1), ("C", 0, 1)], [("B", 1, 1)]]


def test_a_sequence_leaves_with_the_step_that_ends_it() -> None:
    loop = open_loop(Mixed(2), [ask("A", 1, 1), ask("B", 1, 2)])
    loop.step()
    assert [sequence.id for sequence in loop.running] == ["B"]
    assert loop.pool.reserved_tokens == 64
    loop.step()
    assert (loop.running, loop.pool.reserved_tokens) == ([], 0)


# -- how a sequence ends ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "eos_at", "reason", "length"),
    [
        ({}, None, "length", 5),
        ({}, 3, "stop", 3),
        ({}, 5, "stop", 5),  # at the very step of max_tokens: the model ended it
        ({"ignore_eos": True}, 3, "length", 5),
    ],
)
def test_a_sequence_ends_at_eos_or_at_max_tokens(
    more: dict[str, bool], eos_at: int | None, reason: str, length: int
) -> None:
    request = ask("A", 2, 5, **more)
    tokens = tokens_by_rule(ask("A", 2, 5, ignore_eos=True), 50257)
    eos = tokens[eos_at - 1] if eos_at else None
    run = serve([request], Continuous(1), unit_engine(1, eos_token_id=eos))
    assert output_token_ids(run)["A"] == tokens[:length]
    assert request_times(run)[0].finish_reason == reason


def test_stop_token_ids_end_a_sequence_even_when_eos_is_ignored() -> None:
    tokens = tokens_by_rule(ask("A", 2, 5), 50257)
    request = ask("A", 2, 5, ignore_eos=True, stop_token_ids=(tokens[2], 50256))
    run = serve([request], Continuous(1), unit_engine(1))
    assert output_token_ids(run)["A"] == tokens[:3], "the stop token is the last output token"
    assert request_times(run)[0].finish_reason == "stop"


def test_a_stop_callable_ends_a_sequence_on_anything_it_can_see() -> None:
    requests = [ask("A", 2, 9), ask("B", 5, 9)]
    run = serve(requests, Mixed(2), unit_engine(2), stop=lambda seq: len(seq.token_ids) == 8)
    assert {t.id: (t.output_tokens, t.finish_reason) for t in request_times(run)} == {
        "A": (6, "stop"),
        "B": (3, "stop"),
    }


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_an_output_of_one_token_needs_no_decode_step(policy: Any) -> None:
    run = serve([ask("A", 3, 1), ask("B", 4, 1)], policy(4), unit_engine(4))
    assert plans(run) == [[("A", 0, 3), ("B", 0, 4)]]
    assert [t.output_tokens for t in request_times(run)] == [1, 1]


# -- preemption, progress --------------------------------------------------------------------------


def test_a_preempted_sequence_goes_back_to_the_front_and_recomputes_all_its_tokens() -> None:
    run = serve([ask("A", 3, 4), ask("B", 2, 1), ask("C", 2, 1)], interrupting(Continuous)(1), unit_engine(1))
    assert events(run, "preempt") == ["A"]
    assert events(run, "admit") == ["A", "A", "B", "C"]
    assert plans(run)[:4] == [[("A", 0, 3)], [("A", 3, 1)], [("A", 0, 5)], [("A", 5, 1)]]
    assert [step.chunks[0].kind for step in run.log[:4]] == ["prefill", "decode", "prefill", "decode"]
    assert output_token_ids(run)["A"] == tokens_by_rule(ask("A", 3, 4), 50257)
    assert request_times(run)[0].preemptions == 1


def test_progress_is_told_of_every_step_and_ends_at_the_total() -> None:
    told: list[tuple[int, int]] = []
    requests = [ask("A", 1, 3), ask("bad", 1, 0), ask("B", 1, 1), ask("C", 1, 1, at=9.0)]
    run = serve(requests, Static(2), unit_engine(2), progress=lambda *args: told.append(args))
    assert told == [(1, 3), (1, 3), (2, 3), (3, 3)]
    assert len(run.log) == 4
