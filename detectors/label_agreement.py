"""Label agreement between clients, its tests, and groups of clients whose labels rest on different features.

Label agreement: whether a client's rows lie where all clients' rows of the same label do.

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
- Clients whose features are skewed, by the test of `fedscout.detectors.calibrated_feature_skew`, take their shift
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
  (`fedscout.detectors.statistics`).
- Classes are told of as `fedscout.engine.data.client` lets them: those with fewer than `min_release` rows are not.
- Features whose scale differs between clients, as brightness may, look like labels that say less.

Two tests for `label_agreement`: whose labels agree less, or say less, than the other clients'.

**Counts.** Of a client's n_c groups of judged rows of class c, e_c do not agree; of all clients' N_c groups E_c do not.
If the client is like the others, e_c follows the hypergeometric distribution, as whether a row agrees does not depend
on who holds it, and the test asks for the probability of as many disagreements as Σ_c e_c or more (N. Mantel and
W. Haenszel. Statistical aspects of the analysis of data from retrospective studies of disease. Journal of the National
Cancer Institute 22(4), 1959). Counting class by class makes label skew harmless: a client whose classes are hard is
compared on these classes. The probability is exact where few disagreements are expected, else normal with a continuity
correction. The effect is the agreement that is missing, relative to the others' on the same classes, but no more than
that of the scores where these are known: noise on the features costs agreement, too, but leaves the classes' means
where they are. Clients whose rows are not among the means are compared with the others, and not the others with them.

**Scores.** T / √(φ J) with J = Σ_c n_c (1 − n_c / N_c) |g_c|² follows Student's t distribution if the client's labels
say as much as the others', as T is then the sum of a sample without replacement; it has as many degrees of freedom as
φ. The test asks for as low a value or a lower one. φ is the variance of z · g_c within classes in units of |g_c|²: the
client's own, as its spread may be another than the others', and at least everyone's, as its own is uncertain. Of a
client whose rows are not among the means, n_c (1 + n_c / N_c) stands in place of n_c (1 − n_c / N_c). The effect is ρ,
the part of the labels' information that is missing: the client's own rows, a share f of all, draw the means after them,
so that −T / J = ρ / (1 − f ρ).

**Rows that belong together** scatter T with δ φ J, and leave φ the freedom of n / δ rows less its classes. δ_k is
1 + ρ (Σ n_g² / n − 1) of client k, and ρ is estimated over the groups of all clients by moments,

    Σ u_g² / Σ u_i² · M / (M − C) = 1 + ρ (Σ n_g² / n − 1),

weighted by rows, M being the groups and C the classes, whose means the clients subtract. It is kept in [0, 1]. Of rows
judged together, m to a group, counts scatter by less than the hypergeometric distribution has it, which takes them for
m times as many as rows, until δ exceeds m: from there on counts are divided by δ / m. That whether rows agree
is correlated no more than how far they are along g_c is an approximation, exact for a normal distribution.

Of randomly mislabelled rows either effect is about their part, of classes that have changed places about 1 or more.
Holm's method corrects over clients.

Concepts: whether the clients' labels rest on the same features, and which clients' do.

Who is an outlier is a question only where most clients agree. Let W map features to uncorrelated ones of variance 1
within classes, and γ_kc = W (m_kc − m_k), with m_kc the mean of client k's n_kc rows of class c and m_k the mean over
the classes that clients k and l share, weighted by w_c = n_kc n_lc / (n_kc + n_lc). Of a pair of clients

    S_kl = Σ_c w_c γ_kc · γ_lc,    L_kl = ½ Σ_c w_c (|γ_kc|² + |γ_lc|²) − ½ τ (C_kl − 1),

C_kl being the number of shared classes and τ the trace of the covariance within classes after the map, so that the last
term is what chance adds. As clients are independent, S_kl is an unbiased estimate of the product of what their classes
are known by, and L_kl of the mean of the squares. Of several pairs ΣS / ΣL is the agreement: 1 if all clients' labels
rest on the same features, about 0 if each client has a rule of its own, negative if clients contradict each other. A
shift of all of a client's rows, shares of classes and numbers of rows do not change it. Where rows belong together,
n_kc is divided by their design effect (`fedscout.detectors.feature_skew`).

Labels of two groups of clients rest on different features if over the pairs between them the agreement is below `AGREE`
and 2 (ΣL − ΣS) exceeds 0 by `SURE` of the standard deviations that it has where all clients are alike. For K clients of
one distribution and normal rows its variance is K τ₂ Σ (C_kl − 1), τ₂ being the trace of the square of that covariance.
Clients are joined to groups, always the two of the largest agreement first, until labels of any two groups rest on
different features; all at once if over all pairs 2 (ΣL − ΣS) is no larger than by chance. Clients that share no two
classes with others do not differ from them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from fedscout.detectors.calibrated_feature_skew import varying
from fedscout.detectors.feature_skew import ClassMoments, FeatureGroups
from fedscout.detectors.statistics import ClientTest, Values, by_client, flat_features, holm, largest, own_counts
from fedscout.engine.arrays import IntArray
from fedscout.engine.data.client import Answer, Arrays, QueryInputs, RowAggregate, told_cells
from fedscout.engine.data.federation import UNNAMED, Names

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
        answer = {name: RowAggregate(values, self.rows) for name, values in by_class.items()}
        together = {} if self.together is None else {"together": RowAggregate(self.together, int(self.rows.sum()))}
        return {**answer, "spread": RowAggregate(np.array([self.spread]), int(self.rows.sum())), **together}

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


MIN_CLIENTS: Final = 3
MIN_FREEDOM: Final = 20
"""With fewer rows means of skewed features are not normal, and the score is not tested."""

EXACT_VARIANCE: Final = 100.0
EXACT_COUNT: Final = 1000
"""Beyond either, the number of disagreements is taken to be normal."""

CLASSES_NAMED: Final = 3


def label_tests(answers: Mapping[int, Agreement], comparison: Discriminant) -> tuple[ClientTest, ...]:
    """Return the tests that at least three clients allow."""
    scores = score_test(answers, comparison)
    counts = count_test(answers, comparison.left_out)
    if counts is not None and scores is not None:
        both = {c: min(effect, scores.effects.get(c, effect)) for c, effect in counts.effects.items()}
        counts = replace(counts, effects=both)
    return tuple(test for test in (counts, scores) if test is not None)


def count_test(answers: Mapping[int, Agreement], left_out: Collection[int] = ()) -> ClientTest | None:
    """Compare how many labels of each client agree with how many of the others' do; None with fewer than three.

    Args:
        answers: Of each client.
        left_out: Clients with which no other client is compared.
    """
    clients = sorted(client for client in answers if answers[client].groups.sum() > 0)
    if len(clients) < MIN_CLIENTS:
        return None
    compared = [answers[client] for client in clients if client not in left_out]
    everyone = np.sum([each.groups for each in compared], axis=0)
    everyone_right = np.sum([each.agreeing for each in compared], axis=0)
    design = design_effects(answers)
    p_values, effects, classes = [], {}, {}
    for client in clients:
        own, own_right = answers[client].groups, answers[client].agreeing
        added = client in left_out
        total, right = everyone + added * own, everyone_right + added * own_right
        fewer = max(1.0, design[client] * own.sum() / answers[client].rows.sum())
        p_values.append(disagreement_tail(own, own - own_right, total, total - right, fewer))
        expected = np.where(total > own, own * ((right - own_right) / np.maximum(total - own, 1)), 0.0)
        missing = expected - np.where(total > own, own_right, 0)
        effects[client] = float(missing.sum() / expected.sum()) if expected.sum() > 0 else 0.0
        classes[client] = _leading(missing)
    return _corrected(clients, p_values, effects, classes, "agreement of labels")


def score_test(answers: Mapping[int, Agreement], comparison: Discriminant) -> ClientTest | None:
    """Ask whose labels say less than the others'; None with fewer than three."""
    from scipy.stats import t as student

    design = design_effects(answers)
    freedom = {client: own.freedom_of(design[client]) for client, own in answers.items()}
    information = {client: own.rows * comparison.information for client, own in answers.items()}
    shares = {client: own.rows / np.maximum(comparison.counts, 1) for client, own in answers.items()}
    compared = {
        client: float(
            information[client] @ (1 + shares[client] if client in comparison.left_out else 1 - shares[client])
        )
        for client in answers
    }
    clients = [client for client in sorted(answers) if freedom[client] >= MIN_FREEDOM and compared[client] > 0]
    if len(clients) < MIN_CLIENTS:
        return None
    spreads = {c: answers[c].spread * (answers[c].freedom_of(1) / (design[c] * freedom[c])) for c in clients}
    usual = float(np.average([spreads[c] for c in clients], weights=[freedom[c] for c in clients]))
    if usual <= 0:
        return None
    p_values, effects, classes = [], {}, {}
    for client in clients:
        own = answers[client]
        total = float(own.scores.sum())
        variance = design[client] * max(spreads[client], usual) * compared[client]
        p_values.append(float(student.cdf(total / np.sqrt(variance), freedom[client])))
        if client in comparison.left_out:
            effects[client] = -total / float(information[client].sum())
        else:
            missing, share = -total / compared[client], 1 - compared[client] / float(information[client].sum())
            effects[client] = missing / (1 + share * max(missing, 0.0))
        classes[client] = _leading(-own.scores)
    return _corrected(clients, p_values, effects, classes, "information of labels")


