"""What a step is made of and what it costs; the simulated engine's clock, with and without noise."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.build import ask
from hypothesis import given
from hypothesis import strategies as st

from llmserve.costmodel import CostModel, SimulatedEngine, Work, count_work
from llmserve.loop import serve
from llmserve.policies import Continuous, Mixed
from llmserve.request import Chunk, Sequence

REQUESTS = [ask(f"r{i}", prompt=2 + i % 3, output=9) for i in range(12)]
NOISE = ((2.0, 3.0), (5.0, 7.0))
AMOUNTS = st.floats(0.0, 1.0)
MODELS = st.builds(
    CostModel,
    *[AMOUNTS] * 7,
    jumps=st.lists(st.tuples(st.integers(1, 40), AMOUNTS), max_size=3).map(tuple),
)
CHUNKS = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40), st.booleans()), min_size=1, max_size=6)


def noisy(**more: object) -> SimulatedEngine:
    """Every step would take one second."""
    return SimulatedEngine(2, 64, CostModel(overhead=1.0), **{"noise": NOISE, "seed": 3, **more})


def seconds(engine: SimulatedEngine) -> list[float]:
    return [step.seconds for step in serve(REQUESTS, Continuous(2), engine).log]


def test_a_mixed_step_is_counted_by_hand() -> None:
    # a decode at position 9; a piece of a prompt, not its end; a whole prompt of 3; a prompt of one token
    chunks = [(9, 1, True), (4, 2, False), (0, 3, True), (0, 1, True)]
    assert count_work(chunks) == Work(
        tokens=1 + 2 + 3 + 1, rows=3, cached=4 * 10, pairs=10 + (5 + 6) + (1 + 2 + 3) + 1, prompts=2
    )
    assert count_work([]) == Work(0, 0, 0, 0, 0)


def test_a_prompt_in_pieces_attends_to_as_many_pairs_as_in_one() -> None:
    whole = count_work([(0, 17, True)])
    parts = [count_work([part]) for part in ((0, 5, False), (5, 11, False), (16, 1, True))]
    assert sum(part.pairs for part in parts) == whole.pairs == 17 * 18 // 2
    assert sum(part.rows for part in parts) == whole.rows == 1


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("overhead", 2), ("weights", 2), ("per_token", 2 * 3), ("per_row", 2 * 5), ("per_cached", 2 * 7),
        ("per_context", 2 * 11), ("per_prompt", 2 * 13),
    ],
)  # fmt: skip
def test_each_price_is_for_its_own_count(field: str, expected: float) -> None:
    assert CostModel(**{field: 2}).price(Work(tokens=3, rows=5, cached=7, pairs=11, prompts=13)) == expected


def test_all_prices_add_up_but_arithmetic_hides_behind_the_weights() -> None:
    cost = CostModel(1, 20, 4, per_context=2, per_row=3, per_cached=5, per_prompt=7)
    rest = 1 + 11 * 2 + 5 * 3 + 7 * 5 + 13 * 7
    assert cost.price(Work(4, 5, 7, 11, 13)) == rest + 20
    assert cost.price(Work(6, 5, 7, 11, 13)) == rest + 24


def test_a_jump_is_paid_from_its_tokens_on_and_jumps_add_up() -> None:
    cost = CostModel(overhead=1.0, jumps=((4, 10.0), (6, 100.0)))
    prices = {n: cost.price(Work(n, 0, 0, 0, 0)) for n in (3, 4, 5, 6, 7)}
    assert prices == {3: 1.0, 4: 11.0, 5: 11.0, 6: 111.0, 7: 111.0}


def test_at_the_knee_the_arithmetic_has_caught_up_with_the_weights() -> None:
    cost = CostModel(overhead=1.0, weights=18.0, per_token=0.5)
    assert cost.knee == 36.0
    prices = [cost.price(Work(n, 0, 0, 0, 0)) for n in (1, 36, 38)]
    assert prices == [19.0, 19.0, 20.0]


@given(MODELS, CHUNKS, st.data())
def test_another_token_or_another_chunk_never_makes_a_step_cheaper(
    cost: CostModel, chunks: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    before = cost.price(count_work(chunks))
    which = data.draw(st.integers(0, len(chunks) - 1))
    start, n, due = chunks[which]
    longer = [*chunks[:which], (start, n + 1, due), *chunks[which + 1 :]]
    assert cost.price(count_work(longer)) >= before
    assert cost.price(count_work([*chunks, data.draw(CHUNKS)[0]])) >= before


def test_without_noise_a_step_takes_what_the_model_says() -> None:
    cost = CostModel(0.1, 0.3, 0.07, 0.011, 0.013, 0.0017, 0.19, ((3, 0.023),))
    engine = SimulatedEngine(2, 64, cost)
    for step in serve(REQUESTS, Mixed(2), engine).log:
        counted = [(c.start, c.num_tokens, c.token_id is not None) for c in step.chunks]
        assert step.seconds == cost.price(count_work(counted))


def test_a_step_draws_a_factor_of_its_own_kind() -> None:
    run = serve(REQUESTS, Continuous(2), noisy())
    drawn: dict[bool, set[float]] = {False: set(), True: set()}
    for step in run.log:
        drawn[any(chunk.num_tokens > 1 for chunk in step.chunks)].add(step.seconds)
    assert drawn == {False: {2.0, 3.0}, True: {5.0, 7.0}}


def test_a_kind_without_factors_is_left_exact() -> None:
    assert set(seconds(noisy(noise=((2.0,), ())))) == {1.0, 2.0}
    assert set(seconds(noisy(noise=((), (5.0,))))) == {1.0, 5.0}


def test_a_seed_gives_every_run_the_same_noise_and_another_seed_another() -> None:
    engine = noisy()
    assert seconds(engine) == seconds(engine) == seconds(noisy())
    assert seconds(engine) != seconds(noisy(seed=4))


def test_a_new_pool_starts_the_noise_anew() -> None:
    engine, chunks = noisy(), [Chunk(Sequence(ask("a", 2)), 0, 2, 0)]
    draws = []
    for _ in range(2):
        engine.new_pool()
        draws.append([engine.step(chunks).seconds for _ in range(20)])
    assert draws[0] == draws[1]
    assert set(draws[0]) == {5.0, 7.0}


def test_a_copy_draws_for_itself() -> None:
    chunks = [Chunk(Sequence(ask("a", 2)), 0, 2, 0)]
    engine = noisy()
    engine.new_pool()
    alone = [engine.step(chunks).seconds for _ in range(20)]
    engine.new_pool()
    copy = replace(engine, max_num_seqs=4)
    copy.new_pool()
    both = [(engine.step(chunks).seconds, copy.step(chunks).seconds) for _ in range(20)]
    assert both == [(one, one) for one in alone]
