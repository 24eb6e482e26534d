"""Mean differences of paired measurements, with two intervals: of another run on these rows, and of new data.

A seed splits the same rows anew, and trains and tests on them. Seeds are independent given the rows, so Student's t
interval of their differences, of variance S²/s, is about the mean over all seeds *of these rows*: what another run
here would show. It shrinks to nothing with the number of seeds s. Of *new data from these clients* it says too little,
as all seeds share their rows. Nadeau and Bengio (Inference for the generalization error, Machine Learning 52, 2003,
section 5) put the correlation of two seeds' differences at n_test / (n_test + n_train), which makes the variance

    (1/s + n_test/n_train) S²                                                 their eq. 9

with s − 1 degrees of freedom. That interval is the wider one, and it stays: no number of seeds says more than the rows
do. `low` and `high` are its ends, and verdicts are by it.

A standard deviation of zero, or nearly so, says that the scale is too coarse, not that the difference is exact: with a
few test rows, two seeds easily give equal differences. A score read on a scale of steps r has a standard uncertainty of
r/√12, a difference of two scores r/√6 (Guide to the Expression of Uncertainty in Measurement, JCGM 100:2008, F.2.2.1).
The standard deviation counts as at least that, with one test row as the step. A difference beyond noise is rarely near
this floor; it matters where a federation has few test rows or two configurations hardly differ.

Two scores of a bounded measure differ by no more than its span, so intervals end there. What is cut off holds no
difference that there can be, so that an interval holds its truth as often as before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

ERROR = 0.05
"""Chance that a 95 % interval misses."""


def tested_to_trained(test_fraction: float, validation_fraction: float) -> float:
    """Return n_test / n_train of a split.

    Args:
        test_fraction: Share of test rows, in `[0, 1)`.
        validation_fraction: Share of the other rows that do not train, likewise.
    """
    return test_fraction / ((1 - test_fraction) * (1 - validation_fraction))


class PairedDifference(BaseModel):
    """Winner minus baseline over paired seeds.

    Attributes:
        mean: Mean difference of accuracy, in `[-1, 1]`.
        low: Lower end of the interval for new data; None with a single pair, or where so little error is allowed that
            there is none.
        high: Upper end.
        here_low: Lower end of the interval for another run on these rows; None where `low` is.
        here_high: Upper end.
        differences: One a seed.
    """

    model_config = ConfigDict(frozen=True)

    mean: float
    low: float | None
    high: float | None
    here_low: float | None = None
    here_high: float | None = None
    differences: tuple[float, ...]

    @property
    def verdict(self) -> int:
        """1: better beyond noise; -1: worse beyond noise; 0: neither, or a single pair."""
        if self.low is None or self.high is None:
            return 0
        return 1 if self.low > 0 else -1 if self.high < 0 else 0


def paired_difference(
    ours: Sequence[float],
    baseline: Sequence[float],
    error: float = ERROR,
    resolution: float = 0.0,
    test_to_train: float = 0.0,
    span: float | None = None,
) -> PairedDifference:
    """Compare accuracies measured on the same seeds.

    The intervals are mean ± t(1 − error/2; s − 1) S √(1/s + test_to_train), and the same without the last term, with S
    the standard deviation of the differences (s − 1 in the denominator), at least resolution/√6.

    Args:
        ours: One accuracy a seed.
        baseline: The same seeds in the same order, at least one.
        error: Chance that an interval misses the true difference, in `[0, 1)`; 0.05 gives 95 % intervals.
        resolution: Step of the scale, such as one test row's share; 0 if the scale has none.
        test_to_train: n_test / n_train; 0 where seeds share no rows, so that both intervals are one.
        span: The largest difference that there can be; None where that is not known.
    """
    differences = (np.asarray(ours, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)).tolist()
    count, mean = len(differences), float(np.mean(differences))
    nothing = PairedDifference(mean=mean, low=None, high=None, differences=tuple(differences))
    if count < 2:
        return nothing
    beyond, here = (half_width(differences, count, error, resolution, shared) for shared in (test_to_train, 0.0))
    if not math.isfinite(beyond) and span is None:
        return nothing
    ends = {"low": mean - beyond, "high": mean + beyond, "here_low": mean - here, "here_high": mean + here}
    most = math.inf if span is None else span
    return nothing.model_copy(update={name: min(max(end, -most), most) for name, end in ends.items()})


def half_width(
    differences: Sequence[float], count: int, error: float, resolution: float = 0.0, test_to_train: float = 0.0
) -> float:
    """Return half the length that the interval of so many seeds has if their differences scatter as these, >= 0.

    Args:
        differences: At least two.
        count: Seeds, at least two.
        error: See `paired_difference`; so are the others.
        resolution: Step of the scale.
        test_to_train: n_test / n_train.
    """
    from scipy.special import stdtrit  # not before: the command line starts without it

    if error <= 0:
        return math.inf
    deviation = max(float(np.std(differences, ddof=1)), resolution / math.sqrt(6))
    return float(-stdtrit(count - 1, error / 2)) * deviation * math.sqrt(1 / count + test_to_train)
