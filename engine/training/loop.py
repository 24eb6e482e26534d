"""Local training and evaluation of one client: the reference for all faster backends.

Tests compare faster backends with this loop. The loss is the mean cross-entropy of a batch, or its mean squared error
for regression. An epoch is one permutation of the training rows cut into batches; a last batch of a single row joins
the previous one, as batch normalisation has no variance over one row.

Optimisers have the semantics of `torch.optim` on flat tensors, of one client `(params,)` or of a block of clients
`(clients, params)`. In a block, later steps may omit clients at its end that have finished. Clients are stateless, so
an optimiser is used for one round only.

`WeightedRows` applies `fedscout.engine.models.layout.RowLoss` to one client's rows. The received model is evaluated on
them once a round, in evaluation mode. Its probabilities are those of adjusted outputs, as the client's own are.

`Representation` is a model's representation of rows: the input of its last linear layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.hooks import RemovableHandle

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.algorithm import ClientScore, ClientUpdate, ClientWork, Lookahead, Loss, Steps
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Samples
from fedscout.engine.metrics import Metric, Sums, narrowed
from fedscout.engine.models.flat import FlatModel
from fedscout.engine.models.layout import Adjusted, RowLoss


def mean_loss(outputs: Tensor, answers: Tensor, reduction: str = "mean") -> Tensor:
    """Return the loss of rows.

    Args:
        outputs: Model outputs, shape `(rows, classes)`, or `(rows, 1)` for regression.
        answers: Labels, or standardised targets, which are floating point, shape `(rows,)`.
        reduction: `mean`, `sum` or `none`.
    """
    if answers.is_floating_point():
        return mse_loss(outputs[:, 0], answers, reduction=reduction)
    return cross_entropy(outputs, answers, reduction=reduction)


class Optimizer(ABC):
    """Updates weights in place, step by step.

    Args:
        learning_rate: Learning rate of all clients.
        weight_decay: Factor of the weights that is added to their gradient.

    Attributes:
        learning_rate: May change between steps.
    """

    def __init__(self, learning_rate: float, weight_decay: float = 0.0) -> None:
        self.learning_rate = learning_rate
        self._weight_decay = weight_decay
        self._kept: list[list[Tensor]] = []

    def step(self, weights: Tensor, gradient: Tensor) -> None:
        """Make one step; `gradient` may be used as scratch space."""
        self.step_all([weights], [gradient])

    def step_all(self, weights: list[Tensor], gradients: list[Tensor]) -> None:
        """Make one step of several weight tensors, the same number in every step.

        One call per tensor would take longer than the arithmetic.

        Args:
            weights: Each `(params,)` or `(clients, params)`.
            gradients: Likewise; may be used as scratch space.
        """
        if self._weight_decay:
            torch._foreach_add_(gradients, weights, alpha=self._weight_decay)
        self._step(weights, gradients)

    @abstractmethod
    def _step(self, weights: list[Tensor], gradients: list[Tensor]) -> None:
        """Make one step; the gradients include weight decay."""

    def _running(self, number: int, weights: list[Tensor]) -> list[list[Tensor]]:
        """Return running values of the active clients, zero before the first step: `number` tensors for each weight."""
        if not self._kept:
            self._kept = [[torch.zeros_like(each) for each in weights] for _ in range(number)]
        return [_active_rows(each, weights) for each in self._kept]

    def _move(self, weights: list[Tensor], directions: list[Tensor]) -> None:
        """Subtract the directions times the learning rate."""
        torch._foreach_add_(weights, directions, alpha=-self.learning_rate)


class SGD(Optimizer):
    """`torch.optim.SGD` without dampening and Nesterov: b <- m b + g, w <- w - lr b, and b = g in the first step."""

    def __init__(self, learning_rate: float, weight_decay: float = 0.0, momentum: float = 0.0) -> None:
        super().__init__(learning_rate, weight_decay)
        self._momentum = momentum

    def _step(self, weights: list[Tensor], gradients: list[Tensor]) -> None:
        self._move(weights, self._with_momentum(gradients) if self._momentum else gradients)

    def _with_momentum(self, gradients: list[Tensor]) -> list[Tensor]:
        if not self._kept:
            self._kept = [[gradient.clone() for gradient in gradients]]
            return self._kept[0]
        active = _active_rows(self._kept[0], gradients)
        torch._foreach_mul_(active, self._momentum)
        torch._foreach_add_(active, gradients)
        return active


class Adam(Optimizer):
    """`torch.optim.Adam` (Kingma & Ba 2015, algorithm 1) with its default betas (0.9, 0.999) and epsilon 1e-8."""

    BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
    _num_steps = 0

    def _step(self, weights: list[Tensor], gradients: list[Tensor]) -> None:
        self._num_steps += 1
        means, squares = self._running(2, weights)
        torch._foreach_lerp_(means, gradients, 1 - self.BETA_1)
        torch._foreach_mul_(squares, self.BETA_2)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - self.BETA_2)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_div_(roots, (1 - self.BETA_2**self._num_steps) ** 0.5)
        torch._foreach_add_(roots, self.EPSILON)
        bias = 1 - self.BETA_1**self._num_steps
        torch._foreach_addcdiv_(weights, means, roots, value=-self.learning_rate / bias)


class RMSprop(Optimizer):
    """`torch.optim.RMSprop` with its default α = 0.99 and ε = 1e-8: v <- α v + (1 − α) g², w <- w − lr g / (√v + ε).

    T. Tieleman, G. Hinton. Lecture 6.5: RMSProp. Coursera, Neural networks for machine learning, 2012.
    """

    ALPHA, EPSILON = 0.99, 1e-8

    def _step(self, weights: list[Tensor], gradients: list[Tensor]) -> None:
        (squares,) = self._running(1, weights)
        torch._foreach_mul_(squares, self.ALPHA)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - self.ALPHA)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, self.EPSILON)
        torch._foreach_addcdiv_(weights, gradients, roots, value=-self.learning_rate)


class Adadelta(Optimizer):
    """`torch.optim.Adadelta` with its default ρ = 0.9 and ε = 1e-6.

    M. D. Zeiler. ADADELTA: an adaptive learning rate method. arXiv:1212.5701, 2012, algorithm 1:
    v <- ρ v + (1 − ρ) g², Δ = g √(u + ε) / √(v + ε), u <- ρ u + (1 − ρ) Δ², w <- w − lr Δ, where lr is 1 in the paper.
    """

    RHO, EPSILON = 0.9, 1e-6

    def _step(self, weights: list[Tensor], gradients: list[Tensor]) -> None:
        squares, moves = self._running(2, weights)
        torch._foreach_mul_(squares, self.RHO)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - self.RHO)
        deltas = self._roots(moves)
        torch._foreach_div_(deltas, self._roots(squares))
        torch._foreach_mul_(deltas, gradients)
        torch._foreach_mul_(moves, self.RHO)
        torch._foreach_addcmul_(moves, deltas, deltas, value=1 - self.RHO)
        self._move(weights, deltas)

    def _roots(self, means: list[Tensor]) -> list[Tensor]:
        roots = torch._foreach_add(means, self.EPSILON)
        torch._foreach_sqrt_(roots)
        return list(roots)


def _active_rows(kept: list[Tensor], like: list[Tensor]) -> list[Tensor]:
    """Return the leading rows of each tensor, for the active clients."""
    if len(kept[0]) == len(like[0]):
        return kept
    return [each[: len(other)] for each, other in zip(kept, like, strict=True)]


OPTIMIZERS: Mapping[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam, "rmsprop": RMSprop, "adadelta": Adadelta}


def new_optimizer(training: LocalTraining) -> Optimizer:
    """Return a new optimiser for one round of a client, or of those of a block."""
    momentum = {"momentum": training.momentum} if training.optimizer == "sgd" else {}
    return OPTIMIZERS[training.optimizer](training.learning_rate, training.weight_decay, **momentum)


@dataclass(frozen=True)
class WeightedRows:
    """Weights a batch's loss and adds further terms to it.

    Attributes:
        row_loss: The weights.
        probabilities: Probabilities by the received model, shape `(rows of the client, classes)`; None if unused.
        adjusted: Adjustment of outputs before every term.
    """

    row_loss: RowLoss
    probabilities: Tensor | None
    adjusted: Adjusted | None

    def __call__(self, loss: Loss, positions: IntArray, outputs: Tensor, labels: Tensor, features: Tensor) -> Tensor:
        """Return the mean over a batch.

        Args:
            loss: The loss to weight.
            positions: Positions of the batch's rows among the client's.
            outputs: Model outputs.
            labels: Labels of the rows.
            features: Features of the rows.
        """
        pseudo_labels = (
            None if self.probabilities is None else self.probabilities[torch.from_numpy(positions).to(outputs.device)]
        )
        mean = loss(outputs, labels, features)
        return self.row_loss.mean(mean, _adjusted(self.adjusted, outputs), labels, pseudo_labels)


def weighted_rows(
    model: FlatModel, steps: Steps, received: Tensor, batches: Iterable[tuple[Tensor, Tensor]]
) -> WeightedRows | None:
    """Return the weighting of a client's rows; None if there is none, else `model` is overwritten.

    Args:
        model: Scratch.
        steps: The client's local steps.
        received: The model that gives pseudo-labels, shape `(size,)`.
        batches: All of the client's rows, in order.
    """
    row_loss = steps.weighed
    if row_loss.is_plain:
        return None
    adjusted = None if steps.adjusted is None else steps.adjusted.to(model.device)
    if not row_loss.pseudo_label:
        return WeightedRows(row_loss, None, adjusted)
    model.load(received)
    model.module.eval()
    with torch.no_grad():
        probabilities = [_adjusted(adjusted, model.outputs(features)).softmax(dim=1) for features, _ in batches]
    return WeightedRows(row_loss, torch.cat(probabilities), adjusted)


def _adjusted(adjusted: Adjusted | None, outputs: Tensor) -> Tensor:
    return outputs if adjusted is None else adjusted(outputs[None])[0]


CHUNK_ROWS = 512
"""Rows copied at a time: few enough that a layer's outputs stay in cache, enough that calls cost little."""

