"""Clients that train by configurations which their validation rows judge: what FedEx and FedPop have in common.

There are k configurations of local training, c_1 … c_k. In each round client i draws one, trains by it and measures
what it has trained on its n_i validation rows: L_i is the share that it gets wrong. The server averages the models as
FedAvg does, whatever they were trained by. How a client draws, and what becomes of configurations, is the strategy's
own.

c_1 is the study's own setting. The others lie evenly around it on a logarithmic scale, by the additive recurrence
frac(½ + j / φ^d), φ⁴ = φ + 1, in three directions d: step size, epochs, batch size.

What comes back are sums for each configuration: the server learns of none who drew it, unless only one did. A client
whose training diverges sends the received model back and counts as wrong on all its rows: the configuration loses, and
the trial goes on.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import isnan
from typing import Annotated, Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from pydantic import Field

from fedscout.engine.contracts.client_algorithm import ClientAlgorithm, Finished, LocalFacts, LocalRun, Validation
from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.contracts.trial_strategy import Cohort, EngineNeeds
from fedscout.engine.messages.exact_mean import ExactScale
from fedscout.strategies.aggregation.mean_rule import DoubleArray, MeanRule, RoundMeans
from fedscout.strategies.methods.averaging import MeanSpec
from fedscout.strategies.ranges import IntegerRange
from fedscout.strategies.specification import Searched, without_classes

DIVERGED = "num-diverged"
SPREAD = 1.2207440846057596
"""φ, the positive root of φ⁴ = φ + 1: multiples of its inverse powers fill a cube evenly."""


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


class DrawnTrainingSpec(MeanSpec):
    """What the configurations are, and on which rows they are judged."""

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
        kind = cls.model_fields["kind"].default
        if cohort.own_settings:
            return f"{kind} must be the only one that chooses clients' rates and epochs, got client_settings.kind=table"
        return without_classes(cohort, kind)

    @property
    def factors(self) -> tuple[float, float, float]:
        """How far a configuration may be from the study's setting, as rate, epochs and batch."""
        return self.rate_factor, self.epochs_factor, self.batch_factor

    def configurations(self) -> tuple[Configuration, ...]:
        """Return c_1 … c_k."""
        steps = np.arange(self.num_configurations)[:, None] / SPREAD ** np.arange(1, 4)
        return tuple(Configuration(*row) for row in (np.array(self.factors) ** (2 * ((0.5 + steps) % 1) - 1)).tolist())


def names_of(configuration: int) -> tuple[str, str]:
    """Return the names of the sums of a configuration's validation rows: those that are wrong, and all."""
    return f"wrong-{configuration}", f"validated-{configuration}"


@dataclass(frozen=True)
class DrawnTraining(ClientAlgorithm):
    """The client's half.

    Attributes:
        num_configurations: k.
    """

    validates: ClassVar[bool] = True

    num_configurations: int

    @abstractmethod
    def drawn(self, facts: LocalFacts) -> int:
        """Return which configuration is the client's in this round."""

    @abstractmethod
    def configuration(self, facts: LocalFacts) -> Configuration:
        """Return that configuration."""

    def settings(self, facts: LocalFacts) -> LocalTraining:
        """Return how a client trains: by what it draws."""
        return self.configuration(facts).of(facts.training)

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
        right = 0 if validation.sums[DIVERGED] or isnan(validation.num_correct) else validation.num_correct
        num_wrong = num_rows - right
        sums = {}
        for each in range(self.num_configurations):
            wrong, rows = names_of(each)
            sums[wrong], sums[rows] = (float(num_wrong), float(num_rows)) if each == mine else (0.0, 0.0)
        return sums


class DrawnTrainingRule(MeanRule):
    """The server's half.

    Args:
        num_configurations: k.
        arguments: FedAvg's.

    Attributes:
        unjudged: What becomes of configurations that nobody could judge, in words.
    """

    unjudged: ClassVar[str]

    def __init__(self, num_configurations: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.num_configurations = num_configurations
        self.num_diverged = 0
        self.was_measured = False
        self.training: dict[str, Any] = {}

    @abstractmethod
    def move(self, wrong: DoubleArray, rows: DoubleArray) -> None:
        """Take in what a round measured.

        Args:
            wrong: Σ n_i L_i of each configuration, shape `(k,)`.
            rows: Σ n_i of each, with a positive sum.
        """

    @abstractmethod
    def best(self) -> tuple[str, Configuration]:
        """Return which configuration is best so far, in words, and what it is."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return FedAvg's messages, and note how the study trains."""
        self.training = LocalTraining.from_config(config).model_dump()
        return super().configure_train(server_round, arrays, config, grid)

    def step(self, means: RoundMeans) -> DoubleArray:
        """Judge the configurations; the new model is the mean."""
        names = [names_of(each) for each in range(self.num_configurations)]
        wrong, rows = np.array([[means.sums[name] for name in pair] for pair in names], np.float64).T
        self.num_diverged += int(means.sums[DIVERGED])
        if rows.sum():
            self.was_measured = True
            self.move(wrong, rows)
        return means.model

    def trial_notes(self) -> list[str]:
        """Return which configuration is best, and how often clients diverged."""
        words, configuration = self.best()
        found = configuration.of(LocalTraining(**self.training))
        notes = [
            f"of {self.num_configurations} configurations {words}: "
            f"learning rate {found.learning_rate:.3g}, local epochs {found.local_epochs}, batches of {found.batch_size}"
        ]
        if not self.was_measured:
            notes.append(f"no client had validation rows enough, so {self.unjudged}")
        if self.num_diverged:
            notes.append(f"{self.num_diverged} trainings of clients diverged, and gave no model")
        return notes
