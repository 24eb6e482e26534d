"""Features as a table of numbers, and how much its columns vary in the data's own unit."""

from __future__ import annotations

import numpy as np

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.data.client_data import CHUNK_ROWS
from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.partitions.partition_request import PartitionRequest
from fedscout.experiments.federations.partitions.shares import FloatVector


def feature_columns(request: PartitionRequest) -> FloatArray:
    """Return the features, shape `(num_rows, num_columns)`; an image's pixels are its columns.

    Raises:
        DataError: If the rows have no features, or tokens, whose numbers mean nothing as quantities.
    """
    if request.features is None or request.data_kind == "tokens":
        given = "tokens" if request.data_kind == "tokens" else "no features"
        raise DataError(
            Fault(
                f"federation.partition.kind={request.settings.kind}",
                "have features that are quantities",
                given,
                "partitions by label or at random are possible",
            )
        )
    return request.features.reshape(len(request.labels), -1)


def raw_variances(request: PartitionRequest, columns: FloatArray, rows: IntArray | None = None) -> FloatVector:
    """Return each column's variance before standardisation, shape `(num_columns,)`.

    Standardisation divides by a column's standard deviation; where that is on record it is multiplied back.

    Args:
        request: Gives the deviations.
        columns: The features as a table.
        rows: Over these rows; None for all.
    """
    variances = column_variances(columns, rows)
    if request.deviations is None:
        return variances
    stored = variances if rows is None else column_variances(columns)
    squared: FloatVector = request.deviations.reshape(-1) ** 2
    return np.where(stored > 0, variances / np.where(stored > 0, stored, 1.0), 0.0) * squared


def column_variances(columns: FloatArray, rows: IntArray | None = None) -> FloatVector:
    """Return each column's variance, in chunks that need no second copy of the table in double precision."""
    rows = np.arange(len(columns)) if rows is None else rows
    parts = [rows[start : start + CHUNK_ROWS] for start in range(0, len(rows), CHUNK_ROWS)]
    means = sum(columns[part].sum(axis=0, dtype=np.float64) for part in parts) / len(rows)
    squares = sum(((columns[part] - means) ** 2).sum(axis=0) for part in parts)
    return np.asarray(squares / len(rows), dtype=np.float64)
