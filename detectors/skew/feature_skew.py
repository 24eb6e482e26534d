"""Feature skew: distances between clients' centroids on the two principal axes of all data, without pooling them.

Federated principal component analysis in two exchanges:

1. Client k sends its row count n_k, its per-feature sums and the upper triangle of its cross-products. The server forms
   the mean μ = Σ s_k / N and the covariance C = (Σ X_kᵀX_k − N μμᵀ) / (N − 1), the one that PCA of the pooled data
   would use, and takes the two leading eigenvectors U of C (raw) or of its correlation matrix (standardised).
2. The server sends μ and U; client k sends its centroid c_k, the mean of (x − μ)ᵀU over its rows.

The value is the largest distance ‖c_i − c_j‖₂. (The second exchange repeats what the server could work out from the
sums of the first; it is part of the published protocol.)

Choices and deviations:

- A client centres its cross-products on its own mean before it sends them: S_k = X_kᵀX_k − n_k m_k m_kᵀ. With the sums
  that is the same information, and the squares of the features are on its diagonal. The server adds the parts by
  Σ X_kᵀX_k − N μμᵀ = Σ_k [S_k + n_k (m_k − μ)(m_k − μ)ᵀ] (Chan, Golub, LeVeque. Updating formulae and a pairwise
  algorithm for computing sample variances. 1979). Unlike the literal formula it does not cancel when means are large
  against deviations. All sums are float64.
- The published threshold is lost. A distance grows with the number of features, so ours is relative to the square
  root of the total variance trace(C), which is √d for d standardised features: the federation has feature skew if the
  distance exceeds 0.25 √trace(C), a shift of a quarter of a standard deviation in every feature at once. Published
  rows for 254 features over √254: IID 0.036, one corrupted client 0.466, feature skew 0.945. The same scenarios on 244
  standardised vibration features, four clients, federation seeds 0 to 3: IID 0.09 to 0.13, label skew 0.62 to 0.68,
  corrupted client 0.91, feature skew 0.94 to 1.00. The sampling error of the distance is roughly up to 4 / √n_k on this
  scale when few directions carry most of the variance, so clients of fewer than some 200 rows can exceed it by chance.
- Labels shift features: a federation with label skew alone usually has feature skew by this definition, too.
- Flagged clients were not published either. If the federation has skew, those are flagged whose centroid is farther
  than the threshold from the coordinate-wise median of all centroids, and the farthest one in any case (two groups of
  equal size have their median between them). The median keeps one deviating client from drawing the others along.
- Features are flattened as they are stored. For images and text they should be embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from fedscout.detectors.report import Finding, yes_no
from fedscout.detectors.statistics.client_rows import flat_features
from fedscout.detectors.statistics.heterogeneity_metrics import Values, distances_to
from fedscout.engine.data.client_query import QueryInputs
from fedscout.engine.data.names import UNNAMED, Names
from fedscout.engine.data.release import Answer, Over
from fedscout.engine.seeds import stream

NAME: Final = "feature_skew"
FEATURE_MOMENTS = "feature_moments"
FEATURE_CENTROID = "feature_centroid"

NUM_AXES = 2
DIRECT_SOLVER_FEATURES = 1024
"""Up to here a direct solver for two eigenvectors costs no more than an iterative one, whatever the eigenvalues."""

TIE = 1e-9
"""Distances within this share of each other are equal up to rounding."""

FeatureScale = Literal["standardised", "raw"]


# -- client halves ---------------------------------------------------------------------------------------------------


def feature_moments(inputs: QueryInputs) -> Answer:
    """First exchange. Return `sum`, shape `(d,)`, and `scatter`, the upper triangle of S_k, shape `(d(d+1)/2,)`.

    Reads `max_features` from the message; with more features than that, `scatter` is left out.
    """
    total: Values = np.zeros(())
    flat: Values = np.zeros((0, 0))
    for features, _ in inputs.data.chunks():
        flat = flat_features(features)
        total = total + flat.sum(axis=0)
    num_features = len(total)
    if num_features > int(inputs.config["max_features"]):
        return {"sum": Over(total, len(inputs.data))}
    mean = total / len(inputs.data)
    whole = len(flat) == len(inputs.data)  # one chunk, at hand
    scatter = np.zeros((num_features, num_features))
    for chunk in [flat] if whole else (flat_features(features) for features, _ in inputs.data.chunks()):
        centred = np.subtract(chunk, mean, out=chunk)
        scatter += inputs.cross_products(centred)
    triangle = scatter[upper_triangle(num_features)]
    return {"sum": Over(total, len(inputs.data)), "scatter": Over(triangle, len(inputs.data))}


def feature_centroid(inputs: QueryInputs) -> Answer:
    """Second exchange. Return `centroid`, the mean of (x − mean)ᵀ axes, shape `(2,)`.

    Reads `mean`, shape `(d,)`, and `axes`, shape `(d, 2)`, from the message.
    """
    mean, axes = (inputs.arrays[name].astype(np.float64) for name in ("mean", "axes"))
    total = np.zeros(axes.shape[1])
    for features, _ in inputs.data.chunks():
        total += ((flat_features(features) - mean) @ axes).sum(axis=0)
    return {"centroid": Over(total / len(inputs.data), len(inputs.data))}


# -- server halves ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PooledMoments:
    """What the pooled rows would give: `num_rows` N, `mean` μ (d,), `covariance` C (d, d)."""

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
    """Return the mask of the upper triangle with its diagonal, read row by row. To be read only."""
    return np.triu(np.ones((num_features, num_features), dtype=bool))


class ClientTotals(NamedTuple):
    """Of one client: its rows, their sum and their sum of squares about its own mean, shapes `(d,)`."""

    num_rows: int
    total: Values
    squares: Values


class MomentSums:
    """Adds clients' moments, one after the other in a fixed order. No client's triangle is kept.

    Attributes:
        totals: Of each client.
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
        """Return the moments of all rows; None without any."""
        if not self.totals:
            return None
        counts = [own.num_rows for own in self.totals.values()]
        sizes, totals = np.array(counts, dtype=np.float64), np.stack([own.total for own in self.totals.values()])
        mean = totals.sum(axis=0) / sizes.sum()
        offsets = (totals / sizes[:, None] - mean) * np.sqrt(sizes)[:, None]
        upper = np.zeros((len(mean), len(mean)))
        upper[upper_triangle(len(mean))] = self._within
        scatter = upper + np.triu(upper, k=1).T + offsets.T @ offsets
        return PooledMoments(num_rows=sum(counts), mean=mean, covariance=scatter / max(sizes.sum() - 1, 1.0))


