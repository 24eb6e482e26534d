"""What tables of trials tell beside fitness, where there is something to tell: other accuracies, and bytes a round."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedscout.search.measure import ACCURACY, Measure
from fedscout.search.objective import Objective

if TYPE_CHECKING:
    from fedscout.engine.trials.trial_record import Trial
    from fedscout.search.confirmation.confirmation import Contestant

SCORE, GLOBAL, NEW_CLIENT = "mean score", "global model", "new client"
DOWN, UP = "down a round", "up a round"
SIMULATED, TO_TARGET = "simulated time", "time to target"
UNITS = ("kB", "MB", "GB", "TB")


@dataclass(frozen=True)
class Told:
    """What one line of a table may tell; None where it is not known.

    Attributes:
        own: Score of the model that a client would use.
        shared: That of the global model; None where that is what clients use.
        new_client: That of the model that a client would use which never trained.
        bytes_down: What all clients of a round are sent.
        bytes_up: What they answer.
        told_own: Whether the own score stands apart, as the fitness is another thing.
        second: Fitness by the second objective, where there are two.
        simulated_seconds: What the rounds took on the simulated clock.
        seconds_to_target: What they took until the target was reached, where there is one.
    """

    own: float | None
    shared: float | None
    new_client: float | None
    bytes_down: float | None
    bytes_up: float | None
    told_own: bool = False
    second: float | None = None
    simulated_seconds: float | None = None
    seconds_to_target: float | None = None

    @classmethod
    def of_trial(cls, trial: Trial, measure: Measure = ACCURACY) -> Told:
        """Return what a trial tells; of one that failed, bytes alone."""
        shared, new_client = trial.global_accuracy, trial.new_client_accuracy
        second = trial.objectives[1] if trial.objectives and trial.status == "completed" else None
        simulated = None if trial.round_seconds is None else sum(trial.round_seconds)
        to_target, told_own = _seconds_to_target(trial, measure.target), measure.of != "mean"
        sent = (trial.bytes_down, trial.bytes_up)
        return cls(trial.score, shared, new_client, *sent, told_own, second, simulated, to_target)

    @classmethod
    def of_contestant(cls, one: Contestant) -> Told:
        """Return what a contestant tells, the mean over its seeds."""
        scores = (one.score or one.own, one.global_accuracy, one.new_client_accuracy)
        own, shared, new_client = (None if values is None else sum(values) / len(values) for values in scores)
        second = None if one.second is None else sum(one.second) / len(one.second)
        return cls(own, shared, new_client, one.bytes_down, one.bytes_up, one.score is not None, second)


def told_columns(lines: Sequence[Told], second: str = "second objective") -> dict[str, list[str]]:
    """Return the columns that say something, by heading: one cell a line.

    The score stands where fitness is another thing. The global model stands where some line's clients use others, new
    clients where there are some, bytes where lines differ or one stands alone, time where there is a simulated clock.
    """
    columns: dict[str, list[str]] = {}
    if any(line.second is not None for line in lines):
        columns[second] = _cells([line.second for line in lines], _accuracy)
    if any(line.told_own for line in lines):
        columns[SCORE] = _cells([line.own for line in lines], _accuracy)
    if any(line.shared is not None for line in lines):
        columns[GLOBAL] = _cells([line.own if line.shared is None else line.shared for line in lines], _accuracy)
    if any(line.new_client is not None for line in lines):
        columns[NEW_CLIENT] = _cells([line.new_client for line in lines], _accuracy)
    sent = {(line.bytes_down, line.bytes_up) for line in lines} - {(None, None)}
    if len(sent) > 1 or len(lines) == len(sent) == 1:
        columns[DOWN] = _cells([line.bytes_down for line in lines], bytes_text)
        columns[UP] = _cells([line.bytes_up for line in lines], bytes_text)
    if any(line.simulated_seconds is not None for line in lines):
        columns[SIMULATED] = _cells([line.simulated_seconds for line in lines], seconds_text)
    if any(line.seconds_to_target is not None for line in lines):
        columns[TO_TARGET] = _cells([line.seconds_to_target for line in lines], seconds_text)
    return columns


def _seconds_to_target(trial: Trial, target: float | None) -> float | None:
    """Return what a trial took until a target was reached, in simulated seconds; None if it was not, or without one."""
    if target is None or trial.round_seconds is None or not trial.num_rounds:
        return None
    reached = Objective("time_to_accuracy", trial.num_rounds, target).reached(trial.scores() or ())
    return None if reached is None else sum(trial.round_seconds[:reached])


def seconds_text(seconds: float) -> str:
    """Return a time for people, such as `42.5 s`, `13.1 min` or `2.78 h`."""
    unit, size = next(((u, s) for u, s in (("h", 3600), ("min", 60)) if seconds >= 2 * s), ("s", 1))
    return f"{seconds / size:.3g} {unit}"


def bytes_text(count: float) -> str:
    """Return a number of bytes for people, in powers of 1000, such as `73.9 kB`."""
    if count < 1000:
        return f"{count:.0f} B"
    power = min(int(math.log10(count)) // 3, len(UNITS))
    return f"{count / 1000**power:.3g} {UNITS[power - 1]}"


def _accuracy(value: float) -> str:
    return f"{value:.4f}"


def _cells(values: Sequence[float | None], text: Callable[[float], str]) -> list[str]:
    return ["" if value is None else text(value) for value in values]
