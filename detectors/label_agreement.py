"""Label agreement: whether clients' rows have the labels that the other clients' rows imply.

**Client statistics.** Wrong labels change the relation between features and labels, and may leave both marginal
distributions unchanged. Let z be a row on the axes of Fisher's discriminant, on which classes are separated and the
within-class covariance is the identity (R. A. Fisher. The use of multiple measurements in taxonomic problems. Annals of
Eugenics 7(2), 1936). M_c is the mean of all clients' N_c rows of class c, M that of all rows, g_c = M_c − M. A client
releases two statistics of its n_c rows of each class:

- **How many rows agree**: are nearer to the mean M_c of their own label than to any other class mean. Counts are
  powerful if classes are well separated. Whether a single row agrees with means that the server chooses would reveal
  where the row lies. So the rows of a class are sorted by their margin, how much nearer they are to their own mean than
  to the next one, |z − M|² being the distance, and grouped, `min_release` or a few more to a group; a group agrees if
  its mean margin is positive. Groups with equal distance to two means are not counted.
- **How informative the labels are**: T = Σ_i (z_i − M_c) · g_c over its rows i, by class. If labels are as reliable as
  the others', T has mean 0. If a share ρ of them is random, rows of class c lie at M in this share. Scores are powerful
  if classes overlap.

**Every client is compared with the same means, which include its own rows.** Whether a row agrees, and its contribution
to T, then depend on the row and its label alone, not on the client that holds it. So for identically distributed
clients rows of a class are exchangeable between clients: counts are hypergeometric whatever the distribution of the
features, ties and equal rows included, and T is the sum of a sample without replacement. With leave-one-out means,
equal rows of different clients would be judged differently, and all rows of a client at once.

Details:

- Classes are not compared if their means differ by no more than chance: with S the covariance within classes,
  Σ_c N_c (M_c − M)ᵀ S⁻¹ (M_c − M) follows χ² with d (C − 1) degrees of freedom if all classes have the same mean.
- Clients with feature skew, by the test of `fedscout.detectors.calibrated_feature_skew`, first subtract their shift v
  from their rows, as a shift of all features does not make labels wrong. Let a be the client's label-adjusted shift and
  u the difference of its mean over all rows from the pooled mean. Feature skew moves both alike; wrong labels move only
  a, as the rows do not move. So v = a · clip(a·u / a·a, 0, 1). As v has a standard error of 1 / √n on each axis and
  moves all rows of the client at once, margins are increased by `SHIFT_ERRORS` of their standard errors; subtracting v
  reduces the variance of T.
- The rows of these clients also move the class means. While these clients are fewer than half, their rows are excluded
  from the means and the axes.
- The axes are those of the regularised discriminant: the correlation matrix within classes is shrunk towards the
  identity by d / (d + N) (J. H. Friedman. Regularized discriminant analysis. Journal of the American Statistical
  Association 84, 1989).
- If rows are grouped, a client releases two more sums. With u_i = (z_i − m_c) · g_c of row i, m_c the client's own
  mean, and u_g their sum over the judged rows of group g, these are Σ u_g² in units of Σ u_i², and Σ n_g²;
  `design_effects` derives the design effect of T from them.
- `fedscout.engine.data.client` restricts the released classes: those with fewer than `min_release` rows are withheld.
- Features whose scale differs between clients, such as brightness, look like less informative labels.

**Count test.** Of a client's n_c groups of judged rows of class c, e_c disagree; of all clients' N_c groups E_c
disagree. Under the null hypothesis e_c follows the hypergeometric distribution, as whether a row agrees does not depend
on who holds it, and the p-value is the probability of at least Σ_c e_c disagreements (N. Mantel and W. Haenszel.
Statistical aspects of the analysis of data from retrospective studies of disease. Journal of the National Cancer
Institute 22(4), 1959). Stratification by class makes the test robust to label skew: a client with hard classes is
compared on these classes. The probability is exact if few disagreements are expected, else normal with a continuity
correction. The effect is the missing agreement relative to the others' on the same classes, but at most the effect of
the scores if these are available: noise on the features reduces agreement, too, but does not move the class means.
Clients whose rows are excluded from the means are compared with the others, but the others not with them.

**Score test.** T / √(φ J) with J = Σ_c n_c (1 − n_c / N_c) |g_c|² follows Student's t distribution if the client's
labels are as informative as the others', as T is then the sum of a sample without replacement; it has the degrees of
freedom of φ. The test is one-sided, for low values. φ is the variance of z · g_c within classes in units of |g_c|²: the
client's own, as its variance may differ, and at least the pooled one, as its own is uncertain. For a client whose rows
are excluded from the means, n_c (1 + n_c / N_c) replaces n_c (1 − n_c / N_c). The effect is ρ, the missing share of the
labels' information: the client's own rows, a share f of all, bias the means towards them, so that
−T / J = ρ / (1 − f ρ).

**Grouped rows** increase the variance of T to δ φ J, and φ has the degrees of freedom of n / δ rows less its classes.
δ_k is 1 + ρ (Σ n_g² / n − 1) of client k, and ρ is estimated over the groups of all clients by moments,

    Σ u_g² / Σ u_i² · M / (M − C) = 1 + ρ (Σ n_g² / n − 1),

weighted by rows, with M groups and C classes, whose means the clients subtract. It is clipped to [0, 1]. For rows
judged in groups of m, counts vary less than the hypergeometric distribution assumes, until δ exceeds m: beyond that
counts are divided by δ / m. It is an approximation that the agreement of rows is no more correlated than their scores
along g_c, exact for a normal distribution.

For randomly mislabelled rows either effect is about their share, for swapped classes about 1 or more. Holm's method
corrects over clients.

**Concepts**: whether, and for which clients, labels depend on the same features. Outliers are defined only relative to
a majority that agrees. Let W map features to uncorrelated ones of variance 1 within classes, and γ_kc = W (m_kc − m_k),
with m_kc the mean of client k's n_kc rows of class c and m_k the mean over the classes that clients k and l share,
weighted by w_c = n_kc n_lc / (n_kc + n_lc). For a pair of clients

    S_kl = Σ_c w_c γ_kc · γ_lc,    L_kl = ½ Σ_c w_c (|γ_kc|² + |γ_lc|²) − ½ τ (C_kl − 1),

C_kl being the number of shared classes and τ the trace of the covariance within classes after the map, so that the last
term removes the bias. As clients are independent, S_kl is an unbiased estimate of the inner product of their class
contrasts, and L_kl of the mean of the squared norms. Over several pairs ΣS / ΣL is the agreement: 1 if all clients'
labels depend on the same features, about 0 if each client has a rule of its own, negative if clients contradict each
other. It is invariant to a shift of all of a client's rows, class shares and numbers of rows. For grouped rows n_kc is
divided by their design effect (`fedscout.detectors.feature_skew`).

Labels of two groups of clients depend on different features if over the pairs between them the agreement is below
`AGREE` and 2 (ΣL − ΣS) exceeds 0 by `SURE` of its standard deviations under the null hypothesis. For K clients of one
distribution and normal rows its variance is K τ₂ Σ (C_kl − 1), τ₂ being the trace of the square of that covariance.
Groups are merged agglomeratively, the pair of largest agreement first, until labels of any two groups depend on
different features; all clients are one group if over all pairs 2 (ΣL − ΣS) is not significant. Clients that share no
two classes with others do not differ from them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from fedscout.detectors.calibrated_feature_skew import varying
from fedscout.detectors.feature_skew import ClassMoments, FeatureGroups
from fedscout.detectors.statistics import ClientTest, Values, by_client, flat_features, holm, largest
from fedscout.engine.arrays import IntArray
from fedscout.engine.data.client import Answer, Arrays, QueryInputs, RowAggregate, released_cells
from fedscout.engine.data.federation import UNNAMED, Names

SMALLEST_SHARE: Final = 1e-6
"""Axes that separate classes by less than this share of what the first one does are left out."""

CLASSES_APART: Final = 0.05
"""Classes are compared if their means are as far apart with at most this probability by chance."""

SHIFT_ERRORS: Final = 2.0
TIE: Final = 1e-9
"""Groups whose margin is below this share of the largest one are equally near to two means up to rounding."""


def label_agreement(inputs: QueryInputs) -> Answer:
    """Client half. Return the arrays of `Agreement`; all 0 for classes without released rows.

    Reads `axes`, shape `(d, r)`, `sums`, the sum of the released rows of each class on these axes, `(num_classes, r)`,
    and `counts`, their number; the scalar `shifted` says whether the client subtracts its shift from its rows.
    """
    axes = inputs.arrays["axes"].astype(np.float64)
    sums, pooled_counts = (inputs.by_class(name, inputs.num_classes) for name in ("sums", "counts"))
    counts = inputs.data.label_counts(inputs.num_classes)
    counts = np.where(released_cells(counts, inputs.min_release) & (pooled_counts > 0), counts, 0)
    projected = [(flat_features(features) @ axes, labels) for features, labels in inputs.data.chunks()]
    rows = np.concatenate([part for part, _ in projected])
    labels = np.concatenate([part for _, part in projected])
    means = sums / np.maximum(pooled_counts, 1)[:, None]
    centre = sums.sum(axis=0) / max(pooled_counts.sum(), 1)
    error = 0.0
    if bool(inputs.config["shifted"]) and counts.any():
        rows = rows - _common_shift(rows, labels, counts, means, centre)
        error = SHIFT_ERRORS / np.sqrt(_effective_rows(labels, counts, inputs.groups))
    contrasts = np.where((counts > 0)[:, None], means - centre, 0.0)
    margins = _margins(rows, labels, means, pooled_counts > 0, error)
    groups, agreeing = _groups(margins, labels, counts, max(inputs.min_release, 1))
    scores: Values = np.zeros(len(counts))
    np.add.at(scores, labels, ((rows - means[labels]) * contrasts[labels]).sum(axis=1))
    scores_by_row = _centred_scores(rows, labels, contrasts)
    by_class = {"rows": counts, "groups": groups, "agreeing": agreeing, "scores": scores}
    answer = {name: RowAggregate(values, counts) for name, values in by_class.items()}
    num_rows, spread = int(counts.sum()), _spread(scores_by_row, labels, contrasts, counts)
    answer["spread"] = RowAggregate(np.array([spread]), num_rows)
    if inputs.groups is not None:
        answer["together"] = RowAggregate(_group_sums(scores_by_row, labels, inputs.groups, counts), num_rows)
    return answer


def _margins(rows: Values, labels: IntArray, means: Values, known: npt.NDArray[np.bool_], error: float) -> Values:
    """Return by how much each row is nearer to the mean of its own class than to the next, shape `(rows,)`.

    Args:
        rows: Shape `(rows, r)`.
        labels: Label of each row.
        means: Mean of each class, shape `(num_classes, r)`.
        known: Whether rows of the class are released.
        error: Allowance for the error of the shift, by which margins are increased.
    """
    scores = rows @ means.T - 0.5 * (means**2).sum(axis=1)
    own_class = np.arange(len(labels)), labels
    own = scores[own_class]
    if error > 0:
        from scipy.spatial.distance import cdist

        scores -= error * cdist(means, means)[labels]
    scores[:, ~known] = -np.inf
    scores[own_class] = -np.inf
    return np.asarray(own - scores.max(axis=1))


def _effective_rows(labels: IntArray, counts: IntArray, groups: IntArray | None) -> float:
    """Return the effective number of judged rows: all of them, or n² / Σ n_g² for grouped rows."""
    judged = counts[labels] > 0
    if groups is None:
        return float(judged.sum())
    sizes = np.unique(groups[judged], return_counts=True)[1]
    return float(judged.sum() ** 2 / (sizes**2).sum())


def _groups(margins: Values, labels: IntArray, counts: IntArray, size: int) -> tuple[IntArray, IntArray]:
    """Return how many groups of each class are not tied and how many of them agree, shapes `(num_classes,)`.

    Args:
        margins: Margin of each row.
        labels: Label of each row.
        counts: Rows of each class, 0 for those that are not judged, else at least `size`.
        size: Size of the smallest group.
    """
    groups, agreeing = np.zeros_like(counts), np.zeros_like(counts)
    finite = np.abs(margins[np.isfinite(margins)])
    tie = TIE * float(finite.max(initial=0.0))
    for label in np.flatnonzero(counts):
        ordered = np.sort(margins[labels == label])
        num_groups = counts[label] // size
        starts = np.arange(num_groups) * len(ordered) // num_groups
        totals = np.add.reduceat(ordered, starts)
        groups[label], agreeing[label] = (np.abs(totals) > tie).sum(), (totals > tie).sum()
    return groups, agreeing


def _centred_scores(rows: Values, labels: IntArray, known_by: Values) -> Values:
    """Return (z − m_c) · g_c of each row, shape `(rows,)`."""
    values = (rows * known_by[labels]).sum(axis=1)
    num_classes = len(known_by)
    means = np.bincount(labels, values, num_classes) / np.maximum(np.bincount(labels, minlength=num_classes), 1)
    return np.asarray(values - means[labels])


def _spread(along: Values, labels: IntArray, known_by: Values, counts: IntArray) -> float:
    """Return φ: the variance of z · g_c within classes in units of |g_c|²."""
    scale = float(np.maximum(counts - 1, 0) @ (known_by**2).sum(axis=1))
    return float((along**2)[counts[labels] > 0].sum()) / scale if scale > 0 else 0.0


def _group_sums(along: Values, labels: IntArray, groups: IntArray, counts: IntArray) -> Values:
    """Return Σ u_g² / Σ u_i², Σ n_g² and the number of groups of the judged rows; 1, n and n if nothing varies."""
    judged = counts[labels] > 0
    values = along[judged]
    _, members = np.unique(groups[judged], return_inverse=True)
    sizes = np.bincount(members).astype(np.float64)
    total = float((values**2).sum())
    ratio = float((np.bincount(members, values) ** 2).sum()) / total if total > 0 else 1.0
    return np.array([ratio, (sizes**2).sum(), len(sizes)])


def _common_shift(rows: Values, labels: IntArray, counts: IntArray, means: Values, centre: Values) -> Values:
    """Return v: the part of the label-adjusted shift that the mean of all the client's rows shares."""
    judged = counts[labels] > 0
    adjusted: Values = np.asarray((rows[judged] - means[labels[judged]]).mean(axis=0))
    moved = rows[judged].mean(axis=0) - centre
    length = float(adjusted @ adjusted)
    return adjusted * float(np.clip(adjusted @ moved / length, 0.0, 1.0)) if length > 0 else adjusted


