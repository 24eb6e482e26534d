"""flwr-datasets: its lists of positions are what it deals, and its refusals are told in one line."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest

from fedscout.engine.errors import DataError
from fedscout.experiments.partitions.others import LABEL, ROW, partition_with_flower
from tests.experiments.partitions.requests import asked, class_counts, deal
from tests.kits.refusals import refused


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

    partition = partition_with_flower(asked("iid", labels, 5), make).partition
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


def test_pathological_classes_beyond_the_data() -> None:
    with refused(DataError, key="federation.partition.classes_per_client", given="6"):
        deal("pathological", np.arange(100) % 5, 10, classes_per_client=6)
    with refused(DataError, key="federation.num_clients", given="60 times 2"):
        deal("pathological", np.arange(100) % 5, 60, min_size=1)


def test_pathological_rare_class() -> None:
    labels = np.array([0] * 300 + [1] * 300 + [2])
    with refused(DataError, key="federation.num_clients"):
        deal("pathological", labels, 10, classes_per_client=1)


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
    with refused(DataError, key="federation.num_clients"):
        deal("shard", np.arange(100) % 2, 20, shards_per_client=num_shards, min_size=min_size)


def test_distribution_deals_adjacent_classes_and_some_rows_of_each() -> None:
    labels = np.arange(3000) % 5
    counts = class_counts(labels, deal("distribution", labels, 10, classes_per_client=3, min_size=9).partition)
    for client in range(10):
        assert set(np.flatnonzero(counts[client])) == {client % 5, (client + 1) % 5, (client + 2) % 5}
    assert counts[counts > 0].min() >= 3
    assert counts.sum() == 3000


@pytest.mark.parametrize(
    ("num_clients", "settings", "key", "given", "names"),
    [
        (7, {}, "federation.num_clients", 7, "classes, 5,"),
        (10, {"classes_per_client": 6}, "federation.partition.classes_per_client", 6, "at most 5"),
        (10, {"min_size": 400}, "every class", 200, "201 rows for each of its 4 clients, 804"),
    ],
)
def test_distribution_beyond_the_data(
    num_clients: int, settings: dict[str, Any], key: str, given: int, names: str
) -> None:
    with refused(DataError, key=key, given=given, names=names):
        deal("distribution", np.arange(1000) % 5, num_clients, **settings)


@pytest.mark.parametrize("kind", ["linear", "square", "exponential"])
def test_most_clients_of_growing_sizes_is_named_rightly(kind: str) -> None:
    labels = np.zeros(1000, np.int64)
    with refused(DataError, key="federation.partition.kind") as caught:
        deal(kind, labels, 500, min_size=7)
    (most,) = re.findall(r"at most (\d+) clients", str(caught.value))
    assert deal(kind, labels, int(most), min_size=7).partition.sizes.min() >= 7
    with refused(DataError, key="federation.partition.kind"):
        deal(kind, labels, int(most) + 1, min_size=7)
