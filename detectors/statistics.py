"""Statistics shared by the detectors: calibrated decisions, design effects, heterogeneity metrics and speed skew.

**Calibrated decisions.** The published rules compare a value with a fixed threshold, so their false-alarm rate depends
on the number of clients, their sizes and the data. A calibrated decision tests how likely clients with identical
distributions differ as much as observed: its false-alarm rate is chosen and holds for the whole federation. A client
is flagged if its p-value is at most the rate *and* its effect size reaches a minimum: with many rows a difference may
be significant and yet too small to matter. The rate of a federation is divided equally among the detectors
(Bonferroni), so that it bounds the probability of any false detection. Within a detector p-values are corrected over
clients by

    S. Holm. A simple sequentially rejective multiple test procedure. Scandinavian Journal of Statistics 6(2), 1979,

or by the distribution of the maximum statistic over clients.

**Design effects.** Rows of one group, such as one subject, tend to have the same label, so a client with 20 subjects
of 5 rows each carries about as much information on labels as 20 rows; tests that assume 100 independent rows give
false alarms. If any two rows of a group are both of class c with correlation ρ_c, and rows of different groups are
independent, then the count of class c among n rows in groups of n_g rows has the variance

    n p_c (1 − p_c) δ_c,    δ_c = 1 + ρ_c (Σ n_g² / n − 1),

L. Kish. Survey Sampling. Wiley, 1965. With x_gc the rows of class c in group g and p the class shares among all rows,
ρ_c is estimated by the method of moments over the groups of all clients,

    Σ_g (x_gc − n_g p_c)² · M / (M − 1) = p_c (1 − p_c) (N + ρ_c (Σ n_g² − N)),

where M is the number of groups, and clipped to [0, 1]. Each client therefore releases Σ x_gc² and Σ n_g x_gc per class,
and Σ n_g² and the number of groups; no single group can be derived from these. For a class that a client withholds,
all rows of a group are assumed to have the same label, which is conservative.

Pearson's statistic of correlated counts is a sum of χ² terms weighted by generalised design effects (J. N. K. Rao and
A. J. Scott. The analysis of categorical data from complex sample surveys: chi-squared tests for goodness of fit and
independence in two-way tables. JASA 76(374), 1981). These are approximated by the eigenvalues of
D^½ (I − √p √pᵀ) D^½ with D = diag(δ_c): covariances between classes are not released, and the approximation is exact
if all classes have the same ρ. A group shared by several clients counts as one group of each.

**Metrics.** Divergences, spreads and distances are pure functions of histograms and sizes. Entropy and divergences are
in bits (logarithm to base 2), so the Jensen-Shannon divergence lies in `[0, 1]`. It is the divergence of

    J. Lin. Divergence measures based on the Shannon entropy. IEEE Transactions on Information Theory 37(1), 1991,

not its square root, which `scipy.spatial.distance.jensenshannon` returns. Histograms of bin counts or probabilities
are reduced over their last axis; the other axes broadcast.

**Speed skew.** The expected duration of a round of the slowest client relative to the median client. A synchronous
round waits for the slowest client, so the ratio is how much longer it takes than half of the clients need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscout.detectors import report as reports
from fedscout.detectors.report import (
    CalibratedFinding,
    ClientEvidence,
    DetectorName,
    EvidenceSource,
    FeatureShift,
    SpeedSkew,
)
from fedscout.engine.arrays import IntArray
from fedscout.engine.data.client import Answer, Arrays, QueryInputs, RowAggregate, WithheldError
from fedscout.engine.data.federation import UNNAMED, Names
from fedscout.engine.errors import DataError
from fedscout.engine.seeds import stream

Values = npt.NDArray[np.float64]


FEW_CLIENTS = 20
"""Up to here the differences of all pairs are computed for all features at once; beyond, feature by feature."""


def distribution(counts: npt.ArrayLike) -> Values:
    """Return counts divided by their total over the last axis; totals must be positive."""
    values = np.asarray(counts, dtype=np.float64)
    totals = values.sum(axis=-1, keepdims=True)
    assert np.all(totals > 0), "a distribution needs at least one count"
    return np.asarray(values / totals)


def kl_divergence(p: npt.ArrayLike, q: npt.ArrayLike) -> Values:
    """Return KL(p‖q) in bits; infinite where p has mass and q has none."""
    p, q = np.broadcast_arrays(np.asarray(p, dtype=np.float64), np.asarray(q, dtype=np.float64))
    ratio = np.divide(p, q, out=np.full(p.shape, np.inf), where=q > 0)
    logarithms = np.log2(ratio, out=np.zeros(p.shape), where=p > 0)
    return np.asarray(np.sum(p * logarithms, axis=-1))


def js_divergence(p: npt.ArrayLike, q: npt.ArrayLike) -> Values:
    """Return ½ KL(p‖m) + ½ KL(q‖m) with m = ½(p+q), in `[0, 1]`: symmetric, 0 for equal arguments."""
    p, q = np.asarray(p, dtype=np.float64), np.asarray(q, dtype=np.float64)
    middle = (p + q) / 2
    return np.asarray(np.clip((kl_divergence(p, middle) + kl_divergence(q, middle)) / 2, 0.0, 1.0))


def mean_pairwise_hellinger(probabilities: npt.ArrayLike) -> Values:
    """Return the mean Hellinger distance over all pairs of clients, for shape `(..., clients >= 2, bins)`.

    The distance of p and q is ‖√p − √q‖₂ / √2, in `[0, 1]`: 0 if they are equal, 1 if they are disjoint.
    """
    roots = np.sqrt(np.asarray(probabilities, dtype=np.float64))
    mean_distances = _few_pairs if roots.shape[-2] <= FEW_CLIENTS else _many_pairs
    return np.asarray(np.minimum(mean_distances(roots) / np.sqrt(2), 1.0))


def _few_pairs(points: Values) -> Values:
    """Return the mean Euclidean distance over all pairs of rows, vectorised over the leading axes."""
    num_points = points.shape[-2]
    total = np.zeros(points.shape[:-2])
    for index in range(num_points - 1):
        differences = points[..., index + 1 :, :] - points[..., index, None, :]
        total += np.sqrt(np.einsum("...kb,...kb->...k", differences, differences)).sum(axis=-1)
    return np.asarray(total / (num_points * (num_points - 1) / 2))


def _many_pairs(points: Values) -> Values:
    """Return the same with less memory but a fixed cost for each entry of the leading axes."""
    from scipy.spatial.distance import pdist  # half a second to import

    means = [pdist(rows).mean() for rows in points.reshape(-1, *points.shape[-2:])]
    return np.reshape(means, points.shape[:-2])


def mean_pairwise_wasserstein(probabilities: npt.ArrayLike, bin_width: float) -> Values:
    """Return the mean 1-Wasserstein distance over all pairs of clients.

    Args:
        probabilities: Shape `(..., clients >= 2, bins)`.
        bin_width: Bin width in the unit of the result.
    """
    cumulative = np.cumsum(np.asarray(probabilities, dtype=np.float64), axis=-1)[..., :-1]
    return np.asarray(bin_width * mean_pairwise_difference(np.swapaxes(cumulative, -1, -2)).sum(axis=-1))


def mean_pairwise_difference(values: npt.ArrayLike) -> Values:
    """Return the mean absolute difference over all pairs of clients.

    Of K sorted values the gap after the r-th is covered by r (K − r) pairs. The sum over all pairs thus takes a sort
    instead of K² differences, and all its terms are non-negative.

    Args:
        values: Shape `(..., clients >= 2)`.
    """
    gaps = np.diff(np.sort(np.asarray(values, dtype=np.float64), axis=-1), axis=-1)
    num_clients = gaps.shape[-1] + 1
    ranks = np.arange(1, num_clients)
    return np.asarray(gaps @ (ranks * (num_clients - ranks) / (num_clients * (num_clients - 1) / 2)))


def output_divergence(mean_outputs: npt.ArrayLike) -> float:
    """Return the mean Jensen-Shannon divergence between clients' mean softmax outputs, over all pairs.

    Args:
        mean_outputs: One probability vector a client, shape `(clients >= 2, classes)`.
    """
    outputs = np.asarray(mean_outputs, dtype=np.float64)
    first, second = np.triu_indices(len(outputs), k=1)
    return float(js_divergence(outputs[first], outputs[second]).mean())


def gini(sizes: npt.ArrayLike) -> float:
    """Return Σ_i Σ_j |x_i − x_j| / (2 K² mean): 0 for equal sizes, (K−1)/K if one client holds all rows."""
    values = np.sort(np.asarray(sizes, dtype=np.float64))
    ranks = np.arange(1, len(values) + 1)
    return float(np.sum((2 * ranks - len(values) - 1) * values) / (len(values) * values.sum()))


def heterogeneity_index(num_present: int, num_classes: int) -> float:
    """Return 1 − (c − 1)/(c_max − 1), in `[0, 1]`: 0 if a client holds every class, 1 if it holds one.

    Args:
        num_present: Number of classes c that the client holds, in `[1, num_classes]`.
        num_classes: Number of classes c_max of the federation; with one class the index is 0.
    """
    return 0.0 if num_classes == 1 else 1.0 - (num_present - 1) / (num_classes - 1)


def count_metrics(counts: npt.ArrayLike, paired: npt.ArrayLike, ordered: bool = True) -> dict[str, Any]:
    """Return the metrics of label counts by the names of `ReportedMetrics`; empty without clients.

    Args:
        counts: Rows of each class of all clients, shape `(clients, classes)`; no client is empty.
        paired: Counts of the clients over whose pairs distances are averaged.
        ordered: Whether class numbers are ordinal; if not, there is no Wasserstein distance.
    """
    table, pairs = np.asarray(counts), np.asarray(paired)
    if len(table) == 0:
        return {}
    sizes = table.sum(axis=1)
    values = {
        "quantity_ratio": float(sizes.max() / sizes.min()),
        "quantity_variation": float(sizes.std() / sizes.mean()),
        "quantity_gini": gini(sizes),
        "label_hellinger": None,
        "label_wasserstein": None,
    }
    if len(pairs) > 1:
        shares = distribution(pairs)
        values["label_hellinger"] = float(mean_pairwise_hellinger(shares))
        if ordered:
            values["label_wasserstein"] = float(mean_pairwise_wasserstein(shares, bin_width=1.0))
    return values


def paired_clients(clients: Sequence[int], limit: int, seed: int) -> tuple[int, ...]:
    """Return the clients for pairwise distances, ascending: all, or a seeded sample of `limit`."""
    if len(clients) <= limit:
        return tuple(clients)
    drawn = stream(seed, "pair-sample").choice(len(clients), size=limit, replace=False)
    return tuple(clients[position] for position in sorted(drawn))


def holm(p_values: Values) -> Values:
    """Return p-values corrected by Holm's method, in the given order."""
    order = np.argsort(p_values, kind="stable")
    count = len(p_values)
    stepped = np.maximum.accumulate(p_values[order] * np.arange(count, 0, -1))
    corrected = np.empty(count)
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected


