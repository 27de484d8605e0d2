"""A policy proposes, the loop disposes: what cannot be done is an error that says who and why."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.build import POLICIES, ask, finish, open_loop, unit_engine

from llmserve.loop import PolicyError, serve
from llmserve.policies import Chunked, Continuous, Policy, Static
from llmserve.request import Sequence

REQUESTS = [ask("A", 3, 2), ask("B", 4, 4), ask("C", 2, 2)]
STRANGER = Sequence(ask("stranger"))


def broken(base: type[Policy] = Continuous, /, *args: int, **methods: Any) -> Policy:
    """A policy with some of its answers replaced."""
    return type("Broken", (base,), methods)(*(args or (2,)))


WRONG = {
    "never admits": (
        broken(admit=lambda self, waiting, *_: []),
        "admitted no one.*stuck: 'A', 'B', 'C'",
    ),
    "composes nothing": (
        broken(compose=lambda self, running: []),
        "composed nothing.*stuck: 'A', 'B', 'C'",
    ),
    "runs zombies only": (
        broken(Static, compose=lambda self, running: [(s, 1) for s in running if s.is_finished]
               or [(running[0], running[0].num_uncomputed_tokens)]),
        "composed zombie rows only.*stuck: 'A', 'B'",
    ),
    "never releases": (
        broken(release=lambda self, *_: []),
        "composed zombie rows only.*stuck: 'A', 'B', 'C'",
    ),
    "admits a stranger": (
        broken(admit=lambda self, *_: [STRANGER]),
        "admit named 'stranger', which is not in the queue",
    ),
    "admits twice": (
        broken(admit=lambda self, waiting, *_: waiting[:1] * 2),
        "admit named 'A' twice",
    ),
    "admits too many": (
        broken(admit=lambda self, waiting, *_: waiting),
        "admit returned 3 sequences with 0 running, over max_num_seqs=2",
    ),
    "composes who does not run": (
        broken(compose=lambda self, running: [(STRANGER, 1)]),
        "compose named 'stranger', which is not in the running batch",
    ),
    "composes twice": (
        broken(compose=lambda self, running: [(running[0], 1), (running[0], 1)]),
        "compose named 'A' twice",
    ),
    "composes too few tokens": (
        broken(compose=lambda self, running: [(running[0], 0)]),
        "compose gave 'A' 0 tokens; it can take a whole number, 1 to 3",
    ),
    "composes too many tokens": (
        broken(compose=lambda self, running: [(running[1], 5)]),
        "compose gave 'B' 5 tokens; it can take a whole number, 1 to 4",
    ),
    "composes two zombie rows of one sequence": (
        broken(Static, compose=lambda self, running: [
            (s, 2 if s.is_finished else s.num_uncomputed_tokens) for s in running
        ]),
        "compose gave 'A' 2 tokens; it can take a whole number, 1 to 1",
    ),
    "plans over the budget": (
        broken(Chunked, 2, 6, compose=lambda self, running: [(s, s.num_uncomputed_tokens) for s in running]),
        "compose planned 7 tokens, over max_num_batched_tokens=6",
    ),
    "releases a stranger": (
        broken(release=lambda self, *_: [STRANGER]),
        "release named 'stranger', which is not in the running batch",
    ),
    "releases twice": (
        broken(release=lambda self, running, *_: running[:1] * 2),
        "release named 'A' twice",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("policy", "words"), WRONG.values(), ids=WRONG)
def test_a_policy_that_is_wrong_or_stuck_is_named_with_its_victims(policy: Policy, words: str) -> None:
    with pytest.raises(PolicyError, match=rf"Broken\(max_num_seqs=2.* at step \d+, t=.*{words}"):
        serve(REQUESTS, policy, unit_engine(2))


def test_a_policy_that_admits_no_one_may_wait_while_more_can_be_submitted() -> None:
    loop = open_loop(
        broken(admit=lambda self, waiting, *_: waiting[:2] if len(waiting) > 2 else []), REQUESTS[:2]
    )
    assert loop.step() is None
    loop.submit(REQUESTS[2])
    assert loop.step() is not None
    loop.abort("C")
    assert len(finish(loop).log) == 4


def test_a_policy_that_runs_no_one_is_stuck_even_while_more_can_be_submitted() -> None:
    loop = open_loop(broken(compose=lambda self, running: []), REQUESTS[:1])
    with pytest.raises(PolicyError, match="composed nothing"):
        loop.step()


def test_a_timer_that_has_passed_does_not_hide_that_no_one_is_admitted() -> None:
    policy = broken(admit=lambda self, *_: [], wake_at=lambda self, waiting: 2.0)
    loop = open_loop(policy, REQUESTS)
    loop.close()
    with pytest.raises(PolicyError, match="t=2 s: it admitted no one"):
        loop.step()


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_that_spoils_the_lists_it_was_given_corrupts_nothing(name: str) -> None:
    def spoil(method: str) -> Any:
        def spoiled(self: Policy, *given: Any) -> Any:
            answer = list(
                getattr(super(type(self), self), method)(*[g[:] if isinstance(g, list) else g for g in given])
            )
            for lent in given:
                if isinstance(lent, list):
                    lent.clear()
            return answer

        return spoiled

    honest = POLICIES[name](2)
    methods = {method: spoil(method) for method in ("admit", "compose", "release")}
    spoiler = type(honest).__new__(type("Spoiler", (type(honest),), methods))
    vars(spoiler).update(vars(honest))
    requests = [ask(f"r{i}", 1 + i, 1 + 3 * i % 5, at=0.7 * i) for i in range(7)]
    assert serve(requests, spoiler, unit_engine(2)).log == serve(requests, honest, unit_engine(2)).log
