"""SCAFFOLD: control variates correct the drift of the clients' gradients.

With x the global model, c the server's control variate, c_i client i's, K its steps and η_l their size
(Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic controlled averaging for federated
learning, ICML 2020, arXiv:1910.06378, Algorithm 1):

    client:  y ← x;  K times  y ← y − η_l (g_i(y) + c − c_i)                 eq. 3
             c_i⁺ = c_i − c + (x − y) / (K η_l)                               eq. 4, option II
    server:  x ← x + η_g Σ p_i (y_i − x);  c ← c + |S|/N Σ p_i (c_i⁺ − c_i)   eq. 5

c and c_i start at 0. p_i is 1/|S| as in the paper; `sample_scaling="num-examples"` uses n_i/Σn in both means,
for the row-weighted objective. c is sent to the clients as an auxiliary vector, and c_i⁺ − c_i is returned;
c_i stays.

Eq. 4 is the mean gradient along the path if a step is η_l times a gradient, so clients with momentum or Adam
are refused. Buffers, such as batch-normalisation statistics, have no gradient and no control variates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from flwr.serverapp import strategy as flower
from pydantic import Field

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientResults, LocalRun
from fedscout.engine.errors import Fault
from fedscout.engine.messages.calls import Cohort
from fedscout.strategies.aggregation.rules import DoubleArray, MeanRule, RoundMeans, with_share
from fedscout.strategies.methods.averaging import MeanSpec, SampleScaling
from fedscout.strategies.specification import RealRange, SearchRange, node_counts

if TYPE_CHECKING:
    from torch import Tensor

CONTROL, CHANGE = "control", "control-change"


class ScaffoldSpec(MeanSpec):
    """SCAFFOLD: control variates correct the drift of the clients' gradients."""

    paper: ClassVar[str] = "Karimireddy et al. 2020, arXiv:1910.06378"

    kind: Literal["scaffold"] = "scaffold"
    sample_scaling: Annotated[
        SampleScaling, Field(description="p_i, a client's weight in both means: equal, or by its number of examples")
    ] = "uniform"
    server_learning_rate: Annotated[
        float, Field(gt=0, description="η_g, the server's step along the mean change"), SearchRange(RealRange(0.1, 1.5))
    ] = 1.0

    @classmethod
    def unavailable(cls, cohort: Cohort) -> str | None:
        """Return the fault that the clients' optimizer is not plain SGD."""
        if cohort.client_optimizer == "sgd" and not cohort.client_momentum:
            return None
        optimizer = cohort.client_optimizer
        given = f"momentum {cohort.client_momentum:g}" if optimizer == "sgd" else f"optimizer {optimizer}"
        return Fault("scaffold", "have clients with plain SGD (training.optimizer=sgd, training.momentum=0)", given)

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client algorithm."""
        return ControlledDescent(self.weighted_by)

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        return Scaffold(
            self.server_learning_rate, cohort.num_clients, **node_counts(cohort), weighted_by_key=self.weighted_by
        )


@dataclass(frozen=True)
class ControlledDescent(ClientAlgorithm):
    """Client algorithm of SCAFFOLD.

    Attributes:
        weighted_by: Name of the metric that weights the mean of the changes.
    """

    weighted_by: str = "num-clients"

    @property
    def auxiliary(self) -> Mapping[str, str]:
        """Auxiliary vectors sent to the server: the change of the control variate."""
        return {CHANGE: self.weighted_by}

    def train(self, run: LocalRun) -> ClientResults:
        """Train with corrected gradients."""
        zeros = run.received.new_zeros(run.layout.size)
        control, client_control = run.auxiliary.get(CONTROL, zeros), run.kept(CONTROL, zeros)
        trained = run.descend(run.received, add_shift, [control - client_control])  # eq. 3
        drift = (run.received - trained.vectors) / (trained.num_steps[:, None] * run.training.learning_rate)
        drift[:, run.layout.num_trainable :] = 0
        change = drift - control  # eq. 4 without c_i, which is on both sides
        return ClientResults(trained, trained.vectors, {CONTROL: client_control + change}, {CHANGE: change})


def add_shift(weights: Tensor, gradient: Tensor, shift: Tensor) -> None:
    """Add a vector to the gradient, in place."""
    del weights
    gradient.add_(shift)


class Scaffold(MeanRule):
    """Server rule of SCAFFOLD.

    Args:
        server_learning_rate: η_g.
        num_clients: N.
        arguments: Arguments of FedAvg.
    """

    def __init__(self, server_learning_rate: float, num_clients: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.server_learning_rate = server_learning_rate
        self.num_clients = num_clients
        self.control: FloatArray | None = None

    def auxiliary(self) -> Mapping[str, FloatArray]:
        """Return c; empty before the first replies, when it is 0."""
        return {} if self.control is None else {CONTROL: self.control}

    def step(self, means: RoundMeans) -> DoubleArray:
        """Update c, and return the new model (eq. 5)."""
        self.control = with_share(self.control, means, CHANGE, self.num_clients).astype("float32")
        return means.received + self.server_learning_rate * (means.model - means.received)
