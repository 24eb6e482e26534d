"""Client algorithms, training and scoring results, train requests, and model poisoning attacks.

A client algorithm defines what a strategy's clients do in a round; local training is one call within it. It is one
function over several clients. All tensors have clients as their first axis, so an algorithm needs no loop over clients;
the per-client loop runs the same code with one client, the vectorised backend with a block of clients, a task with one
reinforcement-learning client. The base class `ClientAlgorithm` is FedAvg's client; SCAFFOLD's (Karimireddy et al. 2020,
Algorithm 1) reads:

    def train(self, run):
        nothing = torch.zeros_like(run.received)
        control, own = run.auxiliary.get("control", nothing), run.kept("control", nothing)
        trained = run.descend(run.received, add_shift, [control - own])
        drift = (run.received - trained.vectors) / (trained.num_steps[:, None] * run.training.learning_rate)
        change = drift - control
        return ClientResults(trained, trained.vectors, {"control": own + change}, {"control-change": change})

Vectors are whole: trainable parameters, then buffers. This module imports torch only when needed, as drivers read it,
too.

An `UpdateAttack` is model poisoning: it returns what an attacker sends instead of its trained model. An attacker knows
the model that it received and the one that it trained honestly. If it has colluders, it also knows the models that
they train in the same round, but never those of other clients or of the server.

**Client tasks** other than training on rows, such as reinforcement learning, where a client plays episodes: a task
replaces the local training on rows: it performs one client's local steps from the loaded model, and scores a
model on one client. Everything else is unchanged: strategies, client algorithms, states, searches, the log. A client's
score is a share in `[0, 1]` of the largest possible one, measured several times; a round's accuracy is the median over
these repeats of the mean over clients, and its loss is 1 minus the accuracy.
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

    from fedscout.engine.models.flat import FlatModel


ClientState = Mapping[str, npt.NDArray[np.float32]]
"""What a client keeps between rounds: named arrays. A value, held by the trial, not by the host."""

Correct = Callable[..., None]
"""Changes a gradient in place, given weights, gradient and the extra tensors, all of one shape.

It is called before every step, ahead of weight decay and momentum, for as many elements of as many clients as lie
together in memory. So it must work element by element; what needs a whole vector, such as a norm, belongs in the loss.
"""

Loss = Callable[..., "Tensor"]
"""Of outputs, labels and features of a batch, the mean over its rows."""

Lookahead = Callable[["Tensor", "Tensor"], "Tensor"]
"""Of weights and gradient, trainable part, the weights at which the gradient is taken that a step follows."""


@dataclass(frozen=True)
class ContrastiveLoss:
    """Additional loss that compares a batch's representations, the inputs of the last linear layer, with other models'.

    Attributes:
        measure: Receives the representations under the trained model, then those under each other model, in evaluation
            mode and without gradient, each `(clients, rows, width)`; returns losses, `(clients, rows)`.
        others: The other models, each `(size,)` or `(clients, size)`.
    """

    measure: Callable[..., Tensor]
    others: Sequence[Tensor]


@dataclass(frozen=True)
class Steps:
    """Specification of local steps; see `LocalRun.descend`."""

    training: LocalTraining
    correct: Correct | None = None
    extra: Sequence[Tensor] = ()
    loss: Loss | None = None
    ahead: Lookahead | None = None
    adjusted: Adjusted | None = None
    compared: ContrastiveLoss | None = None
    row_loss: RowLoss = field(default_factory=RowLoss)

    @property
    def weighed(self) -> RowLoss:
        """The loss of a row, including the terms that the training settings add."""
        return self.row_loss.plus(self.training.pseudo_label_weight, self.training.reverse_weight)


PROBE_RATE = 100.0
"""Step by which a gradient is measured: so long that rounding is the gradient's own, not that of the weights."""


@dataclass(frozen=True)
class LocalFacts:
    """Facts that a client has about itself before training; they do not leave the client.

    Attributes:
        training: The requested local training.
        num_examples: Number of training rows.
        label_counts: Count of each class, shape `(classes,)`; empty for clients with a task instead of labelled rows.
        auxiliary: Auxiliary vectors received with the model, by name.
        generator: Random generator for the client's decisions, from (seed, round, client); restarted each time these
            facts are created.
    """

    training: LocalTraining
    num_examples: int
    label_counts: npt.NDArray[np.int64]
    auxiliary: Mapping[str, Tensor]
    generator: np.random.Generator