@dataclass(frozen=True)
class Agreement:
    """One client's answer.

    Attributes:
        rows: Judged rows by class, shape `(num_classes,)`.
        groups: Groups of judged rows that are not tied, by class, shape `(num_classes,)`.
        agreeing: Number of these groups that agree, by class, shape `(num_classes,)`.
        scores: T by class, shape `(num_classes,)`.
        spread: φ, the variance of z · g_c within classes in units of |g_c|².
        together: Σ u_g² / Σ u_i², Σ n_g² and the number of groups, shape `(3,)`; None if rows are independent.
    """

    rows: IntArray
    groups: IntArray
    agreeing: IntArray
    scores: Values
    spread: float
    together: Values | None = None

    @classmethod
    def read(cls, answer: Arrays) -> Agreement:
        """Return the answer from the arrays of a reply."""
        rows, groups, agreeing = (answer[name].astype(np.int64) for name in ("rows", "groups", "agreeing"))
        scores = answer["scores"].astype(np.float64)
        together = answer["together"].astype(np.float64) if "together" in answer else None
        return cls(rows, groups, agreeing, scores, float(answer["spread"][0]), together)

    def freedom_of(self, design_effect: float) -> float:
        """Return the degrees of freedom of φ: judged rows over the design effect, less the number of their classes."""
        return float(self.rows.sum() / design_effect - (self.rows > 0).sum())


