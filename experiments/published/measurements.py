"""What published tables need beyond trainings, choices and reports: times, numbers of reports, parts of benchmarks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from fedscout.detectors import HeterogeneityReport
from fedscout.engine.errors import DataError
from fedscout.experiments.benchmarks.choice.choice_battery import FederationCase, ReadyCase, ready_case
from fedscout.experiments.benchmarks.client_settings import settings_battery
from fedscout.experiments.benchmarks.client_settings.settings_measurement import run_client_settings
from fedscout.experiments.benchmarks.detection.noise_columns import MEASURES, measures_under_noise
from fedscout.experiments.benchmarks.engine.detection_cost import detection_cost
from fedscout.experiments.benchmarks.engine.detection_modules import (
    FEATURES,
    LABELS,
    PUBLISHED_OUTLIERS,
    WHOLE,
    module_costs,
)
from fedscout.experiments.grids.catalogue import BENCHMARK
from fedscout.experiments.grids.cells import Desk, Measured, Values, read_config
from fedscout.experiments.grids.experiment import Cell
from fedscout.experiments.studies.workflow import Display, run_training, run_workflow


def distance_of_the_third_client(report: HeterogeneityReport) -> float | None:
    """Return how much farther the third client's model is than the others' median, as a ratio."""
    distances = report.metrics.model_distances
    others = sorted(value for client, value in distances.items() if client != 2)
    return distances[2] / others[len(others) // 2] if 2 in distances and others else None


def centroid_distance(report: HeterogeneityReport) -> float | None:
    """Return the largest distance of two clients' centroids on the principal axes, in the unit of the features."""
    centroids = list(report.centroids.values())
    pairs = (
        sum((one - other) ** 2 for one, other in zip(first, second, strict=True)) ** 0.5
        for first, second in product(centroids, repeat=2)
    )
    return max(pairs, default=None)


@dataclass(frozen=True)
class SettingsCells:
    """A part of `fedscout bench client-settings`: ways to obtain settings by data sets, with one strategy.

    Attributes:
        part: Its name.
        data: By column, its data set.
        rows: Names; None is all of the part's.
    """

    part: str
    data: dict[str, str]
    rows: Sequence[str] | None = None

    def measure(self, desk: Desk) -> Measured:
        """Tune and train what is not in the logs."""
        part = settings_battery.part_of(self.part, self.rows, None)
        values: dict[Cell, Values] = {}
        impossible: dict[str, str] = {}
        step = 0.0
        ratio = settings_battery.TEST_SHARE / (1 - settings_battery.TEST_SHARE)
        for column, data in self.data.items():
            out, count = desk.folder / BENCHMARK, desk.num_seeds
            try:
                report = run_client_settings(part, self.part, data, count, desk.settings, out, desk.note)
            except DataError as error:
                impossible[column] = str(error)
                continue
            step = max(step, report.resolution)
            for cell in report.cells:
                if cell.impossible is None and cell.strategy == report.strategies[0]:
                    values[cell.row, column] = cell.accuracies
                elif cell.impossible is not None:
                    impossible[f"{cell.row} × {column}"] = cell.impossible
        return Measured(values, ratio, impossible, resolution=step)


@dataclass(frozen=True)
class NoiseCells:
    """A measure of features under feature skew, in multiples of what it is where clients are alike.

    Attributes:
        arguments: Of the federation.
        columns: Numbers of columns of noise, 0 the first.
    """

    arguments: tuple[str, ...]
    columns: tuple[int, ...]

    def measure(self, desk: Desk) -> Measured:
        """Take both measures anew, which takes seconds."""
        arguments, count = (*self.arguments, *desk.settings), desk.num_seeds
        try:
            found = measures_under_noise(read_config(arguments), self.columns, count, desk.note)
        except DataError as error:
            return Measured({}, absent={"all": str(error)})
        values: dict[Cell, Values] = {}
        for num_noise, of_columns in found.items():
            for measure in MEASURES:
                pairs = zip(of_columns[measure]["feature_skew"], of_columns[measure]["iid"], strict=True)
                values[measure, f"{num_noise} columns"] = tuple(skewed / alike for skewed, alike in pairs)
        return Measured(values)


