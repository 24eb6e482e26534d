"""Feature skew by the published rule, and the feature aggregates that clients release.

**Published rule.** Distances between clients' centroids on the two principal axes of all data, by federated principal
component analysis in two exchanges:

1. Client k sends its row count n_k, its per-feature sums and the upper triangle of its cross-products. The server forms
   the mean μ = Σ s_k / N and the covariance C = (Σ X_kᵀX_k − N μμᵀ) / (N − 1), the one that PCA of the pooled data
   would use, takes the two leading eigenvectors of its correlation matrix, and divides them by the features' standard
   deviations, which gives U.
2. The server sends μ and U; client k sends its centroid c_k, the mean of (x − μ)ᵀU over its rows.

The value is the largest distance ‖c_i − c_j‖₂. (The server could derive the centroids from the sums of the first
exchange; the second one is part of the published protocol.) Choices and deviations:

- A client centres its cross-products on its own mean before it sends them: S_k = X_kᵀX_k − n_k m_k m_kᵀ. Together with
  the sums this is the same information, with the squares of the features on the diagonal. The server combines them by
  Σ X_kᵀX_k − N μμᵀ = Σ_k [S_k + n_k (m_k − μ)(m_k − μ)ᵀ] (Chan, Golub, LeVeque. Updating formulae and a pairwise
  algorithm for computing sample variances. 1979). Unlike the literal formula this avoids cancellation if means are
  large relative to deviations. All sums are float64.
- The published threshold is lost. Distances grow with the number of features, so the threshold here is relative to the
  square root of the total variance, which is √d for d standardised features: the federation has feature skew if the
  distance exceeds 0.25 √d, a shift of a quarter of a standard deviation in every feature at once.
  Published rows for 254 features over √254: IID 0.036, one corrupted client 0.466, feature skew 0.945. The same
  scenarios on 244 standardised vibration features, four clients, federation seeds 0 to 3: IID 0.09 to 0.13, label skew
  0.62 to 0.68, corrupted client 0.91, feature skew 0.94 to 1.00. The sampling error of the distance is roughly up to
  4 / √n_k on this scale if few directions carry most of the variance, so clients of fewer than about 200 rows can
  exceed it by chance.
- Labels shift features: a federation with label skew alone usually has feature skew by this definition, too.
- The flagging rule was not published either. If the federation has skew, clients are flagged whose centroid is farther
  than the threshold from the coordinate-wise median of all centroids, and the farthest one in any case (the median of
  two groups of equal size lies between them). The median keeps one deviating client from biasing the reference.
- Features are flattened as stored. For images and text they should be embeddings.

**Histograms.** The 1-Wasserstein and Hellinger distances between two clients' values of a feature need their
distributions. Quantile sketches would reveal single rows (an extreme quantile is one), so clients count their values
in equal bins that the server derives from the mean and standard deviation of the first exchange: `bins` bins over
mean ± `reach` standard deviations, values beyond in the outermost. Bins chosen by the server could isolate a single
value, and slightly shifted bins reveal it by subtraction. So a client sorts the values of a feature, forms groups of
`min_release` or a few more, and counts each value as the mean of its group (microaggregation: J. Domingo-Ferrer and
J. M. Mateo-Sanz. Practical data-oriented microaggregation for statistical disclosure control. IEEE Transactions on
Knowledge and Data Engineering 14(1), 2002). A bin then holds whole groups, and all possible bins together reveal only
the group means. These vary slightly less than values, by the variance within groups of neighbouring values.

Distances are in global standard deviations of the feature, so that they can be averaged over features. Values within
a bin count as its centre, which changes a distance by at most one bin width, 2 reach / bins (0.25 standard deviations
for 32 bins over ±4); values beyond the bins count as if they lay in the outermost. The 1-Wasserstein distance is at
least the difference of the means, which is known without bins: the larger of the two is reported for each feature. Of
features with heavy tails the bins alone miss much: on near-IID network flows (UNSW-NB15) they give 0.016 of 0.043.

**Design effects of features**, for rows that belong to groups, as for labels (`fedscout.detectors.statistics`): with
y_i a row less the pooled mean of its class, in standard deviations within classes, and y_g the sum over the rows of
group g, any two rows of a group have in feature j the correlation ρ_j, estimated over the groups of all clients by

    Σ_g y_gj² · M / (M − 1) = N + ρ_j (Σ n_g² − N)

and clipped to [0, 1]. The mean of a client's n rows then has the variance δ_j / n, δ_j = 1 + ρ_j (Σ n_g² / n − 1). In
the variance of a mean's squared length, groups replace rows. The correlation between features is assumed to be that of
rows.

**Per-class sums.** Label skew also moves the mean of a client's features. To separate the two, rows are compared class
by class. A client computes for each class the sum of its rows and the sum of squares about their own mean.
`fedscout.engine.data.client` decides what is released: nothing of classes with fewer than `min_release` rows, nor
anything that would reveal these by subtraction from the moments over all rows.

**Row lengths.** Besides covariances, the variance of a mean's squared length depends on the variation of row lengths.
The mean of n independent rows y of mean 0, covariance R and dimension d has n |mean|² with the mean d and the variance

    2 tr R² (1 − 1/n) + (E|y|⁴ − d²) / n,

where the second term is small for normal rows and large for heavy tails, as of sparse features. Clients release the
sums of |y|² and |y|⁴ over all rows of the released classes, y being a row less the client's mean of its class, in
standard deviations within classes.

**Covariance of a client's class mix.** Classes may differ in how features are correlated, so the pooled covariance
within classes is not that of a client with another class distribution. A client releases the scatter of all its rows
and the sums of each class, not the scatter of each class. Let W_k be its scatter about its own class means, with the
rows of withheld classes as one more class. With f_kc = n_kc − 1 degrees of freedom of class c,

    E W_k = Σ_c f_kc Σ_c,

which is a regression on the covariances Σ_c of the classes. By weighted least squares, with the variance of W_k
proportional to its rows n_k,

    G = Σ_k f_k f_kᵀ / n_k,    B_c = Σ_k f_kc W_k / n_k,    Σ_c w_c Σ̂_c = Σ_c (G⁺ w)_c B_c.

Its variance is that of a covariance of N_w = (Σ_c w_c)² / wᵀ G⁺ w rows: nearly all rows if the clients have the same
class mix, and fewer the more they differ. The feature test uses the moments of its correlation matrix R of d features.
The bias of d (d − 1) / N_w in tr R² and of about 3 d tr R² / N_w in tr R³ is subtracted. As few rows give uncertain
estimates, each trace is shrunk towards that of the pooled covariance by d / (d + N_w), as in regularised discriminant
analysis.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from fedscout.detectors import statistics
from fedscout.detectors.report import Finding
from fedscout.detectors.statistics import Values, distribution, flat_features
from fedscout.engine.arrays import IntArray
from fedscout.engine.data.client import Answer, Arrays, QueryInputs, RowAggregate, WithheldError, released_cells
from fedscout.engine.data.federation import UNNAMED, Names
from fedscout.engine.seeds import stream

NAME: Final = "feature_skew"

NUM_AXES = 2
DIRECT_SOLVER_FEATURES = 1024
"""Up to here a direct solver for two eigenvectors costs no more than an iterative one, whatever the eigenvalues."""

TIE = 1e-9
"""Distances within this share of each other are equal up to rounding."""

# -- client halves ---------------------------------------------------------------------------------------------------


def feature_moments(inputs: QueryInputs) -> Answer:
    """First exchange. Return `sum`, shape `(d,)`, and `scatter`, the upper triangle of S_k, shape `(d(d+1)/2,)`.

    Reads `max_features` from the message; with more features `scatter` is omitted.
    """
    total: Values = np.zeros(())
    flat: Values = np.zeros((0, 0))
    for features, _ in inputs.data.chunks():
        flat = flat_features(features)
        total = total + flat.sum(axis=0)
    num_features = len(total)
    if num_features > int(inputs.config["max_features"]):
        return {"sum": RowAggregate(total, len(inputs.data))}
    mean = total / len(inputs.data)
    is_one_chunk = len(flat) == len(inputs.data)
    scatter = np.zeros((num_features, num_features))
    for chunk in [flat] if is_one_chunk else (flat_features(features) for features, _ in inputs.data.chunks()):
        centred = np.subtract(chunk, mean, out=chunk)
        scatter += inputs.cross_products(centred)
    triangle = scatter[upper_triangle(num_features)]
    return {"sum": RowAggregate(total, len(inputs.data)), "scatter": RowAggregate(triangle, len(inputs.data))}


def feature_centroid(inputs: QueryInputs) -> Answer:
    """Second exchange. Return `centroid`, the mean of (x − mean)ᵀ axes, shape `(2,)`.

    Reads `mean`, shape `(d,)`, and `axes`, shape `(d, 2)`, from the message.
    """
    mean, axes = (inputs.arrays[name].astype(np.float64) for name in ("mean", "axes"))
    total = np.zeros(axes.shape[1])
    for features, _ in inputs.data.chunks():
        total += ((flat_features(features) - mean) @ axes).sum(axis=0)
    return {"centroid": RowAggregate(total / len(inputs.data), len(inputs.data))}


# -- server halves ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PooledMoments:
    """Moments of the pooled rows: `num_rows` N, `mean` μ (d,), `covariance` C (d, d)."""

    num_rows: int
    mean: Values
    covariance: Values

    @property
    def variance(self) -> Values:
        """Variance of each feature, shape `(d,)`.

        Exactly 0 for a constant feature: float64 sums of up to 2²⁹ equal float32 values are exact, hence the means.
        """
        return np.diag(self.covariance)


@lru_cache(maxsize=1)
def upper_triangle(num_features: int) -> npt.NDArray[np.bool_]:
    """Return the mask of the upper triangle with its diagonal, in row-major order. Shared: do not modify."""
    return np.triu(np.ones((num_features, num_features), dtype=bool))


class ClientTotals(NamedTuple):
    """One client's row count, sum and sum of squares about its own mean, shapes `(d,)`."""

    num_rows: int
    total: Values
    squares: Values


