"""Personal layers: FedPer, FedRep, FedBABU, FedRoD, and local training alone.

`PersonalParameters` is the common client algorithm: some parameters are trained and scored on the client and
never averaged; subclasses, also FedBN's, define which. Clients send the received values in their place, so
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
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientResults, Clients, Descent, LocalRun
from fedscout.engine.models.layout import MASKED_LOGIT, Adjusted, ParameterLayout
from fedscout.strategies.methods.averaging import MeanSpec
from fedscout.strategies.methods.personal_models import FineTuned
from fedscout.strategies.specification import IntegerRange, SearchRange

if TYPE_CHECKING:
    from torch import Tensor


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


class FedPerSpec(MeanSpec):
    """FedPer: FedAvg of all but the last layers, which stay on the clients."""

    paper: ClassVar[str] = "Arivazhagan et al. 2019, arXiv:1912.00818"

    kind: Literal["fedper"] = "fedper"
    personal_layers: Annotated[
        int,
        Field(ge=1, le=1000, description="K_P, number of last layers with parameters that stay personal"),
        SearchRange(IntegerRange(1, 3)),
    ] = 1

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client algorithm."""
        return OwnLastLayers(self.personal_layers)


@dataclass(frozen=True)
class OwnLastLayers(PersonalParameters):
    """Client algorithm with personal last layers.

    Attributes:
        num_layers: Number of personal layers.
    """

    num_layers: int

    def private_mask(self, layout: ParameterLayout) -> npt.NDArray[np.bool_]:
        """Return the mask of their parameters and buffers."""
        return layout.of_last_layers(self.num_layers)


class FedRepSpec(MeanSpec):
    """FedRep: as FedPer, with head and body trained one after the other."""

    paper: ClassVar[str] = "Collins et al. 2021, arXiv:2102.07078"

    kind: Literal["fedrep"] = "fedrep"
    personal_layers: Annotated[
        int,
        Field(ge=1, le=1000, description="number of last layers with parameters that form the head"),
        SearchRange(IntegerRange(1, 3)),
    ] = 1
    head_epochs: Annotated[
        int,
        Field(ge=1, le=1000, description="number of epochs that train the head, before the body's"),
        SearchRange(IntegerRange(1, 10)),
    ] = 5

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client algorithm."""
        return HeadThenBody(self.personal_layers, self.head_epochs)


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


class FedBABUSpec(MeanSpec):
    """FedBABU: FedAvg of the body alone; each client fine-tunes body and head before use."""

    paper: ClassVar[str] = "Oh et al. 2022, arXiv:2106.06042"

    kind: Literal["fedbabu"] = "fedbabu"
    tuning_epochs: Annotated[
        int,
        Field(ge=0, le=1000, description="number of fine-tuning epochs before a client uses the model"),
        SearchRange(IntegerRange(1, 10)),
    ] = 5

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client algorithm."""
        return FrozenHead(self.tuning_epochs)


@dataclass(frozen=True)
class FrozenHead(FineTuned):
    """Client algorithm of FedBABU: trains all but the last layer, fine-tunes everything."""

    def train(self, run: LocalRun) -> ClientResults:
        """Train with the head frozen."""
        trained = run.descend(run.received, trainable=~run.layout.of_last_layers(1))
        return ClientResults(trained, trained.vectors)


HEAD = "personal-head"


class FedRoDSpec(MeanSpec):
    """FedRoD: FedAvg with a class-balanced loss, and a second, personal head per client."""

    paper: ClassVar[str] = "Chen and Chao 2022, arXiv:2107.00778"
    needs_classes: ClassVar[bool] = True

    kind: Literal["fedrod"] = "fedrod"

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client algorithm."""
        return TwoHeads()


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


class LocalOnlySpec(MeanSpec):
    """Local training alone: every client keeps its own model, nothing is averaged."""

    paper: ClassVar[str] = "no federation: the usual control"
    unpaired: ClassVar[str] = "nothing is shared, so a server rule has nothing to do"

    kind: Literal["local"] = "local"

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client algorithm."""
        return OwnModel()


@dataclass(frozen=True)
class OwnModel(PersonalParameters):
    """Client algorithm that keeps the whole model on the client."""

    def private_mask(self, layout: ParameterLayout) -> npt.NDArray[np.bool_]:
        """Return the mask of all elements."""
        return layout.elements(lambda _: True)