UNCONFIRMED = ("search.confirmation_seeds=0", "search.tuned_baseline=false")


@dataclass(frozen=True)
class TimedStudies:
    """Wall time of studies, as a ratio to that of one training in the same turn.

    Attributes:
        arguments: Of the federation and the training.
        column: Its name.
        studies: Arguments of a study in each row; None is the training.
    """

    arguments: tuple[str, ...]
    column: str
    studies: Mapping[str, tuple[str, ...] | None]

    def measure(self, desk: Desk) -> Measured:
        """Run all rows in turns."""
        absent: dict[str, str] = {}
        if not [*ready_columns({self.column: self.arguments}, desk, absent)]:
            return Measured({}, absent=absent)
        found: dict[Cell, list[float]] = {(row, self.column): [] for row in self.studies}
        for turn in range(desk.num_seeds):
            desk.note(f"turn {turn}")
            seconds = {row: self._seconds(settings, desk, turn) for row, settings in self.studies.items()}
            one = next(seconds[row] for row, settings in self.studies.items() if settings is None)
            for row in self.studies:
                found[row, self.column].append(seconds[row] / one)
        return Measured({cell: tuple(values) for cell, values in found.items()})

    def _seconds(self, settings: tuple[str, ...] | None, desk: Desk, turn: int) -> float:
        config = read_config((*self.arguments, *(settings or ()), *UNCONFIRMED, f"seed={turn}"), desk.settings)
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

    def measure(self, desk: Desk) -> Measured:
        """Time every federation, each in turns with its rounds."""
        found: dict[Cell, Values] = {}
        absent: dict[str, str] = {}
        for column, ready in ready_columns(self.federations, desk, absent):
            desk.note(column)
            local, engine = ready.config.training.local(), ready.config.engine
            turns = range(desk.num_seeds)
            costs = [detection_cost(ready.federation, local, engine, repeats=1) for _ in turns]
            found["detection, seconds", column] = tuple(cost.seconds for cost in costs)
            found["one round, seconds", column] = tuple(cost.round_seconds for cost in costs)
            found["detection, rounds", column] = tuple(cost.round_equivalents for cost in costs)
        return Measured(found, absent=absent)


MODULES = (LABELS, FEATURES, PUBLISHED_OUTLIERS, WHOLE)
"""Of a detection, each held alone, and all of them in common exchanges."""


@dataclass(frozen=True)
class TimedModules:
    """Wall time of each module of a detection, in rounds of FedAvg over the same clients.

    Attributes:
        arguments: Of the federation.
        column: Its name.
    """

    arguments: tuple[str, ...]
    column: str

    def measure(self, desk: Desk) -> Measured:
        """Time the modules in turns with rounds."""
        found: dict[Cell, Values] = {}
        absent: dict[str, str] = {}
        for column, ready in ready_columns({self.column: self.arguments}, desk, absent):
            desk.note(column)
            local, engine = ready.config.training.local(), ready.config.engine
            turns = range(desk.num_seeds)
            costs = [module_costs(ready.federation, local, engine, repeats=1) for _ in turns]
            for name in MODULES:
                found[name, column] = tuple(cost.seconds[name] / cost.round_seconds for cost in costs)
        return Measured(found, absent=absent)


def ready_columns(
    federations: Mapping[str, Sequence[str]], desk: Desk, absent: dict[str, str]
) -> Iterator[tuple[str, ReadyCase]]:
    """Yield every column whose data are there; `absent` gets the reason of the others."""
    for column, given in federations.items():
        try:
            yield column, ready_case(FederationCase(column, tuple(given)), desk.settings, quick=False)
        except DataError as error:
            absent[column] = str(error)
