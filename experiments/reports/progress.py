"""Progress of a running command (stage, trials, best so far, time left), and the cost of a study."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from fedscout.experiments.reports.console import PlainConsole, seconds_text
from fedscout.experiments.text import tell, visible

if TYPE_CHECKING:
    from fedscout.engine.trials.record import Trial
    from fedscout.experiments.studies.workflow import Display, Stage


STEPS = {"search": "generation {generation}", "tuned-baseline": "tuning FedAvg", "confirmation": "confirmation"}
"""Steps of a study by the phase of its trials."""


PRINTED_STAGES: Collection[Stage] = ("detection", "search")
"""Stages that take long; configuration errors are reported before them."""


PROGRESS_BAR = 14
"""Characters of the bar, so that the line fits 80."""


class _TwoLines(Progress):
    """A progress bar with a line of text below it."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            if below := task.fields["below"]:
                yield Text(f"  {visible(below)}", overflow="ellipsis", no_wrap=True)


class WorkLine:
    """Progress line of a running command. Silent if standard error is no terminal."""

    def __init__(self, description: str = "starting") -> None:
        console = PlainConsole(stderr=True)
        self.shown = console.is_terminal
        self._progress = _TwoLines(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(PROGRESS_BAR),
            TextColumn("{task.fields[counts]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not self.shown,
        )
        self._task = self._progress.add_task(description, total=None, counts="", below="")
        self._started: float | None = None

    def live(self) -> Progress:
        """Return a context manager that shows the line."""
        return self._progress

    def _seconds_left(self, done: float, to_do: float) -> float | None:
        """Return the estimated time left from the progress since `_started`; None without progress."""
        if self._started is None or done <= 0:
            return None
        return (time.monotonic() - self._started) * to_do / done


class TrialProgress(WorkLine):
    """Progress of stage, trials, rounds and time left, and what the trials have found and cost so far.

    `rounds_less` is the number of rounds that shortened trials save. With `plain_lines`, and if standard error is
    no terminal, it prints a line when a stage starts and the best trial after each generation.
    """

    def __init__(
        self, num_trials: int = 0, num_rounds: int = 0, rounds_less: int = 0, plain_lines: bool = False
    ) -> None:
        super().__init__()
        self._plain_lines = plain_lines and not self.shown
        self._num_trials = num_trials
        self._num_rounds = num_rounds
        self._total = num_trials * num_rounds - rounds_less
        self._shorter = rounds_less > 0
        self._step = ""  # of the last trial; FedAvg itself belongs to the first generation
        self._trials: list[Trial] = []
        self._known: list[Trial] = []
        self._rounds: dict[str, int] = {}
        self._progress.update(self._task, total=self._total)

    def stage(self, stage: Stage) -> None:
        """Show the stage."""
        from fedscout.experiments.studies.workflow import STAGES

        self._progress.update(self._task, description=STAGES[stage])
        if stage in PRINTED_STAGES:
            self._say(STAGES[stage])

    def _say(self, line: str) -> None:
        if self._plain_lines:
            tell(line)

    def record(self, trial: Trial, known: bool) -> None:
        """Record a trial that finished or was in the log."""
        self._rounds.pop(trial.key, None)
        step = STEPS[trial.phase].format(generation=trial.generation) if trial.phase in STEPS else self._step
        if self._step not in ("", step):
            self._say(f"{self._step}: {self._so_far()}; {len(self._trials)}/{self._num_trials} trials")
        self._step = step
        self._trials.append(trial)
        self._known += [trial] if known else []
        self._refresh()

    def rounds(self, rounds: Mapping[str, int]) -> None:
        """Update the finished rounds of running trials."""
        if self._started is None:
            self._started = time.monotonic()
        self._rounds.update({key: done for key, done in rounds.items() if done < self._num_rounds})
        self._refresh()

    def _refresh(self) -> None:
        known, finished = (self._rounds_of(trials) for trials in (self._known, self._trials))
        done = finished + sum(self._rounds.values())
        seconds = self._seconds_left(done - known, self._total - done)
        time_left = "" if seconds is None else f"about {seconds_text(round(seconds))} left"
        counts = f"{len(self._trials)}/{self._num_trials} trials, {done}/{self._total} rounds"
        below = ", ".join(part for part in (time_left, self._so_far()) if part)
        self._progress.update(self._task, completed=done, counts=counts, below=below)

    def _rounds_of(self, trials: Sequence[Trial]) -> int:
        return sum(trial.num_rounds if self._shorter else self._num_rounds for trial in trials)

    def _so_far(self) -> str:
        """Return the best trial, FedAvg, and how many clients failed in some round; empty if nothing is known."""
        whole = [trial for trial in self._trials if trial.status != "failed" and trial.whole]
        compared = [trial for trial in whole if trial.phase in ("baseline", "search")]
        best = max(compared, key=lambda trial: trial.fitness, default=None)
        parts = [] if best is None else [f"best so far {best.spec.label} {best.fitness:.4f}"]
        parts += [f"FedAvg {one.fitness:.4f}" for one in compared if one.phase == "baseline" and one is not best]
        if lost := {place.partition(":")[2] for trial in self._trials for place in trial.dropped_clients}:
            parts.append(f"{len(lost)} client{'s' if len(lost) > 1 else ''} failed in some round")
        return ", ".join(parts)

    @property
    def kept(self) -> str:
        """What is kept if the study is interrupted."""
        count = len(self._trials)
        if not count:
            return "no trial has finished; checkpoints of running trials are kept"
        return f"{count} finished trial{'' if count == 1 else 's'} and the checkpoints of running trials are kept"

    def cost(self, seconds: float) -> str:
        """Return the cost of a finished study, which this run took so long for, in a sentence."""
        short = [trial for trial in self._trials if not trial.whole]
        total, num_known, num_short = (
            sum(trial.num_trainings for trial in trials) for trials in (self._trials, self._known, short)
        )
        trainings = f"{total} training{'' if total == 1 else 's'}"
        trainings += f" ({num_short} with fewer rounds)" if num_short else ""
        took = f"{seconds:.{0 if seconds >= 10 else 1}f} s"
        if num_known == total:
            return f"Cost: {trainings}, all of them from the log of an earlier run ({took})."
        known = f", {num_known} of them from the log of an earlier run" if num_known else ""
        return f"Cost: {trainings}{known}, {took}."

    def display(self) -> Display:
        """Return the callbacks for a workflow."""
        from fedscout.experiments.studies.workflow import Display
        from fedscout.search.ledger import StudyEvents

        events = StudyEvents(on_record=self.record, on_rounds=self.rounds if self.shown else None)
        return Display(stage=self.stage, trials=events)
