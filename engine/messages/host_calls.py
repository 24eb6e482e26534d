"""What goes to a host and what comes back: plain values, so that a driver needs no torch to make or read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy.typing as npt

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.client_algorithm import ClientState
from fedscout.engine.contracts.client_selection import Assignment, Observed
from fedscout.engine.contracts.client_update import ClientScore
from fedscout.engine.contracts.server_work import ServerWork
from fedscout.engine.data.device import Device
from fedscout.engine.data.release import Arrays
from fedscout.engine.messages.own_value import OwnValue
from fedscout.engine.messages.session import Session
from fedscout.engine.metrics.metric import Sums
from fedscout.engine.metrics.row_losses import RowMeans
from fedscout.engine.model.parameter_layout import ParameterLayout

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
class Watched:
    """What a selection policy has to do with a round of training.

    Attributes:
        observed: What it wants to be told of the clients.
        measured: Who measures the received model without training, ascending.
        assigned: What some of those that train do otherwise.
    """

    observed: Observed
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
    watched: Watched | None = None


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
