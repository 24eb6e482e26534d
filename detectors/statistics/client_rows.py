"""What client halves read of their rows: features as flat vectors, all of them finite, and the rows of each class."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedscout.detectors.statistics.heterogeneity_metrics import Values
from fedscout.engine.arrays import IntArray
from fedscout.engine.data.client_query import QueryInputs
from fedscout.engine.data.release import WithheldError
from fedscout.engine.errors import DataError


class NotFiniteError(DataError, WithheldError):
    """A client's features are not all finite. Its text tells that alone, so it may leave the client."""


def flat_features(features: npt.NDArray[np.floating]) -> Values:
    """Return a chunk as float64 of shape `(rows, num_features)`.

    Raises:
        NotFiniteError: If a value is NaN or infinite.
    """
    flat = features.reshape(len(features), -1).astype(np.float64)
    check_finite(flat)
    return flat


def own_counts(inputs: QueryInputs) -> IntArray:
    """Return the client's rows of each class, shape `(num_classes,)`; nothing is left out of them yet."""
    return np.bincount(inputs.data.labels[inputs.data.rows], minlength=inputs.num_classes).astype(np.int64)


def check_finite(values: npt.NDArray[np.floating]) -> None:
    """Return if all values are finite.

    Raises:
        NotFiniteError: If not.
    """
    if not np.isfinite(values).all():
        raise NotFiniteError("features must be finite; some are NaN or infinite")
