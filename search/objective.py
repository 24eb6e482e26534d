"""Objectives: the fitness of a trial, what it measures, and its display.

The fitness, which a search maximises, depends on the objective:

- `accuracy`: the mean score, accuracy or the study's metric, of the last five rounds;
- `worst_clients`: the same mean of the worst tenth of the clients, rounded up, chosen separately in each round (the
  tail reported in Li, Sanjabi, Beirami, Smith: Fair resource allocation in federated learning. ICLR 2020);
- `rounds_to_target`: with R rounds of a training, and the r-th the first whose last five rounds have a mean score of at
  least the target,

      fitness = R + 1 − r,

  the remaining rounds, including that one, so at least 1. A trial that never reaches the target has the share of the
  target that its best five rounds reach, in [0, 1), so it is worse than all that do, and better the closer it gets;
- `bytes_to_target`: the same with r replaced by r B / B₀, where B is the traffic of train messages and their answers in
  a round and B₀ that of plain FedAvg, 8 bytes per parameter and client: the cost in rounds of FedAvg traffic. If it
  takes more than R of these to reach the target, the fitness is 1;
- `time_to_accuracy`: the same with r replaced by T / T₀, where T is the duration of the first r rounds on the simulated
  clock and T₀ an upper bound on the mean duration of a FedAvg round with all clients.

A training of fewer than five rounds uses all its rounds instead of five. A failed trial has fitness 0.

Scores that are shares are displayed in points, others in their own unit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, inf, isnan
from statistics import fmean
from typing import Literal

from pydantic import BaseModel

from fedscout.engine.trials.record import FITNESS_ROUNDS, Trial, late_mean
from fedscout.search.config import ObjectiveName, View


class Measure(BaseModel, frozen=True):
    """What a fitness measures, and its display; larger is better.

    Attributes:
        goal: Description of the maximised quantity.
        name: Heading of a column of scores.
        unit: Unit of a difference of two scores.
        per_unit: Units in a difference of 1: 100 for shares, which are displayed in points.
        best: The largest possible score; None if unknown.
        step: Resolution of scores; None is the share of one test row, times `best`.
        guessing_is_zero: Whether a constant answer scores 0; otherwise a guessing score of 0 means unknown.
        of: Basis of the fitness: the mean score or the worst clients' in the last rounds, or when a target is reached.
        target: The target mean score of five rounds; None without one.
        task: Learning task of the clients.
    """

    goal: str = "mean accuracy over the clients' test data in the last five rounds"
    name: str = "accuracy"
    unit: str = "points"
    per_unit: float = 100.0
    best: float | None = 1.0
    step: float | None = None
    guessing_is_zero: bool = False
    of: Literal["mean", "worst", "target"] = "mean"
    target: float | None = None
    task: Literal["classification", "regression", "reinforcement"] = "classification"

    @property
    def is_accuracy(self) -> bool:
        """Whether it is the share of correct answers over all test rows."""
        return self == ACCURACY

    @property
    def worst(self) -> float | None:
        """The smallest possible score; None if it is unbounded below."""
        return None if self.guessing_is_zero else 0.0

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest score that there can be, infinite where that is not known."""
        return -math.inf if self.worst is None else self.worst, math.inf if self.best is None else self.best

    @property
    def span(self) -> float | None:
        """The largest possible difference of two scores; None if unknown."""
        return None if self.best is None or self.worst is None else self.best - self.worst

    def number(self, difference: float) -> str:
        """Return a formatted difference without its unit, such as `+3.1`."""
        digits = ".1f" if self.per_unit == 100 else ".3g"
        return f"{self.per_unit * difference:+{digits}}"

    def value(self, score: float) -> str:
        """Return a formatted score, such as `72.4 %`."""
        return f"{100 * score:.1f} %" if self.per_unit == 100 else f"{self.per_unit * score:.3g} {self.unit}"

    def difference_text(self, difference: float) -> str:
        """Return a formatted difference with its unit, such as `+3.1 points`."""
        return f"{self.number(difference)} {self.unit}"

    def interval_text(self, low: float, high: float) -> str:
        """Return a formatted interval of a difference without its unit, such as `+1.2 to +5.0`."""
        return f"{self.number(low)} to {self.number(high)}"


ACCURACY = Measure()
UNLIKE = Measure(goal="fitness", name="fitness", unit="fitness", per_unit=1.0, best=None, guessing_is_zero=True)
"""Placeholder for studies that measure different things."""


def _share(name: str) -> Measure:
    goal = f"{name} over all clients' test rows together, mean of the last five rounds"
    return Measure(goal=goal, name=name, unit=f"points of {name}")


def reward(name: str, largest: float) -> Measure:
    """Return the measure of reinforcement-learning clients: the share of the largest score, in the score's unit.

    Args:
        name: Name of the score, such as `reward`.
        largest: Largest score of an episode, > 0.
    """
    return Measure(
        goal=f"mean {name} of an episode over the clients in the last five rounds, of {largest:g} at most",
        name=f"{name} / {largest:g}",
        unit=name,
        per_unit=largest,
        step=1 / largest,
        task="reinforcement",
    )


