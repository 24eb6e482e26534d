"""Personal layers: FedPer, FedRep, FedBABU, FedRoD, chosen parameters, and local training alone.

FedPer: the last layers stay with the clients.

Base and personal layers are trained together; the base is averaged as by FedAvg, the last `personal_layers` layers that
hold parameters stay (Arivazhagan, Aggarwal, Singh, Choudhary: Federated learning with personalization layers, 2019,
arXiv:1912.00818, Algorithms 1 and 2, K_P). A client is trained and scored with its own; see `personal_layers.py`.

FedRep: clients share a representation and each has a head of its own, trained one after the other.

In every round a client first trains its head, the body as received, then the body, the head as trained. Bodies are
averaged as by FedAvg, heads stay (Collins, Hassani, Mokhtari, Shakkottai: Exploiting shared representations for
personalized federated learning, ICML 2021, arXiv:2102.07078, Algorithm 1). A client is scored with its own head; see
`personal_layers.py`.

The body is trained for the study's epochs, the head for `head_epochs`, as both numbers of steps are free in the paper.
Statistics of batch normalisation in the body follow the rows in both phases.

FedBABU: the body is trained by the federation, the head by nobody before it is used.

The last layer stays at its initial, random values during the federated rounds, and each client tunes the whole model on
its own rows before it uses it (Oh, Kim, Yun: FedBABU: Toward enhanced representation for federated image
classification, ICLR 2022, arXiv:2106.06042, Algorithm 1 and section 5). What is tuned is thrown away.

FedRoD: one model is trained to be fair to all classes, and each client has a head on it that is fair to its own.

The global model is trained with the balanced softmax, outputs + log n_c in the loss, n_c being the client's rows of
class c. On its representation each client trains a second head, whose outputs are added to those of the first and whose
gradient stops there; it stays with the client (Chen, Chao: On bridging generic and personalized federated learning for
image classification, ICLR 2022, arXiv:2107.00778, eq. 6 and 8, with linear heads). A client is scored with the sum of
both. The sum of two linear heads is one, so what is kept is how far a client's head lies from the global one.

Deviation: the second head is trained after the global model, on batches drawn after its, not within the same steps.

Parameters that stay with the clients: trained and scored there, never averaged. FedBN and FedPer say which they are.

A client that has not trained yet has the initial ones, which the global model holds throughout, as clients send what
they received in place of theirs.

Local training alone: nothing is averaged, the answer to whether clients gain from each other at all.

Each client goes on with its own model whenever it is asked to train, and is scored with it; one that was never asked is
scored with the initial model. See `personal_layers.py`.
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
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.models.layout import OUT_OF_IT, Adjusted, ParameterLayout
from fedscout.strategies.methods.averaging import MeanSpec
from fedscout.strategies.methods.personal_models import FineTuned
from fedscout.strategies.specification import IntegerRange, SearchRange, without_classes

if TYPE_CHECKING:
    from torch import Tensor


OWN = "own-parameters"


@dataclass(frozen=True)
class PersonalParameters(ClientAlgorithm):
    """Keeps some elements of the model at home."""

    personal: ClassVar[bool] = True

    @abstractmethod
    def at_home(self, layout: ParameterLayout) -> npt.NDArray[np.bool_]:
        """Return which elements stay, shape `(size,)`, truth values."""

    def train(self, run: LocalRun) -> ClientResults:
        """Descend with one's own parameters, and send the received ones in their place."""
        return self.finished(run, run.descend(self.scored(run)))

    def finished(self, run: LocalRun, trained: Descent) -> ClientResults:
        """Return what goes up and what stays of models that were trained."""
        own = self._own(run)
        shared = trained.vectors.clone()
        shared[:, own] = run.received[own]
        return ClientResults(trained, shared, {OWN: trained.vectors[:, own]})

    def scored(self, clients: Clients) -> Tensor:
        """Return the global model with each client's own parameters."""
        own = self._own(clients)
        models = clients.received.repeat(len(clients.states), 1)
        models[:, own] = clients.kept(OWN, clients.received[own])
        return models

    def _own(self, clients: Clients) -> Tensor:
        """Return the positions of the elements that stay."""
        layout = clients.layout
        return _positions(self, layout, tuple(slot.layer for slot in layout.slots))


@lru_cache(maxsize=8)
def _positions(algorithm: PersonalParameters, layout: ParameterLayout, layers: tuple[str, ...]) -> Tensor:
    """Return what is at home, found once for all clients; layouts that differ in their layers alone are equal."""
    import torch

    del layers
    return torch.from_numpy(np.flatnonzero(algorithm.at_home(layout)))


class FedPerSpec(MeanSpec):
    """FedPer: FedAvg of everything but the last layers, which stay with the clients."""

    paper: ClassVar[str] = "Arivazhagan et al. 2019, arXiv:1912.00818"

    kind: Literal["fedper"] = "fedper"
    personal_layers: Annotated[
        int,
        Field(ge=1, le=1000, description="K_P, how many of the last layers with parameters stay; more than all is all"),
        SearchRange(IntegerRange(1, 3)),
    ] = 1

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client's half."""
        return OwnLastLayers(self.personal_layers)


