"""Client selection on the grid's side: reports of clients, chosen nodes, clients that can answer, expected durations.

What a selection policy wants of a round's clients, and what hosts tell of them before replies are merged.

Who can train at all in the rounds of a session, as a driver knows it: whoever can't would be asked for ever in vain.

A client is left out only where that is certain. Of how many rows it trains on a driver knows the number, and where rows
come in groups, of which whole ones are drawn, only that they are no more than it holds. What a message says of local
training beside the session, as a user's own strategy may have it do, nobody expects.

A grid that shows a strategy only those nodes that a selection policy chose, so that it trains them and no others.

Who scores the models of a trial: all clients, or as many as the session says (`Session.num_scored`).

With very many clients the scores of some thousands say as much, and a round costs what those cost that take part. They
are drawn once, from the seed: the same in every round and for every strategy, so that rounds and strategies are
compared on the same clients. A confirmation's seeds draw others. Nobody is drawn who certainly has no rows to be scored
on, or so few that it abstains.

What a round is expected to take each client on the simulated clock, as a driver knows it: without a draw.

Of a client the driver knows how many rows it holds and what share of them trains; where rows come in groups, of which
whole ones are drawn, that is near the truth. Where clients play, an epoch counts as one step. Companions that a server
sends are not known beforehand and left out of the bytes; those that go up are counted. That a client will hang nobody
expects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.serverapp import Grid

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.algorithm import ClientAlgorithm
from fedscout.engine.data.devices import Device, RoundWork
from fedscout.engine.data.split import num_part_rows, num_training_rows
from fedscout.engine.messages.calls import (
    DoubleArray,
    FederationFacts,
    Losses,
    RoundReport,
    RoundSelection,
    SelectionPolicy,
    Session,
    TrainResults,
)
from fedscout.engine.messages.contents import client_of
from fedscout.engine.messages.keys import client_bytes_down, client_bytes_up
from fedscout.engine.metrics import RowMeans
from fedscout.engine.seeds import stream

NOTHING = RowMeans.of(0, None)


class ClientReports:
    """Deals out what a policy wants of a round's train calls, and gathers their results.

    Attributes:
        watched: What the policy has to do with this round; None without one.
    """

    def __init__(self) -> None:
        self.watched: RoundSelection | None = None
        self._results: list[TrainResults] = []

    def to_measure(self) -> tuple[int, ...]:
        """Return who measures without training; whoever asks first has them do it."""
        if self.watched is None or not self.watched.measured:
            return ()
        measured, self.watched = self.watched.measured, replace(self.watched, measured=())
        return measured

    def wanted_of(self, trained: Iterable[int], measured: tuple[int, ...]) -> RoundSelection | None:
        """Return what the policy wants of a call's clients; None without one."""
        if self.watched is None:
            return None
        assigned = self.watched.assigned
        return replace(self.watched, measured=measured, assigned={c: assigned[c] for c in trained if c in assigned})

    def add(self, results: Iterable[TrainResults]) -> None:
        """Take in what hosts answered, without the models; nothing is kept without a policy."""
        if self.watched is None:
            return
        self._results += [replace(one, vectors=None, total=None, companions={}, states={}) for one in results]

    def take(self, server_round: int, seconds: Mapping[int, float], round_seconds: float) -> RoundReport:
        """Return what a policy's round told, and forget the round.

        Args:
            server_round: From 1.
            seconds: Simulated, by client; who is not named took none.
            round_seconds: Of the whole round.
        """
        assert self.watched is not None
        observed, self.watched = self.watched.observed, None
        results, self._results = self._results, []
        trained = {
            client: (num_examples, num_steps, loss)
            for one in results
            for client, num_examples, num_steps, loss in zip(
                one.clients, one.num_examples, one.num_steps, one.losses, strict=True
            )
        }
        training, validation = (_joined(results, part) for part in ("train", "validation"))
        norms = {client: norm for one in results for client, norm in one.update_norms.items()}
        clients = sorted({*trained, *training, *validation})
        told = [trained.get(client, (training.get(client, NOTHING).num_examples, 0, np.nan)) for client in clients]
        return RoundReport(
            server_round=server_round,
            clients=np.array(clients, np.int64),
            trained=np.array([client in trained for client in clients], np.bool_),
            num_examples=np.array([num_examples for num_examples, _, _ in told], np.int64),
            num_steps=np.array([num_steps for _, num_steps, _ in told], np.int64),
            seconds=np.array([seconds.get(client, 0.0) for client in clients]),
            loss=np.array([loss for _, _, loss in told]),
            update_norm=np.array([norms.get(client, np.nan) for client in clients]),
            training=_losses(clients, training) if observed.training_losses else None,
            validation=_losses(clients, validation) if observed.validation_losses else None,
            failures={client: reason for one in results for client, reason in one.failures.items()},
            round_seconds=round_seconds,
        )


