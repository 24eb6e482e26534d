"""Host calls, sessions, and the interfaces of strategies, selection policies and server-side work.

All are plain values that need no torch, because the driver creates and reads them, too.

Sessions: `Session` holds the settings that are fixed for all messages of a trial, so that a strategy that rewrites
configurations can't lose them.

Strategies: `TrialStrategy` is the interface through which the engine uses any strategy; the engine depends on no
particular one.

Server-side work: a strategy aggregates on the driver, which has neither torch nor the server's rows. Work that needs a
model, such as distillation, is a frozen, picklable value with one method, `run`, which a host calls with the vectors
that the strategy sends; the model is available as functions of flat vectors. A host keeps no state of it, so the work
can be repeated on any host with bitwise identical results. Work on many models receives them one at a time, so that no
host holds all of them. Vectors are whole: trainable parameters, then buffers.

Selection policies: in each round, a policy is asked to `choose` clients from those available; the round ends with a
`RoundReport` that it may `observe`. In between the engine sends, trains and aggregates; a policy sees no model and no
message. Measurements in a report other than the losses of local training cost the clients time, so a policy declares
the ones it uses (`ReportRequest`); nothing is measured without a policy. A policy's attributes are its state and are
stored in checkpoints, so they must be plain values (numbers, strings, arrays, dictionaries, lists). Its random numbers
are passed with the call and derived from (seed, round). A policy therefore chooses the same clients on any number of
hosts and after a restart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientScore, ClientState
from fedscout.engine.contracts.client_table import SettingsLookup
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Arrays
from fedscout.engine.data.federation import Device
from fedscout.engine.messages.keys import OwnValue, is_own
from fedscout.engine.metrics import Metric, Sums
from fedscout.engine.models.layout import ParameterLayout

if TYPE_CHECKING:
    from flwr.serverapp.strategy import Strategy
    from torch import Tensor


@dataclass(frozen=True)
class Cohort:
    """The facts of a federation on which a strategy's construction and search ranges depend.

    Attributes:
        num_clients: Clients in the federation.
        num_sampled: Clients that train in a round, in `[1, num_clients]`.
        client_learning_rate: The clients' learning rate.
        client_optimizer: The clients' optimiser.
        client_momentum: The optimiser's momentum.
        layers: Class names of the model's layers that hold parameters; None if unknown.
        num_rounds: Rounds of a full training; None if unknown.
        server_rows: Rows that the server holds; None if there are some, but the data are not loaded yet.
        server_labels: Whether the server's rows are labelled.
        classifies: Whether the model is a classifier; False for regression.
        chosen: Whether a selection policy samples the clients instead of the strategy.
        own_settings: Whether clients take learning rate, batch size and epochs from a table, and disclose nothing about
            their data.
        has_clock: Whether clients' rounds take simulated time; None if unknown.
        noisy: Whether clients answer queries about their data only with noise.
        convolutional: Whether the model is a network for images, other than a dense one.
    """

    num_clients: int
    num_sampled: int
    client_learning_rate: float
    client_optimizer: str = "sgd"
    client_momentum: float = 0.0
    layers: frozenset[str] | None = None
    num_rounds: int | None = None
    server_rows: int | None = 0
    server_labels: bool = False
    classifies: bool = True
    chosen: bool = False
    own_settings: bool = False
    has_clock: bool | None = None
    noisy: bool = False
    convolutional: bool = False


@dataclass(frozen=True)
class EngineNeeds:
    """What a strategy requires from the engine.

    Attributes:
        arrays: `"flat"`: one float32 vector under the key `"flat"`; `"named"`: one array per tensor of the model.
        replies: `"merged"`: one reply per round with the exact weighted mean; `"individual"`: one reply per client.
        weighted_by: The metric that weights a merged mean: `"num-examples"`, `"num-clients"` for the uniform mean, or a
            sum reported by the client algorithm, which must lie in [0, rows of the client].
        initial_loss: Whether train replies need `train_loss`, the loss of the received model on the training data.
        durations: Whether train replies need `simulated-seconds`, the simulated duration of the client's round; the
            strategy then reports the duration of the round in its metrics.
        validation_share: Share of the training rows that clients keep for validation, unless the session already keeps
            some, in [0, 1).
        sees_evaluation: Whether the strategy configures and aggregates evaluation itself, in addition to the trial's
            own.
        queries: Names of the client queries that the strategy sends.
    """

    arrays: Literal["flat", "named"] = "flat"
    replies: Literal["merged", "individual"] = "individual"
    weighted_by: str = "num-examples"
    initial_loss: bool = False
    durations: bool = False
    validation_share: float = 0.0
    sees_evaluation: bool = False
    queries: tuple[str, ...] = ()


class Choice(Protocol):
    """A validated, picklable choice of a strategy or a selection policy, with its parameters."""

    @property
    def kind(self) -> str:
        """The name under which it is chosen, such as `"fedavg"` or `"oort"`."""

    @property
    def label(self) -> str:
        """The name in the log: the kind, unless several share the kind."""

    def parameters(self) -> Mapping[str, Any]:
        """Return the parameters as JSON-able values."""

    def code(self) -> Mapping[str, str]:
        """Return the SHA-256 of each file of the user's own code that defines it."""


