"""FedSAM: clients use sharpness-aware minimization to find flat minima.

Each local step uses the gradient at w + ρ g/‖g‖, where a batch's loss near w is largest, g being its gradient
at w (Qu, Li, Duan, Liu, Tang, Lu: Generalized federated learning via sharpness aware minimization, ICML 2022,
arXiv:2206.02618, Algorithm 1). Batch-normalisation statistics are updated twice per batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientResults, LocalRun
from fedscout.strategies.methods.averaging import MeanSpec
from fedscout.strategies.specification import RealRange, SearchRange

if TYPE_CHECKING:
    from torch import Tensor


class FedSAMSpec(MeanSpec):
    """FedSAM: FedAvg with sharpness-aware minimization on the clients."""

    paper: ClassVar[str] = "Qu et al. 2022, arXiv:2206.02618"

    fedavg_at: ClassVar[Mapping[str, float]] = {"sharpness_radius": 0}
    kind: Literal["fedsam"] = "fedsam"
    sharpness_radius: Annotated[
        float,
        Field(ge=0, description="ρ, radius of the perturbation; 0 is FedAvg"),
        SearchRange(RealRange(1e-3, 0.5, log=True)),
    ] = 0.05

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client algorithm."""
        return SharpnessAware(self.sharpness_radius)


@dataclass(frozen=True)
class SharpnessAware(ClientAlgorithm):
    """Client algorithm of FedSAM.

    Attributes:
        radius: ρ.
    """

    radius: float
    one_by_one: ClassVar[bool] = True

    def train(self, run: LocalRun) -> ClientResults:
        """Train with the gradients at the perturbed weights."""
        trained = run.descend(run.received, ahead=self._uphill)
        return ClientResults(trained, trained.vectors)

    def _uphill(self, weights: Tensor, gradient: Tensor) -> Tensor:
        import torch

        length = gradient.norm()
        return weights + gradient * torch.where(length > 0, self.radius / length, 0)  # on a GPU nobody waits for it
