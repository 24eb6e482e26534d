"""Label agreement: whether a client's rows lie where all clients' rows of the same label do.

Wrong labels change the relation between features and labels, and may leave both as they are by themselves. Let z be a
row on the axes of Fisher's discriminant, on which classes are apart and the rows of a class are spread alike
(R. A. Fisher. The use of multiple measurements in taxonomic problems. Annals of Eugenics 7(2), 1936). M_c is the mean
of all clients' N_c rows of class c, M that of all rows, g_c = M_c − M. A client tells two things of its n_c rows of
each class:

- **How many rows agree**: lie nearer to the mean M_c of their own label than to any other class's. Counts are good
  where classes are apart. Whether a single row agrees with means that the server chooses would tell where the row lies.
  So the rows of a class are sorted by how much nearer they are to their own mean than to the next, |z − M|²
  being the distance, and grouped, `min_release` or a few more to a group; a group agrees if it does on average. A group
  that is equally near to two means is not counted.
- **How much the labels say**: T = Σ_i (z_i − M_c) · g_c over its rows i, by class. If labels are as reliable as the
  others', T has the mean 0. Where a part ρ of them says nothing about the row, rows of class c lie at M in this part.
  Means are good where classes overlap.

**Every client is judged by the same means, in which its own rows are included.** Whether a row agrees, and what it adds
to T, then depends on the row and its label alone, and not on the client that holds it. So if clients are alike, rows of
a class could be exchanged between clients without a change of what each of them adds: counts are hypergeometric
whatever the features' distribution, ties and equal rows included, and T is the sum of a sample without replacement.
With means from which a client's own rows are left out, equal rows of different clients are judged differently, and all
rows of a client at once.

Details:

- Classes whose means differ by no more than chance are not compared: with S the covariance within classes,
  Σ_c N_c (M_c − M)ᵀ S⁻¹ (M_c − M) follows χ² with d (C − 1) degrees of freedom if all classes have the same mean.
- Clients whose features are skewed, by the test of `fedscout.detectors.skew.calibrated_feature_skew`, take their shift
  v off their rows first, as features that are skewed as a whole do not make labels wrong. Let a be the client's
  label-adjusted shift and u the distance of all its rows' mean from everyone's. Skewed features move both alike; wrong
  labels move a alone, as the rows stay where they are. So v = a · clip(a·u / a·a, 0, 1). As v is uncertain by 1 / √n
  on each axis and moves all rows of the client at once, a margin counts as larger by `SHIFT_ERRORS` of its standard
  errors; the variance of T is the smaller for v.
- The rows of these clients move the class means, too. While they are fewer than half of the clients, their rows are
  left out of the means and the axes.
- The axes are those of the regularised discriminant: the correlation matrix within classes is drawn towards the
  identity by d / (d + N), as much as there are features for the rows (J. H. Friedman. Regularized discriminant
  analysis. Journal of the American Statistical Association 84, 1989).
- Where rows belong together, a client tells two sums more. With u_i = (z_i − m_c) · g_c of row i, m_c the client's own
  mean, and u_g their sum over the judged rows of group g, these are Σ u_g² in units of Σ u_i², and Σ n_g²; from them
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

CLASSES_APART: Final = 0.05
"""Classes are compared if their means are as far apart with at most this probability by chance."""

SHIFT_ERRORS: Final = 2.0
TIE: Final = 1e-9
"""Groups whose margin is below this share of the largest one are equally near to two means up to rounding."""


def label_agreement(inputs: QueryInputs) -> Answer:
    """Client half. Return what `Agreement` holds; classes of which nobody told are 0 throughout.

    Reads `axes`, shape `(d, r)`, `sums`, the sum of the released rows of each class on these axes, `(num_classes, r)`,
    and `counts`, how many they are; the scalar `shifted` says whether the client takes its shift off its rows.
    """
    axes = inputs.arrays["axes"].astype(np.float64)
    sums, given = (inputs.by_class(name, inputs.num_classes) for name in ("sums", "counts"))
    counts = own_counts(inputs)
    counts = np.where(told_cells(counts, inputs.min_release) & (given > 0), counts, 0)
    projected = [(flat_features(features) @ axes, labels) for features, labels in inputs.data.chunks()]
    rows = np.concatenate([part for part, _ in projected])
    labels = np.concatenate([part for _, part in projected])
    means = sums / np.maximum(given, 1)[:, None]
    centre = sums.sum(axis=0) / max(given.sum(), 1)
    error = 0.0
    if bool(inputs.config["shifted"]) and counts.any():
        rows = rows - _common_shift(rows, labels, counts, means, centre)
        error = SHIFT_ERRORS / np.sqrt(_independent(labels, counts, inputs.groups))
    known_by = np.where((counts > 0)[:, None], means - centre, 0.0)
    margins = _margins(rows, labels, means, given > 0, error)
    if not counts.any():  # no earlier, as whether a query fails must not depend on what the client holds
        return Agreement.nothing(len(counts)).answer()
    groups, agreeing = _groups(margins, labels, counts, max(inputs.min_release, 1))
    scores: Values = np.zeros(len(counts))
    np.add.at(scores, labels, ((rows - means[labels]) * known_by[labels]).sum(axis=1))
    along = _along(rows, labels, known_by)
    return Agreement(
        rows=counts,
        groups=groups,
        agreeing=agreeing,
        scores=scores,
        spread=_spread(along, labels, known_by, counts),
        together=None if inputs.groups is None else _together(along, labels, inputs.groups, counts),
    ).answer()


def _margins(rows: Values, labels: IntArray, means: Values, known: npt.NDArray[np.bool_], error: float) -> Values:
    """Return by how much each row is nearer to the mean of its own class than to the next, shape `(rows,)`.

    Args:
        rows: Shape `(rows, r)`.
        labels: Of each row.
        means: Of each class, shape `(num_classes, r)`.
        known: Whether somebody told of the class.
        error: How far a row may lie nearer to its own mean than it seems to.
    """
    from scipy.spatial.distance import cdist

    scores = rows @ means.T - 0.5 * (means**2).sum(axis=1)
    at = np.arange(len(labels)), labels
    own = scores[at]
    if error > 0:
        scores -= error * cdist(means, means)[labels]
    scores[:, ~known] = -np.inf
    scores[at] = -np.inf
    return np.asarray(own - scores.max(axis=1))


def _independent(labels: IntArray, counts: IntArray, groups: IntArray | None) -> float:
    """Return the number of judged rows, or n² / Σ n_g² of rows that belong together."""
    judged = counts[labels] > 0
    if groups is None:
        return float(judged.sum())
    sizes = np.unique(groups[judged], return_counts=True)[1]
    return float(judged.sum() ** 2 / (sizes**2).sum())


def _groups(margins: Values, labels: IntArray, counts: IntArray, size: int) -> tuple[IntArray, IntArray]:
    """Return how many groups of each class are not tied and how many of them agree, shapes `(num_classes,)`.

    Args:
        margins: Of each row.
        labels: Of each row.
        counts: Rows of each class, 0 for those that are not judged, else at least `size`.
        size: Of the smallest group.
    """
    groups, agreeing = np.zeros_like(counts), np.zeros_like(counts)
    finite = np.abs(margins[np.isfinite(margins)])
    tie = TIE * float(finite.max(initial=0.0))
    for label in np.flatnonzero(counts):
        ordered = np.sort(margins[labels == label])
        number = counts[label] // size
        starts = np.arange(number) * len(ordered) // number
        totals = np.add.reduceat(ordered, starts)
        groups[label], agreeing[label] = (np.abs(totals) > tie).sum(), (totals > tie).sum()
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


def _together(along: Values, labels: IntArray, groups: IntArray, counts: IntArray) -> Values:
    """Return Σ u_g² / Σ u_i², Σ n_g² and the number of groups, of the judged rows; 1, n and n where nothing varies."""
    judged = counts[labels] > 0
    parts = along[judged]
    _, members = np.unique(groups[judged], return_inverse=True)
    sizes = np.bincount(members).astype(np.float64)
    own = float((parts**2).sum())
    ratio = float((np.bincount(members, parts) ** 2).sum()) / own if own > 0 else 1.0
    return np.array([ratio, (sizes**2).sum(), len(sizes)])


def _common_shift(rows: Values, labels: IntArray, counts: IntArray, means: Values, centre: Values) -> Values:
    """Return v: the part of the label-adjusted shift that the client's rows as a whole show, too."""
    judged = counts[labels] > 0
    adjusted: Values = np.asarray((rows[judged] - means[labels[judged]]).mean(axis=0))
    moved = rows[judged].mean(axis=0) - centre
    length = float(adjusted @ adjusted)
    return adjusted * float(np.clip(adjusted @ moved / length, 0.0, 1.0)) if length > 0 else adjusted


