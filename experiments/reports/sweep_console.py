"""Console output of sweeps and of tuning a table of client settings.

While running, both show what is in progress and the time left; at the end, the means over seeds or the table.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedscout.engine.contracts.client_table import HETEROGENEITY
from fedscout.engine.trials.log import num_trials
from fedscout.experiments.reports.console import plain_table, show_path
from fedscout.experiments.reports.progress import WorkLine, duration
from fedscout.experiments.text import tell, visible
from fedscout.search.objective import Measure

if TYPE_CHECKING:
    from fedscout.experiments.client_settings.tuning import PlannedCell, TunedTable, TuningDisplay
    from fedscout.experiments.sweeps.results import Mean
    from fedscout.experiments.sweeps.run import SweepDisplay, SweepOutcome
    from fedscout.experiments.sweeps.sweep import GridConfiguration, StudyEnd, Sweep, SweepFolder


NAMED = 2
"""Number of running studies that are named; the others are counted."""

TOLD = 20
"""Number of incomplete studies that are listed on standard error; the table has all."""


class SweepProgress(WorkLine):
    """Progress of a sweep: running studies, number of finished ones, and time left."""

    def __init__(self, num_studies: int) -> None:
        super().__init__()
        self._num_studies = num_studies
        self._num_ended = 0
        self._running: dict[str, GridConfiguration] = {}
        self._planned: dict[str, int] = {}
        self._before = 0
        self._done = 0

    def display(self) -> SweepDisplay:
        """Return the callbacks for a sweep."""
        from fedscout.experiments.sweeps.run import SweepDisplay

        return SweepDisplay(known=self.known, begun=self.begun, ended=self.ended, tick=self.tick)

    def known(self, known: Sequence[GridConfiguration], pending: Sequence[GridConfiguration]) -> None:
        """Set the finished studies and those that must be run."""
        from fedscout.experiments.config import planned_trials

        self._num_ended = len(known)
        self._planned = {one.digest: planned_trials(one.config)[0] for one in pending}
        self._refresh(0)

    def begun(self, one: GridConfiguration) -> None:
        """Record that a study started or restarted."""
        self._running[one.digest] = one
        self._refresh(0)

    def ended(self, one: GridConfiguration, end: StudyEnd) -> None:
        """Record that a study ended."""
        self._running.pop(one.digest, None)
        self._num_ended += 1
        self._done += self._planned.get(one.digest, 0)
        self._refresh(0)

    def tick(self, folder: SweepFolder) -> None:
        """Update the progress of running studies from their logs; called periodically."""
        if self.shown:
            running = list(self._running.values())
            self._refresh(
                sum(
                    min(folder.num_trials(configuration), self._planned[configuration.digest])
                    for configuration in running
                )
            )

    def _refresh(self, under_way: int) -> None:
        done, total = self._done + under_way, sum(self._planned.values())
        if self._started is None and self._running:
            self._started, self._before = time.monotonic(), done
        seconds = self._seconds_left(done - self._before, total - done)
        time_left = "" if seconds is None else f", about {duration(seconds)} left"
        names = [one.name.rpartition("-")[0] or one.name for one in self._running.values()]
        rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        self._progress.update(
            self._task,
            total=total or 1,
            completed=done if total else 1,
            description=visible("; ".join(names[:NAMED]) + rest) or ("reading" if done == total else "starting"),
            counts=f"{self._num_ended}/{self._num_studies} studies, {done}/{total} trials{time_left}",
        )


def show_points(console: Console, sweep: Sweep, listed: Sequence[Mapping[str, Any]]) -> None:
    """Print the studies of a sweep, one per line, without running them."""
    from fedscout.experiments.sweeps.sweep import value_text

    keys = [key.rpartition(".")[2] for key in sweep.axes]
    table = plain_table(*keys, "state", title=f"{len(listed)} studies", numbers=keys)
    table.add_column("folder", overflow="fold")
    for configuration, entry in zip(sweep.configurations, listed, strict=True):
        progress = f"{entry['trials']} of {entry['planned_trials']} trials" if entry["trials"] else "new"
        cells = [value_text(value) for value in configuration.setting.values()]
        table.add_row(*cells, "finished" if entry["finished"] else progress, str(entry["study"]))
    console.print(table)


def show_sweep(console: Console, outcome: SweepOutcome) -> None:
    """Print the means over seeds and the output paths."""
    from fedscout.experiments.sweeps.results import LABELS, TUNED
    from fedscout.experiments.sweeps.sweep import value_text

    axes = list(outcome.groups[0].values) if outcome.groups else []
    choosers = list(dict.fromkeys(chooser for group in outcome.groups for chooser in group.accuracy))
    confirmed = outcome.measure == "accuracy"
    measure = outcome.scored
    title = (
        f"{measure.name[:1].upper()}{measure.name[1:]} on fresh seeds" if confirmed else "Fitness on the search's seed"
    )
    against = f"{measure.unit} vs. {'the stronger FedAvg' if TUNED in choosers else 'FedAvg'}"
    headings = [*axes, "studies", *(LABELS[chooser] for chooser in choosers), against, "95 % interval"]
    headings += [*(["better"] if confirmed else []), "label skew", "feature skew", "outliers"]
    table = plain_table(*headings, title=f"{title}, mean over studies", numbers=headings)
    table.columns[headings.index("95 % interval")].no_wrap = True
    for group in outcome.groups:
        num_completed, num_studies = group.num_completed, group.num_studies
        counts = [*([group.num_better] if confirmed else []), *group.detected.values()]
        table.add_row(
            *(value_text(value) for value in group.values.values()),
            str(num_studies) if num_completed == num_studies else f"{num_completed} of {num_studies}",
            *(_score(group.accuracy.get(chooser)) for chooser in choosers),
            *_gain(group.gain, measure),
            *(f"{count}/{num_completed}" if num_completed else "" for count in counts),
        )
    console.print(table)
    completed = len(outcome.with_status("completed"))
    console.print(f"\n{completed} of {len(outcome.studies)} studies completed.")
    show_path(console, "Table", outcome.folder / "table.parquet", " (and table.csv): one row per study and chooser")


def _score(mean: Mean | None) -> str:
    return "" if mean is None else f"{mean.mean:.4f}"


def _gain(mean: Mean | None, measure: Measure) -> tuple[str, str]:
    if mean is None:
        return "", ""
    ends = None if mean.low is None or mean.high is None else (measure.number(mean.low), measure.number(mean.high))
    return measure.number(mean.mean), "" if ends is None else f"[{', '.join(ends)}]"


def show_not_completed(outcome: SweepOutcome) -> None:
    """Print to standard error which studies did not complete, and why."""
    others = [study for study in outcome.studies if study.end.status != "completed"]
    for study in others[:TOLD]:
        tell(f"{study.configuration.text} {study.end.status}: {study.end.error}")
    if len(others) > TOLD:
        tell(f"{len(others) - TOLD} more did not complete; the table lists them")
    if outcome.with_status("lost"):
        tell("run the same command to resume the lost studies")


class TuningProgress(WorkLine):
    """Progress of tuning: running cells, number of finished ones, settings tried, and time left.

    The time left is estimated from the rows of cells, to which their number of steps is proportional.
    """

    def __init__(self) -> None:
        super().__init__()
        self._cells: Sequence[PlannedCell] = ()
        self._left: dict[int, int] = {}
        self._running: set[int] = set()
        self._done = 0

    def display(self) -> TuningDisplay:
        """Return the callbacks for a tuner."""
        from fedscout.experiments.client_settings.tuning import TuningDisplay

        return TuningDisplay(known=self.known, begun=self.begun, ended=self.ended, tick=self._refresh)

    def known(self, cells: Sequence[PlannedCell], known: Sequence[int]) -> None:
        """Set the planned cells and those that are finished."""
        self._cells = cells
        self._left = {place: cell.place.quantity for place, cell in enumerate(cells) if place not in known}
        self._refresh()

    def begun(self, position: int) -> None:
        """Record that a cell started or restarted."""
        if self._started is None:
            self._started = time.monotonic()
        self._running.add(position)
        self._refresh()

    def ended(self, position: int) -> None:
        """Record that a cell ended."""
        self._running.discard(position)
        self._done += self._left.pop(position, 0)
        self._refresh()

    def _refresh(self) -> None:
        if not self.shown:
            return
        seconds = self._seconds_left(self._done, sum(self._left.values()))
        time_left = "" if seconds is None else f", about {duration(seconds)} left"
        names = [self._cells[position].folder.name.rpartition("-")[0] for position in sorted(self._running)]
        rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        num_done, total = len(self._cells) - len(self._left), len(self._cells)
        self._progress.update(
            self._task,
            total=total or 1,
            completed=num_done,
            description=visible("; ".join(names[:NAMED]) + rest) or "reading",
            counts=f"{num_done}/{total} cells, {self._num_trials()} settings tried{time_left}",
        )

    def _num_trials(self) -> int:
        return sum(num_trials(cell.folder / "trials") for cell in self._cells)


def table_document(tuned: TunedTable) -> dict[str, Any]:
    """Return a table of client settings as JSON."""
    cells = [
        {**vars(cell), **provenance}
        for cell, provenance in zip(tuned.table.cells, tuned.provenance["cells"], strict=True)
    ]
    return {"out": str(tuned.path), "cells": cells, "proxy": tuned.provenance["proxy"]}


def show_table(console: Console, tuned: TunedTable) -> None:
    """Print the table, one row per heterogeneity, and how to train with it."""
    cells = {(cell.heterogeneity, cell.quantity): cell for cell in tuned.table.cells}
    quantities = sorted({quantity for _, quantity in cells})
    scores = {
        (cell.heterogeneity, cell.quantity): provenance["score"]
        for cell, provenance in zip(tuned.table.cells, tuned.provenance["cells"], strict=True)
    }
    metric = str(tuned.provenance["metric"])
    table = plain_table(metric, *(f"{quantity} rows" for quantity in quantities), title="lr/batch size/epochs: score")
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
    proxy, cell_records = tuned.provenance["proxy"], tuned.provenance["cells"]
    num_repeated, num_cells = sum(record["repeated_rows"] for record in cell_records), len(cell_records)
    trials = sum(record["trials"] for record in cell_records)
    console.print(f"\n{trials} settings tried in {num_cells} cells on {proxy['num_rows']} proxy rows, ", end="")
    console.print(
        f"{proxy['num_scored']} of them for scoring; proxy clients of a cell share {num_repeated / num_cells:.0f} rows"
    )
    if proxy["synthetic"] is not None:
        console.print("the proxy rows are sampled from the class means that clients reported")
    elif proxy["dataset"] == tuned.provenance["dataset"]:
        console.print(
            f"train with federation.server_rows={proxy['server_rows']} federation.seed={proxy['federation_seed']}, "
            "so that no client holds a proxy row"
        )