IMAGES_SCORED = 64
"""Images that are scored at a time, as a layer makes many numbers of one."""

IMAGE_AXES = 4

NO_ROWS = "the client has no training rows"


@dataclass(frozen=True)
class RowsWork(ClientWork):
    """A client's part of a round that trains on rows.

    Attributes:
        data: Its training rows.
        validation: Its validation rows, if the algorithm uses them.
    """

    data: Samples
    validation: Samples | None = field(default=None, kw_only=True)


Outcome = tuple[RowsWork, ClientUpdate | Exception]
"""What a client's part of a round ended with."""


def batch_bounds(num_rows: int, batch_size: int) -> list[tuple[int, int]]:
    """Return `(start, stop)` of each batch of an epoch."""
    starts = list(range(0, num_rows, batch_size))
    if batch_size > 1 and len(starts) > 1 and num_rows - starts[-1] == 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], num_rows], strict=True)) if num_rows else []


def epoch_orders(num_rows: int, local_epochs: int, generator: np.random.Generator) -> Iterator[IntArray]:
    """Yield one permutation of the training rows per epoch."""
    for _ in range(local_epochs):
        yield generator.permutation(num_rows)


def gather(model: FlatModel, data: Samples, positions: IntArray) -> tuple[Tensor, Tensor]:
    """Return copies of rows and their targets as tensors, in the memory format that suits the model.

    The copies are in torch's own memory, which is aligned to 64 bytes while NumPy's is aligned to 16, and the last bits
    of a matrix product depend on alignment.
    """
    rows = data.rows[positions]
    features = torch.empty((len(rows), *data.features.shape[1:]))
    np.take(data.features, rows, axis=0, out=features.numpy(), mode="clip")
    memory_format = model.input_format(data.features.shape[1:])
    if memory_format is not torch.contiguous_format:
        features = torch.empty(features.shape, memory_format=memory_format).copy_(features)
    return features.to(model.device), torch.from_numpy(data.answers(rows)).to(model.device)


