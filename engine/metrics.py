"""Metrics other than accuracy: confusion metrics, AUROC from histograms, regression metrics, row losses.

A metric scores a model on test rows; larger is better. It has two halves, like a detector: `statistics` converts
outputs and labels of some rows into sums over these rows, on the client's side; `value` converts such sums into the
score. The sums are integers or exact fractions, so they add up over chunks, clients and hosts without rounding, in any
order, and the score has the same bits for any number of hosts. New metrics are added to `OF_CLASSES` or
`OF_QUANTITIES`.

**Pooling.** The score of a federation is that of the sums over all its clients' test rows, each row predicted by the
model that its client would use. It is not the mean of the clients' scores, which for these metrics is a different
number, and is undefined if a client has rows of one class only. The score of a client is that of its own rows.

**Disclosure.** A client's score leaves the client, one number like its accuracy, and so do its sums, which hosts add to
those of other clients before they answer: the driver of a trial only reads the sum over all clients. Like all scores of
models, they are not subject to the release rules (`fedscout.engine.data.client`): these would suppress whole rows of
the table with fewer than `min_release` rows of a class, and the score would be that of other rows.

**Confusion metrics** use the table counts[true class, predicted class], for imbalanced classes. With TP, FP and FN of
each class taken from the summed table:

    balanced accuracy = mean over classes with rows of TP / (TP + FN)
    macro F1          = mean over classes with rows or predictions of 2 TP / (2 TP + FP + FN)

Both equal scikit-learn's `balanced_accuracy_score` and `f1_score(average="macro")` on the pooled rows. The predicted
class is that of the largest output, the first one on ties.

**AUROC** is the area under the ROC curve of the pooled rows, from histograms of scores. A row's score for class c is
its
log-odds, log p_c − log(1 − p_c) of the softmax outputs p: increasing in p_c, so that the curve is the same, and not
concentrated at 0 and 1. Scores are counted in NUM_BINS bins, separately for rows of the class and others. The bins are
1/16 wide within ±32, and 1.1 % of the score wide from there to ±65,536, as scores of confident models differ by factors
there; larger scores are in the outermost bins. With P and N rows of the class and of others, of which P_b and N_b are
in
bin b, the area is the probability that a row of the class scores higher than another, with rows of one bin counting
half
(Mann and Whitney: On a test of whether one of two random variables is stochastically larger than the other. Annals of
Mathematical Statistics 18, 1947):

    AUROC_c = Σ_b P_b (N_1 + … + N_{b−1} + N_b / 2) / (P N)

It differs from the exact area by at most half the share of pairs that share a bin, Σ_b P_b N_b / (2 P N). The bins are
the same for all clients, so that counts add up exactly. The score is the mean over classes with rows of both kinds,
each
against the rest: scikit-learn's `roc_auc_score(multi_class="ovr", average="macro")`; two classes have one area, because
of symmetry. Deviation from pooling exact scores: that bound. If clients use models of their own, scores of different
models are counted in one histogram, so the area also reflects how well their scales agree.

**Regression metrics** give a constant prediction the value 0; larger is better. The constant is the mean m of the
target
over all clients' training rows, which every model may know. With y the target, ŷ the prediction, e = y − ŷ and c = y −
m,
in the target's unit, over all clients' test rows:

    R²  = 1 − Σ e² / (Σ c² − (Σ c)² / n)
    MAE = Σ |c| / n − Σ |e| / n

R² is scikit-learn's `r2_score` of the pooled rows, whose constant is the mean of the test rows, so that m itself may be
slightly below 0. A client's R² is against m, 1 − Σ e² / Σ c² over its rows: against the client's own mean, which no
model
of the federation knows, a client whose targets hardly vary would divide by almost zero. The value of MAE is the
reduction of the mean absolute error relative to m; two strategies differ by the difference of their errors. Both are
bounded below by the mirror image of a perfect prediction, R² ≥ −1: the error of a model that diverges is arbitrarily
large and would dominate means over rounds, clients and seeds. Errors are clipped to LARGEST_ERROR in size, so that
their
squares are finite. The sums are exact fractions of the rows' float64 values, so they add up in any order.

References:
    Brodersen, Ong, Stephan, Buhmann: The balanced accuracy and its posterior distribution. ICPR 2010.
    Opitz, Burst: Macro F1 and macro F1. arXiv:1911.03347, 2019. (The mean of the classes' F1, their first.)
    J. Y. Campbell, S. B. Thompson: Predicting excess stock returns out of sample: can anything beat the historical
    average? Review of Financial Studies 21(4), 2008. (R² against the mean of the training rows)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

Outputs = npt.NDArray[np.floating[Any]]
Sums = npt.NDArray[Any]
"""Of whole numbers or of fractions."""


class Metric(ABC):
    """Score of a model on rows. A picklable value.

    Attributes:
        name: Name used in `training.metric`.
    """

    name: ClassVar[str]

    @abstractmethod
    def statistics(self, outputs: Outputs, labels: npt.NDArray[Any]) -> Sums:
        """Return the sums over some rows; their shape does not depend on the rows.

        Args:
            outputs: Outputs of the model, before any softmax, shape `(rows, num_outputs)`.
            labels: Labels or targets, shape `(rows,)`.
        """

    @abstractmethod
    def value(self, sums: Sums) -> float:
        """Return the score; NaN if it is undefined for these rows."""

    def value_of_client(self, sums: Sums) -> float:
        """Return the score of one client's rows; NaN if it is undefined for them."""
        return self.value(sums)


