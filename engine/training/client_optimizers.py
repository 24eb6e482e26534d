"""Client optimisers over flat tensors, with the semantics of `torch.optim`.

They work on one client `(params,)` and on a block of clients `(clients, params)` alike. In a block, later steps may
leave out clients at its end, which have finished. A client is stateless, so an optimiser lives for one round.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from fedscout.engine.contracts.local_training_config import LocalTraining


class Optimizer(ABC):
    """Changes weights in place, step by step."""

    def step(self, weights: Tensor, gradient: Tensor) -> None:
        """Make one step; `gradient` may be used as scratch space."""
        self.step_all([weights], [gradient])

    @abstractmethod
    def step_all(self, weights: list[Tensor], gradients: list[Tensor]) -> None:
        """Make one step of weights that lie apart, as many in every step; a call for each would cost more than it does.

        Args:
            weights: Each `(params,)` or `(clients, params)`.
            gradients: Likewise; may be used as scratch space.
        """


class SGD(Optimizer):
    """`torch.optim.SGD` without dampening and Nesterov: b <- m b + g, w <- w - lr b, and b = g in the first step."""

    def __init__(self, learning_rate: float, momentum: float, weight_decay: float, rates: Tensor | None = None) -> None:
        self._learning_rate = learning_rate
        self._rates = None if rates is None else rates.float()
        self._momentum = momentum
        self._weight_decay = weight_decay
        self._buffers: list[Tensor] = []

    def step_all(self, weights: list[Tensor], gradients: list[Tensor]) -> None:
        """Make one step in place."""
        if self._weight_decay:
            torch._foreach_add_(gradients, weights, alpha=self._weight_decay)
        if self._momentum:
            gradients = self._with_momentum(gradients)
        if self._rates is None:
            torch._foreach_add_(weights, gradients, alpha=-self._learning_rate)
        else:  # with the bits of the line above
            torch._foreach_addcmul_(weights, gradients, _of_first(self._rates, weights), value=-1)

    def _with_momentum(self, gradients: list[Tensor]) -> list[Tensor]:
        if not self._buffers:
            self._buffers = [gradient.clone() for gradient in gradients]
            return self._buffers
        active = _firsts(self._buffers, gradients)
        torch._foreach_mul_(active, self._momentum)
        torch._foreach_add_(active, gradients)
        return active


class Adam(Optimizer):
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
        self._means: list[Tensor] = []
        self._squares: list[Tensor] = []

    def step_all(self, weights: list[Tensor], gradients: list[Tensor]) -> None:
        """Make one step in place."""
        if self._weight_decay:
            torch._foreach_add_(gradients, weights, alpha=self._weight_decay)
        if not self._means:
            self._means, self._squares = ([torch.zeros_like(each) for each in weights] for _ in range(2))
        self._steps += 1
        means, squares = _firsts(self._means, weights), _firsts(self._squares, weights)
        torch._foreach_lerp_(means, gradients, 1 - self.BETA_1)
        torch._foreach_mul_(squares, self.BETA_2)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - self.BETA_2)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_div_(roots, (1 - self.BETA_2**self._steps) ** 0.5)
        torch._foreach_add_(roots, self.EPSILON)
        bias = 1 - self.BETA_1**self._steps
        if self._rates is None:
            torch._foreach_addcdiv_(weights, means, roots, value=-self.learning_rate / bias)
        else:  # with the bits of the line above
            lengths = -(self._rates / bias).float()
            torch._foreach_addcdiv_(weights, torch._foreach_mul(means, _of_first(lengths, weights)), roots)


class RMSprop(Optimizer):
    """`torch.optim.RMSprop` with its default α = 0.99 and ε = 1e-8: v <- α v + (1 − α) g², w <- w − lr g / (√v + ε).

    T. Tieleman, G. Hinton. Lecture 6.5: RMSProp. Coursera, Neural networks for machine learning, 2012.
    """

    ALPHA, EPSILON = 0.99, 1e-8

    def __init__(self, learning_rate: float, weight_decay: float = 0.0, rates: Tensor | None = None) -> None:
        self._learning_rate = learning_rate
        self._rates = None if rates is None else rates.float()
        self._weight_decay = weight_decay
        self._squares: list[Tensor] = []

    def step_all(self, weights: list[Tensor], gradients: list[Tensor]) -> None:
        """Make one step in place."""
        if self._weight_decay:
            torch._foreach_add_(gradients, weights, alpha=self._weight_decay)
        if not self._squares:
            self._squares = [torch.zeros_like(each) for each in weights]
        squares = _firsts(self._squares, weights)
        torch._foreach_mul_(squares, self.ALPHA)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - self.ALPHA)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, self.EPSILON)
        if self._rates is None:
            torch._foreach_addcdiv_(weights, gradients, roots, value=-self._learning_rate)
        else:  # with the bits of the line above
            lengths = _of_first(-self._rates, weights)
            torch._foreach_addcdiv_(weights, torch._foreach_mul(gradients, lengths), roots)


class Adadelta(Optimizer):
    """`torch.optim.Adadelta` with its default ρ = 0.9 and ε = 1e-6.

    M. D. Zeiler. ADADELTA: an adaptive learning rate method. arXiv:1212.5701, 2012, algorithm 1:
    v <- ρ v + (1 − ρ) g², Δ = g √(u + ε) / √(v + ε), u <- ρ u + (1 − ρ) Δ², w <- w − lr Δ, where lr is 1 in the paper.
    """

    RHO, EPSILON = 0.9, 1e-6

    def __init__(self, learning_rate: float, weight_decay: float = 0.0, rates: Tensor | None = None) -> None:
        self._learning_rate = learning_rate
        self._rates = None if rates is None else rates.float()
        self._weight_decay = weight_decay
        self._squares: list[Tensor] = []
        self._moves: list[Tensor] = []

    def step_all(self, weights: list[Tensor], gradients: list[Tensor]) -> None:
        """Make one step in place."""
        if self._weight_decay:
            torch._foreach_add_(gradients, weights, alpha=self._weight_decay)
        if not self._squares:
            self._squares, self._moves = ([torch.zeros_like(each) for each in weights] for _ in range(2))
        squares, moves = _firsts(self._squares, weights), _firsts(self._moves, weights)
        torch._foreach_mul_(squares, self.RHO)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - self.RHO)
        deltas = self._roots(moves)
        torch._foreach_div_(deltas, self._roots(squares))
        torch._foreach_mul_(deltas, gradients)
        torch._foreach_mul_(moves, self.RHO)
        torch._foreach_addcmul_(moves, deltas, deltas, value=1 - self.RHO)
        if self._rates is None:
            torch._foreach_add_(weights, deltas, alpha=-self._learning_rate)
        else:  # with the bits of the line above
            torch._foreach_addcmul_(weights, deltas, _of_first(self._rates, weights), value=-1)

    def _roots(self, means: list[Tensor]) -> list[Tensor]:
        roots = torch._foreach_add(means, self.EPSILON)
        torch._foreach_sqrt_(roots)
        return list(roots)


def _firsts(kept: list[Tensor], like: list[Tensor]) -> list[Tensor]:
    """Return of each tensor the rows of the clients that are active, as many as the other has."""
    if len(kept[0]) == len(like[0]):
        return kept
    return [each[: len(other)] for each, other in zip(kept, like, strict=True)]


def _of_first(rates: Tensor, weights: list[Tensor]) -> list[Tensor]:
    """Return the step sizes of the clients that are active, for each of some weights."""
    return [rates.narrow(0, 0, len(weights[0]))] * len(weights)


ADAPTIVE: Mapping[str, type[Adam] | type[RMSprop] | type[Adadelta]] = {
    "adam": Adam,
    "rmsprop": RMSprop,
    "adadelta": Adadelta,
}


def new_optimizer(training: LocalTraining, rates: Tensor | None = None) -> Optimizer:
    """Return a fresh optimiser for one round.

    Args:
        training: Of one client, or of those of a block.
        rates: In place of its step size that of each client of a block, float64, shape `(clients, 1)`; each has the
            bits that it has alone.
    """
    if training.optimizer != "sgd":
        return ADAPTIVE[training.optimizer](training.learning_rate, training.weight_decay, rates)
    return SGD(training.learning_rate, training.momentum, training.weight_decay, rates)
