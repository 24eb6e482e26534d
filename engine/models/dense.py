"""Dense nets of many clients at once: forward and backward passes by batched matrix products.

A stack is `[Flatten] Linear (activation [Dropout] Linear)*`. The gradient of the mean cross-entropy is implemented
directly: with p = softmax(z) of the last layer and r rows in a client's batch, dz = (p - onehot(y)) / r, dW = dzᵀ h, db
= Σ dz, dh = dz W, and for the layer below dz = dh m f′, where m is the dropout mask and f the activation. A last layer
of one output is a regression of y: the loss is the mean squared error, and dz = 2 (z - y) / r.

Every product is one independent matrix product per client, of a size that depends on that client alone. So a client's
numbers do not depend on which or how many other clients are in its block.

`BlockParameters` holds parameters and gradients of many clients in the order layer, client, element. So a layer of all
clients is one contiguous batch of matrices, the form in which a batched product is fastest, and an optimiser's step, or
a client algorithm's correction, is one operation. Every matrix is aligned to 64 bytes, since the last bits of a matrix
product depend on alignment.

`ACTIVATIONS` holds torch's layer with forward and backward functions of each activation. The backward functions are
those of autograd. Each receives what `apply` leaves in its argument: the outputs if it works in place, else the inputs.

| name | f(x) | f′ |
| --- | --- | --- |
| relu | max(x, 0) | by the output y: 1 where y > 0 |
| leaky_relu [1] | x, 0.01 x below 0 | 1, 0.01 |
| elu [2] | x, eˣ − 1 below 0 | 1, y + 1 |
| gelu [3] | x Φ(x) | Φ(x) + x φ(x) |
| silu [4] | x σ(x) | σ(x) (1 + x (1 − σ(x))) |
| tanh | tanh x | 1 − y² |
| sigmoid | σ(x) = 1 / (1 + e⁻ˣ) | y (1 − y) |

[1] A. Maas et al. Rectifier nonlinearities improve neural network acoustic models. ICML 2013.

[2] D. Clevert et al. Fast and accurate deep network learning by ELUs. ICLR 2016.

[3] D. Hendrycks, K. Gimpel. Gaussian error linear units. arXiv:1606.08415, 2016.

[4] S. Elfwing et al. Sigmoid-weighted linear units. Neural Networks 107, 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedscout.engine.models.layout import Adjusted, ParameterLayout, RowLoss

_aten = torch.ops.aten
LEAK = 0.01


@dataclass(frozen=True)
class Activation:
    """One elementwise activation function.

    Attributes:
        layer: Its torch module class with default settings.
        apply: Returns f of a tensor, which it may overwrite.
        pull: Returns the gradient by the inputs from the gradient by the outputs, which it may overwrite, and from what
            `apply` left of its argument.
        exact: Whether each element has the same bits at any position: torch computes the last elements of a tensor,
            which do not fill a vector register, by other code.
        settings: The layer's default settings; a module with others is a different function.
    """

    layer: Callable[[], nn.Module]
    apply: Callable[[Tensor], Tensor]
    pull: Callable[[Tensor, Tensor], Tensor]
    exact: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)


ACTIVATIONS: Mapping[str, Activation] = {
    "relu": Activation(
        nn.ReLU,
        torch.relu_,
        lambda delta, kept: _aten.threshold_backward.grad_input(delta, kept, 0, grad_input=delta),
        exact=True,
    ),
    "leaky_relu": Activation(
        nn.LeakyReLU,
        lambda sums: _aten.leaky_relu_(sums, LEAK),
        lambda delta, kept: _aten.leaky_relu_backward(delta, kept, LEAK, True),
        settings={"negative_slope": LEAK},
    ),
    "elu": Activation(
        nn.ELU, _aten.elu_, lambda delta, kept: _aten.elu_backward(delta, 1, 1, 1, True, kept), settings={"alpha": 1.0}
    ),
    "gelu": Activation(nn.GELU, _aten.gelu, _aten.gelu_backward, settings={"approximate": "none"}),
    "silu": Activation(nn.SiLU, _aten.silu, _aten.silu_backward),
    "tanh": Activation(nn.Tanh, torch.tanh_, _aten.tanh_backward),
    "sigmoid": Activation(nn.Sigmoid, torch.sigmoid_, _aten.sigmoid_backward),
}


def activation_of(module: nn.Module) -> Activation | None:
    """Return the activation of a module, or None if it is none of them."""
    for activation in ACTIVATIONS.values():
        same = type(module) is activation.layer
        if same and all(getattr(module, name) == value for name, value in activation.settings.items()):
            return activation
    return None


@dataclass(frozen=True)
class DenseLayer:
    """Position of one linear layer's weights and bias in the flat vector, and its activation, None for the last."""

    start: int
    num_inputs: int
    num_outputs: int
    activation: Activation | None = None

    @property
    def num_weights(self) -> int:
        """Elements of the weight matrix."""
        return self.num_inputs * self.num_outputs

    @property
    def bias_start(self) -> int:
        """Start of the bias in the vector."""
        return self.start + self.num_weights

    @property
    def stop(self) -> int:
        """Start of the next layer in the vector."""
        return self.bias_start + self.num_outputs

    def weight(self, vectors: Tensor) -> Tensor:
        """Return the weights as a view, shape `(clients, outputs, inputs)`."""
        return vectors[:, self.start : self.bias_start].view(-1, self.num_outputs, self.num_inputs)

    def bias(self, vectors: Tensor) -> Tensor:
        """Return the bias as a view, shape `(clients, outputs)`."""
        return vectors[:, self.bias_start : self.stop]


