"""A column of quantities as what is predicted: the numbers, and tenths of them where classes are asked for.

Models learn the numbers. Where rows need classes, as for stratified splits, partitions by label and the detection of
label skew, the tenths of the target over all rows are classes, cut at its deciles; equal values stay together, so there
may be fewer. Real clients would need one exchange of counts for the deciles.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import IntArray
from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.datasets.tables.row_names import row_name

NUM_TENTHS = 10


@dataclass(frozen=True)
class QuantityTarget:
    """What is predicted.

    Attributes:
        numbers: Finite, float64, shape `(num_rows,)`.
        labels: The tenth of each, int64 in `[0, len(class_names))`, every one present, shape `(num_rows,)`.
        class_names: One a tenth, such as `77 to 94`.
    """

    numbers: npt.NDArray[np.float64]
    labels: IntArray
    class_names: tuple[str, ...]


def quantity_target(name: str, column: str, values: npt.NDArray[np.float64]) -> QuantityTarget:
    """Return a column of numbers as what is predicted.

    Args:
        name: The data set's name, for messages.
        column: The column's name.
        values: Its numbers, NaN where a cell holds none.

    Raises:
        DataError: If one is not finite, or all are equal.
    """
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise DataError(
            f"column {column!r} of data set {name!r} must hold a finite number in every row to be "
            f"predicted as a quantity, got something else in {row_name(wrong[0])}"
            + (f" and in {len(wrong) - 1} more" if len(wrong) > 1 else "")
            + "; federation.task=classification predicts classes"
        )
    if len(np.unique(values)) < 2:
        raise DataError(
            Fault(f"column {column!r} of data set {name!r}", "hold at least two different numbers to predict")
        )
    deciles = np.unique(np.quantile(values, np.arange(1, NUM_TENTHS) / NUM_TENTHS))
    tenths = np.searchsorted(deciles, values, side="right")
    present, labels = np.unique(tenths, return_inverse=True)
    return QuantityTarget(values.astype(np.float64), labels.astype(np.int64), _names(deciles, present))


def _names(deciles: npt.NDArray[np.float64], present: IntArray) -> tuple[str, ...]:
    bounds = [*(f"{decile:.6g}" for decile in deciles)]
    every = [f"below {bounds[0]}", *(f"{low} to {high}" for low, high in pairwise(bounds))]
    return tuple([*every, f"from {bounds[-1]}"][tenth] for tenth in present)