def design_effects(answers: Mapping[int, Agreement]) -> dict[int, float]:
    """Return δ of each client, at least 1, by the module's equation; 1 where rows are independent."""
    grouped = {c: own for c, own in answers.items() if own.together is not None and own.rows.sum() > 0}
    told = np.array([[own.rows.sum(), (own.rows > 0).sum(), *_told(own)] for own in grouped.values()]).reshape(-1, 5)
    rows, classes, _, squares, num_groups = told.sum(axis=0)
    if squares <= rows:
        return dict.fromkeys(answers, 1.0)
    scatter = float(told[:, 0] @ told[:, 2]) / rows * num_groups / max(num_groups - classes, 1)
    correlation = float(np.clip((scatter - 1) / (squares / rows - 1), 0.0, 1.0))
    own_surplus = {c: _told(own)[1] / own.rows.sum() - 1 for c, own in grouped.items()}
    return {client: 1 + correlation * own_surplus.get(client, 0.0) for client in answers}


def _told(own: Agreement) -> Values:
    assert own.together is not None
    return own.together


def _leading(missing: Values) -> tuple[int, ...]:
    return largest(missing, max(0.0, float(missing.max())) / CLASSES_NAMED, CLASSES_NAMED)


def _corrected(
    clients: list[int],
    p_values: list[float],
    effects: Mapping[int, float],
    classes: Mapping[int, tuple[int, ...]],
    words: str,
) -> ClientTest:
    return ClientTest(by_client(clients, holm(np.array(p_values))), effects, classes, "labels", words)


