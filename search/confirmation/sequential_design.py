"""How often a confirmation looks at its seeds, and how much error each look may cost.

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

from pydantic import BaseModel, ConfigDict, Field

from fedscout.search.confirmation.intervals import ERROR, PairedDifference, half_width, paired_difference

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
    span: float | None = Field(default=None, gt=0, exclude_if=lambda span: span is None)
    same_rows: bool = Field(default=False, exclude_if=lambda same_rows: not same_rows)

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
