"""How often a confirmation's intervals hold the truth, and how often it says "better" wrongly.

Each study draws a federation from a population whose truth is known (`simulated_trials.py`), and goes the way
that every study goes: the ledger, `confirm_winner`, its plan of looks, its intervals and its verdict. Truths:

- *new data*: the mean difference over federations drawn anew, each split and trained once;
- *here*: the mean difference over all splits of the very rows, from many other seeds.

A run that fails is worth guessing in both, as it is in the confirmation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.engine.messages.session import Session
from fedscout.engine.trials.trial_log import TrialLog
from fedscout.engine.trials.trial_record import Trial
from fedscout.engine.trials.trial_runner import TrialRunner
from fedscout.experiments.grids.cells import CellContext, Measured, together
from fedscout.experiments.grids.experiment import Cell, Experiment
from fedscout.experiments.grids.methods import Given
from fedscout.experiments.suites.simulated_trials import (
    NUM_CLIENTS,
    Population,
    Sample,
    SimulatedRunner,
    configurations,
)
from fedscout.search.confirmation.confirmation import Confirmation
from fedscout.search.confirmation.confirmation_runs import confirm_winner
from fedscout.search.ledger import Ledger, StudyFacts
from fedscout.search.search_config import SearchConfig

NUM_FEDERATIONS = 4000
"""From which a truth about new data is taken."""

SPLITS_A_SEED = 20
"""A truth about these rows is taken from so many times the splits that an interval rests on: its own error is small."""

HERE_STUDIES = 100
"""In so many studies of a cell at most, as that takes long."""


@dataclass(frozen=True)
class Coverage:
    """Studies whose interval for new data holds its truth, by population (rows) and fresh seeds at most (columns).

    A row's arguments are those of a `Population`, FedAvg first, then the candidates, and `batch`, the seeds between
    looks; without it there is one look. A value is one simulated study, of as many as the experiment has seeds.
    """

    def measure(self, experiment: Experiment, context: CellContext) -> Measured:
        """Simulate studies of every row and column."""
        parts = []
        for (row, method), column in product(experiment.rows.items(), experiment.federations):
            assert isinstance(method, Given)
            context.note(f"{row} × {column}")
            given = {**method.arguments}
            simulation = Simulation(batch=given.pop("batch", None), population=Population.of(**given))
            parts.append(_coverage((row, column), simulation, int(column.split()[0]), context.num_seeds))
        return together(parts)


class Simulation(NamedTuple):
    """What is simulated: a population, and the seeds between looks; None looks once."""

    population: Population
    batch: int | None = None


FIGURES = {
    "here": "share here",
    "better": "share better",
    "wrong": "share wrongly",
    "seeds_used": "seeds used",
    "half_width": "half width",
}
"""Of a study: whether the interval for another run holds its truth, of the first studies; whether it says better;
whether it says better or worse and is wrong."""


class _Judged(NamedTuple):
    """What one study found, held against the truth."""

    seeds_used: float
    new_data: float
    here: float
    better: float
    wrong: float
    half_width: float


def _coverage(cell: Cell, simulation: Simulation, seeds: int, num_studies: int) -> Measured:
    judged = [_judged(simulation, *_study(simulation, seeds, number), number) for number in range(num_studies)]
    of_each = {name: tuple(float(getattr(one, name)) for one in judged) for name in _Judged._fields}
    figures: dict[str, tuple[float | None, ...]] = {"truth": (_truths(simulation.population)[1],)}
    for name, told in FIGURES.items():
        figures[told] = tuple(None if np.isnan(value) else value for value in of_each[name])
    return Measured({cell: of_each["new_data"]}, figures={name: {cell: own} for name, own in figures.items()})


def _judged(simulation: Simulation, sample: Sample, confirmation: Confirmation, number: int) -> _Judged:
    names = [str(spec) for spec in configurations(len(simulation.population.separations))]
    pick = names.index(confirmation.contestants[0].name)
    truth, difference = _truths(simulation.population)[pick], confirmation.versus["fedavg"]["own"]
    low, high, here_low, here_high = (
        np.nan if end is None else end
        for end in (difference.low, difference.high, difference.here_low, difference.here_high)
    )
    here = np.nan
    if number < HERE_STUDIES:
        here = here_low <= _here(simulation.population, sample, number, pick, len(confirmation.seeds)) <= here_high
    better, worse = (confirmation.verdict == verdict for verdict in ("better", "worse"))
    return _Judged(
        seeds_used=len(confirmation.seeds),
        new_data=low <= truth <= high,
        here=here,
        better=better,
        wrong=(better and truth <= 0) or (worse and truth >= 0),
        half_width=(high - low) / 2,
    )


class _NoLog:
    """A study that nobody goes on with."""

    def read(self, config_hash: str | None = None) -> list[Trial]:
        del config_hash
        return []

    def append(self, trial: Trial) -> Path:
        del trial
        return Path()


def _study(simulation: Simulation, seeds: int, number: int) -> tuple[Sample, Confirmation]:
    """Draw a federation, let every candidate be scored on the study's seed, and confirm the best."""
    sample, specs = Sample(simulation.population, number), configurations(len(simulation.population.separations))
    facts = StudyFacts(
        "simulated", 1, Cohort(NUM_CLIENTS, NUM_CLIENTS, 0.1), Session(seed=number), guessing=sample.guessing
    )
    runner = cast(TrialRunner, SimulatedRunner(sample, specs))
    ledger = Ledger(facts, runner, cast(TrialLog, _NoLog()))
    searched = ledger.run([facts.trial("search", spec) for spec in specs[1:]])
    scored = [trial for trial in searched if trial.status == "completed"]
    if not scored:  # no candidate went through: another federation
        return _study(simulation, seeds, number + 10**6)
    config = SearchConfig(confirmation_seeds=seeds, confirmation_batch=simulation.batch)
    confirmation = confirm_winner(config, ledger, scored, [])
    assert confirmation is not None
    return sample, confirmation


def _worth(population: Population, group: int, accuracy: float, guessing: float) -> float:
    """Return what a configuration is worth, its failures counted as guessing."""
    failing = population.failures[group]
    return (1 - failing) * accuracy + failing * guessing


@cache
def _truths(population: Population) -> tuple[float, ...]:
    """Return each configuration's mean difference to FedAvg over federations drawn anew."""
    totals = np.zeros(len(population.separations))
    for number in range(NUM_FEDERATIONS):
        sample = Sample(population, 10**9 + number)
        train, test = sample.split(number, Session().test_fraction)
        for group in range(len(totals)):
            totals[group] += _worth(population, group, sample.accuracy(group, train, test), sample.guessing)
    return tuple(((totals - totals[0]) / NUM_FEDERATIONS).tolist())


def _here(population: Population, sample: Sample, number: int, pick: int, num_seeds: int) -> float:
    """Return the mean difference of the pick to FedAvg over splits of the very rows."""
    total, num_splits = 0.0, SPLITS_A_SEED * num_seeds
    for seed in range(num_splits):
        train, test = sample.split(2**40 + 10_000 * number + seed, Session().test_fraction)
        pair = [_worth(population, group, sample.accuracy(group, train, test), sample.guessing) for group in (pick, 0)]
        total += pair[0] - pair[1]
    return total / num_splits
