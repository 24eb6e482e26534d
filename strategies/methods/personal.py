"""Personal models, layers and batch normalisation, which stay on the clients.

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

`PersonalParameters` is the common client algorithm: some parameters are trained and scored on the client and
never averaged; subclasses define which. Clients send the received values in their place, so
the global model keeps the initial ones, which a client uses until it has trained.

**FedPer.** Base and personal layers are trained together; the base is averaged as by FedAvg, the last
`personal_layers` layers with parameters stay (Arivazhagan, Aggarwal, Singh, Choudhary: Federated learning
with personalization layers, 2019, arXiv:1912.00818, Algorithms 1 and 2, K_P).

**FedRep.** In every round a client first trains its head with the received body, then the body with the
trained head. Bodies are averaged as by FedAvg, heads stay (Collins, Hassani, Mokhtari, Shakkottai: Exploiting
shared representations for personalized federated learning, ICML 2021, arXiv:2102.07078, Algorithm 1). The
body is trained for the study's epochs, the head for `head_epochs`, since the paper leaves both numbers of
steps open. Batch-normalisation statistics of the body are updated in both phases.

**FedBABU.** The last layer keeps its initial, random values during the federated rounds, and each client
fine-tunes the whole model on its own rows before use (Oh, Kim, Yun: FedBABU: Toward enhanced representation
for federated image classification, ICLR 2022, arXiv:2106.06042, Algorithm 1 and section 5). The fine-tuned
model is discarded.

**FedRoD.** The global model is trained with the balanced softmax, logits + log n_c in the loss, n_c being the
client's rows of class c. On its representation each client trains a second, personal head, whose logits are
added to those of the first without back-propagating into it (Chen, Chao: On bridging generic and personalized
federated learning for image classification, ICLR 2022, arXiv:2107.00778, eq. 6 and 8, with linear heads). A
client is scored with the sum of both. The sum of two linear heads is linear, so the difference of a client's
head from the global one is stored. Deviation: the second head is trained after the global model, on later
batches, not within the same steps.

**Local training alone** averages nothing and is the baseline that shows whether clients benefit from each
other. Each client continues its own model whenever it is sampled and is scored with it; a client that was
never sampled is scored with the initial model.

**FedBN.** Each client keeps the scale, shift and statistics of its batch-normalisation layers between rounds;
all other parameters are averaged as by FedAvg (Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated learning on
non-IID features via local batch normalization, ICLR 2021, arXiv:2102.07623, Algorithm 1). A client is trained
and scored with its own layers. Integer batch counters are in no parameter vector,
so batch normalisation with a cumulative average restarts in every round.

**MFedBN** is FedBN with a server step size: with w all parameters except batch normalisation and p_k a
client's weight, w ← w + η Σ p_k (w_k − w); η = 1 is FedBN (Li et al. 2021, arXiv:2102.07623; reconstructed
from a textual description, which studies η from 1e-5 to 0.1). Clients either continue with their own batch
normalisation or start every round with the global, initial one; they are scored with the last one they
trained.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from flwr.serverapp import strategy as flower

from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientResults, Clients, Descent, LocalRun
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.models.layout import MASKED_LOGIT, Adjusted, ParameterLayout
from fedscout.strategies.aggregation import rules
from fedscout.strategies.methods.averaging import MeanSpec, pull_towards
from fedscout.strategies.specification import BATCH_NORMS, IntegerRange, RealRange, StrategySpec, parameter

if TYPE_CHECKING:
    from torch import Tensor


OWN_MODEL = "own-model"


@dataclass(frozen=True)
class OwnModels(ClientAlgorithm):
    """Base class of client algorithms that score each client with a personal model."""

    personal: ClassVar[bool] = True

    def scored(self, clients: Clients) -> Tensor:
        """Return each client's personal model, or the global one if it has none yet."""
        return clients.kept(OWN_MODEL, clients.received)


