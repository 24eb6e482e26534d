"""Standardised columns have mean 0 and variance 1, whatever their unit was."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscout.experiments.data.dataset import duplicate_rows
from fedscout.experiments.data.tables import standardise

# Stored numbers are float32: a mean over values of size 1 is off by their rounding, 6e-8, at most.
ROUNDING = 1e-6


def column(values: list[float]) -> npt.NDArray[np.float64]:
    return np.array(values, dtype=np.float64)[:, None]


@given(
    st.lists(st.integers(-1000, 1000), min_size=2, max_size=40).filter(lambda values: len(set(values)) > 1),
    st.sampled_from([1e-300, 1e-6, 1.0, 1e6, 1e300]),
    st.sampled_from([0.0, 1.0, -1e5]),
)
def test_mean_zero_variance_one_in_any_unit(values: list[int], unit: float, offset: float) -> None:
    result = standardise(column([(value + offset) * unit for value in values])).astype(np.float64)

    assert result.mean() == pytest.approx(0, abs=ROUNDING)
    assert np.mean(result**2) == pytest.approx(1, abs=ROUNDING)
    assert (np.argsort(result[:, 0], kind="stable") == np.argsort(values, kind="stable")).all()


@pytest.mark.parametrize("constant", [0.0, 0.1, -3e17, 1e308])
def test_constant_column_becomes_zero(constant: float) -> None:
    # The mean of three times 0.1 is not 0.1 in floating point, so a test on the computed deviation would miss it.
    assert (standardise(column([constant] * 3)) == 0).all()


def test_known_column() -> None:
    # 1, 3 has mean 2 and population deviation 1.
    np.testing.assert_array_equal(standardise(np.array([[1.0, 5], [3, 5]])), np.array([[-1, 0], [1, 0]], np.float32))


def test_argument_is_not_changed() -> None:
    values = column([1, 2, 4])
    standardise(values)
    np.testing.assert_array_equal(values, column([1, 2, 4]))


def test_duplicates_are_rows_that_repeat_an_earlier_one_label_included() -> None:
    features = np.array([[1.0, 2], [1, 2], [1, 2], [3, 4], [1, 2]])
    assert duplicate_rows(features, np.array([0, 0, 1, 0, 0])) == 2
