"""Dense nets of many clients at once: forward and backward passes by batched matrix products.

A stack is `[Flatten] Linear (ReLU Linear)*`. The gradient of the mean cross-entropy is written out by hand: with
p = softmax(z) of the last layer and r rows in a client's batch, dz = (p - onehot(y)) / r, dW = dzᵀ h, db = Σ dz, and
dh = dz W where the ReLU below let something through.

Every product is one independent matrix product a client, of a size that depends on that client alone. So a client's
numbers do not depend on which others are in its block, nor on how many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedscout.engine.model.adjusted_outputs import Adjusted
from fedscout.engine.model.parameter_layout import ParameterLayout
from fedscout.engine.model.row_loss import RowLoss


@dataclass(frozen=True)
class DenseLayer:
    """Where one linear layer's weights and bias are in the flat vector."""

    start: int
    num_inputs: int
    num_outputs: int

    @property
    def num_weights(self) -> int:
        """Elements of the weight matrix."""
        return self.num_inputs * self.num_outputs

    @property
    def bias_start(self) -> int:
        """Where the bias begins."""
        return self.start + self.num_weights

    @property
    def stop(self) -> int:
        """Where the next layer begins."""
        return self.bias_start + self.num_outputs

    def weight(self, vectors: Tensor) -> Tensor:
        """Return the weights as a view, shape `(clients, outputs, inputs)`."""
        return vectors[:, self.start : self.bias_start].view(-1, self.num_outputs, self.num_inputs)

    def bias(self, vectors: Tensor) -> Tensor:
        """Return the bias as a view, shape `(clients, outputs)`."""
        return vectors[:, self.bias_start : self.stop]


@dataclass(frozen=True)
class LayerViews:
    """One layer of some clients: views of wherever their parameters are.

    Attributes:
        weight: Shape `(clients, outputs, inputs)`.
        transposed: The same, shape `(clients, inputs, outputs)`; kept, as a view takes a noticeable part of a step.
        bias: Shape `(clients, 1, outputs)`.
        weight_gradient: As `weight`.
        bias_gradient: Shape `(clients, outputs)`.
    """

    weight: Tensor
    transposed: Tensor
    bias: Tensor
    weight_gradient: Tensor
    bias_gradient: Tensor

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor, weight_gradient: Tensor, bias_gradient: Tensor) -> LayerViews:
        """Return the views of a layer; bias of shape `(clients, outputs)`."""
        return cls(weight, weight.mT, bias.unsqueeze(1), weight_gradient, bias_gradient)

    def part(self, first: int, num_clients: int) -> LayerViews:
        """Return the views of some neighbours."""
        each = (self.weight, self.transposed, self.bias, self.weight_gradient, self.bias_gradient)
        return LayerViews(*(view.narrow(0, first, num_clients) for view in each))


@dataclass(frozen=True)
class DenseStack:
    """The layers, first to last."""

    layers: tuple[DenseLayer, ...]

    @classmethod
    def of(cls, module: nn.Module, layout: ParameterLayout) -> DenseStack | None:
        """Return the stack that a module is, or None if it is something else."""
        if not isinstance(module, nn.Sequential) or layout.buffers:
            return None
        parts = list(module)
        if parts and isinstance(parts[0], nn.Flatten) and (parts[0].start_dim, parts[0].end_dim) == (1, -1):
            parts = parts[1:]
        linear, between = parts[::2], parts[1::2]
        if not linear or len(linear) != len(between) + 1:
            return None
        if not all(type(part) is nn.ReLU for part in between):
            return None
        layers, start = [], 0
        for part in linear:
            if type(part) is not nn.Linear or part.bias is None:
                return None
            layers.append(DenseLayer(start, part.in_features, part.out_features))
            start = layers[-1].stop
        return cls(tuple(layers)) if start == layout.size else None

    @property
    def num_inputs(self) -> int:
        """Features a row."""
        return self.layers[0].num_inputs

    def views(self, vectors: Tensor, gradient: Tensor | None = None) -> list[LayerViews]:
        """Return the layers of flat vectors as views.

        Args:
            vectors: Shape `(clients, params)`.
            gradient: As `vectors`; without it, the views' gradients are their parameters.
        """
        gradient = vectors if gradient is None else gradient
        return [
            LayerViews.of(layer.weight(vectors), layer.bias(vectors), layer.weight(gradient), layer.bias(gradient))
            for layer in self.layers
        ]

    def activations(self, vectors: Tensor, rows: Tensor) -> list[Tensor]:
        """Run the stack.

        Args:
            vectors: Parameters, shape `(clients, params)`.
            rows: Shape `(clients, rows, inputs)`.

        Returns:
            The rows, the hidden layers' outputs and the logits, each `(clients, rows, width)`.
        """
        return _activations(self.views(vectors), rows)