class MomentSums:
    """Accumulator of clients' moments, added in a fixed order. No client's triangle is retained.

    Attributes:
        totals: Totals of each client.
    """

    def __init__(self) -> None:
        self.totals: dict[int, ClientTotals] = {}
        self._within: Values = np.zeros(0)

    def add(self, client: int, num_rows: int, total: Values, scatter: Values) -> None:
        """Add one client's answer to the first exchange."""
        if not self.totals:
            self._within = np.zeros(scatter.shape)
        diagonal = np.cumsum([0, *range(len(total), 1, -1)])
        self.totals[client] = ClientTotals(num_rows, total, scatter[diagonal])
        self._within += scatter

    def pooled(self) -> PooledMoments | None:
        """Return the moments of all rows; None if no client was added."""
        if not self.totals:
            return None
        counts = [client.num_rows for client in self.totals.values()]
        sizes, totals = np.array(counts, dtype=np.float64), np.stack([client.total for client in self.totals.values()])
        mean = totals.sum(axis=0) / sizes.sum()
        offsets = (totals / sizes[:, None] - mean) * np.sqrt(sizes)[:, None]
        upper = np.zeros((len(mean), len(mean)))
        upper[upper_triangle(len(mean))] = self._within
        scatter = upper + np.triu(upper, k=1).T + offsets.T @ offsets
        return PooledMoments(num_rows=sum(counts), mean=mean, covariance=scatter / max(sizes.sum() - 1, 1.0))


