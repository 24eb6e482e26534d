"""Host calls, sessions and the contracts of strategies, selection policies and server work, as plain values.

What goes to a host and what comes back: plain values, so that a driver needs no torch to make or read them.

What a trial fixes for all its messages, so that a strategy that rewrites configurations can't lose it.

Work that a strategy has done on the server's side, where torch and the server's rows are.

A strategy aggregates on the driver, which has neither. What needs a model, such as distillation, is a frozen, picklable
value with one function, `run`, which a host calls: on vectors that the strategy sends along, with the model as
functions on flat vectors. A host keeps nothing of it, so the work can be repeated anywhere, bit for bit. Work that is
done on each of many models is given them one at a time, so that no host ever holds all of them.

Vectors are whole: trainable parameters, then buffers. This file needs no torch, as drivers read it, too.

What the engine asks of a strategy specification. The engine knows no strategy; it knows this contract.

Who trains in a round: what a selection policy is shown, what it answers, and what it is told afterwards.

A round asks a policy to `choose` some of the clients that can be reached, and ends with a `RoundReport` that it may
`observe`. In between the engine sends, trains and aggregates; a policy sees no model and no message. What a report
holds beside the losses of local training costs time on the clients, so a policy says what it looks at
(`ReportRequest`), and without one nothing is measured.

A policy's attributes are its state: a checkpoint holds them, so they must be plain values (numbers, texts, arrays,
dictionaries, lists). Its random numbers come with the call, from (seed, round). So a policy chooses the same clients on
any number of hosts, and after a kill.
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
from fedscout.engine.data.devices import Device
from fedscout.engine.messages.keys import OwnValue, is_own
from fedscout.engine.metrics import Metric, RowMeans, Sums
from fedscout.engine.models.layout import ParameterLayout

if TYPE_CHECKING:
    from flwr.serverapp.strategy import Strategy
    from torch import Tensor


@dataclass(frozen=True)
class Cohort:
    """The facts of a federation on which a strategy's construction and ranges depend.

    Attributes:
        num_clients: Clients in the federation.
        num_sampled: Clients that train in a round, in `[1, num_clients]`.
        client_learning_rate: The clients' step size.
        client_optimizer: Their optimiser.
        client_momentum: Its momentum.
        layers: Classes of the model's layers that hold parameters; None where they are not known.
        num_rounds: Rounds of a full training; None where it is not known.
        server_rows: Rows that the server holds; None where there are some, of data that are not read yet.
        server_labels: Whether it has their labels.
        classifies: Whether the model tells classes, and no quantity.
        chosen: Whether a selection policy says who trains, in the strategy's place.
        own_settings: Whether clients take rates, batches and epochs from a table, and tell nothing of their data.
        has_clock: Whether clients' rounds take simulated time; None where it is not known.
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


@dataclass(frozen=True)
class EngineNeeds:
    """What a strategy needs from the engine.

    Attributes:
        arrays: `"flat"`: one float32 vector under the key `"flat"`; `"named"`: one array per tensor of the model.
        replies: `"merged"`: one reply a round that holds the exact weighted mean; `"individual"`: one per client.
        weighted_by: The metric that weighs a merged mean: `"num-examples"`, `"num-clients"` for the uniform mean, or a
            sum of the client algorithm's, which must lie in [0, rows of the client].
        initial_loss: Whether train replies need `train_loss`, the loss of the received model on the training data.
        durations: Whether train replies need `simulated-seconds`, what the client's round took on the simulated clock;
            the strategy then says in its metrics what the round took.
        validation_share: Share of the training rows that clients keep for validation, unless the session has some
            already, in [0, 1).
        sees_evaluation: Whether the strategy configures and aggregates evaluation itself, besides the trial's own.
        queries: What the strategy asks of clients' data beside training, by the names of the queries.
    """

    arrays: Literal["flat", "named"] = "flat"
    replies: Literal["merged", "individual"] = "individual"
    weighted_by: str = "num-examples"
    initial_loss: bool = False
    durations: bool = False
    validation_share: float = 0.0
    sees_evaluation: bool = False
    queries: tuple[str, ...] = ()


