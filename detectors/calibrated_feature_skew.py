"""Calibrated feature skew: do a client's rows differ from the others' rows *of the same class* beyond chance?

**Statistic.** Let client k hold n_c rows of class c, of N_c in all, with mean m_c and pooled mean M_c. Its
label-adjusted shift in feature j is the inverse-variance mean of its class-wise differences from the others, as in
analysis of covariance,

    a_j = (Σ_c n_c (m_cj − M_cj)) / W,    W = Σ_c w_c,    w_c = n_c (1 − n_c / N_c),

with variance Σ_c w_c s²_cj / W², s²_cj the variance within class c. A class that no other client holds has weight 0. So
label skew alone causes no shift, and neither do wrong labels if all classes are equally frequent: they move rows
between classes, not the client's rows as a whole. The statistic is the sum over features of the squared standardised
shifts,

    Q = Σ_j (Σ_c n_c (m_cj − M_cj))² / Σ_c w_c s²_cj,

Hotelling's T² without the inverse of a covariance matrix, which does not exist if there are more features than rows (M.
S. Srivastava and M. Du. A test for the mean vector with fewer observations than the dimension. Journal of Multivariate
Analysis 99(3), 2008). Under the null hypothesis Q has mean d, variance 2 tr R² and third central moment 8 tr R³, R
being the correlation matrix within classes for the client's own weights w_c (`fedscout.detectors.feature_skew`). Its
distribution is approximated by these three moments, and p-values are corrected over clients by Holm's method. For few
rows of heavy-tailed features the variance is larger (`fedscout.detectors.feature_skew`); the third moment is then
assumed to grow with its square, as for a scaled χ².

Two corrections for non-normal features: The mean of a nearly constant feature is far from normal, and a single
deviating row would dominate Q, so each feature's contribution to Q is capped at a value that a normal shift rarely
exceeds. With heavy tails, such as of log-normal features, the one client that holds the extreme rows deviates strongly,
but its own variance is then large as well. So s²_cj is multiplied by the ratio of the client's variance within classes
to the pooled one if that exceeds 1.

**Effect.** The root mean square over features of the client's shift from the median of all clients' shifts, in standard
deviations within a class; the sampling variance 1/n is subtracted from its square. The median keeps one shifted client
from making all others look shifted the other way.

**Single-feature test.** The cap hides a shift of one feature of many from Q, however large and significant it is. So
`ONE_SHARE` of the rate is spent on a second test, of the client's largest standardised shift: its p-value is that of
Student's t distribution with the client's rows less its classes as degrees of freedom, times the number of features
(Bonferroni, as no correlation is assumed), and corrected over clients as well. Its effect is that feature's shift,
which flags from `ONE_EFFECT` times the smallest effect. It applies to clients that Q does not flag.

**Grouped rows.** The variance of a_j is multiplied by its design effect, and groups replace rows
(`fedscout.detectors.feature_skew`).

**Few rows per class.** If less than half of all rows may be released class by class, rows of all classes are compared
as one class. This is equivalent only for identical label distributions, so it is restricted to clients with similar
labels (`fedscout.detectors.detect.clients_with_similar_labels`).

**Shared axes.** For reports, a_k is the client's label-adjusted shift less the median client's, in standard deviations
within a class, shape `(d,)`. It is reported on at most `NUM_AXES` shared axes, the leading right singular vectors of
the matrix of all shifts, so that clients with a common shift stay together, and a report of many features stays small.
Sampling adds 1/n to the mean square over features: each row of the matrix is shrunk to the client's effect,
sqrt(max(|a_k|²/d − 1/n, 0)), and the reported vector has that length, whatever part of it lay off the axes.
With more than `SAMPLED_CLIENTS` clients the axes are computed from the first `SAMPLED_CLIENTS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from fedscout.detectors import feature_skew
from fedscout.detectors.feature_skew import NAME, ClassMoments, FeatureGroups, PooledMoments
from fedscout.detectors.report import CalibratedFinding, ClientEvidence, FeatureShift
from fedscout.detectors.statistics import ClientTest, Values, by_client, decide, holm, largest, moment_matched_tail
from fedscout.engine.arrays import IntArray
from fedscout.engine.data.federation import UNNAMED, Names

FEATURES_NAMED: Final = 5
SHIFT_NAMED: Final = 0.2
"""A feature is named if its shift is this many standard deviations."""

SMALLEST_CAP: Final = 16.0
CAPPED_RATE: Final = 1e-4
"""A feature adds at most the larger of two values to Q: `SMALLEST_CAP`, or the quantile that the normal shift of any
client exceeds with probability `CAPPED_RATE`."""

ONE_SHARE: Final = 0.1
"""Small, so that Q keeps its power, and enough, since p-values of a feature's shift fall fast with rows."""

