"""Label agreement: whether a client's rows lie where the other clients' rows of the same label do.

Wrong labels change the relation between features and labels, and may leave both as they are by themselves. Let z be a
row on the axes of Fisher's discriminant, on which classes are apart and the rows of a class are spread alike
(R. A. Fisher. The use of multiple measurements in taxonomic problems. Annals of Eugenics 7(2), 1936). The client's n_c
rows of class c have the mean m_c, the N_c rows of the others M_c, and their rows of all classes M. A client says two
things of its labels, of each class:

- **How many rows agree**: lie nearer to the mean M_c of their own label than to any other class's. Counts are good
  where classes are apart. Whether a single row agrees with means that the server chooses would tell where the row lies.
  So the rows of a class are put in order of how much nearer they are to their own mean than to the next, |z − M|²
  being the distance, and grouped, `min_release` or a few more to a group; a group agrees if it does on average.
- **How much the labels say**: with g_c = M_c − M, what class c is known by, and w_c = 1 / (1/n_c + 1/N_c),

      T = Σ_c w_c (m_c − v − M_c) · g_c,    I = Σ_c w_c |g_c|².

  If labels are as reliable as the others', T has the mean 0. Where a part ρ of them says nothing about the row, rows of
  class c lie at M in this part, and T is −ρ I; where classes have changed places it is lower still. So −T / I is the
  part of the labels' information that is missing. The variance of T is φ I, φ being the variance of z · g_c within
  classes in units of |g_c|², of the client's own rows, as their spread may be another than the others'. Means are good
  where classes overlap.

Details:

- v is the client's shift: features that are skewed as a whole do not make labels wrong. Let a be its label-adjusted
  shift (`fedscout.detectors.skew.calibrated_feature_skew`) and u the distance of all its rows' mean from the others'.
  Skewed features move both alike; wrong labels move a alone, as the rows stay where they are. So v = a · clip(a·u /
  a·a, 0, 1).
- A client takes its own rows out of the class means, so that it is not compared with itself. The axes still know its
  rows, which makes wrong labels a little harder to see.
- M_c is itself uncertain, by τ / N_c with τ the total variance within a class on the axes; that makes T smaller by
  τ Σ w_c / N_c, which the server adds again.
- The axes are those of the regularised discriminant: the correlation matrix within classes is drawn towards the
  identity by d / (d + N), as much as there are features for the rows (J. H. Friedman. Regularized discriminant
  analysis. Journal of the American Statistical Association 84, 1989).
- Clients whose features are skewed as a whole move the class means, unless all hold the same classes. While they are
  fewer than half of the clients, their rows are left out of the means and the axes.
- Where rows belong together, a client tells two sums more. With u_i = (w_c / n_c) (z_i − m_c) · g_c of row i and u_g
  their sum over the judged rows of group g, these are Σ u_g² in units of Σ u_i², and Σ n_g²; from them
  `agreement_tests` has the design effect of T, as labels and features have theirs
  (`fedscout.detectors.statistics.design_effects`).
- Classes are told of as `fedscout.engine.data.release` lets them: those with fewer than `min_release` rows are not.
- Features whose scale differs between clients, as brightness may, look like labels that say less.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from fedscout.detectors.skew.calibrated_feature_skew import varying
from fedscout.detectors.skew.class_sums import ClassMoments
from fedscout.detectors.statistics.client_rows import flat_features, own_counts
from fedscout.detectors.statistics.heterogeneity_metrics import Values
from fedscout.engine.arrays import IntArray
from fedscout.engine.data.client_query import QueryInputs
from fedscout.engine.data.release import Answer, Arrays, Over, told_cells

LABEL_AGREEMENT: Final = "label_agreement"
SMALLEST_SHARE: Final = 1e-6
"""Axes that separate classes by less than this share of what the first one does are left out."""


def label_agreement(inputs: QueryInputs) -> Answer:
    """Client half. Return what `Agreement` holds; classes of which nobody else told are 0 throughout.

    Reads `axes`, shape `(d, r)`, `sums`, the sum of the released rows of each class on these axes, `(num_classes, r)`,
    and `counts`, how many they are; the scalar `included` says whether the client's own rows are among them.
    """
    axes = inputs.arrays["axes"].astype(np.float64)
    sums, given = (inputs.by_class(name, inputs.num_classes) for name in ("sums", "counts"))
    counts = own_counts(inputs)
    counts = np.where(told_cells(counts, inputs.min_release), counts, 0)
    projected = [(flat_features(features) @ axes, labels) for features, labels in inputs.data.chunks()]
    rows = np.concatenate([part for part, _ in projected])
    labels = np.concatenate([part for _, part in projected])
    own_sums = np.zeros_like(sums)
    np.add.at(own_sums, labels, rows)
    own_sums[counts == 0] = 0
    included = int(bool(inputs.config["included"]))
    others = given.astype(np.int64) - included * counts
    others_sums = sums - included * own_sums
    judged = (counts > 0) & (others > 0)
    if not judged.any():
        return Agreement.nothing(len(counts)).answer()
    others_means = others_sums / np.maximum(others, 1)[:, None]
    own_means = own_sums / np.maximum(counts, 1)[:, None]
    centre = others_sums.sum(axis=0) / others.sum()
    weights = np.where(judged, counts * (others / np.maximum(counts + others, 1)), 0.0)
    moved = counts[judged] @ own_means[judged] / counts[judged].sum() - centre
    shift = _common_shift(weights @ (own_means - others_means) / weights.sum(), moved)
    known_by = np.where(judged[:, None], others_means - centre, 0.0)
    margins = _margins(rows - shift, labels, others_means, others > 0)
    judged_counts = np.where(judged, counts, 0)
    groups, agreeing = _groups(margins, labels, judged_counts, max(inputs.min_release, 1))
    along = _along(rows, labels, known_by)
    return Agreement(
        rows=judged_counts,
        groups=groups,
        agreeing=agreeing,
        scores=weights * ((own_means - shift - others_means) * known_by).sum(axis=1),
        information=float(weights @ (known_by**2).sum(axis=1)),
        spread=_spread(along, labels, known_by, judged_counts),
        uncertainty=float((weights[judged] / others[judged]).sum()),
        together=None if inputs.groups is None else _together(along, labels, inputs.groups, judged_counts, weights),
    ).answer()


def _margins(rows: Values, labels: IntArray, means: Values, known: npt.NDArray[np.bool_]) -> Values:
    """Return by how much each row is nearer to the mean of its own class than to the next, shape `(rows,)`."""
    scores = rows @ means.T - 0.5 * (means**2).sum(axis=1)
    scores[:, ~known] = -np.inf
    at = np.arange(len(labels)), labels
    own = scores[at]
    scores[at] = -np.inf
    return np.asarray(own - scores.max(axis=1))


def _groups(margins: Values, labels: IntArray, counts: IntArray, size: int) -> tuple[IntArray, IntArray]:
    """Return how many groups each class has and how many of them agree, shapes `(num_classes,)`.

    Args:
        margins: Of each row.
        labels: Of each row.
        counts: Rows of each class, 0 for those that are not judged, else at least `size`.
        size: Of the smallest group.
    """
    groups, agreeing = counts // size, np.zeros_like(counts)
    for label in np.flatnonzero(counts):
        ordered = np.sort(margins[labels == label])
        starts = np.arange(groups[label]) * len(ordered) // groups[label]
        agreeing[label] = (np.add.reduceat(ordered, starts) > 0).sum()
    return groups, agreeing


def _along(rows: Values, labels: IntArray, known_by: Values) -> Values:
    """Return (z − m_c) · g_c of each row, shape `(rows,)`."""
    along = (rows * known_by[labels]).sum(axis=1)
    num_classes = len(known_by)
    means = np.bincount(labels, along, num_classes) / np.maximum(np.bincount(labels, minlength=num_classes), 1)
    return np.asarray(along - means[labels])


def _spread(along: Values, labels: IntArray, known_by: Values, counts: IntArray) -> float:
    """Return φ: the variance of z · g_c within classes in units of |g_c|²."""
    scale = float(np.maximum(counts - 1, 0) @ (known_by**2).sum(axis=1))
    return float((along**2)[counts[labels] > 0].sum()) / scale if scale > 0 else 0.0


def _together(along: Values, labels: IntArray, groups: IntArray, counts: IntArray, weights: Values) -> Values:
    """Return Σ u_g² / Σ u_i², Σ n_g² and the number of groups, of the judged rows; 1, n and n where nothing varies."""
    judged = counts[labels] > 0
    parts = (along * (weights / np.maximum(counts, 1))[labels])[judged]
    _, members = np.unique(groups[judged], return_inverse=True)
    sizes = np.bincount(members).astype(np.float64)
    own = float((parts**2).sum())
    ratio = float((np.bincount(members, parts) ** 2).sum()) / own if own > 0 else 1.0
    return np.array([ratio, (sizes**2).sum(), len(sizes)])


def _common_shift(adjusted: Values, moved: Values) -> Values:
    """Return the part of the label-adjusted shift that the client's rows as a whole show, too."""
    length = float(adjusted @ adjusted)
    return adjusted * float(np.clip(adjusted @ moved / length, 0.0, 1.0)) if length > 0 else adjusted


