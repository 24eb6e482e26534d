"""Area under the ROC curve of pooled clients, from histograms of scores that add up.

A row's score for class c is its log-odds, log p_c − log(1 − p_c) of the softmax outputs p: increasing in p_c, so of the
same curve, and not crowded at 0 and 1. Scores are counted in NUM_BINS bins, rows of the class apart from others. The
bins are 1/16 wide within ±32 and 1.1 % of the score wide from there to ±65,536, as confident models differ by factors
there; what lies beyond is in the outermost ones. With P and N rows of either kind, of which P_b and N_b are in bin b,
the area is the chance that a row of the class scores higher than another, rows of one bin counting half (Mann and
Whitney: On a test of whether one of two random variables is stochastically larger than the other. Annals of
Mathematical Statistics 18, 1947):

    AUROC_c = Σ_b P_b (N_1 + … + N_{b−1} + N_b / 2) / (P N)

So it is off the exact area by at most half the share of pairs that share a bin, Σ_b P_b N_b / (2 P N). The bins are the
same for all clients, so that counts add up exactly. The score is the mean over classes with rows of both kinds, each
against the rest: scikit-learn's `roc_auc_score(multi_class="ovr", average="macro")`; two classes have one area, as the
second curve is the first one turned around.

Deviation from pooling exact scores: that bound. Where clients use models of their own, scores of different models meet
in one histogram, so the area also tells how far their scales agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedscout.engine.metrics.metric import Metric, Outputs, Sums

BINS_PER_UNIT = 16
LINEAR_SCORE = 32.0
"""Up to which bins are equally wide."""

BINS_PER_DOUBLING, NUM_DOUBLINGS = 64, 11
LARGEST_PLACE = int(BINS_PER_UNIT * LINEAR_SCORE) + BINS_PER_DOUBLING * NUM_DOUBLINGS
NUM_BINS = 2 * LARGEST_PLACE


@dataclass(frozen=True)
class Auroc(Metric):
    """Area under the ROC curve, one class against the rest, mean over classes, in `[0, 1]`."""

    name: ClassVar[str] = "auroc"

    def statistics(self, outputs: Outputs, labels: npt.NDArray[Any]) -> Sums:
        """Return counts, shape `(classes, 2, NUM_BINS)`: of rows of other classes, then of the class."""
        num_classes = outputs.shape[1]
        bins = bins_of(log_odds(outputs.astype(np.float64)))
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
    """Return log p − log(1 − p) of the softmax p of each output, shape `(rows, classes)`; NaN of what is not finite.

    That is o_c − log Σ_{j≠c} exp o_j, which is finite also where p is 0 or 1 in float64.
    """
    odds = np.empty_like(outputs)
    with np.errstate(all="ignore"):
        for column in range(outputs.shape[1]):
            others = np.delete(outputs, column, axis=1)
            largest = others.max(axis=1, keepdims=True)
            odds[:, column] = outputs[:, column] - largest[:, 0] - np.log(np.exp(others - largest).sum(axis=1))
    return odds


def bins_of(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the bin of each score, in `[0, NUM_BINS)`, which rises with the score; of NaN the first."""
    with np.errstate(all="ignore"):
        doublings = np.log2(np.maximum(np.abs(scores), LINEAR_SCORE) / LINEAR_SCORE)
    inside = np.clip(scores, -LINEAR_SCORE, LINEAR_SCORE) * BINS_PER_UNIT
    places = inside + np.sign(scores) * doublings * BINS_PER_DOUBLING + LARGEST_PLACE
    bins: npt.NDArray[np.int64] = np.clip(np.nan_to_num(places, nan=0.0), 0, NUM_BINS - 1).astype(np.int64)
    return bins
