"""Mean differences of paired measurements, with Student's t interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict
from scipy.special import stdtrit

CONFIDENCE = 0.95


class PairedDifference(BaseModel):
    """Winner minus baseline over paired seeds.

    Attributes:
        mean: Mean difference of accuracy, in `[-1, 1]`.
        low: Lower end of the 95 % interval; None with a single pair.
        high: Upper end.
        differences: One a seed.
    """

    model_config = ConfigDict(frozen=True)

    mean: float
    low: float | None
    high: float | None
    differences: tuple[float, ...]

    @property
    def verdict(self) -> int:
        """1: better beyond noise; -1: worse beyond noise; 0: neither, or a single pair."""
        if self.low is None or self.high is None:
            return 0
        return 1 if self.low > 0 else -1 if self.high < 0 else 0


def paired_difference(ours: Sequence[float], baseline: Sequence[float]) -> PairedDifference:
    """Compare accuracies measured on the same seeds.

    The interval is mean ± t(0.975; n-1) s/√n with s the standard deviation of the differences (n-1 in the
    denominator). Equal differences give an interval of length zero.

    Args:
        ours: One accuracy a seed.
        baseline: The same seeds in the same order, at least one.
    """
    differences = np.asarray(ours, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    count, mean = len(differences), float(differences.mean())
    if count < 2:
        return PairedDifference(mean=mean, low=None, high=None, differences=tuple(differences.tolist()))
    half = float(stdtrit(count - 1, 0.5 + CONFIDENCE / 2) * differences.std(ddof=1) / np.sqrt(count))
    return PairedDifference(mean=mean, low=mean - half, high=mean + half, differences=tuple(differences.tolist()))
