"""Mean differences of paired measurements, with two intervals: of another run on these rows, and of new data.

A seed splits the same rows anew, and trains and tests on them. Seeds are independent given the rows, so Student's t
interval of their differences, of variance S²/s, is about the mean over all seeds *of these rows*: what another run
here would show. It shrinks to nothing with the number of seeds s. Of *new data from these clients* it says too little,
as all seeds share their rows. Nadeau and Bengio (Inference for the generalization error, Machine Learning 52, 2003,
section 5) put the correlation of two seeds' differences at ρ = n_test / (n_test + n_train), which makes the variance

    (1/s + r) S²,  r = n_test/n_train                                         their eq. 9

with s − 1 degrees of freedom. That interval is the wider one, and it stays: no number of seeds says more than the rows
do. `low` and `high` are its ends, and verdicts are by it.

**The choice among candidates.** A candidate that a search picked as the best of m has been measured on the same rows
before, so its differences on fresh seeds are too large on average. In the model above a seed's difference is C + e,
with C of variance r common to all seeds, the search's included, and e of variance 1. The error of the picked
candidate in the search is at most the largest of m errors. Given that it is √(1 + r) Z, with Z the largest of m
independent standard normal variables, the t statistic of the fresh seeds is

    T = (a Z + √(1 − a²) N) / S,  a = r / √((1 + r)(1/s + r)),

with N standard normal and (s − 1) S² of χ² with s − 1 degrees of freedom. The lower end takes the quantile of T in
place of Student's, so that "better" is wrong with at most the nominal probability, whatever the candidates' true
differences and in whatever order they were proposed. Candidates that are compared with one reference have positively
correlated errors, whose largest is smaller than that of independent ones (Slepian, Bell System Technical Journal 41,
1962): the end is conservative then. With m = 1 or r = 0, T is Student's t. The upper end and the interval for another
run here, whose seeds are independent of the search's given the rows, need no correction.

**Resolution.** A standard deviation of zero, or nearly so, says that the scale is too coarse, not that the difference
is exact: with a few test rows, two seeds easily give equal differences. A score read on a scale of steps r has a
standard uncertainty of r/√12, a difference of two scores r/√6 (Guide to the Expression of Uncertainty in Measurement,
JCGM 100:2008, F.2.2.1). The standard deviation counts as at least that, with one test row as the step. Where all values
are equal and the step is not known, there is no interval.

Intervals end at the bounds of what is measured. What is cut off holds no value that there can be, so an interval holds
its truth as often as before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from pydantic import BaseModel, ConfigDict

ERROR = 0.05
"""Chance that a 95 % interval misses."""

Bounds = tuple[float, float]
UNBOUNDED: Bounds = (-math.inf, math.inf)
SMALLEST_SOLVED = 1e-8
"""One-sided errors below this take Bonferroni's bound in place of the quantile of T."""
NODES = 200
"""Of the quadrature over Z, which spans `LARGEST_Z` on either side."""
LARGEST_Z = 9.0


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
        mean: Mean difference of the scores.
        low: Lower end of the interval for new data; None with a single pair, where so little error is allowed that
            there is none, or where all differences are equal on a scale whose step is not known.
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
    num_tried: int = 1,
) -> PairedDifference:
    """Compare scores measured on the same seeds.

    Args:
        ours: One score a seed.
        baseline: The same seeds in the same order, at least one.
        error: Chance that an interval misses the true difference, in `[0, 1)`; 0.05 gives 95 % intervals.
        resolution: Step of the scale, such as one test row's share; 0 if it is not known.
        test_to_train: n_test / n_train; 0 where seeds share no rows, so that both intervals are one.
        span: The largest difference that there can be; None where that is not known.
        num_tried: Candidates, on these rows, of which `ours` was picked as the best; at least 1.
    """
    differences = (np.asarray(ours, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)).tolist()
    bounds = UNBOUNDED if span is None else (-span, span)
    return _with_ends(differences, resolution / math.sqrt(6), error, test_to_train, bounds, num_tried)


