"""Divergence of raw feature histograms: the rejected measure of feature skew, reported for comparison.

What label skew is judged by, asked of features: with P_kj the histogram of client k's values of feature j, on the bins
of `fedscout.detectors.skew.feature_histograms`, and G_j that of all these clients' rows together,

    value = max over clients k of the mean over features j of JS(P_kj ‖ G_j), in bits, in `[0, 1]`,

with the divergence of J. Lin (Divergence measures based on the Shannon entropy. IEEE Transactions on Information
Theory 37(1), 1991). Constant features do not count. No rule decides by it: every feature counts as much as any other,
so columns that say nothing dilute those that differ; and clients of few rows fill few bins, which alone makes them
differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedscout.detectors.skew.feature_histograms import Bins
from fedscout.detectors.statistics.heterogeneity_metrics import distribution, js_divergence


def feature_divergence(counts: Sequence[npt.NDArray[np.integer]], bins: Bins) -> float | None:
    """Server half: return the value; None with fewer than two clients or no feature that varies.

    Args:
        counts: Of each client, shape `(d, bins)`.
        bins: Where they were counted.
    """
    varying = np.flatnonzero(bins.width > 0)
    if len(counts) < 2 or len(varying) == 0:
        return None
    everyone = np.zeros(counts[0].shape, np.int64)
    for own in counts:
        everyone += own
    shares = distribution(everyone[varying])
    return max(float(js_divergence(distribution(own[varying]), shares).mean()) for own in counts)
