"""Clients that tune their own settings: FedEx and FedPop.

Clients that train by configurations which their validation rows judge: what FedEx and FedPop have in common.

There are k configurations of local training, c_1 … c_k. In each round client i draws one, trains by it and measures
what it has trained on its n_i validation rows: L_i is the share that it gets wrong. The server averages the models as
FedAvg does, whatever they were trained by. How a client draws, and what becomes of configurations, is the strategy's
own.

c_1 is the study's own setting. The others lie evenly around it on a logarithmic scale, by the additive recurrence
frac(½ + j / φ^d), φ⁴ = φ + 1, in three directions d: step size, epochs, batch size.

What comes back are sums for each configuration: the server learns of none who drew it, unless only one did. A client
whose training diverges sends the received model back and counts as wrong on all its rows: the configuration loses, and
the trial goes on.

FedEx: the clients' settings are tuned while the one model is trained.

Of the k configurations of `tuned_clients.py` a client draws by a distribution θ, and the server moves θ by a step of
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

FedPop, its local half: a population of clients' settings evolves while the one model is trained.

The k configurations of `tuned_clients.py` are a population, and each client of a round trains by one of them, all
equally likely. A configuration's score is the share of validation rows that its clients got wrong since the last
evolution, each round counting `score_discount` times as much as the one after it. Every `evolve_every` rounds those
with a score are ranked, and of n the worst ⌈quantile n⌉ are replaced (Chen et al. 2025, Algorithm 1, Evo):

    c ← perturbed(one of the best ⌈quantile n⌉, drawn)     or, with probability `resample`,     perturbed(c_1)

c_1 is the study's own setting as it was at first. A perturbation multiplies each of step size, epochs and batch size by
factor^(perturbation · u), u uniform in [−1, 1], and what leaves [1/factor, factor] times the study's is put on its
edge.

What a client draws follows from (seed, round, client), and the population is sent beside the model.

Deviations: this is FedPop-L with the weights of one training; FedPop-G, which has several trainings copy the models of
the better ones, costs as many as it has, and a search over trials stands in its place here. The population lies evenly
at first and has k members, where the paper draws one around the base for each active client. Scores are shares of rows
that are wrong, as the authors' program takes with `apply_acc_for_selection`, and sums over all clients that drew a
configuration. Momentum, weight decay and dropout are left as they are, and nothing is annealed, which is that
program's default; so are a quantile of 0.3, five rounds and a discount of 0.9. What diverges counts as wrong.

Reference:
    Chen, Krompass, Gu, Tresp: FedPop: federated population-based hyperparameter tuning. AAAI 2025. arXiv:2308.08634.
        Their program: https://github.com/HaokunChen245/FedPop
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil, isnan, log, sqrt
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from pydantic import Field

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientResults, LocalFacts, LocalRun, Validation
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.messages.calls import Cohort, EngineNeeds
from fedscout.engine.messages.exact_mean import ExactScale
from fedscout.engine.messages.keys import SEED_KEY
from fedscout.engine.seeds import stream
from fedscout.strategies.aggregation.rules import DoubleArray, MeanRule, RoundMeans
from fedscout.strategies.methods.averaging import MeanSpec
from fedscout.strategies.specification import IntegerRange, SearchRange, node_counts, without_classes

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
        SearchRange(IntegerRange(2, 16)),
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

    def train(self, run: LocalRun) -> ClientResults:
        """Descend; what can't enter a mean is not sent."""
        import torch

        trained = run.descend(run.received)
        fits = torch.from_numpy(ExactScale.of(run.received.numpy(), 1).holds(trained.vectors.numpy()))
        vectors = torch.where(fits[:, None], trained.vectors, run.received)
        return ClientResults(trained, vectors, sums={DIVERGED: (~fits).double()})

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


POPULATION = "configurations"


class FedPopSpec(DrawnTrainingSpec):
    """FedPop: each client trains by one of a population of configurations, the worst of which are replaced."""

    paper: ClassVar[str] = "Chen et al. 2025, arXiv:2308.08634"

    kind: Literal["fedpop"] = "fedpop"
    evolve_every: Annotated[int, Field(ge=1, le=10_000, description="rounds from one evolution to the next")] = 5
    quantile: Annotated[
        float, Field(gt=0, le=0.5, description="share of the population that is replaced, and that may be copied")
    ] = 0.3
    perturbation: Annotated[
        float, Field(gt=0, le=1, description="how far a copy may be moved, as a share of each factor's logarithm")
    ] = 1.0
    resample: Annotated[
        float, Field(ge=0, le=1, description="probability that the study's setting is copied in place of a good one")
    ] = 0.1
    score_discount: Annotated[
        float, Field(ge=0, le=1, description="how a round's weight in the scores shrinks with each further one")
    ] = 0.9

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client's half."""
        return DrawnEvenly(self.num_configurations)

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        return FedPop(self, **node_counts(cohort), weighted_by_key=self.weighted_by)


