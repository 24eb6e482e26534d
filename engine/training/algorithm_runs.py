"""Client algorithms over the ways of training: one run for the loop, one for a block of small dense nets.

A task's run is `fedscout.engine.training.task_training`. What an algorithm gives is cut into one update a client here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fedscout.engine.contracts.client_algorithm import (
    ClientAlgorithm,
    Correct,
    Descent,
    Finished,
    LocalRun,
    Loss,
    Steps,
)
from fedscout.engine.contracts.client_update import ClientUpdate
from fedscout.engine.contracts.train_request import ClientWork, TrainRequest
from fedscout.engine.model.dense_stack import DenseStack
from fedscout.engine.model.flat_model import FlatModel
from fedscout.engine.model.parameter_layout import ParameterLayout
from fedscout.engine.training.layer_draws import LayerDraws
from fedscout.engine.training.local_training import NO_ROWS, RowsWork, chunks, descend
from fedscout.engine.training.mean_loss import mean_loss
from fedscout.engine.training.representation import Representation
from fedscout.engine.training.vectorised_training import BlockDescent, descend_block, lockstep_order
from fedscout.engine.training.weighed_rows import weighed_rows


@dataclass(frozen=True)
class LoopRun(LocalRun):
    """One client on its rows.

    Attributes:
        model: Scratch, overwritten.
        work: The client's part of the round.
        seen: The model's representation, where a loss looks at it.
        integers: Integer buffers of the received model.
    """

    model: FlatModel
    work: RowsWork
    seen: Representation
    integers: Mapping[str, Tensor]

    @classmethod
    def of(cls, model: FlatModel, asked: TrainRequest, work: RowsWork) -> Self:
        """Return the run of a client.

        Raises:
            ValueError: If it has no training rows.
        """
        if not len(work.data):
            raise ValueError(NO_ROWS)
        return cls(
            **known_of(asked, model.layout, [work], [len(work.data)]),
            model=model,
            work=work,
            seen=Representation(model),
            integers=asked.integers,
        )

    def _descend(self, start: Tensor, steps: Steps) -> Descent:
        """Make all local steps of the client."""
        data, drawn_from = self.work.data, self.work.generator
        weigh = weighed_rows(self.model, steps, self.received, chunks(self.model, data))
        self.model.load(start.view(-1), self.integers)
        alone = correct_alone(steps, self.model)
        loss = loss_of(steps, self.seen, self.model.device)
        with nullcontext() if steps.compared is None else self.seen:
            made = descend(self.model, data, steps.training, drawn_from, alone, loss, steps.ahead, weigh)
        vectors = self.model.vector.clone()[None].cpu()
        return Descent(vectors, torch.tensor([made.num_steps]), torch.tensor([made.loss], dtype=torch.float64))

    def label_counts(self) -> Tensor:
        """Return the client's training rows of each class."""
        return _label_counts([self.work], self.num_classes)


@dataclass(frozen=True)
class TogetherRun(LocalRun):
    """Clients that make their steps together.

    Attributes:
        works: Their parts of the round.
    """

    works: Sequence[RowsWork]

    def _descend(self, start: Tensor, steps: Steps) -> Descent:
        """Make all local steps of all clients."""
        if steps.loss is not None or steps.ahead is not None:
            raise TypeError("an algorithm with a loss of its own, or one that looks ahead, must declare one_by_one")
        if self.works[0].training is not None and steps.training != self.training:
            raise TypeError("an algorithm that mixes must train as clients' settings say, of all parameters")
        made = self._made(start, steps)
        return Descent(made.vectors, torch.tensor(made.num_steps), torch.tensor(made.losses, dtype=torch.float64))

    @abstractmethod
    def _made(self, start: Tensor, steps: Steps) -> BlockDescent:
        """Make them, without a loss of its own and without looking ahead."""

    def label_counts(self) -> Tensor:
        """Return each client's training rows of each class."""
        return _label_counts(self.works, self.num_classes)


@dataclass(frozen=True)
class BlockRun(TogetherRun):
    """Clients of a small dense net in lockstep, those with most steps first.

    Attributes:
        stack: The model.
        draws: What the clients' layers draw.
    """

    stack: DenseStack
    draws: LayerDraws

    @classmethod
    def of(cls, stack: DenseStack, layout: ParameterLayout, asked: TrainRequest, works: Sequence[RowsWork]) -> Self:
        """Return the run of clients that are in lockstep order."""
        sizes = [len(work.data) for work in works]
        known = known_of(asked, layout, works, sizes)
        return cls(**known, stack=stack, works=works, draws=LayerDraws(stack, asked, works))

    def _made(self, start: Tensor, steps: Steps) -> BlockDescent:
        """Make the steps in lockstep."""
        return descend_block(self.stack, start, self.works, steps, self.received, self.draws)


def _label_counts(works: Sequence[RowsWork], num_classes: int) -> Tensor:
    return torch.from_numpy(np.stack([work.data.label_counts(num_classes) for work in works])).float()


