"""What a person sees of a table of client settings: which cells are tuned and how long it may take; then the table."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedscout.engine.contracts.settings_lookup import HETEROGENEITY
from fedscout.experiments.reports.console import plain_table, show_path
from fedscout.experiments.reports.progress import WorkLine, duration
from fedscout.experiments.reports.sweep_console import NAMED
from fedscout.experiments.visible import visible

if TYPE_CHECKING:
    from fedscout.experiments.studies.settings_tables.table_tuning import PlannedCell, TunedTable, TuningDisplay


class TuningProgress(WorkLine):
    """Tells the cells that are tuned, how many are done, how many settings were tried, and the time left.

    What is left is estimated by the rows of cells: their steps are in proportion to these.
    """

    def __init__(self) -> None:
        super().__init__()
        self._cells: Sequence[PlannedCell] = ()
        self._left: dict[int, int] = {}
        self._running: set[int] = set()
        self._done = 0

    def display(self) -> TuningDisplay:
        """Return the callbacks for a tuner."""
        from fedscout.experiments.studies.settings_tables.table_tuning import TuningDisplay

        return TuningDisplay(known=self.known, begun=self.begun, ended=self.ended, tick=self._refresh)

    def known(self, cells: Sequence[PlannedCell], known: Sequence[int]) -> None:
        """The work is known."""
        self._cells = cells
        self._left = {place: cell.place.quantity for place, cell in enumerate(cells) if place not in known}
        self._refresh()

    def begun(self, position: int) -> None:
        """A cell begins, or begins again."""
        if self._started is None:
            self._started = time.monotonic()
        self._running.add(position)
        self._refresh()

    def ended(self, position: int) -> None:
        """A cell ended."""
        self._running.discard(position)
        self._done += self._left.pop(position, 0)
        self._refresh()

    def _refresh(self) -> None:
        if not self.shown:
            return
        seconds = self._seconds_left(self._done, sum(self._left.values()))
        left = "" if seconds is None else f", about {duration(seconds)} left"
        names = [self._cells[position].folder.name.rpartition("-")[0] for position in sorted(self._running)]
        rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        num_done, total = len(self._cells) - len(self._left), len(self._cells)
        self._progress.update(
            self._task,
            total=total or 1,
            completed=num_done,
            description=visible("; ".join(names[:NAMED]) + rest) or "reading",
            counts=f"{num_done}/{total} cells, {self._num_trials()} settings tried{left}",
        )

    def _num_trials(self) -> int:
        folders = [cell.folder / "trials" for cell in self._cells]
        return sum(
            entry.name.endswith(".parquet") for folder in folders if folder.is_dir() for entry in os.scandir(folder)
        )


def table_document(tuned: TunedTable) -> dict[str, Any]:
    """Return a table for JSON."""
    cells = [
        {**vars(cell), **beside} for cell, beside in zip(tuned.table.cells, tuned.provenance["cells"], strict=True)
    ]
    return {"out": str(tuned.path), "cells": cells, "proxy": tuned.provenance["proxy"]}


def show_table(console: Console, tuned: TunedTable) -> None:
    """Print the table, a row for each heterogeneity, and how to train with it."""
    cells = {(cell.heterogeneity, cell.quantity): cell for cell in tuned.table.cells}
    quantities = sorted({quantity for _, quantity in cells})
    scores = {
        (cell.heterogeneity, cell.quantity): beside["score"]
        for cell, beside in zip(tuned.table.cells, tuned.provenance["cells"], strict=True)
    }
    metric = str(tuned.provenance["metric"])
    table = plain_table(metric, *(f"{quantity} rows" for quantity in quantities), title="rate/batch/epochs score")
    for heterogeneity in sorted({value for value, _ in cells}):
        row = []
        for quantity in quantities:
            cell = cells[heterogeneity, quantity]
            settings = f"{cell.learning_rate:.2g}/{cell.batch_size}/{cell.local_epochs}"
            row.append(f"{settings} {scores[heterogeneity, quantity]:.2f}")
        table.add_row(f"{heterogeneity:.2f}" if metric == HETEROGENEITY else f"{heterogeneity:.3g}", *row)
    console.print(table)
    _show_proxy(console, tuned)
    show_path(console, "Table", tuned.path, " (pandas.read_parquet reads it)")


def _show_proxy(console: Console, tuned: TunedTable) -> None:
    proxy, beside = tuned.provenance["proxy"], tuned.provenance["cells"]
    repeated, held = sum(one["repeated_rows"] for one in beside), len(beside)
    trials = sum(one["trials"] for one in beside)
    console.print(f"\n{trials} settings of {held} cells, on {proxy['num_rows']} proxy rows, ", end="")
    console.print(f"{proxy['num_scored']} of which score; proxy clients of a cell share {repeated / held:.0f} rows")
    if proxy["synthetic"] is not None:
        console.print("the proxy rows are drawn by what clients told of the means of their classes")
    elif proxy["dataset"] == tuned.provenance["dataset"]:
        console.print(
            f"train with federation.server_rows={proxy['server_rows']} federation.seed={proxy['federation_seed']}, "
            "so that no client holds a proxy row"
        )
