"""Histograms of each feature on bins that all clients share: what feature distances are computed from.

The 1-Wasserstein and Hellinger distances between two clients' values of a feature need their distributions. Quantile
sketches would hand out single rows (an extreme quantile is one), so clients count their values in equal bins instead,
placed by the server from the mean and standard deviation of the first exchange of the feature-skew detector: `bins`
bins over mean ± `reach` standard deviations, values beyond in the outermost.

Bins that somebody else places can close in on a single value, and bins that are shifted a little give it away by
subtraction. So a client does not count its values but those that it would tell in any case: it puts the values of a
feature in order, groups them, `min_release` or a few more to a group, and takes each as the mean of its group
(microaggregation: J. Domingo-Ferrer and J. M. Mateo-Sanz. Practical data-oriented microaggregation for statistical
disclosure control. IEEE Transactions on Knowledge and Data Engineering 14(1), 2002). A bin then holds whole groups, and
all bins that can be asked for tell the means of these groups and no more. Means of groups are spread a little less than
values: by the variance within groups, which are of neighbouring values.

Deviations: distances are in global standard deviations of the feature, so that an average over features has a meaning.
Values within a bin count as its middle, which changes a distance by at most one bin width, 2 reach / bins (0.25
standard deviations for 32 bins over ±4); what lies beyond the bins counts as if it lay in the outermost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedscout.detectors.statistics.client_rows import check_finite, flat_features
from fedscout.detectors.statistics.heterogeneity_metrics import (
    Values,
    distribution,
    mean_pairwise_hellinger,
    mean_pairwise_wasserstein,
)
from fedscout.engine.arrays import IntArray
from fedscout.engine.data.client_query import QueryInputs
from fedscout.engine.data.release import Answer, Over, WithheldError

FEATURE_HISTOGRAM = "feature_histogram"
MAX_BINS = 1024
BLOCK_NUMBERS = 2**22
"""Values are put in order so many at a time."""


def feature_histogram(inputs: QueryInputs) -> Answer:
    """Client half: count each feature's values, each as the mean of its group, in equal bins.

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
    for some, values, sizes in _values(inputs):
        positions = np.subtract(values, start[some], out=values)  # a fresh array, in whose place all is computed
        positions *= per_width[some]
        cells = np.clip(positions, 0, bins - 1, out=positions).astype(np.int64)  # not negative, so this rounds down
        cells += first_bin[some]
        counts += np.bincount(cells.reshape(-1), np.repeat(sizes, cells.shape[1]), len(counts)).astype(np.int64)
    table = counts.reshape(len(start), bins).astype(np.int32)
    return {"counts": Over(table, table)}


def _values(inputs: QueryInputs) -> Iterator[tuple[slice, Values, IntArray]]:
    """Yield some features, the means of their groups of values, `(groups, features)`, and the sizes of the groups.

    The arrays may be overwritten by whoever reads them.
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
        some = slice(first, first + step)
        ordered = np.sort(source[rows, some].T)
        check_finite(ordered[:, [0, -1]])  # where the order puts what is not
        yield some, (np.add.reduceat(ordered, bounds[:-1], axis=1, dtype=np.float64) / sizes).T, sizes


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