@dataclass(frozen=True)
class TwoModels(OwnModels):
    """Client algorithm of Ditto.

    Attributes:
        personal_pull: λ.
    """

    personal_pull: float

    def train(self, run: LocalRun) -> ClientResults:
        """Train the global model, then the personal one."""
        trained = run.descend(run.received)
        personal = run.descend(
            run.kept(OWN_MODEL, run.received), partial(pull_towards, self.personal_pull), [run.received]
        )
        return ClientResults(trained, trained.vectors, {OWN_MODEL: personal.vectors})


class DittoSpec(MeanSpec):
    """Ditto: FedAvg, and a personal model per client that is regularised towards the global one."""

    paper: ClassVar[str] = "Li et al. 2021, arXiv:2012.04221"

    kind: Literal["ditto"] = "ditto"
    algorithm = TwoModels
    personal_pull: float = parameter(
        0.1,
        "λ, weight of the pull (λ/2)‖v − x‖² on a client's own model; 0 is local training",
        RealRange(1e-2, 10.0, log=True),
        ge=0,
    )


@dataclass(frozen=True)
class MoreauEnvelope(OwnModels):
    """Client algorithm of pFedMe.

    Attributes:
        personal_pull: λ.
        local_rounds: R.
    """

    personal_pull: float
    local_rounds: int

    def train(self, run: LocalRun) -> ClientResults:
        """Alternate between updates of θ and w."""
        shared, step = run.received.repeat(len(run.states), 1), run.training.learning_rate * self.personal_pull
        for _ in range(self.local_rounds):
            personal = run.descend(shared, partial(pull_towards, self.personal_pull), [shared])  # eq. 7
            shared = shared.lerp(personal.vectors, step)  # eq. 8
        return ClientResults(personal, shared, {OWN_MODEL: personal.vectors})


class PFedMeSpec(MeanSpec):
    """pFedMe: personal models near the global one, which moves towards them."""

    paper: ClassVar[str] = "T. Dinh et al. 2020, arXiv:2006.08848"

    kind: Literal["pfedme"] = "pfedme"
    algorithm = MoreauEnvelope
    personal_pull: float = parameter(
        1.0, "λ, weight of the pull (λ/2)‖θ − w‖² on a client's own model", RealRange(0.1, 10.0, log=True), gt=0
    )
    local_rounds: int = parameter(2, "R, number of alternations between θ and w", IntegerRange(1, 5), ge=1, le=100)


@dataclass(frozen=True)
class FineTuned(ClientAlgorithm):
    """FedAvg's client algorithm with fine-tuning before scoring.

    Attributes:
        tuning_epochs: Epochs of fine-tuning.
    """

    tuning_epochs: int
    tunes: ClassVar[bool] = True

    def tuned(self, run: LocalRun) -> Tensor:
        """Return the fine-tuned global model of each client."""
        if self.tuning_epochs == 0:
            return run.received.repeat(len(run.states), 1)
        return run.descend(run.received, epochs=self.tuning_epochs).vectors


class FineTuningSpec(MeanSpec):
    """FedAvg with fine-tuning: each client trains the global model on its own rows before use."""

    paper: ClassVar[str] = "Cheng et al. 2021, arXiv:2108.07313"

    fedavg_at: ClassVar[Mapping[str, float]] = {"tuning_epochs": 0}
    kind: Literal["fine_tuning"] = "fine_tuning"
    algorithm = FineTuned
    tuning_epochs: int = parameter(
        1,
        "number of fine-tuning epochs before a client uses the model; 0 is FedAvg",
        IntegerRange(1, 10),
        ge=0,
        le=1000,
    )


OWN = "own-parameters"


