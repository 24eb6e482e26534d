"""MOON: model-contrastive learning, towards the global and away from the previous local representation.

With z, z_glob and z_prev the representations of a row (the input of the last linear layer) under the trained
model, the received model and the client's model of its last participation, a client minimises (Li, He, Song:
Model-contrastive federated learning, CVPR 2021, arXiv:2103.16257, eq. 3 and 4)

    F_i(w) − μ log( exp(sim(z, z_glob)/τ) / (exp(sim(z, z_glob)/τ) + exp(sim(z, z_prev)/τ)) )

sim is the cosine similarity. In a client's first participation z_prev is z_glob, and the term has no
gradient. The two other models are in evaluation mode. Deviation: the paper adds a projection head of two
layers before the last one; here the study's model is unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientResults, ContrastiveLoss, LocalRun
from fedscout.engine.messages.calls import Cohort
from fedscout.strategies.methods.averaging import MeanSpec
from fedscout.strategies.specification import RealRange, SearchRange, missing_layers

if TYPE_CHECKING:
    from torch import Tensor

PREVIOUS = "previous-model"


class MoonSpec(MeanSpec):
    """MOON: FedAvg with a contrastive loss that keeps representations near the global model's."""

    paper: ClassVar[str] = "Li et al. 2021, arXiv:2103.16257"
    reads_layers: ClassVar[bool] = True

    fedavg_at: ClassVar[Mapping[str, float]] = {"contrast": 0}
    kind: Literal["moon"] = "moon"
    contrast: Annotated[
        float,
        Field(ge=0, description="μ, weight of the contrastive term; 0 is FedAvg"),
        SearchRange(RealRange(0.1, 10.0, log=True)),
    ] = 1.0
    temperature: Annotated[float, Field(gt=0, description="τ, of the contrastive term")] = 0.5

    @classmethod
    def unavailable(cls, cohort: Cohort) -> str | None:
        """Return the fault of a model without a linear layer."""
        return missing_layers(cohort, "moon", "a linear layer", "Linear")

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client algorithm."""
        return ContrastiveDescent(self.contrast, self.temperature)


@dataclass(frozen=True)
class ContrastiveDescent(ClientAlgorithm):
    """Client algorithm of MOON.

    Attributes:
        contrast: μ.
        temperature: τ.
    """

    contrast: float
    temperature: float

    def train(self, run: LocalRun) -> ClientResults:
        """Train on both losses, and store the resulting model."""
        previous = run.kept(PREVIOUS, run.received)
        trained = run.descend(run.received, compared=ContrastiveLoss(self.measure, [run.received, previous]))
        return ClientResults(trained, trained.vectors, {PREVIOUS: trained.vectors})

    def measure(self, own: Tensor, received: Tensor, previous: Tensor) -> Tensor:
        """Return μ times the contrastive loss of each row (eq. 3 and 4)."""
        from torch.nn.functional import cosine_similarity

        near, far = (cosine_similarity(own, other, dim=2) for other in (received, previous))
        return self.contrast * ((far - near) / self.temperature).exp().log1p()