@dataclass(frozen=True)
class Agreement:
    """One client's answer.

    Attributes:
        rows: Rows that were judged, by class, shape `(num_classes,)`.
        groups: Groups that they were judged in and that are not tied, likewise.
        agreeing: Those of them that agree, likewise.
        scores: T by class, likewise.
        spread: φ, the variance of z · g_c within classes in units of |g_c|².
        together: Σ u_g² / Σ u_i², Σ n_g² and the number of groups, shape `(3,)`; None where rows are independent.
    """

    rows: IntArray
    groups: IntArray
    agreeing: IntArray
    scores: Values
    spread: float
    together: Values | None = None

    @classmethod
    def nothing(cls, num_classes: int) -> Agreement:
        """Return the answer of a client of which nothing can be said."""
        none = np.zeros(num_classes, dtype=np.int64)
        return cls(none, none, none, np.zeros(num_classes), 0.0)

    def answer(self) -> Answer:
        """Return the answer to the query."""
        by_class = {"rows": self.rows, "groups": self.groups, "agreeing": self.agreeing, "scores": self.scores}
        answer = {name: Over(values, self.rows) for name, values in by_class.items()}
        together = {} if self.together is None else {"together": Over(self.together, int(self.rows.sum()))}
        return {**answer, "spread": Over(np.array([self.spread]), int(self.rows.sum())), **together}

    @classmethod
    def read(cls, answer: Arrays) -> Agreement:
        """Read the arrays of a reply."""
        rows, groups, agreeing = (answer[name].astype(np.int64) for name in ("rows", "groups", "agreeing"))
        scores = answer["scores"].astype(np.float64)
        together = answer["together"].astype(np.float64) if "together" in answer else None
        return cls(rows, groups, agreeing, scores, float(answer["spread"][0]), together)

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
        shifted: Clients with skewed features, who take their shift off their rows.
        left_out: Those of them whose rows are not among the sums.
    """

    axes: Values
    sums: Values
    counts: IntArray
    shifted: frozenset[int] = frozenset()
    left_out: frozenset[int] = frozenset()

    def arrays(self) -> Arrays:
        """Return what the message holds."""
        return {"axes": self.axes, "sums": self.sums, "counts": self.counts}

    @property
    def information(self) -> Values:
        """|g_c|² of each class, 0 for a class that nobody told of, shape `(num_classes,)`."""
        means = self.sums / np.maximum(self.counts, 1)[:, None]
        apart = means - self.sums.sum(axis=0) / max(int(self.counts.sum()), 1)
        return np.where(self.counts > 0, (apart**2).sum(axis=1), 0.0)


def discriminant(
    classes: ClassMoments, within: Values, num_rows: int, strange: Collection[int] = ()
) -> Discriminant | None:
    """Return Fisher's discriminant; None with fewer than two classes, or where these differ by no more than chance.

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
    return None if axes is None else Discriminant(axes, sums @ axes, counts, frozenset(strange), left_out)