@dataclass(frozen=True)
class Clients:
    """Some clients and the model that they received.

    Attributes:
        received: The global model, shape `(size,)`.
        layout: Layout of tensors in a vector.
        states: State of each client from its last participation; empty the first time.
        config: Scalars of the message.
    """

    received: Tensor
    layout: ParameterLayout
    states: Sequence[ClientState]
    config: Mapping[str, Any]

    def kept(self, name: str, first: Tensor) -> Tensor:
        """Return an entry of each client's state, shape `(clients, *first.shape)`.

        Args:
            name: Name of the entry.
            first: Default for clients without the entry.
        """
        import torch

        entries = [torch.from_numpy(np.array(state[name])) if name in state else first for state in self.states]
        return torch.stack(entries)


@dataclass(frozen=True)
class Descent:
    """Result of local steps.

    Attributes:
        vectors: The trained models, shape `(clients, size)`.
        num_steps: Optimiser steps of each client, shape `(clients,)`.
        losses: Mean training loss of each client over all rows seen, shape `(clients,)`.
    """

    vectors: Tensor
    num_steps: Tensor
    losses: Tensor


@dataclass(frozen=True)
class LocalRun(Clients, ABC):
    """Training of some clients in one round; each training backend has its own subclass.

    Attributes:
        training: Epochs, batches, optimiser.
        auxiliary: Auxiliary vectors received with the model, by name.
        num_examples: Training rows of each client, shape `(clients,)`.
        num_classes: Number of classes in the federation.
        counts_as: Number of rows as which each client counts in means: `num_examples`, or 1 if clients do not disclose
            it.
    """

    training: LocalTraining
    auxiliary: Mapping[str, Tensor]
    num_examples: Tensor
    num_classes: int
    counts_as: Tensor

    def descend(
        self,
        start: Tensor,
        correct: Correct | None = None,
        extra: Sequence[Tensor] = (),
        loss: Loss | None = None,
        ahead: Lookahead | None = None,
        adjusted: Adjusted | None = None,
        compared: ContrastiveLoss | None = None,
        trainable: npt.NDArray[np.bool_] | None = None,
        epochs: int | None = None,
        row_loss: RowLoss | None = None,
    ) -> Descent:
        """Perform all local steps; a second call continues drawing batches where the first ended.

        Args:
            start: Initial models, shape `(size,)` or `(clients, size)`.
            correct: Modifies each step's gradient.
            extra: Further arguments of `correct` after weights and gradient, each `(size,)` or `(clients, size)`.
            loss: Replaces the mean cross-entropy; only for algorithms that declare `one_by_one`.
            ahead: Weights at which each step's gradient is taken; only for algorithms that declare `one_by_one`.
            adjusted: Transforms outputs before the cross-entropy.
            compared: Loss that is added to the cross-entropy.
            trainable: Mask of the elements that change, shape `(size,)`, bool; None means all. Buffers always change.
            epochs: Overrides the epochs of `training`, >= 1.
            row_loss: Weights of the cross-entropy, or `loss`, and terms added to it; those of `training` are added as
                well.

        Raises:
            TypeError: If arguments of different losses are combined.
        """
        if loss is not None and (adjusted is not None or compared is not None):
            raise TypeError("loss must not be combined with adjusted or compared, which change the cross-entropy")
        training = self.training if epochs is None else self.training.model_copy(update={"local_epochs": epochs})
        if trainable is not None:
            correct, extra = freeze_others(trainable, training.weight_decay, correct, extra)
            training = training.model_copy(update={"weight_decay": 0.0})
        steps = Steps(training, correct, extra, loss, ahead, adjusted, compared, row_loss or RowLoss())
        return self._descend(start, steps)

    @abstractmethod
    def _descend(self, start: Tensor, steps: Steps) -> Descent:
        """Perform all local steps."""

    def gradient(self, vector: Tensor) -> Tensor:
        """Return each client's gradient on all its training rows, shape `(clients, size)`, 0 at buffers.

        Args:
            vector: Model at which the gradient is taken, shape `(size,)` or `(clients, size)`.
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
        """Return the number of each client's training rows of each class, shape `(clients, classes)`.

        Raises:
            TypeError: If clients have a task instead of labelled rows.
        """
        raise TypeError("clients with a task hold no labels to count")


@dataclass(frozen=True)
class ClientResults:
    """Results of some clients after a round; all tensors have one row per client.

    Attributes:
        descent: Its losses and numbers of steps are reported.
        vectors: Models that are sent, shape `(clients, size)`.
        state: Replaces each client's state; empty removes it.
        auxiliary: Auxiliary vectors that are sent with the model, each `(clients, size)`.
        sums: Additive scalars, each `(clients,)`.
    """

    descent: Descent
    vectors: Tensor
    state: Mapping[str, Tensor] = field(default_factory=dict)
    auxiliary: Mapping[str, Tensor] = field(default_factory=dict)
    sums: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientAlgorithm:
    """Base class of client algorithms, and FedAvg's client; subclasses override what differs. Frozen and picklable.

    Attributes:
        reads: Required keys of a train message's configuration; without them, a message is plain local training.
        accepts_auxiliary: Whether auxiliary vectors may come with the model; otherwise a message that holds one is
            rejected.
        personal: Whether `scored` or `tuned` reads states, which are then sent to every client that is scored.
        tunes: Whether clients train before they are scored: they are scored with the result of `tuned`.
        one_by_one: Whether clients are trained one after the other, as a custom loss and `ahead` require.
        validates: Whether clients evaluate the model they send on their validation rows, and report `validated`.
        auxiliary_is_determined: Whether received and sent model determine the sent auxiliary vectors, which thus
            reveal no more of a client.
    """

    reads: ClassVar[tuple[str, ...]] = ()
    accepts_auxiliary: ClassVar[bool] = True
    personal: ClassVar[bool] = False
    tunes: ClassVar[bool] = False
    one_by_one: ClassVar[bool] = False
    validates: ClassVar[bool] = False
    auxiliary_is_determined: ClassVar[bool] = False

    @property
    def auxiliary(self) -> Mapping[str, str]:
        """Weight metric of the mean of each auxiliary vector that is sent: `num-clients`, `num-examples` or a sum."""
        return {}

    def private_mask(self, layout: ParameterLayout) -> npt.NDArray[np.bool_] | None:
        """Return a mask of elements kept on the client, shape `(size,)`, or None; their received values are sent."""
        return None

    def settings(self, facts: LocalFacts) -> LocalTraining:
        """Return a client's training settings; a run holds clients of equal settings."""
        return facts.training

    def train(self, run: LocalRun) -> ClientResults:
        """Train the clients of a run."""
        trained = run.descend(run.received)
        return ClientResults(trained, trained.vectors)

    def validated(self, facts: LocalFacts, score: ClientScore, sums: Mapping[str, float]) -> Mapping[str, float]:
        """Return the sums that a client reports in addition to those of `train`; all clients use the same names.

        Args:
            facts: As for `settings`.
            score: Of the sent model on the client's validation rows; without rows if the client abstains.
            sums: What `train` reported for the client.
        """
        raise NotImplementedError(f"{type(self).__name__} declares validates, but has no validated method")

    def scored(self, clients: Clients) -> Tensor:
        """Return the models that are scored, shape `(1, size)` or `(clients, size)`."""
        return clients.received[None]

    def tuned(self, run: LocalRun) -> Tensor:
        """Return the models that are scored after training, shape `(clients, size)`; states are not changed.

        Clients without training rows are scored with the result of `scored`. The batches are the same for every scoring
        of a trial.
        """
        raise NotImplementedError(f"{type(self).__name__} declares tunes, but has no tuned method")


