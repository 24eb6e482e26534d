"""Statistics that detectors share: corrected p-values, design effects, heterogeneity metrics, skew of speeds.

What the calibrated decisions share: p-values corrected over clients, and how they are put into words.

The published rules compare a value with a fixed threshold, so how often they raise a false alarm depends on the number
of clients, their sizes and the data. A calibrated decision asks how likely it is that clients whose data are alike
differ as much as these: its false-alarm rate is chosen and holds for the whole federation. A client is flagged if that
probability is at most the rate *and* its effect, how much it differs in a unit of its own, reaches a minimum: with
many rows a difference may be certain and yet too small to matter.

The rate of a federation is divided equally among the detectors (Bonferroni), so that a federation of like clients is
called anything at all with at most this probability. Within a detector p-values are corrected over clients by

    S. Holm. A simple sequentially rejective multiple test procedure. Scandinavian Journal of Statistics 6(2), 1979,

or by the distribution of the largest statistic of all clients.

What client halves read of their rows: features as flat vectors, all of them finite, and the rows of each class.

Design effects: by how much rows that belong together widen what chance does to a client's counts.

Rows of one subject tend to have one label, so a client of 20 subjects × 5 rows knows of labels about as much as 20
rows, and tests that take it for 100 rows give false alarms. If any two rows of a group are both of class c with the
correlation ρ_c, and rows of different groups are independent, then the count of class c among n rows in groups of
n_g rows has the variance

    n p_c (1 − p_c) δ_c,    δ_c = 1 + ρ_c (Σ n_g² / n − 1),

L. Kish. Survey Sampling. Wiley, 1965. With x_gc the rows of class c in group g and p the shares among all rows, ρ_c is
estimated by moments over the groups of all clients,

    Σ_g (x_gc − n_g p_c)² · M / (M − 1) = p_c (1 − p_c) (N + ρ_c (Σ n_g² − N)),

M being the number of groups, and kept in [0, 1]. So a client tells of each class Σ x_gc² and Σ n_g x_gc, and of its
rows Σ n_g² and how many groups there are; not one group can be told from these. Of a class that it does not tell of,
all rows of a group are taken to be alike, which errs towards no alarm.

Pearson's statistic of correlated counts is a sum of χ² terms weighted by generalised design effects (J. N. K. Rao and
A. J. Scott. The analysis of categorical data from complex sample surveys: chi-squared tests for goodness of fit and
independence in two-way tables. JASA 76(374), 1981). These are taken to be the eigenvalues of D^½ (I − √p √pᵀ) D^½ with
D = diag(δ_c): covariances between classes are not told, and these are they where all classes have the same ρ. Groups
that several clients share count as a group of each.

Divergences, spreads and distances between clients: pure functions over histograms and sizes.

Entropy and divergences are in bits (logarithm to base 2), so the Jensen-Shannon divergence lies in `[0, 1]`. It is the
divergence of

    J. Lin. Divergence measures based on the Shannon entropy. IEEE Transactions on Information Theory 37(1), 1991,

not its square root, which `scipy.spatial.distance.jensenshannon` returns. Histograms of bin counts or probabilities
are read over their last axis; the other axes broadcast.

How unlike clients are in speed: the expected seconds of a round of the slowest, against the median client's.

Who waits for all waits for the slowest, so that ratio is how much longer a round takes than the half of the clients do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fedscout.detectors.report import (
    TITLES,
    CalibratedFinding,
    ClientEvidence,
    DetectorName,
    EvidenceSource,
    FeatureShift,
    SpeedSkew,
    yes_no,
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
    """Return counts divided by their total over the last axis; a total of 0 is an error of the caller."""
    values = np.asarray(counts, dtype=np.float64)
    totals = values.sum(axis=-1, keepdims=True)
    assert np.all(totals > 0), "a distribution needs at least one count"
    return np.asarray(values / totals)


def entropy(probabilities: npt.ArrayLike) -> Values:
    """Return the Shannon entropy in bits, in `[0, log2(bins)]`; 0 log 0 = 0."""
    p = np.asarray(probabilities, dtype=np.float64)
    logarithms = np.log2(p, out=np.zeros_like(p), where=p > 0)
    return np.asarray(np.maximum(-np.sum(p * logarithms, axis=-1), 0.0))


def entropy_spread(probabilities: npt.ArrayLike, normalised: bool = False) -> float:
    """Return the largest minus the smallest entropy of the clients.

    Kept for comparison only: it orders some federations wrongly, since mirror images have equal entropy.

    Args:
        probabilities: Shape `(clients, bins)`.
        normalised: Whether to divide by `log2(bins)`, so that the spread lies in `[0, 1]`.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    entropies = entropy(p)
    spread = float(entropies.max() - entropies.min())
    return spread / max(float(np.log2(p.shape[-1])), 1.0) if normalised else spread


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


