"""Losses of a model on a client's rows, as selection policies look at them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedscout.engine.metrics.metric import Metric, Outputs, Sums


@dataclass(frozen=True)
class RowMeans:
    """Means over some rows; NaN where there are none. See `fedscout.engine.contracts.client_selection.Losses`.

    Attributes:
        num_examples: Rows.
        cross_entropy: −log p_y.
        squared: Its square.
        miss: 1 − p_y.
        entropy: −Σ p log p.
    """

    num_examples: int
    cross_entropy: float
    squared: float
    miss: float
    entropy: float

    @classmethod
    def of(cls, num_examples: int, sums: Sums | None) -> RowMeans:
        """Return the means whose sums are these."""
        if sums is None or not num_examples:
            return cls(num_examples, *[float("nan")] * 4)
        return cls(num_examples, *(np.asarray(sums) / num_examples).tolist())


class RowLosses(Metric):
    """The sums of which `RowMeans` are made; no score, so `value` is the cross-entropy."""

    name: ClassVar[str] = "row losses"

    def statistics(self, outputs: Outputs, labels: npt.NDArray[Any]) -> Sums:
        """Return the sums of cross-entropy, its square, miss and entropy over rows, float64, shape `(4,)`."""
        shifted = outputs.astype(np.float64)
        shifted -= shifted.max(axis=1, keepdims=True)
        log = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        right = log[np.arange(len(labels)), labels]
        return np.array([-right.sum(), (right * right).sum(), -np.expm1(right).sum(), -(np.exp(log) * log).sum()])

    def value(self, sums: Sums) -> float:
        """Return the sum of the cross-entropies, which is no score."""
        return float(-sums[0])