def principal_axes(pooled: PooledMoments) -> tuple[Values, float]:
    """Return the two leading principal axes, on which clients are compared, and the total variance.

    The axes, shape `(d, 2)`, project a centred row: eigenvectors of the correlation matrix, divided by the features'
    standard deviations. Each has its component of largest size positive; a missing second axis is 0. The total variance
    is the trace of that matrix, the number of features that vary.
    """
    variance = pooled.variance
    weights = np.divide(1.0, np.sqrt(variance), out=np.zeros_like(variance), where=variance > 0)
    matrix = pooled.covariance * np.outer(weights, weights)
    total = float(np.trace(matrix))
    axes = np.zeros((len(variance), NUM_AXES))
    if total > 0:
        vectors = _leading_eigenvectors(matrix)
        largest = np.abs(vectors).argmax(axis=0)
        signs = np.sign(vectors[largest, np.arange(vectors.shape[1])])
        axes[:, : vectors.shape[1]] = vectors * signs * weights[:, None]
    return axes, total


def _leading_eigenvectors(matrix: Values) -> Values:
    """Return up to two eigenvectors of a symmetric matrix, the largest eigenvalue first, shape `(d, <= 2)`."""
    size = len(matrix)
    if size <= DIRECT_SOLVER_FEATURES:
        from scipy.linalg import eigh

        leading = (max(0, size - NUM_AXES), size - 1)
        return np.asarray(eigh(matrix, subset_by_index=leading, check_finite=False)[1][:, ::-1])
    from scipy.sparse.linalg import eigsh

    start = stream(0, "principal-axes").standard_normal(size)
    values, vectors = eigsh(matrix, k=NUM_AXES, which="LA", v0=start)
    return np.asarray(vectors[:, np.argsort(-values, kind="stable")])


