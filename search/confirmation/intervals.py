"""Confidence intervals for paired differences over seeds, and a group sequential design over looks.

**Two intervals.** A seed splits the same rows again, and trains and tests on them. Given the rows, seeds are
independent, so Student's t interval of their differences, with variance S²/s, covers the mean over all seeds *of these
rows*: what another run here would show. It vanishes as the number of seeds s grows. For *new data from these clients*
it is too short, as all seeds share their rows. Nadeau and Bengio (Inference for the generalization error, Machine
Learning 52, 2003, section 5) estimate the correlation of two seeds' differences as ρ = n_test / (n_test + n_train),
which gives the variance

    (1/s + r) S²,  r = n_test/n_train                                         their eq. 9

with s − 1 degrees of freedom. That interval is wider and does not vanish: no number of seeds adds information beyond
the rows. `low` and `high` are its ends, and verdicts are based on it.

**Selection among candidates.** The search picked the candidate as the best of m on the same rows, so its differences on
fresh seeds are biased upwards. In the model above a seed's difference is C + e, with C of variance r common to all
seeds, including the search's, and e of variance 1. The error of the picked candidate in the search is at most the
maximum of m errors. Given that it is √(1 + r) Z, with Z the maximum of m independent standard normal variables, the t
statistic of the fresh seeds is

    T = (a Z + √(1 − a²) N) / S,  a = r / √((1 + r)(1/s + r)),

with N standard normal and (s − 1) S² of χ² with s − 1 degrees of freedom. The lower end uses the quantile of T instead
of Student's, so that "better" is wrong with at most the nominal probability, whatever the candidates' true differences
and the order of their proposal. Candidates compared with one reference have positively correlated errors, whose maximum
is smaller than that of independent ones (Slepian, Bell System Technical Journal 41, 1962), so the end is conservative.
With m = 1 or r = 0, T is Student's t. The upper end and the interval for another run here, whose seeds are independent
of the search's given the rows, need no correction.

**Resolution.** A standard deviation near zero means that the scale is too coarse, not that the difference is exact:
with a few test rows, two seeds easily give equal differences. A score on a scale of steps r has a standard uncertainty
of r/√12, a difference of two scores r/√6 (Guide to the Expression of Uncertainty in Measurement, JCGM 100:2008,
F.2.2.1). This is a lower bound on the standard deviation, with one test row as the step. If all values are equal and
the step is unknown, there is no interval. Intervals are clipped to the range of the measure, which keeps their
coverage.

**Sequential looks.** Seeds are trained in batches, and stopping as soon as an ordinary t test is significant would give
far more false positives than 5 %. Here the 5 % are spent over the looks by the O'Brien-Fleming-like function of Lan and
DeMets (Discrete sequential boundaries for clinical trials, Biometrika 70, 1983): up to the share t of the largest
number of seeds,

    α(t) = 2 − 2 Φ(z(1 − α/2) / √t),

so that early looks decide only extreme differences, and the last look pays little for the earlier ones. Look k's
interval is the t interval of error α(t_k) − α(t_{k−1}). All of a study's intervals hold simultaneously with probability
at least 1 − α (repeated confidence intervals: Jennison and Turnbull, JRSS B 51, 1989), so it may stop at any look, for
any reason.

Deviation: the boundaries are not those of the joint distribution of the looks, which for small samples has no closed
form, but add up the errors (Bonferroni's inequality). That is valid for any number of seeds and any correlation of the
looks, and somewhat conservative. Likewise the error of a look is divided by the number of challengers for comparisons
with FedAvg, and by the number of their pairs for comparisons between them. What holds for all of them holds for the
picked one. With a single look and a single challenger this is the ordinary 95 % interval. Comparisons with a baseline
correct for the selection of the challengers among all configurations of the search.

**Futility.** The interval for new data does not vanish, so a difference may be too small for any number of seeds. A
look stops for futility if, with the observed standard deviation, no mean inside the 95 % interval for another run here
would exclude zero from the last look's interval. This causes no false positives: it only reports "no difference"
earlier.

**Power.** If the true difference is δ and the standard deviation of a seed's difference σ, the t statistic of s seeds
has a noncentral t distribution with s − 1 degrees of freedom and noncentrality δ / (σ √(1/s + n_test/n_train)). The
seeds that decide are the fewest for which it exceeds the critical value with a probability of 80 %. σ is estimated from
the seeds at hand, so with two or three of them the number is rough.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from pydantic import BaseModel, Field

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
        validation_fraction: Share of the other rows that do not train, in `[0, 1)`.
    """
    return test_fraction / ((1 - test_fraction) * (1 - validation_fraction))