def disagreement_tail(
    own: IntArray, own_errors: IntArray, rows: IntArray, errors: IntArray, counted_as_one: float = 1.0
) -> float:
    """Return the probability of at least so many disagreements as a client has, if it is like all.

    Args:
        own: The client's groups of each class, shape `(classes,)`.
        own_errors: Those of them that disagree.
        rows: Everyone's groups of each class, the client's included.
        errors: Those of them that disagree.
        counted_as_one: How many groups know as much as one; rounding favours the client.
    """
    from scipy.stats import norm

    useful = (own > 0) & (rows > own)
    own, rows, errors = own[useful], rows[useful], errors[useful]
    observed = int(own_errors[useful].sum() / counted_as_one)
    rows = np.ceil(rows / counted_as_one).astype(np.int64)
    own, errors = (np.minimum(np.ceil(count / counted_as_one).astype(np.int64), rows) for count in (own, errors))
    if observed == 0:
        return 1.0
    expected = own * (errors / rows)
    variance = float((expected * (1 - errors / rows) * (rows - own) / np.maximum(rows - 1, 1)).sum())
    if variance == 0:
        return 1.0
    if variance <= EXACT_VARIANCE and observed <= EXACT_COUNT:
        return _exact_tail(own, rows, errors, observed)
    return float(norm.sf((observed - 0.5 - expected.sum()) / np.sqrt(variance)))