@dataclass(frozen=True)
class Discriminant:
    """Discriminant axes and class sums on which clients are compared.

    Attributes:
        axes: Shape `(d, r)`.
        sums: Sum of the rows of each class on the axes, shape `(num_classes, r)`.
        counts: Rows of each class, shape `(num_classes,)`.
        shifted: Clients with skewed features, which subtract their shift from their rows.
        left_out: Those of them whose rows are excluded from the sums.
    """

    axes: Values
    sums: Values
    counts: IntArray
    shifted: frozenset[int] = frozenset()
    left_out: frozenset[int] = frozenset()

    def arrays(self) -> Arrays:
        """Return the arrays of the message."""
        return {"axes": self.axes, "sums": self.sums, "counts": self.counts}

    @property
    def information(self) -> Values:
        """|g_c|² of each class, 0 for a class without released rows, shape `(num_classes,)`."""
        means = self.sums / np.maximum(self.counts, 1)[:, None]
        contrasts = means - self.sums.sum(axis=0) / max(int(self.counts.sum()), 1)
        return np.where(self.counts > 0, (contrasts**2).sum(axis=1), 0.0)


def discriminant(
    classes: ClassMoments, within: Values, num_rows: int, strange: Collection[int] = ()
) -> Discriminant | None:
    """Return Fisher's discriminant; None with fewer than two classes, or if these differ by no more than chance.

    Args:
        classes: Per-class sums.
        within: Covariance within classes, shape `(d, d)`.
        num_rows: Number of rows behind `within`.
        strange: Clients with skewed features, whose rows would bias the class means. They are excluded if more than
            half of the clients remain.
    """
    counts, sums, left_out = classes.pooled_counts, classes.sums, frozenset[int]()
    if strange and 2 * len(strange) < len(classes.counts) and (others := classes.without(strange)) is not None:
        (counts, sums), left_out = others, frozenset(strange)
    axes = _discriminant_axes(counts, sums, within, num_rows)
    return None if axes is None else Discriminant(axes, sums @ axes, counts, frozenset(strange), left_out)


