"""Effects that make labels wrong: by accident, on purpose, and on purpose beside noise on the features.

With two classes there is only one wrong label, and accident at rate 1 equals purpose. With more, an accident picks any
other class; an attacker is assumed to be consistent, y → (y + 1) mod C, as in fixed source-to-target label flipping
(V. Tolpegin, S. Truex, M. E. Gursoy and L. Liu, "Data Poisoning Attacks Against Federated Learning Systems", ESORICS
2020). That is the harder case: a client with consistent labels learns a wrong model well and pulls the average towards
it in every round, whereas uniformly wrong labels hardly have a direction. The shift is chosen over the likewise common
y → C − 1 − y because it leaves no class in place, also for odd C.

Accidents have one rate, or rates that differ between clients, drawn from a Beta distribution, as of mean a/100 for
Beta(a, 100 − a) in X. Chang et al., "FLASH: Federated Learning Across Simultaneous Heterogeneities", arXiv:2402.08769,
2024. A client's rate does not depend on who else is affected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.experiments.federations.scenarios.effect import EffectRequest, ScenarioEffect, ScenarioPlan, with_rows
from fedscout.experiments.federations.scenarios.feature_effects import FeatureNoise


@dataclass(frozen=True)
class RandomLabelFlip:
    """Gives a part of the rows another class, drawn uniformly from the wrong ones.

    Attributes:
        rate: The part of the rows, in `[0, 1]`: exactly `round(rate * num_rows)` of them, drawn without replacement.
    """

    rate: float

    def __call__(
        self, features: FloatArray, labels: IntArray, num_classes: int, generator: np.random.Generator
    ) -> tuple[FloatArray, IntArray]:
        """Return the same features and partly wrong labels."""
        rows = generator.permutation(len(labels))[: round(self.rate * len(labels))]
        flipped = labels.copy()
        flipped[rows] = (labels[rows] + generator.integers(1, num_classes, size=len(rows))) % num_classes
        return features.copy(), flipped


@dataclass(frozen=True)
class ShiftLabels:
    """Gives every row the class after its own; the last class becomes the first."""

    def __call__(
        self, features: FloatArray, labels: IntArray, num_classes: int, generator: np.random.Generator
    ) -> tuple[FloatArray, IntArray]:
        """Return the same features and wrong labels throughout."""
        return features.copy(), (labels + 1) % num_classes


class LabelFlipEffect(ScenarioEffect):
    """Wrong labels by accident, each drawn from the other classes."""

    needs_classes: ClassVar[bool] = True

    kind: Literal["label_flip"] = "label_flip"
    rate: float | None = Field(default=None, ge=0, le=1, description="part of a client's rows")
    alpha: float | None = Field(default=None, gt=0, description="with beta, in place of rate: each client's own rate")
    beta: float | None = Field(default=None, gt=0, description="of a Beta distribution of mean alpha / (alpha + beta)")

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> LabelFlipEffect:
        shape = {name: value for name, value in (("alpha", self.alpha), ("beta", self.beta)) if value is not None}
        if (self.rate is not None and shape) or (self.rate is None and len(shape) != 2):
            given = {**({} if self.rate is None else {"rate": self.rate}), **shape}
            shown = ", ".join(f"{name}={value:g}" for name, value in given.items()) or "neither"
            raise ValueError(f"must have rate, or alpha and beta for rates that differ between clients, got {shown}")
        return self

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return each client's flips."""
        sizes = request.partition.sizes
        rates = dict(zip(clients, self._rates(clients, request), strict=True))
        flipped = {client: round(rate * int(sizes[client])) for client, rate in rates.items()}
        return ScenarioPlan(
            transforms={client: (RandomLabelFlip(rate),) for client, rate in rates.items()},
            affected_clients=tuple(client for client in clients if flipped[client]),
            facts={"rates": list(rates.values()), "flipped_rows": list(flipped.values())},
        )

    def _rates(self, clients: tuple[int, ...], request: EffectRequest) -> list[float]:
        if self.alpha is None or self.beta is None:
            assert self.rate is not None
            return [self.rate] * len(clients)
        drawn = request.stream("label_flip rates").beta(self.alpha, self.beta, size=request.num_clients)
        return [float(rate) for rate in drawn[np.asarray(clients)]]


class PoisoningEffect(ScenarioEffect):
    """All labels wrong on purpose: each class becomes the next one, the last the first."""

    needs_classes: ClassVar[bool] = True

    kind: Literal["poisoning"] = "poisoning"

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the shift of all labels."""
        return ScenarioPlan(
            transforms=dict.fromkeys(clients, (ShiftLabels(),)), affected_clients=with_rows(clients, request)
        )


class CorruptedEffect(ScenarioEffect):
    """Gaussian noise on every feature, and all labels wrong as by poisoning."""

    needs_measurements: ClassVar[bool] = True

    needs_classes: ClassVar[bool] = True

    kind: Literal["corrupted"] = "corrupted"
    mean: float = Field(default=1.0, description="of the noise, in standard deviations of a feature")
    std: float = Field(default=0.5, ge=0, description="standard deviation, in the same unit")

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return noise, then the shift of all labels."""
        noise = FeatureNoise(self.mean * request.feature_unit, self.std * request.feature_unit)
        return ScenarioPlan(
            transforms=dict.fromkeys(clients, (noise, ShiftLabels())),
            affected_clients=with_rows(clients, request),
            facts={"mean": self.mean, "std": self.std, "feature_unit": request.feature_unit},
        )
