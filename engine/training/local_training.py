"""One client, plainly: the definition of local training and evaluation.

Every faster path is held to this loop by tests. The loss is the mean cross-entropy of a batch, or its mean
squared error where a quantity is predicted; an epoch is one
permutation of the training rows cut into batches; a last batch of a single row joins its predecessor (batch
normalisation has no variance over one row).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.client_algorithm import Ahead, Loss, Steps
from fedscout.engine.contracts.client_update import ClientScore, ClientUpdate
from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.contracts.train_request import ClientWork, TrainRequest
from fedscout.engine.data.client_data import Samples
from fedscout.engine.metrics.metric import Metric, Sums, narrowed
from fedscout.engine.model.flat_model import FlatModel
from fedscout.engine.training.client_optimizers import new_optimizer
from fedscout.engine.training.mean_loss import mean_loss
from fedscout.engine.training.weighed_rows import WeighedRows, weighed_rows

CHUNK_ROWS = 512
"""Rows copied at a time: few enough that a layer's outputs stay in cache, enough that calls cost little."""

IMAGES_SCORED = 64
"""Images that are scored at a time, as a layer makes many numbers of one."""

IMAGE_AXES = 4

NO_ROWS = "the client has no training rows"


@dataclass(frozen=True)
class RowsWork(ClientWork):
    """The part of a client that trains on these rows.

    Attributes:
        data: Its training rows.
        validation: Its validation rows, where the algorithm looks at them.
        training: Settings of its own among clients of a block; None takes those that are asked for.
    """

    data: Samples
    validation: Samples | None = field(default=None, kw_only=True)
    training: LocalTraining | None = field(default=None, kw_only=True)


Outcome = tuple[RowsWork, ClientUpdate | Exception]
"""What a client's part of a round ended with."""


def batch_bounds(num_rows: int, batch_size: int) -> list[tuple[int, int]]:
    """Return `(start, stop)` of each batch of an epoch."""
    starts = list(range(0, num_rows, batch_size))
    if batch_size > 1 and len(starts) > 1 and num_rows - starts[-1] == 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], num_rows], strict=True)) if num_rows else []


def epoch_orders(num_rows: int, local_epochs: int, generator: np.random.Generator) -> Iterator[IntArray]:
    """Yield one permutation of the training rows an epoch."""
    for _ in range(local_epochs):
        yield generator.permutation(num_rows)


def gather(model: FlatModel, data: Samples, positions: IntArray) -> tuple[Tensor, Tensor]:
    """Copy rows into tensors of torch's own memory, arranged as the model likes them, and what it is to say of them.

    That is aligned to 64 bytes, NumPy's to 16, and the last bits of a matrix product depend on alignment.
    """
    rows = data.rows[positions]
    features = torch.empty((len(rows), *data.features.shape[1:]))
    np.take(data.features, rows, axis=0, out=features.numpy(), mode="clip")
    memory_format = model.input_format(data.features.shape[1:])
    if memory_format is not torch.contiguous_format:
        features = torch.empty(features.shape, memory_format=memory_format).copy_(features)
    return features.to(model.device), torch.from_numpy(data.answers(rows)).to(model.device)