class TrialStrategy(Choice, Protocol):
    """A strategy choice."""

    def needs(self) -> EngineNeeds:
        """Return what the strategy requires from the engine."""

    def client_algorithm(self) -> ClientAlgorithm | None:
        """Return the client algorithm; None for plain local training."""

    def build(self, cohort: Cohort) -> Strategy:
        """Construct the Flower strategy.

        Raises:
            StrategyError: If the parameters do not fit the cohort.
        """

    def notes_after(self, cohort: Cohort, num_models: int) -> Sequence[str]:
        """Return remarks about a trial, each a sentence, given the number of models that its rounds returned."""


@runtime_checkable
class ReportsNotes(Protocol):
    """A running strategy that has remarks to report at the end of its trial."""

    def trial_notes(self) -> Sequence[str]:
        """Return remarks about the completed rounds, each a sentence."""


EvaluationPart = Literal["test", "validation", "train"]


@dataclass(frozen=True)
class Session:
    """Engine settings that hold for all messages of a trial.

    Attributes:
        seed: Determines split, initial model and batches.
        training: Default local training; a message may override it.
        needs: The strategy's requirements; determine the default form of replies.
        algorithm: The strategy's client algorithm.
        client_table: Table by which clients choose their own settings; None if all clients train alike.
        evaluate_on: The part of each client's rows that is used for evaluation.
        metric: Metric measured in addition to accuracy; None for none.
        num_scored: Number of clients that score each model, >= 1, see `fedscout.engine.grid.selection`; None for all.
        worst_clients: Whether to report the mean score of the worst tenth of the clients, too.
        test_fraction: Share of test rows per client.
        validation_fraction: Share of validation rows, cut from the training rows.
        backend: `auto` chooses the training backend by the model, `loop` disables vectorised training.
        round_timeout_seconds: Time limit of a host's part of a round. When it is exceeded, the part is repeated client
            by client, and a client that alone exceeds it has failed. None for no limit.
        deadline_seconds: Simulated seconds after which a client's answer is too late for the round; None for no
            deadline.
    """

    seed: int = 0
    training: LocalTraining = field(default_factory=LocalTraining)
    needs: EngineNeeds = field(default_factory=EngineNeeds)
    algorithm: ClientAlgorithm | None = None
    client_table: SettingsLookup | None = None
    evaluate_on: EvaluationPart = "test"
    metric: Metric | None = None
    num_scored: int | None = None
    worst_clients: bool = False
    test_fraction: float = 0.2
    validation_fraction: float = 0.0
    backend: Literal["auto", "loop"] = "auto"
    round_timeout_seconds: float | None = None
    deadline_seconds: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the pickled state; a user's own algorithm includes the folder it is imported from."""
        state = dict(self.__dict__)
        if self.algorithm is not None and is_own(self.algorithm):
            state["algorithm"] = OwnValue.of(self.algorithm)
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Restore the pickled state."""
        algorithm = state["algorithm"]
        loaded = algorithm.opened() if isinstance(algorithm, OwnValue) else algorithm
        self.__dict__.update({**state, "algorithm": loaded})


@dataclass(frozen=True)
class ServerContext(ABC):
    """Model, rows and random numbers that server-side work may use.

    The model is in evaluation mode: dropout is off, batch statistics do not change.

    Attributes:
        layout: Layout of tensors in a vector.
        num_classes: Number of classes in the federation.
        num_rows: Rows of the server, at least one.
        labels: Labels of those rows, shape `(num_rows,)`; None if they are stripped.
        generator: Random generator of this round's work; the same on every host and after a repetition.
    """

    layout: ParameterLayout
    num_classes: int
    num_rows: int
    labels: Tensor | None
    generator: np.random.Generator

    @abstractmethod
    def outputs(self, vector: Tensor, rows: IntArray | None = None) -> Tensor:
        """Return a model's outputs (logits), without gradient, shape `(rows, num_classes)`.

        Args:
            vector: The model, shape `(layout.size,)`.
            rows: Indices of server rows in `[0, num_rows)`; None means all, in order.
        """

    @abstractmethod
    def gradient(
        self, vector: Tensor, loss: Callable[[Tensor], Tensor], rows: IntArray | None = None
    ) -> tuple[float, Tensor]:
        """Return a loss and its gradient with respect to the trainable part, shape `(layout.num_trainable,)`.

        Args:
            vector: The model, shape `(layout.size,)`; not modified.
            loss: Function of the outputs on the rows; returns a scalar.
            rows: As for `outputs`; they are passed through the model as one batch.
        """


class ServerWork(Protocol):
    """Server-side work: a frozen, picklable value."""

    def run(self, context: ServerContext, arrays: Arrays) -> Arrays:
        """Return the results that the strategy needs, by name.

        Args:
            context: Model, rows and random numbers.
            arrays: Arrays sent by the strategy; may be read-only.
        """


@runtime_checkable
class ServesWork(Protocol):
    """A grid that can execute server-side work."""

    def serve(self, work: ServerWork, arrays: Arrays) -> Arrays:
        """Execute the server-side work of the current round, and return its results.

        Raises:
            TrialError: If it fails.
        """

    def serve_each(self, work: ServerWork, inputs: Sequence[Arrays]) -> Iterator[Arrays]:
        """Execute server-side work on each of several inputs, in parallel, and yield the results in order.

        Inputs are independent; for each, the random generator of the round starts from the beginning.

        Raises:
            TrialError: If it fails for one.
        """


DoubleArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ReportRequest:
    """Measurements that a policy needs in its reports, in addition to those of local training.

    Attributes:
        training_losses: Losses of the received model on each client's training rows.
        validation_losses: Losses on the validation rows, which the trial then cuts from the training rows.
        update_norms: Norm of the model change by local training.
        include_idle_clients: Whether clients that do not train measure the received model, too: they receive it, at a
            cost.
    """

    training_losses: bool = False
    validation_losses: bool = False
    update_norms: bool = False
    include_idle_clients: bool = False

    @property
    def losses(self) -> bool:
        """Whether the received model is measured at all."""
        return self.training_losses or self.validation_losses


@dataclass(frozen=True)
class ClientTable:
    """The clients that are available in a round, one element each, ascending; arrays are read-only.

    Clients that can never train, whatever is drawn, are excluded.

    Attributes:
        clients: Client indices.
        num_examples: Local rows of each client.
        seconds: Expected simulated duration of a round for each client; 0 without a simulated clock.
    """

    clients: IntArray
    num_examples: IntArray
    seconds: DoubleArray


@dataclass(frozen=True)
class Losses:
    """Losses of the received model on one part of each client's rows, means over the rows; NaN without rows.

    With p the probabilities of a row and y its label:

    Attributes:
        cross_entropy: −log p_y.
        squared: The squared cross-entropy.
        miss: 1 − p_y; the reverse cross-entropy is a multiple of it.
        entropy: −Σ p log p, the cross-entropy with the model's own outputs as labels.
    """

    cross_entropy: DoubleArray
    squared: DoubleArray
    miss: DoubleArray
    entropy: DoubleArray


@dataclass(frozen=True)
class RoundReport:
    """Report of a round's clients, created before their models are merged.

    Arrays have one element for each client that answered, ascending: clients that trained and, if a policy requests
    `include_idle_clients`, clients that only measured. NaN marks missing values.

    Attributes:
        server_round: From 1.
        clients: Clients that answered.
        trained: Whether each of them trained.
        num_examples: Training rows of each.
        num_steps: Optimiser steps, 0 for clients that did not train.
        seconds: Simulated duration of each client's round; 0 without a simulated clock.
        loss: Mean loss over all rows seen in local training.
        update_norm: ‖y − x‖ over the trainable parameters, x the received model and y the one sent back.
        training: Losses of the received model on the training rows; None unless requested.
        validation: Losses on the validation rows; None unless requested.
        failures: Reasons why the other chosen clients did not answer, by client.
        round_seconds: Duration of the round: until the slowest client answered, or the deadline.
    """

    server_round: int
    clients: IntArray
    trained: npt.NDArray[np.bool_]
    num_examples: IntArray
    num_steps: IntArray
    seconds: DoubleArray
    loss: DoubleArray
    update_norm: DoubleArray
    training: Losses | None = None
    validation: Losses | None = None
    failures: Mapping[int, str] = field(default_factory=dict)
    round_seconds: float = 0.0


@dataclass(frozen=True)
class Assignment:
    """Deviation of one chosen client's work from that of the others.

    Attributes:
        epochs: Multiple of the others' local epochs, at least 1.
        withheld: Share of the model's tensors, in [0, 1), that the client does not send: they keep the received values.
            They are drawn from (seed, round, client).

    Raises:
        ValueError: If one of them is out of its range.
    """

    epochs: int = 1
    withheld: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.epochs, Integral) or self.epochs < 1:
            raise ValueError(f"epochs of an Assignment must be a whole number, at least 1, got {self.epochs!r}")
        if not 0 <= self.withheld < 1:
            raise ValueError(f"withheld of an Assignment must be in [0, 1), got {self.withheld!r}")


class SelectionPolicy(ABC):
    """Chooses the clients that train in each round; one instance per trial."""

    observes: ReportRequest = ReportRequest()

    @abstractmethod
    def choose(
        self, server_round: int, table: ClientTable, num_chosen: int, generator: np.random.Generator
    ) -> Sequence[int] | IntArray:
        """Return the clients that train in a round: `num_chosen` different clients of the table, in any order.

        Args:
            server_round: From 1.
            table: The available clients, at least `num_chosen`.
            num_chosen: M, the number of clients to choose. A policy may return another number only if its docstring
                says so.
            generator: Random generator of this round.
        """

    def assign(self, table: ClientTable, chosen: Sequence[int]) -> Mapping[int, Assignment]:
        """Return deviating work of chosen clients by client; none by default."""
        return {}

    def observe(self, report: RoundReport) -> None:
        """Process the report of a round; called after every round."""
        del report


class SelectionChoice(Choice, Protocol):
    """A policy choice."""

    @property
    def validation_share(self) -> float:
        """Share of the training rows that the policy needs for validation losses; 0 if it needs none."""

    def build(self, cohort: Cohort) -> SelectionPolicy:
        """Construct the policy.

        Args:
            cohort: Its `num_clients` includes clients that never train: client indices are below it.

        Raises:
            StrategyError: If the parameters do not fit the cohort; lists every fault.
        """


LARGE_VECTOR_BYTES = 2**20
"""From this size a client's model, or its state, is a separate object in Ray's store; measurements in `ray_grid.py`."""

Part = Literal["vectors", "auxiliary", "states"]
"""What of a client may lie beside the results of its training."""


def state_bytes(state: ClientState) -> int:
    """Return the size of a state's arrays."""
    return sum(array.nbytes for array in state.values())


