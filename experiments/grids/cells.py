"""Measures one cell of an experiment: builds its federation, trains what its log lacks, and returns a value a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from fedscout.detectors import HeterogeneityReport
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, DataError, Fault, RecommenderError, StrategyError
from fedscout.engine.trials.record import FITNESS_ROUNDS, Trial
from fedscout.experiments.config import StudyConfig
from fedscout.experiments.grids.experiment import Cell, Experiment, arguments
from fedscout.experiments.grids.federation_runner import (
    Choice,
    FederationRunner,
    built_federation,
    open_federation,
    other_seeds,
    search_seeds,
)
from fedscout.experiments.grids.methods import BestOfKind, Choose, Detect, Given, Method, Search, Train, imported
from fedscout.experiments.grids.recommenders import RECOMMENDERS, ChoiceTask, Recommender
from fedscout.experiments.reinforcement import ENVIRONMENTS
from fedscout.experiments.studies.checks import language_model
from fedscout.experiments.studies.workflow import study_facts, with_strategy
from fedscout.search.confirmation.confirmation import score_of
from fedscout.search.confirmation.intervals import tested_to_trained
from fedscout.search.confirmation.runs import resolution
from fedscout.search.ledger import BASELINE, Ledger, median_of, trainings_of
from fedscout.search.recommenders.language_model import recommend_by_llm
from fedscout.search.study import StudyOutcome, run_study
from fedscout.strategies import parse_strategy

TUNING_SEEDS = 2
LANGUAGE_MODEL = "language model"
RATE = "client learning rate, tuned"

Note = Callable[[str], None]
Values = tuple[float | None, ...]
"""One a seed, in the same order of seeds everywhere; None where a seed has no such number."""


@dataclass(frozen=True)
class CellContext:
    """Where and on how many seeds cells are measured.

    Attributes:
        folder: Its studies share their trials there.
        settings: Arguments that hold for every cell, which win.
        num_seeds: Of each cell.
        note: Told what is done next.
        fresh_stream: From which the seeds are drawn.
        tuning_stream: From which those of the client rates are.
    """

    folder: Path
    settings: tuple[str, ...] = ()
    num_seeds: int = 5
    note: Note = lambda _: None
    fresh_stream: str = "reproduction"
    tuning_stream: str = "tuning"

    @property
    def fresh_seeds(self) -> tuple[int, ...]:
        """Of every cell."""
        return other_seeds(self.fresh_stream, self.num_seeds)


@dataclass(frozen=True)
class Measured:
    """Numbers of cells.

    Attributes:
        values: By cell.
        test_to_train: n_test / n_train of the splits behind them, by which intervals widen; 0 where there is none.
        absent: What could not be measured, and why.
        figures: Further numbers of cells by what they are, one a seed, or one such as the client rate that was tuned.
        resolution: Step of the scale, such as one test row's share; 0 where it is not known.
    """

    values: Mapping[Cell, Values]
    test_to_train: float = 0.0
    absent: Mapping[str, str] = field(default_factory=dict)
    figures: Mapping[str, Mapping[Cell, Values]] = field(default_factory=dict)
    resolution: float = 0.0


def together(parts: Sequence[Measured]) -> Measured:
    """Return the numbers of several parts of an experiment as one."""
    figures: dict[str, dict[Cell, Values]] = {}
    for part in parts:
        for name, cells in part.figures.items():
            figures.setdefault(name, {}).update(cells)
    return Measured(
        {cell: values for part in parts for cell, values in part.values.items()},
        max((part.test_to_train for part in parts), default=0.0),
        {what: why for part in parts for what, why in part.absent.items()},
        figures,
        max((part.resolution for part in parts), default=0.0),
    )


class Measurement(Protocol):
    """What an experiment's `measured_by` makes; what it has measured before need not be measured again."""

    def measure(self, experiment: Experiment, context: CellContext) -> Measured:
        """Return the numbers of all cells.

        Raises:
            UserError: If something can't be built or trained as it is asked for.
        """
        ...


