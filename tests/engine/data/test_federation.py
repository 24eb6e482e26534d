"""Partitions, samples and corruption; how a client's rows are split; the gate that answers pass."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data import client as gate
from fedscout.engine.data.federation import AbsentError, Federation, RowPart, split_client
from fedscout.engine.messages.contents import Training, exchange, train_config
from fedscout.engine.trials.record import Trial
from tests.detectors.federations import RecordingGrid, federation, gaussian_clients
from tests.engine.choices import FLOWER_CHOICES, spec_of
from tests.engine.federations import SIZES, Noisy, uneven_federation
from tests.engine.results import completed


@dataclass(frozen=True)
class Line:
    """Features become factor·x + term, and labels the next class where there is a term."""

    factor: float = 1.0
    term: float = 0.0

    def __call__(
        self, features: FloatArray, labels: IntArray, num_classes: int, generator: np.random.Generator
    ) -> tuple[FloatArray, IntArray]:
        moved = features * np.float32(self.factor) + np.float32(self.term)
        return moved, (labels + bool(self.term)) % num_classes


def test_transforms_are_applied_once_each_and_in_order() -> None:
    """(x + 1)·3, which is neither x·3 + 1 nor (x + 2)·3."""
    federation = replace(uneven_federation(), transforms={0: (Line(term=1.0), Line(factor=3.0))})
    before = federation.features.copy(), federation.labels.copy()

    data = federation.client_data(0)
    federation.client_data(0)
    clean, labels = data.clean.take(np.arange(SIZES[0]))
    own, own_labels = data.own.take(np.arange(SIZES[0]))

    assert data.corrupted
    assert np.array_equal(own, (clean + np.float32(1)) * np.float32(3))
    assert np.array_equal(own_labels, (labels + 1) % 3)
    assert np.array_equal(clean, before[0][federation.partition.client(0)])
    assert np.array_equal(federation.features, before[0])
    assert np.array_equal(federation.labels, before[1])


def test_noise_differs_by_client_by_place_and_by_seed() -> None:
    noise = (Noisy(), Noisy())
    federation = replace(uneven_federation(), transforms={0: noise, 1: noise})

    def added(federation: Federation, client: int) -> FloatArray:
        data = federation.client_data(client)
        every = np.arange(10)
        return np.asarray(data.own.take(every)[0] - data.clean.take(every)[0])

    once = added(replace(federation, transforms={0: noise[:1]}), 0)
    twice = added(federation, 0)

    assert not np.allclose(twice, 2 * once, atol=1e-3)
    assert not np.allclose(twice, added(federation, 1), atol=1e-3)
    assert not np.allclose(twice, added(replace(federation, seed=1), 0), atol=1e-3)


# -- Names of clients, classes and features in sentences; positions where there is no name -----------------------------


# -- How a client's rows are split: stratified, by groups or in their order, and in parts that messages carry ----------


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


# -- The gate: what passes it is over enough rows, and what it leaves out can't be worked out from the rest ------------


CELLS = st.lists(st.integers(0, 12), min_size=1, max_size=8)
FEWEST = st.integers(1, 9)


@given(CELLS, st.integers(0, 9))
def test_neither_what_is_told_nor_what_is_left_out_is_too_little(cells: list[int], fewest: int) -> None:
    """The sum over all rows is known, so that the cells left out must hold none or enough, together."""
    rows = np.array(cells)
    told = gate.released_cells(rows, fewest)
    assert (rows[told] >= fewest).all()
    left_out = rows[~told].sum()
    if rows.sum() >= fewest:
        assert left_out == 0 or left_out >= fewest
    if (rows[rows > 0] >= fewest).all():
        np.testing.assert_array_equal(told, rows > 0)


@given(CELLS, FEWEST)
def test_counts_are_told_as_far_as_nothing_follows_from_them(cells: list[int], fewest: int) -> None:
    """Never more than there are; and fewer only of the cell that `released_cells` leaves out, whose rows and those of
    the small ones together are known: what is told of it is that number less `fewest`, if that is enough."""
    rows = np.array(cells)
    told, cells_told = gate.release_counts(rows, fewest), gate.released_cells(rows, fewest)
    np.testing.assert_array_equal(told[cells_told], rows[cells_told])
    joined = ~cells_told & (rows >= fewest)
    assert joined.sum() <= 1
    rest = rows[~cells_told].sum() - fewest
    assert told[joined].tolist() == [rest if rest >= fewest and rest > 0 else 0] * int(joined.sum())
    assert (told[~cells_told & ~joined] == 0).all()


def test_the_first_cell_that_could_be_told_joins_a_lonely_row() -> None:
    """Four of its rows hide the one; of eight rows four would be left, so all go."""
    assert gate.released_cells(np.array([20, 1, 6, 30]), 5).tolist() == [False, False, True, True]
    assert gate.release_counts(np.array([20, 1, 6, 30]), 5).tolist() == [16, 0, 6, 30]
    assert gate.release_counts(np.array([8, 1, 6, 30]), 5).tolist() == [0, 0, 6, 30]


@pytest.mark.parametrize("num_cells", [2, 3, 4])
def test_who_knows_all_that_is_told_can_not_tell_a_small_cell(num_cells: int) -> None:
    """By enumeration: all clients of up to 12 rows that tell the same counts, the same sums over cells and the same
    number of rows. Among them every cell of one or two rows takes another value, too; unless all that are left out
    hold two, the most that they can."""
    fewest = 3
    alike = defaultdict(list)
    for cells in product(range(13), repeat=num_cells):
        if fewest <= sum(cells) <= 12:
            rows = np.array(cells)
            told = np.where(gate.released_cells(rows, fewest), rows, 0)
            alike[sum(cells), tuple(told), tuple(gate.release_counts(rows, fewest))].append(cells)
    assert len(alike) > 10
    for group in alike.values():
        if all(count == fewest - 1 or count >= fewest for count in group[0]):
            continue
        for values in zip(*group, strict=True):
            assert len(set(values)) > 1 or not 0 < values[0] < fewest


def test_cells_of_several_tables_are_told_one_table_at_a_time() -> None:
    rows = np.array([[20, 1, 6, 30], [5, 5, 5, 5]])
    np.testing.assert_array_equal(gate.released_cells(rows, 5), [gate.released_cells(own, 5) for own in rows])
    np.testing.assert_array_equal(gate.release_counts(rows, 5), [gate.release_counts(own, 5) for own in rows])


def test_sums_of_small_cells_are_zero() -> None:
    sums = np.arange(1.0, 9.0).reshape(4, 2)
    passed = gate.Release(5).released_part({"sums": gate.RowAggregate(sums, np.array([20, 1, 6, 30]))})["sums"]
    np.testing.assert_array_equal(passed, [[0, 0], [0, 0], [5, 6], [7, 8]])
    assert gate.Release(1).released_part({"sums": gate.RowAggregate(sums, np.array([20, 1, 6, 30]))})["sums"] is sums


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_numbers_over_few_rows_do_not_pass(rows: int) -> None:
    few = {"enough": gate.RowAggregate(np.ones(2), 5), "mean": gate.RowAggregate(np.ones(2), rows)}
    with pytest.raises(gate.WithheldError, match=r"federation\.min_release$"):
        gate.Release(5).released_part(few)
    enough = {"mean": gate.RowAggregate(np.ones(2), 5), "none": gate.RowAggregate(np.zeros(2), 0)}
    assert gate.Release(5).released_part(enough).keys() == enough.keys()


def test_where_privacy_is_promised_only_noise_passes_and_enough_of_it() -> None:
    promised = gate.Privacy(1.0, 1e-6, secure=True)
    release, noisy = gate.Release(5, privacy=promised), np.array([3])
    assert release.released_part({"counts": gate.NoisyAggregate(noisy, promised)})["counts"] is noisy
    assert (
        release.released_part({"counts": gate.NoisyAggregate(noisy, gate.Privacy(0.9, secure=True))})["counts"] is noisy
    )
    less = (replace(promised, epsilon=1.1), replace(promised, delta=1e-5), replace(promised, secure=False))
    noises = [gate.NoisyAggregate(noisy, privacy) for privacy in less]
    for part in (*noises, gate.RowAggregate(noisy, 1000), gate.CountAggregate(np.array([1000, 1000]))):
        with pytest.raises(gate.WithheldError, match=r"detection\.epsilon"):
            release.released_part({"counts": gate.NoisyAggregate(noisy, promised), "other": part})


def test_what_a_query_raises_does_not_pass() -> None:
    def fails() -> gate.Answer:
        raise IndexError("index 7 is out of bounds for axis 0 with size 2")

    def withholds() -> gate.Answer:
        raise gate.WithheldError("mine")

    for release in (gate.Release(5), gate.Release(5, privacy=gate.Privacy(1.0))):
        with pytest.raises(gate.WithheldError) as withheld:
            release.answer(fails)
        assert isinstance(withheld.value.__cause__, IndexError)
        assert not any(word in str(withheld.value) for word in ("7", "index", "IndexError"))
        assert ("detection.epsilon" in str(withheld.value)) == (release.privacy is not None)
        with pytest.raises(gate.WithheldError, match="mine"):
            release.answer(withholds)


def test_what_says_nothing_of_its_rows_does_not_pass() -> None:
    with pytest.raises(TypeError, match="ndarray"):
        gate.Release(1).released_part({"counts": np.ones(2)})  # type: ignore[dict-item]


# -- Clients with few rows that abstain: neither trained nor scored, and the trial goes on -----------------------------


ABSTAINING = gate.Release(5, "abstain")
TRAINING = (0, 1, 3, 5)
"""With at least five training rows; the clients of 40, 17, 12 and 33 rows."""


def result_of(federation: Federation, choice: str = "fedavg") -> Trial:
    return completed(spec_of(FLOWER_CHOICES[choice]), federation)


@pytest.mark.parametrize("choice", ["fedavg", "fedavg-individual", "fedmedian"])
def test_a_trial_goes_as_if_they_held_nothing(choice: str) -> None:
    federation = uneven_federation()
    without = [federation.partition.client(c) if c in TRAINING else [] for c in range(len(SIZES))]
    abstained = result_of(replace(federation, release=ABSTAINING), choice)
    expected = result_of(replace(federation, partition=gate.Partition.from_lists(without)), choice)
    np.testing.assert_allclose(abstained.vector, expected.vector, rtol=0, atol=1e-6)  # exact sums scale with all rows


def test_their_absence_is_counted_and_tells_no_number() -> None:
    result = result_of(replace(uneven_federation(), release=ABSTAINING))
    missing = {f"{server_round}:{client}" for server_round in (1, 2, 3) for client in {*range(7)} - {*TRAINING}}
    assert set(result.dropped_clients) == missing
    (reason,) = set(result.dropped_clients.values())
    assert reason.startswith(AbsentError.__name__)
    assert not any(character.isdigit() for character in reason)


def test_only_who_tests_on_enough_rows_is_scored() -> None:
    """A fifth of 40 and of 33 rows is enough, of 17 and 12 it is not."""
    result = result_of(replace(uneven_federation(), release=ABSTAINING))
    assert result.clients["num_examples"] == (8, 0, 0, 0, 0, 7, 0)
    assert result_of(uneven_federation()).clients["num_examples"] == (8, 3, 0, 2, 0, 7, 1)