def decide_feature_skew(
    centroids: Mapping[int, npt.NDArray[np.floating]],
    total_variance: float,
    relative_threshold: float,
    names: Names = UNNAMED,
) -> Finding:
    """Decide on feature skew by the centroids of the second exchange.

    Args:
        centroids: Centroid of each client that answered, shape `(2,)`.
        total_variance: See `principal_axes`.
        relative_threshold: Distance over √total_variance above which the federation has feature skew.
        names: Display names of clients.
    """
    threshold = relative_threshold * float(np.sqrt(total_variance))
    if len(centroids) < 2:
        return Finding.unmeasured(NAME, threshold, f"at least two clients are needed, got {len(centroids)}")
    clients = sorted(centroids)
    points = np.stack([centroids[client] for client in clients]).astype(np.float64)
    value, first, second = _farthest_pair(points)
    from_median = np.linalg.norm(points - np.median(points, axis=0), axis=-1)
    values = dict(zip(clients, from_median.tolist(), strict=True))
    limit = min(threshold, (1 - TIE) * max(values.values()))
    flagged = tuple(client for client in clients if value > threshold and values[client] > limit)
    description = (
        "On the two principal axes of the standardised features the largest distance between two clients' centroids is "
        f"{value:.3g} ({names.some_clients([clients[first], clients[second]])}), threshold {threshold:.3g} "
        f"({relative_threshold:g} times the root of the total variance)"
    )
    return Finding.of(NAME, value, threshold, values, flagged, description, names)


def _farthest_pair(points: Values) -> tuple[float, int, int]:
    """Return the largest distance and its first pair, in linear memory for thousands of clients."""
    best = (-1.0, 0, 0)
    for index in range(len(points) - 1):
        distances = np.linalg.norm(points[index + 1 :] - points[index], axis=-1)
        other = int(distances.argmax())
        if distances[other] > best[0]:
            best = (float(distances[other]), index, index + 1 + other)
    return best


MAX_BINS = 1024
BLOCK_NUMBERS = 2**22
"""Number of values that are sorted at a time."""


def feature_histogram(inputs: QueryInputs) -> Answer:
    """Client half: count the values of each feature, each replaced by the mean of its group, in equal bins.

    Reads `start` and `width`, the lower edge and bin width of each feature, shapes `(d,)`, and the scalar `bins`.
    Returns `counts`, shape `(d, bins)`; a feature of width 0 is constant and counts all its rows in bin 0.

    Raises:
        DataError: If a value is NaN or infinite.
        WithheldError: If there are more than `MAX_BINS` bins.
    """
    start, width = (inputs.arrays[name].astype(np.float64) for name in ("start", "width"))
    bins = int(inputs.config["bins"])
    if not 1 <= bins <= MAX_BINS:
        raise WithheldError(f"bins must be from 1 to {MAX_BINS}, got {bins}")
    counts: IntArray = np.zeros(len(start) * bins, dtype=np.int64)
    first_bin = np.arange(len(start)) * bins
    per_width = np.divide(1.0, width, out=np.zeros(len(width)), where=width > 0)
    for block, values, sizes in _grouped_values(inputs):
        positions = np.subtract(values, start[block], out=values)  # a fresh array, in whose place all is computed
        positions *= per_width[block]
        cells = np.clip(positions, 0, bins - 1, out=positions).astype(np.int64)  # not negative, so this rounds down
        cells += first_bin[block]
        counts += np.bincount(cells.reshape(-1), np.repeat(sizes, cells.shape[1]), len(counts)).astype(np.int64)
    table = counts.reshape(len(start), bins).astype(np.int32)
    return {"counts": RowAggregate(table, table)}