def measure_cell(experiment: Experiment, cell: Cell, context: CellContext) -> Measured:
    """Return the numbers of one cell; a federation whose data are not there, or a method that can't be, is absent.

    Raises:
        UserError: If a setting is wrong.
    """
    row, column = cell
    method = experiment.rows[row]
    assert method is not None
    assert not isinstance(method, Given)
    given = arguments(experiment.federations[column])
    own = () if isinstance(method, (Search, Choose, BestOfKind)) else arguments(method.settings)
    try:
        if isinstance(method, Detect):
            return Measured({cell: _detected(method, (*given, *own), context)})
        built = built_federation(" × ".join(cell), (*given, *own), context.settings)
        with open_federation(built, context.folder) as runner:
            found = _measured(method, runner, context)
    except (DataError, StrategyError, RecommenderError, _ImpossibleError) as reason:
        return Measured({}, absent={" × ".join(cell): str(reason)})
    absent = {" × ".join(cell): found.failures} if found.failures else {}
    figures = {} if found.rate is None else {RATE: {cell: (found.rate,)}}
    return Measured({cell: found.values}, split_ratio(built.config), absent, figures, found.resolution)


class _ImpossibleError(Exception):
    """A method can't be had here, as no language model answers."""


class _Found(NamedTuple):
    """Of a cell: a value a seed, the scale's step, the client rate if it was tuned, how many trials failed and why."""

    values: Values
    resolution: float
    rate: float | None = None
    failures: str = ""


def _measured(method: Method, runner: FederationRunner, context: CellContext) -> _Found:
    if isinstance(method, Train):
        return _trained(method, runner, context)
    seeds = search_seeds(context.num_seeds)
    if isinstance(method, BestOfKind):
        outcomes = [_searched(ChoiceTask(runner, seed), arguments(method.settings)) for seed in seeds]
        trials = [[found.baseline, *found.whole_trials] for found in outcomes]
        return _Found(tuple(_best_of(method.strategy, own) for own in trials), resolution(trials))
    choices = [_choice(method, ChoiceTask(runner, seed), context) for seed in seeds]
    records = [runner.records([choice], [seed])[0] for choice, seed in zip(choices, context.fresh_seeds, strict=True)]
    return _Found(tuple(record.fitness for record in records), resolution([records]))


def _trained(method: Train, runner: FederationRunner, context: CellContext) -> _Found:
    config = with_strategy(runner.config)
    federation = runner.federation
    asked = study_facts(config, federation.without_rows())
    spec = parse_strategy(config.strategy or {}, asked.cohort)
    facts = replace(asked, repetitions=1)  # each training is in the log
    ledger = Ledger(facts, runner.trials, runner.trials.log)
    chance = chance_level(federation)

    def records(seeds: Sequence[int], rate: float | None) -> list[Trial]:
        settings = facts.trial("confirmation", spec, learning_rate=rate)
        trials = [settings.on_seed(seed) for seed in seeds]
        trainings = [trainings_of(trial, asked.repetitions) for trial in trials]
        trained = iter(ledger.run([*chain.from_iterable(trainings)]))
        return [median_of(trial, [*islice(trained, len(own))]) for trial, own in zip(trials, trainings, strict=True)]

    def scores(trials: Sequence[Trial]) -> Values:
        if method.score == "best_round":
            return tuple(best_round(trial, chance) for trial in trials)
        return tuple(score_of(trial, facts.view, chance) for trial in trials)

    rate = None
    if method.rates:
        tuning = other_seeds(context.tuning_stream, TUNING_SEEDS)
        means = [float(np.mean(np.array(scores(records(tuning, one)), np.float64))) for one in method.rates]
        rate = method.rates[means.index(max(means))]
    trials = records(context.fresh_seeds, rate)
    reasons = [trial.error or "" for trial in trials if trial.status == "failed"]
    failures = f"{len(reasons)} of {len(trials)} failed, the first: {reasons[0]}" if reasons else ""
    if method.seconds_to is not None:
        return _Found(tuple(seconds_to(trial, method.seconds_to) for trial in trials), 0.0, rate, failures)
    return _Found(scores(trials), resolution([trials]), rate, failures)


