"""FedPop, its local half: a population of clients' settings evolves while the one model is trained.

The k configurations of `drawn_training.py` are a population, and each client of a round trains by one of them, all
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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from pydantic import Field

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.client_algorithm import ClientAlgorithm, LocalFacts
from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.engine.messages.message_keys import SEED_KEY
from fedscout.engine.seeds import stream
from fedscout.strategies.aggregation.mean_rule import DoubleArray
from fedscout.strategies.methods.clients.drawn_training import (
    Configuration,
    DrawnTraining,
    DrawnTrainingRule,
    DrawnTrainingSpec,
)
from fedscout.strategies.specification import node_counts

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
