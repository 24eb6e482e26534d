"""Measurement of the cells of an experiment, in parallel on Ray or sequentially in this process.

A cell has one value per seed, from trainings, searches or detections.

OUT/studies/<federation>/trials/   ordinary trial logs, in which no training is repeated
OUT/cells/<digest>.json            a finished cell
OUT/<name>.json, <name>.md, <name>.svg   the numbers, the table, the chart

A cell's file is named by the digest of everything that determines it, so an interrupted run resumes, and another row,
column or seed measures only what is new. A cell that fails, or whose process dies twice, is reported as absent and does
not affect the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ValidationError

from fedscout.detectors import HeterogeneityReport
from fedscout.engine.config import EngineConfig
from fedscout.engine.errors import ConfigurationError, DataError, RecommenderError, UserError
from fedscout.engine.runtime.files import Storage, mounted_at, storage_of
from fedscout.engine.trials.record import FITNESS_ROUNDS, Trial
from fedscout.experiments.config import StudyConfig, check_searchable
from fedscout.experiments.grids import federation_runner
from fedscout.experiments.grids.experiment import (
    BestOfKind,
    Cell,
    Choose,
    Detect,
    Experiment,
    Given,
    Method,
    Search,
    Train,
    arguments,
    imported,
)
from fedscout.experiments.grids.recommenders import LLM, ChoiceTask, recommender_named, searched
from fedscout.experiments.reinforcement import ENVIRONMENTS
from fedscout.experiments.studies.one_shot import model_of_search
from fedscout.experiments.studies.run_folder import GridFolder, read_json, versions
from fedscout.experiments.studies.workers import Display, End, Piece, end_of, reported, run_pieces
from fedscout.search.confirmation.confirmation import score_of
from fedscout.search.confirmation.intervals import tested_to_trained
from fedscout.search.confirmation.runs import resolution
from fedscout.search.ledger import BASELINE
from fedscout.search.study import ASKS_A_LANGUAGE_MODEL
from fedscout.strategies import parse_strategy

TUNING_SEEDS = 2
COST = "cost, trainings"
RATE = "client learning rate, tuned"

Note = Callable[[str], None]
Values = tuple[float | None, ...]
"""One value per seed, always in the same order of seeds; None if a seed has no value."""


@dataclass(frozen=True)
class CellContext:
    """The folder, settings and seeds of the cells.

    Attributes:
        folder: The folder whose studies share their trials.
        settings: Arguments that override those of every cell.
        num_seeds: Number of seeds of each cell.
        note: Called with a description of the next step.
        fresh_stream: Name of the random stream of the seeds.
        tuning_stream: Name of the random stream of the seeds for tuning client rates.
    """

    folder: Path
    settings: tuple[str, ...] = ()
    num_seeds: int = 5
    note: Note = lambda _: None
    fresh_stream: str = "reproduction"
    tuning_stream: str = "tuning"

    @property
    def fresh_seeds(self) -> tuple[int, ...]:
        """The seeds of every cell."""
        return federation_runner.other_seeds(self.fresh_stream, self.num_seeds)


class CellValues(BaseModel, frozen=True):
    """The numbers of a cell, as its file stores them.

    Attributes:
        values: One per seed.
        test_to_train: n_test / n_train of the split, by which intervals are widened; 0 without a split.
        resolution: Step of the scale, such as the share of one test row; 0 if unknown.
        failures: A description of failed trials; empty without any.
        figures: Further numbers by their name: one per seed, or a single one such as a tuned client rate.
    """

    values: Values
    test_to_train: float = 0.0
    resolution: float = 0.0
    failures: str = ""
    figures: Mapping[str, Values] = {}


@dataclass(frozen=True)
class Measured:
    """The numbers of all measured cells.

    Attributes:
        cells: By row and column.
        missing: What could not be measured, and why.
    """

    cells: Mapping[Cell, CellValues]
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def absent(self) -> dict[str, str]:
        """What could not be measured and what failed, and why."""
        failures = {cell_name(cell): numbers.failures for cell, numbers in self.cells.items() if numbers.failures}
        return {**self.missing, **failures}

    @property
    def test_to_train(self) -> float:
        """The largest n_test / n_train of the cells' splits."""
        return max((numbers.test_to_train for numbers in self.cells.values()), default=0.0)

    @property
    def resolution(self) -> float:
        """The coarsest step of the cells' scales."""
        return max((numbers.resolution for numbers in self.cells.values()), default=0.0)

    @property
    def values(self) -> dict[Cell, Values]:
        """The values of each cell."""
        return {cell: numbers.values for cell, numbers in self.cells.items()}

    @property
    def figures(self) -> dict[str, dict[Cell, Values]]:
        """Further numbers by their name, for all cells that have them."""
        figures: dict[str, dict[Cell, Values]] = {}
        for cell, numbers in self.cells.items():
            for name, values in numbers.figures.items():
                figures.setdefault(name, {})[cell] = values
        return figures