@dataclass(frozen=True)
class Whitening:
    """Map to features that are uncorrelated within classes and have variance 1.

    Attributes:
        features: Features that vary within classes.
        scale: Their standard deviations, shape `(features,)`.
        root: Lower Cholesky factor of their regularised correlations.
        pull: Shrinkage of the correlations towards 0.
        num_features: d.
    """

    features: IntArray
    scale: Values
    root: Values
    pull: float
    num_features: int

    @classmethod
    def of(cls, within: Values, num_rows: int) -> Whitening | None:
        """Return the map for a covariance within classes, shape `(d, d)`; None if nothing varies."""
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
        """Return mapped rows, shape `(n, features)`, of rows of shape `(n, d)`."""
        from scipy.linalg import solve_triangular

        return np.asarray(solve_triangular(self.root, (rows[:, self.features] / self.scale).T, lower=True).T)

    def traces(self) -> tuple[float, float]:
        """Return the traces of the covariance within classes after the map, and of its square."""
        from scipy.linalg import cho_solve

        pull, count = self.pull, len(self.features)
        difference = pull * cho_solve((self.root, True), np.eye(count))
        difference[np.diag_indices(count)] -= 1
        return -float(np.trace(difference)) / (1 - pull), float((difference**2).sum()) / (1 - pull) ** 2

    def axes(self, directions: Values) -> Values:
        """Return the axes, shape `(d, n)`, that project onto directions of the mapped space, shape `(n, features)`."""
        from scipy.linalg import solve_triangular

        axes = np.zeros((self.num_features, len(directions)))
        axes[self.features] = solve_triangular(self.root, directions.T, lower=True, trans="T") / self.scale[:, None]
        return axes


