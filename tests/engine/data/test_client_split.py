"""How a client's rows are split: stratified, by groups or in their order, and in parts that messages carry."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.federation import RowPart
from fedscout.engine.data.split import split_client
from fedscout.engine.messages.contents import train_config
from fedscout.engine.messages.exchange import Training, exchange
from tests.detectors.federations import RecordingGrid, federation, gaussian_clients

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


def test_every_row_is_equally_likely_to_be_tested() -> None:
    """Over 2,000 seeds a row is tested 400 times on average, standard deviation √(2000·0.2·0.8) = 17.9."""
    labels = np.array([0, 1, 0, 2, 0, 1, 0, 2, 0, 0])
    times = np.zeros(10)
    for seed in range(2000):
        times[split_client(labels, seed, 0, 0.2).test] += 1

    assert np.all(np.abs(times - 400) < 5 * 17.9)


# -- Rows that belong together are never on both sides of a split, and a series can be cut in its order ----------------


ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12)), min_size=0, max_size=80).map(
    lambda rows: np.array(rows, dtype=np.int64).reshape(-1, 2).T
)
FRACTIONS_GROUPS = st.floats(0.01, 0.9)


def group_sets(groups: IntArray, *parts: IntArray) -> list[set[int]]:
    return [set(groups[part].tolist()) for part in parts]


@given(rows=ROWS, seed=SEEDS, test=FRACTIONS_GROUPS, validation=st.floats(0.0, 0.9), last=st.booleans())
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


# -- Parts of a client's rows: disjoint, of one size, drawn, and carried by a train message to the client's host -------


def test_parts_are_disjoint_and_drawn() -> None:
    parts = [RowPart(index, 7, seed=3).positions(30, client=5) for index in range(5)]
    assert [len(part) for part in parts] == [7, 7, 7, 7, 2]
    assert sorted(np.concatenate(parts)) == list(range(30))
    assert parts[0].tolist() != RowPart(0, 7, seed=3).positions(30, client=6).tolist()


def test_rows_of_a_group_lie_together() -> None:
    groups = np.arange(30) // 5
    parts = [RowPart(index, 10, seed=3).positions(30, 5, groups) for index in range(3)]
    assert sorted(np.concatenate(parts)) == list(range(30))
    assert all(len({*groups[part].tolist()}) == 2 for part in parts)
    assert parts[0].tolist() != RowPart(0, 10, seed=4).positions(30, 5, groups).tolist()


def test_clients_train_on_the_part_that_is_asked_for() -> None:
    """As on that part alone, all of it; who holds fewer rows does not answer."""
    clients = gaussian_clients([30, 12])
    grid = RecordingGrid(federation(clients))
    config = train_config(LocalTraining(batch_size=100), 0, 1, "individual")
    part = RowPart(1, 7, seed=3)
    start = grid.initial_vector(0)
    _, (answers,) = exchange(grid, [], [Training(start, {**config, **part.to_config()})])
    assert answers.clients == (0,)
    assert answers.num_examples.tolist() == [7]
    assert answers.refused[1].startswith("AbsentError")
    rows = part.positions(30, client=0)
    alone = RecordingGrid(federation([(clients[0][0][rows], clients[0][1][rows])]))
    _, (expected,) = exchange(alone, [], [Training(start, {**config, **RowPart(0, 7, 0).to_config()})])
    np.testing.assert_allclose(answers.vectors, expected.vectors, atol=1e-6)
