"""Hyperparameter tuning on the clients: FedEx and FedPop.

Both tune k configurations c_1 … c_k of local training while one global model is trained. In each round client
i draws a configuration, trains with it and evaluates the result on its n_i validation rows; L_i is its error
rate. The server averages the models as FedAvg does, regardless of configuration. The strategies differ in how
a client draws and how the configurations are updated.

c_1 is the study's setting. The others lie evenly around it on a logarithmic scale, by the additive recurrence
frac(½ + j / φ^d), φ⁴ = φ + 1, in three dimensions d: step size, epochs, batch size.

Clients report sums per configuration, so the server does not learn which client drew which configuration,
unless only one client drew it. A client whose training diverges returns the received model and counts as
wrong on all its rows, so that the configuration is penalised and the trial continues. A client's draw depends
only on (seed, round, client) and what is sent with the model: θ for FedEx, the population for FedPop.

**FedEx.** Clients draw from a distribution θ, which the server updates by exponentiated gradient (Khodak et
al. 2021, Algorithm 2):

    ∇_j = Σ n_i (L_i − λ) 1[c_i = j] / (θ_j Σ n_i)        θ_j ← θ_j exp(−η ∇_j), normalised

The baseline λ is the weighted mean of Σ n_i L_i / Σ n_i over earlier rounds, with weights that decrease by
`baseline_discount` per round: 0 uses the last round only, 1 all rounds equally. With η_0 = √(2 log k) and
G = max |∇_j|

    aggressive: η = η_0 / G        adaptive: η = η_0 / √(Σ G² over the rounds so far)        constant: η = η_0

Deviations: the configurations lie evenly, the paper draws them at random; the outer search over server
settings with several such trainings is left out, as are personalised models. In the first round the baseline
is that round's mean; the authors' code takes 0, which penalises whatever is drawn first. The authors' code
stops at a small entropy of θ; here θ is updated in every round. Diverged training counts as wrong.

**FedPop.** The configurations are a population from which clients draw uniformly. The score of a
configuration is its error rate on validation rows since the last evolution, with weights that decrease by
`score_discount` per round. Every `evolve_every` rounds the n configurations with a score are ranked and the
worst ⌈quantile n⌉ are replaced (Chen et al. 2025, Algorithm 1, Evo):

    c ← perturbed(one of the best ⌈quantile n⌉, drawn)     or, with probability `resample`,     perturbed(c_1)

c_1 is the study's setting. A perturbation multiplies each of step size, epochs and batch size by
factor^(perturbation · u), u uniform in [−1, 1], clipped to [1/factor, factor] times the study's value.

Deviations: this is FedPop-L within one training. FedPop-G, in which parallel trainings copy the models of
better ones, costs as much as all of them; a search over trials replaces it. The initial population lies
evenly and has k members; the paper draws one per active client around the base. Scores are error rates, as in
the authors' code with `apply_acc_for_selection`, summed over all clients that drew a configuration. Momentum,
weight decay and dropout are not tuned, and nothing is annealed, which is the default of that code, as are the
quantile of 0.3, five rounds and the discount of 0.9. Diverged training counts as wrong.

References:
    Khodak, Tu, Li, Li, Balcan, Smith, Talwalkar: Federated hyperparameter tuning: challenges, baselines, and
        connections to weight-sharing. NeurIPS 2021. arXiv:2106.04502
    Chen, Krompass, Gu, Tresp: FedPop: federated population-based hyperparameter tuning. AAAI 2025.
        arXiv:2308.08634. Code: https://github.com/HaokunChen245/FedPop
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, isnan, log, sqrt
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid, strategy as flower

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientResults, ClientScore, LocalFacts, LocalRun
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.messages.calls import Cohort, EngineNeeds
from fedscout.engine.messages.exact_mean import ExactScale
from fedscout.engine.messages.keys import SEED_KEY
from fedscout.engine.seeds import stream
from fedscout.strategies.aggregation.rules import DoubleArray, MeanRule, Messages, RoundMeans
from fedscout.strategies.methods.averaging import MeanSpec
from fedscout.strategies.specification import IntegerRange, parameter

DIVERGED = "num-diverged"
SPREAD = 1.2207440846057596
"""φ, the positive root of φ⁴ = φ + 1: multiples of its inverse powers fill a cube evenly."""


@dataclass(frozen=True)
class Configuration:
    """Factors of the study's local training settings, each > 0."""

    rate: float = 1.0
    epochs: float = 1.0
    batch: float = 1.0

    def of(self, training: LocalTraining) -> LocalTraining:
        """Return local training scaled by the factors."""
        changes = {
            "learning_rate": training.learning_rate * self.rate,
            "local_epochs": max(1, round(training.local_epochs * self.epochs)),
            "batch_size": max(1, round(training.batch_size * self.batch)),
        }
        return training.model_copy(update=changes)