def _discriminant_axes(counts: IntArray, sums: Values, within: Values, num_rows: int) -> Values | None:
    from scipy.special import chdtrc

    present = counts > 0
    whitening = Whitening.of(within, num_rows)
    if present.sum() < 2 or whitening is None:
        return None
    rows = counts[present].astype(np.float64)
    means = sums[present] / rows[:, None]
    centred = whitening.apply((means - rows @ means / rows.sum()) * np.sqrt(rows)[:, None])
    if chdtrc(centred.shape[1] * (len(rows) - 1), float((centred**2).sum())) > CLASSES_APART:
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
    """Return the tests that are possible; none with fewer than three clients."""
    scores = score_test(answers, comparison)
    counts = count_test(answers, comparison.left_out)
    if counts is not None and scores is not None:
        effects = {c: min(effect, scores.effects.get(c, effect)) for c, effect in counts.effects.items()}
        counts = replace(counts, effects=effects)
    return tuple(test for test in (counts, scores) if test is not None)


def count_test(answers: Mapping[int, Agreement], left_out: Collection[int] = ()) -> ClientTest | None:
    """Compare each client's share of agreeing labels with the others'; None with fewer than three clients.

    Args:
        answers: Answer of each client.
        left_out: Clients that are tested but not part of the reference for others.
    """
    clients = sorted(client for client in answers if answers[client].groups.sum() > 0)
    if len(clients) < MIN_CLIENTS:
        return None
    compared = [answers[client] for client in clients if client not in left_out]
    pooled_groups = np.sum([answer.groups for answer in compared], axis=0)
    pooled_agreeing = np.sum([answer.agreeing for answer in compared], axis=0)
    design = design_effects(answers)
    p_values, effects, classes = [], {}, {}
    for client in clients:
        groups, agreeing = answers[client].groups, answers[client].agreeing
        added = client in left_out
        total, total_agreeing = pooled_groups + added * groups, pooled_agreeing + added * agreeing
        counted_as_one = max(1.0, design[client] * groups.sum() / answers[client].rows.sum())
        p_values.append(disagreement_tail(groups, groups - agreeing, total, total - total_agreeing, counted_as_one))
        expected = np.where(total > groups, groups * ((total_agreeing - agreeing) / np.maximum(total - groups, 1)), 0.0)
        missing = expected - np.where(total > groups, agreeing, 0)
        effects[client] = float(missing.sum() / expected.sum()) if expected.sum() > 0 else 0.0
        classes[client] = _top_classes(missing)
    corrected = by_client(clients, holm(np.array(p_values)))
    return ClientTest(corrected, effects, classes, "labels", "agreement of labels")


