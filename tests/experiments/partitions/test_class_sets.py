"""Clients of given classes: as many as asked, every one of them held, and sizes as equal as class counts allow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscout.engine.errors import DataError
from tests.experiments.partitions.requests import class_counts, deal
from tests.kits.refusals import refused


@given(st.integers(2, 8), st.floats(0.05, 1), st.integers(1, 20), st.integers(0, 999))
def test_every_client_has_its_share_of_the_classes(num_classes: int, share: float, num_clients: int, seed: int) -> None:
    labels = np.arange(num_classes * 40) % num_classes
    counts = class_counts(
        labels, deal("classes_per_client", labels, num_clients, seed, class_share=share, min_size=1).partition
    )
    expected = max(1, round(share * num_classes))
    assert (np.count_nonzero(counts, axis=1) == expected).all()
    # All rows are dealt as soon as the clients have places for all classes.
    assert np.count_nonzero(counts.sum(axis=0)) == min(num_classes, num_clients * expected)
    assert set(counts.sum(axis=0)) <= {0, 40}


def test_severities_of_fedpilot() -> None:
    labels = np.arange(2000) % 10
    for percent in (20, 50, 90):
        partition = deal("classes_per_client", labels, 20, class_share=percent / 100).partition
        assert (np.count_nonzero(class_counts(labels, partition), axis=1) == percent // 10).all()


def test_clients_of_a_class_share_it_equally() -> None:
    labels = np.arange(1200) % 4
    counts = class_counts(labels, deal("classes_per_client", labels, 8, class_share=0.5).partition)
    # Eight clients with two of four equal classes: four clients a class, 75 of its 300 rows each.
    assert set(counts[counts > 0]) == {75}


def test_a_rare_class_goes_to_no_more_clients_than_it_has_rows() -> None:
    labels = np.array([0] * 500 + [1] * 500 + [2] * 3)
    counts = class_counts(labels, deal("classes_per_client", labels, 10, class_share=0.6).partition)
    assert (np.count_nonzero(counts, axis=1) == 2).all()
    assert 1 <= np.count_nonzero(counts[:, 2]) <= 3
    assert counts.sum() == 1003
    with refused(DataError, key="every client"):
        deal("classes_per_client", labels, 10, class_share=1.0)


def test_too_small_clients_are_refused() -> None:
    labels = np.array([0] * 500 + [1] * 3)
    with refused(DataError, key="federation.partition.min_size"):
        deal("classes_per_client", labels, 4, class_share=0.5)


@pytest.mark.parametrize(("num_classes", "level", "expected"), [(11, 0.2, 9), (11, 0.8, 3), (3, 0.6, 2), (2, 0.4, 2)])
def test_index_is_the_nearest_that_whole_classes_allow(num_classes: int, level: float, expected: int) -> None:
    labels = np.arange(num_classes * 100) % num_classes
    dealt = deal("heterogeneity_index", labels, 5, levels=(level,))
    held = np.count_nonzero(class_counts(labels, dealt.partition), axis=1)
    assert (held == expected).all()
    assert dealt.facts["realised_levels"] == (pytest.approx(1 - (expected - 1) / (num_classes - 1)),)


def test_levels_in_turn_at_equal_sizes() -> None:
    labels = np.arange(2200) % 11
    counts = class_counts(labels, deal("heterogeneity_index", labels, 20).partition)
    assert np.count_nonzero(counts, axis=1).tolist() == [9, 7, 5, 3] * 5
    assert counts.sum() == 2200
    # 110 rows a client, from classes of 200 rows that the clients of different sets share: within a fifth of it.
    assert np.abs(counts.sum(axis=1) - 110).max() <= 22


def test_all_combinations_of_levels_and_quantities() -> None:
    labels = np.arange(6000) % 10
    quantities = (100, 200, 300)
    partition = deal("heterogeneity_index", labels, 12, levels=(0, 1 / 3, 2 / 3, 1), quantities=quantities).partition
    counts = class_counts(labels, partition)
    groups = {(int(size), int(held)) for size, held in zip(partition.sizes, (counts > 0).sum(axis=1), strict=True)}
    assert groups == {(size, held) for size in quantities for held in (10, 7, 4, 1)}
    for row in counts:  # equal parts of each class
        assert row[row > 0].max() - row[row > 0].min() <= 1


@pytest.mark.parametrize(("quantities", "levels"), [((400,), (0.5,)), ((3,), (0.5,))])
def test_quantities_beyond_the_data(quantities: tuple[int, ...], levels: tuple[float, ...]) -> None:
    with refused(DataError, key="federation.partition.quantities"):
        deal("heterogeneity_index", np.arange(1000) % 10, 10, levels=levels, quantities=quantities)


def test_quantities_beyond_a_class() -> None:
    # Four clients of one class and 60 rows each, but of three classes of 80 rows: one class would have to serve two.
    with refused(DataError, key="federation.partition.quantities", given="120"):
        deal("heterogeneity_index", np.arange(240) % 3, 4, levels=(1.0,), quantities=(60,))


@pytest.mark.parametrize("kind", ["heterogeneity_index", "dominant_class"])
def test_one_class_has_no_skew(kind: str) -> None:
    with refused(DataError, key="federation.partition.kind", given="one"):
        deal(kind, np.zeros(100, np.int64), 4)


@given(st.lists(st.integers(6, 200), min_size=2, max_size=6), st.integers(1, 6), st.integers(0, 999))
def test_no_class_is_left_over_however_rare(rows_of_class: list[int], num_clients: int, seed: int) -> None:
    # Six clients at most, so every class has a row for each.
    labels = np.repeat(np.arange(len(rows_of_class)), rows_of_class)
    partition = deal("classes_per_client", labels, num_clients, seed, class_share=0.5, min_size=1).partition
    num_places = num_clients * round(len(rows_of_class) / 2)
    assert len(np.unique(labels[partition.rows])) == min(len(rows_of_class), num_places)
    assert len(partition.rows) == len(labels) or num_places < len(rows_of_class)