class DrawnTrainingSpec(MeanSpec):
    """Base class of strategies that tune client configurations on validation rows."""

    requires = ("the study's settings", "classes")

    num_configurations: int = parameter(
        9, "k, number of client configurations; 1 is FedAvg", IntegerRange(2, 16), ge=1, le=100
    )
    rate_factor: float = parameter(4.0, "learning rates are the study's times 1/factor … factor", ge=1, le=1e4)
    epochs_factor: float = parameter(
        3.0, "local epochs are the study's times 1/factor … factor, at least 1", ge=1, le=100
    )
    batch_factor: float = parameter(
        2.0, "batch sizes are the study's times 1/factor … factor, at least 1", ge=1, le=100
    )
    validation_share: float = parameter(
        0.1, "fraction of the training rows that clients validate on, if the study has none", gt=0, lt=1
    )

    def needs(self) -> EngineNeeds:
        """Return the engine features needed: one mean, and validation rows."""
        return replace(super().needs(), validation_share=self.validation_share)

    @property
    def factors(self) -> tuple[float, float, float]:
        """Largest factors of the study's rate, epochs and batch size."""
        return self.rate_factor, self.epochs_factor, self.batch_factor

    def configurations(self) -> tuple[Configuration, ...]:
        """Return c_1 … c_k."""
        steps = np.arange(self.num_configurations)[:, None] / SPREAD ** np.arange(1, 4)
        return tuple(Configuration(*row) for row in (np.array(self.factors) ** (2 * ((0.5 + steps) % 1) - 1)).tolist())


def names_of(configuration: int) -> tuple[str, str]:
    """Return the names of a configuration's validation sums: misclassified rows, and all rows."""
    return f"wrong-{configuration}", f"validated-{configuration}"


@dataclass(frozen=True)
class DrawnTraining(ClientAlgorithm):
    """Client algorithm that trains with a drawn configuration.

    Attributes:
        num_configurations: k.
    """

    validates: ClassVar[bool] = True

    num_configurations: int

    @abstractmethod
    def drawn(self, facts: LocalFacts) -> int:
        """Return the index of the client's configuration in this round."""

    @abstractmethod
    def configuration(self, facts: LocalFacts) -> Configuration:
        """Return the client's configuration in this round."""

    def settings(self, facts: LocalFacts) -> LocalTraining:
        """Return the client's local training settings for the drawn configuration."""
        return self.configuration(facts).of(facts.training)

    def train(self, run: LocalRun) -> ClientResults:
        """Train; return the received model where the result can't enter an exact mean."""
        import torch

        trained = run.descend(run.received)
        fits = torch.from_numpy(ExactScale.of(run.received.numpy(), 1).holds(trained.vectors.numpy()))
        vectors = torch.where(fits[:, None], trained.vectors, run.received)
        return ClientResults(trained, vectors, sums={DIVERGED: (~fits).double()})

    def validated(self, facts: LocalFacts, score: ClientScore, sums: Mapping[str, float]) -> Mapping[str, float]:
        """Return the validation sums by configuration; zeros for all but the client's own."""
        num_rows, drawn = score.num_examples, self.drawn(facts)
        num_right = 0 if sums[DIVERGED] or isnan(score.num_correct) else score.num_correct
        num_wrong = num_rows - num_right
        sums_by_name = {}
        for index in range(self.num_configurations):
            wrong, rows = names_of(index)
            sums_by_name[wrong], sums_by_name[rows] = (
                (float(num_wrong), float(num_rows)) if index == drawn else (0.0, 0.0)
            )
        return sums_by_name