def moment_matched_tail(
    values: Values, mean: Values | float, variance: Values | float, third: Values | float
) -> Values:
    """Return P(Q >= value) of positive quadratic forms Q by shifted, scaled χ² with the same three moments.

    The approximation of E. S. Pearson. Note on an approximation to the distribution of non-central χ². Biometrika
    46(3/4), 1959, applied to quadratic forms: a + c χ²_f, c = κ₃/(4 κ₂), f = κ₂/(2 c²), a = κ₁ − c f.

    Args:
        values: Values of Q.
        mean: κ₁.
        variance: κ₂, > 0.
        third: κ₃, the third central moment, > 0.
    """
    from scipy.special import chdtrc

    scale = third / (4 * variance)
    freedom = variance / (2 * scale**2)
    above = np.maximum(values - (mean - scale * freedom), 0.0)  # chdtrc of a value below the support is NaN
    return np.asarray(chdtrc(freedom, above / scale))


@dataclass(frozen=True)
class ClientTest:
    """Result of one test for each client.

    Attributes:
        p_values: Corrected over clients.
        effects: Effect sizes in the unit of the test.
        classes: Classes in which a client differs most, if known.
        source: What the test compares.
        words: Description of the test for users.
        features: Features in which a client differs most, if known.
        share: Share of the detector's rate, in `(0, 1]`; None if all its tests have equal shares.
    """

    p_values: Mapping[int, float]
    effects: Mapping[int, float]
    classes: Mapping[int, tuple[int, ...]]
    source: EvidenceSource
    words: str
    features: Mapping[int, tuple[FeatureShift, ...]] = field(default_factory=dict)
    share: float | None = None

    def evidence(self, client: int, num_tests: int, rate: float, min_effect: float) -> ClientEvidence:
        """Return the evidence on a client as one of several tests, each with its share of the rate."""
        tests = num_tests if self.share is None else 1 / self.share
        p_value, effect = min(1.0, tests * self.p_values[client]), self.effects[client]
        flagged = p_value <= rate and effect >= min_effect
        return ClientEvidence(
            source=self.source,
            p_value=p_value,
            effect=effect,
            flagged=flagged,
            classes=self.classes.get(client, ()) if flagged else (),
            features=self.features.get(client, ()) if flagged else (),
        )


