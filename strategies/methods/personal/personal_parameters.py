"""Parameters that stay with the clients: trained and scored there, never averaged. FedBN and FedPer say which they are.

A client that has not trained yet has the initial ones, which the global model holds throughout, as clients send what
they received in place of theirs.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from fedscout.engine.contracts.client_algorithm import ClientAlgorithm, Clients, Descent, Finished, LocalRun
from fedscout.engine.model.parameter_layout import ParameterLayout

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

    def train(self, run: LocalRun) -> Finished:
        """Descend with one's own parameters, and send the received ones in their place."""
        return self.finished(run, run.descend(self.scored(run)))

    def finished(self, run: LocalRun, trained: Descent) -> Finished:
        """Return what goes up and what stays of models that were trained."""
        own = self._own(run)
        shared = trained.vectors.clone()
        shared[:, own] = run.received[own]
        return Finished(trained, shared, {OWN: trained.vectors[:, own]})

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