class LayerViews(NamedTuple):
    """Views of one layer's parameters of some clients.

    Attributes:
        weight: Shape `(clients, outputs, inputs)`.
        transposed: The same, shape `(clients, inputs, outputs)`; cached, as creating a view takes a noticeable part of
            a step.
        bias: Shape `(clients, 1, outputs)`.
        weight_gradient: As `weight`.
        bias_gradient: Shape `(clients, outputs)`.
        activation: The activation after the layer.
    """

    weight: Tensor
    transposed: Tensor
    bias: Tensor
    weight_gradient: Tensor
    bias_gradient: Tensor
    activation: Activation | None

    @classmethod
    def of(
        cls, weight: Tensor, bias: Tensor, weight_gradient: Tensor, bias_gradient: Tensor, activation: Activation | None
    ) -> LayerViews:
        """Return the views of a layer; bias has shape `(clients, outputs)`."""
        return cls(weight, weight.mT, bias.unsqueeze(1), weight_gradient, bias_gradient, activation)

    def part(self, first: int, num_clients: int) -> LayerViews:
        """Return the views of adjacent clients."""
        views = (view.narrow(0, first, num_clients) for view in self[:5])
        weight, transposed, bias, weight_gradient, bias_gradient = views
        return LayerViews(weight, transposed, bias, weight_gradient, bias_gradient, self.activation)


@dataclass(frozen=True)
class DenseStack:
    """The layers, first to last.

    Attributes:
        layers: At least one.
        dropout: Dropout probability of each hidden layer's outputs in training.
    """

    layers: tuple[DenseLayer, ...]
    dropout: float = 0.0

    @classmethod
    def of(cls, module: nn.Module, layout: ParameterLayout) -> DenseStack | None:
        """Return the stack of a module, or None if it has another structure."""
        if not isinstance(module, nn.Sequential) or layout.buffers:
            return None
        parts = list(module)
        if parts and isinstance(parts[0], nn.Flatten) and (parts[0].start_dim, parts[0].end_dim) == (1, -1):
            parts = parts[1:]
        shares = [part.p for part in parts if type(part) is nn.Dropout]
        step = 3 if shares else 2
        linear, between, dropouts = parts[::step], parts[1::step], parts[2::3] if shares else []
        if not linear or len(linear) != len(between) + 1 or len(shares) != len(dropouts):
            return None
        if len({*shares}) > 1 or not all(type(part) is nn.Dropout and part.p < 1 for part in dropouts):
            return None
        activations = [activation_of(part) for part in between]
        if None in activations:
            return None
        layers, start = [], 0
        for part, activation in zip(linear, [*activations, None], strict=True):
            if type(part) is not nn.Linear or part.bias is None:
                return None
            layers.append(DenseLayer(start, part.in_features, part.out_features, activation))
            start = layers[-1].stop
        return cls(tuple(layers), max(shares, default=0.0)) if start == layout.size else None

    @property
    def num_inputs(self) -> int:
        """Features per row."""
        return self.layers[0].num_inputs

    def views(self, vectors: Tensor, gradient: Tensor | None = None) -> list[LayerViews]:
        """Return the layers of flat vectors as views.

        Args:
            vectors: Shape `(clients, params)`.
            gradient: As `vectors`; without it, the views' gradients are their parameters.
        """
        gradient = vectors if gradient is None else gradient
        return [
            LayerViews.of(
                layer.weight(vectors),
                layer.bias(vectors),
                layer.weight(gradient),
                layer.bias(gradient),
                layer.activation,
            )
            for layer in self.layers
        ]

    def activations(self, vectors: Tensor, rows: Tensor) -> list[Tensor]:
        """Run the stack.

        Args:
            vectors: Parameters, shape `(clients, params)`.
            rows: Shape `(clients, rows, inputs)`.

        Returns:
            The rows, the hidden layers' outputs and the logits, each `(clients, rows, width)`, without dropout.
        """
        return _run(self.views(vectors), rows)[0]


