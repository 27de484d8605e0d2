"""A simulation's errors and ranking, on an example worked by hand."""

from __future__ import annotations

import math

import pytest

from llmserve.fidelity import fidelity

# Medians 11, 19, 13 and 30. Only the ranges of A and C overlap: five of the six pairs are apart.
MEASURED = {"A": [10.0, 11.0, 12.0], "B": [20.0, 18.0, 19.0], "C": [11.5, 13.0, 14.5], "D": [30.0]}
SIMULATED = {"D": 16.0, "C": 12.0, "B": 17.0, "A": 13.0}  # in another order: names count, not places


def test_errors_and_spreads_are_shares_of_the_measured_median() -> None:
    found = fidelity(MEASURED, SIMULATED)
    assert found.errors == pytest.approx({"A": 2 / 11, "B": -2 / 19, "C": -1 / 13, "D": -14 / 30})
    assert found.spreads == pytest.approx({"A": 1 / 11, "B": 1 / 19, "C": 1.5 / 13, "D": 0.0})
    assert found.median_error == pytest.approx((2 / 19 + 2 / 11) / 2)
    assert found.median_spread == pytest.approx((1 / 19 + 1 / 11) / 2)


def test_a_spread_is_the_larger_of_the_two_distances_from_the_median() -> None:
    readings = {"low": [5.0, 10.0, 11.0], "high": [9.0, 10.0, 15.0]}
    assert fidelity(readings, {"low": 1.0, "high": 1.0}).spreads == {"low": 0.5, "high": 0.5}


def test_only_pairs_that_the_measurement_tells_apart_must_be_ordered() -> None:
    found = fidelity(MEASURED, SIMULATED)
    assert (found.apart, found.agree) == (5, 4)  # B and D are swapped; A and C are too, but overlap
    assert fidelity(MEASURED, {name: -value for name, value in SIMULATED.items()}).agree == 1


def test_the_rank_correlation_is_spearmans() -> None:
    # measured ranks 1 3 2 4, simulated 2 4 1 3: squared differences 1 + 1 + 1 + 1
    assert fidelity(MEASURED, SIMULATED).spearman == pytest.approx(1 - 6 * 4 / (4 * 15))
    perfect = {name: min(values) ** 3 for name, values in MEASURED.items()}
    assert fidelity(MEASURED, perfect).spearman == pytest.approx(1.0)
    assert fidelity(MEASURED, {name: -value for name, value in perfect.items()}).spearman == pytest.approx(-1)


def test_equal_values_share_their_rank() -> None:
    found = fidelity({"a": [1.0], "b": [2.0], "c": [3.0]}, {"a": 1.0, "b": 1.0, "c": 2.0})
    assert found.spearman == pytest.approx(math.sqrt(3) / 2)  # of 1 2 3 with 1.5 1.5 3


@pytest.mark.parametrize(
    ("measured", "simulated"),
    [({"a": [1.0], "b": [1.0]}, {"a": 1.0, "b": 2.0}), ({"a": [1.0], "b": [2.0]}, {"a": 3.0, "b": 3.0})],
)
def test_where_all_tie_there_is_no_rank_correlation(
    measured: dict[str, list[float]], simulated: dict[str, float]
) -> None:
    assert math.isnan(fidelity(measured, simulated).spearman)


def test_an_error_counts_only_beyond_the_aim_and_beyond_the_spread() -> None:
    found = fidelity(MEASURED, SIMULATED)
    assert found.beyond(0.10) == ["A", "B", "D"]
    assert found.beyond(0.15) == ["A", "D"]
    assert found.beyond(0.05) == ["A", "B", "D"], "C's error of 8% is within its own spread of 12%"
    assert found.beyond(0.50) == []


def test_single_readings_have_no_spread_and_equal_ones_are_not_apart() -> None:
    found = fidelity({"a": [2.0], "b": [2.0], "c": [4.0]}, {"a": 2.0, "b": 3.0, "c": 5.0})
    assert set(found.spreads.values()) == {0.0}
    assert (found.apart, found.agree) == (2, 2)
    assert found.beyond(0.1) == ["b", "c"]


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_simulated_tie_ranks_nobody(order: str) -> None:
    measured = dict(zip(order, ([1.0], [2.0]), strict=True))
    found = fidelity(measured, {"a": 3.0, "b": 3.0})
    assert (found.apart, found.agree) == (1, 0)


def test_values_closer_than_the_tie_have_no_order() -> None:
    measured, simulated = {"a": [100.0], "b": [104.0], "c": [110.0]}, {"a": 3.0, "b": 2.0, "c": 4.0}
    assert fidelity(measured, simulated).apart == 3
    found = fidelity(measured, simulated, tie=0.05)
    assert (found.apart, found.agree) == (2, 2)  # a-c and b-c, at 10% and 5.8%
