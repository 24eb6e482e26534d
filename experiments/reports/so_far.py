"""What a study knows while it runs: trials that finished, the best of them, clients that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedscout.experiments.reports.study_screen import Cost

if TYPE_CHECKING:
    from fedscout.engine.trials.trial_record import Trial

STEPS = {"search": "generation {generation}", "tuned-baseline": "tuning FedAvg", "confirmation": "confirmation"}
"""Of a study, by the phase of its trials."""


class SoFar:
    """Told of each trial that finished.

    Attributes:
        num_trials: That finished.
        step: What the last one was part of; FedAvg itself is of the first generation.
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
        """Take up a trial, and return the step that it is the first one after; empty if the step goes on."""
        before, step = self.step, self.step
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
        return before if before != step else ""

    @property
    def told(self) -> str:
        """The best, FedAvg beside it, and how many clients failed in some round; empty if nothing is known."""
        parts = [] if self._best is None else [f"best so far {self._best.spec.label} {self._best.fitness:.4f}"]
        if self._fedavg is not None and self._best is not self._fedavg:
            parts.append(f"FedAvg {self._fedavg.fitness:.4f}")
        if self._lost:
            parts.append(f"{len(self._lost)} client{'s' if len(self._lost) > 1 else ''} lost in some round")
        return ", ".join(parts)

    @property
    def kept(self) -> str:
        """What an interrupted study keeps."""
        count = self.num_trials
        if not count:
            return "no trial has finished, and what is there of running ones is kept"
        return f"{count} finished trial{'' if count == 1 else 's'} and the checkpoints of running ones are kept"

    def cost(self, seconds: float) -> Cost:
        """Return what it cost, of a study that is finished."""
        return Cost(self._num_trainings, self._num_known, seconds, self._num_short)