@dataclass(frozen=True)
class DrawnEvenly(DrawnTraining):
    """The client's half."""

    def drawn(self, facts: LocalFacts) -> int:
        """Return which configuration is the client's in this round."""
        return int(facts.generator.integers(self.num_configurations))

    def configuration(self, facts: LocalFacts) -> Configuration:
        """Return that configuration."""
        population = facts.companions[POPULATION].view(self.num_configurations, -1)
        return Configuration(*population[self.drawn(facts)].tolist())


class FedPop(DrawnTrainingRule):
    """The server's half.

    Args:
        spec: How the population evolves.
        arguments: FedAvg's.

    Attributes:
        population: Of each configuration rate, epochs and batch as multiples of the study's, shape `(k, 3)`.
        wrong: Discounted validation rows of each that were wrong since the last evolution, shape `(k,)`.
        rows: All of these rows, likewise.
        num_rounds: Since the last evolution.
        num_evolutions: So far.
        fittest: The best configuration of the last evolution, which leaves it as it is.
    """

    unjudged = "no configuration was replaced"

    def __init__(self, spec: FedPopSpec, **arguments: Any) -> None:
        super().__init__(spec.num_configurations, **arguments)
        self.spec = spec
        first = [(each.rate, each.epochs, each.batch) for each in spec.configurations()]
        self.population: FloatArray = np.array(first, np.float32)
        self.wrong, self.rows = np.zeros(len(first)), np.zeros(len(first))
        self.num_rounds = self.num_evolutions = 0
        self.fittest = 0
        self._drawn_by: tuple[int, int] = (0, 0)

    def companions(self) -> Mapping[str, FloatArray]:
        """Send the population."""
        return {POPULATION: self.population.ravel()}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return FedAvg's messages with the population beside the model."""
        self._drawn_by = int(config[SEED_KEY]), server_round  # type: ignore[arg-type]
        return super().configure_train(server_round, arrays, config, grid)

    def move(self, wrong: DoubleArray, rows: DoubleArray) -> None:
        """Take in what a round measured, and evolve if it is time; see `DrawnTrainingRule`."""
        self.wrong = self.spec.score_discount * self.wrong + wrong
        self.rows = self.spec.score_discount * self.rows + rows
        self.num_rounds += 1
        if self.num_rounds == self.spec.evolve_every:
            seed, server_round = self._drawn_by
            self.evolve(stream(seed, "population", server_round))

    def evolve(self, generator: np.random.Generator) -> None:
        """Replace the worst of those that were measured.

        Args:
            generator: Draws who is copied and how far copies are moved.
        """
        ranked = self._ranked()
        count = ceil(self.spec.quantile * len(ranked))
        best, worst = ranked[:count], ranked[max(count, len(ranked) - count) :]
        self.fittest = ranked[0]
        spans, grown = np.log(self.spec.factors), self.population.copy()
        for place in worst:
            from_study = generator.random() < self.spec.resample
            copied = np.zeros(3) if from_study else np.log(self.population[generator.choice(best)].astype(np.float64))
            moved = copied + self.spec.perturbation * spans * generator.uniform(-1, 1, 3)
            grown[place] = np.exp(np.clip(moved, -spans, spans))
        self.population = grown
        self.wrong, self.rows = np.zeros_like(self.wrong), np.zeros_like(self.rows)
        self.num_rounds, self.num_evolutions = 0, self.num_evolutions + 1

    def _ranked(self) -> list[int]:
        """Return the configurations with a score, the best first."""
        measured = np.flatnonzero(self.rows)
        shares = self.wrong[measured] / self.rows[measured]
        ranked: list[int] = measured[np.argsort(shares, kind="stable")].tolist()
        return ranked

    def best(self) -> tuple[str, Configuration]:
        """Return the configuration with the best score since the last evolution; without one, of the last."""
        ranked = self._ranked()
        best = ranked[0] if ranked else self.fittest
        words = f"{best + 1} validates best after {self.num_evolutions} evolutions"
        return words, Configuration(*self.population[best].tolist())
