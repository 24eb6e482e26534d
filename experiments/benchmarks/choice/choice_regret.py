"""How much a choice lost: regrets against an oracle, and their means with bootstrap intervals.

All accuracies are means over fresh seeds that neither choosers nor the oracle chose by, so a good one is as unlikely to
be luck for the oracle as for a pick, and a regret may be negative where a pick beats the oracle's grid.

    R_w = (oracle − pick) / (oracle − worst)      what of the range between best and worst was lost
    R_f = (oracle − pick) / (oracle − FedAvg)     what of the possible gain on FedAvg was lost;
                                                  only where that gain is at least 0.02
    R_t = (oracle − pick) / (oracle − tuned)      what of the gain on FedAvg at its best client rate was lost; only
                                                  where that is at least 0.01 and more than twice its standard error

Means are over federations of the mean over search seeds. Intervals are percentiles of bootstrap means: federations are
drawn with replacement, and of each its search seeds (Davison and Hinkley, Bootstrap Methods and their Application,
1997, section 3.8). They tell what other federations of the kind and other seeds would have given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from pydantic import BaseModel

from fedscout.engine.seeds import stream
from fedscout.search.confirmation.intervals import PairedDifference, paired_difference
from fedscout.search.measure import ACCURACY

SMALLEST_GAIN = 0.02
SMALLEST_TUNED_GAIN = 0.01
NUM_RESAMPLES = 4000


class TunedGain(BaseModel, frozen=True):
    """What the oracle gains on tuned FedAvg: what a step size does not give.

    Attributes:
        mean: Over the seeds that judge.
        standard_error: Of that mean.
    """

    mean: float
    standard_error: float

    @classmethod
    def of(cls, oracle: Sequence[float], tuned: Sequence[float]) -> TunedGain:
        """Return the gain by accuracies on the same seeds, two or more."""
        won = np.subtract(oracle, tuned)
        return cls(mean=float(won.mean()), standard_error=float(won.std(ddof=1) / np.sqrt(len(won))))

    @property
    def is_to_win(self) -> bool:
        """Whether anything beats tuned FedAvg by a point or more, beyond noise."""
        return self.mean >= SMALLEST_TUNED_GAIN and self.mean > 2 * self.standard_error

    def regret(self, lost: float) -> float | None:
        """Return R_t of a pick so far below the oracle; None where there is nothing to win."""
        return lost / self.mean if self.is_to_win else None


def regret_fedavg(lost: float, gain: float) -> float | None:
    """Return R_f of a pick so far below an oracle of such a gain on FedAvg; None where that is hardly any."""
    return lost / gain if gain >= SMALLEST_GAIN else None


class Level(BaseModel, frozen=True):
    """What there is to win on one federation, on the fresh seeds.

    Attributes:
        oracle: Mean accuracy of the best configuration of the dense grid, as chosen on other seeds.
        worst: Of the worst.
        fedavg: Of FedAvg, by seed.
        beyond_tuned: What the oracle gains on tuned FedAvg.
        resolution: Step of the scores' scale.
        test_to_train: n_test / n_train of a split, as the fresh seeds split the same rows.
    """

    oracle: float
    worst: float
    fedavg: tuple[float, ...]
    beyond_tuned: TunedGain
    resolution: float
    test_to_train: float = 0.0

    @property
    def gain(self) -> float:
        """What the oracle gains on FedAvg."""
        return self.oracle - float(np.mean(self.fedavg))

    def regret_worst(self, accuracy: float) -> float | None:
        """Return R_w; None where best and worst do not differ."""
        span = self.oracle - self.worst
        return (self.oracle - accuracy) / span if span > 0 else None

    def regret_fedavg(self, accuracy: float) -> float | None:
        """Return R_f; None where there is hardly anything to gain."""
        return regret_fedavg(self.oracle - accuracy, self.gain)

    def regret_tuned(self, accuracy: float) -> float | None:
        """Return R_t; None where there is nothing to win beyond tuned FedAvg."""
        return self.beyond_tuned.regret(self.oracle - accuracy)

    def versus_fedavg(self, accuracies: Sequence[float]) -> PairedDifference:
        """Compare a pick with FedAvg, seed by seed; the interval is that for new data."""
        return paired_difference(
            accuracies,
            self.fedavg,
            resolution=self.resolution,
            test_to_train=self.test_to_train,
            span=ACCURACY.span,
        )


class Choice(BaseModel, frozen=True):
    """One choice and what it was worth.

    Attributes:
        cost: Of choosing, in full trainings.
        archive: Full trainings elsewhere on which it rests (`choice_archives`).
        accuracy: Mean on the fresh seeds.
        regret_worst: R_w; None where it is not defined.
        regret_fedavg: R_f, likewise.
        regret_tuned: R_t, likewise.
        difference: To FedAvg on the fresh seeds, mean, with the ends of its 95 % interval; None where there is none.
    """

    federation: str
    chooser: str
    seed: int
    pick: str
    cost: float
    archive: float
    accuracy: float
    regret_worst: float | None
    regret_fedavg: float | None
    regret_tuned: float | None
    difference: float
    difference_low: float | None
    difference_high: float | None

    @property
    def is_worse(self) -> bool:
        """Whether the pick is worse than FedAvg beyond noise."""
        return self.difference_high is not None and self.difference_high < 0


class BootstrapMean(BaseModel, frozen=True):
    """A mean over so many federations' means, with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float
    federations: int


