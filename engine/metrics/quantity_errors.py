"""Metrics of a predicted quantity, such that a constant answer is worth 0 and larger is better.

The constant answer is the mean m of the target over all clients' training rows, which every model may know. With y the
target, ŷ what is predicted, e = y − ŷ and c = y − m, in the target's own unit, over all clients' test rows:

    R²  = 1 − Σ e² / (Σ c² − (Σ c)² / n)
    MAE = Σ |c| / n − Σ |e| / n

R² is scikit-learn's `r2_score` of the pooled rows, whose constant is the mean of the test rows, so that m itself may be
a little below 0. A client's R² is against m, 1 − Σ e² / Σ c² over its rows: against its own mean, which no model of the
federation knows, a client whose targets hardly differ would be divided by nearly nothing. The fitness of MAE is by how
much the mean absolute error is smaller than that of m; two strategies differ by the difference of their errors.

Both are at least what is as far below a constant answer as perfection is above it, R² ≥ −1: a model that diverges has
an error of any size, in which the rounds, clients and seeds that a mean is over would drown. Errors are below
LARGEST_ERROR in size, so that their squares are numbers.

The sums are exact fractions of the rows' float64 values, so they add up in any order.

References:
    J. Y. Campbell, S. B. Thompson: Predicting excess stock returns out of sample: can anything beat the historical
    average? Review of Financial Studies 21(4), 2008. (R² against the mean of the training rows)
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedscout.engine.metrics.metric import Metric, Outputs, Sums

LARGEST_ERROR = 1e30


class QuantityMetric(Metric):
    """A metric of the sums n, Σ c, Σ c², Σ e², Σ |c| and Σ |e|."""

    def statistics(self, outputs: Outputs, labels: npt.NDArray[Any]) -> Sums:
        """Return the sums.

        Args:
            outputs: Predictions minus the constant answer, shape `(rows, 1)`.
            labels: Targets minus the constant answer, shape `(rows,)`.
        """
        centred = labels.astype(np.float64)
        errors = np.nan_to_num(centred - outputs[:, 0], nan=LARGEST_ERROR)
        errors = np.clip(errors, -LARGEST_ERROR, LARGEST_ERROR)
        parts = (centred, centred**2, errors**2, np.abs(centred), np.abs(errors))
        return np.array([Fraction(len(labels)), *(Fraction(float(part.sum())) for part in parts)], dtype=object)


@dataclass(frozen=True)
class R2(QuantityMetric):
    """Share of the target's variance that is explained, in `[-1, 1]`."""

    name: ClassVar[str] = "r2"

    def value(self, sums: Sums) -> float:
        """Return it; NaN if all targets are equal."""
        num_rows, centred, squares, squared_errors, *_ = sums
        return _above(squared_errors, squares - centred**2 / num_rows)

    def value_of_client(self, sums: Sums) -> float:
        """Return it against the constant answer."""
        return _above(sums[3], sums[2])


def _above(errors: Fraction, of_constant: Fraction) -> float:
    return max(-1.0, float(1 - errors / of_constant)) if of_constant > 0 else float("nan")


@dataclass(frozen=True)
class Mae(QuantityMetric):
    """By how much the mean absolute error is below that of a constant answer, in the target's unit."""

    name: ClassVar[str] = "mae"

    def value(self, sums: Sums) -> float:
        """Return it; NaN without rows."""
        num_rows, *_, of_constant, errors = sums
        return float(max(of_constant - errors, -of_constant) / num_rows) if num_rows else float("nan")
