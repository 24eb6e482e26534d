"""FedRoD: one model is trained to be fair to all classes, and each client has a head on it that is fair to its own.

The global model is trained with the balanced softmax, outputs + log n_c in the loss, n_c being the client's rows of
class c. On its representation each client trains a second head, whose outputs are added to those of the first and whose
gradient stops there; it stays with the client (Chen, Chao: On bridging generic and personalized federated learning for
image classification, ICLR 2022, arXiv:2107.00778, eq. 6 and 8, with linear heads). A client is scored with the sum of
both. The sum of two linear heads is one, so what is kept is how far a client's head lies from the global one.

Deviation: the second head is trained after the global model, on batches drawn after its, not within the same steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fedscout.engine.contracts.client_algorithm import ClientAlgorithm, Clients, Finished, LocalRun
from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.engine.model.adjusted_outputs import OUT_OF_IT, Adjusted
from fedscout.strategies.methods.averaging import MeanSpec
from fedscout.strategies.specification import without_classes

if TYPE_CHECKING:
    from torch import Tensor

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

    def train(self, run: LocalRun) -> Finished:
        """Train the global model on the balanced loss, then the client's own head on the plain one."""
        prior = run.label_counts().log().clamp(min=OUT_OF_IT)
        trained = run.descend(run.received, adjusted=Adjusted(shift=prior))  # eq. 6
        nothing = run.received.new_zeros(run.layout.size)
        start = trained.vectors + run.kept(HEAD, nothing)
        own = run.descend(start, trainable=run.layout.of_last_layers(1))
        beyond = own.vectors - trained.vectors
        beyond[:, ~run.layout.of_last_layers(1)] = 0  # statistics of batch normalisation
        return Finished(trained, trained.vectors, {HEAD: beyond})

    def scored(self, clients: Clients) -> Tensor:
        """Return the global model, each client's own head on top of its."""
        return clients.received + clients.kept(HEAD, clients.received.new_zeros(clients.layout.size))
