"""The broken line is found in readings made from one; curves and products are counted right."""

from __future__ import annotations

import random

import pytest
from helpers.tiny import slot_engine, tiny_model

from llmserve.knee import Knee, Product, fit_knee, knee_range, product_curves, step_curve, together
from llmserve.roofline import StepWork

TOKENS = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]
TRUE = Knee(tokens=37.0, fixed=0.004, per_token=0.0005)


def readings(line: Knee, turns: int = 3) -> dict[int, list[float]]:
    return {n: [line.seconds(n)] * turns for n in TOKENS}


def noisy(line: Knee, seed: int, turns: int = 9) -> dict[int, list[float]]:
    draws = random.Random(seed)
    return {n: [line.seconds(n) * (0.95 + 0.1 * draws.random()) for _ in range(turns)] for n in TOKENS}


def test_a_knees_line_is_flat_and_then_rises() -> None:
    assert TRUE.flat == TRUE.seconds(1) == TRUE.seconds(37) == pytest.approx(0.004 + 0.0005 * 37)
    assert TRUE.seconds(137) - TRUE.flat == pytest.approx(0.05)


@pytest.mark.parametrize("true", [TRUE, Knee(6.0, 0.01, 0.002), Knee(90.0, 0.0, 0.001)])
def test_a_broken_line_is_found_again(true: Knee) -> None:
    found = fit_knee(readings(true))
    assert found.tokens == pytest.approx(true.tokens, rel=0.012)  # the grid's step is 0.9%
    assert found.per_token == pytest.approx(true.per_token, rel=0.005)
    assert found.fixed == pytest.approx(true.fixed, rel=0.02, abs=0.003 * true.flat)
    for n in TOKENS:
        assert found.seconds(n) == pytest.approx(true.seconds(n), rel=0.005)


def test_a_fit_goes_by_the_medians() -> None:
    interrupted = {n: [*values, 5.0] for n, values in readings(TRUE).items()}
    assert fit_knee(interrupted) == fit_knee(readings(TRUE))


def test_readings_need_not_come_in_order() -> None:
    backwards = dict(reversed(readings(TRUE).items()))
    assert fit_knee(backwards) == fit_knee(readings(TRUE))


def test_equal_readings_are_fitted_flat() -> None:
    found = fit_knee({n: [0.02] for n in TOKENS})
    assert [found.seconds(n) for n in TOKENS] == pytest.approx([0.02] * len(TOKENS), rel=1e-6)
    assert found.fixed >= 0


def test_a_line_has_its_knee_at_the_first_reading() -> None:
    found = fit_knee({n: [0.003 + 0.002 * n] for n in TOKENS})
    assert (found.tokens, found.fixed, found.per_token) == pytest.approx((1.0, 0.003, 0.002))


def test_the_fixed_cost_is_never_negative() -> None:
    through_origin = fit_knee({n: [0.002 * n] for n in TOKENS})
    assert through_origin.per_token == pytest.approx(0.002)
    assert through_origin.fixed == pytest.approx(0.0, abs=1e-9)
    below = fit_knee({n: [0.002 * n - 0.001] for n in TOKENS})
    assert below.fixed == 0.0
    assert below.per_token == pytest.approx(0.002, rel=0.2)


@pytest.mark.parametrize("seed", range(3))
def test_the_range_holds_the_true_knee_and_is_the_same_every_time(seed: int) -> None:
    measured = noisy(TRUE, seed)
    low, high = knee_range(measured, samples=60)
    assert low <= TRUE.tokens * 1.01 and TRUE.tokens * 0.99 <= high
    assert 0.7 * TRUE.tokens < low <= high < 1.4 * TRUE.tokens
    assert knee_range(measured, samples=60) == (low, high)


def test_without_noise_there_is_no_range() -> None:
    low, high = knee_range(readings(TRUE), samples=5)
    assert low == high == fit_knee(readings(TRUE)).tokens


def test_a_products_rates_by_hand() -> None:
    product = Product("toy", weights=1000, readings={1: [0.1, 0.2, 0.9], 64: [2.0, 1.0, 4.0]})
    assert product.bandwidth() == pytest.approx(4 * 1000 / 0.2)
    assert product.flops(64) == pytest.approx(2 * 64 * 1000 / 2.0)


def test_products_together_add_their_weights_and_their_turns() -> None:
    parts = [
        Product("a", 10, {1: [1.0, 2.0], 4: [3.0, 4.0]}),
        Product("b", 5, {1: [10.0, 20.0], 4: [0.5, 1]}),
    ]
    assert together(parts, "both") == Product("both", 15, {1: [11.0, 22.0], 4: [3.5, 5.0]})


def test_a_step_curve_has_a_reading_a_turn_for_each_number_of_tokens() -> None:
    engine = slot_engine(slots=1)
    sizes: list[list[int]] = []
    compute = engine._compute
    engine._compute = lambda chunks: sizes.append([c.num_tokens for c in chunks]) or compute(chunks)
    assert step_curve(engine, [1, 3, 20], repeats=2) == {1: [1.0] * 2, 3: [1.0] * 2, 20: [1.0] * 2}
    assert sizes == [[1], [3], [20]] * 3, "interleaved, one prompt a step, the first turn to warm up"


def test_product_curves_time_every_weight_of_the_model() -> None:
    model = tiny_model()
    products = {product.name: product for product in product_curves(model, [1, 5], repeats=2)}
    h, layers = model.config.hidden, model.config.num_layers
    assert {name: product.weights for name, product in products.items()} == {
        "attention in": layers * 3 * h * h,
        "attention out": layers * h * h,
        "MLP up": layers * 4 * h * h,
        "MLP down": layers * 4 * h * h,
        "vocabulary": model.config.vocab_size * h,
    }
    whole = together(list(products.values()), "all")
    assert whole.weights == StepWork.of(model.config).num_weights
    for product in products.values():
        assert {n: len(taken) for n, taken in product.readings.items()} == {1: 2, 5: 2}
        assert min(min(taken) for taken in product.readings.values()) > 0


@pytest.mark.parametrize("seed", range(40))
def test_flat_readings_give_a_flat_line_whatever_the_noise(seed: int) -> None:
    draws = random.Random(seed)
    tokens = sorted(draws.sample(range(1, 1000), 8))
    level = 10 ** draws.uniform(-8, 0)
    noise = draws.choice([0.0, 0.05])
    curve = {n: [level * (1 + noise * draws.uniform(-1, 1))] for n in tokens}
    knee = fit_knee(curve)
    assert knee.per_token >= 0 and knee.fixed >= 0
    assert all(knee.seconds(n) == pytest.approx(level, rel=2 * noise + 1e-6) for n in tokens)