def chunks(model: FlatModel, data: Samples) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield all rows in order, some hundreds at a time."""
    for start in range(0, len(data), CHUNK_ROWS):
        yield gather(model, data, np.arange(start, min(start + CHUNK_ROWS, len(data))))


def epoch_batches(
    model: FlatModel, data: Samples, order: IntArray, bounds: Sequence[tuple[int, int]]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of one epoch, several of them copied together.

    Args:
        model: For whom.
        data: The client's rows.
        order: Their order in this epoch.
        bounds: `(start, stop)` of each batch.
    """
    together = max(1, CHUNK_ROWS // (bounds[0][1] - bounds[0][0]))
    for first in range(0, len(bounds), together):
        group = bounds[first : first + together]
        offset = group[0][0]
        features, labels = gather(model, data, order[offset : group[-1][1]])
        for start, stop in group:
            yield features[start - offset : stop - offset], labels[start - offset : stop - offset]


class StepsMade(NamedTuple):
    """What the steps of one client gave; the trained vector is the model's."""

    num_steps: int
    loss: float
    """Mean over all rows seen."""


def descend(
    model: FlatModel,
    data: Samples,
    training: LocalTraining,
    generator: np.random.Generator,
    correct: Callable[[Tensor, Tensor], None] | None = None,
    loss: Loss | None = None,
    ahead: Ahead | None = None,
    weigh: WeighedRows | None = None,
) -> StepsMade:
    """Make all local steps of one client, from the model as it is loaded.

    Args:
        model: Changed in place.
        data: The client's training rows, at least one.
        training: Epochs, batches, optimiser.
        generator: Draws the batches.
        correct: Changes the gradient of each step in place, ahead of weight decay and momentum; told the weights and
            the gradient, trainable part, shape `(params,)`.
        loss: In place of the mean cross-entropy.
        ahead: Where each step's gradient is taken, of the same batch; the loss that is told is that at the weights.
        weigh: Weighs the loss and adds to it.
    """
    first = _plain_loss if loss is None else loss
    model.module.train()
    optimizer = new_optimizer(training)
    weights, gradient = model.weights, model.gradient
    backward = partial(_backward, model, narrow=training.is_narrow)
    means: list[Tensor] = []
    sizes: list[int] = []
    bounds = batch_bounds(len(data), training.batch_size)
    for order in epoch_orders(len(data), training.local_epochs, generator):
        batches = epoch_batches(model, data, order, bounds)
        for (start, stop), (features, labels) in zip(bounds, batches, strict=True):
            measure = first if weigh is None else partial(weigh, first, order[start:stop])
            means.append(backward(measure, features, labels))
            sizes.append(len(labels))
            if ahead is not None:
                present = weights.clone()
                weights.copy_(ahead(weights, gradient))
                backward(measure, features, labels)
                weights.copy_(present)
            if correct is not None:
                correct(weights, gradient)
            optimizer.step(weights, gradient)
    loss_sum = sum(mean * size for mean, size in zip(torch.stack(means).tolist(), sizes, strict=True))
    return StepsMade(len(means), loss_sum / (len(data) * training.local_epochs))


def _plain_loss(outputs: Tensor, labels: Tensor, features: Tensor) -> Tensor:
    del features
    return mean_loss(outputs, labels)


def _backward(model: FlatModel, loss: Loss, features: Tensor, labels: Tensor, narrow: bool) -> Tensor:
    """Put the gradient of a batch's mean loss in the model's, and return that loss."""
    if loss is _plain_loss and model.stack is not None and not narrow and not labels.is_floating_point():
        return model.stack.loss_and_gradient(features, labels)
    model.gradient.zero_()
    outputs = model.narrow_outputs if narrow else model.outputs
    mean = loss(outputs(features), labels, features)
    mean.backward()  # type: ignore[no-untyped-call]
    return mean.detach()


def train_client(model: FlatModel, asked: TrainRequest, work: RowsWork) -> ClientUpdate:
    """Train one client plainly from the received parameters; `model` is scratch and overwritten.

    Raises:
        ValueError: If the client has no training rows.
    """
    if len(work.data) == 0:
        raise ValueError(NO_ROWS)
    weigh = weighed_rows(model, Steps(asked.training), asked.received, chunks(model, work.data))
    model.load(asked.received, asked.integers)
    num_steps, loss = descend(model, work.data, asked.training, work.generator, weigh=weigh)
    return ClientUpdate(model.vector.cpu().numpy().copy(), num_steps, loss, {})


@torch.no_grad()
def score_client(model: FlatModel, data: Samples, metric: Metric | None = None) -> ClientScore:
    """Evaluate the loaded model on all rows of `data`, in evaluation mode; measure a metric there, too."""
    model.module.eval()
    num_correct, loss_sum = 0, 0.0
    statistics: Sums | None = None
    for features, labels in chunks(model, data):
        outputs = _answers(model, features)
        loss_sum += mean_loss(outputs, labels, reduction="sum").item()
        if data.scale is None:
            num_correct += int((outputs.argmax(dim=1) == labels).sum().item())
        if metric is not None:
            found = metric_statistics(metric, data, outputs, labels)
            statistics = found if statistics is None else statistics + found
    right = num_correct if data.scale is None else float("nan")  # nobody is right about a quantity
    return measured(ClientScore.of_rows(len(data), right, loss_sum), metric, statistics)


def _answers(model: FlatModel, features: Tensor) -> Tensor:
    """Return the outputs without what a gradient would need."""
    outputs = model.outputs if model.stack is None else model.stack.outputs
    if features.dim() == IMAGE_AXES and model.device.type == "cpu":
        return torch.cat([outputs(some) for some in torch.split(features, IMAGES_SCORED)])
    return outputs(features)


def metric_statistics(metric: Metric, data: Samples, outputs: Tensor, answers: Tensor) -> Sums:
    """Return a metric's sums over rows, of a quantity in its own unit."""
    outputs, answers = outputs.cpu(), answers.cpu()
    if data.scale is None:
        return metric.statistics(outputs.numpy(), answers.numpy())
    deviation = data.scale.deviation
    return metric.statistics(outputs.double().numpy() * deviation, answers.double().numpy() * deviation)


def measured(score: ClientScore, metric: Metric | None, statistics: Sums | None) -> ClientScore:
    """Return a score with what a metric's sums say: nothing without rows, and of outputs that are not numbers."""
    if metric is None:
        return score
    value = float("nan") if statistics is None or score.is_missing else metric.value_of_client(statistics)
    return replace(score, metric=value, statistics=None if statistics is None else narrowed(statistics))


@torch.no_grad()
def model_outputs(model: FlatModel, data: Samples, vector: FloatArray, softmax: bool = True) -> Iterator[FloatArray]:
    """Yield the outputs of the model `vector` on all rows of `data`, in evaluation mode, chunk by chunk.

    Args:
        model: Into which it is loaded.
        data: The rows.
        vector: Shape `(layout.size,)`.
        softmax: Whether outputs are made probabilities; those of a quantity are not.
    """
    model.load(torch.from_numpy(np.array(vector, dtype=np.float32)))
    model.module.eval()
    for features, _ in chunks(model, data):
        answers = _answers(model, features)
        outputs: FloatArray = (answers.softmax(dim=1) if softmax else answers).cpu().numpy()
        yield outputs
