"""FedEx: the clients' settings are tuned while the one model is trained.

There are k configurations of local training, c_1 … c_k, and a distribution θ over them. In each round client i draws
one by θ, c_i, trains by it and measures what it has trained on its n_i validation rows: L_i is the share that it gets
wrong. The server averages the models as FedAvg does, whatever they were trained by, and moves θ by a step of
exponentiated gradient (Khodak et al. 2021, Algorithm 2):

    ∇_j = Σ n_i (L_i − λ) 1[c_i = j] / (θ_j Σ n_i)        θ_j ← θ_j exp(−η ∇_j), divided by their sum

λ, the baseline, is the mean of Σ n_i L_i / Σ n_i over the rounds before, of which each counts `baseline_discount` times
as much as the one after it: 0 is the last one alone, 1 all alike. With η_0 = √(2 log k) and G = max |∇_j|

    aggressive: η = η_0 / G        adaptive: η = η_0 / √(Σ G² over the rounds so far)        constant: η = η_0

c_1 is the study's own setting. The others lie evenly around it on a logarithmic scale, by the additive recurrence
frac(½ + j / φ^d), φ⁴ = φ + 1, in three directions d: step size, epochs, batch size.

What a client draws follows from (seed, round, client) and θ, which is all that is sent beside the model. What comes
back are sums for each configuration: the server learns of none who drew it, unless only one did.

Deviations: the configurations lie evenly where the paper draws them at random; the search around it, of settings of the
server over several such trainings, is left out, and so are personal models: the global one counts. The first round's
baseline is that round's own mean, as there is none before; the authors' program takes 0, by which whatever was drawn
first looks bad. It also stops at a small entropy of θ; here θ moves to the end. A client whose training diverges sends
the received model back and counts as wrong on all its rows: the configuration loses weight, and the trial goes on.

Reference:
    Khodak, Tu, Li, Li, Balcan, Smith, Talwalkar: Federated hyperparameter tuning: challenges, baselines, and
        connections to weight-sharing. NeurIPS 2021. arXiv:2106.04502
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import log, sqrt
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from pydantic import Field

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.client_algorithm import ClientAlgorithm, Finished, LocalFacts, LocalRun, Validation
from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.contracts.trial_strategy import Cohort, EngineNeeds
from fedscout.engine.messages.exact_mean import ExactScale
from fedscout.strategies.aggregation.mean_rule import DoubleArray, MeanRule, RoundMeans
from fedscout.strategies.methods.averaging import MeanSpec
from fedscout.strategies.ranges import IntegerRange
from fedscout.strategies.specification import Searched, node_counts, without_classes

WEIGHTS, DIVERGED = "configuration-weights", "num-diverged"
SPREAD = 1.2207440846057596
"""φ, the positive root of φ⁴ = φ + 1: multiples of its inverse powers fill a cube evenly."""

Schedule = Literal["aggressive", "adaptive", "constant"]


class FedExSpec(MeanSpec):
    """FedEx: each client trains by a drawn configuration, and those that validate well are drawn more often."""

    paper: ClassVar[str] = "Khodak et al. 2021, arXiv:2106.04502"

    kind: Literal["fedex"] = "fedex"
    num_configurations: Annotated[
        int,
        Field(ge=1, le=100, description="k, configurations of the clients; 1 is FedAvg"),
        Searched(IntegerRange(2, 16)),
    ] = 9
    rate_factor: Annotated[
        float, Field(ge=1, le=1e4, description="step sizes are the study's times 1/factor … factor")
    ] = 4.0
    epochs_factor: Annotated[float, Field(ge=1, le=100, description="likewise local epochs, at least 1")] = 3.0
    batch_factor: Annotated[float, Field(ge=1, le=100, description="likewise rows of a step, at least 1")] = 2.0
    schedule: Annotated[Schedule, Field(description="how η, the step along ∇, is scaled")] = "aggressive"
    baseline_discount: Annotated[
        float, Field(ge=0, le=1, description="how a round's weight in the baseline λ shrinks with each further one")
    ] = 0.5
    validation_share: Annotated[
        float,
        Field(gt=0, lt=1, description="share of the training rows that clients validate on, if the study has none"),
    ] = 0.1

    def needs(self) -> EngineNeeds:
        """Return what the engine must provide: one mean, and rows to validate on."""
        return replace(super().needs(), validation_share=self.validation_share)

    @classmethod
    def unavailable(cls, cohort: Cohort) -> str | None:
        """Return why it can't be: no share of rows is wrong without classes, and a table lets clients tell none."""
        if cohort.own_settings:
            return "fedex must be the only one that chooses clients' rates and epochs, got client_settings.kind=table"
        return without_classes(cohort, "fedex")

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client's half."""
        return DrawnTraining(self.configurations())

    def configurations(self) -> tuple[Configuration, ...]:
        """Return c_1 … c_k."""
        factors = np.array([self.rate_factor, self.epochs_factor, self.batch_factor])
        steps = np.arange(self.num_configurations)[:, None] / SPREAD ** np.arange(1, 4)
        return tuple(Configuration(*row) for row in (factors ** (2 * ((0.5 + steps) % 1) - 1)).tolist())

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        return FedEx(
            self.configurations(),
            self.schedule,
            self.baseline_discount,
            **node_counts(cohort),
            weighted_by_key=self.weighted_by,
        )


