"""Metrics of a quantity: scikit-learn's R² and mean absolute error of the pooled rows, against a constant answer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import mean_absolute_error, r2_score

from fedscout.engine.metrics import LARGEST_ERROR, OF_QUANTITIES, R2, Mae, Metric, add

Floats = npt.NDArray[np.float64]


def rows(num_rows: int = 60, seed: int = 0) -> tuple[Floats, Floats]:
    """Predictions that know something of the targets; both in a unit of hundreds, about a mean that is not theirs."""
    generator = np.random.default_rng(seed)
    targets = 100 * generator.normal(size=num_rows) + 20
    return (targets + 60 * generator.normal(size=num_rows))[:, None], targets


def value(metric: Metric, outputs: Floats, targets: Floats) -> float:
    return metric.value(metric.statistics(outputs, targets))


@given(seed=st.integers(0, 1000), num_rows=st.integers(2, 80))
def test_r2_is_scikit_learns(seed: int, num_rows: int) -> None:
    outputs, targets = rows(num_rows, seed)
    assert value(R2(), outputs, targets) == pytest.approx(max(-1, r2_score(targets, outputs[:, 0])), abs=1e-9)


@given(seed=st.integers(0, 1000))
def test_mae_is_by_how_much_the_error_is_below_that_of_saying_nothing_more(seed: int) -> None:
    outputs, targets = rows(seed=seed)
    gained = mean_absolute_error(targets, np.zeros(len(targets))) - mean_absolute_error(targets, outputs[:, 0])
    assert value(Mae(), outputs, targets) == pytest.approx(gained, rel=1e-9)


def test_a_constant_answer_is_worth_nothing_and_perfection_all() -> None:
    _, targets = rows()
    nothing, centred = np.zeros((len(targets), 1)), targets - targets.mean()
    assert value(R2(), nothing, centred) == pytest.approx(0, abs=1e-12)
    assert value(Mae(), nothing, targets) == 0
    assert value(R2(), targets[:, None], targets) == 1
    assert value(Mae(), targets[:, None], targets) == pytest.approx(np.abs(targets).mean())


@pytest.mark.parametrize("said", [1e35, np.inf, -np.inf, np.nan])
def test_a_model_that_diverges_is_as_far_below_as_perfection_is_above(said: float) -> None:
    _, targets = rows()
    outputs = np.full((len(targets), 1), said)
    assert value(R2(), outputs, targets) == -1
    assert value(Mae(), outputs, targets) == pytest.approx(-np.abs(targets).mean())
    assert R2().statistics(outputs, targets)[-1] <= len(targets) * LARGEST_ERROR * (1 + 1e-9)


def test_a_client_is_measured_against_the_federations_constant() -> None:
    """Targets of 3 and 5 about a constant of 0: c² is 34 and not 2, so errors of 1 leave 32 of 34."""
    targets = np.array([3.0, 5.0])
    sums = R2().statistics(np.array([[2.0], [6.0]]), targets)
    assert R2().value_of_client(sums) == pytest.approx(1 - 2 / 34)
    assert R2().value(sums) == pytest.approx(1 - 2 / 2)


@pytest.mark.parametrize("metric", [kind() for kind in OF_QUANTITIES.values()], ids=list(OF_QUANTITIES))
@given(seed=st.integers(0, 100), order=st.permutations(range(5)))
def test_sums_are_the_same_in_any_order(metric: Metric, seed: int, order: list[int]) -> None:
    """Bit for bit, as they are exact; float sums of these would not be."""
    outputs, targets = rows(50, seed)
    parts = [metric.statistics(*part) for part in zip(np.split(outputs, 5), np.split(targets, 5), strict=True)]
    one, other = add(parts), add(parts[place] for place in order)
    assert one.tolist() == other.tolist()
    assert metric.value(one) == metric.value(other)


def test_equal_targets_have_no_r2() -> None:
    assert np.isnan(value(R2(), np.zeros((3, 1)), np.full(3, 7.0)))
