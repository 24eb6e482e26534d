"""What a partitioner is given and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.data.client_data import Partition
from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.datasets.dataset import DataKind, TextArray
from fedscout.experiments.federations.partitions.partition_settings import PartitionSettings


@dataclass(frozen=True)
class Deal:
    """Dealt rows.

    Attributes:
        partition: The rows of each client.
        facts: What is worth recording about how it came about.
        affected_clients: Clients that a published deal makes different from the others, ascending.
    """

    partition: Partition
    facts: Mapping[str, Any] = field(default_factory=dict)
    affected_clients: tuple[int, ...] = ()


@dataclass(frozen=True)
class PartitionRequest:
    """The rows to deal and the user's choices.

    Attributes:
        labels: int64 in `[0, num_classes)`, shape `(num_rows,)`.
        num_clients: Clients wanted, >= 1; None where the data fix it.
        generator: The only source of randomness.
        settings: The user's choices.
        features: float32, shape `(num_rows, *feature_shape)`; None where the data have none.
        deviations: Each column's standard deviation before standardisation, shape `(num_columns,)`, or None.
        client_ids: The natural client of each row, or None.
        data_kind: What a row is.
    """

    labels: IntArray
    num_clients: int | None
    generator: np.random.Generator
    settings: PartitionSettings = field(default_factory=PartitionSettings)
    features: FloatArray | None = None
    deviations: npt.NDArray[np.float64] | None = None
    client_ids: TextArray | None = None
    data_kind: DataKind = "table"

    @property
    def class_counts(self) -> IntArray:
        """Rows of each class, shape `(num_classes,)`."""
        return np.bincount(self.labels)

    def require_num_clients(self) -> int:
        """Return the number of clients, checked against the number of rows.

        Raises:
            DataError: If some client would have to stay without a row, or no number was given.
        """
        if self.num_clients is None:
            raise DataError(Fault("federation.num_clients", "be given for this partition", "nothing"))
        if not 1 <= self.num_clients <= len(self.labels):
            raise DataError(
                Fault(
                    "federation.num_clients",
                    f"be between 1 and the number of rows, {len(self.labels)}",
                    self.num_clients,
                )
            )
        return self.num_clients

    def require_min_size(self) -> int:
        """Return the fewest rows that a client may have, checked against the number of rows.

        Raises:
            DataError: If there are too few rows to give every client as many.
        """
        num_clients, num_rows, min_size = self.require_num_clients(), len(self.labels), self.settings.min_size
        if num_clients * min_size > num_rows:
            raise DataError(
                Fault(
                    "federation.num_clients times federation.partition.min_size",
                    f"not exceed the number of rows, {num_rows}",
                    f"{num_clients} times {min_size}",
                    (f"the largest minimum that {num_clients} clients allow is {num_rows // num_clients}"),
                )
            )
        return min_size

    def deal_owners(self, owners: IntArray, num_clients: int | None = None, **facts: Any) -> Deal:
        """Return the deal in which each row goes to its owner, the rows of a client in random order.

        Args:
            owners: The client of each row, shape `(num_rows,)`; -1 for a row that nobody gets.
            num_clients: Number of clients, of whom one may own nothing; None for as many as are wanted.
            facts: For the record.
        """
        num_clients = num_clients or self.require_num_clients()
        shuffled = self.generator.permutation(len(owners))
        shuffled = shuffled[owners[shuffled] >= 0]
        rows = shuffled[np.argsort(owners[shuffled], kind="stable")]
        sizes = np.bincount(owners[owners >= 0], minlength=num_clients)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return Deal(Partition(rows=rows.astype(np.int64), offsets=offsets), facts)

    def deal_counts(self, counts: IntArray, **facts: Any) -> Deal:
        """Return the deal in which client k has `counts[k, y]` rows of class y, drawn at random.

        Args:
            counts: Shape `(num_clients, num_classes)`; no class is dealt more often than it has rows.
            facts: For the record.
        """
        owners = np.full(len(self.labels), -1, dtype=np.int64)
        clients = np.arange(len(counts))
        for label in range(counts.shape[1]):
            rows = self.generator.permutation(np.flatnonzero(self.labels == label))
            dealt = np.repeat(clients, counts[:, label])
            assert len(dealt) <= len(rows)
            owners[rows[: len(dealt)]] = dealt
        return self.deal_owners(owners, len(counts), **facts)


Partitioner = Callable[[PartitionRequest], Deal]
"""Raises a `DataError` if some client would get too few rows, or the data lack what it needs."""


@dataclass(frozen=True)
class PartitionKind:
    """A member of the table of partitions.

    Attributes:
        deal: Deals the rows.
        reads: The fields of `PartitionSettings` that it reads; any other must keep its default.
        fixes_num_clients: Whether the number of clients follows from data or settings and may be left out.
        repeats_rows: Whether a row may go to several clients.
    """

    deal: Partitioner
    reads: tuple[str, ...] = ()
    fixes_num_clients: bool = False
    repeats_rows: bool = False
