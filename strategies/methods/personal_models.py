"""Personal models: Ditto, pFedMe and fine-tuning.

**Ditto.** Each client trains the global model as under FedAvg, then a personal model v_i with the gradient of
F_i(v) + (λ/2)‖v − x‖², x being the received model (Li, Hu, Beirami, Smith: Ditto: Fair and robust federated
learning through personalization, ICML 2021, arXiv:2012.04221, Algorithm 1 and eq. 2). v_i starts from the
first received model; the client is scored with it. The global model is FedAvg's. Deviation: v_i takes as many
steps as the global model, on later batches; the paper leaves both open.

**pFedMe.** With w ← x the received model, R times (T. Dinh, Tran, Nguyen: Personalized federated learning
with Moreau envelopes, NeurIPS 2020, arXiv:2006.08848, Algorithm 1):

    θ ≈ argmin F_i(θ) + (λ/2)‖θ − w‖²                                        eq. 7
    w ← w − η_l λ (w − θ)                                                     eq. 8

The w are averaged as by FedAvg. θ stays on the client, which is scored with it; clients that never trained
use the global model. Deviation: θ takes the study's local steps from w, where the paper takes K steps on one
batch. The paper's server parameter β is available as a separate server rule (`fedavgm+pfedme`).

**Fine-tuning.** Training is FedAvg's. For scoring, a client first trains the global model on its own rows for
`tuning_epochs`, and discards the result afterwards (Cheng, Chadha, Duchi: Fine-tuning is fine in federated
learning, 2021, arXiv:2108.07313, section 3, FTFA).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientResults, Clients, LocalRun
from fedscout.strategies.methods.averaging import MeanSpec, pull_towards
from fedscout.strategies.specification import IntegerRange, RealRange, SearchRange

if TYPE_CHECKING:
    from torch import Tensor


OWN = "own-model"


class DittoSpec(MeanSpec):
    """Ditto: FedAvg, and a personal model per client that is regularised towards the global one."""

    paper: ClassVar[str] = "Li et al. 2021, arXiv:2012.04221"

    kind: Literal["ditto"] = "ditto"
    personal_pull: Annotated[
        float,
        Field(ge=0, description="λ, weight of the pull (λ/2)‖v − x‖² on a client's own model; 0 is local training"),
        SearchRange(RealRange(1e-2, 10.0, log=True)),
    ] = 0.1

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client algorithm."""
        return TwoModels(self.personal_pull)


@dataclass(frozen=True)
class OwnModels(ClientAlgorithm):
    """Base class of client algorithms that score each client with a personal model."""

    personal: ClassVar[bool] = True

    def scored(self, clients: Clients) -> Tensor:
        """Return each client's personal model, or the global one if it has none yet."""
        return clients.kept(OWN, clients.received)


@dataclass(frozen=True)
class TwoModels(OwnModels):
    """Client algorithm of Ditto.

    Attributes:
        pull: λ.
    """

    pull: float

    def train(self, run: LocalRun) -> ClientResults:
        """Train the global model, then the personal one."""
        trained = run.descend(run.received)
        personal = run.descend(run.kept(OWN, run.received), partial(pull_towards, self.pull), [run.received])
        return ClientResults(trained, trained.vectors, {OWN: personal.vectors})


class PFedMeSpec(MeanSpec):
    """pFedMe: personal models near the global one, which moves towards them."""

    paper: ClassVar[str] = "T. Dinh et al. 2020, arXiv:2006.08848"

    kind: Literal["pfedme"] = "pfedme"
    personal_pull: Annotated[
        float,
        Field(gt=0, description="λ, weight of the pull (λ/2)‖θ − w‖² on a client's own model"),
        SearchRange(RealRange(0.1, 10.0, log=True)),
    ] = 1.0
    local_rounds: Annotated[
        int,
        Field(ge=1, le=100, description="R, number of alternations between θ and w"),
        SearchRange(IntegerRange(1, 5)),
    ] = 2

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client algorithm."""
        return MoreauEnvelope(self.personal_pull, self.local_rounds)


@dataclass(frozen=True)
class MoreauEnvelope(OwnModels):
    """Client algorithm of pFedMe.

    Attributes:
        pull: λ.
        local_rounds: R.
    """

    pull: float
    local_rounds: int

    def train(self, run: LocalRun) -> ClientResults:
        """Alternate between updates of θ and w."""
        shared, step = run.received.repeat(len(run.states), 1), run.training.learning_rate * self.pull
        for _ in range(self.local_rounds):
            personal = run.descend(shared, partial(pull_towards, self.pull), [shared])  # eq. 7
            shared = shared.lerp(personal.vectors, step)  # eq. 8
        return ClientResults(personal, shared, {OWN: personal.vectors})


class FineTuningSpec(MeanSpec):
    """FedAvg with fine-tuning: each client trains the global model on its own rows before use."""

    paper: ClassVar[str] = "Cheng et al. 2021, arXiv:2108.07313"

    fedavg_at: ClassVar[Mapping[str, float]] = {"tuning_epochs": 0}
    kind: Literal["fine_tuning"] = "fine_tuning"
    tuning_epochs: Annotated[
        int,
        Field(ge=0, le=1000, description="number of fine-tuning epochs before a client uses the model; 0 is FedAvg"),
        SearchRange(IntegerRange(1, 10)),
    ] = 1

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client algorithm."""
        return FineTuned(self.tuning_epochs)


@dataclass(frozen=True)
class FineTuned(ClientAlgorithm):
    """FedAvg's client algorithm with fine-tuning before scoring.

    Attributes:
        epochs: Epochs of fine-tuning.
    """

    epochs: int
    tunes: ClassVar[bool] = True

    def tuned(self, run: LocalRun) -> Tensor:
        """Return the fine-tuned global model of each client."""
        if self.epochs == 0:
            return run.received.repeat(len(run.states), 1)
        return run.descend(run.received, epochs=self.epochs).vectors