class PairedDifference(BaseModel, frozen=True):
    """Winner minus baseline over paired seeds.

    Attributes:
        mean: Mean difference of the scores.
        low: Lower end of the interval for new data; None with a single pair, if the allowed error is too small for an
            interval, or if all differences are equal on a scale of unknown step.
        high: Upper end.
        here_low: Lower end of the interval for another run on these rows; None if `low` is.
        here_high: Upper end.
        differences: One per seed.
    """

    mean: float
    low: float | None
    high: float | None
    here_low: float | None = None
    here_high: float | None = None
    differences: tuple[float, ...]

    @property
    def verdict(self) -> int:
        """1: significantly better; -1: significantly worse; 0: neither, or no interval."""
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
        ours: One score per seed.
        baseline: Scores of the same seeds in the same order, at least one.
        error: Chance that an interval misses the true difference, in `[0, 1)`; 0.05 gives 95 % intervals.
        resolution: Step of the scale, such as one test row's share; 0 if unknown.
        test_to_train: n_test / n_train; 0 if seeds share no rows, so that both intervals are equal.
        span: The largest possible difference; None if unknown.
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
        values: One score per seed.
        resolution: Step of the scale.
        test_to_train: n_test / n_train.
        bounds: The smallest and the largest possible score.
    """
    scores = np.asarray(values, dtype=np.float64).tolist()
    return _with_ends(scores, resolution / math.sqrt(12), ERROR, test_to_train, bounds)


def _with_ends(
    values: list[float], uncertainty: float, error: float, test_to_train: float, bounds: Bounds, num_tried: int = 1
) -> PairedDifference:
    """Return the mean of values with its intervals; `uncertainty` is that of one value on its scale."""
    count, mean = len(values), float(np.mean(values))
    result = PairedDifference(mean=mean, low=None, high=None, differences=tuple(values))
    deviation = max(float(np.std(values, ddof=1)), uncertainty) if count > 1 else 0.0
    if deviation <= _rounding(values):
        return result
    below = deviation * critical_value(count, error, test_to_train, num_tried) * math.sqrt(1 / count + test_to_train)
    above = deviation * critical_value(count, error) * math.sqrt(1 / count + test_to_train)
    here = deviation * critical_value(count, error) * math.sqrt(1 / count)
    least, most = bounds
    if math.isinf(above) and bounds == UNBOUNDED:
        return result
    ends = {"low": mean - below, "high": mean + above, "here_low": mean - here, "here_high": mean + here}
    return result.model_copy(update={name: min(max(end, least), most) for name, end in ends.items()})


def _rounding(values: Sequence[float]) -> float:
    """Return the largest spread of mathematically equal values due to rounding."""
    return 8 * float(np.finfo(np.float64).eps) * max(1.0, *map(abs, values), 0.0)


@lru_cache(maxsize=1024)
def critical_value(count: int, error: float, test_to_train: float = 0.0, num_tried: int = 1) -> float:
    """Return the value that the t statistic exceeds with probability `error` / 2 under the null hypothesis, > 0.

    Args:
        count: Number of seeds, at least two.
        error: Of a two-sided interval, in `[0, 1)`; the value is infinite for 0.
        test_to_train: n_test / n_train.
        num_tried: Candidates of which it is the best on these rows; 1 gives Student's quantile.
    """
    from scipy.special import stdtrit  # not before: the command line starts without it

    if error <= 0:
        return math.inf
    student_quantile = float(-stdtrit(count - 1, error / 2))
    if num_tried <= 1 or test_to_train <= 0:
        return student_quantile
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

    return float(brentq(excess, 0.9 * student_quantile, bonferroni + 1e-6))


POWER = 0.8
"""Chance that the seeds that decide show a difference."""
MOST_SEEDS = 1000


def deviation_of(differences: Sequence[float], resolution: float) -> float:
    """Return the standard deviation of at least two differences of scores on a scale of steps `resolution`."""
    return max(float(np.std(differences, ddof=1)), resolution / math.sqrt(6))


def seeds_to_decide(effect: float, deviation: float, test_to_train: float = 0.0) -> int | None:
    """Return the fewest seeds whose interval excludes zero with probability `POWER`.

    Args:
        effect: The true difference.
        deviation: Standard deviation of a seed's difference, > 0.
        test_to_train: n_test / n_train.

    Returns:
        At most `MOST_SEEDS`; None if these are too few.
    """
    from scipy.special import nctdtr

    def power(count: int) -> float:
        noncentrality = abs(effect) / deviation / math.sqrt(1 / count + test_to_train)
        missed = nctdtr(count - 1, noncentrality, critical_value(count, ERROR))
        return 1.0 - float(np.nan_to_num(missed))  # SciPy gives no number where it is below 1e-16

    numbers = range(2, MOST_SEEDS + 1)
    position = bisect_left(numbers, POWER, key=power)
    return numbers[position] if position < len(numbers) else None


NEW_DATA = "for new data from these clients"
"""What the wider interval is for if each seed tests on different rows."""

FEWEST_TO_GIVE_UP = 4
"""A standard deviation of fewer differences predicts the others poorly."""


def spent_error(share: float) -> float:
    """Return the cumulative error that may be spent up to a share of the seeds, in `(0, 1]`."""
    if share == 1:
        return ERROR
    from scipy.special import ndtr, ndtri  # not before: the command line starts without it

    return float(2 * ndtr(ndtri(ERROR / 2) / math.sqrt(share)))


class SequentialDesign(BaseModel, frozen=True):
    """Group sequential design of a confirmation, fixed before its first trial.

    Attributes:
        max_seeds: Largest number of seeds of a challenger.
        batch: Seeds between looks; None looks once, at the end.
        num_challengers: Configurations compared with FedAvg.
        num_tried: Configurations of the search, of which these are the best.
        resolution: Step of the scores' scale, see `fedscout.search.confirmation.intervals`.
        test_to_train: n_test / n_train of a split, see there.
        span: The largest possible difference; None if unknown.
        same_rows: Whether all seeds test on the same rows, so that neither interval is for new data.
    """

    max_seeds: int = Field(ge=1)
    batch: int | None = Field(default=None, ge=1)
    num_challengers: int = Field(default=1, ge=1)
    num_tried: int = Field(default=1, ge=1)
    resolution: float = Field(default=0.0, ge=0)
    test_to_train: float = Field(default=0.0, ge=0)
    span: float | None = Field(default=None, gt=0)
    same_rows: bool = False

    @property
    def wider_is(self) -> str:
        """Description of the wider interval; the narrower one is for another run here."""
        return "for new data, for which it is too short" if self.same_rows else NEW_DATA

    @property
    def looks(self) -> tuple[int, ...]:
        """Numbers of seeds, ascending, after which the comparison is assessed."""
        inner = range(self.batch, self.max_seeds, self.batch) if self.batch else ()
        return (*(count for count in inner if count > 1), self.max_seeds)  # a single difference has no interval

    def error_at(self, num_seeds: int) -> float:
        """Return the error of the look after `num_seeds` seeds, for all its comparisons together."""
        spent = [0.0, *(spent_error(look / self.max_seeds) for look in self.looks if look <= num_seeds)]
        return spent[-1] - spent[-2]

    def against_baseline(self, challenger: Sequence[float], baseline: Sequence[float]) -> PairedDifference:
        """Compare a challenger with a baseline, on the challenger's seeds."""
        error = self.error_at(len(challenger)) / self.num_challengers
        return self._paired_difference(challenger, baseline[: len(challenger)], error, self.num_tried)

    def against_challenger(self, leader: Sequence[float], other: Sequence[float]) -> PairedDifference:
        """Compare two challengers on their common seeds; the second may have been dropped earlier."""
        num_pairs = max(1, self.num_challengers * (self.num_challengers - 1) // 2)
        error = self.error_at(len(other)) / num_pairs
        return self._paired_difference(leader[: len(other)], other, error)

    def is_futile(self, challenger: Sequence[float], baseline: Sequence[float]) -> bool:
        """Return whether the comparison is futile: the last look would hardly separate the two."""
        count = len(challenger)
        if count < FEWEST_TO_GIVE_UP or count >= self.max_seeds:
            return False
        error = self.error_at(self.max_seeds) / self.num_challengers
        difference = paired_difference(challenger, baseline[:count], resolution=self.resolution)
        if difference.low is None or difference.high is None:  # equal differences on a scale whose step is not known
            return False
        deviation = deviation_of(difference.differences, self.resolution)
        scale = deviation * math.sqrt(1 / self.max_seeds + self.test_to_train)
        above, below = (
            scale * critical_value(self.max_seeds, error, self.test_to_train, tried) for tried in (1, self.num_tried)
        )
        return -above < difference.low and difference.high < below

    def _paired_difference(
        self, ours: Sequence[float], others: Sequence[float], error: float, num_tried: int = 1
    ) -> PairedDifference:
        return paired_difference(ours, others, error, self.resolution, self.test_to_train, self.span, num_tried)