def freeze_others(
    trainable: npt.NDArray[np.bool_], weight_decay: float, correct: Correct | None, extra: Sequence[Tensor]
) -> tuple[Correct, Sequence[Tensor]]:
    """Return a gradient correction that lets only the trainable elements change, and its further arguments.

    It applies weight decay itself, before masking, as weight decay would otherwise change the other elements.
    """
    import torch

    def zero_others(weights: Tensor, gradient: Tensor, moves: Tensor, *others: Tensor) -> None:
        if correct is not None:
            correct(weights, gradient, *others)
        gradient.add_(weights, alpha=weight_decay).mul_(moves)

    return zero_others, (torch.from_numpy(trainable).float(), *extra)


def algorithm_if_configured(algorithm: ClientAlgorithm | None, config: Mapping[str, Any]) -> ClientAlgorithm | None:
    """Return the algorithm if a train message's configuration holds all keys that it reads, else None."""
    return algorithm if algorithm is not None and all(key in config for key in algorithm.reads) else None


@dataclass(frozen=True)
class ClientUpdate:
    """Training result of one client.

    Attributes:
        vector: Parameters and buffers after training, shape `(layout.size,)`.
        num_steps: Number of optimiser steps.
        loss: Mean training loss over all rows seen.
        state: State that the client keeps for its next participation.
        initial_loss: Mean loss of the received model on the training rows, if requested; measured by `Trainer`.
        auxiliary: Auxiliary vectors that are sent with the model, each `(layout.size,)`.
        sums: Additive scalars.
    """

    vector: FloatArray
    num_steps: int
    loss: float
    state: ClientState
    initial_loss: float | None = None
    auxiliary: Mapping[str, FloatArray] = field(default_factory=dict)
    sums: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientScore:
    """Performance of a model on some rows, as sums from which shares and means can be computed later.

    Attributes:
        num_examples: Rows; 1 if a task scores a client as a whole.
        num_correct: Number of rows whose class has the largest output; a share if a task scores a client as a whole.
            NaN if outputs are not numbers, or for regression.
        loss_sum: Sum of the rows' losses; NaN if outputs are not numbers.
        repeats: Repeated scores of the client by a task.
        metric: The session's metric on these rows, if any; NaN if it is undefined for them.
        statistics: Sums of that metric over these rows; they do not leave the host.
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
        """Whether the outputs are not numbers, so that no score is defined."""
        return isnan(self.loss_sum) and isnan(self.num_correct)


@dataclass(frozen=True)
class TrainRequest:
    """Settings of a train message, the same for all its clients.

    Attributes:
        received: The global vector, shape `(layout.size,)`.
        training: Epochs, batches, optimiser; a task defines what an epoch is.
        algorithm: The strategy's client algorithm; None for plain local training.
        table: Table from which each client takes settings that replace those of `training`.
        config: The message's configuration, for the algorithm.
        integers: Integer buffers of the received model, by name.
        auxiliary: Auxiliary vectors received with the model, by name.
        initial_loss: Whether to measure the received model on the training rows first.
        num_classes: Number of classes in the federation.
        seed: Seed of the trial.
        server_round: From 1.
    """

    received: Tensor
    training: LocalTraining
    algorithm: ClientAlgorithm | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    integers: Mapping[str, Tensor] = field(default_factory=dict)
    auxiliary: Mapping[str, Tensor] = field(default_factory=dict)
    initial_loss: bool = False
    num_classes: int = 0
    seed: int = 0
    server_round: int = 1
    table: SettingsLookup | None = None


@dataclass(frozen=True)
class ClientWork:
    """One client's part of a round.

    Attributes:
        client: Index of the client.
        generator: Draws the batches; from (seed, round, client).
        state: State of the client: the algorithm's entries, and those of a task.
        epochs: Multiple of the others' local epochs.
    """

    client: int
    generator: np.random.Generator
    state: ClientState
    epochs: int = field(default=1, kw_only=True)


@dataclass(frozen=True)
class AttackInputs:
    """Information available to an attack; arrays must not be modified.

    Attributes:
        received: x, the global parameters, trainable part, shape `(params,)`.
        trained: y, the result of the client's training, or of its previous attack; same shape.
        colluders: Trained parameters of those colluders that can train in this round, in their order, shape
            `(colluders, params)`.
        generator: Random generator of this attack: from (seed, round, client, position among the client's attacks).
    """

    received: FloatArray
    trained: FloatArray
    colluders: FloatArray
    generator: np.random.Generator


class UpdateAttack(Protocol):
    """A model poisoning attack: a picklable value."""

    @property
    def colluders(self) -> tuple[int, ...]:
        """Clients whose honest updates the attack uses, ascending, its own included if used; mostly empty."""

    def __call__(self, inputs: AttackInputs) -> FloatArray:
        """Return the parameters that are sent, float32, shape `(params,)`; values out of range count as diverged."""


@dataclass(frozen=True)
class TaskResult:
    """Result of one client's local steps; the trained vector is that of the model.

    Attributes:
        num_steps: Number of optimiser steps.
        loss: Mean over the steps.
        state: State that the task keeps for the client, under its own names (`"task/…"`).
    """

    num_steps: int
    loss: float
    state: ClientState


class ClientTask(Protocol):
    """A client task: a picklable value."""

    @property
    def score_name(self) -> str:
        """Name of the score, such as `reward`."""

    @property
    def largest_score(self) -> float:
        """The largest possible score, of which scores are shares."""

    def train(self, model: FlatModel, request: TrainRequest, work: ClientWork, correct: Correct | None) -> TaskResult:
        """Perform one client's local steps from the loaded model.

        Args:
            model: Modified in place.
            request: The train request; the part of a client algorithm is passed as `correct`.
            work: The client's part of the round; its generator is the only source of randomness.
            correct: Modifies the gradient of each step in place; receives weights and gradient of the trainable part.
        """

    def score(self, model: FlatModel, client: int, generator: np.random.Generator) -> npt.NDArray[np.float64]:
        """Return the repeated scores of the loaded model on one client, in `[0, 1]`, shape `(repeats,)`."""
