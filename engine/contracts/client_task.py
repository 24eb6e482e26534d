"""Tasks other than classifying rows: what a client does where it plays episodes in place of reading batches.

A task stands where `local_training.descend` stands for rows: it makes one client's local steps from the model as it is
loaded, and scores a model on one client. Everything else is as ever: strategies, client algorithms, states, searches,
the log. A client's score is a share in `[0, 1]` of the largest possible one, measured several times over; a round's
accuracy is the median over these repeats of the mean over clients, and its loss what that lacks to 1.
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
    """What the local steps of one client gave; the trained vector is the model's.

    Attributes:
        num_steps: Optimiser steps made.
        loss: Mean over the steps.
        state: What the task keeps of the client, under names of its own (`"task/…"`).
    """

    num_steps: int
    loss: float
    state: ClientState


class ClientTask(Protocol):
    """A picklable value."""

    @property
    def score_name(self) -> str:
        """What the score is called, such as `reward`."""
        ...

    @property
    def largest_score(self) -> float:
        """Of which scores are shares."""
        ...

    def train(self, model: FlatModel, asked: TrainRequest, work: ClientWork, correct: Correct | None) -> TaskResult:
        """Make one client's local steps from the model as it is loaded.

        Args:
            model: Changed in place.
            asked: By the train message; what a client algorithm adds to it comes as `correct`.
            work: The client's part; its generator is the only source of randomness.
            correct: Changes the gradient of each step in place, told weights and gradient, trainable part.
        """
        ...

    def score(self, model: FlatModel, client: int, generator: np.random.Generator) -> npt.NDArray[np.float64]:
        """Return the loaded model's score on one client, once a repeat, in `[0, 1]`, shape `(repeats,)`."""
        ...