class DrawnTrainingRule(MeanRule):
    """Server rule that updates the configurations from validation sums.

    Args:
        num_configurations: k.
        arguments: Arguments of FedAvg.

    Attributes:
        unjudged: Note on configurations that no validation rows could score.
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
        """Update from the validation sums of a round.

        Args:
            wrong: Σ n_i L_i of each configuration, shape `(k,)`.
            rows: Σ n_i of each, with a positive sum.
        """

    @abstractmethod
    def best(self) -> tuple[str, Configuration]:
        """Return a description of the best configuration so far, and the configuration."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Messages:
        """Return FedAvg's messages, and store the study's local training."""
        self.training = LocalTraining.from_config(config).model_dump()
        return super().configure_train(server_round, arrays, config, grid)

    def step(self, means: RoundMeans) -> DoubleArray:
        """Score the configurations and return the mean as the new model."""
        names = [names_of(index) for index in range(self.num_configurations)]
        wrong, rows = np.array([[means.sums[name] for name in pair] for pair in names], np.float64).T
        self.num_diverged += int(means.sums[DIVERGED])
        if rows.sum():
            self.was_measured = True
            self.move(wrong, rows)
        return means.model

    def trial_notes(self) -> list[str]:
        """Return notes on the best configuration and on diverged clients."""
        description, configuration = self.best()
        best = configuration.of(LocalTraining(**self.training))
        notes = [
            f"of {self.num_configurations} configurations, number {description}: "
            f"learning rate {best.learning_rate:.3g}, local epochs {best.local_epochs}, batches of {best.batch_size}"
        ]
        if not self.was_measured:
            notes.append(f"no client had enough validation rows, so {self.unjudged}")
        if self.num_diverged:
            notes.append(f"{self.num_diverged} client trainings diverged and were discarded")
        return notes


WEIGHTS = "configuration-weights"

Schedule = Literal["aggressive", "adaptive", "constant"]


class FedExSpec(DrawnTrainingSpec):
    """FedEx: clients train with drawn configurations; those that validate well are drawn more often."""

    paper: ClassVar[str] = "Khodak et al. 2021, arXiv:2106.04502"

    kind: Literal["fedex"] = "fedex"
    schedule: Schedule = parameter("aggressive", "scaling of η, the step along ∇")
    baseline_discount: float = parameter(0.5, "discount of past rounds in the baseline λ", ge=0, le=1)

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client algorithm."""
        configurations = self.configurations()
        return DrawnByWeight(len(configurations), configurations)

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        return self._rule(cohort, FedEx, self.configurations(), self.schedule, self.baseline_discount)


@dataclass(frozen=True)
class DrawnByWeight(DrawnTraining):
    """Client algorithm of FedEx.

    Attributes:
        configurations: c_1 … c_k.
    """

    configurations: tuple[Configuration, ...]

    def drawn(self, facts: LocalFacts) -> int:
        """Return the index of the client's configuration in this round, drawn from θ."""
        weights = facts.auxiliary[WEIGHTS].double().numpy()
        return int(facts.generator.choice(len(weights), p=weights / weights.sum()))

    def configuration(self, facts: LocalFacts) -> Configuration:
        """Return the client's configuration in this round."""
        return self.configurations[self.drawn(facts)]


class FedEx(DrawnTrainingRule):
    """Server rule of FedEx.

    Args:
        configurations: c_1 … c_k.
        schedule: Schedule of η.
        discount: Discount of the baseline.
        arguments: Arguments of FedAvg.

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

    def auxiliary(self) -> Mapping[str, FloatArray]:
        """Return θ as float32, from which clients draw."""
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
        """Return the configuration with the largest weight."""
        best = int(np.argmax(self.weights))
        return f"{best + 1} has the largest weight, {self.weights[best]:.2f}", self.configurations[best]


POPULATION = "configurations"


@dataclass(frozen=True)
class DrawnEvenly(DrawnTraining):
    """Client algorithm of FedPop."""

    def drawn(self, facts: LocalFacts) -> int:
        """Return the index of the client's configuration in this round, drawn uniformly."""
        return int(facts.generator.integers(self.num_configurations))

    def configuration(self, facts: LocalFacts) -> Configuration:
        """Return the client's configuration in this round."""
        population = facts.auxiliary[POPULATION].view(self.num_configurations, -1)
        return Configuration(*population[self.drawn(facts)].tolist())


