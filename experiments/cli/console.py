"""What a person sees: progress on standard error while it works, tables on standard output at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from pathlib import Path

    from detectors import HeterogeneityReport
    from engine.federation import Federation
    from engine.trial_log import TrialRecord
    from experiments.workflow import Display, Stage
    from search.confirmation import Confirmation
    from search.study import Archived, StudyOutcome

STAGES: Mapping[str, str] = {
    "data": "reading data",
    "hosts": "starting hosts",
    "detection": "measuring heterogeneity",
    "search": "running trials",
}


def progress_line(console: Console) -> Progress:
    """Return the line that commands show while they work; nothing where standard error is no terminal."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[counts]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class TrialProgress:
    """One line that tells stage, trials, rounds and time left. Silent where standard error is no terminal.

    Args:
        num_trials: Trials that will be planned in all.
        num_rounds: Rounds a trial.
    """

    def __init__(self, num_trials: int, num_rounds: int) -> None:
        console = Console(stderr=True)
        self._num_rounds = num_rounds
        self._total = num_trials * num_rounds
        self._finished_trials = 0
        self._known_trials = 0
        self._num_trials = num_trials
        self._rounds: dict[str, int] = {}
        self._started: float | None = None
        self.shown = console.is_terminal
        self._progress = progress_line(console)
        self._task = self._progress.add_task("starting", total=self._total, counts="")

    @contextmanager
    def live(self) -> Iterator[None]:
        """Show the line for the time of the block."""
        with self._progress:
            yield

    def stage(self, stage: Stage) -> None:
        """Name the stage."""
        self._progress.update(self._task, description=STAGES.get(stage, stage))

    def record(self, record: TrialRecord, known: bool) -> None:
        """A trial finished, or was in the log."""
        self._rounds.pop(record.key, None)
        self._finished_trials += 1
        self._known_trials += known
        self._refresh()

    def rounds(self, rounds: Mapping[str, int]) -> None:
        """Running trials got on."""
        if self._started is None:
            self._started = time.monotonic()
        self._rounds.update({key: done for key, done in rounds.items() if done < self._num_rounds})
        self._refresh()

    def _refresh(self) -> None:
        done = self._finished_trials * self._num_rounds + sum(self._rounds.values())
        counts = f"{self._finished_trials}/{self._num_trials} trials, {done}/{self._total} rounds{self._left(done)}"
        self._progress.update(self._task, completed=done, counts=counts)

    def _left(self, done: int) -> str:
        fresh = done - self._known_trials * self._num_rounds
        if self._started is None or fresh <= 0:
            return ""
        seconds = (time.monotonic() - self._started) * (self._total - done) / fresh
        return f", about {seconds:.0f} s left"

    def display(self) -> Display:
        """Return the callbacks for a workflow."""
        from experiments.workflow import Display
        from search.ledger import StudyEvents

        events = StudyEvents(on_record=self.record, on_rounds=self.rounds if self.shown else None)
        return Display(stage=self.stage, trials=events)


