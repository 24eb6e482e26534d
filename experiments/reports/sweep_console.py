"""Console output of sweeps and of tuning a table of client settings.

While running, both show what is in progress and the time left; at the end, the means over seeds or the table.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedscout.engine.trials.log import num_trials
from fedscout.experiments.reports.console import plain_table, seconds_text, show_path
from fedscout.experiments.reports.progress import WorkLine
from fedscout.experiments.text import tell, visible
from fedscout.search.objective import Measure

if TYPE_CHECKING:
    from fedscout.experiments.client_settings.request import TunedTable
    from fedscout.experiments.studies.workers import Display, Piece
    from fedscout.experiments.sweeps.run import Group, SweepOutcome


NAMED = 2
"""Number of running pieces that are named; the others are counted."""

TOLD = 20
"""Number of incomplete studies that are listed on standard error; the table has all."""


class GridProgress(WorkLine):
    """Progress of a sweep or of tuning: running pieces, number of finished ones, their trials, and time left.

    Args:
        what: What a piece is, in the plural.
    """

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what
        self._pieces: Sequence[Piece] = ()
        self._left: set[int] = set()
        self._running: set[int] = set()
        self._ended: set[int] = set()

    def display(self) -> Display:
        """Return the callbacks for a grid."""
        from fedscout.experiments.studies.workers import Display

        return Display(known=self.known, begun=self.begun, ended=self.ended, tick=self._refresh)

    def known(self, pieces: Sequence[Piece], finished: Collection[int]) -> None:
        """Set all pieces and those that are finished."""
        self._pieces, self._left = pieces, {*range(len(pieces))} - {*finished}
        self._refresh()

    def begun(self, position: int) -> None:
        """Record that a piece started or restarted."""
        if self._started is None:
            self._started = time.monotonic()
        self._running.add(position)
        self._refresh()

    def ended(self, position: int) -> None:
        """Record that a piece ended."""
        for positions in (self._left, self._running):
            positions.discard(position)
        self._ended.add(position)
        self._refresh()

    def _refresh(self) -> None:
        if not self.shown:
            return
        running = [self._pieces[position] for position in sorted(self._running)]
        trials = [num_trials(piece.folder / "trials") for piece in running]
        done = sum(self._pieces[position].weight for position in self._ended)
        done += sum(
            piece.weight * min(1.0, number / max(1, piece.num_trials))
            for piece, number in zip(running, trials, strict=True)
        )
        total = sum(self._pieces[position].weight for position in self._left | self._ended)
        seconds = self._seconds_left(done, total - done)
        time_left = "" if seconds is None else f", about {seconds_text(round(seconds))} left"
        names = [piece.name.rpartition("-")[0] or piece.name for piece in running]
        rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        num_ended = len(self._pieces) - len(self._left)
        self._progress.update(
            self._task,
            total=total or 1,
            completed=done if total else 1,
            description=visible("; ".join(names[:NAMED]) + rest) or ("starting" if self._left else "reading"),
            counts=f"{num_ended}/{len(self._pieces)} {self._what}, {sum(trials)} trials under way{time_left}",
        )


def sweep_table(
    groups: Sequence[Group], measure: Measure, is_confirmed: bool
) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return headings and rows of the means over seeds, one row per combination of values."""
    from fedscout.experiments.sweeps.run import LABELS, TUNED
    from fedscout.experiments.sweeps.sweep import value_text

    axes = list(groups[0].values) if groups else []
    choosers = list(dict.fromkeys(chooser for group in groups for chooser in group.accuracy))
    against = f"{measure.unit} vs. {'tuned FedAvg' if TUNED in choosers else 'FedAvg'}"
    headings = [*axes, "studies", *(LABELS[chooser] for chooser in choosers), against, "95 % interval"]
    headings += [*(["better (studies)"] if is_confirmed else []), "label skew", "feature skew", "outliers"]
    rows = []
    for group in groups:
        num_completed, num_studies, gain = group.num_completed, group.num_studies, group.gain
        counts = [*([group.num_better] if is_confirmed else []), *group.detected.values()]
        scores = [group.accuracy[chooser].mean if chooser in group.accuracy else None for chooser in choosers]
        interval = ""
        if gain is not None and gain.low is not None and gain.high is not None:
            interval = f"[{measure.number(gain.low)}, {measure.number(gain.high)}]"
        row = (
            *(value_text(value) for value in group.values.values()),
            str(num_studies) if num_completed == num_studies else f"{num_completed} of {num_studies}",
            *("" if score is None else f"{score:.4f}" for score in scores),
            "" if gain is None else measure.number(gain.mean),
            interval,
            *(f"{count}/{num_completed}" if num_completed else "" for count in counts),
        )
        rows.append(row)
    return headings, rows


