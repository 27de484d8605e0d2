"""Hand-worked schedules: each policy does what its diagram says, step by step (a step takes 1 s)."""

from __future__ import annotations

import math

import pytest
from helpers.build import POLICIES, ask, events, lanes, plans, unit_engine

from llmserve.loop import serve
from llmserve.metrics import count_rows, expected_static_efficiency, request_times
from llmserve.policies import Bucketed, Chunked, Continuous, Dynamic, Mixed, Policy, Static
from llmserve.request import Request, Sequence
from llmserve.workload import HEADLINE, SHORT, SIGMAS, ZOMBIES, Workload

# The post's continuous diagram: A, B and C first, then E, F and D as slots come free.
LETTERS = [ask(name, 1, n) for name, n in zip("ABCEFD", (10, 4, 6, 10, 8, 4), strict=True)]


def test_static_computes_zombie_rows_and_starts_batch_two_only_when_slot_0_ends() -> None:
    requests = [ask("A", 3, 10), ask("B", 2, 4), ask("C", 5, 6), ask("D", 2, 2), ask("E", 1, 1)]
    run = serve(requests, Static(3), unit_engine(3))
    assert lanes(run) == [
        "AAAAAAAAAADD",
        "BBBB......E.",
        "CCCCCC....",
    ]
    assert plans(run)[0] == [("A", 0, 3), ("B", 0, 2), ("C", 0, 5)]
    assert plans(run)[1] == [("A", 3, 1), ("B", 2, 1), ("C", 5, 1)]
    assert plans(run)[9] == [("A", 11, 1), ("B", 4, 1), ("C", 9, 1)], "a zombie reads its last position again"
    assert [t.admitted for t in request_times(run)] == [0, 0, 0, 10, 10]


def test_static_waits_for_a_full_batch_while_more_may_come() -> None:
    requests = [ask("A", 1, 2), ask("B", 1, 2, at=4.0), ask("C", 1, 2, at=5.0), ask("D", 1, 1, at=20.0)]
    run = serve(requests, Static(3), unit_engine(3))
    assert [(step.start, len(step.chunks)) for step in run.log] == [(5.0, 3), (6.0, 3), (20.0, 1)]


def test_dynamic_launches_a_part_batch_when_the_oldest_has_waited_max_wait() -> None:
    requests = [ask("A", 1, 10), ask("B", 1, 4, at=1.0), ask("C", 1, 1, at=50.0)]
    run = serve(requests, Dynamic(3, max_wait=2.5), unit_engine(3))
    assert lanes(run) == ["AAAAAAAAAAC", "BBBB......"]
    assert [step.start for step in run.log] == [2.5 + i for i in range(10)] + [50.0]


@pytest.mark.parametrize(
    ("max_wait", "first_start"), [(0.0, 0.1), (0.2, 0.1 + 0.2), (2.0, 2.0), (math.inf, 2.0)]
)
def test_dynamic_launches_at_its_timer_or_as_soon_as_the_batch_is_full(
    max_wait: float, first_start: float
) -> None:
    requests = [ask("A", 1, 3, at=0.1), ask("B", 1, 3, at=2.0), ask("C", 1, 3, at=60.0)]
    run = serve(requests, Dynamic(2, max_wait), unit_engine(2))
    assert run.log[0].start == first_start


def test_dynamic_without_a_limit_is_static() -> None:
    requests = [ask(f"r{i}", 1 + i % 3, 1 + 5 * i % 7, at=1.7 * i) for i in range(9)]
    static, dynamic = (
        serve(requests, policy, unit_engine(3)) for policy in (Static(3), Dynamic(3, math.inf))
    )
    assert (dynamic.log, dynamic.events) == (static.log, static.events)


def test_mixed_refills_each_slot_the_step_after_its_request_ends() -> None:
    assert lanes(serve(LETTERS, Mixed(3), unit_engine(3))) == [
        "AAAAAAAAAADDDD",
        "BBBBEEEEEEEEEE",
        "CCCCCCFFFFFFFF",
    ]


def test_continuous_runs_a_newcomers_prompt_alone_and_stalls_the_decodes() -> None:
    run = serve(LETTERS, Continuous(3), unit_engine(3))
    assert lanes(run) == [
        "AAAA AA AAAADDDD",
        "BBBBEEE EEEE EEE",
        "CCCC CCFFFFF FFF",
    ]
    assert [t.admitted for t in request_times(run)] == [0, 0, 0, 4, 7, 12]
    assert count_rows(run.log).slot_efficiency == 1.0


def test_mixed_takes_prompts_and_decodes_in_one_step() -> None:
    run = serve([ask("A", 2, 4), ask("B", 9, 2, at=2.0)], Mixed(2), unit_engine(2))
    assert plans(run) == [
        [("A", 0, 2)],
        [("A", 2, 1)],
        [("A", 3, 1), ("B", 0, 9)],
        [("A", 4, 1), ("B", 9, 1)],
    ]
    assert [step.kind for step in run.log] == ["prefill", "decode", "mixed", "decode"]


def test_chunked_gives_decodes_their_token_first_and_a_prompt_what_the_budget_leaves() -> None:
    run = serve([ask("A", 1, 8), ask("B", 10, 3, at=2.0)], Chunked(2, 4), unit_engine(2))
    assert plans(run) == [
        [("A", 0, 1)],
        [("A", 1, 1)],
        [("A", 2, 1), ("B", 0, 3)],
        [("A", 3, 1), ("B", 3, 3)],
        [("A", 4, 1), ("B", 6, 3)],
        [("A", 5, 1), ("B", 9, 1)],  # the last prompt token: B's first output token
        [("A", 6, 1), ("B", 10, 1)],
        [("A", 7, 1), ("B", 11, 1)],
    ]
    assert [c.token_id is not None for s in run.log for c in s.chunks if c.request_id == "B"] == [
        False, False, False, True, True, True,
    ]  # fmt: skip


