"""FedEx: the clients' settings are tuned while the one model is trained.

Of the k configurations of `drawn_training.py` a client draws by a distribution θ, and the server moves θ by a step of
exponentiated gradient (Khodak et al. 2021, Algorithm 2):

    ∇_j = Σ n_i (L_i − λ) 1[c_i = j] / (θ_j Σ n_i)        θ_j ← θ_j exp(−η ∇_j), divided by their sum

λ, the baseline, is the mean of Σ n_i L_i / Σ n_i over the rounds before, of which each counts `baseline_discount` times
as much as the one after it: 0 is the last one alone, 1 all alike. With η_0 = √(2 log k) and G = max |∇_j|

    aggressive: η = η_0 / G        adaptive: η = η_0 / √(Σ G² over the rounds so far)        constant: η = η_0

What a client draws follows from (seed, round, client) and θ, which is all that is sent beside the model.

Deviations: the configurations lie evenly where the paper draws them at random; the search around it, of settings of the
server over several such trainings, is left out, and so are personal models: the global one counts. The first round's
baseline is that round's own mean, as there is none before; the authors' program takes 0, by which whatever was drawn
first looks bad. It also stops at a small entropy of θ; here θ moves to the end. What diverges counts as wrong.

Reference:
    Khodak, Tu, Li, Li, Balcan, Smith, Talwalkar: Federated hyperparameter tuning: challenges, baselines, and
        connections to weight-sharing. NeurIPS 2021. arXiv:2106.04502
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log, sqrt
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from flwr.serverapp import strategy as flower
from pydantic import Field

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.client_algorithm import ClientAlgorithm, LocalFacts
from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.strategies.aggregation.mean_rule import DoubleArray
from fedscout.strategies.methods.clients.drawn_training import (
    Configuration,
    DrawnTraining,
    DrawnTrainingRule,
    DrawnTrainingSpec,
)
from fedscout.strategies.specification import node_counts

WEIGHTS = "configuration-weights"

Schedule = Literal["aggressive", "adaptive", "constant"]


class FedExSpec(DrawnTrainingSpec):
    """FedEx: each client trains by a drawn configuration, and those that validate well are drawn more often."""

    paper: ClassVar[str] = "Khodak et al. 2021, arXiv:2106.04502"

    kind: Literal["fedex"] = "fedex"
    schedule: Annotated[Schedule, Field(description="how η, the step along ∇, is scaled")] = "aggressive"
    baseline_discount: Annotated[
        float, Field(ge=0, le=1, description="how a round's weight in the baseline λ shrinks with each further one")
    ] = 0.5

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client's half."""
        configurations = self.configurations()
        return DrawnByWeight(len(configurations), configurations)

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        return FedEx(
            self.configurations(),
            self.schedule,
            self.baseline_discount,
            **node_counts(cohort),
            weighted_by_key=self.weighted_by,
        )


@dataclass(frozen=True)
class DrawnByWeight(DrawnTraining):
    """The client's half.

    Attributes:
        configurations: c_1 … c_k.
    """

    configurations: tuple[Configuration, ...]

    def drawn(self, facts: LocalFacts) -> int:
        """Return which configuration is the client's in this round, drawn by θ."""
        weights = facts.companions[WEIGHTS].double().numpy()
        return int(facts.generator.choice(len(weights), p=weights / weights.sum()))

    def configuration(self, facts: LocalFacts) -> Configuration:
        """Return that configuration."""
        return self.configurations[self.drawn(facts)]


class FedEx(DrawnTrainingRule):
    """The server's half.

    Args:
        configurations: c_1 … c_k.
        schedule: Of η.
        discount: Of the baseline.
        arguments: FedAvg's.

    Attributes:
        weights: θ, shape `(k,)`.
    """

    unjudged = "all configurations kept their weights"

    def __init__(
        self, configurations: tuple[Configuration, ...], schedule: Schedule, discount: float, **arguments: Any
    ) -> None:
        super().__init__(len(configurations), **arguments)
        self.configurations = configurations
        self.schedule = schedule
        self.discount = discount
        self.weights = np.full(len(configurations), 1 / len(configurations))
        self.squared_norms = 0.0
        self.loss_sum = self.loss_weight = 0.0

    def companions(self) -> Mapping[str, FloatArray]:
        """Send θ, as it is drawn by."""
        return {WEIGHTS: self.weights.astype(np.float32)}

    def move(self, wrong: DoubleArray, rows: DoubleArray) -> None:
        """Take one step of exponentiated gradient; see `DrawnTrainingRule`."""
        loss = wrong.sum() / rows.sum()
        baseline = self.loss_sum / self.loss_weight if self.loss_weight else loss
        self.loss_sum = self.discount * self.loss_sum + loss
        self.loss_weight = self.discount * self.loss_weight + 1
        drawn = rows > 0
        gradient = np.zeros(len(rows))
        gradient[drawn] = (wrong - baseline * rows)[drawn] / (self.weights[drawn] * rows.sum())
        moved = np.log(np.maximum(self.weights, np.finfo(np.float32).tiny)) - self._step_size(gradient) * gradient
        weights = np.exp(moved - moved.max())
        self.weights = weights / weights.sum()

    def _step_size(self, gradient: DoubleArray) -> float:
        """Return η."""
        norm, first = float(np.abs(gradient).max()), sqrt(2 * log(len(gradient)))
        self.squared_norms += norm**2
        if self.schedule == "constant" or not norm:
            return first
        return first / (norm if self.schedule == "aggressive" else sqrt(self.squared_norms))

    def best(self) -> tuple[str, Configuration]:
        """Return the configuration that is drawn most often."""
        best = int(np.argmax(self.weights))
        return f"{best + 1} has most weight, {self.weights[best]:.2f}", self.configurations[best]
