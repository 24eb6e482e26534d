"""Statistics from clients are those of the pooled table, and nothing leaves a client over too few rows.

Tolerance: with eps = 2⁻⁵³, a sum of n numbers of magnitude M is off by at most n·eps·M, so a mean by n·eps·M, and a
standard deviation, being a root of squares around that mean, by a few times as much. Columns here have n ≤ 120 rows.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscout.experiments.data.columns import CategoryColumn, NumberColumn
from fedscout.experiments.data.encoding import TableStatistics, client_statistics, merge_statistics

EPS = 2.0**-53
numbers = st.lists(
    st.one_of(st.none(), st.integers(-1000, 1000), st.floats(-1e6, 1e6, allow_nan=False)), min_size=1, max_size=120
)


def column(values: list[float | None]) -> NumberColumn:
    return NumberColumn("x", np.array([math.nan if value is None else value for value in values]))


def categories(values: list[str | None]) -> CategoryColumn:
    names = tuple(sorted({value for value in values if value is not None}))
    return CategoryColumn("c", np.array([-1 if value is None else names.index(value) for value in values]), names)


def asked(
    columns: list[NumberColumn | CategoryColumn], owners: list[int], min_release: int = 1
) -> list[TableStatistics]:
    answers = [
        client_statistics(columns, np.flatnonzero(np.array(owners) == client), min_release)
        for client in sorted(set(owners))
    ]
    return [answer for answer in answers if answer is not None]


def merged(columns: list[NumberColumn | CategoryColumn], owners: list[int], min_release: int = 1) -> TableStatistics:
    return merge_statistics(asked(columns, owners, min_release))


@given(numbers, st.data())
def test_merged_moments_are_those_of_the_pooled_column(values: list[float | None], data: st.DataObject) -> None:
    owners = data.draw(st.lists(st.integers(0, 5), min_size=len(values), max_size=len(values)))
    statistics = merged([column(values)], owners)
    found = statistics.moments["x"]

    present = [Fraction(value) for value in values if value is not None]
    assert found.count == len(present)
    assert statistics.has_missing("x") == (len(present) < len(values))
    if present:
        mean = sum(present) / len(present)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in present) / len(present))
        bound = 8 * len(values) * EPS * max(abs(float(value)) for value in present)
        assert found.mean == pytest.approx(float(mean), rel=0, abs=bound)
        assert found.deviation == pytest.approx(deviation, rel=0, abs=4 * bound)


@given(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=60), st.data())
def test_merged_counts_are_those_of_the_pooled_column(values: list[str | None], data: st.DataObject) -> None:
    owners = data.draw(st.lists(st.integers(0, 5), min_size=len(values), max_size=len(values)))
    statistics = merged([categories(values)], owners)
    found = statistics.tallies["c"]

    assert found.counts == {name: values.count(name) for name in sorted(set(values) - {None}, key=str)}
    assert list(found.counts) == sorted(found.counts)
    assert found.num_missing == values.count(None)
    assert statistics.num_other("c") == 0
    assert found.num_distinct == len({(owner, value) for owner, value in zip(owners, values, strict=True) if value})


def test_the_order_of_clients_does_not_matter_to_the_last_bit() -> None:
    generator = np.random.default_rng(5)
    columns = [
        column((generator.normal(size=40) * 10.0 ** generator.integers(-8, 8, 40)).tolist()),
        categories(generator.choice(["a", "b"], 40).tolist()),
    ]
    answers = asked(columns, generator.integers(0, 4, 40).tolist())
    assert len({str(merge_statistics(order)) for order in itertools.permutations(answers)}) == 1


def test_a_large_mean_does_not_swallow_the_spread() -> None:
    # 1e9 + {0, 1}: squares near 1e18 have a spacing of 128, so their differences would be lost.
    found = merged([column([1e9, 1e9 + 1] * 20)], [0, 0, 1, 1] * 10).moments["x"]
    assert (found.mean, found.deviation) == (1e9 + 0.5, 0.5)


@pytest.mark.parametrize("constant", [0.1, -3e17, 1e150])
def test_a_constant_column_has_no_deviation_at_all(constant: float) -> None:
    found = merged([column([constant] * 21)], [0, 1, 2] * 7).moments["x"]
    assert (found.mean, found.deviation) == (constant, 0.0)


# What a client keeps to itself.


def test_a_client_of_few_rows_says_nothing() -> None:
    columns = [column([1, 2, 3]), categories(["a", "a", "a"])]
    assert client_statistics(columns, np.arange(3), min_release=4) is None
    assert client_statistics(columns, np.arange(3), min_release=3) is not None


def test_nothing_is_told_of_a_column_with_few_values() -> None:
    columns = [column([1, 2, 3, None, None, None]), column([1, 2, 3, 4, None, None])]
    columns[1] = NumberColumn("y", columns[1].numbers)
    answer = client_statistics(columns, np.arange(6), min_release=4)
    assert answer is not None
    assert (answer.moments["x"].count, answer.moments["x"].mean, answer.moments["x"].squares) == (0, 0, 0)
    # 1, 2, 3, 4: mean 2.5, squared deviations 2.25 + 0.25 + 0.25 + 2.25.
    assert (answer.moments["y"].count, answer.moments["y"].mean, answer.moments["y"].squares) == (4, 2.5, 5.0)


def test_rare_categories_are_not_named() -> None:
    answer = client_statistics([categories(["a"] * 3 + ["secret"] * 2 + [None])], np.arange(6), min_release=3)
    assert answer is not None
    assert answer.tallies["c"].counts == {"a": 3}
    assert "secret" not in repr(answer)


def test_a_category_that_one_client_names_is_known_to_all() -> None:
    # Client 0 has "b" three times, client 1 once; "z" is rare at both.
    found = merged([categories(["b", "b", "b", "z", "a", "a", "a", "b", "z"])], [0] * 4 + [1] * 5, min_release=3)
    assert found.tallies["c"].counts == {"a": 3, "b": 3}
    assert found.num_other("c") == 3  # "z" twice and the untold "b"


def test_silent_clients_have_no_part_in_the_figures() -> None:
    values = [1.0, 2.0, 3.0, 1000.0]
    found = merged([column(values)], [0, 0, 0, 1], min_release=2)
    assert found.num_rows == 3
    assert found.moments["x"].mean == 2.0
    assert not found.has_missing("x")
