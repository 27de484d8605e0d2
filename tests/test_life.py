"""A request's life and its stalls, on schedules worked by hand."""

from __future__ import annotations

from helpers.build import ask, unit_engine

from llmserve.life import Phase, Slice, launches, phases, slices, stalls
from llmserve.loop import serve
from llmserve.policies import Chunked, Continuous, Dynamic, Mixed, Static

# Two slots. a and b start together; c comes at 1.5 and takes b's slot when b is done (t = 3).
REQUESTS = [ask("a", output=6), ask("b", output=3), ask("c", prompt=5, output=2, at=1.5)]


def test_a_life_under_continuous_waits_prefills_decodes_and_stalls() -> None:
    run = serve(REQUESTS, Continuous(2), unit_engine(2))
    assert phases(run, "a") == [
        Phase("prefill", 0.0, 1.0),
        Phase("decode", 1.0, 3.0),
        Phase("stalled", 3.0, 4.0),
        Phase("decode", 4.0, 7.0),
    ]
    assert phases(run, "c") == [
        Phase("waiting", 1.5, 3.0),
        Phase("prefill", 3.0, 4.0),
        Phase("decode", 4.0, 5.0),
    ]


def test_a_life_ends_with_its_last_token_and_not_with_its_batch() -> None:
    run = serve(REQUESTS, Static(2), unit_engine(2))
    assert phases(run, "b") == [Phase("prefill", 0.0, 1.0), Phase("decode", 1.0, 3.0)]
    assert phases(run, "c")[0] == Phase("waiting", 1.5, 6.0)


def test_a_stall_names_the_prompt_that_caused_it() -> None:
    (stall,) = stalls(serve(REQUESTS, Continuous(2), unit_engine(2)))
    assert (stall.request_id, stall.start, stall.gap, stall.lost) == ("a", 3.0, 2.0, 1.0)
    assert (stall.prompts, stall.prompt_tokens) == (("c",), 5)


def test_nobody_stalls_where_every_step_carries_everyone() -> None:
    for policy in (Static(2), Mixed(2), Chunked(2, 3)):
        assert stalls(serve(REQUESTS, policy, unit_engine(2))) == []


def test_launches_are_how_many_entered_together() -> None:
    requests = [ask(f"r{i}", output=4, at=t) for i, t in enumerate((0.0, 1.0, 6.0, 6.0, 6.0))]
    assert launches(serve(requests, Dynamic(2, 0.5), unit_engine(2))) == [
        (0.5, 1),
        (4.5, 1),
        (8.5, 2),
        (12.5, 1),
    ]
    assert launches(serve(requests, Static(2), unit_engine(2))) == [(1.0, 2), (6.0, 2), (10.0, 1)]


def test_two_prompts_share_what_a_budget_leaves_the_first_come_first() -> None:
    # Budget 6. Step 0: a's prompt, 5 of p. Step 1: a decodes, p's last 4, then 1 of q.
    # Step 2: a and p decode, 4 of q. Step 3: a decodes, q's last 2.
    requests = [ask("a", output=6), ask("p", prompt=9, output=2), ask("q", prompt=7)]
    run = serve(requests, Chunked(3, 6), unit_engine(3))
    assert slices(run, "a", 6) == [Slice(0, 1, 6)]
    assert slices(run, "p", 6) == [Slice(0, 5, 5), Slice(1, 4, 5)]
    assert slices(run, "q", 6) == [Slice(1, 1, 1), Slice(2, 4, 4), Slice(3, 2, 5)]
    assert slices(run, "nobody", 6) == []


def test_a_prompt_that_fits_is_one_slice() -> None:
    run = serve(REQUESTS, Chunked(2, 8), unit_engine(2))
    assert slices(run, "c", 8) == [Slice(3, 5, 7)], "a's decode went first"