MEASURES = {
    "accuracy": ACCURACY,
    "balanced_accuracy": _share("balanced accuracy"),
    "macro_f1": _share("macro F1"),
    "auroc": _share("AUROC"),
    "r2": _share("R²").model_copy(update={"guessing_is_zero": True, "task": "regression"}),
    "mae": Measure(
        goal="reduction of the mean absolute error against a constant answer, mean of the last five rounds",
        name="MAE reduction",
        unit="MAE reduction",
        per_unit=1.0,
        best=None,  # that of a constant answer, which depends on the rows
        guessing_is_zero=True,
        task="regression",
    ),
}
"""Of each metric, by its name in `training.metric`."""


@dataclass(frozen=True)
class Objective:
    """The objective that a search maximises.

    Attributes:
        name: As in `search.objective`.
        num_rounds: Rounds of a full training.
        target: Target mean score, > 0, for objectives with a target.
        plain_cost: Bytes, or duration, of a round of plain FedAvg, for objectives on traffic or time.
    """

    name: ObjectiveName
    num_rounds: int
    target: float = 1.0
    plain_cost: float = 1.0

    def fitness(self, trial: Trial, view: View) -> float:
        """Return the fitness of a trial on one view of the test rows."""
        if trial.status == "failed" or not trial.num_rounds:
            return 0.0
        if self.name == "accuracy":
            return trial.own_fitness if view == "own" else trial.clean_fitness
        if self.name == "worst_clients":
            return late_mean(trial.rounds.get("worst_clients" if view == "own" else "clean_worst_clients", (0.0,)))
        scores = trial.scores("" if view == "own" else "clean_") or ()
        reached = self.reached(scores)
        if reached is None:
            return max(0.0, max(mean for _, mean in self._running_means(scores)) / self.target)
        return max(1.0, self.num_rounds + 1 - self._cost(trial, reached))

    def reached(self, scores: Sequence[float]) -> int | None:
        """Return the first round, from 1, that ends a window whose mean is at least the target; None if none does."""
        return next((number for number, mean in self._running_means(scores) if mean >= self.target), None)

    def _running_means(self, scores: Sequence[float]) -> list[tuple[int, float]]:
        """Return rounds, from 1, and the mean of the window that ends there; short curves never reach the target."""
        scores = [-inf if isnan(score) else score for score in scores]  # a round without a score reaches nothing
        window = min(FITNESS_ROUNDS, self.num_rounds)
        if len(scores) < window:  # an early rung of a race: too short to reach the target
            return [(len(scores), min(fmean(scores), self.target * BELOW))]
        return [(last, fmean(scores[last - window : last])) for last in range(window, len(scores) + 1)]

    def _cost(self, trial: Trial, num_rounds: int) -> float:
        """Return the cost of the first rounds of the trial, in rounds; infinite if unknown."""
        if self.name == "rounds_to_target":
            return num_rounds
        if self.name == "bytes_to_target":
            return num_rounds * (((trial.bytes_down or 0.0) + (trial.bytes_up or 0.0)) / self.plain_cost)
        seconds = trial.rounds.get("seconds", (inf,))
        return fsum(seconds[:num_rounds]) / self.plain_cost

    def measure(self, score: Measure) -> Measure:
        """Return the measure of the fitness.

        Args:
            score: Measure of the score of a round.
        """
        if self.name == "accuracy":
            return score
        if self.name == "worst_clients":
            name = f"{score.name} of the worst tenth"
            goal = f"{score.name} of the worst tenth of the clients, mean of the last five rounds"
            whole = score.name.startswith(score.unit)
            unit = f"{score.unit} of the worst tenth" if whole else f"{score.unit.partition(' of ')[0]} of {name}"
            return score.model_copy(update={"name": name, "goal": goal, "unit": unit, "of": "worst"})
        what, name, unit = {
            "rounds_to_target": ("number of rounds", "rounds", "rounds"),
            "bytes_to_target": ("number of rounds of plain traffic", *["rounds of plain traffic"] * 2),
            "time_to_accuracy": ("simulated time", "time", "s of simulated time"),
        }[self.name]
        fewest = float(min(FITNESS_ROUNDS, self.num_rounds)) if self.name == "rounds_to_target" else 0.0
        return Measure(
            goal=f"{what} to spare when a mean {score.name} of {self.target:g} over five rounds is reached",
            name=f"{name} to spare",
            unit=unit,
            per_unit=self.plain_cost if self.name == "time_to_accuracy" else 1.0,
            best=self.num_rounds + 1.0 - fewest,
            step=1.0,
            of="target",
            target=self.target,
            task=score.task,
        )


BELOW = 1 - 2**-40
"""The largest share of a target that is reported for a trial that has not reached it."""


@dataclass(frozen=True)
class DataOrigin:
    """A data set and its partition.

    Attributes:
        dataset: Name of the data set.
        partition: Kind of the partition, such as `iid`, `natural` or `dirichlet`; None if unknown.
        alpha: Parameter of a Dirichlet partition; else None.
        class_share: Share of the classes per client, for a partition by classes; else None.
    """

    dataset: str
    partition: str | None = None
    alpha: float | None = None
    class_share: float | None = None
