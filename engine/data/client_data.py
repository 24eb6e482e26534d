"""What one client holds: rows of shared arrays, as it has them and as they were before a corruption."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import FloatArray, IntArray

CHUNK_ROWS = 4096


class ClientTransform(Protocol):
    """What a scenario does to the data of one client. A picklable value."""

    def __call__(
        self, features: FloatArray, labels: IntArray, num_classes: int, generator: np.random.Generator
    ) -> tuple[FloatArray, IntArray]:
        """Return new `(features, labels)` of the same lengths; the arguments are not changed."""
        ...


@dataclass(frozen=True)
class Partition:
    """Rows of each client, as one index array.

    Attributes:
        rows: Row numbers of all clients, client after client, shape `(total_rows,)`.
        offsets: Client k owns `rows[offsets[k]:offsets[k + 1]]`, shape `(num_clients + 1,)`.
    """

    rows: IntArray
    offsets: IntArray

    @classmethod
    def from_lists(cls, clients: Sequence[npt.ArrayLike]) -> Partition:
        """Build a partition from one sequence of row numbers a client; a client may be empty."""
        arrays = [np.asarray(rows, dtype=np.int64).reshape(-1) for rows in clients]
        offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in arrays])]).astype(np.int64)
        rows = np.concatenate(arrays) if arrays else np.empty(0, np.int64)
        return cls(rows=rows, offsets=offsets)

    @property
    def num_clients(self) -> int:
        """Number of clients, empty ones included."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> IntArray:
        """Number of rows of each client, shape `(num_clients,)`."""
        return np.diff(self.offsets)

    def client(self, client: int) -> IntArray:
        """Return the row numbers of one client."""
        return self.rows[self.offsets[client] : self.offsets[client + 1]]


@dataclass(frozen=True)
class TargetScale:
    """By which a target is standardised: the mean and standard deviation of the clients' training rows."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, targets: npt.NDArray[np.float64]) -> TargetScale:
        """Return that of some targets, at least one; of equal ones the deviation is 1."""
        return cls(float(targets.mean()), float(targets.std()) or 1.0)


@dataclass(frozen=True)
class Samples:
    """Rows of a source array: what a client reads, without a copy until it is used.

    Attributes:
        features: Source features, shape `(source_rows, *feature_shape)`.
        labels: Source labels in `[0, num_classes)`, shape `(source_rows,)`.
        rows: The rows of the source that belong to the client, shape `(num_rows,)`.
        targets: Where a quantity is predicted, float64, shape `(source_rows,)`; labels are then classes of it.
        scale: By which it is standardised.
    """

    features: FloatArray
    labels: IntArray
    rows: IntArray
    targets: npt.NDArray[np.float64] | None = None
    scale: TargetScale | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, positions: IntArray, scale: TargetScale | None = None) -> Samples:
        """Return the rows at `positions` in `[0, len(self))`, as a view; `scale`, if given, in place of their own."""
        return Samples(self.features, self.labels, self.rows[positions], self.targets, scale or self.scale)

    def answers(self, rows: IntArray) -> IntArray | FloatArray:
        """Return what a model is to say of rows of the source: their labels, or standardised targets as float32."""
        if self.targets is None or self.scale is None:
            return self.labels[rows]
        return ((self.targets[rows] - self.scale.mean) / self.scale.deviation).astype(np.float32)

    def take(self, positions: IntArray) -> tuple[FloatArray, IntArray]:
        """Return copies of the features and labels at `positions` in `[0, len(self))`."""
        rows = self.rows[positions]
        return self.features[rows], self.labels[rows]

    def label_counts(self, num_classes: int) -> IntArray:
        """Return the rows of each class, shape `(num_classes,)`."""
        return np.bincount(self.labels[self.rows], minlength=num_classes)

    def chunks(self, num_rows: int = CHUNK_ROWS) -> Iterator[tuple[FloatArray, IntArray]]:
        """Yield all rows in order, at most `num_rows` at a time, features as they are stored."""
        for start in range(0, len(self.rows), num_rows):
            rows = self.rows[start : start + num_rows]
            yield self.features[rows], self.labels[rows]


def by_source(parts: Mapping[int, Samples]) -> list[list[int]]:
    """Return the keys of those that read each array: most clients share one, corrupted ones have their own."""
    sources: dict[int, list[int]] = {}
    for key, data in parts.items():
        sources.setdefault(id(data.features), []).append(key)
    return [*sources.values()]


@dataclass(frozen=True)
class ClientData:
    """One client's local data: as it has them, and as they were before any corruption."""

    own: Samples
    clean: Samples

    @property
    def corrupted(self) -> bool:
        """Whether the two views differ."""
        return self.own is not self.clean
