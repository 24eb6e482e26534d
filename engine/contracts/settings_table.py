"""A table of client settings: each client looks up its own by how its data lie, and tells nobody which.

FedCust: rows of the table are degrees of label heterogeneity, columns quantities of rows, and a cell holds the local
training that was best on proxy data of that kind. A client takes the cell nearest to it, both axes divided by their
span in the table, so that one is worth as much as the other; the source leaves that open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.contracts.local_training_config import LocalTraining


def heterogeneity_index(label_counts: npt.NDArray[Any]) -> float:
    """Return HI = 1 − (c − 1)/(C − 1), c of C classes being there: 0 with all of them, 1 with one; shape `(classes,)`.

    Raises:
        ValueError: If there are fewer than two classes, or no row.
    """
    num_there, num_classes = int(np.count_nonzero(label_counts)), len(label_counts)
    if num_classes < 2 or not num_there:
        raise ValueError(f"a heterogeneity index needs rows and two classes or more, got {num_there} of {num_classes}")
    return 1 - (num_there - 1) / (num_classes - 1)


def missing_entropy(weights: npt.NDArray[Any]) -> float:
    """Return 1 − H(p)/log C, p the shares of C classes: 0 where all are equal, 1 with one.

    Args:
        weights: Shares, or rows of each class, shape `(classes,)`.

    Raises:
        ValueError: If there are fewer than two classes, or no row.
    """
    num_classes, total = len(weights), weights.sum()
    if num_classes < 2 or not total:
        raise ValueError(f"an entropy of labels needs rows and two classes or more, got {total:g} of {num_classes}")
    shares = weights[weights > 0] / total
    return max(0.0, 1 + float(shares @ np.log(shares)) / log(num_classes))


@dataclass(frozen=True)
class SettingsCell:
    """One cell: how clients of such data train.

    Attributes:
        heterogeneity: HI, in [0, 1], or what another metric gives.
        quantity: Training rows, >= 1.
        learning_rate: Their step size.
        batch_size: Rows a step.
        local_epochs: Passes over their rows.
    """

    heterogeneity: float
    quantity: int
    learning_rate: float
    batch_size: int
    local_epochs: int

    def local_training(self, given: LocalTraining) -> LocalTraining:
        """Return local training with the cell's settings."""
        changes: Mapping[str, Any] = {
            "learning_rate": self.learning_rate,
            "batch_size": self.batch_size,
            "local_epochs": self.local_epochs,
        }
        return given.model_copy(update=changes)


@dataclass(frozen=True)
class SettingsTable:
    """All cells, at least one. It travels to the clients as it is.

    Attributes:
        cells: In any order.
        threshold: τ: a client farther than this from every cell says so, and nothing else; None never does.
    """

    cells: tuple[SettingsCell, ...]
    threshold: float | None = None

    def distances(self, heterogeneity: float, quantity: float) -> npt.NDArray[np.float64]:
        """Return how far a client is from each cell, shape `(cells,)`: Euclidean, each axis over its span.

        Args:
            heterogeneity: Of the client.
            quantity: Likewise.
        """
        own = np.array([heterogeneity, quantity], np.float64)
        places = np.array([[cell.heterogeneity, cell.quantity] for cell in self.cells], np.float64)
        span = np.ptp(places, axis=0)
        return np.asarray(np.linalg.norm((places - own) / np.where(span > 0, span, 1.0), axis=1))

    def nearest(self, heterogeneity: float, quantity: float) -> SettingsCell:
        """Return the cell of a client, see `distances`; of equally near ones the first."""
        return self.cells[int(np.argmin(self.distances(heterogeneity, quantity)))]
