"""Activations by name: torch's layer, and forward and backward for dense nets whose gradient is written out by hand.

The backward functions are those of autograd. Each looks at what `apply` leaves of its argument: the outputs where it
works in place, else the inputs.

| name | f(x) | f′ |
| --- | --- | --- |
| relu | max(x, 0) | by the output y: 1 where y > 0 |
| leaky_relu | x, 0.01 x below 0 (A. Maas et al. Rectifier nonlinearities improve neural network acoustic models. ICML 2013) | 1, 0.01 |
| elu | x, eˣ − 1 below 0 (D. Clevert et al. Fast and accurate deep network learning by ELUs. ICLR 2016) | 1, y + 1 |
| gelu | x Φ(x) (D. Hendrycks, K. Gimpel. Gaussian error linear units. arXiv:1606.08415, 2016) | Φ(x) + x φ(x) |
| silu | x σ(x) (S. Elfwing et al. Sigmoid-weighted linear units. Neural Networks 107, 2018) | σ(x) (1 + x (1 − σ(x))) |
| tanh | tanh x | 1 − y² |
| sigmoid | σ(x) = 1 / (1 + e⁻ˣ) | y (1 − y) |
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

_aten = torch.ops.aten
LEAK = 0.01


@dataclass(frozen=True)
class Activation:
    """One function of single numbers.

    Attributes:
        layer: Its module, as torch makes it by default.
        apply: Returns f of a tensor, which it may overwrite.
        pull: From the gradient by the outputs, which it may overwrite, and what `apply` left of its argument, returns
            the gradient by the inputs.
        exact: Whether each number has the same bits wherever it lies: torch computes the last of a tensor, which fill
            no vector register, by other code.
        settings: Of the layer by default, without which a module is another function.
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
    """Return the activation that a module is, or None if it is something else."""
    for activation in ACTIVATIONS.values():
        same = type(module) is activation.layer
        if same and all(getattr(module, name) == value for name, value in activation.settings.items()):
            return activation
    return None