def score_test(answers: Mapping[int, Agreement], comparison: Discriminant) -> ClientTest | None:
    """Test whether each client's labels are less informative than the others'; None with fewer than three clients."""
    from scipy.special import stdtr

    design = design_effects(answers)
    freedom = {client: answer.freedom_of(design[client]) for client, answer in answers.items()}
    information = {client: answer.rows * comparison.information for client, answer in answers.items()}
    shares = {client: answer.rows / np.maximum(comparison.counts, 1) for client, answer in answers.items()}
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
    pooled_spread = float(np.average([spreads[c] for c in clients], weights=[freedom[c] for c in clients]))
    if pooled_spread <= 0:
        return None
    p_values, effects, classes = [], {}, {}
    for client in clients:
        answer = answers[client]
        total = float(answer.scores.sum())
        variance = design[client] * max(spreads[client], pooled_spread) * compared[client]
        p_values.append(float(stdtr(freedom[client], total / np.sqrt(variance))))
        if client in comparison.left_out:
            effects[client] = -total / float(information[client].sum())
        else:
            missing, share = -total / compared[client], 1 - compared[client] / float(information[client].sum())
            effects[client] = missing / (1 + share * max(missing, 0.0))
        classes[client] = _top_classes(-answer.scores)
    corrected = by_client(clients, holm(np.array(p_values)))
    return ClientTest(corrected, effects, classes, "labels", "information of labels")