@dataclass(frozen=True)
class PersonalParameters(ClientAlgorithm):
    """Base class of client algorithms that keep some elements of the model on the client."""

    personal: ClassVar[bool] = True

    @abstractmethod
    def private_mask(self, layout: ParameterLayout) -> npt.NDArray[np.bool_]:
        """Return a mask of the elements that stay on the client, shape `(size,)`."""

    def train(self, run: LocalRun) -> ClientResults:
        """Train with the client's own parameters, and send the received ones in their place."""
        return self.finished(run, run.descend(self.scored(run)))

    def finished(self, run: LocalRun, trained: Descent) -> ClientResults:
        """Return the shared and the personal part of trained models."""
        personal = self._own(run)
        shared = trained.vectors.clone()
        shared[:, personal] = run.received[personal]
        return ClientResults(trained, shared, {OWN: trained.vectors[:, personal]})

    def scored(self, clients: Clients) -> Tensor:
        """Return the global model with each client's own parameters."""
        personal = self._own(clients)
        models = clients.received.repeat(len(clients.states), 1)
        models[:, personal] = clients.kept(OWN, clients.received[personal])
        return models

    def _own(self, clients: Clients) -> Tensor:
        """Return the indices of the personal elements."""
        layout = clients.layout
        return _positions(self, layout, tuple(slot.layer for slot in layout.slots))


@lru_cache(maxsize=8)
def _positions(algorithm: PersonalParameters, layout: ParameterLayout, layers: tuple[str, ...]) -> Tensor:
    """Return the indices of personal elements, cached; `layers` is in the key as layouts compare equal without it."""
    import torch

    del layers
    return torch.from_numpy(np.flatnonzero(algorithm.private_mask(layout)))


@dataclass(frozen=True)
class OwnLastLayers(PersonalParameters):
    """Client algorithm with personal last layers.

    Attributes:
        personal_layers: Number of personal layers.
    """

    personal_layers: int

    def private_mask(self, layout: ParameterLayout) -> npt.NDArray[np.bool_]:
        """Return the mask of their parameters and buffers."""
        return layout.of_last_layers(self.personal_layers)


class FedPerSpec(MeanSpec):
    """FedPer: FedAvg of all but the last layers, which stay on the clients."""

    paper: ClassVar[str] = "Arivazhagan et al. 2019, arXiv:1912.00818"

    kind: Literal["fedper"] = "fedper"
    algorithm = OwnLastLayers
    personal_layers: int = parameter(
        1, "K_P, number of last layers with parameters that stay personal", IntegerRange(1, 3), ge=1, le=1000
    )


@dataclass(frozen=True)
class HeadThenBody(OwnLastLayers):
    """Client algorithm of FedRep.

    Attributes:
        head_epochs: Epochs of head training.
    """

    head_epochs: int

    def train(self, run: LocalRun) -> ClientResults:
        """Train the head, then the body."""
        head = self.private_mask(run.layout)
        with_head = run.descend(self.scored(run), trainable=head, epochs=self.head_epochs)
        return self.finished(run, run.descend(with_head.vectors, trainable=~head))


class FedRepSpec(MeanSpec):
    """FedRep: as FedPer, with head and body trained one after the other."""

    paper: ClassVar[str] = "Collins et al. 2021, arXiv:2102.07078"

    kind: Literal["fedrep"] = "fedrep"
    algorithm = HeadThenBody
    personal_layers: int = parameter(
        1, "number of last layers with parameters that form the head", IntegerRange(1, 3), ge=1, le=1000
    )
    head_epochs: int = parameter(
        5, "number of epochs that train the head, before the body's", IntegerRange(1, 10), ge=1, le=1000
    )


@dataclass(frozen=True)
class FrozenHead(FineTuned):
    """Client algorithm of FedBABU: trains all but the last layer, fine-tunes everything."""

    def train(self, run: LocalRun) -> ClientResults:
        """Train with the head frozen."""
        trained = run.descend(run.received, trainable=~run.layout.of_last_layers(1))
        return ClientResults(trained, trained.vectors)


class FedBABUSpec(MeanSpec):
    """FedBABU: FedAvg of the body alone; each client fine-tunes body and head before use."""

    paper: ClassVar[str] = "Oh et al. 2022, arXiv:2106.06042"

    kind: Literal["fedbabu"] = "fedbabu"
    algorithm = FrozenHead
    tuning_epochs: int = parameter(
        5, "number of fine-tuning epochs before a client uses the model", IntegerRange(1, 10), ge=0, le=1000
    )


HEAD = "personal-head"