def by_client(clients: Iterable[int], values: Values) -> dict[int, float]:
    """Return the values as a mapping by client."""
    return dict(zip(clients, values.tolist(), strict=True))


def decide(
    name: DetectorName,
    tests: Sequence[tuple[ClientTest, float]],
    rate: float,
    describe: Callable[[int, ClientEvidence, Names], str],
    remark: str = "",
    names: Names = UNNAMED,
) -> CalibratedFinding:
    """Return the finding that follows from tests; for each client the strongest evidence counts.

    Args:
        name: The detector.
        tests: At least one test of at least one client, each with the smallest effect that flags.
        rate: False-alarm rate of this detector.
        describe: Returns a sentence on how a client differs.
        remark: Further sentences.
        names: Display names of clients, classes and features.
    """
    evidence: dict[int, ClientEvidence] = {}
    for client in sorted({client for test, _ in tests for client in test.effects}):
        evidences = [test.evidence(client, len(tests), rate, floor) for test, floor in tests if client in test.effects]
        evidence[client] = min(evidences, key=evidence_order)
    flagged = tuple(client for client, entry in evidence.items() if entry.flagged)
    leader = min(evidence, key=lambda client: evidence_order(evidence[client]))
    leading = evidence[leader]
    p_value = f"p = {leading.p_value:.2g}" if leading.p_value >= 0.0001 else "p < 0.0001"
    sentence = (
        f"{reports.TITLES[name]}, calibrated: {reports.yes_no(bool(flagged))}. {describe(leader, leading, names)} "
        f"({p_value}, significance level {rate:.2g})."
    )
    if flagged:
        sentence += f" Flagged: {names.some_clients(flagged)}."
    return CalibratedFinding(
        name=name,
        rate=rate,
        method=", ".join(test.words for test, _ in tests),
        p_value=leading.p_value,
        effect=leading.effect,
        detected=bool(flagged),
        flagged_clients=flagged,
        clients=evidence,
        sentence=f"{sentence} {remark}".strip(),
    )