class Summary(BaseModel, frozen=True):
    """One chooser over all federations.

    Attributes:
        cost: Mean, in full trainings.
        archive: Mean of the full trainings elsewhere on which its choices rest.
        regret_worst: R_w; None if it is nowhere defined.
        regret_fedavg: R_f, likewise.
        regret_tuned: R_t, likewise.
        num_worse: Picks that are worse than FedAvg beyond noise; by chance 1 in 40 of those that are as good.
    """

    chooser: str
    cost: float
    archive: float
    regret_worst: BootstrapMean | None
    regret_fedavg: BootstrapMean | None
    regret_tuned: BootstrapMean | None
    num_choices: int
    num_worse: int


def bootstrap_mean(groups: Mapping[str, Sequence[float]], seed: int = 0) -> BootstrapMean | None:
    """Return the mean over federations of the mean over their search seeds; None if no federation has a value."""
    values = [np.asarray(group, dtype=np.float64) for group in groups.values() if len(group)]
    if not values:
        return None
    generator = stream(seed, "bootstrap of regrets")
    totals = np.zeros(NUM_RESAMPLES)
    for _ in values:  # a federation that is drawn twice draws its seeds twice
        drawn = generator.integers(len(values), size=NUM_RESAMPLES)
        for place, group in enumerate(values):
            chosen = np.flatnonzero(drawn == place)
            totals[chosen] += group[generator.integers(len(group), size=(len(chosen), len(group)))].mean(axis=1)
    totals /= len(values)
    low, high = np.quantile(totals, [0.025, 0.975])
    mean = float(np.mean([group.mean() for group in values]))
    return BootstrapMean(mean=mean, low=float(low), high=float(high), federations=len(values))


def summarise(chooser: str, choices: Sequence[Choice]) -> Summary:
    """Return the means of a chooser that has chosen at least once, from the choices of all."""
    own = [choice for choice in choices if choice.chooser == chooser]

    def mean(of: Callable[[Choice], float | None]) -> BootstrapMean | None:
        groups: dict[str, list[float]] = {}
        for choice in own:
            if (value := of(choice)) is not None:
                groups.setdefault(choice.federation, []).append(value)
        return bootstrap_mean(groups)

    return Summary(
        chooser=chooser,
        cost=float(np.mean([choice.cost for choice in own])),
        archive=float(np.mean([choice.archive for choice in own])),
        regret_worst=mean(lambda choice: choice.regret_worst),
        regret_fedavg=mean(lambda choice: choice.regret_fedavg),
        regret_tuned=mean(lambda choice: choice.regret_tuned),
        num_choices=len(own),
        num_worse=sum(choice.is_worse for choice in own),
    )
