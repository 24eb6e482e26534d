"""Rounds that are timed, and what is read from their times."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean, median
from typing import Any

from pydantic import BaseModel, Field, computed_field

from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.messages.session import Session
from fedscout.engine.trials.trial_record import Trial
from fedscout.engine.trials.trial_settings import TrialSettings
from fedscout.strategies import StrategySpec

FIGURES = ("seconds_per_round", "median_seconds_per_round", "min_seconds_per_round")


def run_rounds(
    grid: Callable[[Session], Any],
    strategy: StrategySpec,
    num_clients: int,
    training: LocalTraining,
    num_rounds: int,
    on_round: Callable[[int], None],
    num_scored: int | None = None,
) -> Trial:
    """Drive one trial, scored on what clients train on, from this process, as a trial task would.

    Args:
        grid: Returns the grid of a session.
        strategy: What is trained.
        num_clients: That train in a round.
        training: Theirs.
        num_rounds: How many.
        on_round: Told when a round ended.
        num_scored: Clients that score each model; None is all.

    Raises:
        RuntimeError: If it fails.
    """
    from fedscout.engine.trials.trial import run_trial

    settings = TrialSettings(
        strategy=strategy,
        num_rounds=num_rounds,
        num_sampled=num_clients,
        session=Session(training=training, evaluate_on="train", test_fraction=0.0, num_scored=num_scored),
    )
    trial = run_trial(settings, grid(settings.session), on_round=on_round)
    if trial.status == "failed":
        raise RuntimeError(f"{strategy} failed: {trial.error}")
    return trial


class RoundTimes(BaseModel, frozen=True):
    """Rounds of one program on one work.

    Attributes:
        round_seconds: Of every round. Where other work shares the machine, the least is disturbed least.
        accuracy: After the last round, to tell that the work was done.
    """

    round_seconds: tuple[float, ...] = Field(min_length=1)
    accuracy: float

    @computed_field  # type: ignore[prop-decorator]
    @property
    def seconds_per_round(self) -> float:
        """Wall time by rounds."""
        return fmean(self.round_seconds)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def median_seconds_per_round(self) -> float:
        """Of the middle round."""
        return median(self.round_seconds)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def min_seconds_per_round(self) -> float:
        """Of the fastest round."""
        return min(self.round_seconds)

    def times(self, other: RoundTimes) -> dict[str, float]:
        """Return how many times as long rounds take here as there, by each of the three figures."""
        return {name: getattr(self, name) / getattr(other, name) for name in FIGURES}
