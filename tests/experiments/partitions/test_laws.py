"""What every partition that deals by label or at random must obey."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import DataError
from experiments.partitions import PARTITIONS, PartitionRequest
from experiments.partitions.settings import PartitionSettings

DEALT = ["iid", "dirichlet"]


def request(
    num_rows: int, num_clients: int | None, seed: int = 0, num_classes: int = 3, alpha: float = 0.5, min_size: int = 1
) -> PartitionRequest:
    labels = np.arange(num_rows) % num_classes
    return PartitionRequest(
        labels, num_clients, np.random.default_rng(seed), settings=PartitionSettings(alpha=alpha, min_size=min_size)
    )


@pytest.mark.parametrize("kind", DEALT)
@given(data=st.data())
def test_every_row_goes_to_exactly_one_client(kind: str, data: st.DataObject) -> None:
    num_rows = data.draw(st.integers(1, 200))
    num_clients = data.draw(st.integers(1, num_rows))
    alpha = data.draw(st.floats(1e-8, 1e6))
    seed = data.draw(st.integers(0, 2**32))
    partition = PARTITIONS[kind](request(num_rows, num_clients, seed, alpha=alpha)).partition

    assert partition.num_clients == num_clients
    assert sorted(partition.rows.tolist()) == list(range(num_rows))
    assert partition.sizes.min() >= 1
    assert partition.rows.dtype == partition.offsets.dtype == np.int64


@pytest.mark.parametrize("kind", DEALT)
def test_seed_fixes_the_partition(kind: str) -> None:
    first, again, other = (PARTITIONS[kind](request(300, 7, seed)).partition for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.rows, again.rows)
    np.testing.assert_array_equal(first.offsets, again.offsets)
    assert (first.rows != other.rows).any()


@pytest.mark.parametrize("kind", DEALT)
def test_more_clients_than_rows(kind: str) -> None:
    with pytest.raises(DataError, match="between 1 and the number of rows, 20, got 21"):
        PARTITIONS[kind](request(20, 21))


@pytest.mark.parametrize("kind", DEALT)
def test_number_of_clients_must_be_given(kind: str) -> None:
    with pytest.raises(DataError, match=r"federation\.num_clients must be given"):
        PARTITIONS[kind](request(20, None))


@pytest.mark.parametrize("kind", DEALT)
def test_rows_of_a_client_are_not_sorted_by_label(kind: str) -> None:
    labels_of_rows = np.repeat(np.arange(3), 1000)
    partition = PARTITIONS[kind](
        PartitionRequest(labels_of_rows, 2, np.random.default_rng(0), settings=PartitionSettings(alpha=1e6))
    ).partition
    labels = labels_of_rows[partition.client(0)].tolist()
    # Of about 1,500 rows in random order about two thirds differ in label from the row before; sorted ones, 2.
    changes = sum(first != second for first, second in pairwise(labels))
    assert changes > len(labels) / 2


@pytest.mark.parametrize("kind", DEALT)
@pytest.mark.timeout(20)
def test_ten_thousand_clients(kind: str) -> None:
    partition = PARTITIONS[kind](request(60_000, 10_000, num_classes=10, alpha=0.01, min_size=5)).partition
    assert partition.num_clients == 10_000
    assert partition.sizes.min() >= 5
    assert len(np.unique(partition.rows)) == 60_000