def out_console() -> Console:
    """Return the console of results; wide enough for tables where standard output is no terminal."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 120, soft_wrap=False)


def show_federation(console: Console, federation: Federation) -> None:
    """Print what was built."""
    sizes = federation.partition.sizes
    console.print(
        f"[bold]{escape(federation.name)}[/]: {int(sizes.sum())} rows, {federation.num_classes} classes, ", end=""
    )
    console.print(f"{int(sizes.min())} to {int(sizes.max())} rows a client")
    if federation.affected_clients:
        named = ", ".join(str(client) for client in federation.affected_clients)
        console.print(f"the scenario affects client{'s' if len(federation.affected_clients) > 1 else ''} {named}")


def show_report(console: Console, report: HeterogeneityReport) -> None:
    """Print the diagnosis."""
    console.print("\n[bold]Diagnosis[/]")
    table = Table(show_header=False, box=None, padding=(0, 1, 0, 0))
    for finding in report.findings:
        table.add_row(
            "[red]![/]" if finding.detected else "[green]-[/]" if finding.measured else "?", escape(finding.sentence)
        )
    console.print(table)
    for note in report.notes:
        console.print(f"  {note}", markup=False)
    if report.withheld:
        console.print(f"  {len(report.withheld)} clients hold too few rows to answer.")


def show_trials(console: Console, entries: Sequence[Archived], baseline: float | None, title: str = "Trials") -> None:
    """Print trials, one a line."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for heading in ("trial", "generation", "strategy"):
        table.add_column(heading, justify="left" if heading == "strategy" else "right")
    table.add_column("accuracy", justify="right")
    table.add_column("" if baseline is None else "points against FedAvg", justify="right")
    for entry in entries:
        record = entry.record
        generation = str(record.generation) if record.generation else "-"
        name = escape(str(entry.spec))
        if record.status == "failed":
            table.add_row(str(record.trial), generation, name, "failed", escape((record.error or "")[:60]))
            continue
        compared = baseline is not None and record.phase != "baseline"
        gain = f"{100 * (record.fitness - (baseline or 0.0)):+.1f}" if compared else ""
        table.add_row(str(record.trial), generation, name, f"{record.fitness:.4f}", gain)
    console.print()
    console.print(table)


def show_outcome(console: Console, outcome: StudyOutcome) -> None:
    """Print the search, its winner and the confirmation."""
    show_trials(console, [outcome.baseline, *outcome.trials], outcome.baseline.record.fitness)
    if outcome.tuned:
        console.print()
        rates = ", ".join(f"{e.record.learning_rate:g}: {e.record.fitness:.4f}" for e in outcome.tuned)
        console.print(f"FedAvg by client learning rate, best first: {rates}")
    console.print()
    if outcome.best is None:
        console.print("[bold]No trial went through.[/]")
    elif outcome.best is outcome.baseline:
        console.print("[bold]FedAvg itself is the best of the search.[/]")
    else:
        console.print(
            f"[bold]Best of the search[/]: {escape(str(outcome.best.spec))}, {outcome.best.record.fitness:.4f}"
        )
    if outcome.confirmation is not None:
        show_confirmation(console, outcome.confirmation)
    elif outcome.best is not None and outcome.best is not outcome.baseline:
        console.print("It was not confirmed on fresh seeds, as search.confirmation_seeds is 0.")


def show_confirmation(console: Console, confirmation: Confirmation) -> None:
    """Print the fresh seeds' verdict, in both views where they differ."""
    import numpy as np

    from search.confirmation import difference_text

    table = Table(title="Confirmation on fresh seeds", title_justify="left", title_style="bold", box=None)
    clean = any(one.own != one.clean for one in confirmation.contestants)
    for heading in ("", "strategy", "client rate", "accuracy", *(["on clean data"] if clean else [])):
        table.add_column(heading, justify="left" if heading in ("", "strategy") else "right")
    for one in confirmation.contestants:
        views = [one.own, one.clean] if clean else [one.own]
        spread = [f"{np.mean(scores):.4f} ± {np.std(scores, ddof=1) if len(scores) > 1 else 0:.4f}" for scores in views]
        table.add_row(one.role, escape(one.name), f"{one.learning_rate:g}", *spread)
    console.print()
    console.print(table)
    for role, sides in confirmation.versus.items():
        for view in ("own", "clean") if clean else ("own",):
            name = f"challenger minus {role}" + (f", {view} data" if clean else "")
            console.print(f"{name}: {difference_text(sides[view])}", markup=False)
    console.print(confirmation.sentence, style="bold", markup=False)


def show_path(console: Console, label: str, path: Path, remark: str = "") -> None:
    """Print where something lies, on one line however long the path is."""
    console.print(f"{label}: {path}{remark}", markup=False, soft_wrap=True)


def show_json(document: Mapping[str, Any]) -> None:
    """Print a document alone on standard output."""
    import json

    print(json.dumps(document, indent=2, sort_keys=True, allow_nan=False))
