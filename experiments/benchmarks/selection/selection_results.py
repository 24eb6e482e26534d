"""What a measurement of selection policies found, as it is written to a folder and read by the tables."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from fedscout.engine.trials.trial_record import FITNESS_ROUNDS, Trial
from fedscout.search.confirmation.intervals import PairedDifference


class SelectionCell(BaseModel, frozen=True):
    """One row of a part with one strategy under one heterogeneity; lists have one element a seed.

    Attributes:
        impossible: Why it can't be trained at all; nothing else is then told.
        accuracies: The best of all rounds on the test rows of all clients as they were before any noise, as one would
            stop early; chance where a trial failed.
        seconds: Simulated, until the running mean of five rounds reached the heterogeneity's target; None where it
            never did.
        failures: Why trials failed, one each.
    """

    heterogeneity: str
    row: str
    strategy: str
    impossible: str | None = None
    accuracies: tuple[float, ...] = ()
    seconds: tuple[float | None, ...] = ()
    failures: tuple[str, ...] = ()


class RowDifference(BaseModel, frozen=True):
    """What the last row is beyond another, each the mean over the strategies that both could train.

    Attributes:
        difference: With its interval over seeds.
        published: The source's difference, where it tells one.
        wins: Strategies with which the last row is ahead on average, of `num_strategies`.
    """

    heterogeneity: str
    row: str
    mean: float
    difference: PairedDifference
    published: float | None
    wins: int
    num_strategies: int


class SelectionReport(BaseModel, frozen=True):
    """The measurement of one part.

    Attributes:
        targets: Accuracy of which the time is told, by heterogeneity: a share of what random choice reaches.
        missing: Heterogeneities whose data are not there, and why.
        resolution: One test row's share, the largest of any heterogeneity.
    """

    title: str
    data: str
    arguments: tuple[str, ...]
    rows: tuple[str, ...]
    strategies: tuple[str, ...]
    heterogeneities: tuple[str, ...]
    num_seeds: int
    cells: tuple[SelectionCell, ...]
    differences: tuple[RowDifference, ...]
    targets: Mapping[str, float]
    missing: Mapping[str, str]
    resolution: float

    def of(self, heterogeneity: str, row: str, strategy: str) -> SelectionCell:
        """Return a cell."""
        wanted = (heterogeneity, row, strategy)
        return next(cell for cell in self.cells if (cell.heterogeneity, cell.row, cell.strategy) == wanted)


def early_stop_accuracy(trial: Trial, chance: float) -> float:
    """Return the best accuracy of all rounds, on uncorrupted test rows; chance if the trial failed."""
    return max(trial.round_clean_accuracy) if trial.status == "completed" else chance


def seconds_to(trial: Trial, target: float) -> float | None:
    """Return the simulated seconds until the running mean of five rounds reaches a target; None if it never does."""
    accuracies: npt.NDArray[np.float64] = np.array(trial.round_clean_accuracy)
    if trial.status != "completed" or trial.round_seconds is None or len(accuracies) < FITNESS_ROUNDS:
        return None
    means = np.convolve(accuracies, np.full(FITNESS_ROUNDS, 1 / FITNESS_ROUNDS), "valid")
    reached = np.flatnonzero(means >= target)
    return float(np.sum(trial.round_seconds[: reached[0] + FITNESS_ROUNDS])) if len(reached) else None
