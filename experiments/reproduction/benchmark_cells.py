"""Cells that a benchmark of this program measures already: of policies, of tables of settings, of columns of noise.

Their folders lie in that of the source, so that `--out` of the benchmark's command can read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedscout.engine.errors import DataError
from fedscout.experiments.benchmarks.client_settings import settings_battery
from fedscout.experiments.benchmarks.client_settings.settings_measurement import run_client_settings
from fedscout.experiments.benchmarks.detection.noise_columns import MEASURES, compare_under_noise
from fedscout.experiments.benchmarks.selection import selection_battery
from fedscout.experiments.benchmarks.selection.selection_measurement import run_selection
from fedscout.experiments.reproduction.published_study import Cell, Desk, Measured
from fedscout.experiments.reproduction.trained_cells import arguments_read, split_ratio

BENCHMARK = "benchmark"
"""Of a source's folder, where a benchmark writes."""


@dataclass(frozen=True)
class SelectionCells:
    """A part of `fedscout bench selection`: policies by heterogeneities, means over strategies.

    Attributes:
        part: Its name.
        data: Its data set.
        strategies: Kinds; None is all of the part's.
        num_seeds: Fresh ones.
    """

    part: str
    data: str = "digits"
    strategies: tuple[str, ...] | None = None
    num_seeds: int = 5

    def measure(self, desk: Desk) -> Measured:
        """Train what is not in the logs."""
        part = selection_battery.part_of(self.part, strategies=self.strategies)
        out, count = desk.folder / BENCHMARK, desk.num_seeds or self.num_seeds
        report = run_selection(part, self.part, self.data, count, desk.settings, out, desk.note)
        values: dict[Cell, tuple[float | None, ...]] = {}
        for row in report.rows:
            for column in report.heterogeneities:
                cells = [report.of(column, row, strategy) for strategy in report.strategies]
                able = [cell.accuracies for cell in cells if cell.impossible is None]
                if able:
                    values[row, column] = tuple(np.mean(able, axis=0).tolist())
        impossible = {f"{cell.row} × {cell.strategy}": cell.impossible for cell in report.cells if cell.impossible}
        one = selection_battery.case_of(self.data, report.heterogeneities[0])
        ratio = split_ratio(arguments_read(one.arguments, desk.settings))
        return Measured(values, ratio, {**report.missing, **impossible}, report.resolution)


@dataclass(frozen=True)
class SettingsCells:
    """A part of `fedscout bench client-settings`: ways to obtain settings by data sets, with one strategy.

    Attributes:
        part: Its name.
        data: By column, its data set.
        rows: Names; None is all of the part's.
        num_seeds: Fresh ones.
    """

    part: str
    data: dict[str, str]
    rows: Sequence[str] | None = None
    num_seeds: int = 3

    def measure(self, desk: Desk) -> Measured:
        """Tune and train what is not in the logs."""
        part = settings_battery.part_of(self.part, self.rows, None)
        values: dict[Cell, tuple[float | None, ...]] = {}
        impossible: dict[str, str] = {}
        step = 0.0
        ratio = settings_battery.TEST_SHARE / (1 - settings_battery.TEST_SHARE)
        for column, data in self.data.items():
            out, count = desk.folder / BENCHMARK, desk.num_seeds or self.num_seeds
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
        return Measured(values, ratio, impossible, step)


@dataclass(frozen=True)
class NoiseCells:
    """`fedscout bench noise-columns`: a measure under feature skew, in multiples of what it is where clients are alike.

    Attributes:
        arguments: Of the federation.
        columns: Numbers of columns of noise, 0 the first.
        num_seeds: Deals.
    """

    arguments: tuple[str, ...]
    columns: tuple[int, ...]
    num_seeds: int = 5

    def measure(self, desk: Desk) -> Measured:
        """Take both measures anew, which takes seconds."""
        arguments, count = (*self.arguments, *desk.settings), desk.num_seeds or self.num_seeds
        try:
            found = compare_under_noise(arguments, self.columns, count, note=desk.note)
        except DataError as error:
            return Measured({}, absent={"all": str(error)})
        values: dict[Cell, tuple[float | None, ...]] = {}
        for row in found.rows:
            for measure in MEASURES:
                pairs = zip(row.values[measure]["feature_skew"], row.values[measure]["iid"], strict=True)
                values[measure, f"{row.num_noise} columns"] = tuple(skewed / alike for skewed, alike in pairs)
        return Measured(values)
