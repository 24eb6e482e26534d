"""Progress of a running command (stage, trials, best so far, time left), and the cost of a study."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
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


class TrialCounter:
    """Counter of finished trials.

    Attributes:
        num_trials: Number of finished trials.
        step: Step of the last trial; FedAvg itself belongs to the first generation.
    """

    def __init__(self) -> None:
        self.num_trials = 0
        self.step = ""
        self._num_trainings = 0
        self._num_known = 0
        self._num_short = 0
        self._best: Trial | None = None
        self._fedavg: Trial | None = None
        self._lost: set[str] = set()

    def record(self, trial: Trial, known: bool) -> str:
        """Record a trial, and return the previous step if the trial starts a new one, else an empty string."""
        previous, step = self.step, self.step
        if trial.phase in STEPS:
            step = STEPS[trial.phase].format(generation=trial.generation)
        self.step = step
        self.num_trials += 1
        self._num_trainings += trial.num_trainings
        self._num_known += trial.num_trainings if known else 0
        self._num_short += 0 if trial.whole else trial.num_trainings
        self._lost |= {place.partition(":")[2] for place in trial.dropped_clients}
        if trial.status != "failed" and trial.whole and trial.phase in ("baseline", "search"):
            if trial.phase == "baseline":
                self._fedavg = trial
            if self._best is None or trial.fitness > self._best.fitness:
                self._best = trial
        return previous if previous != step else ""

    @property
    def told(self) -> str:
        """The best trial, FedAvg, and how many clients failed in some round; empty if nothing is known."""
        parts = [] if self._best is None else [f"best so far {self._best.spec.label} {self._best.fitness:.4f}"]
        if self._fedavg is not None and self._best is not self._fedavg:
            parts.append(f"FedAvg {self._fedavg.fitness:.4f}")
        if self._lost:
            parts.append(f"{len(self._lost)} client{'s' if len(self._lost) > 1 else ''} failed in some round")
        return ", ".join(parts)

    @property
    def kept(self) -> str:
        """What is kept if the study is interrupted."""
        count = self.num_trials
        if not count:
            return "no trial has finished; checkpoints of running trials are kept"
        return f"{count} finished trial{'' if count == 1 else 's'} and the checkpoints of running trials are kept"

    def cost(self, seconds: float) -> str:
        """Return the cost of a finished study, which this run took so long for, in a sentence."""
        trainings = f"{self._num_trainings} training{'' if self._num_trainings == 1 else 's'}"
        trainings += f" ({self._num_short} with fewer rounds)" if self._num_short else ""
        took = f"{seconds:.{0 if seconds >= 10 else 1}f} s"
        if self._num_known == self._num_trainings:
            return f"Cost: {trainings}, all of them from the log of an earlier run ({took})."
        known = f", {self._num_known} of them from the log of an earlier run" if self._num_known else ""
        return f"Cost: {trainings}{known}, {took}."


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
    """Progress of stage, trials, rounds and time left.

    `rounds_less` is the number of rounds that shortened trials save. With `plain_lines`, and if standard error is
    no terminal, it prints a line when a stage starts and the best trial after each generation.

    Attributes:
        so_far: Counter of the finished trials.
    """

    def __init__(
        self, num_trials: int = 0, num_rounds: int = 0, rounds_less: int = 0, plain_lines: bool = False
    ) -> None:
        super().__init__()
        self.so_far = TrialCounter()
        self._plain_lines = plain_lines and not self.shown
        self._num_trials = num_trials
        self._num_rounds = num_rounds
        self._total = num_trials * num_rounds - rounds_less
        self._shorter = rounds_less > 0
        self._finished_trials = 0
        self._finished_rounds = 0
        self._known_rounds = 0
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
        previous = self.so_far.told
        if ended := self.so_far.record(trial, known):
            self._say(f"{ended}: {previous}; {self._finished_trials}/{self._num_trials} trials")
        self._finished_trials += 1
        rounds = trial.num_rounds if self._shorter else self._num_rounds
        self._finished_rounds += rounds
        self._known_rounds += rounds if known else 0
        self._refresh()

    def rounds(self, rounds: Mapping[str, int]) -> None:
        """Update the finished rounds of running trials."""
        if self._started is None:
            self._started = time.monotonic()
        self._rounds.update({key: done for key, done in rounds.items() if done < self._num_rounds})
        self._refresh()

    def _refresh(self) -> None:
        done = self._finished_rounds + sum(self._rounds.values())
        seconds = self._seconds_left(done - self._known_rounds, self._total - done)
        time_left = "" if seconds is None else f"about {seconds_text(round(seconds))} left"
        counts = f"{self._finished_trials}/{self._num_trials} trials, {done}/{self._total} rounds"
        below = ", ".join(part for part in (time_left, self.so_far.told) if part)
        self._progress.update(self._task, completed=done, counts=counts, below=below)

    def display(self) -> Display:
        """Return the callbacks for a workflow."""
        from fedscout.experiments.studies.workflow import Display
        from fedscout.search.ledger import StudyEvents

        events = StudyEvents(on_record=self.record, on_rounds=self.rounds if self.shown else None)
        return Display(stage=self.stage, trials=events)
