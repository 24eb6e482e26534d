"""Histograms of each feature on bins that all clients share: what feature distances are computed from.

The 1-Wasserstein and Hellinger distances between two clients' values of a feature need their distributions. Quantile
sketches would hand out single rows (an extreme quantile is one), so clients count their values in equal bins instead,
placed by the server from the mean and standard deviation of the first exchange of the feature-skew detector: `bins`
bins over mean ± `reach` standard deviations, values beyond in the outermost.

Deviations: distances are in global standard deviations of the feature, so that an average over features has a meaning.
Values within a bin count as its middle, which changes a distance by at most one bin width, 2 reach / bins (0.25
standard deviations for 32 bins over ±4); what lies beyond the bins counts as if it lay in the outermost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detectors.feature_skew import flat_features
from detectors.metrics import Values, distribution, mean_pairwise_hellinger, mean_pairwise_wasserstein
from engine.queries import Arrays, QueryInputs

FEATURE_HISTOGRAM = "feature_histogram"


def feature_histogram(inputs: QueryInputs) -> Arrays:
    """Client half: count each feature's values in equal bins.

    Reads `start` and `width`, the lower edge and bin width of each feature, shapes `(d,)`, and the scalar `bins`.
    Returns `counts`, shape `(d, bins)`; a feature of width 0 is constant and counts all its rows in bin 0.
    """
    start, width = (inputs.arrays[name].astype(np.float64) for name in ("start", "width"))
    bins = int(inputs.config["bins"])
    counts = np.zeros(len(start) * bins, dtype=np.int64)
    first_bin = np.arange(len(start)) * bins
    per_width = np.divide(1.0, width, out=np.zeros(len(width)), where=width > 0)
    for features, _ in inputs.data.chunks():
        positions = flat_features(features)  # a fresh array, in whose place all is computed
        positions -= start
        positions *= per_width
        cells = np.clip(positions, 0, bins - 1, out=positions).astype(np.int64)  # not negative, so this rounds down
        cells += first_bin
        counts += np.bincount(cells.reshape(-1), minlength=len(counts))
    return {"counts": counts.reshape(len(start), bins).astype(np.int32)}


@dataclass(frozen=True)
class Bins:
    """Where the server asks clients to count.

    Attributes:
        start: Lower edge of the first bin of each feature, shape `(d,)`.
        width: Of one bin of each feature, 0 if it is constant, shape `(d,)`.
        bins: Number of bins.
        reach: Standard deviations covered on either side of the mean.
    """

    start: Values
    width: Values
    bins: int
    reach: float

    @classmethod
    def around(cls, mean: Values, variance: Values, bins: int, reach: float) -> Bins:
        """Place equal bins over mean ± reach standard deviations of each feature; arguments of shape `(d,)`."""
        deviation = np.sqrt(variance)
        return cls(start=mean - reach * deviation, width=2 * reach * deviation / bins, bins=bins, reach=reach)


@dataclass(frozen=True)
class FeatureDistances:
    """Means over all pairs of clients and all features that vary.

    Attributes:
        wasserstein: In standard deviations of the feature.
        hellinger: In `[0, 1]`.
    """

    wasserstein: float
    hellinger: float


def feature_distances(counts: Iterable[npt.NDArray[np.integer]], bins: Bins) -> FeatureDistances | None:
    """Server half: average the distances; None with fewer than two clients or no feature that varies.

    Args:
        counts: Of each client, shape `(d, bins)`.
        bins: Where they were counted.
    """
    per_client = list(counts)
    varying = np.flatnonzero(bins.width > 0)
    if len(per_client) < 2 or len(varying) == 0:
        return None
    histograms = distribution(np.stack([client[varying] for client in per_client], axis=1))  # (d, clients, bins)
    wasserstein = mean_pairwise_wasserstein(histograms, 2 * bins.reach / bins.bins)
    hellinger = mean_pairwise_hellinger(histograms)
    return FeatureDistances(wasserstein=float(wasserstein.mean()), hellinger=float(hellinger.mean()))
