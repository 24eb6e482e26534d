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

How often a confirmation looks at its seeds, and how much error each look may cost.

Seeds are trained in batches, and whoever looks after each batch and stops when an ordinary t test is significant finds
a difference that is not there far more often than in 5 % of all studies. Here the 5 % are spent over the looks by the
O'Brien-Fleming-like function of Lan and DeMets (Discrete sequential boundaries for clinical trials, Biometrika 70,
1983): up to the share t of the largest number of seeds,

    α(t) = 2 − 2 Φ(z(1 − α/2) / √t),

so that early looks decide only what is overwhelming, and the last look costs little for the earlier ones. Look k's
interval is the t interval of error α(t_k) − α(t_{k−1}). All of a study's intervals hold together with probability
1 − α at least (repeated confidence intervals: Jennison and Turnbull, JRSS B 51, 1989), so it may stop at any look, for
any reason.

Deviation: the boundaries are not those of the joint distribution of the looks, which for small t statistics has no
closed form, but add up the errors (Bonferroni's inequality). That is exact for any number of seeds, whatever the
correlation of the looks, and somewhat conservative. For the same reason, the error of a look is divided by the number
of challengers where they are compared with FedAvg, and by the number of their pairs where they are compared with each
other. What holds for all of them holds for the one that is picked.

With a single look and a single challenger this is the 95 % interval of `intervals.py`. A comparison with a baseline
allows for the choice of the challengers among all configurations that the search tried.

**Giving up.** The interval for new data does not shrink to nothing, so a difference may be too small for any number of
seeds. A look gives up if, with the standard deviation seen so far, no mean inside the 95 % interval for another run
here would leave zero outside the last look's interval. That finds nothing that is not there: it only says "no
difference" sooner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

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


NEW_DATA = "for new data from these clients"
"""What the wider interval is for where seeds test on other rows each."""

FEWEST_SEEDS = 2
"""A single difference has no interval."""

FEWEST_TO_GIVE_UP = 4
"""A standard deviation of fewer differences says too little of the others."""


def spent_error(share: float, error: float = ERROR) -> float:
    """Return the error that may be spent up to a share of the seeds, in `[0, 1]`."""
    if share <= 0 or share >= 1:
        return error if share >= 1 else 0.0
    from scipy.special import ndtr, ndtri  # not before: the command line starts without it

    return float(2 * ndtr(ndtri(error / 2) / math.sqrt(share)))


class SequentialDesign(BaseModel):
    """The plan of a confirmation, fixed before its first trial.

    Attributes:
        max_seeds: Seeds of a challenger at most.
        batch: Seeds between looks; None looks once, at the end.
        num_challengers: Configurations that are compared with FedAvg.
        num_tried: Configurations of the search, of which these are the best.
        resolution: Step of the scores' scale, see `fedscout.search.confirmation.intervals`.
        test_to_train: Test rows of a split over its training rows, likewise.
        span: The largest difference that there can be, likewise; None where that is not known.
        same_rows: Whether all seeds test on the same rows, so that neither interval is for new data.
    """

    model_config = ConfigDict(frozen=True)

    max_seeds: int = Field(ge=0)
    batch: int | None = Field(default=None, ge=1)
    num_challengers: int = Field(default=1, ge=1)
    num_tried: int = Field(default=1, ge=1)
    resolution: float = Field(default=0.0, ge=0)
    test_to_train: float = Field(default=0.0, ge=0)
    span: float | None = Field(default=None, gt=0)
    same_rows: bool = False

    @property
    def wider_is(self) -> str:
        """What the wider interval is for, in words; the narrower one is for another run here."""
        return "widened as for new data, for which it is too short" if self.same_rows else NEW_DATA

    @property
    def looks(self) -> tuple[int, ...]:
        """Numbers of seeds, ascending, after which it is decided whether to go on."""
        if self.batch is None:
            return (self.max_seeds,) if self.max_seeds else ()
        inner = range(self.batch, self.max_seeds, self.batch)
        return (*(count for count in inner if count >= FEWEST_SEEDS), *((self.max_seeds,) if self.max_seeds else ()))

    def error_at(self, num_seeds: int) -> float:
        """Return the error that the look after so many seeds may cost, for all its comparisons together."""
        looks = self.looks
        place = looks.index(num_seeds)
        before = looks[place - 1] if place else 0
        return spent_error(num_seeds / self.max_seeds) - spent_error(before / self.max_seeds)

    def against_baseline(self, challenger: Sequence[float], baseline: Sequence[float]) -> PairedDifference:
        """Compare a challenger with a baseline, on the seeds that the challenger has."""
        error = self.error_at(len(challenger)) / self.num_challengers
        return self._compared(challenger, baseline[: len(challenger)], error, self.num_tried)

    def against_challenger(self, leader: Sequence[float], other: Sequence[float]) -> PairedDifference:
        """Compare two challengers, on the seeds that both have; the second may have been dropped earlier."""
        num_pairs = max(1, self.num_challengers * (self.num_challengers - 1) // 2)
        error = self.error_at(len(other)) / num_pairs
        return self._compared(leader[: len(other)], other, error)

    def hopeless(self, challenger: Sequence[float], baseline: Sequence[float]) -> bool:
        """Return whether the last look would hardly tell the two apart either."""
        count = len(challenger)
        if count < FEWEST_TO_GIVE_UP or count >= self.max_seeds:
            return False
        error = self.error_at(self.max_seeds) / self.num_challengers
        here = paired_difference(challenger, baseline[:count], resolution=self.resolution)
        if here.low is None or here.high is None:  # equal differences on a scale whose step is not known
            return False
        above, below = (
            half_width(here.differences, self.max_seeds, error, self.resolution, self.test_to_train, num_tried)
            for num_tried in (1, self.num_tried)
        )
        return -above < here.low and here.high < below

    def _compared(
        self, ours: Sequence[float], others: Sequence[float], error: float, num_tried: int = 1
    ) -> PairedDifference:
        return paired_difference(ours, others, error, self.resolution, self.test_to_train, self.span, num_tried)
