"""A client algorithm: what a strategy has its clients do, of which local training is one call.

It is one function over some clients. All tensors have clients as their first axis, so its author writes no loop over
clients; the per-client loop runs the same code with one client, the batched way with a block of them, a task with one
player. As it stands, `ClientAlgorithm` is FedAvg's client; SCAFFOLD's (Karimireddy et al. 2020, Algorithm 1) reads:

    def train(self, run):
        nothing = torch.zeros_like(run.received)
        control, own = run.companions.get("control", nothing), run.kept("control", nothing)
        trained = run.descend(run.received, add_shift, [control - own])
        drift = (run.received - trained.vectors) / (trained.num_steps[:, None] * run.training.learning_rate)
        change = drift - control
        return Finished(trained, trained.vectors, {"control": own + change}, {"control-change": change})

Vectors are whole: trainable parameters, then buffers. This file needs no torch, as drivers read it, too.

What training one client gives, and what scoring it gives.

What a train message asks of its clients, and what one client brings to it.

What an attacker sends in place of the model that it trained: model poisoning.

An attacker knows the model that it received and the one that it trained, honestly. If it has accomplices, it knows what
they train in the same round as well; never what the others do, nor the server.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.client_table import SettingsLookup
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.metrics import Sums
from fedscout.engine.models.layout import Adjusted, ParameterLayout, RowLoss

if TYPE_CHECKING:
    from torch import Tensor


ClientState = Mapping[str, npt.NDArray[np.float32]]
"""What a client keeps between rounds: named arrays. A value, held by the trial, not by the host."""

Correct = Callable[..., None]
"""Changes a gradient in place: told weights, gradient and what lies beside them, element by element of equal shape.

It is called before every step, ahead of weight decay and momentum, for as many elements of as many clients as lie
together in memory. So it must work element by element; what needs a whole vector, such as a norm, belongs in the loss.
"""

Loss = Callable[..., "Tensor"]
"""Of outputs, labels and features of a batch, and of the received model's outputs if asked for, the mean over its rows.
"""

Ahead = Callable[["Tensor", "Tensor"], "Tensor"]
"""Of weights and gradient, trainable part, the weights at which the gradient is taken that a step follows."""


@dataclass(frozen=True)
class ContrastiveLoss:
    """A further loss: how the representations of a batch, what goes into the last linear layer, lie to other models'.

    Attributes:
        measure: Told the representations under the model that is trained, then those under each other one, in
            evaluation mode and without gradient, each `(clients, rows, width)`; returns losses, `(clients, rows)`.
        others: The other models, each `(size,)` or `(clients, size)`.
    """

    measure: Callable[..., Tensor]
    others: Sequence[Tensor]


@dataclass(frozen=True)
class Steps:
    """How local steps are made; see `LocalRun.descend`."""

    training: LocalTraining
    correct: Correct | None = None
    beside: Sequence[Tensor] = ()
    loss: Loss | None = None
    ahead: Ahead | None = None
    adjusted: Adjusted | None = None
    compared: ContrastiveLoss | None = None
    row_loss: RowLoss = field(default_factory=RowLoss)
    reads_received: bool = False

    @property
    def weighed(self) -> RowLoss:
        """The loss of a row, with the terms that the training adds."""
        return self.row_loss.plus(self.training.pseudo_label_weight, self.training.reverse_weight)


PROBE_RATE = 100.0
"""Step by which a gradient is measured: so long that rounding is the gradient's own, not that of the weights."""


@dataclass(frozen=True)
class LocalFacts:
    """What a client knows of itself before it trains; nobody else learns of it.

    Attributes:
        training: What the message asks for.
        num_examples: Its training rows.
        label_counts: Of each class, shape `(classes,)`; empty where clients have a task in place of labelled rows.
        companions: Vectors that came beside the model, by name.
        generator: Draws what it decides by chance, from (seed, round, client): whenever these facts are told, it begins
            anew.
    """

    training: LocalTraining
    num_examples: int
    label_counts: npt.NDArray[np.int64]
    companions: Mapping[str, Tensor]
    generator: np.random.Generator


@dataclass(frozen=True)
class Clients:
    """Some clients and the model that they received.

    Attributes:
        received: The global model, shape `(size,)`.
        layout: Which part of a vector is which tensor.
        states: What each kept from its last participation; empty the first time.
        config: The message's scalars.
    """

    received: Tensor
    layout: ParameterLayout
    states: Sequence[ClientState]
    config: Mapping[str, Any]

    def kept(self, name: str, first: Tensor) -> Tensor:
        """Return what each client kept under a name, shape `(clients, *first.shape)`.

        Args:
            name: An entry of the state.
            first: Stands for what a client has not kept.
        """
        import torch

        found = [torch.from_numpy(np.array(state[name])) if name in state else first for state in self.states]
        return torch.stack(found)


