"""MOON: representations are drawn to those of the global model, and away from those of the client's last one.

With z, z_glob and z_prev the representations of a row (what goes into the last linear layer) under the model that is
trained, the received one and the client's own of its last participation, a client minimises (Li, He, Song:
Model-contrastive federated learning, CVPR 2021, arXiv:2103.16257, eq. 3 and 4)

    F_i(w) − μ log( exp(sim(z, z_glob)/τ) / (exp(sim(z, z_glob)/τ) + exp(sim(z, z_prev)/τ)) )

sim is the cosine. In its first participation z_prev is z_glob, and the term has no gradient. The two other models are
in evaluation mode. Deviation: the paper adds a projection head of two layers before the last one; here the model stays
as the study says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientResults, ContrastiveLoss, LocalRun
from fedscout.engine.messages.calls import Cohort
from fedscout.strategies.methods.averaging import FedAvgSpec, MeanSpec
from fedscout.strategies.specification import RealRange, SearchRange, StrategySpec, missing_layers

if TYPE_CHECKING:
    from torch import Tensor

PREVIOUS = "previous-model"


class MoonSpec(MeanSpec):
    """MOON: FedAvg whose clients keep their representations near those of the global model."""

    paper: ClassVar[str] = "Li et al. 2021, arXiv:2103.16257"
    reads_layers: ClassVar[bool] = True

    kind: Literal["moon"] = "moon"
    contrast: Annotated[
        float,
        Field(ge=0, description="μ, weight of the contrastive term; 0 is FedAvg"),
        SearchRange(RealRange(0.1, 10.0, log=True)),
    ] = 1.0
    temperature: Annotated[float, Field(gt=0, description="τ, of the contrastive term")] = 0.5

    @classmethod
    def unavailable(cls, cohort: Cohort) -> str | None:
        """Return why a model without a representation can't be trained so."""
        return missing_layers(cohort, "moon", "a linear layer", "Linear")

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client's half."""
        return ContrastiveDescent(self.contrast, self.temperature)

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification: without the term it is FedAvg."""
        if self.contrast == 0:
            return FedAvgSpec(sample_scaling=self.sample_scaling)
        return super().equivalent(cohort)


@dataclass(frozen=True)
class ContrastiveDescent(ClientAlgorithm):
    """The client's half.

    Attributes:
        contrast: μ.
        temperature: τ.
    """

    contrast: float
    temperature: float

    def train(self, run: LocalRun) -> ClientResults:
        """Descend on both losses, and keep where that led."""
        previous = run.kept(PREVIOUS, run.received)
        trained = run.descend(run.received, compared=ContrastiveLoss(self.measure, [run.received, previous]))
        return ClientResults(trained, trained.vectors, {PREVIOUS: trained.vectors})

    def measure(self, own: Tensor, received: Tensor, previous: Tensor) -> Tensor:
        """Return μ times the contrastive loss of each row (eq. 3 and 4)."""
        from torch.nn.functional import cosine_similarity

        near, far = (cosine_similarity(own, other, dim=2) for other in (received, previous))
        return self.contrast * ((far - near) / self.temperature).exp().log1p()