def evidence_order(evidence: ClientEvidence) -> tuple[bool, float, float]:
    """Return the sort key of evidence: flagged clients first, then by p-value, then by effect."""
    return not evidence.flagged, evidence.p_value, -evidence.effect


def largest(values: Values, limit: float, count: int) -> tuple[int, ...]:
    """Return the positions of up to `count` largest values above `limit`, in descending order of value."""
    order = np.argsort(-values, kind="stable")[:count]
    return tuple(int(position) for position in order if values[position] > limit)


class NotFiniteError(DataError, WithheldError):
    """A client's features are not all finite. The message reveals nothing else, so it may leave the client."""


def flat_features(features: npt.NDArray[np.floating]) -> Values:
    """Return a chunk as float64 of shape `(rows, num_features)`.

    Raises:
        NotFiniteError: If a value is NaN or infinite.
    """
    flat = features.reshape(len(features), -1).astype(np.float64)
    check_finite(flat)
    return flat


def check_finite(values: npt.NDArray[np.floating]) -> None:
    """Check that all values are finite.

    Raises:
        NotFiniteError: If not.
    """
    if not np.isfinite(values).all():
        raise NotFiniteError("features must be finite; some are NaN or infinite")


def group_labels(inputs: QueryInputs) -> Answer:
    """Client half: return `squares` Σ x_gc² and `with_sizes` Σ n_g x_gc, `(num_classes,)`, and `groups`, `(2,)`.

    `groups` holds Σ n_g² and the number of groups. If rows are independent, each row is its own group.
    """
    data = inputs.data
    groups = np.arange(len(data)) if inputs.groups is None else inputs.groups
    names, members = np.unique(groups, return_inverse=True)
    sizes = np.bincount(members)
    labels = data.labels[data.rows]
    cells, rows = np.unique(np.column_stack([members, labels]), axis=0, return_counts=True)
    squares = np.bincount(cells[:, 1], rows.astype(np.float64) ** 2, inputs.num_classes)
    with_sizes = np.bincount(labels, sizes[members].astype(np.float64), inputs.num_classes)
    counts = inputs.data.label_counts(inputs.num_classes)
    return {
        "squares": RowAggregate(squares, counts),
        "with_sizes": RowAggregate(with_sizes, counts),
        "groups": RowAggregate(np.array([float((sizes.astype(np.float64) ** 2).sum()), float(len(names))]), len(data)),
    }