def cell_name(cell: Cell) -> str:
    """Return a cell's name in messages."""
    return " × ".join(cell)


def built_columns(
    experiment: Experiment, context: CellContext
) -> tuple[list[federation_runner.BuiltFederation], dict[str, str]]:
    """Return the federation of every column whose data are available, and why the others are not."""
    built, missing = [], {}
    for column, settings in experiment.federations.items():
        try:
            built.append(federation_runner.built_federation(column, arguments(settings), context.settings))
        except DataError as error:
            missing[column] = str(error)
    return built, missing


def measure_cell(experiment: Experiment, cell: Cell, context: CellContext) -> CellValues:
    """Return the numbers of one cell.

    Raises:
        UserError: If its data or its method are unavailable, or a setting is wrong.
    """
    row, column = cell
    method = experiment.rows[row]
    assert isinstance(method, BaseModel)
    if isinstance(method, Given):
        measure_given = imported(str(method.function))
        found: CellValues = measure_given(
            cell, {**experiment.federations[column], **method.settings}, context, **method.arguments
        )
        return found
    given = arguments(experiment.federations[column])
    method_arguments = () if isinstance(method, (Search, Choose, BestOfKind)) else arguments(method.settings)
    if isinstance(method, Detect):
        return CellValues(values=_detected(method, (*given, *method_arguments), context))
    built = federation_runner.built_federation(cell_name(cell), (*given, *method_arguments), context.settings)
    with federation_runner.open_federation(built, context.folder) as runner:
        numbers = _measured(method, runner, context)
    return numbers.model_copy(update={"test_to_train": split_ratio(built.config)})


def _measured(method: Method, runner: federation_runner.FederationRunner, context: CellContext) -> CellValues:
    if isinstance(method, Train):
        return _trained(method, runner, context)
    seeds = range(context.num_seeds)
    if isinstance(method, BestOfKind):
        outcomes = [searched(ChoiceTask(runner, seed), arguments(method.settings)) for seed in seeds]
        trials = [[outcome.baseline, *outcome.full_trials] for outcome in outcomes]
        best = [
            max((trial.fitness for trial in seed_trials if trial.spec.kind == method.strategy), default=None)
            for seed_trials in trials
        ]
        return CellValues(values=tuple(best), resolution=resolution(trials, runner.facts.measure))
    assert isinstance(method, Search | Choose)
    choices = [_choice(method, ChoiceTask(runner, seed), context) for seed in seeds]
    records = [runner.records([choice], [seed])[0] for choice, seed in zip(choices, context.fresh_seeds, strict=True)]
    return CellValues(
        values=tuple(score_of(record, runner.facts.view, runner.facts.guessing) for record in records),
        resolution=resolution([records], runner.facts.measure),
        failures=failures_of(records),
        figures={COST: tuple(choice.cost for choice in choices)},
    )


