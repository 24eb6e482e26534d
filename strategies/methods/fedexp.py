"""FedExP: FedAvg with an extrapolated server step that grows with the disagreement of the clients.

With x the global model, y_i client i's model after local training, Δ_i = y_i − x and p_i its weight (Σ p_i =
1), Δ̄ the mean of the changes (Jhunjhunwala et al. 2023, Algorithm 1):

- η_g = max(1, Σ p_i ‖Δ_i‖² / (2 (‖Δ̄‖² + ε)))
- x ← x + η_g Δ̄

p_i is 1/clients as in the paper, which makes the first term Σ ‖Δ_i‖² / (2n (‖Δ̄‖² + ε));
`sample_scaling="num-examples"` uses n_i/Σn, as the authors' code does.

Because x oscillates, the result of T rounds is the mean of the last two iterates, (x_{T−1} + x_T)/2. A trial
may end or be pruned after any round, so the model of every round t is (x_{t−1} + x_t)/2, which is scored and
stored, while clients receive x_t, which the strategy stores. Because the scored model is not the one sent
out, its evaluation takes a separate round trip. The authors' code scores the same mean in every round, except
x_1 in the first.

It is not robust: a non-finite client model makes the global model non-finite.

Reference:
    Jhunjhunwala, Wang, Joshi: FedExP: speeding up federated averaging via extrapolation. ICLR 2023.
        arXiv:2301.09604
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from pydantic import Field

from fedscout.engine.messages.calls import Cohort, EngineNeeds
from fedscout.strategies.aggregation.rules import ClientModel, ServerRule, Vector, shaped
from fedscout.strategies.methods.averaging import SampleScaling, weight_metric
from fedscout.strategies.specification import RealRange, SearchRange, StrategySpec, node_counts


def extrapolated_change(
    received: Vector, models: Sequence[ClientModel], weights: Vector, epsilon: float
) -> tuple[float, Vector]:
    """Return η_g, >= 1, and the mean change Δ̄, shape `(params,)`.

    Args:
        received: x, shape `(params,)`.
        models: y_i, at least one, each of shape `(params,)`.
        weights: p_i, shape `(clients,)`; they sum to 1.
        epsilon: ε, > 0.
    """
    mean = np.zeros_like(received)
    change = np.empty_like(received)
    mean_square = 0.0
    for model, weight in zip(models, weights.tolist(), strict=True):
        np.subtract(model, received, out=change)
        mean_square += weight * float(np.dot(change, change))
        change *= weight
        mean += change
    rate = max(1.0, mean_square / (2 * (float(np.dot(mean, mean)) + epsilon)))  # η_g
    return rate, mean


class FedExP(ServerRule):
    """Server rule of FedExP.

    Args:
        epsilon: ε.
        settings: Arguments of Flower's FedAvg.

    Attributes:
        iterate: x, shape `(params,)`; None before the first model.
    """

    def __init__(self, epsilon: float = 1e-3, **settings: Any) -> None:
        super().__init__(**settings)
        self.epsilon = epsilon
        self.iterate: ClientModel | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return Flower's messages with x instead of the mean of the last two iterates."""
        sent = arrays if self.iterate is None else shaped(self.iterate, arrays)
        return super().configure_train(server_round, sent, config, grid)

    def aggregate_models(self, received: Vector, models: Sequence[ClientModel], weights: Vector) -> Vector:
        """Return the mean of the last two iterates, and store the last."""
        rate, mean = extrapolated_change(received, models, weights, self.epsilon)
        self.iterate = (received + rate * mean).astype(np.float32)
        return (received + self.iterate) / 2


class FedExPSpec(StrategySpec):
    """FedExP: FedAvg with larger server steps when the clients disagree."""

    paper: ClassVar[str] = "Jhunjhunwala et al. 2023, arXiv:2301.09604"

    kind: Literal["fedexp"] = "fedexp"
    epsilon: Annotated[
        float,
        Field(gt=0, description="ε, added to the squared mean change: a larger one shortens the server's steps"),
        SearchRange(RealRange(1e-4, 1.0, log=True)),
    ] = 1e-3
    sample_scaling: Annotated[
        SampleScaling, Field(description="p_i, a client's weight: equal, or by its number of examples")
    ] = "uniform"

    def needs(self) -> EngineNeeds:
        """Return the engine features needed: one reply per client, for the norms of their changes."""
        return EngineNeeds(arrays="flat", replies="individual")

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification: with one client the weight does not matter."""
        if cohort.num_sampled == 1 and self.sample_scaling != "uniform":
            return self.model_copy(update={"sample_scaling": "uniform"})
        return self

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        return FedExP(self.epsilon, **node_counts(cohort), weighted_by_key=weight_metric(self.sample_scaling))
