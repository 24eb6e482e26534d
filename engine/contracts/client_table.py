"""Tables of client settings: the table as a value, and how a client looks up its own cell.

Settings of each client's own by a table: the client measures its data, takes the nearest cell, and tells nobody.

FedCust (see `settings_table`): the table goes one way, and of what the client knows of its rows nothing goes back: it
counts as one row and one step in every reply (`fedscout.engine.client.updates`), which makes weights uniform.
One thing it may say: that it lies farther than τ from every cell. With an ε it says so by randomised response (Warner
1965): the truth with probability e^ε/(1 + e^ε), else the contrary, drawn once, as the mean of several draws would tell.

A table of client settings: each client looks up its own by how its data lie, and tells nobody which.

FedCust: rows of the table are degrees of label heterogeneity, columns quantities of rows, and a cell holds the local
training that was best on proxy data of that kind. A client takes the cell nearest to it, both axes divided by their
span in the table, so that one is worth as much as the other; the source leaves that open.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import log
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.seeds import stream


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


HETEROGENEITY, ENTROPY = "heterogeneity", "entropy"

FAR_KEY = "far-from-table"
"""The sum by which clients say that they lie far from every cell, where a table has a threshold."""

Counts = npt.NDArray[np.int64]

ClientMetric = Callable[[Counts, int], float]
"""Of a client's rows of each class, shape `(classes,)`, and their number: where it lies on the table's first axis."""


METRICS: Mapping[str, ClientMetric] = {
    HETEROGENEITY: lambda counts, _: heterogeneity_index(counts),
    ENTROPY: lambda counts, _: missing_entropy(counts),
}
"""In [0, 1]."""


@lru_cache(maxsize=64)
def metric_named(name: str, folder: str = "") -> ClientMetric:
    """Return a metric by its name, or by the import path of a user's own function.

    Args:
        name: One of `METRICS`, or `package.module:function`.
        folder: Where the module of such a path lies, for processes that look elsewhere; empty where they need not.
    """
    if name in METRICS:
        return METRICS[name]
    if folder and folder not in sys.path:
        sys.path.append(folder)
    module, _, function = name.partition(":")
    found: ClientMetric = getattr(importlib.import_module(module), function)
    return found


@dataclass(frozen=True)
class SettingsLookup:
    """A table, and what a client does with it. It travels to the clients as it is.

    Attributes:
        table: Its cells, and its threshold.
        metric: Where a client lies on the table's first axis: a name of `METRICS` or an import path.
        folder: Of that path.
        epsilon: ε of the randomised response; None says the truth.
    """

    table: SettingsTable
    metric: str = HETEROGENEITY
    folder: str = ""
    epsilon: float | None = None

    def settings(self, given: LocalTraining, label_counts: Counts) -> LocalTraining:
        """Return how a client trains: what it was asked for, with its cell's rate, batches and epochs.

        Args:
            given: What it was asked for.
            label_counts: Of its training rows, shape `(classes,)`.
        """
        rows = int(label_counts.sum())
        return self.table.nearest(self._place(label_counts), rows).local_training(given)

    def says_far(self, label_counts: Counts, seed: int, client: int) -> bool:
        """Return whether a client says that it lies farther than the threshold from every cell.

        Args:
            label_counts: Of its training rows, shape `(classes,)`.
            seed: The trial's.
            client: Its index.
        """
        threshold = math.inf if self.table.threshold is None else self.table.threshold
        distances = self.table.distances(self._place(label_counts), int(label_counts.sum()))
        is_far = bool(distances.min() > threshold)
        return is_far ^ (stream(seed, "far-from-table", client).random() < self.lying)

    @property
    def lying(self) -> float:
        """The probability that a client says the contrary of what is true."""
        return 0.0 if self.epsilon is None else 1 / (1 + math.exp(self.epsilon))

    def num_far(self, num_saying: float, num_asked: int) -> float:
        """Return how many clients are far, in the mean over the randomised responses.

        Args:
            num_saying: So many say that they are.
            num_asked: Of so many.
        """
        return (num_saying - num_asked * self.lying) / (1 - 2 * self.lying)

    def digest(self) -> str:
        """Return the SHA-256 of all that decides how clients train and what they say, in hexadecimal."""
        document = {**asdict(self), "folder": ""}
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()

    def _place(self, label_counts: Counts) -> float:
        place = float(metric_named(self.metric, self.folder)(label_counts, int(label_counts.sum())))
        if not math.isfinite(place):
            raise ValueError(f"client_settings.metric {self.metric} must give a number, got {place}")
        return place
