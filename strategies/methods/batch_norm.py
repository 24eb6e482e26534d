"""Local batch normalisation: FedBN and MFedBN.

FedBN: batch normalisation stays with the clients.

Each client keeps scale, shift and statistics of its batch normalisation between rounds; everything else is averaged as
by FedAvg (Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated learning on non-IID features via local batch normalization,
ICLR 2021, arXiv:2102.07623, Algorithm 1). A client is trained and scored with its own; see `personal_layers.py`.

Integer counts of batches are in no vector, so batch normalisation by cumulative average begins anew in every round.

MFedBN: FedBN whose server takes a step of its own length along the mean change of the clients.

With w everything but batch normalisation and p_k a client's weight, w ← w + η Σ p_k (w_k − w); η = 1 is FedBN (Li et
al. 2021, arXiv:2102.07623; reconstructed from a description in words, which studies η from 1e-5 to 0.1). Batch
normalisation stays with the clients, which either go on with their own, or begin every round with the global, initial
one; they are scored with what they last trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from flwr.serverapp import strategy as flower
from pydantic import Field

from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientResults, LocalRun
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.models.layout import ParameterLayout
from fedscout.strategies import aggregation as quick
from fedscout.strategies.methods.averaging import MeanSpec
from fedscout.strategies.methods.personal_layers import PersonalParameters
from fedscout.strategies.specification import RealRange, SearchRange, StrategySpec, missing_layers, node_counts

BATCH_NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm")


class FedBNSpec(MeanSpec):
    """FedBN: FedAvg of everything but batch normalisation, which stays with the clients."""

    paper: ClassVar[str] = "Li et al. 2021, arXiv:2102.07623"
    reads_layers: ClassVar[bool] = True

    kind: Literal["fedbn"] = "fedbn"

    @classmethod
    def unavailable(cls, cohort: Cohort) -> str | None:
        """Return why a model without batch normalisation can't be trained so."""
        return without_batch_norm("fedbn", cohort)

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client's half."""
        return OwnBatchNorm()


def without_batch_norm(kind: str, cohort: Cohort) -> str | None:
    """Return that a cohort's model has no batch normalisation; None if it has some, or is not known."""
    return missing_layers(cohort, kind, "batch normalisation", *BATCH_NORMS)


@dataclass(frozen=True)
class OwnBatchNorm(PersonalParameters):
    """Keeps batch normalisation at home."""

    def at_home(self, layout: ParameterLayout) -> npt.NDArray[np.bool_]:
        """Return its parameters and statistics."""
        return layout.of_kind(*BATCH_NORMS)


class MFedBNSpec(MeanSpec):
    """MFedBN: FedBN with a server step of its own length."""

    paper: ClassVar[str] = "after Li et al. 2021, arXiv:2102.07623"
    reads_layers: ClassVar[bool] = True
    unpaired: ClassVar[str] = "it is FedBN's clients under a server rule already; others go with fedbn"

    kind: Literal["mfedbn"] = "mfedbn"
    server_learning_rate: Annotated[
        float,
        Field(gt=0, description="η, the server's step along the mean change; 1 is FedBN"),
        SearchRange(RealRange(1e-3, 1.0, log=True), wide=RealRange(1e-5, 1.0, log=True)),
    ] = 0.5
    batch_norm: Annotated[
        Literal["own", "overwritten"],
        Field(description="what a client's round begins with: its own, or the global one"),
    ] = "own"

    @classmethod
    def unavailable(cls, cohort: Cohort) -> str | None:
        """Return why a model without batch normalisation can't be trained so."""
        return without_batch_norm("mfedbn", cohort)

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client's half."""
        return OwnBatchNorm() if self.batch_norm == "own" else OverwrittenBatchNorm()

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification: whole steps from clients' own batch normalisation are FedBN's."""
        if self.server_learning_rate == 1 and self.batch_norm == "own":
            return FedBNSpec(sample_scaling=self.sample_scaling)
        return super().equivalent(cohort)

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        return quick.FedAvgM(
            **node_counts(cohort),
            weighted_by_key=self.weighted_by,
            server_learning_rate=self.server_learning_rate,
            server_momentum=0.0,
        )


@dataclass(frozen=True)
class OverwrittenBatchNorm(OwnBatchNorm):
    """Begins every round with the global batch normalisation."""

    def train(self, run: LocalRun) -> ClientResults:
        """Descend from the received model as it is."""
        return self.finished(run, run.descend(run.received))
