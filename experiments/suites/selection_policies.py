"""Cumulative regret of the selection bandits on a synthetic problem, and the time cost of policies.

Regret: rewards are linear in contexts that are drawn anew in each round. A round has the contexts x_i of 30 clients,
standard normal in four dimensions, and expected rewards θᵀx_i, |θ| = 1. A bandit chooses six and observes rewards with
noise of standard deviation 0.3. Its regret in a round is the expected reward of the best six minus that of its own.
This is measured because the source of FLASH gives only a bound of another algorithm: the regret of a bandit that learns
grows ever slower, that of random choice does not.

Cost: first in rounds of FedAvg over 50 clients, 10 of whom train, the time of `choose` and `observe` in the driver, and
the duration of such a round with random choice, alternating, so that other load affects both alike. What clients
measure for a policy is their time, not the driver's; it is included in the ratio of the rounds. Then `choose` and
`observe` alone, on synthetic reports of 3,550 clients, as many as the source's largest federation has, of whom a fifth
is chosen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import IntArray
from fedscout.engine.messages.calls import (
    Assignment,
    ClientTable,
    Cohort,
    DoubleArray,
    Losses,
    RoundReport,
    SelectionPolicy,
)
from fedscout.engine.seeds import stream
from fedscout.experiments import suites
from fedscout.experiments.grids.cells import CellContext, Measured, Values
from fedscout.experiments.grids.experiment import Cell, Experiment, arguments, read_experiment
from fedscout.experiments.grids.federation_runner import built_federation
from fedscout.experiments.studies.runner import open_runner
from fedscout.experiments.studies.workflow import study_facts
from fedscout.search.ledger import BASELINE
from fedscout.strategies import SelectionSpec, parse_selection
from fedscout.strategies.selection.bandits import (
    ContextualBandit,
    DiscountedRegression,
    LinearPosterior,
    NeuralBandit,
    highest,
)

NUM_CLIENTS, NUM_CHOSEN, SIZE, NOISE = 30, 6, 4, 0.3
ROUNDS = (30, 60, 120)


class Nobody:
    """A bandit that scores at random."""

    def scores(self, contexts: DoubleArray, generator: np.random.Generator) -> DoubleArray:
        """Return uniform scores, shape `(clients,)`."""
        return generator.random(len(contexts))

    def update(self, contexts: DoubleArray, rewards: DoubleArray) -> None:
        """Do nothing."""
        del contexts, rewards


BANDITS: Mapping[str, Callable[[], ContextualBandit]] = {
    "random": Nobody,
    "linear, as FLASH's": lambda: LinearPosterior(SIZE, NUM_CLIENTS),
    "restless": lambda: DiscountedRegression(SIZE),
    "restless that never forgets": lambda: DiscountedRegression(SIZE, discount=1.0),
    "neural": lambda: NeuralBandit(SIZE),
}


def regrets(bandit: ContextualBandit, seed: int, num_rounds: int = ROUNDS[-1]) -> npt.NDArray[np.float64]:
    """Return the regret of each round, shape `(num_rounds,)`; all bandits of a seed have the same problem."""
    problem = np.random.default_rng([seed, 0])
    direction = problem.normal(size=SIZE)
    direction /= np.linalg.norm(direction)
    regret_by_round = np.empty(num_rounds)
    for number in range(num_rounds):
        contexts = problem.normal(size=(NUM_CLIENTS, SIZE))
        means = contexts @ direction
        generator = np.random.default_rng([seed, 1, number])
        chosen = highest(bandit.scores(contexts, generator), NUM_CHOSEN, generator)
        regret_by_round[number] = np.sort(means)[-NUM_CHOSEN:].sum() - means[chosen].sum()
        bandit.update(contexts[chosen], means[chosen] + NOISE * problem.normal(size=NUM_CHOSEN))
    return regret_by_round


@dataclass(frozen=True)
class Regrets:
    """Cumulative regret of each bandit (row) after some rounds (column)."""

    def measure(self, experiment: Experiment, context: CellContext) -> Measured:
        """Run every bandit on one problem per seed."""
        values: dict[Cell, Values] = {}
        for name, make in BANDITS.items():
            total = np.cumsum([regrets(make(), seed) for seed in range(context.num_seeds)], axis=1)
            values |= {(name, f"{rounds} rounds"): tuple(total[:, rounds - 1].tolist()) for rounds in ROUNDS}
        return Measured(values)


SUITE = Path(suites.__file__).parent / "selection"
MANY_CLIENTS, MANY_CHOSEN, MANY_ROUNDS = 3550, 710, 40


@dataclass
class Stopwatch(SelectionPolicy):
    """A selection policy that times another one.

    Attributes:
        policy: The timed policy.
        laps: Seconds of each round so far.
    """

    policy: SelectionPolicy
    laps: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.observes = self.policy.observes

    def choose(
        self, server_round: int, table: ClientTable, num_chosen: int, generator: np.random.Generator
    ) -> Sequence[int] | IntArray:
        """Return the policy's choice of clients, timed."""
        self.laps.append(0.0)
        with self._timed():
            return self.policy.choose(server_round, table, num_chosen, generator)

    def assign(self, table: ClientTable, chosen: Sequence[int]) -> Mapping[int, Assignment]:
        """Return the policy's assignments, timed."""
        with self._timed():
            return self.policy.assign(table, chosen)

    def observe(self, report: RoundReport) -> None:
        """Pass a round's report to the policy, timed."""
        with self._timed():
            self.policy.observe(report)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.laps[-1] += time.perf_counter() - started


