"""Personal models: Ditto, pFedMe and fine-tuning.

Ditto: beside the global model each client trains one of its own, pulled towards the global one.

Client i first trains the global model as under FedAvg, then its own v_i with the gradient of
F_i(v) + (λ/2)‖v − x‖², x being the received model (Li, Hu, Beirami, Smith: Ditto: Fair and robust federated learning
through personalization, ICML 2021, arXiv:2012.04221, Algorithm 1 and eq. 2). v_i begins at the first received model and
is what the client is scored with; the global model is FedAvg's.

Deviation: v_i takes as many steps as the global model, on batches drawn after its; the paper leaves both free.

pFedMe: clients train models of their own near the global one, which follows them.

With w ← x the received model, R times (T. Dinh, Tran, Nguyen: Personalized federated learning with Moreau envelopes,
NeurIPS 2020, arXiv:2006.08848, Algorithm 1):

    θ ≈ argmin F_i(θ) + (λ/2)‖θ − w‖²                                        eq. 7
    w ← w − η_l λ (w − θ)                                                     eq. 8

The w are averaged as by FedAvg, θ stays and is what the client is scored with; clients that never trained have the
global model. Deviation: θ takes the study's local steps from w, where the paper takes K steps on one batch. The
server's β is that of a server rule of its own (`fedavgm+pfedme`).

FedAvg with fine-tuning: what a client uses is the global model after some training on its own rows.

Training is FedAvg's. A client that is scored first descends from the global model for `tuning_epochs`, and throws the
result away afterwards (Cheng, Chadha, Duchi: Fine-tuning is fine in federated learning, 2021, arXiv:2108.07313,
section 3, FTFA).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientResults, Clients, LocalRun
from fedscout.engine.messages.calls import Cohort
from fedscout.strategies.methods.averaging import FedAvgSpec, MeanSpec, pull_towards
from fedscout.strategies.specification import IntegerRange, RealRange, SearchRange, StrategySpec

if TYPE_CHECKING:
    from torch import Tensor


OWN = "own-model"


class DittoSpec(MeanSpec):
    """Ditto: FedAvg, and a model of each client's own that is pulled towards the global one."""

    paper: ClassVar[str] = "Li et al. 2021, arXiv:2012.04221"

    kind: Literal["ditto"] = "ditto"
    personal_pull: Annotated[
        float,
        Field(ge=0, description="λ, weight of the pull (λ/2)‖v − x‖² on a client's own model; 0 is local training"),
        SearchRange(RealRange(1e-2, 10.0, log=True)),
    ] = 0.1

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client's half."""
        return TwoModels(self.personal_pull)


@dataclass(frozen=True)
class OwnModels(ClientAlgorithm):
    """Scores each client with a whole model that it keeps."""

    personal: ClassVar[bool] = True

    def scored(self, clients: Clients) -> Tensor:
        """Return each client's own model, the global one where it has none yet."""
        return clients.kept(OWN, clients.received)


@dataclass(frozen=True)
class TwoModels(OwnModels):
    """The client's half.

    Attributes:
        pull: λ.
    """

    pull: float

    def train(self, run: LocalRun) -> ClientResults:
        """Train the global model, then the client's own."""
        trained = run.descend(run.received)
        own = run.descend(run.kept(OWN, run.received), partial(pull_towards, self.pull), [run.received])
        return ClientResults(trained, trained.vectors, {OWN: own.vectors})


class PFedMeSpec(MeanSpec):
    """pFedMe: each client's own model lies near the global one, which moves towards them."""

    paper: ClassVar[str] = "T. Dinh et al. 2020, arXiv:2006.08848"

    kind: Literal["pfedme"] = "pfedme"
    personal_pull: Annotated[
        float,
        Field(gt=0, description="λ, weight of the pull (λ/2)‖θ − w‖² on a client's own model"),
        SearchRange(RealRange(0.1, 10.0, log=True)),
    ] = 1.0
    local_rounds: Annotated[
        int, Field(ge=1, le=100, description="R, how often θ and w take turns"), SearchRange(IntegerRange(1, 5))
    ] = 2

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client's half."""
        return MoreauEnvelope(self.personal_pull, self.local_rounds)


@dataclass(frozen=True)
class MoreauEnvelope(OwnModels):
    """The client's half.

    Attributes:
        pull: λ.
        local_rounds: R.
    """

    pull: float
    local_rounds: int

    def train(self, run: LocalRun) -> ClientResults:
        """Let θ and w take turns."""
        shared, step = run.received.repeat(len(run.states), 1), run.training.learning_rate * self.pull
        for _ in range(self.local_rounds):
            own = run.descend(shared, partial(pull_towards, self.pull), [shared])  # eq. 7
            shared = shared.lerp(own.vectors, step)  # eq. 8
        return ClientResults(own, shared, {OWN: own.vectors})


class FineTuningSpec(MeanSpec):
    """FedAvg with fine-tuning: each client trains the global model on its own rows before it uses it."""

    paper: ClassVar[str] = "Cheng et al. 2021, arXiv:2108.07313"

    kind: Literal["fine_tuning"] = "fine_tuning"
    tuning_epochs: Annotated[
        int,
        Field(ge=0, le=1000, description="passes over a client's data ahead of its use of the model; 0 is FedAvg"),
        SearchRange(IntegerRange(1, 10)),
    ] = 1

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client's half."""
        return FineTuned(self.tuning_epochs)

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification: without tuning it is FedAvg."""
        if self.tuning_epochs == 0:
            return FedAvgSpec(sample_scaling=self.sample_scaling)
        return super().equivalent(cohort)


@dataclass(frozen=True)
class FineTuned(ClientAlgorithm):
    """Trains as FedAvg's client, and tunes ahead of scoring.

    Attributes:
        epochs: Of tuning.
    """

    epochs: int
    tunes: ClassVar[bool] = True

    def tuned(self, run: LocalRun) -> Tensor:
        """Return the global model after some training."""
        if self.epochs == 0:
            return run.received.repeat(len(run.states), 1)
        return run.descend(run.received, epochs=self.epochs).vectors