def chunks(model: FlatModel, data: Samples) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield all rows in order, `CHUNK_ROWS` at a time."""
    for start in range(0, len(data), CHUNK_ROWS):
        yield gather(model, data, np.arange(start, min(start + CHUNK_ROWS, len(data))))


def epoch_batches(
    model: FlatModel, data: Samples, order: IntArray, bounds: Sequence[tuple[int, int]]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of one epoch, several of them copied together.

    Args:
        model: The model that they are for.
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


def descend(
    model: FlatModel,
    data: Samples,
    training: LocalTraining,
    generator: np.random.Generator,
    correct: Callable[[Tensor, Tensor], None] | None = None,
    loss: Loss | None = None,
    ahead: Lookahead | None = None,
    weigh: WeightedRows | None = None,
) -> tuple[int, float]:
    """Run all local steps of one client, starting from the loaded model; return their number and the mean loss.

    Args:
        model: Changed in place.
        data: The client's training rows, at least one.
        training: Epochs, batches, optimiser.
        generator: Draws the batches.
        correct: Changes the gradient of each step in place, before weight decay and momentum; called with the weights
            and the gradient of the trainable part, shape `(params,)`.
        loss: Replaces the mean cross-entropy.
        ahead: Returns the point at which each step's gradient is taken, on the same batch; the reported loss is the one
            at the weights.
        weigh: Weights the loss and adds terms to it.
    """
    base_loss = _plain_loss if loss is None else loss
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
            measure = base_loss if weigh is None else partial(weigh, base_loss, order[start:stop])
            means.append(backward(measure, features, labels))
            sizes.append(len(labels))
            if ahead is not None:
                saved = weights.clone()
                weights.copy_(ahead(weights, gradient))
                backward(measure, features, labels)
                weights.copy_(saved)
            if correct is not None:
                correct(weights, gradient)
            optimizer.step(weights, gradient)
    loss_sum = sum(mean * size for mean, size in zip(torch.stack(means).tolist(), sizes, strict=True))
    return len(means), loss_sum / (len(data) * training.local_epochs)


def _plain_loss(outputs: Tensor, labels: Tensor, features: Tensor) -> Tensor:
    del features
    return mean_loss(outputs, labels)


def _backward(model: FlatModel, loss: Loss, features: Tensor, labels: Tensor, narrow: bool) -> Tensor:
    """Write the gradient of a batch's mean loss to the model's gradient, and return that loss."""
    if loss is _plain_loss and model.stack is not None and not narrow and not labels.is_floating_point():
        return model.stack.loss_and_gradient(features, labels)
    model.gradient.zero_()
    outputs = model.narrow_outputs if narrow else model.outputs
    mean = loss(outputs(features), labels, features)
    mean.backward()  # type: ignore[no-untyped-call]
    return mean.detach()


@torch.no_grad()
def score_client(model: FlatModel, data: Samples, metric: Metric | None = None) -> ClientScore:
    """Evaluate the loaded model on all rows of `data`, in evaluation mode, with a metric if given."""
    model.module.eval()
    num_correct, loss_sum = 0, 0.0
    statistics: Sums | None = None
    for features, labels in chunks(model, data):
        outputs = _inference_outputs(model, features)
        loss_sum += mean_loss(outputs, labels, reduction="sum").item()
        if data.scale is None:
            num_correct += int((outputs.argmax(dim=1) == labels).sum().item())
        if metric is not None:
            sums = metric_statistics(metric, data, outputs, labels)
            statistics = sums if statistics is None else statistics + sums
    return measured(data, num_correct, loss_sum, metric, statistics)


def _inference_outputs(model: FlatModel, features: Tensor) -> Tensor:
    """Return the outputs without storing what a gradient would need."""
    outputs = model.outputs if model.stack is None else model.stack.outputs
    if features.dim() == IMAGE_AXES and model.device.type == "cpu":
        return torch.cat([outputs(part) for part in torch.split(features, IMAGES_SCORED)])
    return outputs(features)


def metric_statistics(metric: Metric, data: Samples, outputs: Tensor, answers: Tensor) -> Sums:
    """Return a metric's sums over rows; for regression, in the unit of the target."""
    outputs, answers = outputs.cpu(), answers.cpu()
    if data.scale is None:
        return metric.statistics(outputs.numpy(), answers.numpy())
    deviation = data.scale.deviation
    return metric.statistics(outputs.double().numpy() * deviation, answers.double().numpy() * deviation)


