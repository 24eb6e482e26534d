"""Area under the ROC curve of pooled clients, from histograms of scores that add up.

A row's score for class c is its log-odds, log p_c − log(1 − p_c) of the softmax outputs p: increasing in p_c, so of the
same curve, and not crowded at 0 and 1. Scores are counted in NUM_BINS bins of equal width over ±LARGEST_SCORE, what
lies beyond in the outermost ones, apart for rows of the class and all others. With P and N rows of either kind, of
which P_b and N_b are in bin b, the area is the chance that a row of the class scores higher than another, rows of one
bin counting half (Mann and Whitney: On a test of whether one of two random variables is stochastically larger than the
other. Annals of Mathematical Statistics 18, 1947):

    AUROC_c = Σ_b P_b (N_1 + … + N_{b−1} + N_b / 2) / (P N)

So it is off the exact area by at most half the share of pairs that share a bin, Σ_b P_b N_b / (2 P N). The score is the
mean over classes with rows of both kinds, each against the rest: scikit-learn's `roc_auc_score(multi_class="ovr",
average="macro")`; two classes have one area, as the second curve is the first one turned around.

Deviation from pooling exact scores: that bound. Where clients use models of their own, scores of different models meet
in one histogram, so the area also tells how far their scales agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedscout.engine.metrics.metric import Metric, Outputs, Sums

NUM_BINS = 512
LARGEST_SCORE = 16.0
"""A probability within 1.2e-7 of 0 or 1, about the step of a float32 at 1."""


@dataclass(frozen=True)
class Auroc(Metric):
    """Area under the ROC curve, one class against the rest, mean over classes, in `[0, 1]`."""

    name: ClassVar[str] = "auroc"

    def statistics(self, outputs: Outputs, labels: npt.NDArray[Any]) -> Sums:
        """Return counts, shape `(classes, 2, NUM_BINS)`: of rows of other classes, then of the class."""
        num_classes = outputs.shape[1]
        scores = log_odds(outputs.astype(np.float64))
        places = (scores + LARGEST_SCORE) * (NUM_BINS / (2 * LARGEST_SCORE))
        bins = np.clip(np.nan_to_num(places, nan=0.0), 0, NUM_BINS - 1).astype(np.int64)
        classes = np.arange(num_classes)
        cells = (2 * classes + (labels[:, None] == classes)) * NUM_BINS + bins
        counts = np.bincount(cells.reshape(-1), minlength=2 * num_classes * NUM_BINS)
        return counts.astype(np.int32).reshape(num_classes, 2, NUM_BINS)

    def value(self, sums: Sums) -> float:
        """Return it; NaN unless there are rows of two classes."""
        others, own = (sums[:, kind].astype(np.float64) for kind in (0, 1))
        pairs = own.sum(axis=1) * others.sum(axis=1)
        known = pairs > 0
        below = others.cumsum(axis=1) - others / 2
        areas = (own * below).sum(axis=1)[known] / pairs[known]
        return float(areas.mean()) if known.any() else float("nan")


def log_odds(outputs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return log p − log(1 − p) of the softmax p of each output, shape `(rows, classes)`, in `[-inf, inf]`."""
    with np.errstate(all="ignore"):
        shifted = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        rest = np.stack([np.delete(shifted, column, axis=1).sum(axis=1) for column in range(outputs.shape[1])], axis=1)
        return np.asarray(np.log(shifted) - np.log(rest))