def _grouped_values(inputs: QueryInputs) -> Iterator[tuple[slice, Values, IntArray]]:
    """Yield blocks of features: a slice, the means of their value groups, `(groups, features)`, and the group sizes.

    The caller may overwrite the arrays.
    """
    if inputs.min_release <= 1:
        for features, _ in inputs.data.chunks():
            flat = flat_features(features)
            yield slice(None), flat, np.ones(len(flat), np.int64)
        return
    rows, source = inputs.data.rows, inputs.data.features
    source = source.reshape(len(source), -1)
    num_groups = max(1, len(rows) // inputs.min_release)
    bounds = np.arange(num_groups + 1) * len(rows) // num_groups
    sizes = np.diff(bounds)
    step = max(1, BLOCK_NUMBERS // len(rows))
    for first in range(0, source.shape[1], step):
        block = slice(first, first + step)
        ordered = np.sort(source[rows, block].T)
        statistics.check_finite(ordered[:, [0, -1]])  # where the order puts what is not
        yield block, (np.add.reduceat(ordered, bounds[:-1], axis=1, dtype=np.float64) / sizes).T, sizes


@dataclass(frozen=True)
class Bins:
    """Histogram bins that the server requests.

    Attributes:
        start: Lower edge of the first bin of each feature, shape `(d,)`.
        width: Bin width of each feature, 0 if it is constant, shape `(d,)`.
        bins: Number of bins.
        reach: Standard deviations covered on either side of the mean.
    """

    start: Values
    width: Values
    bins: int
    reach: float

    @classmethod
    def around(cls, mean: Values, variance: Values, bins: int, reach: float) -> Bins:
        """Return equal bins over mean ± reach standard deviations of each feature; arguments of shape `(d,)`."""
        deviation = np.sqrt(variance)
        return cls(start=mean - reach * deviation, width=2 * reach * deviation / bins, bins=bins, reach=reach)


def feature_distances(
    counts: Iterable[npt.NDArray[np.integer]], means: Iterable[Values], bins: Bins
) -> dict[str, float]:
    """Server half: return mean distances over all pairs of clients and all features that vary, by reported metric.

    Empty with fewer than two clients or no feature that varies.

    Args:
        counts: Counts of each client, shape `(d, bins)`.
        means: Mean of each client's rows, shape `(d,)`.
        bins: Bins of the counts.
    """
    per_client = list(counts)
    varying = np.flatnonzero(bins.width > 0)
    if len(per_client) < 2 or len(varying) == 0:
        return {}
    histograms = distribution(np.stack([client[varying] for client in per_client], axis=1))  # (d, clients, bins)
    wasserstein = statistics.mean_pairwise_wasserstein(histograms, 2 * bins.reach / bins.bins)
    deviation = bins.width[varying] * bins.bins / (2 * bins.reach)
    places = np.stack([mean[varying] / deviation for mean in means], axis=1)  # (d, clients), in standard deviations
    wasserstein = np.maximum(wasserstein, statistics.mean_pairwise_difference(places))
    hellinger = statistics.mean_pairwise_hellinger(histograms)
    return {"feature_hellinger": float(hellinger.mean()), "feature_wasserstein": float(wasserstein.mean())}


def group_norms(inputs: QueryInputs) -> Answer:
    """Client half: return `squares` Σ y_gj², shape `(d,)`, and `norms`, shape `(5,)`.

    `norms` holds the rows, the groups, Σ n_g², Σ |y_g|² and Σ |y_g|⁴, over the rows of the released classes. Reads
    `per_deviation`, shape `(d,)`, and `means`, shape `(num_classes, d)`, or `(1, d)` if `by_class` is false.
    """
    scale = inputs.arrays["per_deviation"].astype(np.float64)
    by_class = bool(inputs.config["by_class"])
    means = inputs.by_class("means", inputs.num_classes if by_class else 1)
    counts = inputs.data.label_counts(inputs.num_classes) if by_class else np.array([len(inputs.data)])
    released = released_cells(counts, inputs.min_release)
    groups = np.arange(len(inputs.data)) if inputs.groups is None else inputs.groups
    _, members = np.unique(groups, return_inverse=True)
    sums = np.zeros((members.max() + 1, len(scale)))
    sizes = np.zeros(len(sums))
    start = 0
    for features, labels in inputs.data.chunks():
        classes = labels if by_class else np.zeros_like(labels)
        selected = released[classes]
        members_selected = members[start : start + len(labels)][selected]
        np.add.at(sums, members_selected, (flat_features(features)[selected] - means[classes[selected]]) * scale)
        sizes += np.bincount(members_selected, minlength=len(sizes))
        start += len(labels)
    lengths = (sums**2).sum(axis=1)
    norms = [sizes.sum(), (sizes > 0).sum(), (sizes**2).sum(), lengths.sum(), (lengths**2).sum()]
    num_rows = int(sizes.sum())
    return {
        "squares": RowAggregate((sums**2).sum(axis=0), num_rows),
        "norms": RowAggregate(np.array(norms, np.float64), num_rows),
    }


@dataclass(frozen=True)
class FeatureGroups:
    """Design effects and group counts; clients without an answer get the largest effects and the fewest groups.

    Attributes:
        effects: δ of each client, shape `(d,)`.
        num_groups: Number of groups of each client, at least 1.
        excess: Squared coefficient of variation of |y_g|², at least 0.
    """

    effects: Mapping[int, Values]
    num_groups: Mapping[int, float]
    excess: float

    @classmethod
    def read(cls, answers: Mapping[int, Arrays]) -> FeatureGroups | None:
        """Return the estimates from the clients' answers; None if no client released any row."""
        norms = {client: np.asarray(answer["norms"], np.float64) for client, answer in answers.items()}
        rows, groups, size_squares, second, fourth = np.sum([np.zeros(5), *norms.values()], axis=0)
        if rows == 0:
            return None
        squares = np.sum([np.asarray(answer["squares"], np.float64) for answer in answers.values()], axis=0)
        surplus = squares * groups / max(groups - 1, 1) / rows - 1
        size_surplus = size_squares / rows - 1
        correlations = np.clip(surplus / size_surplus, 0.0, 1.0) if size_surplus > 0 else np.zeros_like(squares)
        return cls(
            {client: 1 + correlations * max(sums[2] / max(sums[0], 1) - 1, 0) for client, sums in norms.items()},
            {client: max(float(sums[1]), 1.0) for client, sums in norms.items()},
            float(max(0.0, fourth * groups / second**2 - 1)) if second > 0 else 0.0,
        )

    def of(self, clients: Sequence[int], features: Sequence[int] | np.ndarray) -> Values:
        """Return δ of the given clients and features, shape `(clients, features)`."""
        largest = np.max(list(self.effects.values()), axis=0)
        return np.stack([self.effects.get(client, largest)[features] for client in clients])

    def groups_of(self, clients: Sequence[int]) -> Values:
        """Return the number of groups of the given clients, shape `(clients,)`."""
        fewest = min(self.num_groups.values())
        return np.array([self.num_groups.get(client, fewest) for client in clients])


KEPT_BYTES = 2**28


def class_sums(inputs: QueryInputs) -> Answer:
    """Client half. Return `counts`, `sums` and `squares`.

    Shapes `(num_classes,)`, `(num_classes, d)` and `(num_classes, d)`. `squares` are about the client's own class
    means. Reads `max_features` from the message; with more features only `counts` is returned.
    """
    counts = inputs.data.label_counts(inputs.num_classes)
    sums: Values | None = None
    for features, labels in inputs.data.chunks():
        flat = flat_features(features)
        if flat.shape[1] > int(inputs.config["max_features"]):
            return {"counts": RowAggregate(counts, counts)}
        part = _sums_by_class(flat, labels, inputs.num_classes)
        sums = part if sums is None else sums + part
    assert sums is not None, "a client that answers holds rows"
    means = sums / np.maximum(counts, 1)[:, None]
    squares = np.zeros_like(sums)
    for features, labels in inputs.data.chunks():
        flat = flat_features(features)
        squares += _sums_by_class((flat - means[labels]) ** 2, labels, inputs.num_classes)
    released = {"counts": counts, "sums": sums, "squares": squares}
    return {name: RowAggregate(values, counts) for name, values in released.items()}


def _sums_by_class(rows: Values, labels: IntArray, num_classes: int) -> Values:
    """Return the sum of the rows of each class, shape `(num_classes, d)`; only present classes are written."""
    sums = np.zeros((num_classes, rows.shape[1]))
    order = np.argsort(labels, kind="stable")
    present, starts = np.unique(labels[order], return_index=True)
    sums[present] = np.add.reduceat(rows[order], starts, axis=0)
    return sums


@dataclass
class ClassMoments:
    """Per-class moments of all clients' released rows, and totals of each client.

    Clients are added in a fixed order; sums of squares about different means are combined by the updating formula of
    Chan, Golub and LeVeque.

    Attributes:
        pooled_counts: N_c, rows of each class, shape `(num_classes,)`.
        sums: Sum of the rows of each class, shape `(num_classes, d)`.
        squares: Sum of squares about the pooled mean of each class, shape `(num_classes, d)`.
        counts: Released rows of each client and class.
        totals: Sum of each client's released rows, shape `(d,)`.
        spreads: Sum of squares of these about the client's own class means, shape `(d,)`.
        own: Each client's sums by class, shape `(num_classes, d)`; None if they would exceed `KEPT_BYTES`.
    """

    pooled_counts: IntArray
    sums: Values
    squares: Values
    counts: dict[int, IntArray] = field(default_factory=dict)
    totals: dict[int, Values] = field(default_factory=dict)
    spreads: dict[int, Values] = field(default_factory=dict)
    own: dict[int, Values] | None = field(default_factory=dict)

    @classmethod
    def empty_moments(cls, num_classes: int, num_features: int) -> ClassMoments:
        """Return empty moments."""
        shape = (num_classes, num_features)
        return cls(np.zeros(num_classes, dtype=np.int64), np.zeros(shape), np.zeros(shape))

    def add(self, client: int, counts: IntArray, sums: Values, squares: Values) -> None:
        """Add one client's answer."""
        self.counts[client] = counts
        self.totals[client] = sums.sum(axis=0)
        self.spreads[client] = squares.sum(axis=0)
        if self.own is not None:
            self.own[client] = sums
            if len(self.own) * sums.nbytes > KEPT_BYTES:
                self.own = None
        pooled = self.pooled_counts
        both = (pooled > 0) & (counts > 0)
        shift = sums[both] / counts[both, None] - self.sums[both] / pooled[both, None]
        self.squares += squares
        self.squares[both] += shift**2 * (pooled[both] * counts[both] / (pooled[both] + counts[both]))[:, None]
        self.sums += sums
        self.pooled_counts += counts

    @property
    def means(self) -> Values:
        """M_c, 0 for a class that no client releases, shape `(num_classes, d)`."""
        return np.asarray(self.sums / np.maximum(self.pooled_counts, 1)[:, None])

    @property
    def variances(self) -> Values:
        """Variance of each feature within each class, shape `(num_classes, d)`; 0 for a class with one row."""
        return np.asarray(self.squares / np.maximum(self.pooled_counts - 1, 1)[:, None])

    def widening(self, client: int) -> Values:
        """Return the ratio of a client's variance within classes to the pooled one, at least 1, shape `(d,)`."""
        freedom = np.maximum(self.counts[client] - 1, 0)
        expected = freedom @ self.variances
        spread = self.spreads.get(client, expected)
        return np.maximum(np.divide(spread, expected, out=np.ones_like(expected), where=expected > 0), 1.0)

    def without(self, clients: Collection[int]) -> tuple[IntArray, Values] | None:
        """Return counts and sums of each class over all other clients; None if clients' own sums were not retained."""
        if self.own is None:
            return None
        remaining = [client for client in self.counts if client not in clients]
        counts = np.stack([self.counts[client] for client in remaining]).sum(axis=0)
        return np.asarray(counts), np.asarray(np.sum([self.own[client] for client in remaining], axis=0))


def row_norms(inputs: QueryInputs) -> Answer:
    """Client half: return `norms`, the sums of |y|⁰, |y|² and |y|⁴, shape `(3,)`.

    Reads `per_deviation`, the inverse of each feature's standard deviation or 0, shape `(d,)`, and `by_class`, whether
    to subtract the client's class means or the mean of all its rows.
    """
    scale = inputs.arrays["per_deviation"].astype(np.float64)
    by_class = bool(inputs.config["by_class"])
    counts = inputs.data.label_counts(inputs.num_classes) if by_class else np.array([len(inputs.data)])
    released = released_cells(counts, inputs.min_release)
    sums: Values = np.zeros((len(counts), len(scale)))
    for features, labels in inputs.data.chunks():
        np.add.at(sums, labels if by_class else np.zeros_like(labels), flat_features(features))
    means = sums / np.maximum(counts, 1)[:, None]
    norms = np.zeros(3)
    for features, labels in inputs.data.chunks():
        classes = labels if by_class else np.zeros_like(labels)
        selected = released[classes]
        lengths = (((flat_features(features)[selected] - means[classes[selected]]) * scale) ** 2).sum(axis=1)
        norms += [len(lengths), lengths.sum(), (lengths**2).sum()]
    return {"norms": RowAggregate(norms, int(norms[0]))}


def excess_variance(answers: Iterable[Values]) -> float:
    """Return (E|y|⁴ − (E|y|²)²) / (E|y|²)², the squared coefficient of variation of |y|²; 0 without rows.

    Args:
        answers: `norms` of the clients.
    """
    rows, second, fourth = np.sum([np.zeros(3), *answers], axis=0)
    return float(max(0.0, fourth * rows / second**2 - 1)) if second > 0 else 0.0


MOST_NUMBERS: Final = 2**21
"""With more numbers in the triangles of all classes, one covariance is used for all clients."""

SMALLEST_SHARE: Final = 1e-9


class ClassCovariances:
    """Accumulator for covariances by class mix; no client's triangle is retained. Use it only after the last `add`."""

    def __init__(self, num_classes: int, num_features: int) -> None:
        self._triangle = upper_triangle(num_features)
        self._freedom = np.zeros((num_classes + 1, num_classes + 1))
        self._sums = np.zeros((num_classes + 1, num_features * (num_features + 1) // 2))

    @staticmethod
    def fit(num_classes: int, num_features: int) -> bool:
        """Return whether the triangles of all classes have at most `MOST_NUMBERS` entries."""
        return (num_classes + 1) * num_features * (num_features + 1) // 2 <= MOST_NUMBERS

    def add(self, num_rows: int, total: Values, scatter: Values, counts: IntArray, sums: Values) -> None:
        """Add one client's answer.

        Args:
            num_rows: Number of all its rows.
            total: Sum of all its rows, shape `(d,)`.
            scatter: Upper triangle of their scatter about their mean.
            counts: Released rows of each class, shape `(num_classes,)`.
            sums: Sums of the released rows of each class, shape `(num_classes, d)`.
        """
        rows = np.append(counts, num_rows - counts.sum()).astype(np.float64)
        by_class = np.vstack([sums, total - sums.sum(axis=0)])
        deviations = (by_class / np.maximum(rows, 1)[:, None] - total / num_rows) * np.sqrt(rows)[:, None]
        within = scatter - (deviations.T @ deviations)[self._triangle]
        freedom = np.maximum(rows - 1, 0.0)
        self._freedom += np.outer(freedom, freedom) / num_rows
        present = freedom > 0
        self._sums[present] += (freedom[present] / num_rows)[:, None] * within

    @cached_property
    def _solver(self) -> Values:
        """G⁺."""
        return np.asarray(np.linalg.pinv(self._freedom, rcond=SMALLEST_SHARE, hermitian=True))

    def correlation(self, weights: Values, features: IntArray) -> tuple[Values, float] | None:
        """Return the correlation matrix of features in a class mix, and N_w; None if it cannot be estimated.

        Args:
            weights: w of each class, shape `(num_classes,)`.
            features: Positions of the features.
        """
        padded = np.append(weights, 0.0)
        solved = self._solver @ padded
        spread = float(padded @ solved)
        if not np.allclose(self._freedom @ solved, padded, rtol=1e-6, atol=1e-6 * padded.max()):
            return None
        covariance = np.zeros(self._triangle.shape)
        covariance[self._triangle] = solved @ self._sums
        covariance = (covariance + np.triu(covariance, k=1).T)[np.ix_(features, features)]
        diagonal = np.diag(covariance)
        if (diagonal <= 0).any():
            return None
        scale = np.sqrt(diagonal)
        return covariance / np.outer(scale, scale), float(padded.sum()) ** 2 / spread

    def traces(self, weights: Values, features: IntArray, pooled: tuple[float, float]) -> tuple[float, float]:
        """Return tr R² and tr R³ for a class mix; `pooled`, those of the pooled covariance, if not estimable."""
        estimate = self.correlation(weights, features)
        if estimate is None:
            return pooled
        correlation, rows = estimate
        num_features = len(features)
        squared = correlation @ correlation
        second = max(float(np.trace(squared)) - num_features * (num_features - 1) / rows, float(num_features))
        third = float((squared * correlation).sum()) - 3 * num_features * second / rows
        third = max(third, second**2 / num_features)
        weight = rows / (rows + num_features)
        return weight * second + (1 - weight) * pooled[0], weight * third + (1 - weight) * pooled[1]