def hellinger(p: npt.ArrayLike, q: npt.ArrayLike) -> Values:
    """Return ‖√p − √q‖₂ / √2, in `[0, 1]`: 0 for equal arguments, 1 for disjoint ones."""
    difference = np.sqrt(np.asarray(p, dtype=np.float64)) - np.sqrt(np.asarray(q, dtype=np.float64))
    return np.asarray(np.minimum(np.sqrt(np.sum(difference**2, axis=-1) / 2), 1.0))


def wasserstein(p: npt.ArrayLike, q: npt.ArrayLike, bin_width: float) -> Values:
    """Return the 1-Wasserstein distance of two histograms on the same equal bins.

    It is the area between the cumulative distributions, mass taken at the middle of its bin.

    Args:
        p: Probabilities, shape `(..., bins)`.
        q: Likewise.
        bin_width: In the unit that the result shall have.
    """
    difference = np.asarray(p, dtype=np.float64) - np.asarray(q, dtype=np.float64)
    return np.asarray(bin_width * np.abs(np.cumsum(difference, axis=-1)[..., :-1]).sum(axis=-1))


def mean_pairwise_hellinger(probabilities: npt.ArrayLike) -> Values:
    """Return the mean over all pairs of clients; `probabilities` has shape `(..., clients >= 2, bins)`."""
    roots = np.sqrt(np.asarray(probabilities, dtype=np.float64))
    mean_distances = _few_pairs if roots.shape[-2] <= FEW_CLIENTS else _many_pairs
    return np.asarray(np.minimum(mean_distances(roots) / np.sqrt(2), 1.0))


def _few_pairs(points: Values) -> Values:
    """Return the mean Euclidean distance over all pairs of rows, for all leading axes at once."""
    num_points = points.shape[-2]
    total = np.zeros(points.shape[:-2])
    for index in range(num_points - 1):
        differences = points[..., index + 1 :, :] - points[..., index, None, :]
        total += np.sqrt(np.einsum("...kb,...kb->...k", differences, differences)).sum(axis=-1)
    return np.asarray(total / (num_points * (num_points - 1) / 2))


def _many_pairs(points: Values) -> Values:
    """The same, in little memory, but with a fixed cost for each entry of the leading axes."""
    from scipy.spatial.distance import pdist

    means = [pdist(rows).mean() for rows in points.reshape(-1, *points.shape[-2:])]
    return np.reshape(means, points.shape[:-2])


def mean_pairwise_wasserstein(probabilities: npt.ArrayLike, bin_width: float) -> Values:
    """Return the mean over all pairs of clients; see `wasserstein` for the arguments.

    Of K cumulative shares of one bin, sorted, the gap behind the r-th lies between the two of r (K − r) pairs. So the
    sum over all pairs takes a sort instead of K² differences, and adds nothing but what is not negative.

    Args:
        probabilities: Shape `(..., clients >= 2, bins)`.
        bin_width: In the unit that the result shall have.
    """
    cumulative = np.cumsum(np.asarray(probabilities, dtype=np.float64), axis=-1)[..., :-1]
    num_clients = cumulative.shape[-2]
    gaps = np.diff(np.sort(np.swapaxes(cumulative, -1, -2), axis=-1), axis=-1)  # (..., bins - 1, clients - 1)
    ranks = np.arange(1, num_clients)
    num_pairs = num_clients * (num_clients - 1) / 2
    return np.asarray(bin_width * (gaps @ (ranks * (num_clients - ranks) / num_pairs)).sum(axis=-1))


def output_divergence(mean_outputs: npt.ArrayLike) -> float:
    """Return the mean Jensen-Shannon divergence between clients' mean softmax outputs, over all pairs.

    Args:
        mean_outputs: One probability vector a client, shape `(clients >= 2, classes)`.
    """
    outputs = np.asarray(mean_outputs, dtype=np.float64)
    first, second = np.triu_indices(len(outputs), k=1)
    return float(js_divergence(outputs[first], outputs[second]).mean())