@dataclass(frozen=True)
class Agreement:
    """One client's answer.

    Attributes:
        rows: Rows that were judged, by class, shape `(num_classes,)`.
        groups: Groups that they were judged in, likewise.
        agreeing: Those of them that agree, likewise.
        scores: T by class, likewise.
        information: I.
        spread: φ.
        uncertainty: Σ w_c / N_c.
        together: Σ u_g² / Σ u_i², Σ n_g² and the number of groups, shape `(3,)`; None where rows are independent.
    """

    rows: IntArray
    groups: IntArray
    agreeing: IntArray
    scores: Values
    information: float
    spread: float
    uncertainty: float
    together: Values | None = None

    @classmethod
    def nothing(cls, num_classes: int) -> Agreement:
        """Return the answer of a client of which nothing can be said."""
        none = np.zeros(num_classes, dtype=np.int64)
        return cls(none, none, none, np.zeros(num_classes), 0.0, 0.0, 0.0)

    def answer(self) -> Answer:
        """Return the answer to the query."""
        by_class = {"rows": self.rows, "groups": self.groups, "agreeing": self.agreeing, "scores": self.scores}
        numbers = np.array([self.information, self.spread, self.uncertainty])
        answer = {name: Over(values, self.rows) for name, values in by_class.items()}
        together = {} if self.together is None else {"together": Over(self.together, int(self.rows.sum()))}
        return {**answer, "numbers": Over(numbers, int(self.rows.sum())), **together}

    @classmethod
    def read(cls, answer: Arrays) -> Agreement:
        """Read the arrays of a reply."""
        rows, groups, agreeing = (answer[name].astype(np.int64) for name in ("rows", "groups", "agreeing"))
        information, spread, uncertainty = (float(number) for number in answer["numbers"])
        scores = answer["scores"].astype(np.float64)
        together = answer["together"].astype(np.float64) if "together" in answer else None
        return cls(rows, groups, agreeing, scores, information, spread, uncertainty, together)

    def freedom_of(self, design_effect: float) -> float:
        """Return the degrees of freedom of φ: judged rows, of which so many count for one, less their classes."""
        return float(self.rows.sum() / design_effect - (self.rows > 0).sum())