@dataclass(frozen=True)
class FederationFacts:
    """Facts of a federation that the driver needs, without its data.

    Attributes:
        num_clients: Number of clients, including unseen ones.
        client_rows: Local rows of each client, shape `(num_clients,)`.
        num_classes: Number of classes.
        layout: The model's layout.
        devices: See `Federation`.
        holds_rows: Whether clients hold labelled rows; False if they have a task of their own.
        unseen: Clients that never train and are only scored.
        server_rows: Rows that the server holds.
        server_labels: Whether the server's rows are labelled.
        grouped: Whether clients' rows have groups.
        classifies: Whether the model is a classifier; False for regression.
        ordered: Whether classes are ordinal: their names are numbers, or they are tenths of a regression target.
        trained_on: Description of the device and the training backend.
        least_training_rows: Minimum number of training rows of a participating client; 0 if the driver does not know
            it.
    """

    num_clients: int
    client_rows: IntArray
    num_classes: int
    layout: ParameterLayout
    devices: Mapping[int, Device] = field(default_factory=dict)
    holds_rows: bool = True
    unseen: frozenset[int] = frozenset()
    server_rows: int = 0
    server_labels: bool = False
    grouped: bool = False
    classifies: bool = True
    ordered: bool = True
    trained_on: str = ""
    least_training_rows: int = 0

    @property
    def num_seen(self) -> int:
        """Number of clients that take part in training."""
        return self.num_clients - len(self.unseen)