def add(sums: Iterable[Sums | None]) -> Sums | None:
    """Return the total of the sums that are not None; None if all are."""
    total: Sums | None = None
    for part in sums:
        if part is not None:
            wide = part if part.dtype == object else part.astype(np.promote_types(part.dtype, np.int32))
            total = wide if total is None else total + wide
    return total


def narrowed(sums: Sums) -> Sums:
    """Return integer sums in the smallest sufficient dtype, in which a host stores those of its clients."""
    if sums.dtype.kind not in "iu" or not sums.size:
        return sums
    return sums.astype(np.promote_types(np.min_scalar_type(sums.min()), np.min_scalar_type(sums.max())))


class ConfusionMetric(Metric):
    """A metric of the summed confusion table, shape `(classes, classes)`."""

    def statistics(self, outputs: Outputs, labels: npt.NDArray[Any]) -> Sums:
        """Return the number of rows of each class that are predicted as each class."""
        num_classes = outputs.shape[1]
        pairs = labels * num_classes + outputs.argmax(axis=1)
        return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def _mean_share(hits: Sums, totals: Sums) -> float:
    """Return the mean of the shares with nonzero totals; NaN if there is none."""
    defined = totals > 0
    return float(np.mean(hits[defined] / totals[defined])) if defined.any() else float("nan")


@dataclass(frozen=True)
class BalancedAccuracy(ConfusionMetric):
    """Mean recall over classes, in `[0, 1]`."""

    name: ClassVar[str] = "balanced_accuracy"

    def value(self, sums: Sums) -> float:
        """Return the balanced accuracy; NaN without rows."""
        return _mean_share(np.diag(sums), sums.sum(axis=1))


@dataclass(frozen=True)
class MacroF1(ConfusionMetric):
    """Mean F1 over classes, in `[0, 1]`."""

    name: ClassVar[str] = "macro_f1"

    def value(self, sums: Sums) -> float:
        """Return the macro F1; NaN without rows."""
        return _mean_share(2 * np.diag(sums), sums.sum(axis=1) + sums.sum(axis=0))


LARGEST_ERROR = 1e30


class QuantityMetric(Metric):
    """A regression metric of the sums n, Σ c, Σ c², Σ e², Σ |c| and Σ |e|."""

    def statistics(self, outputs: Outputs, labels: npt.NDArray[Any]) -> Sums:
        """Return the sums.

        Args:
            outputs: Predictions minus the constant prediction, shape `(rows, 1)`.
            labels: Targets minus the constant prediction, shape `(rows,)`.
        """
        centred = labels.astype(np.float64)
        errors = np.nan_to_num(centred - outputs[:, 0], nan=LARGEST_ERROR)
        errors = np.clip(errors, -LARGEST_ERROR, LARGEST_ERROR)
        parts = (centred, centred**2, errors**2, np.abs(centred), np.abs(errors))
        return np.array([Fraction(len(labels)), *(Fraction(float(part.sum())) for part in parts)], dtype=object)


@dataclass(frozen=True)
class R2(QuantityMetric):
    """Explained share of the target's variance, in `[-1, 1]`."""

    name: ClassVar[str] = "r2"

    def value(self, sums: Sums) -> float:
        """Return R²; NaN if all targets are equal."""
        num_rows, centred, squares, squared_errors, *_ = sums
        return _above(squared_errors, squares - centred**2 / num_rows)

    def value_of_client(self, sums: Sums) -> float:
        """Return R² against the constant prediction."""
        return _above(sums[3], sums[2])


def _above(errors: Fraction, of_constant: Fraction) -> float:
    return max(-1.0, float(1 - errors / of_constant)) if of_constant > 0 else float("nan")


