"""Encoded features are finite, complete columns have mean 0 and variance 1; gaps and rare categories have a place."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, strategies as st

from fedscout.experiments.data import tables
from fedscout.experiments.data.columns import Column

NAN = float("nan")
# Features are float32: a value of size 1 is off by 6e-8 at most, and so is a mean of them.
ROUNDING = 1e-6


def number(*values: float | None) -> Column:
    return Column("x", np.array(values, dtype=np.float64))


def category(*values: str | None) -> Column:
    names = tuple(sorted({value for value in values if value}))
    return Column("c", np.array([names.index(value) if value else -1 for value in values]), names)


def asked(columns: Sequence[Column], owners: Sequence[int], min_release: int = 1) -> list[tables.TableStatistics]:
    """Return what clients report; `owners` names the client of each row."""
    rows = [np.flatnonzero(np.array(owners) == client) for client in sorted(set(owners))]
    answers = [tables.client_statistics(columns, of_client, min_release) for of_client in rows]
    return [answer for answer in answers if answer is not None]


def merged(columns: Sequence[Column], owners: Sequence[int], min_release: int = 1) -> tables.TableStatistics:
    return tables.merge_statistics(asked(columns, owners, min_release))


def encoded(*columns: Column, clients: int = 1, min_release: int = 1) -> tables.EncodedFeatures:
    owners = [row % clients for row in range(len(columns[0].missing))]
    return tables.encode_features(columns, merged(columns, owners, min_release))


@given(
    st.lists(st.integers(-1000, 1000), min_size=4, max_size=40).filter(lambda values: len(set(values)) > 1),
    st.integers(1, 4),
    st.sampled_from([1e-9, 1.0, 1e9]),
    st.sampled_from([0.0, 1e5, -1e5]),
)
def test_columns_have_mean_0_and_variance_1(values: list[int], clients: int, unit: float, offset: float) -> None:
    """From the statistics of clients, and from the whole column in units in which squares overflow."""
    found = encoded(number(*[(value + offset) * unit for value in values]), clients=clients)
    assert found.names == ("x",)
    assert found.deviations[0] == pytest.approx(np.std(np.array(values) * unit))
    wholes = (
        tables.standardise(column([(value + offset) * unit * scale for value in values]))
        for scale in (1.0, 1e-290, 1e290)
    )
    for features in (found.features.astype(np.float64), *(whole.astype(np.float64) for whole in wholes)):
        assert features.mean() == pytest.approx(0, abs=ROUNDING)
        assert np.mean(features**2) == pytest.approx(1, abs=ROUNDING)
        assert (np.argsort(features[:, 0], kind="stable") == np.argsort(values, kind="stable")).all()


def column(values: list[float]) -> npt.NDArray[np.float64]:
    return np.array(values, dtype=np.float64)[:, None]


@pytest.mark.parametrize("constant", [0.0, 0.1, -3e17, 1e150])
def test_a_constant_column_becomes_zero_and_has_no_deviation_at_all(constant: float) -> None:
    # The mean of three times 0.1 is not 0.1 in floating point, so a test on the computed deviation would miss it.
    assert (tables.standardise(column([constant] * 3)) == 0).all()
    found = merged([number(*[constant] * 21)], [0, 1, 2] * 7).columns["x"]
    assert (found.mean, found.deviation) == (constant, 0.0)


def test_missing_numbers_become_the_mean_and_are_marked() -> None:
    # 1 and 3 have mean 2 and deviation 1.
    found = encoded(number(1, NAN, 3, NAN))
    assert found.names == ("x", "x missing")
    np.testing.assert_array_equal(found.features, [[-1, 0], [0, 1], [1, 0], [0, 1]])
    np.testing.assert_array_equal(found.deviations, [1, 0.5])  # half of the cells are missing: root of 0.5 · 0.5


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
    np.testing.assert_array_equal(found.features[[1, 3], 0], [tables.LARGEST_SCORE, -tables.LARGEST_SCORE])


# Statistics from clients are those of the pooled table, and nothing leaves a client over too few rows.
# Tolerance: with eps = 2⁻⁵³, a sum of n numbers of magnitude M is off by at most n·eps·M, so a mean by n·eps·M, and a
# standard deviation, being a root of squares around that mean, by a few times as much. Columns here have n ≤ 120 rows.


EPS = 2.0**-53
numbers = st.lists(
    st.one_of(st.none(), st.integers(-1000, 1000), st.floats(-1e6, 1e6, allow_nan=False)), min_size=1, max_size=120
)


@given(numbers, st.data())
def test_merged_moments_are_those_of_the_pooled_column(values: list[float | None], data: st.DataObject) -> None:
    owners = data.draw(st.lists(st.integers(0, 5), min_size=len(values), max_size=len(values)))
    statistics = merged([number(*values)], owners)
    found = statistics.columns["x"]

    present = [Fraction(value) for value in values if value is not None]
    assert found.count == len(present)
    assert statistics.num_rows == len(values)
    if present:
        mean = sum(present) / len(present)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in present) / len(present))
        bound = 8 * len(values) * EPS * max(abs(float(value)) for value in present)
        assert found.mean == pytest.approx(float(mean), rel=0, abs=bound)
        assert found.deviation == pytest.approx(deviation, rel=0, abs=4 * bound)


@given(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=60), st.data())
def test_merged_counts_are_those_of_the_pooled_column(values: list[str | None], data: st.DataObject) -> None:
    owners = data.draw(st.lists(st.integers(0, 5), min_size=len(values), max_size=len(values)))
    statistics = merged([category(*values)], owners)
    found = statistics.columns["c"]

    assert found.counts == {name: values.count(name) for name in sorted(set(values) - {None}, key=str)}
    assert list(found.counts) == sorted(found.counts)
    assert found.num_missing == values.count(None)
    assert found.num_other(statistics.num_rows) == 0
    assert found.num_distinct == len({(owner, value) for owner, value in zip(owners, values, strict=True) if value})


def test_the_order_of_clients_does_not_matter_to_the_last_bit() -> None:
    generator = np.random.default_rng(5)
    columns = [
        number(*(generator.normal(size=40) * 10.0 ** generator.integers(-8, 8, 40))),
        category(*generator.choice(["a", "b"], 40)),
    ]
    answers = asked(columns, generator.integers(0, 4, 40).tolist())
    assert len({str(tables.merge_statistics(order)) for order in itertools.permutations(answers)}) == 1


def test_a_large_mean_does_not_swallow_the_spread() -> None:
    # 1e9 + {0, 1}: squares near 1e18 have a spacing of 128, so their differences would be lost.
    found = merged([number(*[1e9, 1e9 + 1] * 20)], [0, 0, 1, 1] * 10).columns["x"]
    assert (found.mean, found.deviation) == (1e9 + 0.5, 0.5)


# What a client keeps to itself.


def test_nothing_is_told_of_few_rows_few_values_and_rare_categories() -> None:
    many = Column("y", np.array([1, 2, 3, 4, NAN, NAN]))
    columns = [number(1, 2, 3, None, None, None), many, category(*["a"] * 4 + ["secret"] + [None])]
    assert tables.client_statistics(columns, np.arange(3), min_release=4) is None
    answer = tables.client_statistics(columns, np.arange(6), min_release=4)
    assert (answer.columns["x"].count, answer.columns["x"].mean, answer.columns["x"].squares) == (0, 0, 0)
    # 1, 2, 3, 4: mean 2.5, squared deviations 2.25 + 0.25 + 0.25 + 2.25.
    assert (answer.columns["y"].count, answer.columns["y"].mean, answer.columns["y"].squares) == (4, 2.5, 5.0)
    assert answer.columns["c"].counts == {"a": 4}
    assert "secret" not in repr(answer)


def test_a_category_that_one_client_names_is_known_to_all() -> None:
    # Client 0 has "b" three times, client 1 once; "z" is rare at both.
    found = merged([category(*["b", "b", "b", "z", "a", "a", "a", "b", "z"])], [0] * 4 + [1] * 5, min_release=3)
    assert found.columns["c"].counts == {"a": 3, "b": 3}
    assert found.columns["c"].num_other(found.num_rows) == 3  # "z" twice and the untold "b"