@dataclass(frozen=True)
class RoundSelection:
    """A selection policy's requests for one round of training.

    Attributes:
        observed: Measurements requested from the clients.
        measured: Clients that measure the received model without training, ascending.
        assigned: Deviating work by client.
    """

    observed: ReportRequest
    measured: tuple[int, ...] = ()
    assigned: Mapping[int, Assignment] = field(default_factory=dict)


@dataclass(frozen=True)
class HostCall:
    """One unit of work for a host: some clients, one content.

    Attributes:
        clients: Ascending.
        session: Settings of the trial.
        config: The message's configuration merged over the session's defaults.
        vector: The model, shape `(params,)`; None for a query.
        arrays: Arrays of a query; for a train call, the integer buffers of a model that was sent by tensor name.
        states: Client states of these clients, and of those in `evaluated` if scores depend on states.
        auxiliary: Auxiliary vectors sent with the model.
        evaluated: For a train call: clients that score `vector` before any client trains, ascending.
        call_id: Unique id of the call if it may be repeated because of a time limit.
        work: Server-side work, for a call without clients.
        inputs: Inputs of the server-side work, which is run on each in turn.
        watched: For a train call: a selection policy's requests for these clients; None without a policy.
    """

    clients: tuple[int, ...]
    session: Session
    config: Mapping[str, Any]
    vector: FloatArray | None = None
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    states: Mapping[int, ClientState] = field(default_factory=dict)
    auxiliary: Mapping[str, FloatArray] = field(default_factory=dict)
    evaluated: tuple[int, ...] = ()
    call_id: str = ""
    work: ServerWork | OwnValue | None = None
    inputs: tuple[Arrays, ...] = ()
    watched: RoundSelection | None = None