def known_of(
    asked: TrainRequest, layout: ParameterLayout, works: Sequence[ClientWork], num_examples: Sequence[int]
) -> dict[str, Any]:
    """Return the fields of a run that are the same for all ways of training."""
    return {
        "received": asked.received,
        "layout": layout,
        "states": [work.state for work in works],
        "config": asked.config,
        "training": asked.training,
        "companions": asked.companions,
        "num_examples": torch.tensor(num_examples),
        "counts_as": torch.tensor(num_examples if asked.table is None else [1] * len(works)),
        "num_classes": asked.num_classes,
    }


def correct_alone(steps: Steps, model: FlatModel) -> Correct | None:
    """Return the correction of one client's trainable part, bound to what lies beside it, where the model is."""
    correct = steps.correct
    if correct is None:
        return None
    others = [vectors.view(-1)[: model.layout.num_trainable].to(model.device) for vectors in steps.beside]
    return lambda weights, gradient: correct(weights, gradient, *others)


def loss_of(steps: Steps, seen: Representation, device: torch.device) -> Loss | None:
    """Return one client's loss where it is not the plain one."""
    adjusted = None if steps.adjusted is None else steps.adjusted.to(device)
    compared = steps.compared
    if adjusted is None and compared is None:
        return steps.loss
    models = [] if compared is None else [vector.view(-1).to(device) for vector in compared.others]

    def loss(outputs: Tensor, labels: Tensor, features: Tensor) -> Tensor:
        mean = mean_loss(outputs if adjusted is None else adjusted(outputs[None])[0], labels)
        if compared is None:
            return mean
        others = [seen.under(vector, features).flatten(1)[None] for vector in models]
        return mean + compared.measure(seen.latest().flatten(1)[None], *others).mean()

    return loss


def train_client_by(algorithm: ClientAlgorithm, model: FlatModel, asked: TrainRequest, work: RowsWork) -> ClientUpdate:
    """Train one client as an algorithm says; `model` is scratch and overwritten.

    Raises:
        ValueError: If the client has no training rows.
    """
    (update,) = updates_by(algorithm, LoopRun.of(model, asked, work))
    return update


def train_block_by(
    algorithm: ClientAlgorithm,
    stack: DenseStack,
    layout: ParameterLayout,
    asked: TrainRequest,
    works: Sequence[RowsWork],
) -> list[ClientUpdate]:
    """Train clients together as an algorithm says; one update a client, in the order of `works`.

    Raises:
        ValueError: If a client has no training rows.
    """
    order = lockstep_order(stack, works, asked.training)
    updates = updates_by(algorithm, BlockRun.of(stack, layout, asked, [works[position] for position in order]))
    return [updates[position] for position in np.argsort(order)]


def updates_by(algorithm: ClientAlgorithm, run: LocalRun) -> list[ClientUpdate]:
    """Have an algorithm train the clients of a run, and return each one's part of what it gives.

    Raises:
        ValueError: If it gives something of another shape.
    """
    finished = algorithm.train(run)
    _check_shapes(algorithm, run, finished)
    vectors = finished.vectors.numpy()
    steps, losses = finished.descent.num_steps.tolist(), finished.descent.losses.tolist()
    state, companions = _rows(finished.state), _rows(finished.companions)
    sums = {name: tensor.tolist() for name, tensor in finished.sums.items()}
    return [
        ClientUpdate(
            vector=vectors[row],
            num_steps=steps[row],
            loss=losses[row],
            state={name: matrix[row].copy() for name, matrix in state.items()},
            companions={name: matrix[row] for name, matrix in companions.items()},
            sums={name: float(column[row]) for name, column in sums.items()},
        )
        for row in range(len(vectors))
    ]


def _rows(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    return {name: tensor.float().numpy() for name, tensor in tensors.items()}


def _check_shapes(algorithm: ClientAlgorithm, run: LocalRun, finished: Finished) -> None:
    num_clients, size = len(run.states), run.layout.size
    wanted: list[tuple[str, Tensor, tuple[int, ...]]] = [("vectors", finished.vectors, (num_clients, size))]
    wanted += [(f"companion {name!r}", t, (num_clients, *t.shape[1:2])) for name, t in finished.companions.items()]
    wanted += [(f"sum {name!r}", tensor, (num_clients,)) for name, tensor in finished.sums.items()]
    wanted += [(f"state {name!r}", t, (num_clients, *t.shape[1:])) for name, t in finished.state.items()]
    for name, tensor, shape in wanted:
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"{name} of {type(algorithm).__name__} must be of shape {shape}, got {tuple(tensor.shape)}"
            )
    if set(finished.companions) != set(algorithm.companions):
        declared, given = sorted(algorithm.companions), sorted(finished.companions)
        raise ValueError(
            f"{type(algorithm).__name__} must give the companions that it declares, {declared}, got {given}"
        )
