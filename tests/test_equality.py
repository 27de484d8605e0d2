"""Promise 1: the same tokens whatever the schedule, against `transformers` run alone for each request.

A tiny GPT-2 in float64 with plain products: no tolerance. In float32: only near-ties may differ.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from helpers.build import POLICIES, events, interrupting
from helpers.tiny import cat_engine, generate, prompt_ids, reference_logits, slot_engine

from llmserve.engine import Engine
from llmserve.loop import serve
from llmserve.metrics import count_rows, output_token_ids, request_times
from llmserve.models.linear import why_not_packed
from llmserve.policies import Chunked, Continuous, Mixed, Policy, Static
from llmserve.request import Request
from llmserve.run import Run

# (prompt tokens, output tokens at most, arrival in steps, ignore_eos)
SHAPES = [
    (1, 12, 0.0, False), (2, 20, 0.0, False), (17, 9, 0.0, False), (30, 14, 1.0, True),
    (5, 1, 3.0, False), (9, 18, 3.5, True), (24, 6, 9.0, False), (1, 16, 11.0, False),
    (13, 22, 30.0, False), (40, 10, 70.0, True),
]  # fmt: skip
REQUESTS = [
    Request(f"r{i}", prompt_ids(prompt, seed=i), output, at, ignore_eos=ignore, expected_tokens=output)
    for i, (prompt, output, at, ignore) in enumerate(SHAPES)
]
TIE = 1e-3  # float32: logits spread over about 3; a different token is allowed where the best two are closer


@pytest.fixture(scope="module")
def eos() -> int:
    """The token that the model says most often, so that it really ends outputs."""
    said = Counter(token for request in REQUESTS for token in generate(request))
    return said.most_common(1)[0][0]


@pytest.fixture(scope="module")
def expected(eos: int) -> dict[str, list[int]]:
    return {request.id: generate(request, eos) for request in REQUESTS}


def test_the_reference_text_varies_or_it_would_hide_mistakes(expected: dict[str, list[int]]) -> None:
    free = {request.id: generate(request) for request in REQUESTS}
    assert len(set(map(tuple, free.values()))) == len(REQUESTS)
    assert all(len(set(tokens)) > len(tokens) / 3 for tokens in free.values())
    assert len({token for tokens in free.values() for token in tokens}) > 25


def test_eos_ends_some_outputs_and_is_ignored_by_others(expected: dict[str, list[int]], eos: int) -> None:
    short = {r.id for r in REQUESTS if len(expected[r.id]) < r.max_tokens}
    assert 2 <= len(short) < len(REQUESTS) - 2
    assert all(expected[name][-1] == eos for name in short)
    assert any(eos in expected[r.id][:-1] for r in REQUESTS if r.ignore_eos)


def check(run: Run, expected: dict[str, list[int]], eos: int) -> None:
    assert output_token_ids(run) == expected
    reasons = {times.id: times.finish_reason for times in request_times(run)}
    for request in REQUESTS:
        stopped = expected[request.id][-1] == eos and not request.ignore_eos
        assert reasons[request.id] == ("stop" if stopped else "length")


@pytest.mark.parametrize("slots", [1, 3, 8])
@pytest.mark.parametrize("attention", ["loop", "batched"])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_every_policy_gives_each_request_the_tokens_it_gets_alone(
    policy: type[Policy], attention: str, slots: int, expected: dict[str, list[int]], eos: int
) -> None:
    run = serve(REQUESTS, policy(slots), slot_engine(slots, attention=attention, eos=eos))
    check(run, expected, eos)
    assert (count_rows(run.log).zombie > 0) == (slots > 1 and not isinstance(policy(slots), Continuous))


@pytest.mark.parametrize("budget", [3, 5, 16, 64])
@pytest.mark.parametrize("attention", ["loop", "batched"])
def test_every_chunk_size_gives_the_same_tokens(
    attention: str, budget: int, expected: dict[str, list[int]], eos: int
) -> None:
    run = serve(REQUESTS, Chunked(3, budget), slot_engine(3, attention=attention, eos=eos))
    check(run, expected, eos)


@pytest.mark.parametrize("attention", ["loop", "batched"])
@pytest.mark.parametrize(
    ("base", "limits"),
    [(Continuous, (3,)), (Mixed, (3,)), (Chunked, (3, 7))],
    ids=["continuous", "mixed", "chunked"],
)
def test_preemption_leaves_the_tokens_as_they_were(
    base: type[Policy], limits: tuple[int, ...], attention: str, expected: dict[str, list[int]], eos: int
) -> None:
    run = serve(REQUESTS, interrupting(base)(*limits), slot_engine(3, attention=attention, eos=eos))
    assert len(events(run, "preempt")) >= 8
    check(run, expected, eos)


def test_the_measured_clock_gives_the_same_tokens(expected: dict[str, list[int]], eos: int) -> None:
    steady = slot_engine(3, eos=eos)
    engine = Engine(steady.model, steady.cache)  # real seconds: a schedule that no one can foresee
    run = serve(REQUESTS, Chunked(3, 8), engine)
    check(run, expected, eos)
    assert all(step.seconds > 0 and step.cpu_share >= 0 for step in run.log)


def test_the_cat_cache_serves_lockstep_batches_of_equal_lengths() -> None:
    requests = [Request(f"r{i}", prompt_ids(7, seed=i), 6, ignore_eos=True) for i in range(6)]
    run = serve(requests, Static(3), cat_engine(3))
    assert output_token_ids(run) == {request.id: generate(request) for request in requests}


# -- float32 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("linear", ["plain", "packed"])
@pytest.mark.parametrize("policy", [Static(3), Mixed(3), Chunked(3, 5)], ids=["static", "mixed", "chunked"])
def test_float32_differs_only_where_the_two_best_logits_nearly_tie(policy: Policy, linear: str) -> None:
    reason = why_not_packed(torch.float32, "cpu")
    if linear == "packed" and reason:
        pytest.skip(reason)
    requests = [
        Request(r.id, r.prompt_token_ids, r.max_tokens, r.arrival_time, ignore_eos=True) for r in REQUESTS
    ]
    tokens = output_token_ids(serve(requests, policy, slot_engine(3, torch.float32, linear=linear)))
    compared = 0
    for request in requests:
        ours, alone = tokens[request.id], generate(request, dtype=torch.float32)
        assert len(ours) == len(alone)
        differ = [i for i in range(len(alone)) if ours[i] != alone[i]]
        compared += differ[0] if differ else len(alone)
        if differ:  # what follows a different token is another text
            best = (
                reference_logits([*request.prompt_token_ids, *alone[: differ[0]]], torch.float32)
                .topk(2)
                .values
            )
            assert best[0] - best[1] < TIE, (
                f"{request.id} differs at {differ[0]}, where no two logits are close"
            )
    assert compared > 0.9 * sum(request.max_tokens for request in requests)
