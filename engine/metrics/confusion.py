"""Metrics of the table of confusions, counts[true class, predicted class], for classes of unequal size.

With TP, FP and FN of each class taken from the summed table:

    balanced accuracy = mean over classes with rows of TP / (TP + FN)
    macro F1          = mean over classes with rows or predictions of 2 TP / (2 TP + FP + FN)

Both equal scikit-learn's `balanced_accuracy_score` and `f1_score(average="macro")` on the pooled rows. The predicted
class is that of the largest output, the first of equals.

References:
    Brodersen, Ong, Stephan, Buhmann: The balanced accuracy and its posterior distribution. ICPR 2010.
    Opitz, Burst: Macro F1 and macro F1. arXiv:1911.03347, 2019. (The mean of the classes' F1, their first.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedscout.engine.metrics.metric import Metric, Outputs, Sums


class ConfusionMetric(Metric):
    """A metric of the summed table, shape `(classes, classes)`."""

    def statistics(self, outputs: Outputs, labels: npt.NDArray[Any]) -> Sums:
        """Return how many rows of each class are predicted as each class."""
        num_classes = outputs.shape[1]
        pairs = labels * num_classes + outputs.argmax(axis=1)
        return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def _mean_share(hits: Sums, totals: Sums) -> float:
    """Return the mean of the shares whose total is not 0; NaN if there is none."""
    known = totals > 0
    return float(np.mean(hits[known] / totals[known])) if known.any() else float("nan")


@dataclass(frozen=True)
class BalancedAccuracy(ConfusionMetric):
    """Mean of the classes' recalls, in `[0, 1]`."""

    name: ClassVar[str] = "balanced_accuracy"

    def value(self, sums: Sums) -> float:
        """Return it; NaN without rows."""
        return _mean_share(np.diag(sums), sums.sum(axis=1))


@dataclass(frozen=True)
class MacroF1(ConfusionMetric):
    """Mean of the classes' F1, in `[0, 1]`."""

    name: ClassVar[str] = "macro_f1"

    def value(self, sums: Sums) -> float:
        """Return it; NaN without rows."""
        return _mean_share(2 * np.diag(sums), sums.sum(axis=1) + sums.sum(axis=0))