@dataclass(frozen=True)
class GroupSums:
    """Group statistics that clients release.

    Attributes:
        squares: Σ x_gc², shape `(clients, classes)`.
        with_sizes: Σ n_g x_gc, shape `(clients, classes)`.
        size_squares: Σ n_g², shape `(clients,)`.
        num_groups: Number of groups, shape `(clients,)`.
    """

    squares: Values
    with_sizes: Values
    size_squares: Values
    num_groups: Values

    @classmethod
    def read(cls, answers: list[Arrays], counts: IntArray | Values) -> GroupSums:
        """Return the sums of clients, completed for the classes that they withhold.

        Args:
            answers: The answer of each client.
            counts: Rows of each class, including withheld ones, shape `(clients, classes)`.
        """
        squares, with_sizes, groups = (
            np.stack([np.asarray(answer[name], np.float64) for answer in answers])
            for name in ("squares", "with_sizes", "groups")
        )
        same = counts * (groups[:, :1] / np.maximum(counts.sum(axis=1, keepdims=True), 1))
        hidden = squares == 0
        return cls(np.where(hidden, same, squares), np.where(hidden, same, with_sizes), groups[:, 0], groups[:, 1])


def correlations(counts: IntArray | Values, sums: GroupSums) -> Values:
    """Return ρ_c in `[0, 1]`, shape `(classes,)`; 0 if every group is one row, or all rows are of one class.

    Args:
        counts: Shape `(clients, classes)`.
        sums: Group statistics of the same clients.
    """
    num_rows, size_squares, num_groups = counts.sum(), sums.size_squares.sum(), sums.num_groups.sum()
    shares = counts.sum(axis=0) / num_rows
    scatter = sums.squares.sum(axis=0) - 2 * shares * sums.with_sizes.sum(axis=0) + shares**2 * size_squares
    independent = shares * (1 - shares)
    scatter *= num_groups / max(num_groups - 1, 1)
    defined = (independent > 0) & (size_squares > num_rows)
    excess = np.divide(scatter, independent, out=np.zeros_like(scatter), where=defined) - num_rows
    return np.where(defined, np.clip(excess / max(size_squares - num_rows, 1), 0.0, 1.0), 0.0)


def design_effects(counts: IntArray | Values, sums: GroupSums) -> Values:
    """Return δ_c of each client, at least 1, shape `(clients, classes)`; arguments as for `correlations`."""
    surplus = np.maximum(sums.size_squares / np.maximum(counts.sum(axis=1), 1) - 1, 0.0)
    return np.asarray(1 + surplus[:, None] * correlations(counts, sums))


def pearson_moments(shares: Values, effects: Values) -> tuple[Values, Values, Values]:
    """Return mean, variance and third central moment of each client's X² under the null hypothesis, each `(clients,)`.

    They are tr B, 2 tr B² and 8 tr B³ of B = D^½ (I − √p √pᵀ) D^½.

    Args:
        shares: p, shape `(classes,)`.
        effects: δ, shape `(clients, classes)`.
    """
    first, second, third = (effects**power for power in (1, 2, 3))
    one, two = first @ shares, second @ shares
    mean = first.sum(axis=1) - one
    variance = second.sum(axis=1) - 2 * two + one**2
    skewness = third.sum(axis=1) - 3 * (third @ shares) + 3 * two * one - one**3
    return mean, 2 * variance, 8 * skewness


def speed_skew(expected_seconds: Mapping[int, float], names: Names = UNNAMED) -> SpeedSkew | None:
    """Return the speed skew, or None if no client takes any time.

    Args:
        expected_seconds: Expected seconds of a round of each participating client, >= 0.
        names: Display names of clients.
    """
    if not any(expected_seconds.values()):
        return None
    slowest = max(expected_seconds, key=lambda client: (expected_seconds[client], -client))
    seconds, median = expected_seconds[slowest], float(np.median(list(expected_seconds.values())))
    ratio = seconds / median if median > 0 else None
    than_median = (
        "; half of the clients take no time" if ratio is None else f", {ratio:.3g} times as long as the median client"
    )
    sentence = f"Speed: {names.one_client(slowest)} takes {seconds:.3g} simulated seconds per round{than_median}."
    return SpeedSkew(slowest=slowest, slowest_seconds=seconds, median_seconds=median, ratio=ratio, sentence=sentence)