@dataclass(frozen=True)
class Whitening:
    """The map to features that are uncorrelated within classes and have the variance 1.

    Attributes:
        features: Those that vary within classes.
        scale: Their standard deviations, shape `(features,)`.
        root: Lower Cholesky factor of their regularised correlations.
        pull: How far these are drawn towards 0.
        num_features: d.
    """

    features: IntArray
    scale: Values
    root: Values
    pull: float
    num_features: int

    @classmethod
    def of(cls, within: Values, num_rows: int) -> Whitening | None:
        """Return the map for a covariance within classes, shape `(d, d)`, of so many rows; None if nothing varies."""
        from scipy.linalg import cholesky

        varies = varying(within)
        if len(varies) == 0:
            return None
        scale = np.sqrt(np.diag(within)[varies])
        pull = len(varies) / (len(varies) + num_rows)
        correlation = (1 - pull) * within[np.ix_(varies, varies)] / np.outer(scale, scale)
        correlation[np.diag_indices(len(varies))] = 1.0
        return cls(varies, scale, cholesky(correlation, lower=True), pull, len(within))

    def apply(self, rows: Values) -> Values:
        """Return rows of shape `(n, d)` mapped, shape `(n, features)`."""
        from scipy.linalg import solve_triangular

        return np.asarray(solve_triangular(self.root, (rows[:, self.features] / self.scale).T, lower=True).T)

    def traces(self) -> tuple[float, float]:
        """Return the traces of the covariance within classes after the map, and of its square."""
        from scipy.linalg import cho_solve

        pull, count = self.pull, len(self.features)
        left = pull * cho_solve((self.root, True), np.eye(count))
        left[np.diag_indices(count)] -= 1
        return -float(np.trace(left)) / (1 - pull), float((left**2).sum()) / (1 - pull) ** 2

    def axes(self, directions: Values) -> Values:
        """Return the axes that give directions of the mapped space, shape `(n, features)`; shape `(d, n)`."""
        from scipy.linalg import solve_triangular

        axes = np.zeros((self.num_features, len(directions)))
        axes[self.features] = solve_triangular(self.root, directions.T, lower=True, trans="T") / self.scale[:, None]
        return axes


def _discriminant_axes(counts: IntArray, sums: Values, within: Values, num_rows: int) -> Values | None:
    from scipy.stats import chi2

    present = counts > 0
    whitening = Whitening.of(within, num_rows)
    if present.sum() < 2 or whitening is None:
        return None
    rows = counts[present].astype(np.float64)
    means = sums[present] / rows[:, None]
    centred = whitening.apply((means - rows @ means / rows.sum()) * np.sqrt(rows)[:, None])
    if chi2.sf(float((centred**2).sum()), centred.shape[1] * (len(rows) - 1)) > CLASSES_APART:
        return None
    _, strengths, directions = np.linalg.svd(centred, full_matrices=False)
    return whitening.axes(directions[strengths**2 > SMALLEST_SHARE * strengths[0] ** 2])