def design_effects(answers: Mapping[int, Agreement]) -> dict[int, float]:
    """Return δ of each client, at least 1, by the module's equation; 1 if rows are independent."""
    grouped = {
        client: [reply.rows.sum(), (reply.rows > 0).sum(), *reply.together]
        for client, reply in answers.items()
        if reply.together is not None and reply.rows.sum() > 0
    }
    table = np.array(list(grouped.values())).reshape(-1, 5)
    rows, classes, _, squares, num_groups = table.sum(axis=0)
    if squares <= rows:
        return dict.fromkeys(answers, 1.0)
    scatter = float(table[:, 0] @ table[:, 2]) / rows * num_groups / max(num_groups - classes, 1)
    correlation = float(np.clip((scatter - 1) / (squares / rows - 1), 0.0, 1.0))
    surplus = {client: size_squares / own_rows - 1 for client, (own_rows, _, _, size_squares, _) in grouped.items()}
    return {client: 1 + correlation * surplus.get(client, 0.0) for client in answers}


def _top_classes(missing: Values) -> tuple[int, ...]:
    return largest(missing, max(0.0, float(missing.max())) / CLASSES_NAMED, CLASSES_NAMED)


def disagreement_tail(
    own: IntArray, own_errors: IntArray, rows: IntArray, errors: IntArray, counted_as_one: float = 1.0
) -> float:
    """Return the probability of at least as many disagreements as a client has, under the null hypothesis.

    Args:
        own: The client's groups of each class, shape `(classes,)`.
        own_errors: Number of these that disagree.
        rows: All clients' groups of each class, including the client's.
        errors: Number of these that disagree.
        counted_as_one: Number of groups that carry the information of one; rounding favours the client.
    """
    from scipy.special import ndtr

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
    return float(ndtr((expected.sum() - observed + 0.5) / np.sqrt(variance)))


def _exact_tail(own: IntArray, rows: IntArray, errors: IntArray, observed: int) -> float:
    """Return P(sum of independent hypergeometric counts >= observed)."""
    below = np.ones(1)
    for drawn, total, bad in zip(own, rows, errors, strict=True):
        below = np.convolve(below, _hypergeometric(int(drawn), int(total), int(bad), observed))[:observed]
    return float(np.clip(1.0 - below.sum(), 0.0, 1.0))


def _hypergeometric(drawn: int, total: int, bad: int, limit: int) -> Values:
    """Return the probabilities of 0, 1, ... fewer than `limit` bad ones among the drawn, up to the possible maximum."""
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
"""Limit of clients² × classes × features; beyond it, an evenly spaced subset of the clients is compared."""


@dataclass(frozen=True)
class Concepts:
    """Groups of clients whose labels depend on the same features.

    Attributes:
        groups: All compared clients, the largest group first; one group if all labels depend on the same features.
    """

    groups: tuple[tuple[int, ...], ...]

    @property
    def has_majority(self) -> bool:
        """Whether at least two thirds of the clients agree."""
        return len(self.groups[0]) >= MAJORITY * sum(map(len, self.groups)) - 1e-9

    @property
    def named(self) -> tuple[tuple[int, ...], ...]:
        """Groups of at least two clients; empty if there are fewer than two such groups."""
        several = tuple(group for group in self.groups if len(group) > 1)
        return several if len(several) > 1 else ()

    def text(self, names: Names = UNNAMED) -> str:
        """Return the explanation if there is no majority."""
        text = "clients' labels depend on different features, and no two thirds of the clients agree"
        if self.named:
            text += f"; groups of clients that agree: {' | '.join(map(names.some_clients, self.named))}"
        return text