def _trained(method: Train, runner: federation_runner.FederationRunner, context: CellContext) -> CellValues:
    facts = runner.facts
    spec = parse_strategy(runner.config.strategy or "fedavg", facts.cohort)

    def records(seeds: Sequence[int], rate: float | None) -> list[Trial]:
        return runner.records([federation_runner.Choice(spec, learning_rate=rate)], seeds)

    def scores(trials: Sequence[Trial]) -> Values:
        if method.score == "best_round":
            return tuple(best_round(trial, facts.guessing) for trial in trials)
        return tuple(score_of(trial, facts.view, facts.guessing) for trial in trials)

    rate = None
    if method.rates:
        tuning = federation_runner.other_seeds(context.tuning_stream, TUNING_SEEDS)
        means = [float(np.mean(np.array(scores(records(tuning, candidate)), np.float64))) for candidate in method.rates]
        rate = method.rates[means.index(max(means))]
    trials = records(context.fresh_seeds, rate)
    failures = failures_of(trials)
    figures: dict[str, Values] = {} if rate is None else {RATE: (rate,)}
    if method.seconds_to is not None:
        times = tuple(seconds_to(trial, method.seconds_to) for trial in trials)
        return CellValues(values=times, failures=failures, figures=figures)
    return CellValues(
        values=scores(trials), resolution=resolution([trials], facts.measure), failures=failures, figures=figures
    )


def failures_of(trials: Sequence[Trial]) -> str:
    """Return a description of the failed trials; empty without any."""
    reasons = [trial.error or "" for trial in trials if trial.status == "failed"]
    return f"{len(reasons)} of {len(trials)} trainings failed; first error: {reasons[0]}" if reasons else ""


def best_round(trial: Trial, chance: float) -> float:
    """Return the best accuracy of all rounds on uncorrupted test rows; chance if the trial failed."""
    return max(trial.rounds["clean_accuracy"]) if trial.status == "completed" else chance


def seconds_to(trial: Trial, target: float) -> float | None:
    """Return the simulated seconds until the moving mean of five rounds reaches a target; None if never."""
    accuracies = np.array(trial.rounds["clean_accuracy"], np.float64)
    if trial.status != "completed" or "seconds" not in trial.rounds or len(accuracies) < FITNESS_ROUNDS:
        return None
    means = np.convolve(accuracies, np.full(FITNESS_ROUNDS, 1 / FITNESS_ROUNDS), "valid")
    reached = np.flatnonzero(means >= target)
    return float(np.sum(trial.rounds["seconds"][: reached[0] + FITNESS_ROUNDS])) if len(reached) else None


def _choice(method: Search | Choose, task: ChoiceTask, context: CellContext) -> federation_runner.Choice:
    """Return the choice of a method.

    Raises:
        RecommenderError: If a language model gives no valid answer.
    """
    given = arguments(method.settings)
    config = task.config(given)
    if isinstance(method, Choose) or config.search.kind in ASKS_A_LANGUAGE_MODEL:
        recommender = recommender_named(method.by if isinstance(method, Choose) else LLM)
        if reason := recommender.unavailable(config, context.folder):
            raise RecommenderError(reason)
        if isinstance(method, Choose):
            return recommender.choose(replace(task, settings=given))
    with model_of_search(config, task.context.out) as model:
        outcome = searched(task, given, model=model)
    trial = outcome.worst if method.take == "worst" else outcome.best
    return federation_runner.Choice(BASELINE if trial is None else trial.spec, outcome.trainings)


def _detected(method: Detect, given: Sequence[str], context: CellContext) -> Values:
    """Return one number per seed, which determines partition and models, from heterogeneity reports."""
    read: Callable[[HeterogeneityReport], float | None]
    read = imported(method.value) if ":" in method.value else attrgetter(method.value)
    numbers = []
    for seed in range(context.num_seeds):
        built = federation_runner.built_federation("", (*given, f"federation.seed={seed}"), context.settings)
        with federation_runner.open_federation(built, context.folder) as runner:
            numbers.append(read(runner.report(seed)))
    return tuple(numbers)


def split_ratio(config: StudyConfig) -> float:
    """Return n_test / n_train; 0 for reinforcement-learning clients, whose seeds share no rows."""
    if config.federation.dataset in ENVIRONMENTS:
        return 0.0
    return tested_to_trained(config.training.test_fraction, config.search.validation_fraction)


CELLS = "cells"


