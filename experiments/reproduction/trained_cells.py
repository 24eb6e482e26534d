"""Cells that are trainings: each is a `fedscout train` of its arguments, repeated on fresh seeds.

Seeds are the same for all cells, so differences are taken seed by seed. Trainings of one federation and model share a
log (`choice_laboratory`), in which none is repeated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from fedscout.engine.errors import DataError
from fedscout.engine.trials.trial_record import Trial
from fedscout.experiments.benchmarks.choice.choice_battery import FederationCase, ReadyCase
from fedscout.experiments.benchmarks.choice.choice_laboratory import Laboratory, open_laboratory, other_seeds
from fedscout.experiments.config.config_file import load_config
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.federations.assembly.build_federation import build_federation
from fedscout.experiments.federations.environments.environment_table import ENVIRONMENTS
from fedscout.experiments.reproduction.published_study import Cell, Desk, Measured
from fedscout.experiments.studies.workflow import study_facts, with_strategy
from fedscout.search.confirmation.confirmation_runs import resolution
from fedscout.search.confirmation.intervals import tested_to_trained
from fedscout.search.ledger import Ledger
from fedscout.search.repetitions import median_of, trainings_of
from fedscout.strategies import parse_strategy

Score = Callable[[Trial], float]


def last_rounds(trial: Trial) -> float:
    """Return a trial's fitness: the mean of its last five rounds; 0 if it failed."""
    return trial.fitness


def best_round(trial: Trial) -> float:
    """Return the best of all rounds on the test rows as they were before any noise; 0 if the trial failed."""
    return max(trial.round_clean_accuracy) if trial.status == "completed" else 0.0


@dataclass(frozen=True)
class TrainedCells:
    """A training a cell.

    Attributes:
        cells: Arguments as for `fedscout train`, the strategy's included.
        num_seeds: Fresh ones.
        score: Of a trial.
    """

    cells: Mapping[Cell, tuple[str, ...]]
    num_seeds: int = 5
    score: Score = last_rounds

    def measure(self, desk: Desk) -> Measured:
        """Train what is not in the logs."""
        seeds = other_seeds("reproduction", desk.num_seeds or self.num_seeds)
        values: dict[Cell, tuple[float | None, ...]] = {}
        absent: dict[str, str] = {}
        ratio = step = 0.0
        for group in grouped(self.cells, desk.settings):
            try:
                ready = built(group[0], self.cells[group[0]], desk.settings)
            except DataError as error:
                absent |= {column: str(error) for _, column in group}
                continue
            ratio = max(ratio, split_ratio(ready.config))
            with open_laboratory(ready, desk.folder) as laboratory:
                for cell in group:
                    desk.note(" × ".join(cell))
                    trials = self._trials(laboratory, cell, desk, seeds)
                    values[cell] = tuple(self.score(trial) for trial in trials)
                    step = max(step, resolution([trials]))
                    absent |= failures(cell, trials)
        return Measured({cell: values[cell] for cell in self.cells if cell in values}, ratio, absent, step)

    def _trials(self, laboratory: Laboratory, cell: Cell, desk: Desk, seeds: Sequence[int]) -> list[Trial]:
        config = with_strategy(arguments_read(self.cells[cell], desk.settings))
        asked = study_facts(config, laboratory.ready.federation.without_rows())
        facts = replace(asked, repetitions=1)  # each training is in the log
        settings = facts.trial("confirmation", parse_strategy(config.strategy or {}, facts.cohort))
        trials = [settings.on_seed(seed) for seed in seeds]
        trainings = [trainings_of(trial, asked.repetitions) for trial in trials]
        trained = iter(Ledger(facts, laboratory.runner, laboratory.runner.log).run([*chain.from_iterable(trainings)]))
        return [median_of(trial, [*islice(trained, len(own))]) for trial, own in zip(trials, trainings, strict=True)]


def crossed(columns: Mapping[str, tuple[str, ...]], rows: Mapping[str, tuple[str, ...]]) -> dict[Cell, tuple[str, ...]]:
    """Return the arguments of every row in every column: the column's, then the row's, which win."""
    return {
        (row, column): (*of_column, *of_row) for column, of_column in columns.items() for row, of_row in rows.items()
    }


def arguments_read(arguments: Sequence[str], settings: Sequence[str]) -> StudyConfig:
    """Return the configuration of a cell, which runs in this process unless the settings say otherwise."""
    return load_config(["engine.grid=local", *arguments, *settings])


def built(cell: Cell, arguments: tuple[str, ...], settings: Sequence[str]) -> ReadyCase:
    """Return the federation of a cell.

    Raises:
        UserError: If an argument is wrong, or the data can't be read or dealt so.
    """
    config = arguments_read(arguments, settings)
    federation = build_federation(config.federation, config.model)
    return ReadyCase(FederationCase(" × ".join(cell), arguments), (*arguments, *settings), config, federation)


def grouped(cells: Mapping[Cell, tuple[str, ...]], settings: Sequence[str]) -> list[list[Cell]]:
    """Return the cells by federation and model."""
    groups: dict[str, list[Cell]] = {}
    for cell, arguments in cells.items():
        identity = arguments_read(arguments, settings).identity()
        key = json.dumps([identity["federation"], identity["model"]], sort_keys=True)
        groups.setdefault(key, []).append(cell)
    return list(groups.values())


def split_ratio(config: StudyConfig) -> float:
    """Return n_test / n_train; 0 of clients that play, whose seeds share no rows."""
    if config.federation.dataset in ENVIRONMENTS:
        return 0.0
    return tested_to_trained(config.training.test_fraction, config.search.validation_fraction)


def failures(cell: Cell, trials: Sequence[Trial]) -> dict[str, str]:
    """Return how many trials of a cell failed, and why the first did."""
    reasons = [trial.error or "" for trial in trials if trial.status == "failed"]
    return {" × ".join(cell): f"{len(reasons)} of {len(trials)} failed, the first: {reasons[0]}"} if reasons else {}