def compare_concepts(
    classes: ClassMoments, within: Values, num_rows: int, groups: FeatureGroups | None = None
) -> Concepts | None:
    """Return the concepts of clients; None with fewer than three clients that release two classes.

    Args:
        classes: Per-class sums. None is also returned if each client's own were not retained.
        within: Covariance within classes, shape `(d, d)`.
        num_rows: Number of rows behind `within`.
        groups: Design effects of grouped rows; None if rows are independent.
    """
    whitening = Whitening.of(within, num_rows)
    if classes.own is None or whitening is None:
        return None
    clients = _comparable_clients(classes)
    if len(clients) < MIN_CLIENTS:
        return None
    counts = np.stack([classes.counts[client] for client in clients]).astype(np.float64)
    means = np.stack(
        [whitening.apply(classes.own[c] / np.maximum(n, 1)[:, None]) for c, n in zip(clients, counts, strict=True)]
    )
    trace, squared_trace = whitening.traces()
    if groups is not None:
        counts /= groups.of(clients, whitening.features).mean(axis=1)[:, None]
    shared, lengths, freedom = _pairs(counts, means)
    lengths -= 0.5 * trace * freedom
    upper = np.triu_indices(len(clients), 1)
    shared_sum, length_sum = float(shared[upper].sum()), float(lengths[upper].sum())
    deviation = float(np.sqrt(len(clients) * squared_trace * freedom[upper].sum()))
    if 2 * (length_sum - shared_sum) <= SURE * deviation:
        return Concepts((clients,))
    agreeing = [tuple(clients[i] for i in group) for group in _concept_groups(shared, lengths, squared_trace * freedom)]
    return Concepts(tuple(sorted(agreeing, key=lambda group: (-len(group), group))))


def _comparable_clients(classes: ClassMoments) -> tuple[int, ...]:
    clients = sorted(client for client, counts in classes.counts.items() if (counts > 0).sum() > 1)
    limit = max(MIN_CLIENTS, int(np.sqrt(MOST_PRODUCTS / classes.sums.size)))
    if len(clients) > limit:
        clients = [clients[i * len(clients) // limit] for i in range(limit)]
    return tuple(clients)


def _pairs(counts: Values, means: Values) -> tuple[Values, Values, Values]:
    """Return S, L before its bias correction, and C − 1; 0 for pairs that share no two classes.

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
    """Return groups of clients by agglomerative merging.

    Args:
        shared: S of each pair, shape `(clients, clients)`.
        lengths: L of each pair, shape `(clients, clients)`.
        scatter: τ₂ (C − 1) of each pair, shape `(clients, clients)`.
    """
    sums = np.stack([shared, lengths, scatter])
    members = [[client] for client in range(len(shared))]
    while len(members) > 1:
        product, length, variance = sums
        sizes = np.array([len(group) for group in members])
        agreement = np.divide(product, length, out=np.zeros_like(product), where=length > 0)
        insignificant = 2 * (length - product) <= SURE * np.sqrt((sizes[:, None] + sizes) * variance)
        candidates = np.where((agreement >= AGREE) | insignificant, agreement, -np.inf)
        np.fill_diagonal(candidates, -np.inf)
        first, second = sorted(divmod(int(candidates.argmax()), len(members)))
        if candidates[first, second] == -np.inf:
            break
        sums[:, first] += sums[:, second]
        sums[:, :, first] += sums[:, :, second]
        sums = np.delete(np.delete(sums, second, axis=1), second, axis=2)
        members[first] += members.pop(second)
    return [sorted(group) for group in members]
