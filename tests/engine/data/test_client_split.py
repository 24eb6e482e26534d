"""Every row in exactly one part, each class's share rounded down or up."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscout.engine.arrays import IntArray
from fedscout.engine.data.split import split_client

LABELS = st.lists(st.integers(0, 4), min_size=0, max_size=80).map(lambda v: np.array(v, dtype=np.int64))
FRACTIONS = st.floats(0.0, 0.99)
SEEDS = st.integers(0, 2**32)


def assert_stratified(labels: IntArray, pool: IntArray, part: IntArray) -> None:
    """m of n rows were drawn: a class of c rows gives c·m/n, rounded down or up."""
    for label in np.unique(labels[pool]):
        share = Fraction(int(np.sum(labels[pool] == label)) * len(part), len(pool))
        assert math.floor(share) <= int(np.sum(labels[part] == label)) <= math.ceil(share)


@given(labels=LABELS, seed=SEEDS, test=FRACTIONS, validation=FRACTIONS)
def test_parts_are_disjoint_whole_and_stratified(labels: IntArray, seed: int, test: float, validation: float) -> None:
    split = split_client(labels, seed, 3, test, validation)

    every = np.concatenate([split.train, split.validation, split.test])
    assert sorted(every.tolist()) == list(range(len(labels)))
    if len(split.test):
        assert_stratified(labels, np.arange(len(labels)), split.test)
    if len(split.validation):
        assert_stratified(labels, np.concatenate([split.train, split.validation]), split.validation)


@given(labels=LABELS, seed=SEEDS, test=st.floats(0.001, 0.99), validation=st.floats(0.001, 0.99))
def test_no_part_is_empty_that_need_not_be(labels: IntArray, seed: int, test: float, validation: float) -> None:
    split = split_client(labels, seed, 0, test, validation)

    rows = len(labels)
    assert len(split.test) == (0 if rows < 2 else min(max(round(test * rows), 1), rows - 1))
    assert len(split.train) >= min(rows, 1)
    rest = rows - len(split.test)
    assert len(split.validation) == (0 if rest < 2 else min(max(round(validation * rest), 1), rest - 1))


@given(labels=LABELS, seed=SEEDS, test=FRACTIONS, validation=FRACTIONS)
def test_validation_is_cut_from_training(labels: IntArray, seed: int, test: float, validation: float) -> None:
    without = split_client(labels, seed, 1, test)
    with_it = split_client(labels, seed, 1, test, validation)

    assert np.array_equal(with_it.test, without.test)
    assert np.array_equal(np.union1d(with_it.train, with_it.validation), without.train)
    assert len(without.validation) == 0


@pytest.mark.parametrize("rows", [0, 1])
def test_a_client_with_fewer_than_two_rows_only_trains(rows: int) -> None:
    split = split_client(np.zeros(rows, np.int64), 0, 0, 0.5, 0.5)

    assert split.train.tolist() == list(range(rows))
    assert len(split.test) == len(split.validation) == 0


def test_two_rows_are_one_for_training_and_one_for_test() -> None:
    for fraction in (0.01, 0.2, 0.5, 0.99):
        split = split_client(np.array([1, 1]), 0, 0, fraction, 0.5)
        assert (len(split.train), len(split.validation), len(split.test)) == (1, 0, 1)


def test_four_fifths_of_equal_classes() -> None:
    """100 rows, 50/30/20 a class: 20 % is exactly 10/6/4."""
    labels = np.repeat([0, 1, 2], [50, 30, 20])

    for seed in range(20):
        split = split_client(labels, seed, 0, 0.2)
        assert np.bincount(labels[split.test]).tolist() == [10, 6, 4]


def test_the_seed_and_the_client_fix_the_split() -> None:
    labels = np.arange(200) % 4
    first = split_client(labels, 5, 7, 0.2, 0.1)
    again = split_client(labels.copy(), 5, 7, 0.2, 0.1)

    assert all(np.array_equal(getattr(first, part), getattr(again, part)) for part in ("train", "validation", "test"))
    # 40 of 200 rows agree by chance with probability 1/C(200, 40), below 10**-40
    assert not np.array_equal(first.test, split_client(labels, 6, 7, 0.2).test)
    assert not np.array_equal(first.test, split_client(labels, 5, 8, 0.2).test)


def test_every_row_is_equally_likely_to_be_tested() -> None:
    """Over 2,000 seeds a row is tested 400 times on average, standard deviation √(2000·0.2·0.8) = 17.9."""
    labels = np.array([0, 1, 0, 2, 0, 1, 0, 2, 0, 0])
    times = np.zeros(10)
    for seed in range(2000):
        times[split_client(labels, seed, 0, 0.2).test] += 1

    assert np.all(np.abs(times - 400) < 5 * 17.9)
