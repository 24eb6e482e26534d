"""What the server itself holds: rows that no client ever sees."""

from __future__ import annotations

from dataclasses import dataclass

from fedscout.engine.arrays import FloatArray, IntArray


@dataclass(frozen=True)
class ServerData:
    """Rows of the server, scaled as the clients' rows are, or by themselves if of another data set; never corrupted.

    Attributes:
        features: float32, shape `(num_rows, *feature_shape)`, at least one row.
        labels: int64 in `[0, num_classes)`, shape `(num_rows,)`; None where they are stripped.
    """

    features: FloatArray
    labels: IntArray | None = None

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.features)