def _exact_tail(own: IntArray, rows: IntArray, errors: IntArray, observed: int) -> float:
    """Return P(sum of independent hypergeometric counts >= observed)."""
    below = np.ones(1)
    for drawn, total, bad in zip(own, rows, errors, strict=True):
        below = np.convolve(below, _hypergeometric(int(drawn), int(total), int(bad), observed))[:observed]
    return float(np.clip(1.0 - below.sum(), 0.0, 1.0))


def _hypergeometric(drawn: int, total: int, bad: int, limit: int) -> Values:
    """Return the probabilities of 0, 1, ... fewer than `limit` bad ones among the drawn, as far as they can occur."""
    from scipy.special import gammaln

    def log_choose(items: IntArray | int, chosen: IntArray | int) -> Values:
        items, chosen = np.asarray(items), np.asarray(chosen)
        return np.asarray(gammaln(items + 1) - gammaln(chosen + 1) - gammaln(items - chosen + 1))

    fewest = max(0, drawn + bad - total)
    probabilities = np.zeros(min(limit, min(drawn, bad) + 1))
    counts = np.arange(fewest, len(probabilities))
    logarithms = log_choose(bad, counts) + log_choose(total - bad, drawn - counts) - log_choose(total, drawn)
    probabilities[fewest:] = np.exp(logarithms)
    return probabilities


SURE: Final = 4.0
AGREE: Final = 0.5
MAJORITY: Final = 2 / 3
MOST_PRODUCTS: Final = 2e9
"""Of clients² × classes × features; with more, as many clients are compared, evenly spaced, as make no more."""


@dataclass(frozen=True)
class Concepts:
    """How far clients' labels rest on the same features.

    Attributes:
        groups: All compared clients, the largest group first; one group where labels rest on the same features.
    """

    groups: tuple[tuple[int, ...], ...]

    @property
    def has_majority(self) -> bool:
        """Whether at least two thirds of the clients agree."""
        return len(self.groups[0]) >= MAJORITY * sum(map(len, self.groups)) - 1e-9

    @property
    def named(self) -> tuple[tuple[int, ...], ...]:
        """Groups of at least two clients; none where there are fewer than two such groups."""
        several = tuple(group for group in self.groups if len(group) > 1)
        return several if len(several) > 1 else ()

    def text(self, names: Names = UNNAMED) -> str:
        """Return what is said where no majority agrees."""
        text = "clients' labels rest on different features, and no two thirds of the clients agree"
        if self.named:
            text += f"; these agree among themselves: {' | '.join(map(names.some_clients, self.named))}"
        return text