ONE_EFFECT: Final = 3.0

ENOUGH_RELEASED: Final = 0.5


@dataclass(frozen=True)
class Shifts:
    """Label-adjusted shifts of the clients that can be compared.

    Attributes:
        clients: Ascending.
        rows: Number of compared rows, shape `(clients,)`.
        statistics: Q, shape `(clients,)`.
        largest: Largest standardised shift of a feature, shape `(clients,)`.
        freedom: Its degrees of freedom, at least 1, shape `(clients,)`.
        variance, third: Central moments of Q under the null hypothesis, whose mean is the number of features, shape
            `(clients,)`.
        offsets: Shift from the pooled mean in standard deviations within a class, shape `(clients, features)`.
        features: The features behind the columns of `offsets`: those that vary within a class.
        by_chance: Expected mean square of a client's offsets under the null hypothesis, shape `(clients,)`.
        units: Independent rows, or groups of rows, shape `(clients,)`.
    """

    clients: tuple[int, ...]
    rows: IntArray
    statistics: Values
    largest: Values
    freedom: Values
    variance: Values
    third: Values
    offsets: Values
    features: IntArray
    by_chance: Values
    units: Values

    def p_values(self, excess: float = 0.0) -> Values:
        """Return each client's uncorrected p-value.

        Args:
            excess: Squared coefficient of variation of the squared lengths of rows, or of sums over groups, see
                `fedscout.detectors.feature_skew`.
        """
        adjusted = self.variance * (1 - 1 / self.units) + excess * len(self.features) ** 2 / self.units
        variances = np.maximum(adjusted, self.variance)
        thirds = self.third * (variances / self.variance) ** 2
        return moment_matched_tail(self.statistics, len(self.features), variances, thirds)

    def one_feature_p_values(self) -> Values:
        """Return the p-value of each client's most shifted feature, corrected over features but not over clients."""
        from scipy.special import stdtr

        return np.asarray(np.minimum(1.0, 2 * stdtr(self.freedom, -self.largest) * len(self.features)))


def within_covariance(pooled: PooledMoments, classes: ClassMoments) -> Values:
    """Return the covariance within classes, shape `(d, d)`; withheld rows count as one more class.

    Args:
        pooled: Moments of all rows.
        classes: Moments of the released classes.
    """
    present = classes.pooled_counts > 0
    counts = classes.pooled_counts[present].astype(np.float64)
    means = classes.means[present]
    num_withheld = pooled.num_rows - counts.sum()
    if num_withheld > 0:
        withheld_mean = (pooled.mean * pooled.num_rows - classes.sums.sum(axis=0)) / num_withheld
        counts, means = np.append(counts, num_withheld), np.vstack([means, withheld_mean])
    deviations = (means - pooled.mean) * np.sqrt(counts)[:, None]
    scatter = pooled.covariance * (pooled.num_rows - 1) - deviations.T @ deviations
    return np.asarray(scatter / max(pooled.num_rows - len(counts), 1))


def varying(covariance: Values) -> IntArray:
    """Return the features whose variance in a covariance, shape `(d, d)`, exceeds rounding errors."""
    diagonal = np.diag(covariance)
    return np.flatnonzero(diagonal > 1e-12 * max(float(diagonal.max(initial=0.0)), np.finfo(np.float64).tiny))


def per_deviation(covariance: Values) -> Values:
    """Return the inverse of each feature's standard deviation, 0 for those that do not vary, shape `(d,)`."""
    scale = np.zeros(len(covariance))
    features = varying(covariance)
    scale[features] = 1 / np.sqrt(np.diag(covariance)[features])
    return scale


