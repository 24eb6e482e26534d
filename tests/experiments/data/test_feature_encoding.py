"""Encoded features are finite, complete columns have mean 0 and variance 1; gaps and rare categories have a place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscout.experiments.data.columns import CategoryColumn, Column, NumberColumn
from fedscout.experiments.data.encoding import (
    LARGEST_SCORE,
    EncodedFeatures,
    client_statistics,
    encode_features,
    merge_statistics,
)

NAN = float("nan")
# Features are float32: a value of size 1 is off by 6e-8 at most, and so is a mean of them.
ROUNDING = 1e-6


def number(*values: float) -> NumberColumn:
    return NumberColumn("x", np.array(values, dtype=np.float64))


def category(*values: str) -> CategoryColumn:
    names = tuple(sorted(set(values) - {""}))
    return CategoryColumn("c", np.array([names.index(value) if value else -1 for value in values]), names)


def encoded(*columns: Column, clients: int = 1, min_release: int = 1) -> EncodedFeatures:
    num_rows = len(columns[0].missing)
    answers = [client_statistics(columns, np.arange(k, num_rows, clients), min_release) for k in range(clients)]
    return encode_features(columns, merge_statistics([answer for answer in answers if answer is not None]))


@given(
    st.lists(st.integers(-1000, 1000), min_size=4, max_size=40).filter(lambda values: len(set(values)) > 1),
    st.integers(1, 4),
    st.sampled_from([1e-9, 1.0, 1e9]),
    st.sampled_from([0.0, 1e5]),
)
def test_complete_columns_have_mean_zero_and_variance_one(
    values: list[int], clients: int, unit: float, offset: float
) -> None:
    found = encoded(number(*[(value + offset) * unit for value in values]), clients=clients)
    features = found.features.astype(np.float64)
    assert features.mean() == pytest.approx(0, abs=ROUNDING)
    assert np.mean(features**2) == pytest.approx(1, abs=ROUNDING)
    assert found.names == ("x",)
    assert found.deviations[0] == pytest.approx(np.std(np.array(values) * unit))


def test_missing_numbers_become_the_mean_and_are_marked() -> None:
    # 1 and 3 have mean 2 and deviation 1.
    found = encoded(number(1, NAN, 3, NAN))
    assert found.names == ("x", "x missing")
    np.testing.assert_array_equal(found.features, [[-1, 0], [0, 1], [1, 0], [0, 1]])
    np.testing.assert_array_equal(found.deviations, [1, 0.5])  # half of the cells are missing: root of 0.5 · 0.5


def test_a_constant_column_becomes_zero() -> None:
    found = encoded(number(0.1, 0.1, 0.1), clients=2)
    assert not found.features.any()
    assert found.deviations[0] == 0


def test_one_feature_a_category_in_alphabetical_order() -> None:
    found = encoded(category("b", "a", "", "b"))
    assert found.names == ("c=a", "c=b", "c missing")
    np.testing.assert_array_equal(found.features, [[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0]])


def test_categories_that_no_client_may_name_share_a_feature() -> None:
    found = encoded(category("a", "a", "a", "rare", "odd"), min_release=3)
    assert found.names == ("c=a", "c other")
    np.testing.assert_array_equal(found.features, [[1, 0]] * 3 + [[0, 1]] * 2)
    assert not any("rare" in name or "odd" in name for name in found.names)


def test_a_category_of_a_silent_client_alone_leaves_all_features_zero() -> None:
    # Client 0 holds rows 0, 2, 4; client 1 the others, too few to be heard, so nobody knows of "b".
    found = encoded(category("a", "b", "a", "b", "a"), clients=2, min_release=3)
    assert found.names == ("c=a",)
    np.testing.assert_array_equal(found.features[:, 0], [1, 0, 1, 0, 1])


def test_a_value_that_no_statistic_covers_stays_finite() -> None:
    found = encoded(number(0, 1e150, 1e-3, -1e150, 0), clients=2, min_release=3)
    assert np.isfinite(found.features).all()
    np.testing.assert_array_equal(found.features[[1, 3], 0], [LARGEST_SCORE, -LARGEST_SCORE])


def test_columns_keep_their_order() -> None:
    found = encoded(category("a", "b"), number(1, 3), NumberColumn("w", np.array([0.0, 2.0])))
    assert found.names == ("c=a", "c=b", "x", "w")
    np.testing.assert_array_equal(found.features, [[1, 0, -1, -1], [0, 1, 1, 1]])
