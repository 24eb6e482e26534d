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
        self._best: Trial | None = None
        self._fedavg: Trial | None = None
        self._lost_clients: set[str] = set()
        self._finished = dict.fromkeys(("trials", "rounds", "trainings", "short trainings"), 0)
        self._known = {**self._finished}  # those of them that an earlier run logged
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
            self._say(f"{self._step}: {self._so_far()}; {self._finished['trials']}/{self._num_trials} trials")
        self._step = step
        rounds = trial.num_rounds if self._shorter else self._num_rounds
        added = (1, rounds, trial.num_trainings, 0 if trial.is_full else trial.num_trainings)
        for counts in (self._finished, self._known) if known else (self._finished,):
            counts |= {name: count + more for (name, count), more in zip(counts.items(), added, strict=True)}
        self._lost_clients.update(place.partition(":")[2] for place in trial.dropped_clients)
        if trial.status != "failed" and trial.is_full and trial.phase in ("baseline", "search"):
            self._fedavg = trial if trial.phase == "baseline" else self._fedavg
            self._best = trial if self._best is None or trial.fitness > self._best.fitness else self._best
        self._refresh()

    def rounds(self, rounds: Mapping[str, int]) -> None:
        """Update the finished rounds of running trials."""
        if self._started is None:
            self._started = time.monotonic()
        self._rounds.update({key: done for key, done in rounds.items() if done < self._num_rounds})
        self._refresh()

    def _refresh(self) -> None:
        done = self._finished["rounds"] + sum(self._rounds.values())
        total = max(self._total, done)  # FedAvg at the study's own rate on the fresh seeds is not among the planned
        seconds = self._seconds_left(done - self._known["rounds"], total - done)
        time_left = "" if seconds is None else f"about {seconds_text(round(seconds))} left"
        num_trials = self._finished["trials"]
        counts = f"{num_trials}/{max(self._num_trials, num_trials)} trials, {done}/{total} rounds"
        below = ", ".join(part for part in (time_left, self._so_far()) if part)
        self._progress.update(self._task, completed=done, total=total, counts=counts, below=below)

    def _so_far(self) -> str:
        """Return the best trial, FedAvg, and how many clients failed in some round; empty if nothing is known."""
        parts = [] if self._best is None else [f"best so far {self._best.spec.label} {self._best.fitness:.4f}"]
        if self._fedavg is not None and self._best is not self._fedavg:
            parts.append(f"FedAvg {self._fedavg.fitness:.4f}")
        if lost := len(self._lost_clients):
            parts.append(f"{lost} client{'s' if lost > 1 else ''} failed in some round")
        return ", ".join(parts)

    @property
    def kept(self) -> str:
        """What is kept if the study is interrupted."""
        count = self._finished["trials"]
        if not count:
            return "no trial has finished; checkpoints of running trials are kept"
        return f"{count} finished trial{'' if count == 1 else 's'} and the checkpoints of running trials are kept"

    def cost(self, seconds: float) -> str:
        """Return the cost of a finished study, which this run took so long for, in a sentence."""
        total, num_known = self._finished["trainings"], self._known["trainings"]
        trainings = f"{total} training{'' if total == 1 else 's'}"
        trainings += f" ({short} with fewer rounds)" if (short := self._finished["short trainings"]) else ""
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