def label_adjusted_shifts(
    classes: ClassMoments,
    within: Values,
    groups: FeatureGroups | None = None,
    covariances: feature_skew.ClassCovariances | None = None,
) -> Shifts | str:
    """Return the shifts, or why there are none: fewer than two comparable clients, or no feature varies within a class.

    Args:
        classes: Per-class sums.
        within: Covariance within classes, shape `(d, d)`.
        groups: Design effects of grouped rows; None if rows are independent.
        covariances: Covariances by class mix; None uses `within` for every client.
    """
    from scipy.special import chdtri

    diagonal = np.diag(within)
    features = varying(within)
    clients = tuple(sorted(client for client, counts in classes.counts.items() if _weights(counts, classes).sum() > 0))
    if len(clients) < 2 or len(features) == 0:
        return "no two clients report the same class, or no feature varies within a class"
    means, variances = classes.means[:, features], classes.variances[:, features]
    floor = 1e-6 * diagonal[features]
    cap = max(SMALLEST_CAP, float(chdtri(1, CAPPED_RATE / len(clients))))
    design = np.ones((len(clients), len(features))) if groups is None else groups.of(clients, features)
    scale = np.sqrt(diagonal[features])
    correlation = within[np.ix_(features, features)] / np.outer(scale, scale)
    squared = correlation @ correlation
    traces = float(np.trace(squared)), float((squared * correlation).sum())
    moments, statistics, largest_squares, present, offsets, rows = [], [], [], [], [], []
    for client, effects in zip(clients, design, strict=True):
        counts = classes.counts[client]
        weights = _weights(counts, classes)
        compared = weights > 0
        moments.append(traces if covariances is None else covariances.traces(weights, features, traces))
        surplus = classes.totals[client][features] - counts @ means
        spread = (weights @ np.maximum(variances, floor)) * effects * classes.widening(client)[features]
        squares = surplus**2 / spread
        statistics.append(np.minimum(squares, cap).sum())
        largest_squares.append(squares.max())
        present.append(np.count_nonzero(compared))
        rows.append(int(counts[compared].sum()))
        offsets.append(surplus / rows[-1] / scale)
    units = np.array(rows, np.float64) if groups is None else groups.groups_of(clients)
    return Shifts(
        clients=clients,
        rows=np.array(rows),
        statistics=np.array(statistics),
        largest=np.sqrt(largest_squares),
        freedom=np.maximum(units - present, 1.0),
        variance=2 * np.array(moments)[:, 0],
        third=8 * np.array(moments)[:, 1],
        offsets=np.stack(offsets),
        features=features,
        by_chance=design.mean(axis=1) / rows,
        units=units,
    )


def _weights(counts: IntArray, classes: ClassMoments) -> Values:
    return np.asarray(counts * (1 - counts / np.maximum(classes.pooled_counts, 1)))


def classes_as_one(totals: Mapping[int, feature_skew.ClientTotals], pooled: PooledMoments) -> ClassMoments:
    """Return moments in which all rows are of one class.

    Args:
        totals: Totals of each client.
        pooled: Moments of all rows.
    """
    return ClassMoments(
        pooled_counts=np.array([pooled.num_rows]),
        sums=(pooled.mean * pooled.num_rows)[None, :],
        squares=(pooled.variance * (pooled.num_rows - 1))[None, :],
        counts={client: np.array([client_totals.num_rows]) for client, client_totals in totals.items()},
        totals={client: client_totals.total for client, client_totals in totals.items()},
        spreads={client: client_totals.squares for client, client_totals in totals.items()},
        own=None,
    )


def decide_feature_skew_calibrated(
    shifts: Shifts | str,
    rate: float,
    min_effect: float,
    by_class: bool = True,
    excess: float = 0.0,
    names: Names = UNNAMED,
) -> CalibratedFinding:
    """Test each client's label-adjusted shift.

    Args:
        shifts: Shifts of the clients, or why they can't be compared.
        rate: Probability of any flag in a federation whose clients are identically distributed within classes.
        min_effect: Smallest root mean square shift that flags; that of a single feature is `ONE_EFFECT` times as large.
        by_class: Whether rows of the same class were compared.
        excess: Squared coefficient of variation of the rows' squared lengths.
        names: Display names of clients and features.
    """
    if isinstance(shifts, str):
        return CalibratedFinding.unmeasured(NAME, rate, shifts)
    compared = "of the same class" if by_class else "of any class"
    return decide_shifts(
        shifts.clients,
        shifts.p_values(excess),
        shifts.offsets,
        shifts.by_chance,
        shifts.features,
        rate,
        min_effect,
        f"sum of squared shifts of rows {compared}",
        compared,
        shifts.one_feature_p_values(),
        names,
    )