class TrialStrategy(Protocol):
    """A validated, picklable choice of a strategy and its parameters."""

    @property
    def kind(self) -> str:
        """The name under which the strategy is chosen, such as `"fedavg"`."""
        ...

    @property
    def label(self) -> str:
        """The name in the log: the kind, unless several strategies share one."""
        ...

    def parameters(self) -> Mapping[str, Any]:
        """Return the parameters as JSON-able values."""
        ...

    def code(self) -> Mapping[str, str]:
        """Return the SHA-256 of each file of a user's own code that it is."""
        ...

    def needs(self) -> EngineNeeds:
        """Return what the engine must provide."""
        ...

    def client_algorithm(self) -> ClientAlgorithm | None:
        """Return what its clients do; None is plain local training."""
        ...

    def build(self, cohort: Cohort) -> Strategy:
        """Construct the Flower strategy.

        Raises:
            StrategyError: If the parameters do not fit the cohort.
        """
        ...

    def notes_after(self, cohort: Cohort, num_models: int) -> Sequence[str]:
        """Return what is worth knowing of a trial whose rounds gave so many models, each a sentence."""
        ...


@runtime_checkable
class TellsNotes(Protocol):
    """A strategy under way that has something to tell at the end of its trial."""

    def trial_notes(self) -> Sequence[str]:
        """Return what is worth knowing of the rounds that were, each a sentence."""
        ...


EvaluationPart = Literal["test", "validation", "train"]