def run_cells(
    experiment: Experiment, folder: GridFolder, context: CellContext, engine: EngineConfig, parallel: int | None = None
) -> Measured:
    """Return the numbers of all cells, measuring those that the folder lacks.

    Args:
        experiment: At its scale.
        folder: Locked by the caller.
        context: The folder of trials, settings and seeds.
        engine: `grid=local` runs cells sequentially in this process; else they run in parallel on Ray.
        parallel: Maximum number of parallel cells; None is the number of CPUs.

    Raises:
        UserError: If a setting is wrong in a cell.
    """
    if (measurement := experiment.measured_by) is not None:
        measured: Measured = imported(measurement.function)(**measurement.arguments).measure(experiment, context)
        return measured
    cells = finished_cells(experiment, folder.path, context)
    missing, all_cells = {}, experiment.measured()
    pending = {position: cell for position, cell in enumerate(all_cells) if cell not in cells}
    _check(experiment, [*pending.values()], context)
    worker_context = replace(context, folder=context.folder.absolute(), note=lambda _: None)
    shares_folders = any(isinstance(experiment.rows[row], Given) for row, _ in pending.values())
    if len(pending) < 2 or shares_folders:  # without Ray
        engine, parallel = engine.model_copy(update={"grid": "local"}), None
    storage = storage_of(worker_context.folder)
    pieces = [Piece(cell_name(cell), folder.path, 0, 1) for cell in all_cells]
    display = Display(begun=lambda position: context.note(pieces[position].name))
    ends = run_pieces(
        engine,
        run_cell,
        {position: (experiment, cell, worker_context, storage) for position, cell in pending.items()},
        parallel,
        display,
        search_path=(str(Path.cwd()),),
    )
    for position, end in reported(ends, pieces, display):
        cell = pending[position]
        if end.result is None:
            missing[cell_name(cell)] = end.error or "lost"
            continue
        cells[cell] = end.result
        names = dict(zip(("row", "column"), cell, strict=True))
        document = {**names, **_identity(experiment, cell, context), **end.result.model_dump()}
        folder.write_text(_file(experiment, cell, context), json.dumps(document))
    return Measured({cell: cells[cell] for cell in experiment.cells() if cell in cells}, missing)


def _check(experiment: Experiment, cells: Sequence[Cell], context: CellContext) -> None:
    """Check the settings of cells, so that a mistake is reported before anything is done.

    Raises:
        ConfigurationError: With the faults of the first cell that has any.
    """
    for row, column in cells:
        method = experiment.rows[row]
        method_arguments = arguments(method.settings) if isinstance(method, Train | Detect) else ()
        try:
            config = federation_runner.read_config(
                (*arguments(experiment.federations[column]), *method_arguments), context.settings
            )
            if isinstance(method, Train):
                parse_strategy(config.strategy or "fedavg")
            elif isinstance(method, Given):
                imported(str(method.function))
            elif not isinstance(method, Detect):
                check_searchable(config)
            if isinstance(method, Choose):
                recommender_named(method.by)
        except UserError as error:
            raise ConfigurationError([f"{row} × {column}: {fault}" for fault in error.faults]) from error


def finished_cells(experiment: Experiment, folder: Path, context: CellContext) -> dict[Cell, CellValues]:
    """Return the numbers of all cells that a folder holds."""
    cells = {}
    for cell in experiment.measured():
        with suppress(ValidationError):
            stored = read_json(folder / _file(experiment, cell, context)) or {}
            cells[cell] = CellValues.model_validate(stored)
    return cells


def run_cell(experiment: Experiment, cell: Cell, context: CellContext, storage: Storage | None) -> End:
    """Measure a cell, whose folder may be in a storage."""
    with mounted_at(context.folder, storage):
        return end_of(measure_cell, experiment, cell, context)


def _file(experiment: Experiment, cell: Cell, context: CellContext) -> str:
    identity = json.dumps(_identity(experiment, cell, context), sort_keys=True)
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return f"{CELLS}/{digest}.json"


def _identity(experiment: Experiment, cell: Cell, context: CellContext) -> dict[str, Any]:
    """Return what determines a cell's numbers."""
    row, column = cell
    method = experiment.rows[row]
    assert isinstance(method, BaseModel)
    return {
        "method": method.model_dump(mode="json"),
        "settings": [*arguments(experiment.federations[column]), *context.settings],
        "num_seeds": context.num_seeds,
        "streams": [context.fresh_stream, context.tuning_stream],
        "versions": versions(),
    }