@dataclass(frozen=True)
class Descent:
    """What local steps gave.

    Attributes:
        vectors: The trained models, shape `(clients, size)`.
        num_steps: Optimiser steps of each, shape `(clients,)`.
        losses: Mean training loss of each over all rows seen, shape `(clients,)`.
    """

    vectors: Tensor
    num_steps: Tensor
    losses: Tensor


@dataclass(frozen=True)
class LocalRun(Clients, ABC):
    """The training of some clients in one round; each way of training is one of these.

    Attributes:
        training: Epochs, batches, optimiser.
        companions: Vectors that came beside the model, by name.
        num_examples: Training rows of each, shape `(clients,)`.
        num_classes: Of the federation.
        counts_as: Rows as which each counts in means by rows: `num_examples`, or 1 where clients don't tell them.
    """

    training: LocalTraining
    companions: Mapping[str, Tensor]
    num_examples: Tensor
    num_classes: int
    counts_as: Tensor

    def descend(
        self,
        start: Tensor,
        correct: Correct | None = None,
        beside: Sequence[Tensor] = (),
        loss: Loss | None = None,
        ahead: Ahead | None = None,
        adjusted: Adjusted | None = None,
        compared: ContrastiveLoss | None = None,
        trainable: npt.NDArray[np.bool_] | None = None,
        epochs: int | None = None,
        row_loss: RowLoss | None = None,
        reads_received: bool = False,
    ) -> Descent:
        """Make all local steps; a second call goes on drawing batches where the first ended.

        Args:
            start: Where to begin, shape `(size,)` or `(clients, size)`.
            correct: Changes each step's gradient.
            beside: What `correct` is given beside weights and gradient, each `(size,)` or `(clients, size)`.
            loss: In place of the mean cross-entropy; for algorithms that declare `one_by_one`.
            ahead: Where each step's gradient is taken, likewise.
            adjusted: What is made of outputs ahead of the cross-entropy.
            compared: What is added to it.
            trainable: Which elements move, shape `(size,)`, truth values; None moves all. Buffers always move.
            epochs: In place of those of `training`, >= 1.
            row_loss: What weighs the cross-entropy, or `loss`, and is added to it; what `training` adds comes on top.
            reads_received: Whether `loss` is given the received model's outputs of the batch as well, in evaluation
                mode and without a gradient; they are computed once for all rows.

        Raises:
            TypeError: If what belongs to one loss is given beside another.
        """
        if loss is not None and (adjusted is not None or compared is not None):
            raise TypeError("loss must stand alone, as adjusted and compared are of the cross-entropy")
        if loss is None and reads_received:
            raise TypeError("reads_received must come with the loss that reads")
        training = self.training if epochs is None else self.training.model_copy(update={"local_epochs": epochs})
        if trainable is not None:
            correct, beside = frozen_but(trainable, training.weight_decay, correct, beside)
            training = training.model_copy(update={"weight_decay": 0.0})
        row_loss = RowLoss() if row_loss is None else row_loss
        steps = Steps(training, correct, beside, loss, ahead, adjusted, compared, row_loss, reads_received)
        return self._descend(start, steps)

    @abstractmethod
    def _descend(self, start: Tensor, steps: Steps) -> Descent:
        """Make all local steps."""

    def gradient(self, vector: Tensor) -> Tensor:
        """Return each client's gradient on all its training rows, shape `(clients, size)`, 0 at buffers.

        Args:
            vector: At which model, shape `(size,)` or `(clients, size)`.
        """
        whole = LocalTraining.model_construct(
            local_epochs=1,
            batch_size=int(self.num_examples.max()),
            learning_rate=PROBE_RATE,
            pseudo_label_weight=self.training.pseudo_label_weight,
            reverse_weight=self.training.reverse_weight,
        )
        change = vector - self._descend(vector, Steps(whole)).vectors
        change[:, self.layout.num_trainable :] = 0
        return change / PROBE_RATE

    def label_counts(self) -> Tensor:
        """Return each client's training rows of each class, shape `(clients, classes)`.

        Raises:
            TypeError: If clients have a task in place of labelled rows.
        """
        raise TypeError("clients with a task hold no labels to count")