def quantity_ratio(sizes: npt.ArrayLike) -> float:
    """Return the largest over the smallest size, >= 1; sizes are positive."""
    values = np.asarray(sizes, dtype=np.float64)
    return float(values.max() / values.min())


def coefficient_of_variation(sizes: npt.ArrayLike) -> float:
    """Return the population standard deviation over the mean; 0 for equal sizes."""
    values = np.asarray(sizes, dtype=np.float64)
    return float(values.std() / values.mean())


def gini(sizes: npt.ArrayLike) -> float:
    """Return Σ_i Σ_j |x_i − x_j| / (2 K² mean): 0 for equal sizes, (K−1)/K if one client has everything."""
    values = np.sort(np.asarray(sizes, dtype=np.float64))
    ranks = np.arange(1, len(values) + 1)
    return float(np.sum((2 * ranks - len(values) - 1) * values) / (len(values) * values.sum()))


def heterogeneity_index(num_present: int, num_classes: int) -> float:
    """Return 1 − (c − 1)/(c_max − 1), in `[0, 1]`: 0 if a client holds every class, 1 if it holds one.

    Args:
        num_present: Classes of which the client holds a sample, c, in `[1, num_classes]`.
        num_classes: Classes of the federation, c_max; with one class nothing can differ and the index is 0.
    """
    return 0.0 if num_classes == 1 else 1.0 - (num_present - 1) / (num_classes - 1)


def count_metrics(counts: npt.ArrayLike, paired: npt.ArrayLike, ordered: bool = True) -> dict[str, Any]:
    """Return what is reported of label counts alone, under the names of `ReportedMetrics`; nothing without a client.

    Args:
        counts: Rows of each class of all clients, shape `(clients, classes)`; no client is empty.
        paired: Those of the clients over whose pairs distances are averaged.
        ordered: Whether class numbers are places on a line; without, there is no Wasserstein distance.
    """
    table, pairs = np.asarray(counts), np.asarray(paired)
    if len(table) == 0:
        return {}
    sizes = table.sum(axis=1)
    found = {
        "quantity_ratio": quantity_ratio(sizes),
        "quantity_variation": coefficient_of_variation(sizes),
        "quantity_gini": gini(sizes),
        "label_hellinger": None,
        "label_wasserstein": None,
    }
    if len(pairs) > 1:
        shares = distribution(pairs)
        found["label_hellinger"] = float(mean_pairwise_hellinger(shares))
        if ordered:
            found["label_wasserstein"] = float(mean_pairwise_wasserstein(shares, bin_width=1.0))
    return found


def distances_to(points: npt.ArrayLike, centre: npt.ArrayLike) -> Values:
    """Return the Euclidean distance of each row of `points` to `centre`, shape `(clients,)`."""
    return np.asarray(np.linalg.norm(np.asarray(points) - np.asarray(centre), axis=-1))


def paired_clients(clients: Sequence[int], limit: int, seed: int) -> tuple[int, ...]:
    """Return those over whose pairs distances are averaged: all, or `limit` of them drawn by seed, ascending."""
    if len(clients) <= limit:
        return tuple(clients)
    drawn = stream(seed, "pair-sample").choice(len(clients), size=limit, replace=False)
    return tuple(clients[position] for position in sorted(drawn))


def holm(p_values: Values) -> Values:
    """Return p-values corrected by Holm's method, in the order given."""
    order = np.argsort(p_values, kind="stable")
    count = len(p_values)
    stepped = np.maximum.accumulate(p_values[order] * np.arange(count, 0, -1))
    corrected = np.empty(count)
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected


def moment_matched_tail(values: Values, mean: float, variance: float, third: float) -> Values:
    """Return P(Q >= value) of a positive sum of squares Q by a shifted, scaled χ² of the same three moments.

    The approximation of E. S. Pearson. Note on an approximation to the distribution of non-central χ². Biometrika
    46(3/4), 1959, for quadratic forms: a + c χ²_f, c = κ₃/(4 κ₂), f = κ₂/(2 c²), a = κ₁ − c f.

    Args:
        values: Of Q.
        mean: κ₁.
        variance: κ₂, > 0.
        third: κ₃, the third central moment, > 0.
    """
    from scipy.stats import chi2

    scale = third / (4 * variance)
    freedom = variance / (2 * scale**2)
    return np.asarray(chi2.sf((values - (mean - scale * freedom)) / scale, freedom))