def measured(
    data: Samples, num_correct: int, loss_sum: float, metric: Metric | None, statistics: Sums | None
) -> ClientScore:
    """Return a score with the metric's value; NaN without rows or with non-finite outputs.

    Nobody is right about a quantity, so its number of correct rows is NaN.
    """
    score = ClientScore.of_rows(len(data), num_correct if data.scale is None else float("nan"), loss_sum)
    if metric is None:
        return score
    value = float("nan") if statistics is None or score.is_missing else metric.value_of_client(statistics)
    return replace(score, metric=value, statistics=None if statistics is None else narrowed(statistics))


@torch.no_grad()
def model_outputs(model: FlatModel, data: Samples, vector: FloatArray, softmax: bool = True) -> Iterator[FloatArray]:
    """Yield the outputs of the model `vector` on all rows of `data`, in evaluation mode, chunk by chunk.

    Args:
        model: Loads the vector.
        data: The rows.
        vector: Shape `(layout.size,)`.
        softmax: Whether to apply softmax; not for regression.
    """
    model.load(torch.from_numpy(np.array(vector, dtype=np.float32)))
    model.module.eval()
    for features, _ in chunks(model, data):
        answers = _inference_outputs(model, features)
        outputs: FloatArray = (answers.softmax(dim=1) if softmax else answers).cpu().numpy()
        yield outputs