@dataclass(frozen=True)
class Session:
    """The engine's side of a run of messages.

    Attributes:
        seed: Fixes split, initial model and batches.
        training: Local training, unless a message says otherwise.
        needs: What the strategy needs; decides how replies come unless a message says otherwise.
        algorithm: What the strategy has its clients do.
        client_table: By which clients choose settings of their own; None has all train alike.
        evaluate_on: The part of each client's rows that evaluation reads.
        metric: What is measured there beside accuracy; None measures nothing more.
        num_scored: Clients that score each model, >= 1, see `fedscout.engine.grid.selection`; None is all.
        worst_clients: Whether the mean score of the worst tenth of the clients is wanted, too.
        test_fraction: Share of test rows a client.
        validation_fraction: Share of validation rows, cut from the training rows.
        backend: `auto` lets the model decide how clients are trained, `loop` forbids the vectorised way.
        round_timeout_seconds: After which a host's part of a round is done client by client, and a client that takes
            as long alone has failed; None waits. See `hanging_clients`.
        hanging_clients: Whether a client that hangs in training is left out of the round, or fails the trial.
        deadline_seconds: Simulated seconds after which a client with latency is too late for the round; None waits.
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
    hanging_clients: Literal["drop", "fail"] = "drop"
    deadline_seconds: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what travels; a user's own algorithm brings along where it is imported from."""
        state = dict(self.__dict__)
        if self.algorithm is not None and is_own(self.algorithm):
            state["algorithm"] = OwnValue.of(self.algorithm)
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Take over what has travelled."""
        algorithm = state["algorithm"]
        opened = algorithm.opened() if isinstance(algorithm, OwnValue) else algorithm
        self.__dict__.update({**state, "algorithm": opened})


NO_SERVER_ROWS = "the server must hold rows for this (federation.server_rows, such as 200 or 0.1), it holds none"


@dataclass(frozen=True)
class ServerContext(ABC):
    """What work on the server may use. The model is in evaluation mode: dropout is off, statistics stay.

    Attributes:
        layout: Which part of a vector is which tensor.
        num_classes: Of the federation.
        num_rows: Rows of the server, at least one.
        labels: Of those rows, shape `(num_rows,)`; None where they are stripped.
        generator: Of this round's work; the same on every host, and after a repetition.
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
            rows: Of the server's, in `[0, num_rows)`; None means all, in order.
        """

    @abstractmethod
    def gradient(
        self, vector: Tensor, loss: Callable[[Tensor], Tensor], rows: IntArray | None = None
    ) -> tuple[float, Tensor]:
        """Return a loss and its gradient by the trainable part, shape `(layout.num_trainable,)`.

        Args:
            vector: The model, shape `(layout.size,)`; left as it is.
            loss: Of the outputs on the rows, a scalar.
            rows: As for `outputs`; they go through the model together.
        """


class ServerWork(Protocol):
    """A frozen, picklable value."""

    def run(self, context: ServerContext, arrays: Arrays) -> Arrays:
        """Return what the strategy wants to know, by name.

        Args:
            context: Model, rows and random numbers.
            arrays: What the strategy sent along; may be read-only.
        """
        ...


@runtime_checkable
class ServesWork(Protocol):
    """A grid that has a place for such work."""

    def serve(self, work: ServerWork, arrays: Arrays) -> Arrays:
        """Have the work of the present round done, and return what it returns.

        Raises:
            TrialError: If it fails.
        """
        ...

    def serve_each(self, work: ServerWork, inputs: Sequence[Arrays]) -> Iterator[Arrays]:
        """Have it done on each of some inputs, by all places there are, and yield what it returns, in order.

        None knows of the others, and each has the round's random numbers from their beginning.

        Raises:
            TrialError: If it fails for one.
        """
        ...


DoubleArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ReportRequest:
    """What a policy wants in its reports, beside what local training tells anyway.

    Attributes:
        training_losses: Of the received model on each client's training rows.
        validation_losses: On the validation rows, which the trial then cuts from the training rows.
        update_norms: How far local training moved each model.
        everybody: Whether clients that do not train measure the received model, too: they receive it, and pay for that.
    """

    training_losses: bool = False
    validation_losses: bool = False
    update_norms: bool = False
    everybody: bool = False

    @property
    def losses(self) -> bool:
        """Whether the received model is measured at all."""
        return self.training_losses or self.validation_losses


@dataclass(frozen=True)
class ClientTable:
    """The clients that can be reached in a round, one element each, ascending; arrays that can't be written to.

    Without those that could never train, whatever is drawn.

    Attributes:
        clients: Their numbers.
        num_examples: Local rows of each.
        seconds: What a round of each is expected to take on the simulated clock; 0 without one.
    """

    clients: IntArray
    num_examples: IntArray
    seconds: DoubleArray


@dataclass(frozen=True)
class Losses:
    """The received model on one part of each client's rows, means over the rows; NaN where there are none.

    With p a row's probabilities and y its label:

    Attributes:
        cross_entropy: −log p_y.
        squared: Its square.
        miss: 1 − p_y, of which the reverse cross-entropy is a multiple.
        entropy: −Σ p log p, the cross-entropy with the model's own outputs as labels.
    """

    cross_entropy: DoubleArray
    squared: DoubleArray
    miss: DoubleArray
    entropy: DoubleArray


@dataclass(frozen=True)
class RoundReport:
    """What a round told of its clients, formed before their models are merged.

    Arrays have one element for each client that answered, ascending: those that trained, and where a policy asked for
    everybody those that only measured. NaN stands for what a client did not tell.

    Attributes:
        server_round: From 1.
        clients: Who answered.
        trained: Whether each of them trained.
        num_examples: Training rows of each.
        num_steps: Optimiser steps, 0 of who did not train.
        seconds: How long each took on the simulated clock; 0 without one.
        loss: Mean loss over all rows seen in local training.
        update_norm: ‖y − x‖ over the trainable parameters, x the received model and y the one sent back.
        training: The received model on the training rows; None unless asked for.
        validation: The same on the validation rows.
        failures: Why the others that were chosen did not answer, by client.
        round_seconds: How long the round took: until the slowest answered, or the deadline.
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
    """What a policy has one chosen client do otherwise than the others.

    Attributes:
        epochs: Local epochs are so many times those of the others, at least 1.
        withheld: Share of the model's tensors, in [0, 1), that the client does not send: they are as it received them.
            Which ones is drawn from (seed, round, client).

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
    """Chooses who trains; made anew for each trial."""

    observes: ReportRequest = ReportRequest()

    @abstractmethod
    def choose(
        self, server_round: int, table: ClientTable, num_chosen: int, generator: np.random.Generator
    ) -> Sequence[int] | IntArray:
        """Return who trains in a round: `num_chosen` different clients of the table, in any order.

        Args:
            server_round: From 1.
            table: Who can be reached, at least `num_chosen` clients.
            num_chosen: M, how many are asked for. Only a policy that says so in its docstring returns another number.
            generator: Of this round.
        """

    def assign(self, table: ClientTable, chosen: Sequence[int]) -> Mapping[int, Assignment]:
        """Return what some of the chosen clients do otherwise; nobody does, unless a policy says so."""
        del table, chosen
        return {}

    def observe(self, report: RoundReport) -> None:
        """Take in what a round told; called after every round."""
        del report


class SelectionChoice(Protocol):
    """A validated, picklable choice of a policy and its parameters."""

    @property
    def kind(self) -> str:
        """The name under which the policy is chosen, such as `"oort"`."""
        ...

    @property
    def label(self) -> str:
        """The name in the log: the kind, unless several policies share one."""
        ...

    @property
    def validation_share(self) -> float:
        """Share of the training rows on which the policy has validation losses measured; 0 if it needs none."""
        ...

    def parameters(self) -> Mapping[str, Any]:
        """Return the parameters as JSON-able values."""
        ...

    def code(self) -> Mapping[str, str]:
        """Return the SHA-256 of each file of a user's own code that it is."""
        ...

    def build(self, cohort: Cohort) -> SelectionPolicy:
        """Construct the policy.

        Args:
            cohort: Its `num_clients` counts those that never train, too: clients' numbers are below it.

        Raises:
            StrategyError: If the parameters do not fit the cohort; carries every fault.
        """
        ...


