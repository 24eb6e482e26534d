"""What a partitioner is given and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import DataError
from engine.federation import FloatArray, IntArray, Partition
from experiments.datasets.dataset import TextArray
from experiments.partitions.settings import PartitionSettings


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
    """

    labels: IntArray
    num_clients: int | None
    generator: np.random.Generator
    settings: PartitionSettings = field(default_factory=PartitionSettings)
    features: FloatArray | None = None
    deviations: npt.NDArray[np.float64] | None = None
    client_ids: TextArray | None = None

    def require_num_clients(self) -> int:
        """Return the number of clients, checked against the number of rows.

        Raises:
            DataError: If some client would have to stay without a row, or no number was given.
        """
        if self.num_clients is None:
            raise DataError("federation.num_clients must be given for this partition, got nothing")
        if not 1 <= self.num_clients <= len(self.labels):
            raise DataError(
                f"federation.num_clients must be between 1 and the number of rows, {len(self.labels)}, "
                f"got {self.num_clients}"
            )
        return self.num_clients


@dataclass(frozen=True)
class Deal:
    """A partition, and what is worth recording about how it came about."""

    partition: Partition
    facts: Mapping[str, Any] = field(default_factory=dict)


Partitioner = Callable[[PartitionRequest], Deal]


def deal_to_owners(owners: IntArray, num_clients: int, generator: np.random.Generator) -> Partition:
    """Return the partition in which each row goes to its owner, the rows of a client in random order.

    Args:
        owners: The client of each row, shape `(num_rows,)`; -1 for a row that nobody gets.
        num_clients: Number of clients; one may own nothing.
        generator: Draws the order.
    """
    shuffled = generator.permutation(len(owners))
    shuffled = shuffled[owners[shuffled] >= 0]
    rows = shuffled[np.argsort(owners[shuffled], kind="stable")]
    sizes = np.bincount(owners[owners >= 0], minlength=num_clients)
    return Partition(rows=rows.astype(np.int64), offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))