class Representation:
    """Records the input of a model's last linear layer while it is entered.

    Args:
        model: The model.
    """

    def __init__(self, model: FlatModel) -> None:
        self._model = model
        self._handle: RemovableHandle | None = None
        self._latest: Tensor | None = None

    def __enter__(self) -> Self:
        linear = [layer for layer in self._model.module.modules() if isinstance(layer, nn.Linear)]
        if linear:
            self._handle = linear[-1].register_forward_pre_hook(self._record)
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._handle.remove()
        self._handle = self._latest = None

    def latest(self) -> Tensor:
        """Return the representation of the rows of the last forward pass, shape `(rows, width)`.

        Raises:
            ValueError: If the model has no linear layer, or there was no forward pass.
        """
        if self._latest is None:
            raise ValueError("a representation is the input of a linear layer, but the model has no linear layer")
        return self._latest

    def under(self, vector: Tensor, features: Tensor) -> Tensor:
        """Return the representation of rows under another model, in evaluation mode and without a gradient.

        The loaded model, its mode and the latest representation are restored.

        Args:
            vector: The other model, shape `(size,)`.
            features: The rows.
        """
        model, latest, training = self._model, self._latest, self._model.module.training
        saved = model.vector.clone()
        try:
            with torch.no_grad():
                model.vector.data.copy_(vector)  # unseen by autograd, which needs what is put back before it looks
                model.module.eval()
                model.outputs(features)
            return self.latest()
        finally:
            model.vector.data.copy_(saved)
            model.module.train(training)
            self._latest = latest

    def _record(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._latest = inputs[0].float()