@dataclass(frozen=True)
class TimedChoice:
    """A specification whose policies are timed.

    Attributes:
        spec: Of the policy.
        built: The policies that were created, in order.
    """

    spec: SelectionSpec
    built: list[Stopwatch] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.spec, name)

    def build(self, cohort: Cohort) -> SelectionPolicy:
        """Construct the policy."""
        self.built.append(Stopwatch(self.spec.build(cohort)))
        return self.built[-1]


@dataclass(frozen=True)
class PolicyCosts:
    """Times of policies (rows), alternating with random choice; one value per repetition.

    Attributes:
        policies: Kinds.
    """

    policies: Sequence[str]

    def measure(self, experiment: Experiment, context: CellContext) -> Measured:
        """Time rounds under every policy, then the policy alone at many clients."""
        column_arguments = arguments(read_experiment(SUITE / "table.yaml").federations["skew"])
        built = built_federation("skew", column_arguments, context.settings)
        settings = study_facts(built.config, built.federation).trial("train", BASELINE)
        values_by_cell: dict[Cell, list[float]] = {}
        with open_runner(built.federation, built.config.engine, None, 1) as runner:

            def seconds_a_round(selection: Any) -> float:
                ((_, trial),) = runner.run([replace(settings, selection=selection)])
                return trial.seconds["total"] / trial.num_rounds

            for kind in self.policies:
                spec = parse_selection(kind)
                for turn in range(context.num_seeds):
                    context.note(f"{kind}: turn {turn}")
                    timed = TimedChoice(spec)
                    with_policy, at_random = seconds_a_round(timed), seconds_a_round(parse_selection("random"))
                    policy_seconds = median(lap for stopwatch in timed.built for lap in stopwatch.laps)
                    many_laps = _laps_of_many(spec)
                    turn_values = {
                        "own time, ms": 1000 * policy_seconds,
                        "of a random round, %": 100 * policy_seconds / at_random,
                        "its round / random's": with_policy / at_random,
                        "3,550 clients, ms": 1000 * median(many_laps),
                        "longest there, ms": 1000 * max(many_laps),
                    }
                    for column, value in turn_values.items():
                        values_by_cell.setdefault((kind, column), []).append(value)
        return Measured({cell: tuple(values) for cell, values in values_by_cell.items()})


def _laps_of_many(spec: SelectionSpec) -> list[float]:
    """Return the seconds of each round of a policy with synthetic reports of many clients."""
    stopwatch = Stopwatch(spec.build(Cohort(MANY_CLIENTS, MANY_CHOSEN, 0.1, num_rounds=MANY_ROUNDS, chosen=True)))
    draws = np.random.default_rng(0)
    rows = draws.integers(20, 200, MANY_CLIENTS)
    table = ClientTable(np.arange(MANY_CLIENTS), rows, draws.lognormal(size=MANY_CLIENTS))
    for server_round in range(1, MANY_ROUNDS + 1):
        chosen = np.sort(stopwatch.choose(server_round, table, MANY_CHOSEN, stream(0, "selection", server_round)))
        stopwatch.assign(table, chosen.tolist())
        stopwatch.observe(_synthetic_report(server_round, table, chosen, draws))
    return stopwatch.laps


def _synthetic_report(
    server_round: int, table: ClientTable, chosen: IntArray, draws: np.random.Generator
) -> RoundReport:
    """Return a synthetic report in which losses decrease and differ by client."""
    size = len(table.clients)
    trained = np.isin(table.clients, chosen)
    losses = draws.lognormal(-0.02 * server_round, 0.3, size)
    client_losses = Losses(losses, losses**2, 1 - np.exp(-losses), 0.5 * losses)
    return RoundReport(
        server_round=server_round,
        clients=table.clients,
        trained=trained,
        num_examples=table.num_examples,
        num_steps=np.where(trained, 10, 0),
        seconds=table.seconds,
        loss=np.where(trained, losses, np.nan),
        update_norm=np.where(trained, draws.lognormal(size=size), np.nan),
        training=client_losses,
        validation=client_losses,
        round_seconds=float(table.seconds[trained].max()),
    )
