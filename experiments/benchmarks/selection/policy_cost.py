"""What a selection policy costs: its own time beside a round's, and at many clients.

First in rounds of FedAvg over 50 clients, 10 of whom train: how long `choose` and `observe` take in the driver, and how
long such a round takes with random choice, in turns, so that a busy machine slows all alike. What clients measure for a
policy is their time, not the driver's; it is in the ratio of the rounds. Then `choose` and `observe` alone, on invented
reports of 3,550 clients, as many as the source's largest federation has, of whom a fifth is chosen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np
from pydantic import BaseModel

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.client_selection import (
    Assignment,
    ClientTable,
    Losses,
    RoundReport,
    SelectionPolicy,
)
from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.engine.seeds import stream
from fedscout.engine.trials.trial_settings import TrialSettings
from fedscout.experiments.benchmarks.choice.choice_battery import ready_case
from fedscout.experiments.benchmarks.selection.selection_battery import POLICIES, case_of
from fedscout.experiments.reports.markdown_table import markdown_table
from fedscout.experiments.studies.open_runner import open_runner
from fedscout.experiments.studies.workflow import study_facts
from fedscout.search.study_trials import BASELINE
from fedscout.strategies import SelectionSpec, parse_selection

TURNS = 3
MANY_CLIENTS, MANY_CHOSEN, MANY_ROUNDS = 3550, 710, 40

Note = Callable[[str], None]


class PolicyCost(BaseModel, frozen=True):
    """One policy.

    Attributes:
        own_seconds: Median of a round's `choose`, `assign` and `observe` at 50 clients.
        round_seconds: Median of a whole round with it.
        random_seconds: Likewise with random choice, beside it.
        many_seconds: Median of `choose` and `observe` at 3,550 clients.
        most_seconds: The longest of these, where a policy fits a model now and then.
    """

    policy: str
    own_seconds: float
    round_seconds: float
    random_seconds: float
    many_seconds: float
    most_seconds: float


@dataclass
class Stopwatch(SelectionPolicy):
    """A policy that is timed.

    Attributes:
        policy: What is timed.
        laps: Seconds of each round so far.
    """

    policy: SelectionPolicy
    laps: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.observes = self.policy.observes

    def choose(
        self, server_round: int, table: ClientTable, num_chosen: int, generator: np.random.Generator
    ) -> Sequence[int] | IntArray:
        """Return who trains."""
        self.laps.append(0.0)
        with self._timed():
            return self.policy.choose(server_round, table, num_chosen, generator)

    def assign(self, table: ClientTable, chosen: Sequence[int]) -> Mapping[int, Assignment]:
        """Return what some do otherwise."""
        with self._timed():
            return self.policy.assign(table, chosen)

    def observe(self, report: RoundReport) -> None:
        """Take in a round."""
        with self._timed():
            self.policy.observe(report)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.laps[-1] += time.perf_counter() - started


@dataclass(frozen=True)
class TimedChoice:
    """A specification whose policy is timed.

    Attributes:
        spec: Of the policy.
        built: The policies that were made, in order.
    """

    spec: SelectionSpec
    built: list[Stopwatch] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.spec, name)

    def build(self, cohort: Cohort) -> SelectionPolicy:
        """Construct the policy."""
        self.built.append(Stopwatch(self.spec.build(cohort)))
        return self.built[-1]


def policy_costs(policies: Sequence[str] | None = None, note: Note = lambda _: None) -> list[PolicyCost]:
    """Measure policies; `note` is told what is done next.

    Args:
        policies: Kinds; None is all.
        note: Told what is done next.

    Raises:
        StrategyError: If one is unknown.
    """
    specs = [parse_selection(kind) for kind in policies or (*POLICIES, "power_of_choice")]
    ready = ready_case(case_of("digits", "skew"), (), quick=False)
    facts = study_facts(ready.config, ready.federation)
    found = []
    with open_runner(ready.federation, ready.config.engine, None, 1) as runner:

        def seconds_a_round(settings: TrialSettings) -> float:
            ((_, trial),) = runner.run([settings])
            return trial.seconds["total"] / trial.num_rounds

        for spec in specs:
            note(f"{spec.kind}: 50 clients, {TURNS} turns")
            settings, timed = facts.trial("train", BASELINE), TimedChoice(spec)
            beside = replace(settings, selection=parse_selection("random"))
            times = [
                (seconds_a_round(replace(settings, selection=timed)), seconds_a_round(beside)) for _ in range(TURNS)
            ]
            note(f"{spec.kind}: {MANY_CLIENTS} clients")
            many = _laps_of_many(spec)
            found.append(
                PolicyCost(
                    policy=spec.kind,
                    own_seconds=median(lap for stopwatch in timed.built for lap in stopwatch.laps),
                    round_seconds=median(own for own, _ in times),
                    random_seconds=median(random for _, random in times),
                    many_seconds=median(many),
                    most_seconds=max(many),
                )
            )
    return found


def cost_lines(costs: Sequence[PolicyCost]) -> list[str]:
    """Return the measurement as a table, in milliseconds."""
    headings = ["policy", "own time", "of a random round", "its round / random's", "3,550 clients", "longest there"]
    rows = [
        [
            cost.policy,
            f"{1000 * cost.own_seconds:.2f} ms",
            f"{100 * cost.own_seconds / cost.random_seconds:.1f} %",
            f"{cost.round_seconds / cost.random_seconds:.2f}",
            f"{1000 * cost.many_seconds:.1f} ms",
            f"{1000 * cost.most_seconds:.0f} ms",
        ]
        for cost in costs
    ]
    return markdown_table(headings, rows)


def _laps_of_many(spec: SelectionSpec) -> list[float]:
    """Return the seconds of each round of a policy that is told invented numbers of many clients."""
    stopwatch = Stopwatch(spec.build(Cohort(MANY_CLIENTS, MANY_CHOSEN, 0.1, num_rounds=MANY_ROUNDS, chosen=True)))
    draws = np.random.default_rng(0)
    rows = draws.integers(20, 200, MANY_CLIENTS)
    table = ClientTable(np.arange(MANY_CLIENTS), rows, draws.lognormal(size=MANY_CLIENTS))
    for server_round in range(1, MANY_ROUNDS + 1):
        chosen = np.sort(stopwatch.choose(server_round, table, MANY_CHOSEN, stream(0, "selection", server_round)))
        stopwatch.assign(table, chosen.tolist())
        stopwatch.observe(_invented(server_round, table, chosen, draws))
    return stopwatch.laps


def _invented(server_round: int, table: ClientTable, chosen: IntArray, draws: np.random.Generator) -> RoundReport:
    """Return a report in which losses fall and differ by client."""
    size = len(table.clients)
    trained = np.isin(table.clients, chosen)
    losses = draws.lognormal(-0.02 * server_round, 0.3, size)
    told = Losses(losses, losses**2, 1 - np.exp(-losses), 0.5 * losses)
    return RoundReport(
        server_round=server_round,
        clients=table.clients,
        trained=trained,
        num_examples=table.num_examples,
        num_steps=np.where(trained, 10, 0),
        seconds=table.seconds,
        loss=np.where(trained, losses, np.nan),
        update_norm=np.where(trained, draws.lognormal(size=size), np.nan),
        training=told,
        validation=told,
        round_seconds=float(table.seconds[trained].max()),
    )
