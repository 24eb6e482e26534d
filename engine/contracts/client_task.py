"""Client tasks other than training on rows, such as reinforcement learning, where a client plays episodes.

A task replaces the local training on rows: it performs one client's local steps from the loaded model, and scores a
model on one client. Everything else is unchanged: strategies, client algorithms, states, searches, the log. A client's
score is a share in `[0, 1]` of the largest possible one, measured several times; a round's accuracy is the median over
these repeats of the mean over clients, and its loss is 1 minus the accuracy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedscout.engine.contracts.algorithm import ClientState, ClientWork, Correct, TrainRequest
from fedscout.engine.models.flat import FlatModel


@dataclass(frozen=True)
class TaskResult:
    """Result of one client's local steps; the trained vector is that of the model.

    Attributes:
        num_steps: Number of optimiser steps.
        loss: Mean over the steps.
        state: State that the task keeps for the client, under its own names (`"task/…"`).
    """

    num_steps: int
    loss: float
    state: ClientState


class ClientTask(Protocol):
    """A client task: a picklable value."""

    @property
    def score_name(self) -> str:
        """Name of the score, such as `reward`."""
        ...

    @property
    def largest_score(self) -> float:
        """The largest possible score, of which scores are shares."""
        ...

    def train(self, model: FlatModel, asked: TrainRequest, work: ClientWork, correct: Correct | None) -> TaskResult:
        """Perform one client's local steps from the loaded model.

        Args:
            model: Modified in place.
            asked: The train request; the part of a client algorithm is passed as `correct`.
            work: The client's part of the round; its generator is the only source of randomness.
            correct: Modifies the gradient of each step in place; receives weights and gradient of the trainable part.
        """
        ...

    def score(self, model: FlatModel, client: int, generator: np.random.Generator) -> npt.NDArray[np.float64]:
        """Return the repeated scores of the loaded model on one client, in `[0, 1]`, shape `(repeats,)`."""
        ...