def _run(layers: Sequence[LayerViews], rows: Tensor, masks: Sequence[Tensor] = ()) -> tuple[list[Tensor], list[Tensor]]:
    """Return each layer's inputs and the logits, and for each hidden layer the values that its derivative needs."""
    outputs, kept = [rows], []
    for number, layer in enumerate(layers):
        sums = torch.baddbmm(layer.bias, outputs[-1], layer.transposed)
        if layer.activation is not None:
            kept.append(sums)
            sums = layer.activation.apply(sums)
            sums = sums * masks[number] if masks else sums
        outputs.append(sums)
    return outputs, kept


def representation(layers: Sequence[LayerViews], rows: Tensor) -> Tensor:
    """Return the inputs of the last layer, shape `(clients, rows, width)`."""
    return _run(layers, rows)[0][-2]


def says(layers: Sequence[LayerViews], rows: Tensor, adjusted: Adjusted | None = None) -> Tensor:
    """Return the softmax probabilities of the logits, adjusted if given, shape `(clients, rows, classes)`."""
    logits = _run(layers, rows)[0][-1]
    return torch.softmax(logits if adjusted is None else adjusted(logits), dim=2)


def loss_and_gradient(
    layers: Sequence[LayerViews],
    rows: Tensor,
    targets: Tensor,
    shares: Tensor,
    adjusted: Adjusted | None = None,
    beyond: Callable[[Tensor, Tensor], Tensor] | None = None,
    row_loss: RowLoss | None = None,
    pseudo_labels: Tensor | None = None,
    masks: Sequence[Tensor] = (),
) -> Tensor:
    """Write the gradient of each client's mean loss and return the losses.

    Args:
        layers: The clients' layers; their gradients are overwritten.
        rows: Shape `(clients, rows, inputs)`; padded rows hold any finite values.
        targets: One-hot labels times shares, shape `(clients, rows, classes)`; or regression targets, `(clients, rows,
            1)`.
        shares: Weight of each row, 1 / rows of its client, 0 for padding; shape `(clients, rows, 1)`.
        adjusted: Adjustment of the logits before the loss.
        beyond: An additional loss of each row, shape `(clients, rows)`, as a function of the last layer's inputs and
            the rows.
        row_loss: Replaces the cross-entropy of each row.
        pseudo_labels: Its pseudo-labels, shape `(clients, rows, classes)`.
        masks: Factors of each hidden layer's outputs, each `(clients, rows, width)`; empty without dropout.

    Returns:
        Mean loss of each client, shape `(clients,)`.
    """
    outputs, kept = _run(layers, rows, masks)
    answers = outputs.pop()
    if answers.shape[2] == 1:
        errors = answers - targets
        delta = errors * shares
        losses, delta = (errors * delta).sum(dim=(1, 2)), delta.mul_(2)
    else:
        logs = torch.log_softmax(answers if adjusted is None else adjusted(answers), dim=2)
        if row_loss is None:
            losses = (logs * targets).sum(dim=(1, 2)).neg_()
            delta = logs.exp_().mul_(shares).sub_(targets)
        else:
            losses, delta = row_loss.means_and_gradient(logs, targets, shares, pseudo_labels)
        if adjusted is not None and adjusted.scale is not None:
            delta *= adjusted.scale[:, None]
    pull = None
    if beyond is not None:
        additional, pull = _additional_loss(beyond, outputs[-1], rows, shares)
        losses += additional
    for number in reversed(range(len(layers))):
        layer, below = layers[number], outputs.pop()
        torch.bmm(delta.mT, below, out=layer.weight_gradient)
        torch.sum(delta, dim=1, out=layer.bias_gradient)
        if outputs:
            delta = torch.bmm(delta, layer.weight)
            if pull is not None:
                delta += pull
                pull = None
            if masks:
                delta *= masks[number - 1]
            activation = layers[number - 1].activation
            assert activation is not None
            delta = activation.pull(delta, kept.pop())
    return losses