def show_sweep(console: Console, outcome: SweepOutcome) -> None:
    """Print the means over seeds and the output paths."""
    is_confirmed, name = outcome.measure == "accuracy", outcome.scored.name
    title = f"{name[:1].upper()}{name[1:]} on fresh seeds" if is_confirmed else "Fitness on the search's seed"
    headings, rows = sweep_table(outcome.groups, outcome.scored, is_confirmed)
    table = plain_table(*headings, title=f"{title}, mean over studies", numbers=headings)
    table.columns[headings.index("95 % interval")].no_wrap = True
    for row in rows:
        table.add_row(*row)
    console.print(table)
    completed = len(outcome.with_status("completed"))
    console.print(f"\n{completed} of {len(outcome.studies)} studies completed.")
    show_path(console, "Table", outcome.folder / "table.parquet", " (and table.csv): one row per study and method")


def show_not_completed(outcome: SweepOutcome) -> None:
    """Print to standard error which studies did not complete, and why."""
    others = [study for study in outcome.studies if study.end.status != "completed"]
    for study in others[:TOLD]:
        tell(f"{study.configuration.text} {study.end.status}: {study.end.error}")
    if len(others) > TOLD:
        tell(f"{len(others) - TOLD} more did not complete; the table lists them")
    if outcome.with_status("lost"):
        tell("run the same command to resume the lost studies")


def table_document(tuned: TunedTable) -> dict[str, Any]:
    """Return a table of client settings as JSON."""
    cells = [
        {**vars(cell), **provenance}
        for cell, provenance in zip(tuned.table.cells, tuned.provenance["cells"], strict=True)
    ]
    return {"out": str(tuned.path), "cells": cells, "proxy": tuned.provenance["proxy"]}


def show_table(console: Console, tuned: TunedTable) -> None:
    """Print the table, one row per heterogeneity, and how to train with it."""
    scored = zip(tuned.table.cells, tuned.provenance["cells"], strict=True)
    cells = {(cell.heterogeneity, cell.quantity): (cell, record["score"]) for cell, record in scored}
    quantities, metric = sorted({quantity for _, quantity in cells}), str(tuned.provenance["metric"])
    table = plain_table(metric, *(f"{quantity} rows" for quantity in quantities), title="lr/batch size/epochs: score")
    for heterogeneity in sorted({value for value, _ in cells}):
        row = [
            f"{cell.learning_rate:.2g}/{cell.batch_size}/{cell.local_epochs} {score:.2f}"
            for cell, score in (cells[heterogeneity, quantity] for quantity in quantities)
        ]
        table.add_row(f"{heterogeneity:.3g}", *row)
    console.print(table)
    _show_proxy(console, tuned)
    show_path(console, "Table", tuned.path)


def _show_proxy(console: Console, tuned: TunedTable) -> None:
    proxy, cell_records = tuned.provenance["proxy"], tuned.provenance["cells"]
    num_repeated, num_cells = sum(record["repeated_rows"] for record in cell_records), len(cell_records)
    trials = sum(record["trials"] for record in cell_records)
    chosen = {(cell.learning_rate, cell.batch_size, cell.local_epochs) for cell in tuned.table.cells}
    console.print(
        f"\n{num_cells} cells have {len(chosen)} different settings of {trials} tried, on {proxy['num_rows']} "
        f"proxy rows, {proxy['num_scored']} of them for scoring; proxy clients of a cell share "
        f"{num_repeated / num_cells:.0f} rows"
    )
    if proxy["synthetic"] is not None:
        console.print("the proxy rows are sampled from the class means that clients reported")
    elif proxy["dataset"] == tuned.provenance["dataset"]:
        console.print(
            f"train with federation.server_rows={proxy['server_rows']} federation.seed={proxy['federation_seed']}, "
            "so that no client holds a proxy row"
        )
