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
from fedscout.engine.trials.trial_record import FITNESS_ROUNDS, Trial
from fedscout.experiments.benchmarks.choice.choice_battery import FederationCase, ReadyCase
from fedscout.experiments.benchmarks.choice.choice_choosers import CHOOSERS, Chooser, Choosing
from fedscout.experiments.benchmarks.choice.choice_laboratory import (
    Laboratory,
    Pick,
    open_laboratory,
    other_seeds,
    search_seeds,
)
from fedscout.experiments.config.config_file import load_config
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.federations.assembly.build_federation import build_federation
from fedscout.experiments.federations.environments.environment_table import ENVIRONMENTS
from fedscout.experiments.grids.experiment import Cell, Experiment, arguments
from fedscout.experiments.grids.methods import BestOfKind, Choose, Detect, Method, Search, Train, imported
from fedscout.experiments.studies.study_language_model import language_model
from fedscout.experiments.studies.workflow import study_facts, with_strategy
from fedscout.search.confirmation.confirmation import score_of
from fedscout.search.confirmation.confirmation_runs import resolution
from fedscout.search.confirmation.intervals import tested_to_trained
from fedscout.search.ledger import Ledger
from fedscout.search.recommenders.llm_recommender import recommend_by_llm
from fedscout.search.repetitions import median_of, trainings_of
from fedscout.search.study.study import StudyOutcome, run_study
from fedscout.search.study_trials import BASELINE
from fedscout.strategies import parse_strategy

TUNING_SEEDS = 2
LANGUAGE_MODEL = "language model"

Note = Callable[[str], None]
Values = tuple[float | None, ...]
"""One a seed, in the same order of seeds everywhere; None where a seed has no such number."""


@dataclass(frozen=True)
class Desk:
    """Where cells are measured.

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
        rates: Client learning rate of each cell that tuned it.
        resolution: Step of the scale, such as one test row's share; 0 where it is not known.
    """

    values: Mapping[Cell, Values]
    test_to_train: float = 0.0
    absent: Mapping[str, str] = field(default_factory=dict)
    rates: Mapping[Cell, float] = field(default_factory=dict)
    resolution: float = 0.0


class Measurement(Protocol):
    """What an experiment's `measured_by` makes; what it has measured before need not be measured again."""

    def measure(self, desk: Desk) -> Measured:
        """Return the numbers of all cells.

        Raises:
            UserError: If something can't be built or trained as it is asked for.
        """
        ...


def measure_cell(experiment: Experiment, cell: Cell, desk: Desk) -> Measured:
    """Return the numbers of one cell; a federation whose data are not there, or a method that can't be, is absent.

    Raises:
        UserError: If a setting is wrong.
    """
    row, column = cell
    method = experiment.rows[row]
    assert method is not None
    given = arguments(experiment.federations[column])
    own = () if isinstance(method, (Search, Choose, BestOfKind)) else arguments(method.settings)
    try:
        if isinstance(method, Detect):
            return Measured({cell: _detected(method, (*given, *own), desk)})
        ready = _ready(" × ".join(cell), (*given, *own), desk.settings)
        with open_laboratory(ready, desk.folder) as laboratory:
            found = _measured(method, laboratory, desk)
    except (DataError, StrategyError, RecommenderError, _ImpossibleError) as reason:
        return Measured({}, absent={" × ".join(cell): str(reason)})
    absent = {" × ".join(cell): found.failures} if found.failures else {}
    rates = {} if found.rate is None else {cell: found.rate}
    return Measured({cell: found.values}, split_ratio(ready.config), absent, rates, found.resolution)


class _ImpossibleError(Exception):
    """A method can't be had here, as no language model answers."""


def read_config(given: Sequence[str], settings: Sequence[str] = ()) -> StudyConfig:
    """Return the configuration of a cell, which runs in this process unless the settings say otherwise."""
    return load_config(["engine.grid=local", *given, *settings])


def _ready(name: str, given: Sequence[str], settings: Sequence[str]) -> ReadyCase:
    config = read_config(given, settings)
    federation = build_federation(config.federation, config.model)
    return ReadyCase(FederationCase(name, tuple(given)), (*given, *settings), config, federation)


