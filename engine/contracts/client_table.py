"""FedCust's table of client settings, from which each client looks up its own settings without disclosing them.

Rows of the table are degrees of label heterogeneity, columns are numbers of rows, and a cell holds the local training
settings that were best on proxy data of that kind. A client measures its data and takes the nearest cell, with both
axes divided by their span in the table so that they have equal weight; the source leaves that open.

The table is sent to the clients, and no client reports its measurements: it counts as one row and one step in every
reply (`fedscout.engine.client.updates`), which makes weights uniform. A client may only report that it is farther than
τ from every cell. With an ε it reports this by randomised response (Warner 1965): the truth with probability e^ε/(1 +
e^ε), else the opposite. The response is drawn once, since the mean of several draws would reveal the truth.
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
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import FiniteFloat, PositiveInt, Strict

from fedscout.engine.contracts.config import BatchSize, LearningRate, LocalEpochs, LocalTraining
from fedscout.engine.seeds import stream


def heterogeneity_index(label_counts: npt.NDArray[Any]) -> float:
    """Return HI = 1 − (c − 1)/(C − 1) with c of C classes present: 0 with all of them, 1 with one; shape `(classes,)`.

    Raises:
        ValueError: If there are fewer than two classes, or no row.
    """
    num_there, num_classes = int(np.count_nonzero(label_counts)), len(label_counts)
    if num_classes < 2 or not num_there:
        raise ValueError(f"a heterogeneity index needs rows and two classes or more, got {num_there} of {num_classes}")
    return 1 - (num_there - 1) / (num_classes - 1)


def missing_entropy(weights: npt.NDArray[Any]) -> float:
    """Return 1 − H(p)/log C with p the shares of C classes: 0 if all are equal, 1 with a single class.

    Args:
        weights: Shares, or number of rows, of each class, shape `(classes,)`.

    Raises:
        ValueError: If there are fewer than two classes, or no row.
    """
    num_classes, total = len(weights), weights.sum()
    if num_classes < 2 or not total:
        raise ValueError(f"an entropy of labels needs rows and two classes or more, got {total:g} of {num_classes}")
    shares = weights[weights > 0] / total
    return max(0.0, 1 + float(shares @ np.log(shares)) / math.log(num_classes))


@dataclass(frozen=True)
class SettingsCell:
    """One cell: local training settings for clients with such data; the constraints hold where a document is read.

    Attributes:
        heterogeneity: HI, in [0, 1], or the value of another metric.
        quantity: Training rows, >= 1.
        learning_rate: Learning rate.
        batch_size: Rows per step.
        local_epochs: Passes over the client's rows.
    """

    heterogeneity: Annotated[FiniteFloat, Strict()]
    quantity: Annotated[PositiveInt, Strict()]
    learning_rate: Annotated[LearningRate, Strict()]
    batch_size: Annotated[BatchSize, Strict()]
    local_epochs: Annotated[LocalEpochs, Strict()]

    def local_training(self, given: LocalTraining) -> LocalTraining:
        """Return the given local training with the cell's settings."""
        names = ("learning_rate", "batch_size", "local_epochs")
        return given.model_copy(update={name: getattr(self, name) for name in names})


@dataclass(frozen=True)
class SettingsTable:
    """All cells, at least one. Sent to the clients unchanged.

    Attributes:
        cells: In any order.
        threshold: τ: a client farther than this from every cell reports that, and nothing else; None disables it.
    """

    cells: tuple[SettingsCell, ...]
    threshold: float | None = None

    def distances(self, heterogeneity: float, quantity: float) -> npt.NDArray[np.float64]:
        """Return the distance of a client to each cell, shape `(cells,)`: Euclidean, each axis divided by its span.

        Args:
            heterogeneity: Of the client.
            quantity: Of the client.
        """
        client_point = np.array([heterogeneity, quantity], np.float64)
        cell_points = np.array([[cell.heterogeneity, cell.quantity] for cell in self.cells], np.float64)
        span = np.ptp(cell_points, axis=0)
        return np.asarray(np.linalg.norm((cell_points - client_point) / np.where(span > 0, span, 1.0), axis=1))

    def nearest(self, heterogeneity: float, quantity: float) -> SettingsCell:
        """Return the nearest cell of a client, see `distances`; the first one in case of ties."""
        return self.cells[int(np.argmin(self.distances(heterogeneity, quantity)))]


HETEROGENEITY, ENTROPY = "heterogeneity", "entropy"

FAR_KEY = "far-from-table"
"""The sum by which clients report that they are far from every cell of a table with a threshold."""

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
    """Return a metric by its name, or by the import path of a user's function.

    Args:
        name: One of `METRICS`, or `package.module:function`.
        folder: Folder to append to the import path for such a function; empty if not needed.
    """
    if name in METRICS:
        return METRICS[name]
    if folder and folder not in sys.path:
        sys.path.append(folder)
    module, _, function = name.partition(":")
    metric: ClientMetric = getattr(importlib.import_module(module), function)
    return metric


@dataclass(frozen=True)
class SettingsLookup:
    """A table, and how a client looks up its cell. Sent to the clients unchanged.

    Attributes:
        table: The table.
        metric: Measure of the table's first axis: a name of `METRICS` or an import path.
        folder: Folder of that import path.
        epsilon: ε of the randomised response; None reports the truth.
    """

    table: SettingsTable
    metric: str = HETEROGENEITY
    folder: str = ""
    epsilon: float | None = None

    def settings(self, given: LocalTraining, label_counts: Counts) -> LocalTraining:
        """Return the requested local training with the learning rate, batch size and epochs of the client's cell.

        Args:
            given: The requested local training.
            label_counts: Counts of its training rows per class, shape `(classes,)`.
        """
        rows = int(label_counts.sum())
        return self.table.nearest(self._place(label_counts), rows).local_training(given)

    def reports_far(self, label_counts: Counts, seed: int, client: int) -> bool:
        """Return whether a client reports that it is farther than the threshold from every cell.

        Args:
            label_counts: Counts of its training rows per class, shape `(classes,)`.
            seed: Seed of the trial.
            client: Index of the client.
        """
        threshold = math.inf if self.table.threshold is None else self.table.threshold
        distances = self.table.distances(self._place(label_counts), int(label_counts.sum()))
        is_far = bool(distances.min() > threshold)
        return is_far ^ (stream(seed, "far-from-table", client).random() < self.lie_probability)

    @property
    def lie_probability(self) -> float:
        """Probability that a client reports the opposite of the truth."""
        return 0.0 if self.epsilon is None else 1 / (1 + math.exp(self.epsilon))

    def num_far(self, num_saying: float, num_asked: int) -> float:
        """Return the unbiased estimate of the number of far clients from the randomised responses.

        Args:
            num_saying: Number of clients that report that they are far.
            num_asked: Number of clients that responded.
        """
        return (num_saying - num_asked * self.lie_probability) / (1 - 2 * self.lie_probability)

    def digest(self) -> str:
        """Return the SHA-256, in hexadecimal, of everything that determines settings and reports."""
        document = {**asdict(self), "folder": ""}
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()

    def _place(self, label_counts: Counts) -> float:
        place = float(metric_named(self.metric, self.folder)(label_counts, int(label_counts.sum())))
        if not math.isfinite(place):
            raise ValueError(f"client_settings.metric {self.metric} must give a number, got {place}")
        return place