@dataclass(frozen=True)
class ClientResults:
    """What some clients give and keep after a round; all tensors have one row a client.

    Attributes:
        descent: Whose losses and numbers of steps are reported.
        vectors: What goes up as the model, shape `(clients, size)`.
        state: Replaces what each client kept; nothing keeps nothing.
        companions: What goes up beside the model, each `(clients, size)`.
        sums: Scalars that add up over clients, each `(clients,)`.
    """

    descent: Descent
    vectors: Tensor
    state: Mapping[str, Tensor] = field(default_factory=dict)
    companions: Mapping[str, Tensor] = field(default_factory=dict)
    sums: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Validation:
    """How what one client sends does on its validation rows.

    Attributes:
        num_examples: Rows; 0 where they are so few that the client abstains.
        num_correct: Rows whose class is the largest output.
        loss_sum: Sum of the rows' losses.
        sums: What `train` reported of the client.
    """

    num_examples: int
    num_correct: float
    loss_sum: float
    sums: Mapping[str, float]


@dataclass(frozen=True)
class ClientAlgorithm:
    """FedAvg's client; others override what they do otherwise. Frozen and picklable.

    Attributes:
        reads: Keys of a train message's configuration that it needs; a message without them is not for it.
        accompanied: Whether vectors may come beside the model; a message that holds some is refused otherwise.
        personal: Whether `scored` or `tuned` reads states, which then travel to every client that is scored.
        tunes: Whether clients train before they are scored: they are scored with what `tuned` returns.
        one_by_one: Whether clients are trained one after the other, as a loss of its own and looking ahead need.
        validates: Whether clients measure what they send on their validation rows, and report what `validated` says.
        mixes: Whether a run may hold clients of different rates, batches and epochs, as under a table of settings. Then
            `run.training` tells none of these, and all that `train` does is descend, as the clients' settings say.
        companions_follow: Whether the companions that go up follow from the model that was sent and the one that comes
            back, so that they tell no more of a client than these.
    """

    reads: ClassVar[tuple[str, ...]] = ()
    accompanied: ClassVar[bool] = True
    personal: ClassVar[bool] = False
    tunes: ClassVar[bool] = False
    one_by_one: ClassVar[bool] = False
    validates: ClassVar[bool] = False
    mixes: ClassVar[bool] = False
    companions_follow: ClassVar[bool] = False

    @property
    def companions(self) -> Mapping[str, str]:
        """The metric that weighs the mean of each companion that goes up: `num-clients`, `num-examples` or a sum."""
        return {}

    def at_home(self, layout: ParameterLayout) -> npt.NDArray[np.bool_] | None:
        """Return which elements clients keep, sending the received ones in their place, shape `(size,)`; or None."""
        del layout
        return None

    def settings(self, facts: LocalFacts) -> LocalTraining:
        """Return how a client trains; clients of equal settings are in one run, of others if the algorithm `mixes`."""
        return facts.training

    def train(self, run: LocalRun) -> ClientResults:
        """Train the clients of a run."""
        trained = run.descend(run.received)
        return ClientResults(trained, trained.vectors)

    def validated(self, facts: LocalFacts, validation: Validation) -> Mapping[str, float]:
        """Return the sums that a client reports beside those of `train`; the same names of every client.

        Args:
            facts: As `settings` was told them.
            validation: How what it sends does on its validation rows.
        """
        raise NotImplementedError(f"{type(self).__name__} declares that it validates")

    def scored(self, clients: Clients) -> Tensor:
        """Return the models that are scored, shape `(1, size)` or `(clients, size)`."""
        return clients.received[None]

    def tuned(self, run: LocalRun) -> Tensor:
        """Return the models that are scored after training, shape `(clients, size)`; a state does not change by it.

        Clients without training rows are scored with what `scored` returns. The batches are the same whenever a trial
        is scored.
        """
        raise NotImplementedError(f"{type(self).__name__} declares that it tunes")


def frozen_but(
    trainable: npt.NDArray[np.bool_], weight_decay: float, correct: Correct | None, beside: Sequence[Tensor]
) -> tuple[Correct, Sequence[Tensor]]:
    """Return a correction that lets chosen elements alone move, and what lies beside it.

    Weight decay comes ahead of it, as it would move the others.
    """
    import torch

    def only_these(weights: Tensor, gradient: Tensor, moves: Tensor, *others: Tensor) -> None:
        if correct is not None:
            correct(weights, gradient, *others)
        gradient.add_(weights, alpha=weight_decay).mul_(moves)

    return only_these, (torch.from_numpy(trainable).float(), *beside)


