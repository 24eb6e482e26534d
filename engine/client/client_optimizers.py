"""Client optimisers over flat tensors, with the semantics of `torch.optim`.

They work on one client `(params,)` and on a block of clients `(clients, params)` alike. In a block, later steps may
leave out clients at its end, which have finished. A client is stateless, so an optimiser lives for one round.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from fedscout.engine.contracts.local_training_config import LocalTraining


class Optimizer(Protocol):
    """Changes weights in place, step by step."""

    def step(self, weights: Tensor, gradient: Tensor) -> None:
        """Make one step; `gradient` may be used as scratch space."""
        ...


class SGD:
    """`torch.optim.SGD` without dampening and Nesterov: b <- m b + g, w <- w - lr b, and b = g in the first step."""

    def __init__(self, learning_rate: float, momentum: float, weight_decay: float, rates: Tensor | None = None) -> None:
        self._learning_rate = learning_rate
        self._rates = None if rates is None else rates.float()
        self._momentum = momentum
        self._weight_decay = weight_decay
        self._buffer: Tensor | None = None

    def step(self, weights: Tensor, gradient: Tensor) -> None:
        """Make one step in place."""
        if self._weight_decay:
            gradient.add_(weights, alpha=self._weight_decay)
        if self._momentum:
            if self._buffer is None:
                self._buffer = gradient.clone()
            else:
                self._buffer[: len(weights)].mul_(self._momentum).add_(gradient)
            gradient = self._buffer[: len(weights)]
        if self._rates is None:
            weights.add_(gradient, alpha=-self._learning_rate)
        else:  # with the bits of the line above
            weights.addcmul_(gradient, self._rates[: len(weights)], value=-1)


class Adam:
    """`torch.optim.Adam` (Kingma & Ba 2015, algorithm 1) with its default betas (0.9, 0.999) and epsilon 1e-8.

    Attributes:
        learning_rate: May change between steps.
    """

    BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8

    def __init__(self, learning_rate: float, weight_decay: float = 0.0, rates: Tensor | None = None) -> None:
        self.learning_rate = learning_rate
        self._rates = rates
        self._weight_decay = weight_decay
        self._steps = 0
        self._mean: Tensor | None = None
        self._square: Tensor | None = None

    def step(self, weights: Tensor, gradient: Tensor) -> None:
        """Make one step in place."""
        if self._weight_decay:
            gradient.add_(weights, alpha=self._weight_decay)
        if self._mean is None or self._square is None:
            self._mean, self._square = torch.zeros_like(weights), torch.zeros_like(weights)
        self._steps += 1
        mean, square = self._mean[: len(weights)], self._square[: len(weights)]
        mean.lerp_(gradient, 1 - self.BETA_1)
        square.mul_(self.BETA_2).addcmul_(gradient, gradient, value=1 - self.BETA_2)
        root = (square.sqrt() / (1 - self.BETA_2**self._steps) ** 0.5).add_(self.EPSILON)
        bias = 1 - self.BETA_1**self._steps
        if self._rates is None:
            weights.addcdiv_(mean, root, value=-self.learning_rate / bias)
        else:  # with the bits of the line above
            weights.addcdiv_(mean * -(self._rates[: len(weights)] / bias).float(), root)


def new_optimizer(training: LocalTraining, rates: Tensor | None = None) -> Optimizer:
    """Return a fresh optimiser for one round.

    Args:
        training: Of one client, or of those of a block.
        rates: In place of its step size that of each client of a block, float64, shape `(clients, 1)`; each has the
            bits that it has alone.
    """
    if training.optimizer == "adam":
        return Adam(training.learning_rate, training.weight_decay, rates)
    return SGD(training.learning_rate, training.momentum, training.weight_decay, rates)
