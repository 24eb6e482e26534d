"""Cells that are times: of whole studies as ratios to one training, and of detections.

Times are taken anew in every run, as none of an earlier one would say how long it takes now. What is compared runs in
turns, so that other work on the machine disturbs all alike.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from fedscout.experiments.benchmarks.engine.detection_cost import detection_cost
from fedscout.experiments.benchmarks.engine.detection_modules import (
    FEATURES,
    LABELS,
    PUBLISHED_OUTLIERS,
    WHOLE,
    module_costs,
)
from fedscout.experiments.reproduction.published_study import Cell, Desk, Measured
from fedscout.experiments.reproduction.ready_columns import ready_columns
from fedscout.experiments.reproduction.trained_cells import arguments_read
from fedscout.experiments.studies.workflow import Display, run_training, run_workflow

UNCONFIRMED = ("search.confirmation_seeds=0", "search.tuned_baseline=false")


@dataclass(frozen=True)
class TimedStudies:
    """Wall time of studies, as a ratio to that of one training in the same turn.

    Attributes:
        arguments: Of the federation and the training.
        column: Its name.
        studies: Arguments of a study in each row; None is the training.
        num_turns: Numbers of each row.
    """

    arguments: tuple[str, ...]
    column: str
    studies: Mapping[str, tuple[str, ...] | None]
    num_turns: int = 3

    def measure(self, desk: Desk) -> Measured:
        """Run all rows in turns."""
        absent: dict[str, str] = {}
        if not [*ready_columns({self.column: self.arguments}, desk, absent)]:
            return Measured({}, absent=absent)
        found: dict[Cell, list[float]] = {(row, self.column): [] for row in self.studies}
        for turn in range(desk.num_seeds or self.num_turns):
            desk.note(f"turn {turn}")
            seconds = {row: self._seconds(settings, desk, turn) for row, settings in self.studies.items()}
            one = next(seconds[row] for row, settings in self.studies.items() if settings is None)
            for row in self.studies:
                found[row, self.column].append(seconds[row] / one)
        return Measured({cell: tuple(values) for cell, values in found.items()})

    def _seconds(self, settings: tuple[str, ...] | None, desk: Desk, turn: int) -> float:
        config = arguments_read((*self.arguments, *(settings or ()), *UNCONFIRMED, f"seed={turn}"), desk.settings)
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
        num_turns: Numbers of each cell.
    """

    federations: Mapping[str, tuple[str, ...]]
    num_turns: int = 3

    def measure(self, desk: Desk) -> Measured:
        """Time every federation, each in turns with its rounds."""
        found: dict[Cell, tuple[float | None, ...]] = {}
        absent: dict[str, str] = {}
        for column, ready in ready_columns(self.federations, desk, absent):
            desk.note(column)
            local, engine = ready.config.training.local(), ready.config.engine
            turns = range(desk.num_seeds or self.num_turns)
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
        num_turns: Numbers of each module.
    """

    arguments: tuple[str, ...]
    column: str
    num_turns: int = 5

    def measure(self, desk: Desk) -> Measured:
        """Time the modules in turns with rounds."""
        found: dict[Cell, tuple[float | None, ...]] = {}
        absent: dict[str, str] = {}
        for column, ready in ready_columns({self.column: self.arguments}, desk, absent):
            desk.note(column)
            local, engine = ready.config.training.local(), ready.config.engine
            turns = range(desk.num_seeds or self.num_turns)
            costs = [module_costs(ready.federation, local, engine, repeats=1) for _ in turns]
            for name in MODULES:
                found[name, column] = tuple(cost.seconds[name] / cost.round_seconds for cost in costs)
        return Measured(found, absent=absent)