@dataclass(frozen=True)
class ClientTest:
    """What one test says of each client.

    Attributes:
        p_values: Corrected over clients.
        effects: In the test's own unit.
        classes: In which classes a client differs most, where that is known.
        source: What the test compares.
        words: The same for people.
        features: In which features a client differs most, likewise.
        share: Of the detector's rate, in `(0, 1]`; None where all its tests have equal parts.
    """

    p_values: Mapping[int, float]
    effects: Mapping[int, float]
    classes: Mapping[int, tuple[int, ...]]
    source: EvidenceSource
    words: str
    features: Mapping[int, tuple[FeatureShift, ...]] = field(default_factory=dict)
    share: float | None = None

    def evidence(self, client: int, num_tests: int, rate: float, min_effect: float) -> ClientEvidence:
        """Return what it has on a client as one of several tests, each of which gets its share of the rate."""
        tests = num_tests if self.share is None else 1 / self.share
        p_value, effect = min(1.0, tests * self.p_values[client]), self.effects[client]
        found = p_value <= rate and effect >= min_effect
        return ClientEvidence(
            source=self.source,
            p_value=p_value,
            effect=effect,
            flagged=found,
            classes=self.classes.get(client, ()) if found else (),
            features=self.features.get(client, ()) if found else (),
        )


def by_client(clients: Iterable[int], values: Values) -> dict[int, float]:
    """Return each client's value."""
    return dict(zip(clients, values.tolist(), strict=True))