@dataclass(frozen=True)
class PrincipalAxes:
    """The axes on which clients are compared.

    Attributes:
        axes: What a centred row is multiplied with, shape `(d, 2)`: eigenvectors, over the features' standard
            deviations if standardised. A missing second axis is 0.
        total_variance: Trace of the matrix whose eigenvectors they are; if standardised, the number of features that
            vary.
    """

    axes: Values
    total_variance: float


def principal_axes(pooled: PooledMoments, scale: FeatureScale) -> PrincipalAxes:
    """Return the two leading principal axes; each has its component of largest size positive."""
    variance = pooled.variance
    varies = variance > 0
    if scale == "standardised":
        weights = np.divide(1.0, np.sqrt(variance), out=np.zeros_like(variance), where=varies)
    else:
        weights = varies.astype(np.float64)
    matrix = pooled.covariance * np.outer(weights, weights)
    total = float(np.trace(matrix))
    axes = np.zeros((len(variance), NUM_AXES))
    if total > 0:
        vectors = _leading_eigenvectors(matrix)
        largest = np.abs(vectors).argmax(axis=0)
        signs = np.sign(vectors[largest, np.arange(vectors.shape[1])])
        axes[:, : vectors.shape[1]] = vectors * signs * weights[:, None]
    return PrincipalAxes(axes=axes, total_variance=total)


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
    scale: FeatureScale,
    names: Names = UNNAMED,
) -> Finding:
    """Compare the centroids of the second exchange.

    Args:
        centroids: Of each client that answered, shape `(2,)`.
        total_variance: See `PrincipalAxes`.
        relative_threshold: Distance over √total_variance above which the federation has feature skew.
        scale: For the sentence.
        names: Of clients, likewise.
    """
    threshold = relative_threshold * float(np.sqrt(total_variance))
    if len(centroids) < 2:
        return Finding.unmeasured(NAME, threshold, f"it takes two clients, got {len(centroids)}")
    clients = sorted(centroids)
    points = np.stack([centroids[client] for client in clients]).astype(np.float64)
    value, first, second = _farthest_pair(points)
    from_median = distances_to(points, np.median(points, axis=0))
    values = dict(zip(clients, from_median.tolist(), strict=True))
    detected = value > threshold
    limit = min(threshold, (1 - TIE) * max(values.values()))
    flagged = tuple(client for client in clients if detected and values[client] > limit)
    pair = [clients[first], clients[second]]
    sentence = (
        f"Feature skew: {yes_no(detected)}. On the two principal axes of the {scale} features the largest distance "
        f"between two clients' centroids is {value:.3g} ({names.some_clients(pair)}), "
        f"{'above' if detected else 'not above'} the threshold {threshold:.3g} ({relative_threshold:g} times the root "
        f"of the total variance)."
    )
    if flagged:
        sentence += f" Farthest from the median of all centroids: {names.some_clients(flagged)}."
    return Finding(
        name=NAME,
        value=value,
        threshold=threshold,
        detected=detected,
        flagged_clients=flagged,
        client_values=values,
        sentence=sentence,
    )


def _farthest_pair(points: Values) -> tuple[float, int, int]:
    """Return the largest distance and its first pair; linear memory, since there may be thousands of clients."""
    best = (-1.0, 0, 0)
    for index in range(len(points) - 1):
        distances = distances_to(points[index + 1 :], points[index])
        other = int(distances.argmax())
        if distances[other] > best[0]:
            best = (float(distances[other]), index, index + 1 + other)
    return best
