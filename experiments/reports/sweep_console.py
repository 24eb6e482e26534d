"""What a person sees of a sweep: which studies run and how long it may take; at the end, means over seeds."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedscout.experiments.reports.console import plain_table, show_path
from fedscout.experiments.reports.progress import WorkLine, duration
from fedscout.experiments.visible import tell, visible
from fedscout.search.measure import Measure

if TYPE_CHECKING:
    from fedscout.experiments.studies.sweeps.grid_configurations import GridConfiguration, Sweep
    from fedscout.experiments.studies.sweeps.run_sweep import SweepDisplay, SweepOutcome
    from fedscout.experiments.studies.sweeps.study_run import StudyEnd
    from fedscout.experiments.studies.sweeps.sweep_folder import SweepFolder
    from fedscout.experiments.studies.sweeps.sweep_summary import Mean

NAMED = 2
"""So many running studies are named; the rest is counted."""

TOLD = 20
"""So many studies that did not complete are told of on standard error; the table has all."""


class SweepProgress(WorkLine):
    """Tells the studies that run, how many are done, and the time left."""

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
        from fedscout.experiments.studies.sweeps.run_sweep import SweepDisplay

        return SweepDisplay(known=self.known, begun=self.begun, ended=self.ended, tick=self.tick)

    def known(self, known: Sequence[GridConfiguration], pending: Sequence[GridConfiguration]) -> None:
        """The work is known: trials of studies that must be run."""
        from fedscout.experiments.studies.sweeps.run_sweep import num_planned_trials

        self._num_ended = len(known)
        self._planned = {one.digest: num_planned_trials(one.config) for one in pending}
        self._refresh(0)

    def begun(self, one: GridConfiguration) -> None:
        """A study begins, or begins again."""
        self._running[one.digest] = one
        self._refresh(0)

    def ended(self, one: GridConfiguration, end: StudyEnd) -> None:
        """A study ended."""
        self._running.pop(one.digest, None)
        self._num_ended += 1
        self._done += self._planned.get(one.digest, 0)
        self._refresh(0)

    def tick(self, folder: SweepFolder) -> None:
        """Some time passed; the logs tell how far the running studies are."""
        if self.shown:
            running = list(self._running.values())
            self._refresh(sum(min(folder.num_trials(one), self._planned[one.digest]) for one in running))

    def _refresh(self, under_way: int) -> None:
        done, total = self._done + under_way, sum(self._planned.values())
        if self._started is None and self._running:
            self._started, self._before = time.monotonic(), done
        seconds = self._seconds_left(done - self._before, total - done)
        left = "" if seconds is None else f", about {duration(seconds)} left"
        names = [one.name.rpartition("-")[0] or one.name for one in self._running.values()]
        rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        self._progress.update(
            self._task,
            total=total or 1,
            completed=done if total else 1,
            description=visible("; ".join(names[:NAMED]) + rest) or ("reading" if done == total else "starting"),
            counts=f"{self._num_ended}/{self._num_studies} studies, {done}/{total} trials{left}",
        )


def show_points(console: Console, sweep: Sweep, listed: Sequence[Mapping[str, Any]]) -> None:
    """Print the studies of a sweep, one a line, without running them."""
    from fedscout.experiments.studies.sweeps.grid_configurations import value_text

    keys = [key.rpartition(".")[2] for key in sweep.axes]
    table = plain_table(*keys, "state", title=f"{len(listed)} studies", numbers=keys)
    table.add_column("folder", overflow="fold")
    for configuration, one in zip(sweep.configurations, listed, strict=True):
        begun = f"{one['trials']} of {one['planned_trials']} trials" if one["trials"] else "new"
        cells = [value_text(value) for value in configuration.setting.values()]
        table.add_row(*cells, "finished" if one["finished"] else begun, str(one["study"]))
    console.print(table)


def show_sweep(console: Console, outcome: SweepOutcome) -> None:
    """Print the means over seeds, and where everything is."""
    from fedscout.experiments.studies.sweeps.grid_configurations import value_text
    from fedscout.experiments.studies.sweeps.sweep_table import LABELS, TUNED

    kept = list(outcome.groups[0].values) if outcome.groups else []
    choosers = list(dict.fromkeys(chooser for group in outcome.groups for chooser in group.accuracy))
    confirmed = outcome.measure == "accuracy"
    measure = outcome.scored
    title = (
        f"{measure.name[:1].upper()}{measure.name[1:]} on fresh seeds" if confirmed else "Fitness on the search's seed"
    )
    against = f"{measure.unit} against {'the stronger FedAvg' if TUNED in choosers else 'FedAvg'}"
    headings = [*kept, "studies", *(LABELS[chooser] for chooser in choosers), against, "95 % interval"]
    headings += [*(["better"] if confirmed else []), "label skew", "feature skew", "outliers"]
    table = plain_table(*headings, title=f"{title}, mean over studies", numbers=headings)
    table.columns[headings.index("95 % interval")].no_wrap = True
    for group in outcome.groups:
        done, of = group.num_completed, group.num_studies
        counts = [*([group.num_better] if confirmed else []), *group.detected.values()]
        table.add_row(
            *(value_text(value) for value in group.values.values()),
            str(of) if done == of else f"{done} of {of}",
            *(_score(group.accuracy.get(chooser)) for chooser in choosers),
            *_gain(group.gain, measure),
            *(f"{count}/{done}" if done else "" for count in counts),
        )
    console.print(table)
    completed = len(outcome.with_status("completed"))
    console.print(f"\n{completed} of {len(outcome.studies)} studies completed.")
    show_path(console, "Table", outcome.folder / "table.parquet", " (and table.csv): a row for each study and chooser")
    for path in outcome.plots[:1]:
        show_path(console, "Plot", path, " (and plot.svg)")


def _score(mean: Mean | None) -> str:
    return "" if mean is None else f"{mean.mean:.4f}"


def _gain(mean: Mean | None, measure: Measure) -> tuple[str, str]:
    if mean is None:
        return "", ""
    ends = None if mean.low is None or mean.high is None else (measure.number(mean.low), measure.number(mean.high))
    return measure.number(mean.mean), "" if ends is None else f"[{', '.join(ends)}]"


def show_not_completed(outcome: SweepOutcome) -> None:
    """Name on standard error what did not complete, and why."""
    others = [study for study in outcome.studies if study.end.status != "completed"]
    for study in others[:TOLD]:
        tell(f"{study.configuration.text} {study.end.status}: {study.end.error}")
    if len(others) > TOLD:
        tell(f"{len(others) - TOLD} more did not complete; the table names them")
    if outcome.with_status("lost"):
        tell("the same command goes on with the studies that were lost")