def best_round(trial: Trial, chance: float) -> float:
    """Return the best accuracy of all rounds, on uncorrupted test rows; chance if the trial failed."""
    return max(trial.round_clean_accuracy) if trial.status == "completed" else chance


def seconds_to(trial: Trial, target: float) -> float | None:
    """Return the simulated seconds until the running mean of five rounds reaches a target; None if it never does."""
    accuracies = np.array(trial.round_clean_accuracy, np.float64)
    if trial.status != "completed" or trial.round_seconds is None or len(accuracies) < FITNESS_ROUNDS:
        return None
    means = np.convolve(accuracies, np.full(FITNESS_ROUNDS, 1 / FITNESS_ROUNDS), "valid")
    reached = np.flatnonzero(means >= target)
    return float(np.sum(trial.round_seconds[: reached[0] + FITNESS_ROUNDS])) if len(reached) else None


def _choice(method: Method, task: ChoiceTask, context: CellContext) -> Choice:
    """Return what a method chooses.

    Raises:
        RecommenderError: If a language model gives no valid answer.
    """
    given = arguments(method.settings)
    if isinstance(method, Choose) and method.by != LANGUAGE_MODEL:
        return _recommender(method.by).choose(task)
    asks = isinstance(method, Choose) or (isinstance(method, Search) and method.asks_model)
    if asks and (reason := RECOMMENDERS["LLM"].unavailable(task.config(given), context.folder)):
        raise _ImpossibleError(reason)
    if isinstance(method, Choose):
        with language_model(task.config(given), task.context.out) as model:
            return Choice(recommend_by_llm(task.situation(), model).spec)
    assert isinstance(method, Search)
    outcome = _searched(task, given, method.asks_model)
    trial = outcome.worst if method.take == "worst" else outcome.best
    return Choice(BASELINE if trial is None else trial.spec, outcome.trainings)


def _recommender(name: str) -> Recommender:
    if name not in RECOMMENDERS:
        known = ", ".join([*RECOMMENDERS, LANGUAGE_MODEL])
        raise ConfigurationError(Fault("a recommender", f"be one of {known}", repr(name)))
    return RECOMMENDERS[name]


def _searched(task: ChoiceTask, given: tuple[str, ...], asks_model: bool = False) -> StudyOutcome:
    """Return what a search found, without a confirmation."""
    config = task.config(given)
    ledger, report = task.context.ledger(config), task.context.report(task.seed)
    if not asks_model:
        return run_study(config.search, ledger, report)
    with language_model(config, task.context.out) as model:
        return run_study(config.search, ledger, report, model=model)


def _best_of(kind: str, trials: Sequence[Trial]) -> float | None:
    return max((trial.fitness for trial in trials if trial.spec.kind == kind), default=None)


def _detected(method: Detect, given: Sequence[str], context: CellContext) -> Values:
    """Return a number of a report a seed, which decides who holds which rows, and the models."""
    read, found = _reader(method.value), []
    for seed in search_seeds(context.num_seeds):
        built = built_federation("", (*given, f"federation.seed={seed}"), context.settings)
        with open_federation(built, context.folder) as runner:
            found.append(read(runner.report(seed)))
    return tuple(found)


def _reader(value: str) -> Callable[[HeterogeneityReport], float | None]:
    """Return what reads a number of a report: a function by import path, or the path of a field."""
    if ":" in value:
        read: Callable[[HeterogeneityReport], float | None] = imported(value)
        return read
    return attrgetter(value)


def chance_level(federation: Federation) -> float:
    """Return the share of the most frequent class among all clients' rows, with the labels that they have.

    0 where clients play, or a quantity is predicted.
    """
    if federation.task is not None or federation.targets is not None:
        return 0.0
    clients = (federation.client_data(client).own for client in range(federation.num_clients))
    counts = np.sum([client.label_counts(federation.num_classes) for client in clients], axis=0)
    return float(counts.max() / counts.sum())


def split_ratio(config: StudyConfig) -> float:
    """Return n_test / n_train; 0 of clients that play, whose seeds share no rows."""
    if config.federation.dataset in ENVIRONMENTS:
        return 0.0
    return tested_to_trained(config.training.test_fraction, config.search.validation_fraction)
