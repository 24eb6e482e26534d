"""FedProx's client: local training with a proximal term.

Client i minimises F_i(w) + (μ/2)‖w − x‖² (Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated optimization in
heterogeneous networks, MLSys 2020, arXiv:1812.06127, eq. 2), so every local gradient gains μ(w − x), x being the
received global model. μ arrives in the train message under the key that Flower's FedProx writes; under the server rule
of another strategy, which writes none, it is a value of the algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from fedscout.engine.contracts.client_algorithm import ClientAlgorithm, Finished, LocalRun

if TYPE_CHECKING:
    from torch import Tensor

PROXIMAL_MU_KEY = "proximal-mu"


@dataclass(frozen=True)
class HeldNear(ClientAlgorithm):
    """Adds μ(w − x) to the gradient; keeps no state.

    Attributes:
        mu: μ.
    """

    mixes: ClassVar[bool] = True

    mu: float

    def train(self, run: LocalRun) -> Finished:
        """Descend near the received model."""
        trained = run.descend(run.received, partial(pull_towards, self.mu), [run.received])
        return Finished(trained, trained.vectors)


@dataclass(frozen=True)
class ProximalTerm(ClientAlgorithm):
    """The same with the μ of the train message."""

    reads: ClassVar[tuple[str, ...]] = (PROXIMAL_MU_KEY,)
    accompanied: ClassVar[bool] = False
    mixes: ClassVar[bool] = True

    def train(self, run: LocalRun) -> Finished:
        """Descend near the received model."""
        return HeldNear(float(run.config[PROXIMAL_MU_KEY])).train(run)


def pull_towards(mu: float, weights: Tensor, gradient: Tensor, centre: Tensor) -> None:
    """Add the gradient of (μ/2)‖w − centre‖² (gradient of eq. 2), in place."""
    gradient.add_(weights - centre, alpha=mu)