def compare_concepts(
    classes: ClassMoments, within: Values, num_rows: int, groups: FeatureGroups | None = None
) -> Concepts | None:
    """Return how far labels rest on the same features; None with fewer than three clients that tell of two classes.

    Args:
        classes: Per-class sums. None is returned, too, where each client's own were not kept.
        within: Covariance within classes, shape `(d, d)`.
        num_rows: Behind it.
        groups: What clients tell of rows that belong together; None where rows are independent.
    """
    whitening = Whitening.of(within, num_rows)
    if classes.own is None or whitening is None:
        return None
    clients = _compared(classes)
    if len(clients) < MIN_CLIENTS:
        return None
    counts = np.stack([classes.counts[client] for client in clients]).astype(np.float64)
    means = np.stack(
        [whitening.apply(classes.own[c] / np.maximum(n, 1)[:, None]) for c, n in zip(clients, counts, strict=True)]
    )
    trace, square = whitening.traces()
    if groups is not None:
        counts /= groups.of(clients, whitening.features).mean(axis=1)[:, None]
    shared, lengths, freedom = _pairs(counts, means)
    lengths -= 0.5 * trace * freedom
    upper = np.triu_indices(len(clients), 1)
    shared_sum, length_sum = float(shared[upper].sum()), float(lengths[upper].sum())
    deviation = float(np.sqrt(len(clients) * square * freedom[upper].sum()))
    if 2 * (length_sum - shared_sum) <= SURE * deviation:
        return Concepts((clients,))
    agreeing = [tuple(clients[i] for i in group) for group in _concept_groups(shared, lengths, square * freedom)]
    return Concepts(tuple(sorted(agreeing, key=lambda group: (-len(group), group))))


def _compared(classes: ClassMoments) -> tuple[int, ...]:
    clients = sorted(client for client, counts in classes.counts.items() if (counts > 0).sum() > 1)
    most = max(MIN_CLIENTS, int(np.sqrt(MOST_PRODUCTS / classes.sums.size)))
    if len(clients) > most:
        clients = [clients[i * len(clients) // most] for i in range(most)]
    return tuple(clients)


def _pairs(counts: Values, means: Values) -> tuple[Values, Values, Values]:
    """Return S, L without the chance taken off, and C − 1, 0 for pairs that share no two classes.

    Args:
        counts: Shape `(clients, classes)`.
        means: In the mapped space, shape `(clients, classes, features)`.

    Returns:
        Shapes `(clients, clients)`.
    """
    squares = (means**2).sum(axis=2)
    shared, lengths, freedom = (np.zeros((len(counts), len(counts))) for _ in range(3))
    for k, own in enumerate(counts):
        weights = counts * own / np.where(counts + own > 0, counts + own, 1)
        weights[(weights > 0).sum(axis=1) < 2] = 0
        total = np.maximum(weights.sum(axis=1), 1e-12)
        own_sums = weights @ means[k]
        other_sums = np.einsum("lc,lcd->ld", weights, means)
        products = np.einsum("lcd,cd->lc", means, means[k])
        shared[k] = (weights * products).sum(axis=1) - (own_sums * other_sums).sum(axis=1) / total
        both = (weights * (squares + squares[k])).sum(axis=1)
        lengths[k] = 0.5 * (both - ((own_sums**2).sum(axis=1) + (other_sums**2).sum(axis=1)) / total)
        freedom[k] = np.maximum((weights > 0).sum(axis=1) - 1, 0)
    return shared, lengths, freedom


def _concept_groups(shared: Values, lengths: Values, scatter: Values) -> list[list[int]]:
    """Return groups of clients.

    Args:
        shared: S of each pair, shape `(clients, clients)`.
        lengths: L of each pair, likewise.
        scatter: τ₂ (C − 1) of each pair, likewise.
    """
    sums = np.stack([shared, lengths, scatter])
    members = [[client] for client in range(len(shared))]
    while len(members) > 1:
        own, length, variance = sums
        sizes = np.array([len(group) for group in members])
        agreement = np.divide(own, length, out=np.zeros_like(own), where=length > 0)
        unsure = 2 * (length - own) <= SURE * np.sqrt((sizes[:, None] + sizes) * variance)
        joins = np.where((agreement >= AGREE) | unsure, agreement, -np.inf)
        np.fill_diagonal(joins, -np.inf)
        first, second = sorted(divmod(int(joins.argmax()), len(members)))
        if joins[first, second] == -np.inf:
            break
        sums[:, first] += sums[:, second]
        sums[:, :, first] += sums[:, :, second]
        sums = np.delete(np.delete(sums, second, axis=1), second, axis=2)
        members[first] += members.pop(second)
    return [sorted(group) for group in members]