@dataclass
class EvaluateResults:
    """Scores of the clients of one call.

    Attributes:
        own: Scores on each client's observed rows.
        clean: Scores on uncorrupted rows, for clients with corrupted data.
        failures: Reason of each client without a score.
        seconds: Time spent.
        received: Scores of the received model for participating clients, if an algorithm scores them with another
            model.
        sums: Sums of the session's metric over all clients: `own`, `clean` and `received` of participating clients,
            `unseen` of the others.
    """

    own: dict[int, ClientScore] = field(default_factory=dict)
    clean: dict[int, ClientScore] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    received: dict[int, ClientScore] = field(default_factory=dict)
    sums: dict[str, Sums] = field(default_factory=dict)


@dataclass
class TrainResults:
    """Training results of the clients of one call; per-client lists are aligned with `clients`.

    Attributes:
        clients: Clients that trained.
        num_examples: Training rows.
        num_steps: Optimiser steps.
        losses: Mean training loss.
        initial_losses: Loss of the received model, if requested.
        vectors: The trained model of each client, shape `(params,)`; None if merged, or while stored separately.
        total: Exact sum of the scaled vectors; None if individual, or if no client trained.
        in_another_sum: Whether `total` and `auxiliary_totals` are included in the sums of another host.
        auxiliary: Auxiliary vectors returned with the model, by name, one per client; empty if merged, or while stored
            separately.
        auxiliary_totals: Exact sums of the auxiliary vectors; empty if individual.
        sums: Additive scalars by name.
        diverged: Clients whose parameters or auxiliary vectors can't enter an exact sum.
        states: New client states.
        slots: Clients of the separately stored objects, in the order of the objects.
        large: Clients whose new states are stored separately.
        failures: Reason of each client that raised, or that did not finish in time.
        evaluation: Scores of the received model, if requested.
        received_losses: Scores of the received model by `RowLosses`, by part and client, if a policy requests them.
        update_norms: Norm of the model change by training, if a policy requests it.
        num_withheld: Number of model values that clients did not send, over all clients.
        durations: Simulated duration of the round for each client of the call, including those that miss it or are
            late; empty if the federation has no devices. For a hanging client, the time that is waited for it.
        memory_note: How the host reacted to running out of device memory; empty if it did not.
        seconds: Time spent.
    """

    clients: list[int] = field(default_factory=list)
    num_examples: list[int] = field(default_factory=list)
    num_steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    initial_losses: list[float] = field(default_factory=list)
    vectors: list[FloatArray] | None = None
    total: IntArray | None = None
    in_another_sum: bool = False
    auxiliary: dict[str, list[FloatArray]] = field(default_factory=dict)
    auxiliary_totals: dict[str, IntArray] = field(default_factory=dict)
    sums: dict[str, list[float]] = field(default_factory=dict)
    diverged: list[int] = field(default_factory=list)
    states: dict[int, Any] = field(default_factory=dict)
    slots: list[int] = field(default_factory=list)
    large: list[int] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)
    evaluation: EvaluateResults | None = None
    received_losses: dict[str, dict[int, ClientScore]] = field(default_factory=dict)
    update_norms: dict[int, float] = field(default_factory=dict)
    num_withheld: int = 0
    durations: dict[int, float] = field(default_factory=dict)
    memory_note: str = ""
    seconds: float = 0.0


@dataclass
class QueryResults:
    """Aggregates of the clients of one call; lists are aligned with `clients`."""

    clients: list[int] = field(default_factory=list)
    num_examples: list[int] = field(default_factory=list)
    arrays: list[Arrays] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass
class ServeResults:
    """Results of server-side work.

    Attributes:
        outputs: Outputs by name, for each input.
        failure: Reason of a failure; None on success.
        seconds: Time spent.
    """

    outputs: list[Arrays] = field(default_factory=list)
    failure: str | None = None
    seconds: float = 0.0
