"""Tasks other than classifying rows: what a client does where it plays episodes in place of reading batches.

A task stands where `local_training` stands for rows: it trains one client from the received model and scores a model on
one client. Everything else is as ever: strategies, client rules, states, searches, the log. A client's score is a
share in `[0, 1]` of the largest possible one, measured several times over; a round's accuracy is the median over these
repeats of the mean over clients, and its loss what that lacks to 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.client_rule import ClientRule, ClientState
from engine.flat_model import FlatModel
from engine.local_training import ClientScore, ClientUpdate, ClientWork
from engine.message_keys import ROUND_KEY
from engine.seeds import stream
from engine.train_answers import Outcome
from engine.training_config import LocalTraining


@dataclass(frozen=True)
class TaskWork:
    """One client's part of a round.

    Attributes:
        client: Its index.
        server_round: From 1.
        received: The global vector, shape `(layout.size,)`.
        training: Epochs, batch size, optimiser; what an epoch is, the task says.
        generator: The only source of randomness; from (seed, round, client).
        rule: What the strategy changes, or None.
        config: The train message's configuration, for the rule.
        state: What the client kept: its own entries and the rule's.
    """

    client: int
    server_round: int
    received: Tensor
    training: LocalTraining
    generator: np.random.Generator
    rule: ClientRule | None
    config: Mapping[str, Any]
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

    def train(self, model: FlatModel, work: TaskWork) -> ClientUpdate:
        """Train one client.

        Args:
            model: Scratch model, overwritten.
            work: The client's part.
        """
        ...

    def score(self, model: FlatModel, client: int, generator: np.random.Generator) -> npt.NDArray[np.float64]:
        """Return the loaded model's score on one client, once a repeat, in `[0, 1]`, shape `(repeats,)`."""
        ...


class TaskTrainer:
    """Trains and scores clients of a task, one after the other.

    Args:
        model: Scratch model, overwritten.
        task: What the clients do.
    """

    def __init__(self, model: FlatModel, task: ClientTask) -> None:
        self._model = model
        self._task = task

    def train(
        self,
        received: Tensor,
        works: Sequence[ClientWork],
        training: LocalTraining,
        rule: ClientRule | None,
        config: Mapping[str, Any],
        initial_loss: bool,
        seed: int,
    ) -> Iterator[list[Outcome]]:
        """Yield each client's update, or the exception that it ended with.

        Args:
            received: The global vector, shape `(params,)`.
            works: The clients.
            training: Of the message.
            rule: What the strategy changes, or None.
            config: The train message's configuration.
            initial_loss: Whether to score the received model first.
            seed: The trial's.
        """
        for work in works:
            torch.default_generator.manual_seed(work.layer_seed)
            server_round = int(config[ROUND_KEY])
            task_work = TaskWork(
                work.client, server_round, received, training, work.generator, rule, config, work.state
            )
            try:
                first_loss = None
                if initial_loss:
                    first_loss = self._score(received, work.client, seed).loss_sum
                update = self._task.train(self._model, task_work)
                yield [(work, replace(update, initial_loss=first_loss))]
            except Exception as error:  # a client's failure is an answer, not the host's end
                yield [(work, error)]

    def scores(self, vector: Tensor, clients: Sequence[int], seed: int) -> list[ClientScore | Exception]:
        """Score one model on each client; return the exception where there is no score.

        Every model of a trial meets the same draws, whatever its round.
        """
        found: list[ClientScore | Exception] = []
        for client in clients:
            try:
                found.append(self._score(vector, client, seed))
            except Exception as error:  # as above
                found.append(error)
        return found

    def _score(self, vector: Tensor, client: int, seed: int) -> ClientScore:
        self._model.load(vector)
        self._model.module.eval()
        repeats = self._task.score(self._model, client, stream(seed, "task-score", client))
        mean = float(np.mean(repeats))
        return ClientScore(1, mean, 1 - mean, tuple(repeats.tolist()))