@dataclass(frozen=True)
class Mae(QuantityMetric):
    """Reduction of the mean absolute error relative to a constant prediction, in the target's unit."""

    name: ClassVar[str] = "mae"

    def value(self, sums: Sums) -> float:
        """Return the reduction; NaN without rows."""
        num_rows, *_, of_constant, errors = sums
        return float(max(of_constant - errors, -of_constant) / num_rows) if num_rows else float("nan")


BINS_PER_UNIT = 16
LINEAR_SCORE = 32.0
"""Value up to which bins are equally wide."""

BINS_PER_DOUBLING, NUM_DOUBLINGS = 64, 11
LARGEST_PLACE = int(BINS_PER_UNIT * LINEAR_SCORE) + BINS_PER_DOUBLING * NUM_DOUBLINGS
NUM_BINS = 2 * LARGEST_PLACE


@dataclass(frozen=True)
class Auroc(Metric):
    """Area under the ROC curve, one class against the rest, mean over classes, in `[0, 1]`."""

    name: ClassVar[str] = "auroc"

    def statistics(self, outputs: Outputs, labels: npt.NDArray[Any]) -> Sums:
        """Return counts of rows of other classes and of rows of the class, shape `(classes, 2, NUM_BINS)`."""
        num_classes = outputs.shape[1]
        bins = bins_of(log_odds(outputs.astype(np.float64)))
        classes = np.arange(num_classes)
        cells = (2 * classes + (labels[:, None] == classes)) * NUM_BINS + bins
        counts = np.bincount(cells.reshape(-1), minlength=2 * num_classes * NUM_BINS)
        return counts.astype(np.int32).reshape(num_classes, 2, NUM_BINS)

    def value(self, sums: Sums) -> float:
        """Return the area; NaN unless there are rows of two classes."""
        others, own = (sums[:, kind].astype(np.float64) for kind in (0, 1))
        pairs = own.sum(axis=1) * others.sum(axis=1)
        defined = pairs > 0
        below = others.cumsum(axis=1) - others / 2
        areas = (own * below).sum(axis=1)[defined] / pairs[defined]
        return float(areas.mean()) if defined.any() else float("nan")


def log_odds(outputs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return log p − log(1 − p) of the softmax p of each output, shape `(rows, classes)`; NaN for non-finite outputs.

    Computed as o_c − log Σ_{j≠c} exp o_j, which is finite even if p is 0 or 1 in float64.
    """
    odds = np.empty_like(outputs)
    with np.errstate(all="ignore"):
        for column in range(outputs.shape[1]):
            others = np.delete(outputs, column, axis=1)
            largest = others.max(axis=1, keepdims=True)
            odds[:, column] = outputs[:, column] - largest[:, 0] - np.log(np.exp(others - largest).sum(axis=1))
    return odds


def bins_of(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the bin of each score, in `[0, NUM_BINS)`, which increases with the score; the first for NaN."""
    with np.errstate(all="ignore"):
        doublings = np.log2(np.maximum(np.abs(scores), LINEAR_SCORE) / LINEAR_SCORE)
    inside = np.clip(scores, -LINEAR_SCORE, LINEAR_SCORE) * BINS_PER_UNIT
    places = inside + np.sign(scores) * doublings * BINS_PER_DOUBLING + LARGEST_PLACE
    bins: npt.NDArray[np.int64] = np.clip(np.nan_to_num(places, nan=0.0), 0, NUM_BINS - 1).astype(np.int64)
    return bins


ACCURACY = "accuracy"
"""Always measured, without a metric object."""

OF_CLASSES: Mapping[str, Callable[[], Metric]] = {each.name: each for each in (BalancedAccuracy, MacroF1, Auroc)}
"""Metrics of classification."""

OF_QUANTITIES: Mapping[str, Callable[[], Metric]] = {each.name: each for each in (R2, Mae)}
"""Metrics of regression; the first is the default."""


class RowLosses(Metric):
    """The sums of `fedscout.engine.messages.calls.Losses`, for selection policies; not a score."""

    name: ClassVar[str] = "row losses"

    def statistics(self, outputs: Outputs, labels: npt.NDArray[Any]) -> Sums:
        """Return the sums of cross-entropy, its square, miss and entropy over rows, float64, shape `(4,)`."""
        shifted = outputs.astype(np.float64)
        shifted -= shifted.max(axis=1, keepdims=True)
        log = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        right = log[np.arange(len(labels)), labels]
        return np.array([-right.sum(), (right * right).sum(), -np.expm1(right).sum(), -(np.exp(log) * log).sum()])

    def value(self, sums: Sums) -> float:
        """Return the sum of the cross-entropies, which is not a score."""
        return float(-sums[0])