def asked_for(algorithm: ClientAlgorithm | None, config: Mapping[str, Any]) -> ClientAlgorithm | None:
    """Return an algorithm if a train message's configuration holds what it reads, else None."""
    return algorithm if algorithm is not None and all(key in config for key in algorithm.reads) else None


@dataclass(frozen=True)
class ClientUpdate:
    """What one client's training gives.

    Attributes:
        vector: Parameters and buffers after training, shape `(layout.size,)`.
        num_steps: Optimiser steps made.
        loss: Mean training loss over all rows seen.
        state: What the client keeps for its next participation.
        initial_loss: Mean loss of the received model on the training rows, if asked for; measured by `Trainer`.
        companions: Vectors that go up beside the model, each `(layout.size,)`.
        sums: Scalars that add up over clients.
    """

    vector: FloatArray
    num_steps: int
    loss: float
    state: ClientState
    initial_loss: float | None = None
    companions: Mapping[str, FloatArray] = field(default_factory=dict)
    sums: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientScore:
    """How a model does on some rows: sums, so that shares and means can be formed later.

    Attributes:
        num_examples: Rows; 1 where a task scores a client as a whole.
        num_correct: Rows whose class is the largest output; a share where a task scores a client as a whole. NaN where
            outputs are not numbers, or a quantity is predicted.
        loss_sum: Sum of the rows' losses; NaN where outputs are not numbers.
        repeats: A task's scores of the client, one a repeat.
        metric: The session's metric on these rows, if it has one; NaN where they have none.
        statistics: Its sums over them, which stay where they were made.
    """

    num_examples: int
    num_correct: float
    loss_sum: float
    repeats: tuple[float, ...] = ()
    metric: float | None = None
    statistics: Sums | None = None

    @classmethod
    def of_rows(cls, num_examples: int, num_correct: float, loss_sum: float) -> Self:
        """Return the score of rows; outputs that are not numbers predict no class."""
        return cls(num_examples, float("nan") if isnan(loss_sum) else num_correct, loss_sum)

    @property
    def is_missing(self) -> bool:
        """Whether the outputs are not numbers, so that nothing is measured."""
        return isnan(self.loss_sum) and isnan(self.num_correct)


@dataclass(frozen=True)
class TrainRequest:
    """The same for all clients of a message.

    Attributes:
        received: The global vector, shape `(layout.size,)`.
        training: Epochs, batches, optimiser; of a task, the task says what an epoch is.
        algorithm: What the strategy has its clients do; None is plain local training.
        table: By which each chooses settings of its own in place of `training`'s.
        config: The message's configuration, for the algorithm.
        integers: Integer buffers of the received model, by name.
        companions: Vectors that came beside the model, by name.
        initial_loss: Whether to measure the received model on the training rows first.
        num_classes: Of the federation.
        seed: The trial's.
        server_round: From 1.
    """

    received: Tensor
    training: LocalTraining
    algorithm: ClientAlgorithm | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    integers: Mapping[str, Tensor] = field(default_factory=dict)
    companions: Mapping[str, Tensor] = field(default_factory=dict)
    initial_loss: bool = False
    num_classes: int = 0
    seed: int = 0
    server_round: int = 1
    table: SettingsLookup | None = None


@dataclass(frozen=True)
class ClientWork:
    """One client's part of a round.

    Attributes:
        client: Its index.
        generator: Draws the batches; from (seed, round, client).
        state: What the client kept: the algorithm's entries, and a task's own.
        epochs: Local epochs are so many times those of the others.
    """

    client: int
    generator: np.random.Generator
    state: ClientState
    epochs: int = field(default=1, kw_only=True)


@dataclass(frozen=True)
class AttackInputs:
    """What an attack may know; arrays are not to be changed.

    Attributes:
        received: x, the global parameters, trainable part, shape `(params,)`.
        trained: y, what came of the client's training, or of the attack before this one; same shape.
        accomplices: What those accomplices trained that can train in this round, in their order, shape
            `(accomplices, params)`.
        generator: Of this attack alone: from (seed, round, client, place among the client's attacks).
    """

    received: FloatArray
    trained: FloatArray
    accomplices: FloatArray
    generator: np.random.Generator


class UpdateAttack(Protocol):
    """A picklable value."""

    @property
    def accomplices(self) -> tuple[int, ...]:
        """Clients whose honest updates it knows, its own among them if it counts, ascending; most know none."""
        ...

    def __call__(self, inputs: AttackInputs) -> FloatArray:
        """Return the parameters that are sent, float32, shape `(params,)`; beyond its range they count as diverged."""
        ...
