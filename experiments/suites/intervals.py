"""How often a confirmation's intervals hold the truth, and how often it says "better" wrongly.

Each study draws a federation from a population whose truth is known (`intervals.py`), and goes the way
that every study goes: the ledger, `confirm_winner`, its plan of looks, its intervals and its verdict. Truths:

- *new data*: the mean difference over federations drawn anew, each split and trained once;
- *here*: the mean difference over all splits of the very rows, from many other seeds.

A run that fails is worth guessing in both, as it is in the confirmation.

Trials of which the truth is known: classifiers in closed form on rows drawn from a known population.

A row has a label, 0 or 1 with equal chances, and G groups of features, each feature N(±δ_g/2, 1) by the label.
Configuration g classifies by the nearest of two means over group g alone, which it takes from the training rows of all
clients. So configurations with equal δ are equally good, and how good they are on rows that nobody has seen can be
measured on as many as one likes. Rows are split as the engine splits them, by the trial's seed, so seeds of a study
share their rows just as they do for real.

Rows may belong together, as visits of a subject do: they then have the label of the subject, a part of the features'
variance between them, and go to one side of a split together.

A configuration may also fail, with a chance of its own, drawn from the trial's seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from fedscout.engine.data.split import split_client
from fedscout.engine.messages.calls import Cohort, Session
from fedscout.engine.seeds import stream
from fedscout.engine.trials.log import TrialLog
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.runner import Progress, TrialRunner
from fedscout.experiments.grids.cells import CellContext, Measured, together
from fedscout.experiments.grids.experiment import Cell, Experiment
from fedscout.experiments.grids.methods import Given
from fedscout.search.config import SearchConfig
from fedscout.search.confirmation.confirmation import Confirmation
from fedscout.search.confirmation.runs import confirm_winner
from fedscout.search.ledger import Ledger, StudyFacts
from fedscout.strategies import FedAdamSpec, FedAvgSpec, StrategySpec

NUM_CLIENTS, CLIENT_ROWS, GROUP_FEATURES = 5, 40, 4

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Population:
    """What rows are drawn from.

    Attributes:
        separations: δ_g of each configuration, FedAvg's first.
        failures: Chance of each to fail.
        group_rows: Rows of a subject; divides `CLIENT_ROWS`.
        alike: Share of a feature's variance within a class that rows of a subject have in common, in `[0, 1]`.
    """

    separations: tuple[float, ...]
    failures: tuple[float, ...]
    group_rows: int = 1
    alike: float = 0.0

    @classmethod
    def of(cls, separations: Sequence[float], failures: Sequence[float], **rest: Any) -> Population:
        """Return a population that can be told from others, from lists of a file."""
        return cls(tuple(separations), tuple(failures), **rest)

    def draw(self, num_rows: int, generator: np.random.Generator) -> tuple[npt.NDArray[np.int64], Array]:
        """Return labels, shape `(num_rows,)`, and features, shape `(groups, num_rows, features)`; subjects in turn."""
        num_subjects = num_rows // self.group_rows
        labels = np.repeat(generator.integers(2, size=num_subjects), self.group_rows)
        features = generator.standard_normal((len(self.separations), num_rows, GROUP_FEATURES))
        if self.alike:
            common = generator.standard_normal((len(self.separations), num_subjects, GROUP_FEATURES))
            features *= np.sqrt(1 - self.alike)
            features += np.sqrt(self.alike) * np.repeat(common, self.group_rows, axis=1)
        features += (np.array(self.separations) / 2)[:, None, None] * (2 * labels - 1)[None, :, None]
        return labels, features


def configurations(count: int) -> list[StrategySpec]:
    """Return so many configurations, FedAvg first; which one it is decides the group of features, and nothing else."""
    return [FedAvgSpec(), *(FedAdamSpec(eta=0.01 * place) for place in range(1, count))]


class Sample:
    """The rows of one federation, and what trials on them give.

    Args:
        population: Where they come from.
        seed: Of the draw.
    """

    def __init__(self, population: Population, seed: int) -> None:
        self._population = population
        generator = stream(seed, "simulated federation")
        self._labels, self._features = population.draw(NUM_CLIENTS * CLIENT_ROWS, generator)
        self._split: tuple[int, npt.NDArray[np.bool_]] | None = None

    @property
    def guessing(self) -> float:
        """Share of the more frequent class."""
        return float(np.bincount(self._labels).max() / len(self._labels))

    def split(self, seed: int, test_fraction: float) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Return which rows train and which test under a seed; the last answer is kept."""
        if self._split is not None and self._split[0] == seed:
            return ~self._split[1], self._split[1]
        test = np.zeros(len(self._labels), np.bool_)
        subject_rows = self._population.group_rows
        subjects = None if subject_rows == 1 else np.arange(CLIENT_ROWS) // subject_rows
        for client, first in enumerate(range(0, len(test), CLIENT_ROWS)):
            own = self._labels[first : first + CLIENT_ROWS]
            test[first + split_client(own, seed, client, test_fraction, groups=subjects).test] = True
        self._split = seed, test
        return ~test, test

    def accuracy(self, group: int, train: npt.NDArray[np.bool_], test: npt.NDArray[np.bool_]) -> float:
        """Return the accuracy on test rows of what a configuration learns of training rows."""
        features, labels = self._features[group], self._labels
        low, high = (features[train & (labels == label)].mean(axis=0) for label in (0, 1))
        found = (features[test] - (low + high) / 2) @ (high - low) > 0
        return float((found == labels[test]).mean())

    def fails(self, group: int, seed: int) -> bool:
        """Return whether a configuration fails under a seed."""
        return float(stream(seed, "simulated failure", group).random()) < self._population.failures[group]


@dataclass
class SimulatedRunner:
    """Runs trials on a sample; satisfies what a ledger needs of a runner.

    Attributes:
        sample: The rows.
        specs: The configurations, by their group of features.
    """

    sample: Sample
    specs: Sequence[StrategySpec]

    @property
    def facts(self) -> Any:
        """Nothing is known of a federation."""
        raise NotImplementedError("simulated trials have no federation")

    def run(self, batch: Sequence[TrialSettings], progress: Progress | None = None) -> Iterator[tuple[int, Trial]]:
        """Yield each trial."""
        del progress
        for position, settings in enumerate(batch):
            yield position, self._trial(settings)

    def forget(self, key: str) -> None:
        """Nothing was kept."""

    def _trial(self, settings: TrialSettings) -> Trial:
        session, group = settings.session, self.specs.index(settings.strategy)
        if self.sample.fails(group, session.seed):
            return Trial.of(settings, status="failed", error="it was drawn to fail")
        train, test = self.sample.split(session.seed, session.test_fraction)
        accuracy = self.sample.accuracy(group, train, test)
        rounds = dict.fromkeys(("round_accuracy", "round_clean_accuracy"), (accuracy,))
        rest = dict.fromkeys(("round_loss", "round_clean_loss", "round_train_loss"), (0.0,))
        tested = tuple([int(test.sum()) // NUM_CLIENTS] * NUM_CLIENTS)
        return Trial.of(
            settings, status="completed", **rounds, **rest, client=tuple(range(NUM_CLIENTS)), client_num_examples=tested
        )


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