def _joined(results: Sequence[TrainResults], part: str) -> dict[int, RowMeans]:
    return {client: means for one in results for client, means in one.received_losses.get(part, {}).items()}


def _losses(clients: Sequence[int], means: Mapping[int, RowMeans]) -> Losses:
    """Return the columns of some clients' means."""

    def column(name: str) -> DoubleArray:
        return np.array([getattr(means.get(client, NOTHING), name) for client in clients], np.float64)

    return Losses(*(column(name) for name in ("cross_entropy", "squared", "miss", "entropy")))


def expected_seconds(facts: FederationFacts, session: Session) -> DoubleArray:
    """Return the mean duration of each client's round, shape `(num_clients,)`; 0 of clients without a device."""
    return _each(facts, session, Device.expected_seconds)


def least_seconds(facts: FederationFacts, session: Session) -> DoubleArray:
    """Return the least duration of each client's round, shape `(num_clients,)`."""
    return _each(facts, session, Device.least_seconds)


def shortest_seconds(facts: FederationFacts, session: Session, sends_all: bool = True) -> DoubleArray:
    """Return what no round of a client is shorter than, likewise: the least duration with the least work there can be.

    Of rows in groups that is a step an epoch, and where clients have settings of their own a single step.

    Args:
        facts: Of the clients.
        session: Of the trial.
        sends_all: Whether each client sends its whole model; else nothing counts that goes up.
    """
    algorithm, steps = session.algorithm, _steps(facts, session)
    chooses = algorithm is not None and type(algorithm).settings is not ClientAlgorithm.settings
    if session.client_table is not None or chooses:
        steps = np.minimum(steps, 1)
    elif facts.grouped:
        steps = np.minimum(steps, session.training.local_epochs)
    return _each(facts, session, Device.least_seconds, steps, sends_all)


def probe_seconds(facts: FederationFacts, session: Session) -> DoubleArray:
    """Return what it takes each client to receive the model and measure it, without training, likewise."""
    epochs = session.training.local_epochs
    return _each(facts, session, lambda device, work: device.probe_seconds(work, epochs))


def _each(
    facts: FederationFacts,
    session: Session,
    seconds: Callable[[Device, RoundWork], float],
    steps: IntArray | None = None,
    sends_all: bool = True,
) -> DoubleArray:
    """Return a duration of each client's, from its device and its work."""
    down = client_bytes_down(facts.layout, session.algorithm, ())
    up = client_bytes_up(facts.layout, session.algorithm) if sends_all else 0
    steps = _steps(facts, session) if steps is None else steps
    found = np.zeros(facts.num_clients)
    for client, device in facts.devices.items():
        found[client] = seconds(device, RoundWork(int(steps[client]), down, up))
    return found


def _steps(facts: FederationFacts, session: Session) -> IntArray:
    """Return the optimiser steps of each client's round, shape `(num_clients,)`."""
    rows = num_training_rows(facts.client_rows, session.test_fraction, session.validation_fraction)
    return session.training.num_steps(rows) if facts.holds_rows else np.full(len(rows), session.training.local_epochs)


