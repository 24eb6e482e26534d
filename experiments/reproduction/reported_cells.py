"""Cells that are measured on a federation before anything is chosen: numbers of its heterogeneity report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedscout.detectors import HeterogeneityReport
from fedscout.engine.errors import DataError
from fedscout.experiments.benchmarks.choice.choice_battery import FederationCase, ready_case
from fedscout.experiments.benchmarks.choice.choice_laboratory import open_laboratory, search_seeds
from fedscout.experiments.reproduction.published_study import Cell, Desk, Measured

Value = Callable[[HeterogeneityReport], float | None]


@dataclass(frozen=True)
class ReportedCells:
    """Numbers of reports.

    Attributes:
        federations: Arguments of each column.
        values: What is read in each row.
        num_seeds: Reports of each column; a seed decides who holds which rows, and the models.
    """

    federations: Mapping[str, tuple[str, ...]]
    values: Mapping[str, Value]
    num_seeds: int = 5

    def measure(self, desk: Desk) -> Measured:
        """Detect where there is no report yet."""
        found: dict[Cell, tuple[float | None, ...]] = {}
        absent: dict[str, str] = {}
        for column, arguments in self.federations.items():
            desk.note(column)
            reports = []
            try:
                for seed in search_seeds(desk.num_seeds or self.num_seeds):
                    of_seed = (*arguments, f"federation.seed={seed}")
                    ready = ready_case(FederationCase(column, of_seed), desk.settings, quick=False)
                    with open_laboratory(ready, desk.folder) as laboratory:
                        reports.append(laboratory.report(seed))
            except DataError as error:
                absent[column] = str(error)
                continue
            found |= {(row, column): tuple(map(value, reports)) for row, value in self.values.items()}
        return Measured(found, absent=absent)
