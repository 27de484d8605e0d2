"""Requests that broke other engines: refused by name, or served to the last position, never half and half."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from helpers.build import POLICIES, ask, events, tokens_by_rule, unit_engine
from helpers.tiny import POSITIONS, VOCAB, generate, prompt_ids, tiny_model
from helpers.worlds import World, assert_as_alone, every_cache, every_world

from llmserve.kv import CatCache, SlotCache
from llmserve.loop import Loop, serve
from llmserve.metrics import output_token_ids, request_times
from llmserve.models.gpt2 import Config
from llmserve.policies import Continuous, Mixed, Static
from llmserve.request import Request
from llmserve.run import Run

GOOD = [Request("A", prompt_ids(5, seed=1), 6), Request("B", prompt_ids(3, seed=2), 4, arrival_time=1.0)]


def serve_among_others(bad: Request, world: World) -> str:
    """Serve a bad request between two good ones, which must not notice; why it was refused."""
    run = serve([GOOD[0], bad, GOOD[1]], Continuous(2), world.engine(2))
    assert_as_alone(run, GOOD, world)
    assert events(run, "refuse") == [bad.id]
    return next(event.detail for event in run.events if event.kind == "refuse")


# -- 1. max_tokens ---------------------------------------------------------------------------------


@every_world
@pytest.mark.parametrize("max_tokens", [0, -1, 2.0, 2.5, "5", None, True, math.nan, math.inf], ids=repr)
def test_max_tokens_that_is_not_a_number_of_tokens_is_refused_not_endless(
    world: World, max_tokens: Any
) -> None:
    reason = serve_among_others(Request("bad", (1, 2), max_tokens), world)
    assert f"max_tokens={max_tokens!r}; ask for a whole number of tokens, 1 or more" in reason


# -- 2. prompts ------------------------------------------------------------------------------------

NO_PROMPTS = [[], (), np.array([], dtype=int), "", "text", b"bytes", None, 7, {3: 4}, {3}, iter([1, 2])]
NO_TOKENS = [[VOCAB], [-1], [3, 1.0], ["3"], [True], [None], [[1, 2]], np.array([[1, 2]]), [math.nan]]


@every_world
@pytest.mark.parametrize("prompt", NO_PROMPTS, ids=lambda prompt: f"{prompt!r:.20}")
def test_an_empty_prompt_or_text_for_ids_is_refused_and_the_others_unharmed(
    world: World, prompt: Any
) -> None:
    assert "must be a list of at least one token id, not" in serve_among_others(
        Request("bad", prompt, 3), world
    )


@every_world
@pytest.mark.parametrize("prompt", NO_TOKENS, ids=repr)
def test_what_is_no_token_of_the_vocabulary_is_refused_by_value(world: World, prompt: Any) -> None:
    reason = serve_among_others(Request("bad", prompt, 3), world)
    assert f"is not a token id in 0...{VOCAB - 1}" in reason


IDS = (5, 6, 7)


@pytest.mark.parametrize(
    "prompt",
    [list(IDS), np.array(IDS), np.array(IDS, dtype=np.uint8), torch.tensor(IDS), range(5, 8)],
    ids=["list", "int64", "uint8", "torch", "range"],
)
@every_world
def test_ids_of_other_libraries_are_as_good_as_ours(world: World, prompt: Any) -> None:
    run = serve([Request("A", prompt, 4)], Continuous(1), world.engine(1))
    assert output_token_ids(run)["A"] == world.alone(Request("A", IDS, 4))


def test_small_integers_of_numpy_do_not_overflow_and_a_log_of_them_saves_as_ours(tmp_path: Any) -> None:
    plain = Request("A", tuple(range(300)), 200, 2.0, priority=3, stop_token_ids=(9,), expected_tokens=40)
    numpy = Request(
        "A", np.arange(300), np.uint8(200), np.float32(2), priority=np.int8(3),
        stop_token_ids=(np.uint16(9),), expected_tokens=np.uint8(40),
    )  # fmt: skip
    runs = [serve([one], Continuous(1), unit_engine(1, max_model_len=500)) for one in (plain, numpy)]
    assert repr(runs[0]) == repr(runs[1]), "types too: nothing of NumPy's is left in the log"
    runs[1].save(tmp_path / "run.gz")
    assert Run.load(tmp_path / "run.gz") == runs[0]


def test_a_prompt_that_its_owner_changes_later_is_served_as_it_was_submitted() -> None:
    prompt = [1, 2, 3]
    loop = Loop(Continuous(1), unit_engine(1))
    loop.submit(Request("A", prompt, 3))
    prompt += [4, 5]
    loop.close()
    while loop.step():
        pass
    assert output_token_ids(loop.run)["A"] == tokens_by_rule(ask("A", (1, 2, 3), 3), 50257)
    assert loop.run.submitted[0].prompt_token_ids == (1, 2, 3)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("id", 7, "id must be a string"),
        ("id", None, "id must be a string"),
        ("id", ["a"], "id must be a string"),
        ("stop_token_ids", 5, "stop_token_ids=5; give whole numbers"),
        ("stop_token_ids", "ab", "stop_token_ids='ab'; give whole numbers"),
        ("stop_token_ids", (1.5,), r"stop_token_ids=\(1.5,\)"),
        ("priority", "high", "priority='high'; give a number"),
        ("priority", None, "priority=None; give a number"),
        ("priority", math.nan, "priority=nan"),
        ("expected_tokens", "many", "expected_tokens='many'; give a number of tokens, or None"),
        ("expected_tokens", math.nan, "expected_tokens=nan"),
        ("arrival_time", None, "arrival_time=None; give seconds"),
        ("arrival_time", "soon", "arrival_time='soon'; give seconds"),
        ("arrival_time", 10**400, "arrival_time=1000000"),
    ],
)
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_every_other_field_is_checked_before_anything_runs(
    policy: Any, field: str, value: Any, words: str
) -> None:
    good = [ask("A", 3, 4), ask("B", 2, 2)]
    bad = Request(**{"id": "bad", "prompt_token_ids": (1, 2), "max_tokens": 3, field: value})
    run = serve([good[0], bad, good[1]], policy(2), unit_engine(2))
    (refusal,) = [event for event in run.events if event.kind == "refuse"]
    with pytest.raises(ValueError, match=words):
        raise ValueError(refusal.detail)
    assert run.log == serve(good, policy(2), unit_engine(2)).log


def test_any_real_number_is_a_time_or_a_priority() -> None:
    one = Request("A", (1,), 1, Fraction(1, 2), priority=0.5)
    (served,) = serve([one], Continuous(1), unit_engine(1)).submitted
    assert (served.arrival_time, served.priority) == (0.5, 0.5)


# -- 3. the context window -------------------------------------------------------------------------


@every_cache
@pytest.mark.parametrize("prompt", [1, 40, POSITIONS - 1])
def test_prompt_and_output_may_fill_the_window_to_its_last_position_and_not_one_more(
    world: World, prompt: int
) -> None:
    ids = prompt_ids(prompt, seed=prompt)
    for room in (POSITIONS - prompt - 1, POSITIONS - prompt):
        if room:
            request = Request("A", ids, room)
            run = serve([request], Static(1), world.engine(1))
            assert_as_alone(run, [request], world)
            assert len(output_token_ids(run)["A"]) == room
    run = serve([Request("A", ids, POSITIONS - prompt + 1)], Static(1), world.engine(1))
    assert events(run, "refuse") == ["A"] and not run.log


@every_world
def test_a_prompt_that_fills_the_window_alone_leaves_no_room_for_a_token(world: World) -> None:
    for length in (POSITIONS, POSITIONS + 1, 3 * POSITIONS):
        reason = serve_among_others(Request("bad", (1,) * length, 1), world)
        assert f"{length} prompt tokens + max_tokens=1 exceed max_model_len={POSITIONS}; shorten" in reason


@pytest.mark.parametrize("cache", [SlotCache, CatCache])
def test_no_cache_goes_past_the_positions_that_gpt2_knows(cache: type) -> None:
    for length in (1025, 4096, 0, -1, 2.5, None):
        with pytest.raises(ValueError, match=r"the model knows positions for 1 to 1024 tokens"):
            cache(Config(), 1, length)
    assert cache(tiny_model().config, 1, POSITIONS).max_model_len == POSITIONS


# -- 8. the same again -----------------------------------------------------------------------------


@every_world
def test_an_id_submitted_twice_is_refused_and_the_first_keeps_its_tokens(world: World) -> None:
    loop = Loop(Mixed(2), world.engine(2))
    loop.submit(GOOD[0])
    loop.step()
    with pytest.raises(ValueError, match="'A' was submitted before: give each request its own id"):
        loop.submit(Request("A", (9, 9), 2))
    while loop.step():
        pass
    with pytest.raises(ValueError, match="'A' was submitted before"):
        loop.submit(Request("A", (9, 9), 2))
    assert loop.run.submitted == GOOD[:1]
    loop.submit(GOOD[1])
    loop.close()
    while loop.step():
        pass
    assert_as_alone(loop.run, GOOD, world)


@every_world
def test_a_refused_id_may_be_used_again(world: World) -> None:
    run = serve([Request("A", (), 3), GOOD[0]], Continuous(1), world.engine(1))
    assert_as_alone(run, GOOD[:1], world)
    assert [times.finish_reason for times in request_times(run)] == ["length"]


@every_world
def test_one_engine_serves_the_same_requests_by_any_policy_in_any_order_with_equal_results(
    world: World,
) -> None:
    requests = [
        Request(f"r{i}", prompt_ids(3 + 5 * i, seed=i), 9 - i, expected_tokens=9 - i) for i in range(6)
    ]
    engine = world.engine(3)
    for policy in POLICIES.values():
        first, again, backwards = (
            serve(some, policy(3), engine) for some in (requests, requests, requests[::-1])
        )
        assert first.log[0]._replace(cpu_share=None) == again.log[0]._replace(cpu_share=None)
        assert len(first.log) == len(again.log)
        for run in (first, again, backwards):
            assert_as_alone(run, requests, world)


def test_the_reference_for_these_tests_is_not_the_same_for_all() -> None:
    assert generate(GOOD[0]) != generate(GOOD[1])