@dataclass(frozen=True)
class Discriminant:
    """What clients are compared on.

    Attributes:
        axes: Shape `(d, r)`.
        sums: Sum of the rows of each class on the axes, shape `(num_classes, r)`.
        counts: Rows of each class, shape `(num_classes,)`.
        total_variance: τ, of a row within its class on all axes.
        left_out: Clients whose rows are not among the sums.
    """

    axes: Values
    sums: Values
    counts: IntArray
    total_variance: float
    left_out: frozenset[int] = frozenset()

    def arrays(self) -> Arrays:
        """Return what the message holds."""
        return {"axes": self.axes, "sums": self.sums, "counts": self.counts}


def discriminant(
    classes: ClassMoments, within: Values, num_rows: int, strange: Collection[int] = ()
) -> Discriminant | None:
    """Return Fisher's discriminant; None with fewer than two classes, or where nothing varies or separates.

    Args:
        classes: Per-class sums.
        within: Covariance within classes, shape `(d, d)`.
        num_rows: Behind it.
        strange: Clients with skewed features, whose rows would move the class means of the others. They are left out
            if that leaves more than half of the clients.
    """
    counts, sums, left_out = classes.pooled_counts, classes.sums, frozenset[int]()
    if strange and 2 * len(strange) < len(classes.counts) and (rest := classes.without(strange)) is not None:
        (counts, sums), left_out = rest, frozenset(strange)
    axes = _discriminant_axes(counts, sums, within, num_rows)
    if axes is None:
        return None
    total_variance = float(((within @ axes) * axes).sum())
    return Discriminant(axes, sums @ axes, counts, total_variance, left_out)


def _discriminant_axes(counts: IntArray, sums: Values, within: Values, num_rows: int) -> Values | None:
    from scipy.linalg import cholesky, solve_triangular

    present = counts > 0
    varies = varying(within)
    if present.sum() < 2 or len(varies) == 0:
        return None
    scale = np.sqrt(np.diag(within)[varies])
    num_features = len(scale)
    pull = num_features / (num_features + num_rows)
    correlation = (1 - pull) * within[np.ix_(varies, varies)] / np.outer(scale, scale)
    correlation[np.diag_indices(num_features)] = 1.0
    root = cholesky(correlation, lower=True)
    rows = counts[present].astype(np.float64)
    means = sums[np.ix_(present, varies)] / rows[:, None] / scale
    centred = (means - rows @ means / rows.sum()) * np.sqrt(rows)[:, None]
    directions, strengths, _ = np.linalg.svd(solve_triangular(root, centred.T, lower=True), full_matrices=False)
    if strengths[0] <= 0:
        return None
    kept = strengths**2 > SMALLEST_SHARE * strengths[0] ** 2
    axes = np.zeros((len(within), int(kept.sum())))
    axes[varies] = solve_triangular(root, directions[:, kept], lower=True, trans="T") / scale[:, None]
    return axes
