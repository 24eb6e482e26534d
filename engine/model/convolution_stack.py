"""Plain stacks of convolutions trained without autograd: the passes of `convolution_layers`, one after the other.

A stack is an `nn.Sequential` of convolutions, activations, maximum poolings, a flattening and linear layers, beginning
with a convolution, where nobody's code runs around a layer. With p = softmax(z) of the logits and r rows in a batch,
the gradient of the mean cross-entropy begins with dz = (p - onehot(y)) / r. Gradients are written, where autograd adds
to zeros, and there are none by the rows. They differ from autograd's in the order of float32 sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedscout.engine.model.activations import activation_of
from fedscout.engine.model.convolution_layers import Activated, Convolution, Dense, Flattened, Layer, pooling
from fedscout.engine.model.quick_layers import is_plain_stack, pooled_first


@dataclass(frozen=True)
class ConvolutionStack:
    """The layers, first to last."""

    layers: tuple[Layer, ...]

    @classmethod
    def of(cls, module: nn.Module) -> ConvolutionStack | None:
        """Return the stack that a flat model's module is, or None if it is something else."""
        if not is_plain_stack(module) or not len(module) or type(module[0]) is not nn.Conv2d:
            return None
        if not _trains_each_once(module):
            return None
        layers = [_layer(part, place == 0) for place, part in enumerate(pooled_first(module))]
        known = tuple(layer for layer in layers if layer is not None)
        return cls(known) if len(known) == len(layers) and isinstance(known[-1], Dense) else None

    @torch.no_grad()
    def outputs(self, rows: Tensor) -> Tensor:
        """Return the logits of images, shape `(rows, classes)`; no gradient."""
        for layer in self.layers:
            rows = layer.answer(rows)
        return rows

    @torch.no_grad()
    def loss_and_gradient(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Write the gradient of the mean cross-entropy and return that mean.

        Args:
            rows: Images.
            labels: Shape `(rows,)`.
        """
        below, kept = rows, []
        for layer in self.layers:
            below, seen = layer.forward(below)
            kept.append(seen)
        logs = torch.log_softmax(below, dim=1)
        mean = nn.functional.nll_loss(logs, labels)
        told = torch.zeros_like(logs).scatter_(1, labels[:, None], 1.0)
        delta = logs.exp_().sub_(told).div_(len(labels))
        for place in reversed(range(len(self.layers))):
            delta = self.layers[place].backward(delta, kept.pop(), place > 0)
        return mean


def _trains_each_once(module: nn.Sequential) -> bool:
    """Return whether all parameters are trained, and no layer or parameter stands in two places."""
    owned = [parameter for part in module for parameter in part.parameters()]
    return len({id(each) for each in owned}) == len(owned) and all(each.requires_grad for each in owned)


def _layer(part: nn.Module, is_first: bool) -> Layer | None:
    if type(part) is nn.Conv2d:
        return Convolution.of(part, is_first)
    if type(part) is nn.MaxPool2d:
        return None if part.return_indices else pooling(part)
    if type(part) is nn.Flatten:
        return Flattened() if (part.start_dim, part.end_dim) == (1, -1) else None
    if type(part) is nn.Linear:
        return Dense(part)
    activation = activation_of(part)
    return None if activation is None else Activated(activation)