class _Found(NamedTuple):
    """Of a cell: a value a seed, the scale's step, the client rate if it was tuned, how many trials failed and why."""

    values: Values
    resolution: float
    rate: float | None = None
    failures: str = ""


def _measured(method: Method, laboratory: Laboratory, desk: Desk) -> _Found:
    if isinstance(method, Train):
        return _trained(method, laboratory, desk)
    seeds = search_seeds(desk.num_seeds)
    if isinstance(method, BestOfKind):
        outcomes = [_searched(Choosing(laboratory, seed), arguments(method.settings)) for seed in seeds]
        trials = [[found.baseline, *found.whole_trials] for found in outcomes]
        return _Found(tuple(_best_of(method.strategy, own) for own in trials), resolution(trials))
    picks = [_pick(method, Choosing(laboratory, seed), desk) for seed in seeds]
    records = [laboratory.records([pick], [seed])[0] for pick, seed in zip(picks, desk.fresh_seeds, strict=True)]
    return _Found(tuple(record.fitness for record in records), resolution([records]))


def _trained(method: Train, laboratory: Laboratory, desk: Desk) -> _Found:
    config = with_strategy(laboratory.config)
    federation = laboratory.ready.federation
    asked = study_facts(config, federation.without_rows())
    spec = parse_strategy(config.strategy or {}, asked.cohort)
    facts = replace(asked, repetitions=1)  # each training is in the log
    ledger = Ledger(facts, laboratory.runner, laboratory.runner.log)
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
        tuning = other_seeds(desk.tuning_stream, TUNING_SEEDS)
        means = [float(np.mean(np.array(scores(records(tuning, one)), np.float64))) for one in method.rates]
        rate = method.rates[means.index(max(means))]
    trials = records(desk.fresh_seeds, rate)
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


def _pick(method: Method, choosing: Choosing, desk: Desk) -> Pick:
    """Return what a method chooses.

    Raises:
        RecommenderError: If a language model gives no valid answer.
    """
    given = arguments(method.settings)
    if isinstance(method, Choose) and method.by != LANGUAGE_MODEL:
        return _chooser(method.by).choose(choosing)
    asks = isinstance(method, Choose) or (isinstance(method, Search) and method.asks_model)
    if asks and (reason := CHOOSERS["LLM"].unavailable(choosing.config(given), desk.folder)):
        raise _ImpossibleError(reason)
    if isinstance(method, Choose):
        with language_model(choosing.config(given), choosing.laboratory.out) as model:
            return Pick(recommend_by_llm(choosing.situation(), model).spec)
    assert isinstance(method, Search)
    outcome = _searched(choosing, given, method.asks_model)
    trial = outcome.worst if method.take == "worst" else outcome.best
    return Pick(BASELINE if trial is None else trial.spec, outcome.trainings)


def _chooser(name: str) -> Chooser:
    if name not in CHOOSERS:
        known = ", ".join([*CHOOSERS, LANGUAGE_MODEL])
        raise ConfigurationError(Fault("a chooser", f"be one of {known}", repr(name)))
    return CHOOSERS[name]


def _searched(choosing: Choosing, given: tuple[str, ...], asks_model: bool = False) -> StudyOutcome:
    """Return what a search found, without a confirmation."""
    config, laboratory = choosing.config(given), choosing.laboratory
    ledger, report = laboratory.ledger(config), laboratory.report(choosing.seed)
    if not asks_model:
        return run_study(config.search, ledger, report)
    with language_model(config, laboratory.out) as model:
        return run_study(config.search, ledger, report, model=model)


def _best_of(kind: str, trials: Sequence[Trial]) -> float | None:
    return max((trial.fitness for trial in trials if trial.spec.kind == kind), default=None)


def _detected(method: Detect, given: Sequence[str], desk: Desk) -> Values:
    """Return a number of a report a seed, which decides who holds which rows, and the models."""
    read, found = _reader(method.value), []
    for seed in search_seeds(desk.num_seeds):
        ready = _ready("", (*given, f"federation.seed={seed}"), desk.settings)
        with open_laboratory(ready, desk.folder) as laboratory:
            found.append(read(laboratory.report(seed)))
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
