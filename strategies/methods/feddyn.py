"""FedDyn: dynamic regularisation of the clients' losses towards a common minimum.

With x the received model and g_i a vector stored on client i, 0 at first (Acar, Zhao, Matas, Mattina,
Whatmough, Saligrama: Federated learning based on dynamic regularization, ICLR 2021, arXiv:2111.04263,
Algorithm 1; m clients in all, P of them in a round):

    client:  y_i ≈ argmin F_i(y) − ⟨g_i, y⟩ + (α/2)‖y − x‖²;  g_i ← g_i − α (y_i − x)
    server:  h ← h − α/m Σ_P (y_i − x);  x ← 1/|P| Σ_P y_i − h/α

The server stores u = −h/α, so u ← u + |P|/m · mean(y_i − x) and x ← mean y_i + u. Clients send the changes as
auxiliary vectors, without buffers: batch-normalisation statistics are averaged without u.
`sample_scaling="num-examples"` weights both means by rows, for the row-weighted objective.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from flwr.serverapp import strategy as flower
from pydantic import Field

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientResults, LocalRun
from fedscout.engine.messages.calls import Cohort
from fedscout.strategies.aggregation.rules import DoubleArray, MeanRule, RoundMeans, with_share
from fedscout.strategies.methods.averaging import MeanSpec, SampleScaling
from fedscout.strategies.specification import RealRange, SearchRange, node_counts

if TYPE_CHECKING:
    from torch import Tensor

GRADIENT, CHANGE = "local-gradient", "model-change"


class FedDynSpec(MeanSpec):
    """FedDyn: FedAvg with dynamic regularisation of the clients' losses."""

    paper: ClassVar[str] = "Acar et al. 2021, arXiv:2111.04263"

    kind: Literal["feddyn"] = "feddyn"
    sample_scaling: Annotated[
        SampleScaling, Field(description="a client's weight in both means: equal, or by its number of examples")
    ] = "uniform"
    dynamic_alpha: Annotated[
        float,
        Field(gt=0, description="α, weight of the dynamic regulariser"),
        SearchRange(RealRange(1e-3, 1.0, log=True)),
    ] = 0.1

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client algorithm."""
        return RegularisedDescent(self.dynamic_alpha, self.weighted_by)

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        return FedDyn(cohort.num_clients, **node_counts(cohort), weighted_by_key=self.weighted_by)


@dataclass(frozen=True)
class RegularisedDescent(ClientAlgorithm):
    """Client algorithm of FedDyn.

    Attributes:
        alpha: α.
        weighted_by: Name of the metric that weights the mean of the changes.
    """

    auxiliary_is_determined: ClassVar[bool] = True

    alpha: float
    weighted_by: str = "num-clients"

    @property
    def auxiliary(self) -> Mapping[str, str]:
        """Auxiliary vectors sent to the server: the change of the trainable parameters."""
        return {CHANGE: self.weighted_by}

    def train(self, run: LocalRun) -> ClientResults:
        """Train on the regularised loss."""
        stored = run.kept(GRADIENT, run.received.new_zeros(run.layout.size))
        trained = run.descend(run.received, partial(regularise, self.alpha), [run.received, stored])
        change = trained.vectors - run.received
        change[:, run.layout.num_trainable :] = 0
        return ClientResults(trained, trained.vectors, {GRADIENT: stored - self.alpha * change}, {CHANGE: change})


def regularise(alpha: float, weights: Tensor, gradient: Tensor, received: Tensor, own: Tensor) -> None:
    """Add the gradient of −⟨g_i, y⟩ + (α/2)‖y − x‖², in place."""
    gradient.add_(weights - received, alpha=alpha).sub_(own)


class FedDyn(MeanRule):
    """Server rule of FedDyn.

    Args:
        num_clients: m.
        arguments: Arguments of FedAvg.
    """

    def __init__(self, num_clients: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.num_clients = num_clients
        self.lead: FloatArray | None = None

    def step(self, means: RoundMeans) -> DoubleArray:
        """Update u, and return the mean plus u."""
        lead = with_share(self.lead, means, CHANGE, self.num_clients)
        self.lead = lead.astype("float32")
        return means.model + lead
