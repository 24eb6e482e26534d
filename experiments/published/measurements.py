"""Measurements for published tables that are not trainings, choices or reports: times and report statistics."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from fedscout.detectors import HeterogeneityReport
from fedscout.engine.errors import DataError
from fedscout.experiments.grids.cells import CellContext, Measured, Values
from fedscout.experiments.grids.experiment import Cell, Experiment
from fedscout.experiments.grids.federation_runner import BuiltFederation, built_federation, read_config
from fedscout.experiments.studies.workflow import Display, run_training, run_workflow
from fedscout.experiments.timings.detection import (
    FEATURES,
    LABELS,
    PUBLISHED_OUTLIERS,
    WHOLE,
    detection_cost,
)


def distance_of_the_third_client(report: HeterogeneityReport) -> float | None:
    """Return the ratio of the third client's model distance to the median of the others'."""
    distances = report.metrics.model_distances
    others = sorted(value for client, value in distances.items() if client != 2)
    return distances[2] / others[len(others) // 2] if 2 in distances and others else None


def centroid_distance(report: HeterogeneityReport) -> float | None:
    """Return the largest distance between two clients' centroids on the principal axes, in feature units."""
    centroids = list(report.centroids.values())
    pairs = (
        sum((one - other) ** 2 for one, other in zip(first, second, strict=True)) ** 0.5
        for first, second in product(centroids, repeat=2)
    )
    return max(pairs, default=None)


UNCONFIRMED = ("search.confirmation_seeds=0", "search.tuned_baseline=false")


@dataclass(frozen=True)
class TimedStudies:
    """Wall time of studies, as a ratio to that of one training in the same repetition.

    Attributes:
        arguments: Of the federation and the training.
        column: Its name.
        studies: Arguments of a study in each row; None is the training.
    """

    arguments: tuple[str, ...]
    column: str
    studies: Mapping[str, tuple[str, ...] | None]

    def measure(self, experiment: Experiment, context: CellContext) -> Measured:
        """Run all rows in each repetition."""
        absent: dict[str, str] = {}
        if not [*built_columns({self.column: self.arguments}, context, absent)]:
            return Measured({}, absent=absent)
        ratios: dict[Cell, list[float]] = {(row, self.column): [] for row in self.studies}
        for turn in range(context.num_seeds):
            context.note(f"turn {turn}")
            seconds = {row: self._seconds(settings, context, turn) for row, settings in self.studies.items()}
            training_seconds = next(seconds[row] for row, settings in self.studies.items() if settings is None)
            for row in self.studies:
                ratios[row, self.column].append(seconds[row] / training_seconds)
        return Measured({cell: tuple(values) for cell, values in ratios.items()})

    def _seconds(self, settings: tuple[str, ...] | None, context: CellContext, turn: int) -> float:
        config = read_config((*self.arguments, *(settings or ()), *UNCONFIRMED, f"seed={turn}"), context.settings)
        with TemporaryDirectory() as folder:
            started = time.perf_counter()
            if settings is None:
                run_training(config, Path(folder) / "run", Display())
            else:
                run_workflow(config, Path(folder) / "run", Display())
            return time.perf_counter() - started


@dataclass(frozen=True)
class TimedDetections:
    """Wall time of a detection, in seconds and in rounds of FedAvg over the same clients.

    Attributes:
        federations: Arguments of each column.
    """

    federations: Mapping[str, tuple[str, ...]]

    def measure(self, experiment: Experiment, context: CellContext) -> Measured:
        """Time every federation, alternating detection and rounds."""
        values: dict[Cell, Values] = {}
        absent: dict[str, str] = {}
        for column, built in built_columns(self.federations, context, absent):
            context.note(column)
            local, engine = built.config.training.local(), built.config.engine
            costs = [detection_cost(built.federation, local, engine, repeats=1) for _ in range(context.num_seeds)]
            values["detection, seconds", column] = tuple(cost.seconds[WHOLE] for cost in costs)
            values["one round, seconds", column] = tuple(cost.round_seconds for cost in costs)
            values["detection, rounds", column] = tuple(cost.rounds() for cost in costs)
        return Measured(values, absent=absent)


MODULES = (LABELS, FEATURES, PUBLISHED_OUTLIERS, WHOLE)
"""Of a detection, each held alone, and all of them in common exchanges."""


@dataclass(frozen=True)
class TimedModules:
    """Wall time of each module of a detection, in rounds of FedAvg over the same clients.

    Attributes:
        arguments: Of the federation.
        column: The name of its column.
    """

    arguments: tuple[str, ...]
    column: str

    def measure(self, experiment: Experiment, context: CellContext) -> Measured:
        """Time the modules, alternating with rounds."""
        values: dict[Cell, Values] = {}
        absent: dict[str, str] = {}
        for column, built in built_columns({self.column: self.arguments}, context, absent):
            context.note(column)
            local, engine = built.config.training.local(), built.config.engine
            turns = range(context.num_seeds)
            costs = [detection_cost(built.federation, local, engine, 1, MODULES) for _ in turns]
            for name in MODULES:
                values[name, column] = tuple(cost.rounds(name) for cost in costs)
        return Measured(values, absent=absent)


def built_columns(
    federations: Mapping[str, Sequence[str]], context: CellContext, absent: dict[str, str]
) -> Iterator[tuple[str, BuiltFederation]]:
    """Yield every column whose data are available; `absent` receives the reasons of the others."""
    for column, arguments in federations.items():
        try:
            yield column, built_federation(column, arguments, context.settings)
        except DataError as error:
            absent[column] = str(error)