@dataclass(frozen=True)
class Configuration:
    """How much more of each a client takes than the study says, each > 0."""

    rate: float = 1.0
    epochs: float = 1.0
    batch: float = 1.0

    def of(self, training: LocalTraining) -> LocalTraining:
        """Return local training by it."""
        changes = {
            "learning_rate": training.learning_rate * self.rate,
            "local_epochs": max(1, round(training.local_epochs * self.epochs)),
            "batch_size": max(1, round(training.batch_size * self.batch)),
        }
        return training.model_copy(update=changes)


def names_of(configuration: int) -> tuple[str, str]:
    """Return the names of the sums of a configuration's validation rows: those that are wrong, and all."""
    return f"wrong-{configuration}", f"validated-{configuration}"


@dataclass(frozen=True)
class DrawnTraining(ClientAlgorithm):
    """The client's half.

    Attributes:
        configurations: c_1 … c_k.
    """

    validates: ClassVar[bool] = True

    configurations: tuple[Configuration, ...]

    def drawn(self, facts: LocalFacts) -> int:
        """Return which configuration is the client's in this round."""
        weights = facts.companions[WEIGHTS].double().numpy()
        return int(facts.generator.choice(len(weights), p=weights / weights.sum()))

    def settings(self, facts: LocalFacts) -> LocalTraining:
        """Return how a client trains: by what it draws."""
        return self.configurations[self.drawn(facts)].of(facts.training)

    def train(self, run: LocalRun) -> Finished:
        """Descend; what can't enter a mean is not sent."""
        import torch

        trained = run.descend(run.received)
        fits = torch.from_numpy(ExactScale.of(run.received.numpy(), 1).holds(trained.vectors.numpy()))
        vectors = torch.where(fits[:, None], trained.vectors, run.received)
        return Finished(trained, vectors, sums={DIVERGED: (~fits).double()})

    def validated(self, facts: LocalFacts, validation: Validation) -> Mapping[str, float]:
        """Return the validation rows of each configuration, none of those that are not the client's."""
        num_rows, mine = validation.num_examples, self.drawn(facts)
        num_wrong = num_rows if validation.sums[DIVERGED] else num_rows - validation.num_correct
        sums = {}
        for each in range(len(self.configurations)):
            wrong, rows = names_of(each)
            sums[wrong], sums[rows] = (float(num_wrong), float(num_rows)) if each == mine else (0.0, 0.0)
        return sums


class FedEx(MeanRule):
    """The server's half.

    Args:
        configurations: c_1 … c_k.
        schedule: Of η.
        discount: Of the baseline.
        arguments: FedAvg's.

    Attributes:
        weights: θ, shape `(k,)`.
    """

    def __init__(
        self, configurations: tuple[Configuration, ...], schedule: Schedule, discount: float, **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self.configurations = configurations
        self.schedule = schedule
        self.discount = discount
        self.weights = np.full(len(configurations), 1 / len(configurations))
        self.squared_norms = 0.0
        self.loss_sum = self.loss_weight = 0.0
        self.num_diverged = 0
        self.training: dict[str, Any] = {}

    def companions(self) -> Mapping[str, FloatArray]:
        """Send θ, as it is drawn by."""
        return {WEIGHTS: self.weights.astype(np.float32)}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return FedAvg's messages with θ beside the model."""
        self.training = LocalTraining.from_config(config).model_dump()
        return super().configure_train(server_round, arrays, config, grid)

    def step(self, means: RoundMeans) -> DoubleArray:
        """Move θ; the new model is the mean."""
        names = [names_of(each) for each in range(len(self.weights))]
        wrong, rows = np.array([[means.sums[name] for name in pair] for pair in names], np.float64).T
        self.num_diverged += int(means.sums[DIVERGED])
        if rows.sum():
            self.move(wrong, rows)
        return means.model

    def move(self, wrong: DoubleArray, rows: DoubleArray) -> None:
        """Take one step of exponentiated gradient.

        Args:
            wrong: Σ n_i L_i of each configuration, shape `(k,)`.
            rows: Σ n_i of each, with a positive sum.
        """
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

    def trial_notes(self) -> list[str]:
        """Return which configuration is best, and how often clients diverged."""
        best = int(np.argmax(self.weights))
        found = self.configurations[best].of(LocalTraining(**self.training))
        notes = [
            f"of {len(self.weights)} configurations {best + 1} has most weight, {self.weights[best]:.2f}: "
            f"learning rate {found.learning_rate:.3g}, local epochs {found.local_epochs}, batches of {found.batch_size}"
        ]
        if not self.loss_weight:
            notes.append("no client had validation rows enough, so all configurations kept their weights")
        if self.num_diverged:
            notes.append(f"{self.num_diverged} trainings of clients diverged, and gave no model")
        return notes
