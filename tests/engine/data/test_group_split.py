"""Rows that belong together are never on both sides of a split, and a series can be cut in its order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscout.engine.arrays import IntArray
from fedscout.engine.data.split import split_client

ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12)), min_size=0, max_size=80).map(
    lambda rows: np.array(rows, dtype=np.int64).reshape(-1, 2).T
)
FRACTIONS = st.floats(0.01, 0.9)
SEEDS = st.integers(0, 2**32)


def group_sets(groups: IntArray, *parts: IntArray) -> list[set[int]]:
    return [set(groups[part].tolist()) for part in parts]


@given(rows=ROWS, seed=SEEDS, test=FRACTIONS, validation=st.floats(0.0, 0.9), last=st.booleans())
def test_no_group_is_in_two_parts(rows: IntArray, seed: int, test: float, validation: float, last: bool) -> None:
    labels, groups = rows
    order = np.random.default_rng(seed).permutation(len(labels)) if last else None

    split = split_client(labels, seed, 3, test, validation, groups, order)

    every = np.concatenate([split.train, split.validation, split.test])
    assert sorted(every.tolist()) == list(range(len(labels)))
    train, held, tested = group_sets(groups, split.train, split.validation, split.test)
    assert not train & held
    assert not (train | held) & tested
    assert bool(train) == bool(len(labels))
    assert bool(tested) == (len(set(groups.tolist())) > 1)


@given(rows=ROWS, seed=SEEDS, test=st.floats(0.01, 0.6))
def test_the_share_of_test_rows_is_missed_by_half_a_group_at_most(rows: IntArray, seed: int, test: float) -> None:
    labels, groups = rows
    split = split_client(labels, seed, 0, test, groups=groups)
    sizes = np.bincount(groups)
    wanted = test * len(labels)
    if wanted >= sizes.max(initial=0) / 2:  # else a single group may be more than is wanted
        left = len(set(groups[split.train].tolist()))
        assert abs(len(split.test) - wanted) <= sizes.max(initial=0) / 2 or left == 1


@given(seed=SEEDS)
def test_groups_of_equal_size_are_drawn_to_the_wanted_share_and_by_class(seed: int) -> None:
    """20 groups of 5 rows, 10 of them of class 1: a fifth is 4 groups, two of each class."""
    groups = np.random.default_rng(seed).permutation(np.repeat(np.arange(20), 5))
    labels = (groups >= 10).astype(np.int64)

    test = split_client(labels, seed, 0, 0.2, groups=groups).test

    assert len(test) == 20
    assert labels[test].sum() == 10


def test_every_group_is_tested_on_by_some_seed() -> None:
    groups = np.repeat(np.arange(6), 4)
    labels = groups % 2
    tested = {group for seed in range(60) for group in groups[split_client(labels, seed, 0, 0.2, groups=groups).test]}
    assert tested == set(range(6))


def test_of_groups_that_are_all_too_large_the_smallest_is_tested_on() -> None:
    groups = np.repeat([0, 1], [60, 40])
    split = split_client(np.zeros(100, np.int64), 0, 0, 0.1, groups=groups)
    assert set(groups[split.test].tolist()) == {1}


@given(num_rows=st.integers(2, 60), seed=SEEDS)
def test_the_last_rows_of_a_series_are_its_test_part_and_those_before_validate(num_rows: int, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(num_rows)

    split = split_client(np.zeros(num_rows, np.int64), seed, 0, 0.2, 0.25, order=order)

    times = [order[part] for part in (split.train, split.validation, split.test)]
    assert np.concatenate([np.sort(part) for part in times]).tolist() == list(range(num_rows))
    assert len(split.test) == max(1, round(0.2 * num_rows))


def test_a_series_of_groups_is_cut_between_groups() -> None:
    order, groups = np.arange(10), np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 2])
    split = split_client(np.zeros(10, np.int64), 0, 0, 0.2, groups=groups, order=order)
    assert split.test.tolist() == [7, 8, 9]


@pytest.mark.parametrize("last", [False, True])
def test_a_client_of_one_group_only_trains(last: bool) -> None:
    order = np.arange(8) if last else None
    split = split_client(np.arange(8) % 2, 0, 0, 0.5, 0.5, np.full(8, 3), order)
    assert len(split.train) == 8