@dataclass(frozen=True)
class TwoHeads(ClientAlgorithm):
    """Client algorithm of FedRoD."""

    personal: ClassVar[bool] = True

    def train(self, run: LocalRun) -> ClientResults:
        """Train the global model on the balanced loss, then the personal head on the plain one."""
        prior = run.label_counts().log().clamp(min=MASKED_LOGIT)
        trained = run.descend(run.received, adjusted=Adjusted(shift=prior))  # eq. 6
        zeros = run.received.new_zeros(run.layout.size)
        start = trained.vectors + run.kept(HEAD, zeros)
        personalised = run.descend(start, trainable=run.layout.of_last_layers(1))
        difference = personalised.vectors - trained.vectors
        difference[:, ~run.layout.of_last_layers(1)] = 0  # statistics of batch normalisation
        return ClientResults(trained, trained.vectors, {HEAD: difference})

    def scored(self, clients: Clients) -> Tensor:
        """Return the global model with each client's personal head added to the global one."""
        return clients.received + clients.kept(HEAD, clients.received.new_zeros(clients.layout.size))


class FedRoDSpec(MeanSpec):
    """FedRoD: FedAvg with a class-balanced loss, and a second, personal head per client."""

    paper: ClassVar[str] = "Chen and Chao 2022, arXiv:2107.00778"
    requires = ("classes",)

    kind: Literal["fedrod"] = "fedrod"
    algorithm = TwoHeads


@dataclass(frozen=True)
class OwnModel(PersonalParameters):
    """Client algorithm that keeps the whole model on the client."""

    def private_mask(self, layout: ParameterLayout) -> npt.NDArray[np.bool_]:
        """Return the mask of all elements."""
        return layout.elements(lambda _: True)


class LocalOnlySpec(MeanSpec):
    """Local training alone: every client keeps its own model, nothing is averaged."""

    paper: ClassVar[str] = "no federation: the usual control"
    unpaired: ClassVar[str] = "nothing is shared, so a server rule has nothing to do"

    kind: Literal["local"] = "local"
    algorithm = OwnModel


@dataclass(frozen=True)
class OwnBatchNorm(PersonalParameters):
    """Client algorithm with local batch normalisation."""

    def private_mask(self, layout: ParameterLayout) -> npt.NDArray[np.bool_]:
        """Return the elements of batch-normalisation parameters and statistics."""
        return layout.of_kind(*BATCH_NORMS)


class FedBNSpec(MeanSpec):
    """FedBN: FedAvg of all parameters except batch normalisation, which stays on the clients."""

    paper: ClassVar[str] = "Li et al. 2021, arXiv:2102.07623"
    requires = ("batch normalisation",)

    kind: Literal["fedbn"] = "fedbn"
    algorithm = OwnBatchNorm


class MFedBNSpec(MeanSpec):
    """MFedBN: FedBN with a server step size."""

    paper: ClassVar[str] = "after Li et al. 2021, arXiv:2102.07623"
    requires = ("batch normalisation",)
    unpaired: ClassVar[str] = "it already combines FedBN's clients with a server rule; pair others with fedbn"

    kind: Literal["mfedbn"] = "mfedbn"
    server_learning_rate: float = parameter(
        0.5, "η, the server's step along the mean change; 1 is FedBN", RealRange(1e-3, 1.0, log=True), gt=0
    )
    batch_norm: Literal["own", "overwritten"] = parameter(
        "own", "what a client's round begins with: its own, or the global one"
    )

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client algorithm."""
        return OwnBatchNorm() if self.batch_norm == "own" else OverwrittenBatchNorm()

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification: full steps with local batch normalisation are FedBN."""
        if self.server_learning_rate == 1 and self.batch_norm == "own":
            return FedBNSpec(sample_scaling=self.sample_scaling)
        return super().equivalent(cohort)

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        step = self.server_learning_rate
        return self._rule(cohort, rules.FedAvgM, server_learning_rate=step, server_momentum=0.0)


@dataclass(frozen=True)
class OverwrittenBatchNorm(OwnBatchNorm):
    """Client algorithm that starts every round with the global batch normalisation."""

    def train(self, run: LocalRun) -> ClientResults:
        """Train the received model, its batch normalisation included."""
        return self.finished(run, run.descend(run.received))
