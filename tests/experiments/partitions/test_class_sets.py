"""Clients of given classes: as many as asked, every one of them held, and sizes as equal as class counts allow."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscout.engine.errors import DataError
from fedscout.experiments.partitions.others import LABEL, ROW, partition_with_flower
from tests.experiments.partitions.requests import asked, class_counts, deal
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


# flwr-datasets: its lists of positions are what it deals, and its refusals are told in one line.


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("PathologicalPartitioner", {"num_partitions": 5, "partition_by": LABEL, "num_classes_per_partition": 2}),
        ("ShardPartitioner", {"num_partitions": 5, "partition_by": LABEL, "num_shards_per_partition": 2}),
        (
            "DistributionPartitioner",
            {
                "distribution_array": np.arange(1.0, 11.0).reshape(5, 2),
                "num_partitions": 5,
                "num_unique_labels_per_partition": 2,
                "partition_by": LABEL,
                "preassigned_num_samples_per_label": 3,
            },
        ),
        *((f"{law}Partitioner", {"num_partitions": 5}) for law in ("Linear", "Square", "Exponential")),
    ],
)
def test_rows_are_those_of_the_public_way(name: str, arguments: dict[str, Any]) -> None:
    labels = np.arange(300) % 5
    kept: list[Any] = []

    def make(kinds: Any, seed: int) -> Any:
        seeded = {"seed": seed} if "partition_by" in arguments else {}
        kept.append(getattr(kinds, name)(**arguments, **seeded))
        return kept[-1]

    partition = partition_with_flower(asked("iid", labels, 5, min_size=1), make).partition
    for client in range(5):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table = kept[0].load_partition(client)
        assert sorted(table[ROW]) == sorted(partition.client(client).tolist())
        assert table[LABEL] == labels[table[ROW]].tolist()


def test_a_refusal_is_one_line() -> None:
    with refused(DataError, key="federation.partition.kind") as caught:
        partition_with_flower(
            asked("iid", np.arange(300) % 5, 5), lambda kinds, _: kinds.PathologicalPartitioner(5, LABEL, 9)
        )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("assignment", ["first-deterministic", "deterministic", "random"])
@pytest.mark.parametrize("num_classes", [1, 2, 4])
def test_pathological_clients_have_so_many_classes(assignment: str, num_classes: int) -> None:
    labels = np.arange(2000) % 5
    settings = {"class_assignment": assignment, "classes_per_client": num_classes}
    counts = class_counts(labels, deal("pathological", labels, 10, **settings).partition)
    assert (np.count_nonzero(counts, axis=1) == num_classes).all()
    for label in range(5):  # and share each class equally
        held = counts[counts[:, label] > 0, label]
        assert len(held) == 0 or held.max() - held.min() <= 1
    if assignment != "random":
        assert counts.sum() == 2000
        assert (counts[np.arange(10), np.arange(10) % 5] > 0).all()


@pytest.mark.parametrize(
    ("labels", "num_clients", "settings"),
    [
        (np.arange(100) % 5, 60, {"min_size": 1}),
        (np.array([0] * 300 + [1] * 300 + [2]), 10, {"classes_per_client": 1}),
    ],
    ids=["more parts than rows", "a rare class"],
)
def test_pathological_refusals(labels: np.ndarray, num_clients: int, settings: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="20 assignments"):
        deal("pathological", labels, num_clients, **settings)


@pytest.mark.slow
def test_pathological_draws_are_bounded() -> None:
    # Both classes at every client: class 1 has nine rows for ten of them, whatever is drawn.
    labels = np.array([0] * 300 + [1] * 9)
    with refused(DataError, key="federation.partition.kind"):
        deal("pathological", labels, 10, class_assignment="random", classes_per_client=2)
    # With one class a client, 30 rows each take eight clients of class 0 at most, and one of class 1: nine, not ten.
    labels = np.array([0] * 250 + [1] * 50)
    with refused(DataError, key="federation.partition.min_size", given="30"):
        deal("pathological", labels, 10, classes_per_client=1, class_assignment="random", min_size=30)


def test_shards_are_runs_of_the_sorted_rows() -> None:
    labels = np.arange(3000) % 10
    counts = class_counts(labels, deal("shard", labels, 15).partition)
    # 30 shards of 100 rows, 300 rows a class: no shard spans two classes.
    assert set(counts[counts > 0].tolist()) <= {100, 200}
    assert (counts.sum(axis=1) == 200).all()
    assert deal("shard", labels, 7).partition.sizes.tolist() == [2 * (3000 // 14)] * 7


@pytest.mark.parametrize(("num_shards", "min_size"), [(6, 5), (1, 6)])
def test_shards_beyond_the_rows(num_shards: int, min_size: int) -> None:
    with pytest.raises(DataError, match=r"federation\.(partition|num_clients)"):
        deal("shard", np.arange(100) % 2, 20, shards_per_client=num_shards, min_size=min_size)


def test_distribution_deals_adjacent_classes_and_some_rows_of_each() -> None:
    labels = np.arange(3000) % 5
    counts = class_counts(labels, deal("distribution", labels, 10, classes_per_client=3, min_size=9).partition)
    for client in range(10):
        assert set(np.flatnonzero(counts[client])) == {client % 5, (client + 1) % 5, (client + 2) % 5}
    assert counts[counts > 0].min() >= 3
    assert counts.sum() == 3000


@pytest.mark.parametrize(
    ("num_clients", "settings", "key"),
    [
        (7, {}, "federation.num_clients"),
        (10, {"classes_per_client": 6}, "federation.partition.classes_per_client"),
        (10, {"min_size": 400}, "every class"),
    ],
)
def test_distribution_refusals(num_clients: int, settings: dict[str, Any], key: str) -> None:
    with refused(DataError, key=key):
        deal("distribution", np.arange(1000) % 5, num_clients, **settings)


@pytest.mark.parametrize(("kind", "most"), [("linear", 16), ("square", 7), ("exponential", 5)])
def test_most_clients_of_growing_sizes(kind: str, most: int) -> None:
    """Of 1000 rows the first of K clients gets 2/K(K + 1), 6/K(K + 1)(2K + 1) and 1/Σ eᵏ: at least seven."""
    labels = np.zeros(1000, np.int64)
    assert deal(kind, labels, most, min_size=7).partition.sizes.min() >= 7
    with refused(DataError, key="federation.partition.kind"):
        deal(kind, labels, most + 1, min_size=7)