def mean_score(
    values: Sequence[float], resolution: float = 0.0, test_to_train: float = 0.0, bounds: Bounds = UNBOUNDED
) -> PairedDifference:
    """Return the mean of scores, at least one, with its 95 % intervals; see `paired_difference`.

    Args:
        values: One score a seed.
        resolution: Step of the scale.
        test_to_train: n_test / n_train.
        bounds: The smallest and the largest score that there can be.
    """
    found = np.asarray(values, dtype=np.float64).tolist()
    return _with_ends(found, resolution / math.sqrt(12), ERROR, test_to_train, bounds)


def _with_ends(
    values: list[float], uncertainty: float, error: float, test_to_train: float, bounds: Bounds, num_tried: int = 1
) -> PairedDifference:
    """Return the mean of values with its intervals; `uncertainty` is that of one value, read on its scale."""
    count, mean = len(values), float(np.mean(values))
    nothing = PairedDifference(mean=mean, low=None, high=None, differences=tuple(values))
    deviation = max(float(np.std(values, ddof=1)), uncertainty) if count > 1 else 0.0
    if deviation <= _rounding(values):
        return nothing
    below = deviation * critical_value(count, error, test_to_train, num_tried) * math.sqrt(1 / count + test_to_train)
    beyond = deviation * critical_value(count, error) * math.sqrt(1 / count + test_to_train)
    here = deviation * critical_value(count, error) * math.sqrt(1 / count)
    least, most = bounds
    if not math.isfinite(beyond) and not (math.isfinite(least) and math.isfinite(most)):
        return nothing
    ends = {"low": mean - below, "high": mean + beyond, "here_low": mean - here, "here_high": mean + here}
    return nothing.model_copy(update={name: min(max(end, least), most) for name, end in ends.items()})


def _rounding(values: Sequence[float]) -> float:
    """Return the spread that equal values have by rounding alone: differences of equal pairs may differ by as much."""
    return 8 * float(np.finfo(np.float64).eps) * max(1.0, *map(abs, values), 0.0)


def half_width(
    differences: Sequence[float],
    count: int,
    error: float,
    resolution: float = 0.0,
    test_to_train: float = 0.0,
    num_tried: int = 1,
) -> float:
    """Return how far below the mean the interval of so many seeds ends if their differences scatter as these, >= 0.

    Args:
        differences: At least two.
        count: Seeds, at least two.
        error: See `paired_difference`; so are the others.
        resolution: Step of the scale.
        test_to_train: n_test / n_train.
        num_tried: Candidates of which this is the best; 1 also gives how far above the mean it ends.
    """
    deviation = max(float(np.std(differences, ddof=1)), resolution / math.sqrt(6))
    return critical_value(count, error, test_to_train, num_tried) * deviation * math.sqrt(1 / count + test_to_train)


@lru_cache(maxsize=1024)
def critical_value(count: int, error: float, test_to_train: float = 0.0, num_tried: int = 1) -> float:
    """Return the value that the t statistic of a candidate without a true difference exceeds in half of `error`, > 0.

    Args:
        count: Seeds, at least two.
        error: Of a two-sided interval, in `[0, 1)`; the value is infinite where there is none.
        test_to_train: n_test / n_train.
        num_tried: Candidates of which it is the best on these rows; Student's quantile of 1.
    """
    from scipy.special import stdtrit  # not before: the command line starts without it

    if error <= 0:
        return math.inf
    plain = float(-stdtrit(count - 1, error / 2))
    if num_tried <= 1 or test_to_train <= 0 or not math.isfinite(plain):
        return plain
    bonferroni = float(-stdtrit(count - 1, error / 2 / num_tried))
    if error / 2 < SMALLEST_SOLVED:
        return bonferroni
    from scipy.optimize import brentq
    from scipy.special import log_ndtr, nctdtr

    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    z = LARGEST_Z * nodes
    density = np.exp((num_tried - 1) * log_ndtr(z) - z**2 / 2 + math.log(num_tried)) / math.sqrt(2 * math.pi)
    a = test_to_train / math.sqrt((1 + test_to_train) * (1 / count + test_to_train))
    b = math.sqrt(1 - a**2)

    def excess(value: float) -> float:
        beyond = nctdtr(count - 1, -a * z / b, -value / b)  # P(T > value | Z): a noncentral t, mirrored
        beyond = np.nan_to_num(beyond)  # SciPy gives no number where it is below 1e-16
        return float(LARGEST_Z * (weights * density * beyond).sum()) - error / 2

    return float(brentq(excess, 0.9 * plain, bonferroni + 1e-6))