def test_chunked_finishes_the_oldest_prompt_before_the_next_one_gets_tokens() -> None:
    run = serve([ask("A", 6, 3), ask("B", 6, 2), ask("C", 2, 2)], Chunked(3, 4), unit_engine(3))
    assert plans(run) == [
        [("A", 0, 4)],
        [("A", 4, 2), ("B", 0, 2)],
        [("A", 6, 1), ("B", 2, 3)],
        [("A", 7, 1), ("B", 5, 1), ("C", 0, 2)],
        [("B", 6, 1), ("C", 2, 1)],
    ]


def test_chunked_plans_a_decode_before_a_prompt_whatever_their_order() -> None:
    prompt, decode, next_prompt = (Sequence(ask(name, 6)) for name in "ABC")
    decode.token_ids.append(9)
    decode.num_computed_tokens = 6
    assert Chunked(3, 4).compose([prompt, decode, next_prompt]) == [(decode, 1), (prompt, 3)]
    assert Chunked(3, 9).compose([prompt, decode, next_prompt]) == [
        (decode, 1),
        (prompt, 6),
        (next_prompt, 2),
    ]


def expecting(lengths: tuple[int, ...]) -> list[Request]:
    return [ask(name, 1, 1, expected_tokens=n) for name, n in zip("ABCDEF", lengths, strict=False)]


@pytest.mark.parametrize(
    ("lengths", "batch"),
    [
        # sorted 9 10 11 12 50 52: the tightest window is 9 10 11, but the oldest (50) must be in it
        ((50, 9, 10, 52, 11, 12), "AEF"),
        ((12, 50, 10, 8, 52, 13), "ACF"),  # 10 12 13 spreads less than 8 10 12
        ((12, 50, 10, 9, 52, 13), "ACD"),  # both spread 3: the shorter window
        ((9, 50, 60, 70, 80, 90), "ABC"),  # at the edge only one window holds the oldest
        ((7, 7, 7, 7, 7, 7), "ABC"),
        ((9, 50), "AB"),  # fewer than a batch, nothing more to come: all of them
    ],
)
def test_bucketed_takes_the_tightest_window_that_holds_the_oldest_and_lists_it_first(
    lengths: tuple[int, ...], batch: str
) -> None:
    run = serve(expecting(lengths), Bucketed(3), unit_engine(3))
    admitted = events(run, "admit")[: len(batch)]
    assert set(admitted) == set(batch)
    assert admitted[0] == "A"
    assert admitted[1:] == sorted(admitted[1:]), "the others in the order of the queue"


def test_bucketed_lists_the_oldest_first_though_the_key_orders_the_queue_otherwise() -> None:
    requests = [
        ask(name, 1, 1, at=at, expected_tokens=n)
        for name, at, n in (("A", 0.0, 50), ("B", 1.0, 45), ("C", 2.0, 40), ("D", 2.0, 9))
    ]
    policy = Bucketed(3, key=lambda seq: seq.request.expected_tokens)
    assert events(serve(requests, policy, unit_engine(3)), "admit") == ["A", "C", "B", "D"]


def test_bucketed_without_a_length_hint_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"'B' has no expected_tokens.*set Request\(expected_tokens"):
        serve([ask("A"), ask("B", expected_tokens=None)], Bucketed(2), unit_engine(2))


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_key_orders_the_queue_of_every_policy(policy: type[Policy]) -> None:
    requests = [ask("A", 1, 3, priority=2), ask("B", 1, 3, priority=1), ask("C", 1, 3, priority=0)]
    run = serve(requests, policy(1, key=lambda seq: seq.request.priority), unit_engine(1))
    assert events(run, "finish") == ["C", "B", "A"]


@pytest.mark.parametrize("slots", [1, 3, 8])
@pytest.mark.parametrize(
    "workload",
    [
        *(ZOMBIES.with_(sigma=sigma) for sigma in SIGMAS),
        HEADLINE,
        SHORT,
        SHORT.with_(num_requests=37, seed=5),
    ],
    ids=lambda w: f"{w.name}-{w.num_requests}-{w.output.sigma}",
)
def test_static_slot_efficiency_is_the_computed_one_exactly(workload: Workload, slots: int) -> None:
    run = serve(workload.requests(decode_step=1.0), Static(slots), unit_engine(slots, workload.max_model_len))
    assert count_rows(run.log).slot_efficiency == expected_static_efficiency(workload.output_lengths(), slots)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Static(0), "max_num_seqs=0"),
        (lambda: Continuous(2.5), "max_num_seqs=2.5"),
        (lambda: Dynamic(2, -1), "max_wait=-1"),
        (lambda: Dynamic(2, math.nan), "max_wait=nan"),
        (lambda: Chunked(4, 3), "max_num_batched_tokens=3.*at least max_num_seqs=4"),
        (lambda: Chunked(4, 4.5), "max_num_batched_tokens=4.5"),
    ],
)
def test_a_policy_refuses_parameters_it_cannot_work_with(build: type[Policy], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build()


def test_a_policys_repr_names_its_parameters() -> None:
    assert repr(Chunked(2, 8)) == "Chunked(max_num_seqs=2, max_num_batched_tokens=8)"
    assert "shortest" in repr(Static(2, key=type("K", (), {"__name__": "shortest"})()))
