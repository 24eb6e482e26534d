"""What training one client gives, and what scoring it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan
from typing import Self

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.client_algorithm import ClientState
from fedscout.engine.metrics.metric import Sums


@dataclass(frozen=True)
class ClientUpdate:
    """What one client's training gives.

    Attributes:
        vector: Parameters and buffers after training, shape `(layout.size,)`.
        num_steps: Optimiser steps made.
        loss: Mean training loss over all rows seen.
        state: What the client keeps for its next participation.
        initial_loss: Mean loss of the received model on the training rows, if asked for; measured by `Trainer`.
        companions: Vectors that go up beside the model, each `(layout.size,)`.
        sums: Scalars that add up over clients.
    """

    vector: FloatArray
    num_steps: int
    loss: float
    state: ClientState
    initial_loss: float | None = None
    companions: Mapping[str, FloatArray] = field(default_factory=dict)
    sums: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientScore:
    """How a model does on some rows: sums, so that shares and means can be formed later.

    Attributes:
        num_examples: Rows; 1 where a task scores a client as a whole.
        num_correct: Rows whose class is the largest output; a share where a task scores a client as a whole. NaN where
            outputs are not numbers, or a quantity is predicted.
        loss_sum: Sum of the rows' losses; NaN where outputs are not numbers.
        repeats: A task's scores of the client, one a repeat.
        metric: The session's metric on these rows, if it has one; NaN where they have none.
        statistics: Its sums over them, which stay where they were made.
    """

    num_examples: int
    num_correct: float
    loss_sum: float
    repeats: tuple[float, ...] = ()
    metric: float | None = None
    statistics: Sums | None = None

    @classmethod
    def of_rows(cls, num_examples: int, num_correct: float, loss_sum: float) -> Self:
        """Return the score of rows; outputs that are not numbers predict no class."""
        return cls(num_examples, float("nan") if isnan(loss_sum) else num_correct, loss_sum)

    @property
    def is_missing(self) -> bool:
        """Whether the outputs are not numbers, so that nothing is measured."""
        return isnan(self.loss_sum) and isnan(self.num_correct)
