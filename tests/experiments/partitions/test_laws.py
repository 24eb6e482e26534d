"""What every partition of the table must obey."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedscout.engine.errors import DataError
from fedscout.experiments.partitions.base import PartitionSettings
from fedscout.experiments.partitions.table import PARTITIONS, settings_not_read
from tests.experiments.partitions.requests import asked, deal, label_distance, noise
from tests.kits.refusals import refused

FIXED_BY_DATA = {kind for kind, partition in PARTITIONS.items() if partition.fixes_num_clients}
REPEATING = {kind for kind, partition in PARTITIONS.items() if partition.repeats_rows}
# What may leave rows out, and is told so in the documents.
LEAVES_OUT = {"shard", "dominant_class", "counts", "fds_wgc"}
FEATURES = {"fds_vop", "fds_wgc", "sfdl", "sldf"}
LABELS_AT_RANDOM = {"iid", "quantity_skew", "linear", "square", "exponential", "sldf"}
RANDOM = set(PARTITIONS) - FEATURES
# Kinds for which 10,000 clients are impossible with a data set of any common size.
NEVER_TEN_THOUSAND = {"linear", "square", "exponential", "fds_wgc"}
DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "partitions.md"
KINDS = pytest.mark.parametrize("kind", PARTITIONS)


def choices(kind: str, num_clients: int, num_classes: int) -> dict[str, Any]:
    """Return settings under which a kind must be able to deal equally many rows of each class."""
    if kind == "counts":
        return {"counts": tuple((2,) * num_classes for _ in range(num_clients))}
    return {"min_size": 1} if "min_size" in PARTITIONS[kind].reads else {}


@pytest.mark.slow
@KINDS
@settings(max_examples=12)
@given(data=st.data())
def test_rows_go_to_one_client_each_and_none_is_empty(kind: str, data: st.DataObject) -> None:
    num_classes = data.draw(st.integers(2, 4))
    num_clients = num_classes * data.draw(st.integers(1, 6 // num_classes))
    labels = np.repeat(np.arange(num_classes), data.draw(st.integers(120, 140)))
    seed = data.draw(st.integers(0, 2**32))
    settings = choices(kind, num_clients, num_classes)
    dealt = deal(kind, labels, num_clients, seed, features=noise(len(labels)), **settings)
    partition = dealt.partition

    assert partition.num_clients == num_clients
    assert partition.rows.dtype == partition.offsets.dtype == np.int64
    assert partition.sizes.min() >= 1
    for client in range(num_clients):
        assert len(np.unique(partition.client(client))) == partition.sizes[client]
    if kind not in REPEATING:
        assert len(np.unique(partition.rows)) == len(partition.rows)
    if kind not in LEAVES_OUT:
        assert sorted(partition.rows.tolist()) == list(range(len(labels)))
    assert len(json.dumps(dealt.facts)) < 500


@KINDS
def test_seed_fixes_the_partition(kind: str) -> None:
    labels = np.arange(800) % 3
    features, settings = noise(800), choices(kind, 6, 3)
    first, again, other = (deal(kind, labels, 6, seed, features=features, **settings).partition for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.rows, again.rows)
    np.testing.assert_array_equal(first.offsets, again.offsets)
    assert not np.array_equal(first.rows, other.rows)


@pytest.mark.parametrize("kind", sorted(RANDOM - {"natural"}))
def test_another_seed_gives_other_rows_to_a_client(kind: str) -> None:
    labels = np.arange(800) % 3
    settings = choices(kind, 6, 3)
    first, other = (deal(kind, labels, 6, seed, **settings).partition for seed in (1, 2))
    assert set(first.client(0).tolist()) != set(other.client(0).tolist())


@KINDS
def test_global_random_state_is_neither_read_nor_changed(kind: str) -> None:
    import random

    labels, features = np.arange(800) % 3, noise(800)
    settings = choices(kind, 6, 3)

    def dealt() -> list[int]:
        return deal(kind, labels, 6, features=features, **settings).partition.rows.tolist()

    def state() -> tuple[Any, ...]:
        return random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index, union-attr]  # noqa: NPY002

    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    before = state()
    first = dealt()
    assert state() == before
    random.seed(2)
    np.random.seed(2)  # noqa: NPY002
    assert dealt() == first


@pytest.mark.parametrize("kind", sorted(LABELS_AT_RANDOM))
def test_labels_are_independent_of_clients(kind: str) -> None:
    # Rows sorted by class, so that a partition that deals them in order would show. Of n rows in C classes, p each, a
    # count differs from np by less than five of its standard deviations √(np(1 − p)), which half of Σ|count/n − p|
    # turns into at most C·5·√(p(1 − p)/n)/2, averaged over clients.
    num_classes, num_rows = 4, 4000
    labels = np.repeat(np.arange(num_classes), num_rows // num_classes)
    partition = deal(kind, labels, 4, features=noise(num_rows), **choices(kind, 4, num_classes)).partition
    limit = (num_classes * 5 * np.sqrt(0.25 * 0.75 / partition.sizes) / 2).mean()
    assert label_distance(labels, partition) < limit


@pytest.mark.parametrize("kind", sorted(set(PARTITIONS) - FIXED_BY_DATA))
def test_more_clients_than_rows(kind: str) -> None:
    with refused(DataError, key="federation.num_clients", given="21"):
        deal(kind, np.arange(20) % 3, 21, features=noise(20))


@pytest.mark.parametrize("kind", sorted(set(PARTITIONS) - FIXED_BY_DATA))
def test_number_of_clients_must_be_given(kind: str) -> None:
    with refused(DataError, key="federation.num_clients"):
        deal(kind, np.arange(20) % 3, None, features=noise(20))


@pytest.mark.parametrize("kind", sorted(kind for kind, item in PARTITIONS.items() if "min_size" in item.reads))
@pytest.mark.timeout(20)
def test_minimum_size_is_reached_or_refused(kind: str) -> None:
    labels = np.arange(1200) % 3
    refused = ""
    for min_size in (1, 20, 80, 1201):
        try:
            partition = deal(kind, labels, 6, features=noise(1200), min_size=min_size).partition
        except DataError as error:
            refused = str(error)
        else:
            assert partition.sizes.min() >= min_size
            assert not refused  # what was refused stays refused as the minimum grows
    assert "1201" in refused


@pytest.mark.parametrize("kind", sorted(FEATURES))
def test_features_must_be_quantities(kind: str) -> None:
    with refused(DataError, key="federation.partition.kind", given="no features"):
        deal(kind, np.arange(20) % 2, 2)


@pytest.mark.parametrize("kind", sorted(RANDOM - {"natural", "lds"}))
def test_rows_of_a_client_are_in_no_order(kind: str) -> None:
    # Of rows that are neither sorted by label nor by number about half are followed by a larger number.
    labels = np.repeat(np.arange(3), 1000)
    rows = deal(kind, labels, 3, **choices(kind, 3, 3)).partition.client(0)
    if kind == "counts":
        rows = deal(kind, labels, 1, counts=((500, 500, 500),)).partition.client(0)
    rising = sum(first < second for first, second in pairwise(rows.tolist()))
    assert abs(rising - len(rows) / 2) < 5 * np.sqrt(len(rows))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", sorted(set(PARTITIONS) - NEVER_TEN_THOUSAND - {"counts"}))
@pytest.mark.slow
@pytest.mark.timeout(20)
def test_ten_thousand_clients(kind: str) -> None:
    labels = np.arange(60_000) % 10
    settings: dict[str, Any] = choices(kind, 10_000, 10)
    if kind == "heterogeneity_index":
        settings["levels"] = (0.6, 0.8, 1.0)
    partition = deal(kind, labels, 10_000, features=noise(60_000, 4), **settings).partition
    assert partition.num_clients == 10_000
    assert partition.sizes.min() >= 1
    assert len(np.unique(partition.rows)) == len(partition.rows)


@pytest.mark.parametrize("kind", sorted(NEVER_TEN_THOUSAND))
@pytest.mark.timeout(20)
def test_ten_thousand_clients_are_refused_at_once_where_they_are_impossible(kind: str) -> None:
    key = "federation.num_clients" if kind == "fds_wgc" else "federation.partition.kind"
    with refused(DataError, key=key, names="10000"):
        deal(kind, np.arange(60_000) % 10, 10_000, features=noise(60_000, 4), min_size=1)


@KINDS
def test_settings_are_known_to_the_table(kind: str) -> None:
    reads = PARTITIONS[kind].reads
    assert set(reads) <= set(PartitionSettings.model_fields) - {"kind"}
    descriptions = {name: PartitionSettings.model_fields[name].description for name in reads}
    for name, description in descriptions.items():
        assert name == "min_size" or kind in str(description)
    request = asked(kind, np.zeros(4, np.int64), 2)
    assert settings_not_read(request.settings) == {}


def test_every_setting_is_read_by_some_kind() -> None:
    read = {name for partition in PARTITIONS.values() for name in partition.reads}
    assert read == set(PartitionSettings.model_fields) - {"kind"}


@KINDS
def test_document_names_the_keys_that_a_kind_reads(kind: str) -> None:
    (row,) = [
        line.split("|")
        for line in DOCUMENT.read_text().splitlines()
        if line.startswith(f"| `{kind}` | ") and line.count("|") == 5
    ]
    assert row[3].strip() == ", ".join(f"`{name}`" for name in PARTITIONS[kind].reads)