LARGE_VECTOR_BYTES = 2**20
"""From here on a client's model, as what it keeps, is an object of its own in Ray's store; figures in `ray_grid.py`."""

Part = Literal["vectors", "companions", "states"]
"""What of a client may lie beside the results of its training."""


def state_bytes(state: ClientState) -> int:
    """Return the size of a state's arrays."""
    return sum(array.nbytes for array in state.values())


@dataclass(frozen=True)
class FederationFacts:
    """What the driver must know of a federation, without its data.

    Attributes:
        num_clients: Number of clients, unseen ones included.
        client_rows: Local rows of each client, shape `(num_clients,)`.
        num_classes: Number of classes.
        layout: The model's layout.
        corrupted_clients: Clients whose own and clean data differ.
        devices: See `Federation`.
        holds_rows: Whether clients hold labelled rows; not where they have a task of their own.
        unseen: Clients that take no part and are only scored.
        server_rows: Rows that the server holds.
        server_labels: Whether it has their labels.
        grouped: Whether clients know which of their rows belong together.
        classifies: Whether the model tells classes, and no quantity.
        ordered: Whether class numbers are places on a line: names that are numbers, or tenths of a quantity.
        trained_on: By which device, and in what way, in words.
        least_training_rows: From how many training rows a client takes part; 0 where the driver does not know.
    """

    num_clients: int
    client_rows: IntArray
    num_classes: int
    layout: ParameterLayout
    corrupted_clients: tuple[int, ...]
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
        """Number of clients that take part."""
        return self.num_clients - len(self.unseen)


@dataclass(frozen=True)
class RoundSelection:
    """What a selection policy has to do with a round of training.

    Attributes:
        observed: What it wants to be told of the clients.
        measured: Who measures the received model without training, ascending.
        assigned: What some of those that train do otherwise.
    """

    observed: ReportRequest
    measured: tuple[int, ...] = ()
    assigned: Mapping[int, Assignment] = field(default_factory=dict)