def _activations(layers: Sequence[LayerViews], rows: Tensor) -> list[Tensor]:
    outputs = [rows]
    for layer in layers:
        outputs.append(torch.baddbmm(layer.bias, outputs[-1], layer.transposed))
        if layer is not layers[-1]:
            outputs[-1].relu_()
    return outputs


def representation(layers: Sequence[LayerViews], rows: Tensor) -> Tensor:
    """Return what goes into the last layer, shape `(clients, rows, width)`."""
    return _activations(layers, rows)[-2]


def says(layers: Sequence[LayerViews], rows: Tensor, adjusted: Adjusted | None = None) -> Tensor:
    """Return the probabilities that come of the, adjusted, logits, shape `(clients, rows, classes)`."""
    logits = _activations(layers, rows)[-1]
    return torch.softmax(logits if adjusted is None else adjusted(logits), dim=2)


def loss_and_gradient(
    layers: Sequence[LayerViews],
    rows: Tensor,
    targets: Tensor,
    shares: Tensor,
    adjusted: Adjusted | None = None,
    beyond: Callable[[Tensor, Tensor], Tensor] | None = None,
    row_loss: RowLoss | None = None,
    told: Tensor | None = None,
) -> Tensor:
    """Write the gradient of each client's mean cross-entropy and return the losses.

    Args:
        layers: Of the clients; their gradients are overwritten.
        rows: Shape `(clients, rows, inputs)`; padded rows hold any finite values.
        targets: One-hot labels times shares, shape `(clients, rows, classes)`.
        shares: Weight of each row, 1 / rows of its client, 0 for padding; shape `(clients, rows, 1)`.
        adjusted: What is made of the logits ahead of the loss.
        beyond: A further loss of each row, shape `(clients, rows)`, told what goes into the last layer and the rows.
        row_loss: In place of the cross-entropy of each row.
        told: Its pseudo-labels, shape `(clients, rows, classes)`.

    Returns:
        Mean loss of each client, shape `(clients,)`.
    """
    outputs = _activations(layers, rows)
    logits = outputs.pop()
    logs = torch.log_softmax(logits if adjusted is None else adjusted(logits), dim=2)
    if row_loss is None:
        losses = (logs * targets).sum(dim=(1, 2)).neg_()
        delta = logs.exp_().mul_(shares).sub_(targets)
    else:
        losses, delta = row_loss.means_and_gradient(logs, targets, shares, told)
    if adjusted is not None and adjusted.scale is not None:
        delta *= adjusted.scale[:, None]
    pull = None
    if beyond is not None:
        further, pull = _loss_beyond(beyond, outputs[-1], rows, shares)
        losses += further
    for layer in reversed(layers):
        below = outputs.pop()
        torch.bmm(delta.mT, below, out=layer.weight_gradient)
        torch.sum(delta, dim=1, out=layer.bias_gradient)
        if outputs:
            delta = torch.bmm(delta, layer.weight)
            if pull is not None:
                delta += pull
                pull = None
            torch.ops.aten.threshold_backward.grad_input(delta, below, 0, grad_input=delta)
    return losses


def _loss_beyond(
    beyond: Callable[[Tensor, Tensor], Tensor], below: Tensor, rows: Tensor, shares: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the mean of a further loss of each client, and its gradient by what goes into the last layer."""
    own = below.detach().requires_grad_()
    means = (beyond(own, rows) * shares.squeeze(2)).sum(dim=1)
    (pull,) = torch.autograd.grad(means.sum(), own)
    return means.detach(), pull