@dataclass(frozen=True)
class OwnLastLayers(PersonalParameters):
    """Keeps the last layers at home.

    Attributes:
        num_layers: How many.
    """

    num_layers: int

    def at_home(self, layout: ParameterLayout) -> npt.NDArray[np.bool_]:
        """Return their parameters and buffers."""
        return layout.of_last_layers(self.num_layers)


class FedRepSpec(MeanSpec):
    """FedRep: as FedPer, with head and body trained one after the other."""

    paper: ClassVar[str] = "Collins et al. 2021, arXiv:2102.07078"

    kind: Literal["fedrep"] = "fedrep"
    personal_layers: Annotated[
        int,
        Field(ge=1, le=1000, description="how many of the last layers with parameters are the head"),
        SearchRange(IntegerRange(1, 3)),
    ] = 1
    head_epochs: Annotated[
        int,
        Field(ge=1, le=1000, description="passes over a client's data that train its head, ahead of the body's"),
        SearchRange(IntegerRange(1, 10)),
    ] = 5

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client's half."""
        return HeadThenBody(self.personal_layers, self.head_epochs)


@dataclass(frozen=True)
class HeadThenBody(OwnLastLayers):
    """The client's half.

    Attributes:
        head_epochs: Passes that train the head.
    """

    head_epochs: int

    def train(self, run: LocalRun) -> ClientResults:
        """Train the head, then the body."""
        own = self.at_home(run.layout)
        with_head = run.descend(self.scored(run), trainable=own, epochs=self.head_epochs)
        return self.finished(run, run.descend(with_head.vectors, trainable=~own))


class FedBABUSpec(MeanSpec):
    """FedBABU: FedAvg of the body alone, and each client tunes body and head before it uses them."""

    paper: ClassVar[str] = "Oh et al. 2022, arXiv:2106.06042"

    kind: Literal["fedbabu"] = "fedbabu"
    tuning_epochs: Annotated[
        int,
        Field(ge=0, le=1000, description="passes over a client's data ahead of its use of the model"),
        SearchRange(IntegerRange(1, 10)),
    ] = 5

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client's half."""
        return FrozenHead(self.tuning_epochs)


@dataclass(frozen=True)
class FrozenHead(FineTuned):
    """Trains everything but the last layer; tunes everything."""

    def train(self, run: LocalRun) -> ClientResults:
        """Descend with the head as it is."""
        trained = run.descend(run.received, trainable=~run.layout.of_last_layers(1))
        return ClientResults(trained, trained.vectors)


HEAD = "personal-head"


class FedRoDSpec(MeanSpec):
    """FedRoD: FedAvg with a loss that is balanced over classes, and a second head of each client's own."""

    paper: ClassVar[str] = "Chen and Chao 2022, arXiv:2107.00778"

    kind: Literal["fedrod"] = "fedrod"

    @classmethod
    def unavailable(cls, cohort: Cohort) -> str | None:
        """Return that there are no classes, where a quantity is predicted."""
        return without_classes(cohort, cls.model_fields["kind"].default)

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client's half."""
        return TwoHeads()


@dataclass(frozen=True)
class TwoHeads(ClientAlgorithm):
    """The client's half."""

    personal: ClassVar[bool] = True

    def train(self, run: LocalRun) -> ClientResults:
        """Train the global model on the balanced loss, then the client's own head on the plain one."""
        prior = run.label_counts().log().clamp(min=OUT_OF_IT)
        trained = run.descend(run.received, adjusted=Adjusted(shift=prior))  # eq. 6
        nothing = run.received.new_zeros(run.layout.size)
        start = trained.vectors + run.kept(HEAD, nothing)
        own = run.descend(start, trainable=run.layout.of_last_layers(1))
        beyond = own.vectors - trained.vectors
        beyond[:, ~run.layout.of_last_layers(1)] = 0  # statistics of batch normalisation
        return ClientResults(trained, trained.vectors, {HEAD: beyond})

    def scored(self, clients: Clients) -> Tensor:
        """Return the global model, each client's own head on top of its."""
        return clients.received + clients.kept(HEAD, clients.received.new_zeros(clients.layout.size))


class LocalOnlySpec(MeanSpec):
    """Local training alone: every client keeps its own model, nothing is averaged."""

    paper: ClassVar[str] = "no federation: the usual control"
    unpaired: ClassVar[str] = "nothing is shared, so a server rule has nothing to do"

    kind: Literal["local"] = "local"

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client's half."""
        return OwnModel()


@dataclass(frozen=True)
class OwnModel(PersonalParameters):
    """Keeps everything at home."""

    def at_home(self, layout: ParameterLayout) -> npt.NDArray[np.bool_]:
        """Return all elements."""
        return layout.elements(lambda _: True)