def _additional_loss(
    beyond: Callable[[Tensor, Tensor], Tensor], below: Tensor, rows: Tensor, shares: Tensor
) -> tuple[Tensor, Tensor]:
    """Return each client's mean of an additional loss, and its gradient by the last layer's inputs."""
    inputs = below.detach().requires_grad_()
    means = (beyond(inputs, rows) * shares.squeeze(2)).sum(dim=1)
    (pull,) = torch.autograd.grad(means.sum(), inputs)
    return means.detach(), pull


ALIGNED = 16
"""float32 numbers in 64 bytes, the alignment of torch's own memory."""


def aligned(size: int, step: int = ALIGNED) -> int:
    """Return `size` rounded up to a multiple of `step`."""
    return -(-size // step) * step


Regions = tuple[list[Tensor], list[Tensor]]
"""Weights, and beside each its gradient."""


class BlockParameters:
    """Parameters and gradients of the clients of a block.

    Args:
        stack: The model.
        start: The clients' initial vectors, shape `(size,)` or `(clients, size)`.
        num_clients: Clients of the block.
        together: Whether all clients make the same number of steps; then they form one region.
    """

    def __init__(self, stack: DenseStack, start: Tensor, num_clients: int, together: bool) -> None:
        self._stack = stack
        self._num_clients = num_clients
        self._together = together
        self._sizes = [size for layer in stack.layers for size in (layer.num_weights, layer.num_outputs)]
        self._weights = self.arranged(start)
        self._gradient = torch.zeros_like(self._weights)
        self._parts = list(zip(self._split(self._weights), self._split(self._gradient), strict=True))
        self._active: tuple[int, Regions] = (-1, ([], []))
        self._layers = list(self._whole_views())
        self._views: dict[tuple[int, int], list[LayerViews]] = {}

    def arranged(self, vectors: Tensor) -> Tensor:
        """Return a copy of vectors in the memory order of the weights: a flat tensor, padded with zeros.

        Args:
            vectors: Shape `(size,)`, the same for all clients, or `(clients, size)`.
        """
        num_elements = sum(aligned(size) for size in self._sizes) * self._num_clients
        memory = torch.zeros(num_elements, dtype=vectors.dtype)
        rows, start = vectors.reshape(-1, vectors.shape[-1]), 0
        for part, size in zip(self._split(memory), self._sizes, strict=True):
            part[:, :size] = rows[:, start : start + size]
            start += size
        return memory

    def _split(self, memory: Tensor) -> list[Tensor]:
        """Return one view per tensor of the model, shape `(clients, its padded size)`."""
        parts, start = [], 0
        for size in self._sizes:
            length = aligned(size) * self._num_clients
            parts.append(memory[start : start + length].view(self._num_clients, -1))
            start += length
        return parts

    def layers(self, start: int, stop: int) -> Sequence[LayerViews]:
        """Return views of the clients `start` to `stop`, one per layer."""
        views = self._views.get((start, stop))
        if views is None:
            views = self._views[start, stop] = [layer.part(start, stop - start) for layer in self._layers]
        return views

    def _whole_views(self) -> Iterator[LayerViews]:
        for number, layer in enumerate(self._stack.layers):
            shape = (self._num_clients, layer.num_outputs, layer.num_inputs)
            weight, weight_gradient = (part[:, : layer.num_weights].view(shape) for part in self._parts[2 * number])
            bias, bias_gradient = (part[:, : layer.num_outputs] for part in self._parts[2 * number + 1])
            yield LayerViews.of(weight, bias, weight_gradient, bias_gradient, layer.activation)

    def regions(self, num_clients: int) -> Regions:
        """Return weights and gradients of the first clients, for an optimiser."""
        if num_clients != self._active[0]:  # views take a noticeable part of a small step
            parts = [(self._weights, self._gradient)] if self._together else self._parts
            active = parts if self._together else [(w[:num_clients], g[:num_clients]) for w, g in parts]
            self._active = num_clients, ([weights for weights, _ in active], [gradient for _, gradient in active])
        return self._active[1]

    def regions_of(self, arranged: Tensor, num_clients: int) -> Sequence[Tensor]:
        """Return the parts of arranged vectors that correspond to `regions(num_clients)`."""
        return [arranged] if self._together else [part[:num_clients] for part in self._split(arranged)]

    def vectors(self) -> Tensor:
        """Return a copy of the weights as one flat vector per client, shape `(clients, size)`."""
        pieces = [weights[:, :size] for (weights, _), size in zip(self._parts, self._sizes, strict=True)]
        return torch.cat(pieces, dim=1)