def decide(
    name: DetectorName,
    tests: Sequence[tuple[ClientTest, float]],
    rate: float,
    describe: Callable[[int, ClientEvidence, Names], str],
    remark: str = "",
    names: Names = UNNAMED,
) -> CalibratedFinding:
    """Return the finding that follows from tests; of several on a client the one that says most counts.

    Args:
        name: The detector.
        tests: At least one, which knows at least one client, each with the smallest effect that flags.
        rate: False-alarm rate of this detector.
        describe: Says how a client differs.
        remark: Further sentences.
        names: Of clients, classes and features, for the sentence.
    """
    evidence: dict[int, ClientEvidence] = {}
    for client in sorted({client for test, _ in tests for client in test.effects}):
        known = [test.evidence(client, len(tests), rate, least) for test, least in tests if client in test.effects]
        evidence[client] = min(known, key=standing)
    flagged = tuple(client for client, own in evidence.items() if own.flagged)
    leader = min(evidence, key=lambda client: standing(evidence[client]))
    leading = evidence[leader]
    sentence = (
        f"{TITLES[name]}, calibrated: {yes_no(bool(flagged))}. {describe(leader, leading, names)} "
        f"({p_text(leading.p_value)}, significance level {rate:.2g})."
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


def standing(evidence: ClientEvidence) -> tuple[bool, float, float]:
    """Return by what clients are ordered: flagged ones first, then by p-value, then by effect."""
    return not evidence.flagged, evidence.p_value, -evidence.effect


def p_text(p_value: float) -> str:
    """Return `p = 0.012`, or a bound where digits say nothing more."""
    return "p < 0.0001" if p_value < 0.0001 else f"p = {p_value:.2g}"


def largest(values: Values, limit: float, count: int) -> tuple[int, ...]:
    """Return the positions of up to `count` largest values above `limit`, the largest first."""
    order = np.argsort(-values, kind="stable")[:count]
    return tuple(int(position) for position in order if values[position] > limit)


class NotFiniteError(DataError, WithheldError):
    """A client's features are not all finite. Its text tells that alone, so it may leave the client."""


def flat_features(features: npt.NDArray[np.floating]) -> Values:
    """Return a chunk as float64 of shape `(rows, num_features)`.

    Raises:
        NotFiniteError: If a value is NaN or infinite.
    """
    flat = features.reshape(len(features), -1).astype(np.float64)
    check_finite(flat)
    return flat


def own_counts(inputs: QueryInputs) -> IntArray:
    """Return the client's rows of each class, shape `(num_classes,)`; nothing is left out of them yet."""
    return np.bincount(inputs.data.labels[inputs.data.rows], minlength=inputs.num_classes).astype(np.int64)


def check_finite(values: npt.NDArray[np.floating]) -> None:
    """Return if all values are finite.

    Raises:
        NotFiniteError: If not.
    """
    if not np.isfinite(values).all():
        raise NotFiniteError("features must be finite; some are NaN or infinite")


GROUP_LABELS: Final = "group_labels"


def group_labels(inputs: QueryInputs) -> Answer:
    """Client half: return `squares` Σ x_gc² and `with_sizes` Σ n_g x_gc, `(num_classes,)`, and `groups`, `(2,)`.

    `groups` are Σ n_g² and the number of groups. Where rows are independent each is a group of its own.
    """
    data = inputs.data
    groups = np.arange(len(data)) if inputs.groups is None else inputs.groups
    names, members = np.unique(groups, return_inverse=True)
    sizes = np.bincount(members)
    labels = data.labels[data.rows]
    cells, rows = np.unique(np.column_stack([members, labels]), axis=0, return_counts=True)
    squares = np.bincount(cells[:, 1], rows.astype(np.float64) ** 2, inputs.num_classes)
    with_sizes = np.bincount(labels, sizes[members].astype(np.float64), inputs.num_classes)
    counts = own_counts(inputs)
    return {
        "squares": RowAggregate(squares, counts),
        "with_sizes": RowAggregate(with_sizes, counts),
        "groups": RowAggregate(np.array([float((sizes.astype(np.float64) ** 2).sum()), float(len(names))]), len(data)),
    }


@dataclass(frozen=True)
class GroupSums:
    """What some clients tell of their groups.

    Attributes:
        squares: Σ x_gc², shape `(clients, classes)`.
        with_sizes: Σ n_g x_gc, likewise.
        size_squares: Σ n_g², shape `(clients,)`.
        num_groups: Groups, shape `(clients,)`.
    """

    squares: Values
    with_sizes: Values
    size_squares: Values
    num_groups: Values

    @classmethod
    def read(cls, answers: list[Arrays], counts: IntArray | Values) -> GroupSums:
        """Return the sums of clients, completed where they tell nothing of a class.

        Args:
            answers: Of each client.
            counts: Rows of each class, those included that are not told, shape `(clients, classes)`.
        """
        squares, with_sizes, groups = (
            np.stack([np.asarray(answer[name], np.float64) for answer in answers])
            for name in ("squares", "with_sizes", "groups")
        )
        alike = counts * (groups[:, :1] / np.maximum(counts.sum(axis=1, keepdims=True), 1))
        untold = squares == 0
        return cls(np.where(untold, alike, squares), np.where(untold, alike, with_sizes), groups[:, 0], groups[:, 1])


def correlations(counts: IntArray | Values, sums: GroupSums) -> Values:
    """Return ρ_c in `[0, 1]`, shape `(classes,)`; 0 where every group is one row, or all rows are of one class.

    Args:
        counts: Shape `(clients, classes)`.
        sums: Of the same clients.
    """
    num_rows, size_squares, num_groups = counts.sum(), sums.size_squares.sum(), sums.num_groups.sum()
    shares = counts.sum(axis=0) / num_rows
    scatter = sums.squares.sum(axis=0) - 2 * shares * sums.with_sizes.sum(axis=0) + shares**2 * size_squares
    chance = shares * (1 - shares)
    scatter *= num_groups / max(num_groups - 1, 1)
    possible = (chance > 0) & (size_squares > num_rows)
    excess = np.divide(scatter, chance, out=np.zeros_like(scatter), where=possible) - num_rows
    return np.where(possible, np.clip(excess / max(size_squares - num_rows, 1), 0.0, 1.0), 0.0)


def design_effects(counts: IntArray | Values, sums: GroupSums) -> Values:
    """Return δ_c of each client, at least 1, shape `(clients, classes)`; arguments as for `correlations`."""
    surplus = np.maximum(sums.size_squares / np.maximum(counts.sum(axis=1), 1) - 1, 0.0)
    return np.asarray(1 + surplus[:, None] * correlations(counts, sums))


def pearson_moments(shares: Values, effects: Values) -> tuple[Values, Values, Values]:
    """Return mean, variance and third central moment of each client's X² if clients are alike, each `(clients,)`.

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
    """Return the spread, or None where nobody takes any time.

    Args:
        expected_seconds: Of a round, of every client that takes part, >= 0.
        names: Of clients, for the sentence.
    """
    if not any(expected_seconds.values()):
        return None
    slowest = max(expected_seconds, key=lambda client: (expected_seconds[client], -client))
    return SpeedSkew.of(slowest, expected_seconds[slowest], float(np.median(list(expected_seconds.values()))), names)
