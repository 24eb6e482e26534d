"""Natural clients own the rows that bear their name."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedscout.engine.errors import DataError
from fedscout.experiments.data.dataset import TextArray
from fedscout.experiments.partitions.base import PartitionRequest, PartitionResult
from fedscout.experiments.partitions.table import PARTITIONS
from tests.kits.refusals import refused


def deal(client_ids: TextArray | None, num_clients: int | None = None, num_rows: int = 0) -> PartitionResult:
    labels = np.zeros(num_rows if client_ids is None else len(client_ids), dtype=np.int64)
    return PARTITIONS["natural"].deal(
        PartitionRequest(labels, num_clients, np.random.default_rng(0), client_ids=client_ids)
    )


@given(st.lists(st.sampled_from(["bern", "oslo", "rome", "riga"]), min_size=1, max_size=60))
def test_each_client_has_its_rows_and_no_others(names: list[str]) -> None:
    result = deal(np.array(names))
    owners = result.facts["client_names"]

    assert owners == tuple(sorted(set(names)))
    assert sorted(result.partition.rows.tolist()) == list(range(len(names)))
    for client, owner in enumerate(owners):
        assert {names[row] for row in result.partition.client(client)} == {owner}


def test_number_of_clients_may_be_given_if_right() -> None:
    assert deal(np.array(["a", "b", "a"]), num_clients=2).partition.sizes.tolist() == [2, 1]
    with refused(DataError, key="federation.num_clients", given="10"):
        deal(np.array(["a", "b", "a"]), num_clients=10)


def test_data_without_clients() -> None:
    with refused(DataError, key="federation.partition.kind", names="federation.client_column"):
        deal(None, num_rows=5)