class FedPopSpec(DrawnTrainingSpec):
    """FedPop: clients train with configurations of a population whose worst members are replaced."""

    paper: ClassVar[str] = "Chen et al. 2025, arXiv:2308.08634"

    kind: Literal["fedpop"] = "fedpop"
    algorithm = DrawnEvenly
    evolve_every: int = parameter(5, "number of rounds between evolutions", ge=1, le=10_000)
    quantile: float = parameter(
        0.3, "fraction of the population that is replaced, and that may be copied", gt=0, le=0.5
    )
    perturbation: float = parameter(
        1.0, "size of a copy's perturbation, as a fraction of each factor's logarithm", gt=0, le=1
    )
    resample: float = parameter(0.1, "probability that the study's setting is copied instead of a good one", ge=0, le=1)
    score_discount: float = parameter(0.9, "discount of past rounds in the scores", ge=0, le=1)

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        return self._rule(cohort, FedPop, self)


class FedPop(DrawnTrainingRule):
    """Server rule of FedPop.

    Args:
        spec: Parameters of the evolution.
        arguments: Arguments of FedAvg.

    Attributes:
        population: Rate, epochs and batch of each configuration as multiples of the study's, shape `(k, 3)`.
        wrong: Discounted misclassified validation rows of each since the last evolution, shape `(k,)`.
        rows: Discounted validation rows of each, likewise.
        num_rounds: Rounds since the last evolution.
        num_evolutions: Evolutions so far.
        fittest: The best configuration of the last evolution, which does not change it.
    """

    unjudged = "no configuration was replaced"

    def __init__(self, spec: FedPopSpec, **arguments: Any) -> None:
        super().__init__(spec.num_configurations, **arguments)
        self.spec = spec
        initial = [(config.rate, config.epochs, config.batch) for config in spec.configurations()]
        self.population: FloatArray = np.array(initial, np.float32)
        self.wrong, self.rows = np.zeros(len(initial)), np.zeros(len(initial))
        self.num_rounds = self.num_evolutions = 0
        self.fittest = 0
        self._drawn_by: tuple[int, int] = (0, 0)

    def auxiliary(self) -> Mapping[str, FloatArray]:
        """Return the population."""
        return {POPULATION: self.population.ravel()}

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Messages:
        """Return FedAvg's messages with the population as an auxiliary vector."""
        self._drawn_by = int(config[SEED_KEY]), server_round  # type: ignore[arg-type]
        return super().configure_train(server_round, arrays, config, grid)

    def move(self, wrong: DoubleArray, rows: DoubleArray) -> None:
        """Add the validation sums of a round, and evolve every `evolve_every` rounds."""
        self.wrong = self.spec.score_discount * self.wrong + wrong
        self.rows = self.spec.score_discount * self.rows + rows
        self.num_rounds += 1
        if self.num_rounds == self.spec.evolve_every:
            seed, server_round = self._drawn_by
            self.evolve(stream(seed, "population", server_round))

    def evolve(self, generator: np.random.Generator) -> None:
        """Replace the worst configurations among those with a score.

        Args:
            generator: Draws the parents and the perturbations.
        """
        ranked = self._ranked()
        count = ceil(self.spec.quantile * len(ranked))
        best, worst = ranked[:count], ranked[max(count, len(ranked) - count) :]
        self.fittest = ranked[0]
        spans, population = np.log(self.spec.factors), self.population.copy()
        for index in worst:
            from_study = generator.random() < self.spec.resample
            parent = np.zeros(3) if from_study else np.log(self.population[generator.choice(best)].astype(np.float64))
            child = parent + self.spec.perturbation * spans * generator.uniform(-1, 1, 3)
            population[index] = np.exp(np.clip(child, -spans, spans))
        self.population = population
        self.wrong, self.rows = np.zeros_like(self.wrong), np.zeros_like(self.rows)
        self.num_rounds, self.num_evolutions = 0, self.num_evolutions + 1

    def _ranked(self) -> list[int]:
        """Return the configurations with a score, best first."""
        measured = np.flatnonzero(self.rows)
        shares = self.wrong[measured] / self.rows[measured]
        ranked: list[int] = measured[np.argsort(shares, kind="stable")].tolist()
        return ranked

    def best(self) -> tuple[str, Configuration]:
        """Return the best configuration since the last evolution, or of the last evolution if none has a score."""
        ranked = self._ranked()
        best = ranked[0] if ranked else self.fittest
        description = f"{best + 1} has the best validation score after {self.num_evolutions} evolutions"
        return description, Configuration(*self.population[best].tolist())
