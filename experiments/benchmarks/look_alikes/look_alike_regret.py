"""What a choice on a look-alike loses on the original, as values.

    R_t = (oracle − pick) / (oracle − tuned FedAvg)     what of the gain that a step size does not give was lost
    R_f = (oracle − pick) / (oracle − FedAvg)           the same against FedAvg as it was configured

as in `fedscout.experiments.benchmarks.choice.replay_measurement`, all accuracies being means over fresh seeds on the
original. The oracle is the best configuration of a grid over the joint space, tuned FedAvg the best of its client
rates, each chosen on other seeds. R_t is told where its denominator is at least 0.01 and more than twice its standard
error over the fresh seeds, R_f where its denominator is at least 0.02.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import BaseModel

from fedscout.experiments.benchmarks.choice.choice_regret import (
    SMALLEST_TUNED_GAIN,
    BootstrapMean,
    TunedGain,
    bootstrap_mean,
    regret_fedavg,
)


class OriginalLevel(BaseModel, frozen=True):
    """What there is to win on one original, by fresh seed.

    Attributes:
        best: The oracle's configuration.
    """

    oracle: tuple[float, ...]
    tuned: tuple[float, ...]
    fedavg: tuple[float, ...]
    best: str

    @property
    def beyond_tuned(self) -> TunedGain:
        """What the oracle gains on tuned FedAvg."""
        return TunedGain.of(self.oracle, self.tuned)

    @property
    def is_to_win(self) -> bool:
        """Whether anything beats tuned FedAvg by a point or more, beyond noise."""
        return self.beyond_tuned.is_to_win

    def regret_tuned(self, accuracy: float) -> float | None:
        """Return R_t; None where there is nothing to win."""
        return self.beyond_tuned.regret(float(np.mean(self.oracle)) - accuracy)

    def regret_fedavg(self, accuracy: float) -> float | None:
        """Return R_f; None where there is hardly anything to gain."""
        oracle, fedavg = float(np.mean(self.oracle)), float(np.mean(self.fedavg))
        return regret_fedavg(oracle - accuracy, oracle - fedavg)


class CarriedChoice(BaseModel, frozen=True):
    """One choice, and what it is worth on the original.

    Attributes:
        real: Full trainings on the original that choosing took.
        simulated: On the look-alike.
        accuracy: Mean on the fresh seeds.
        versus_tuned: Mean difference to tuned FedAvg.
    """

    federation: str
    chooser: str
    seed: int
    pick: str
    real: float
    simulated: float
    accuracy: float
    regret_tuned: float | None
    regret_fedavg: float | None
    versus_tuned: float


class Nearness(BaseModel, frozen=True):
    """How near a look-alike came: what detection says of the original, and of each look-alike by its data.

    Attributes:
        label_hellinger: Mean over pairs; of original, look-alike of the same data, of other data.
        feature_wasserstein: Likewise, in standard deviations.
        shift: Largest effect of the calibrated feature skew, likewise.
        scale: Rows over those of the original, of the look-alikes.
    """

    label_hellinger: tuple[float | None, ...]
    feature_wasserstein: tuple[float | None, ...]
    shift: tuple[float | None, ...]
    scale: tuple[float, ...]


class CarriedSummary(BaseModel, frozen=True):
    """One chooser over all federations."""

    chooser: str
    real: float
    simulated: float
    regret_tuned: BootstrapMean | None
    regret_fedavg: BootstrapMean | None
    versus_tuned: BootstrapMean | None
    num_below: int
    num_federations: int


class LookAlikeReport(BaseModel, frozen=True):
    """The whole measurement; `missing` says which federations lack their files, and why."""

    search: str
    levels: Mapping[str, OriginalLevel]
    nearness: Mapping[str, Nearness]
    choices: tuple[CarriedChoice, ...]
    summary: tuple[CarriedSummary, ...]
    missing: Mapping[str, str]
    num_search_seeds: int
    num_fresh_seeds: int


def summarise(chooser: str, choices: Sequence[CarriedChoice]) -> CarriedSummary:
    """Return the means of a chooser; a federation is below where picks are a point below tuned FedAvg on average."""
    groups: dict[str, list[CarriedChoice]] = {}
    for choice in choices:
        if choice.chooser == chooser:
            groups.setdefault(choice.federation, []).append(choice)

    def mean(name: str) -> BootstrapMean | None:
        values = {key: [getattr(each, name) for each in own] for key, own in groups.items()}
        return bootstrap_mean({key: [each for each in own if each is not None] for key, own in values.items()})

    own = [choice for group in groups.values() for choice in group]
    return CarriedSummary(
        chooser=chooser,
        real=float(np.mean([choice.real for choice in own])),
        simulated=float(np.mean([choice.simulated for choice in own])),
        regret_tuned=mean("regret_tuned"),
        regret_fedavg=mean("regret_fedavg"),
        versus_tuned=mean("versus_tuned"),
        num_below=sum(
            np.mean([each.versus_tuned for each in group]) < -SMALLEST_TUNED_GAIN for group in groups.values()
        ),
        num_federations=len(groups),
    )