def decide_shifts(
    clients: Sequence[int],
    p_values: Values,
    offsets: Values,
    by_chance: Values,
    features: Sequence[int] | IntArray,
    rate: float,
    min_effect: float,
    method: str,
    compared: str,
    one_feature_p_values: Values | None = None,
    names: Names = UNNAMED,
) -> CalibratedFinding:
    """Decide by the clients' shifts from their median, given the p-values of any test.

    Args:
        clients: Compared clients.
        p_values: Not corrected over clients, shape `(clients,)`.
        offsets: Shifts in standard deviations, shape `(clients, features)`.
        by_chance: Expected mean square of a client's shifts under the null hypothesis, shape `(clients,)`.
        features: The features behind the columns of `offsets`.
        rate: Largest p-value that flags.
        min_effect: Smallest root mean square shift that flags.
        method: Description of the test.
        compared: Description of the compared rows, for the sentence.
        one_feature_p_values: Of each client's most shifted feature, not corrected over clients; None if not tested.
        names: Display names of clients and features.
    """
    centred = offsets - np.median(offsets, axis=0)
    effects = by_client(clients, np.sqrt(np.maximum((centred**2).mean(axis=1) - by_chance, 0.0)))
    named = {
        client: tuple(
            FeatureShift(feature=int(features[i]), shift=float(row[i]))
            for i in largest(np.abs(row), SHIFT_NAMED, FEATURES_NAMED)
        )
        for client, row in zip(clients, centred, strict=True)
    }
    corrected = by_client(clients, holm(p_values))
    joint_share = None if one_feature_p_values is None else 1 - ONE_SHARE
    joint = ClientTest(corrected, effects, {}, "features", method, named, joint_share)
    tests = [(joint, min_effect)]
    if one_feature_p_values is not None:
        one_p_values, shifted = by_client(clients, holm(one_feature_p_values)), np.abs(centred).max(axis=1)
        min_shift, method = ONE_EFFECT * min_effect, "largest shift of a feature"
        one = ClientTest(one_p_values, by_client(clients, shifted), {}, "one feature", method, named, ONE_SHARE)
        alone = {
            client: effect
            for client, effect in one.effects.items()
            if one.evidence(client, 1, rate, min_shift).flagged
            and not joint.evidence(client, 1, rate, min_effect).flagged
        }
        tests.append((replace(one, effects=alone), min_shift))
    return decide(NAME, tests, rate, partial(describe_shift, compared=compared), names=names)


def describe_shift(client: int, evidence: ClientEvidence, names: Names, compared: str) -> str:
    """Return a sentence on a client's shift from the other clients' rows; `compared` describes these."""
    unit = "in one feature" if evidence.source == "one feature" else "root mean square over features"
    text = (
        f"The rows of {names.one_client(client)} are shifted by {evidence.effect:.2g} standard deviations ({unit}) "
        f"relative to the other clients' rows {compared}"
    )
    if not evidence.features:
        return text
    positions, shifts = zip(*((shift.feature, f"{shift.shift:+.2g}") for shift in evidence.features), strict=True)
    return f"{text}, mainly in {names.some_features(positions, shifts)}"


NUM_AXES: Final = 8
SAMPLED_CLIENTS: Final = 200


def shared_axes(shifts: Shifts) -> dict[int, tuple[float, ...]]:
    """Return the clients' shifts on shared axes, scaled to the length of their effects."""
    centred = shifts.offsets - np.median(shifts.offsets, axis=0)
    squares = (centred**2).mean(axis=1)
    effects = np.sqrt(np.maximum(squares - shifts.by_chance, 0.0))
    shrunk = centred * np.divide(effects, np.sqrt(squares), out=np.zeros_like(effects), where=squares > 0)[:, None]
    _, sizes, axes = np.linalg.svd(shrunk[:SAMPLED_CLIENTS], full_matrices=False)
    leading = axes[:NUM_AXES][sizes[:NUM_AXES] > 1e-9 * max(float(sizes.max(initial=0.0)), 1e-9)]
    coords = shrunk @ (leading * np.sign(leading[np.arange(len(leading)), np.abs(leading).argmax(axis=1)])[:, None]).T
    lengths = np.linalg.norm(coords, axis=1)
    coords *= np.divide(effects, lengths, out=np.zeros_like(effects), where=lengths > 0)[:, None]
    return dict(zip(shifts.clients, map(tuple, coords.tolist()), strict=True))
