"""Local batch normalisation: FedBN and MFedBN.

**FedBN.** Each client keeps the scale, shift and statistics of its batch-normalisation layers between rounds;
all other parameters are averaged as by FedAvg (Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated learning on
non-IID features via local batch normalization, ICLR 2021, arXiv:2102.07623, Algorithm 1). A client is trained
and scored with its own layers; see `personal_layers.py`. Integer batch counters are in no parameter vector,
so batch normalisation with a cumulative average restarts in every round.

**MFedBN** is FedBN with a server step size: with w all parameters except batch normalisation and p_k a
client's weight, w ← w + η Σ p_k (w_k − w); η = 1 is FedBN (Li et al. 2021, arXiv:2102.07623; reconstructed
from a textual description, which studies η from 1e-5 to 0.1). Clients either continue with their own batch
normalisation or start every round with the global, initial one; they are scored with the last one they
trained.
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
    """FedBN: FedAvg of all parameters except batch normalisation, which stays on the clients."""

    paper: ClassVar[str] = "Li et al. 2021, arXiv:2102.07623"
    reads_layers: ClassVar[bool] = True

    kind: Literal["fedbn"] = "fedbn"

    @classmethod
    def unavailable(cls, cohort: Cohort) -> str | None:
        """Return the fault of a model without batch normalisation."""
        return without_batch_norm("fedbn", cohort)

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client algorithm."""
        return OwnBatchNorm()


def without_batch_norm(kind: str, cohort: Cohort) -> str | None:
    """Return the fault that a cohort's model has no batch normalisation; None if it has some or is unknown."""
    return missing_layers(cohort, kind, "batch normalisation", *BATCH_NORMS)


@dataclass(frozen=True)
class OwnBatchNorm(PersonalParameters):
    """Client algorithm with local batch normalisation."""

    def private_mask(self, layout: ParameterLayout) -> npt.NDArray[np.bool_]:
        """Return the elements of batch-normalisation parameters and statistics."""
        return layout.of_kind(*BATCH_NORMS)


class MFedBNSpec(MeanSpec):
    """MFedBN: FedBN with a server step size."""

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
        """Return the fault of a model without batch normalisation."""
        return without_batch_norm("mfedbn", cohort)

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client algorithm."""
        return OwnBatchNorm() if self.batch_norm == "own" else OverwrittenBatchNorm()

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification: full steps with local batch normalisation are FedBN."""
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
    """Client algorithm that starts every round with the global batch normalisation."""

    def train(self, run: LocalRun) -> ClientResults:
        """Train the received model, its batch normalisation included."""
        return self.finished(run, run.descend(run.received))
