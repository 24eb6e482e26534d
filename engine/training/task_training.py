"""Trains and scores clients of a task, one after the other: the third way, beside the loop and blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedscout.engine.contracts.client_algorithm import ClientAlgorithm, Descent, LocalRun, Steps
from fedscout.engine.contracts.client_task import ClientTask
from fedscout.engine.contracts.client_update import ClientScore, ClientUpdate
from fedscout.engine.contracts.train_request import ClientWork, TrainRequest
from fedscout.engine.data.client_data import Samples
from fedscout.engine.metrics.metric import Metric
from fedscout.engine.model.flat_model import FlatModel
from fedscout.engine.seeds import stream
from fedscout.engine.training.algorithm_runs import correct_alone, known_of, updates_by
from fedscout.engine.training.layer_draws import seed_layers
from fedscout.engine.training.local_training import RowsWork
from fedscout.engine.training.training_backends import Trainer


@dataclass(frozen=True)
class TaskRun(LocalRun):
    """One client at its task.

    Attributes:
        model: Scratch, overwritten.
        task: What the client does.
        asked: By the train message.
        work: The client's part of the round.
        own_state: What the task keeps of it, once it has played.
    """

    model: FlatModel
    task: ClientTask
    asked: TrainRequest
    work: ClientWork
    own_state: dict[str, npt.NDArray[np.float32]]

    def _descend(self, start: Tensor, steps: Steps) -> Descent:
        """Make all local steps of the client.

        Raises:
            TypeError: If the loss is changed, or where gradients are taken; a task has its own.
        """
        if any(one is not None for one in (steps.loss, steps.ahead, steps.adjusted, steps.compared)):
            raise TypeError("a client algorithm can't change the loss or look ahead where clients have a task")
        if not steps.weighed.is_plain:
            raise TypeError("nothing can be added to the loss of rows where clients have a task")
        self.model.load(start.view(-1))
        work = replace(self.work, state={**self.work.state, **self.own_state})
        asked = replace(self.asked, training=steps.training)
        played = self.task.train(self.model, asked, work, correct_alone(steps, self.model))
        self.own_state.update(played.state)
        vectors = self.model.vector.clone()[None]
        return Descent(vectors, torch.tensor([played.num_steps]), torch.tensor([played.loss], dtype=torch.float64))


class TaskTrainer(Trainer):
    """Has clients play; their rows only count.

    Args:
        model: Scratch model, overwritten.
        task: What the clients do.
    """

    has_labels: ClassVar[bool] = False

    def __init__(self, model: FlatModel, task: ClientTask) -> None:
        super().__init__(model)
        self._task = task

    def scores(
        self, vectors: Tensor, clients: Mapping[int, Samples], seed: int, metric: Metric | None = None
    ) -> dict[int, ClientScore | Exception]:
        """Score a model on each client; there is no metric but the task's own.

        Every model of a trial meets the same draws, whatever its round.
        """
        del metric
        found: dict[int, ClientScore | Exception] = {}
        for client, vector in zip(clients, vectors.expand(len(clients), -1), strict=True):
            try:
                found[client] = self._score(vector, client, seed)
            except Exception as error:  # a client's failure is an answer, not the host's end
                found[client] = error
        return found

    def _train_block(self, asked: TrainRequest, works: Sequence[RowsWork]) -> Sequence[ClientUpdate]:
        (work,) = works
        seed_layers(asked, work.client, self._model.device)
        known = known_of(asked, self._model.layout, [work], [len(work.data)])
        run = TaskRun(**known, model=self._model, task=self._task, asked=asked, work=work, own_state={})
        (update,) = updates_by(asked.algorithm or ClientAlgorithm(), run)
        return [replace(update, state={**update.state, **run.own_state})]

    def _score(self, vector: Tensor, client: int, seed: int) -> ClientScore:
        self._model.load(vector)
        self._model.module.eval()
        repeats = self._task.score(self._model, client, stream(seed, "task-score", client))
        mean = float(np.mean(repeats))
        return ClientScore(1, mean, 1 - mean, tuple(repeats.tolist()))