@dataclass(frozen=True)
class HostCall:
    """One piece of work: some clients, one content.

    Attributes:
        clients: Ascending.
        session: The trial's side.
        config: The message's configuration over the session's defaults.
        vector: The model, shape `(params,)`; None for a query.
        arrays: Those of a query; of a train call the integer buffers of the model that was sent by name.
        states: What these clients kept, and those of `evaluated` where scores depend on it.
        companions: Vectors that came beside the model.
        evaluated: Of a train call: clients that score `vector` before anybody trains, ascending.
        call_id: Tells it from all other calls, where a limit of time may have it repeated.
        work: What is done on the server's side, by a call without clients.
        inputs: What that is done on, one after the other.
        watched: Of a train call: what a selection policy wants of these clients; None without one.
    """

    clients: tuple[int, ...]
    session: Session
    config: Mapping[str, Any]
    vector: FloatArray | None = None
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    states: Mapping[int, ClientState] = field(default_factory=dict)
    companions: Mapping[str, FloatArray] = field(default_factory=dict)
    evaluated: tuple[int, ...] = ()
    call_id: str = ""
    work: ServerWork | OwnValue | None = None
    inputs: tuple[Arrays, ...] = ()
    watched: RoundSelection | None = None


@dataclass
class EvaluateResults:
    """Scores of the clients of one call.

    Attributes:
        own: Of each client on its rows as it has them.
        clean: On its rows as they were before a corruption, of clients with one.
        failures: Reason of each that has no score.
        seconds: Time spent.
        received: Under the model that was sent, of clients that take part where an algorithm has them use another.
        sums: Of the session's metric over all clients, `own`, `clean` and `received` of those that take part, `unseen`
            of the others.
    """

    own: dict[int, ClientScore] = field(default_factory=dict)
    clean: dict[int, ClientScore] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    received: dict[int, ClientScore] = field(default_factory=dict)
    sums: dict[str, Sums] = field(default_factory=dict)


@dataclass
class TrainResults:
    """Answers of the clients of one call; per-client lists are aligned with `clients`.

    Attributes:
        clients: Who trained.
        num_examples: Training rows.
        num_steps: Optimiser steps.
        losses: Mean training loss.
        initial_losses: Loss of the received model, where asked for.
        vectors: The trained model of each client, shape `(params,)`; None if merged, or while they lie beside the
            results.
        total: Exact sum of the scaled vectors, or None if individual, or if nobody trained.
        sum_elsewhere: Whether that and those of companions are part of another host's.
        companions: Vectors that go up beside the model, by name, one of each client; none if merged, or while they lie
            beside the results.
        companion_totals: Their exact sums, none if individual.
        sums: Scalars that add up over clients, by name.
        diverged: Clients whose parameters or companions can't enter an exact sum.
        states: New client states.
        slots: Clients of whom something may lie beside the results, in the order in which it does.
        large: Clients whose new states do.
        failures: Reason of each client that raised, or that did not finish in time.
        hanging: Clients that did not finish in time.
        evaluation: Scores of the received model, if clients were named for that.
        received_losses: Of the received model, by part of the rows and client, where a policy wants them.
        update_norms: How far training moved each model, likewise.
        num_withheld: Values of the models that clients did not send, over all of them.
        durations: Simulated seconds that the round takes each client of the call, also those that miss it or come late;
            none where no client's rounds take any. Of one that hangs, how long it is waited for.
        memory_note: What the host did as its device's memory ran out; nothing if it did not.
        seconds: Time spent.
    """

    clients: list[int] = field(default_factory=list)
    num_examples: list[int] = field(default_factory=list)
    num_steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    initial_losses: list[float] = field(default_factory=list)
    vectors: list[FloatArray] | None = None
    total: IntArray | None = None
    sum_elsewhere: bool = False
    companions: dict[str, list[FloatArray]] = field(default_factory=dict)
    companion_totals: dict[str, IntArray] = field(default_factory=dict)
    sums: dict[str, list[float]] = field(default_factory=dict)
    diverged: list[int] = field(default_factory=list)
    states: dict[int, Any] = field(default_factory=dict)
    slots: list[int] = field(default_factory=list)
    large: list[int] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)
    hanging: list[int] = field(default_factory=list)
    evaluation: EvaluateResults | None = None
    received_losses: dict[str, dict[int, RowMeans]] = field(default_factory=dict)
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
    """What work on the server gave.

    Attributes:
        outputs: By name, of each input.
        failure: Why there are none; None if there are.
        seconds: Time spent.
    """

    outputs: list[Arrays] = field(default_factory=list)
    failure: str | None = None
    seconds: float = 0.0