Mask = npt.NDArray[np.bool_]


def abstaining_clients(facts: FederationFacts, session: Session) -> Mask:
    """Return who has too few training rows to take part, shape `(num_clients,)`."""
    rows = facts.client_rows
    if not facts.grouped:
        rows = num_training_rows(rows, session.test_fraction, session.validation_fraction)
    return np.asarray(rows < facts.least_training_rows)


def late_clients(facts: FederationFacts, session: Session, policy: SelectionPolicy) -> Mask:
    """Return whose every round ends after the session's deadline, shape `(num_clients,)`.

    Args:
        facts: Of the clients.
        session: Of the trial.
        policy: Says who trains. One that may have clients withhold tensors spares them sending a part that nobody
            knows beforehand.
    """
    if session.deadline_seconds is None:
        return np.zeros(facts.num_clients, np.bool_)
    sends_all = type(policy).assign is SelectionPolicy.assign
    return shortest_seconds(facts, session, sends_all) > session.deadline_seconds


def able_clients(facts: FederationFacts, session: Session, policy: SelectionPolicy) -> Mask:
    """Return who may train where a policy chooses, shape `(num_clients,)`; takes what `late_clients` takes."""
    able = ~(abstaining_clients(facts, session) | late_clients(facts, session, policy))
    able[[*facts.unseen]] = False
    return able


_OF_ALL_SHOWN = {"fraction_train": 1.0, "min_train_nodes": 1, "min_available_nodes": 1}
"""The settings of Flower's strategies with which they train every node that a grid shows."""


class ChosenNodes:
    """A grid with the nodes of some clients alone; everything else is the grid's.

    Attributes:
        everybody: The grid itself.
    """

    def __init__(self, grid: Grid, clients: Collection[int]) -> None:
        self.everybody = grid
        self._clients = frozenset(clients)

    def get_node_ids(self) -> list[int]:
        """Return the nodes of those clients, ascending."""
        return [node for node in self.everybody.get_node_ids() if client_of(node) in self._clients]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.everybody, name)


def train_all_shown(strategy: Any) -> None:
    """Have a strategy, and one that it wraps, train every node that it is shown, in place of a sample of its own."""
    while strategy is not None:
        for name, value in _OF_ALL_SHOWN.items():
            if hasattr(strategy, name):
                setattr(strategy, name, value)
        strategy = getattr(strategy, "strategy", None)


def scored_clients(facts: FederationFacts, session: Session) -> IntArray | None:
    """Return the clients that score models, ascending; None where all do.

    Clients that join after the training are drawn apart from those that take part, as many if there are so many.

    Args:
        facts: Of the federation.
        session: Of the trial.
    """
    if session.num_scored is None or session.num_scored >= facts.num_clients:
        return None
    joins = np.zeros(facts.num_clients, np.bool_)
    joins[[*facts.unseen]] = True
    has_rows = _scorable(facts, session)
    drawn = []
    for group, clients in enumerate((np.flatnonzero(~joins & has_rows), np.flatnonzero(joins & has_rows))):
        generator = stream(session.seed, "scored-clients", group)
        drawn.append(generator.choice(clients, min(len(clients), session.num_scored), replace=False))
    return np.sort(np.concatenate(drawn))


def _scorable(facts: FederationFacts, session: Session) -> npt.NDArray[np.bool_]:
    """Return who may have rows to be scored on, shape `(num_clients,)`; of rows in groups only a bound is known."""
    if not facts.holds_rows:
        return np.ones(facts.num_clients, np.bool_)
    rows = facts.client_rows
    if not facts.grouped:
        rows = num_part_rows(rows, session.test_fraction, session.validation_fraction)[session.evaluate_on]
    return np.asarray(rows >= max(1, facts.least_training_rows))
