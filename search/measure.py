"""What a fitness measures, and how people read it: in points where it is a share, else in its own unit."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict


class Measure(BaseModel):
    """What a fitness measures; larger is better.

    Attributes:
        goal: What is to be as high as possible, in words.
        name: The heading of a column of scores.
        unit: Of a difference of two scores.
        per_unit: Units in a difference of 1: 100 where scores are shares, which are told in points.
        best: The largest score there can be; None if that is not known.
        step: Of the scale on which scores are read; None is the share of one test row, times `best`.
        guessing_is_zero: Whether a constant answer is worth 0; else guessing of 0 is guessing that is not known.
        of: Of what it is made: of the last rounds the mean score, or the worst clients', or of all when a target is
            reached.
        target: The mean score of five rounds that is to be reached; None where none is.
        task: What clients learn: classes, a quantity, or to play.
    """

    model_config = ConfigDict(frozen=True)

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
        """Whether it is the share of right answers over all test rows."""
        return self == ACCURACY

    @property
    def worst(self) -> float | None:
        """The smallest score there can be; None where a model can be worse than a constant answer without end."""
        return None if self.guessing_is_zero else 0.0

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest score that there can be, infinite where that is not known."""
        return -math.inf if self.worst is None else self.worst, math.inf if self.best is None else self.best

    @property
    def span(self) -> float | None:
        """The largest difference of two scores that there can be; None where that is not known."""
        return None if self.best is None or self.worst is None else self.best - self.worst

    def number(self, difference: float) -> str:
        """Return a difference without its unit, such as `+3.1`."""
        digits = ".1f" if self.per_unit == 100 else ".3g"
        return f"{self.per_unit * difference:+{digits}}"

    def value(self, score: float) -> str:
        """Return a score itself, such as `72.4 %`."""
        return f"{100 * score:.1f} %" if self.per_unit == 100 else f"{self.per_unit * score:.3g} {self.unit}"

    def told(self, difference: float) -> str:
        """Return a difference with its unit, such as `+3.1 points`."""
        return f"{self.number(difference)} {self.unit}"


ACCURACY = Measure()
UNLIKE = Measure(goal="fitness", name="fitness", unit="fitness", per_unit=1.0, best=None, guessing_is_zero=True)
"""Of studies that measure different things."""


def _share(name: str) -> Measure:
    goal = f"{name} over all clients' test rows together, mean of the last five rounds"
    return Measure(goal=goal, name=name, unit=f"points of {name}")


def reward(name: str, largest: float) -> Measure:
    """Return the measure of clients that play: their score, a share of the largest, told in units of the environment.

    Args:
        name: Of the score, such as `reward`.
        largest: Score of an episode, > 0, of which a fitness is a share.
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
