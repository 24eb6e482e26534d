"""IID: equal sizes, and labels as chance has them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscout.experiments.partitions.base import PartitionRequest
from fedscout.experiments.partitions.table import PARTITIONS

NUM_CLIENTS, NUM_CLASSES, NUM_ROWS = 10, 5, 5000


def chi_square(labels: np.ndarray, clients: list[np.ndarray]) -> float:
    """Pearson's statistic of the clients × classes table against independence."""
    table = np.stack([np.bincount(labels[rows], minlength=NUM_CLASSES) for rows in clients])
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    return float(((table - expected) ** 2 / expected).sum())


@given(st.integers(1, 300), st.data())
def test_sizes_differ_by_one_at_most(num_rows: int, data: st.DataObject) -> None:
    num_clients = data.draw(st.integers(1, num_rows))
    deal = PARTITIONS["iid"].deal(PartitionRequest(np.zeros(num_rows, np.int64), num_clients, np.random.default_rng(0)))
    assert deal.partition.sizes.max() - deal.partition.sizes.min() <= 1


@pytest.mark.parametrize("seed", range(5))
def test_labels_are_independent_of_clients(seed: int) -> None:
    labels = np.sort(np.random.default_rng(99).integers(NUM_CLASSES, size=NUM_ROWS))
    partition = PARTITIONS["iid"].deal(PartitionRequest(labels, NUM_CLIENTS, np.random.default_rng(seed))).partition
    # Under independence the statistic has mean f and variance 2f, f = (clients − 1)(classes − 1) = 36.
    freedom = (NUM_CLIENTS - 1) * (NUM_CLASSES - 1)
    limit = freedom + 5 * np.sqrt(2 * freedom)

    assert chi_square(labels, [partition.client(client) for client in range(NUM_CLIENTS)]) < limit
    # The same test refuses rows dealt in the order of their labels.
    assert chi_square(labels, np.array_split(np.arange(NUM_ROWS), NUM_CLIENTS)) > limit
