"""Client selection on the grid: reports for policies, chosen nodes, eligible clients and expected durations.

`ClientReports` distributes a selection policy's requests to the round's train calls, and collects the measurements from
hosts before replies are merged.

`ChosenNodes` is a grid that shows a strategy only the nodes that a selection policy chose, so that it trains exactly
these.

`able_clients` returns which clients can train in the rounds of a session, according to what the driver knows, so that a
policy does not keep selecting clients that can't. A client is excluded only if it certainly can't train. The driver
knows the number of a client's training rows; if rows are drawn in whole groups, it only knows that they are no more
than the client's rows. Local training settings of messages that override the session, as a user's own strategy may
send, are not considered.

`scored_clients` returns the clients that score the models of a trial: all, or `Session.num_scored`. With very many
clients the scores of some thousands are as informative, and the cost of a round is then that of the participating
clients. They are drawn once, from the seed: the same in every round and for every strategy, so that rounds and
strategies are compared on the same clients. The seeds of a confirmation draw others. Clients that certainly have no
rows to be scored on, or so few that they abstain, are not drawn.

`client_seconds` and related functions return the simulated duration of each client's round according to what the driver
knows, without random draws. The driver knows each client's number of rows and the share that trains; if rows are drawn
in whole groups, this is an approximation. For reinforcement-learning clients, an epoch counts as one step. Auxiliary
vectors that a server sends are unknown in advance and not included in the bytes; those that clients send are. Hanging
clients are not considered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.serverapp import Grid

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientScore
from fedscout.engine.data.federation import Device, RoundWork, num_part_rows
from fedscout.engine.messages import calls
from fedscout.engine.messages.contents import client_of
from fedscout.engine.messages.keys import client_bytes_down, client_bytes_up
from fedscout.engine.seeds import stream


class ClientReports:
    """Distributes a policy's requests to a round's train calls, and collects their results.

    Attributes:
        watched: The policy's requests for this round; None without a policy.
    """

    def __init__(self) -> None:
        self.watched: calls.RoundSelection | None = None
        self._results: list[calls.TrainResults] = []

    def to_measure(self) -> tuple[int, ...]:
        """Return the clients that measure without training, once per round; later calls return none."""
        if self.watched is None or not self.watched.measured:
            return ()
        measured, self.watched = self.watched.measured, replace(self.watched, measured=())
        return measured

    def request_for(self, trained: Iterable[int], measured: tuple[int, ...]) -> calls.RoundSelection | None:
        """Return the policy's requests for a call's clients; None without a policy."""
        if self.watched is None:
            return None
        assigned = self.watched.assigned
        return replace(self.watched, measured=measured, assigned={c: assigned[c] for c in trained if c in assigned})

    def add(self, results: Iterable[calls.TrainResults]) -> None:
        """Store the results of hosts, without the models; nothing is stored without a policy."""
        if self.watched is None:
            return
        self._results += [replace(result, vectors=None, total=None, auxiliary={}, states={}) for result in results]

    def take(self, server_round: int, seconds: Mapping[int, float], round_seconds: float) -> calls.RoundReport:
        """Return the report of the round, and reset the state.

        Args:
            server_round: From 1.
            seconds: Simulated seconds by client; missing clients took none.
            round_seconds: Duration of the whole round.
        """
        assert self.watched is not None
        observed, self.watched = self.watched.observed, None
        results, self._results = self._results, []
        trained = {
            client: (num_examples, num_steps, loss)
            for result in results
            for client, num_examples, num_steps, loss in zip(
                result.clients, result.num_examples, result.num_steps, result.losses, strict=True
            )
        }
        training, validation = (
            {client: score for result in results for client, score in result.received_losses.get(part, {}).items()}
            for part in ("train", "validation")
        )
        norms = {client: norm for result in results for client, norm in result.update_norms.items()}
        clients = sorted({*trained, *training, *validation})
        num_measured = {client: score.num_examples for client, score in training.items()}
        rows = [trained.get(client, (num_measured.get(client, 0), 0, np.nan)) for client in clients]
        return calls.RoundReport(
            server_round=server_round,
            clients=np.array(clients, np.int64),
            trained=np.array([client in trained for client in clients], np.bool_),
            num_examples=np.array([num_examples for num_examples, _, _ in rows], np.int64),
            num_steps=np.array([num_steps for _, num_steps, _ in rows], np.int64),
            seconds=np.array([seconds.get(client, 0.0) for client in clients]),
            loss=np.array([loss for _, _, loss in rows]),
            update_norm=np.array([norms.get(client, np.nan) for client in clients]),
            training=_losses(clients, training) if observed.training_losses else None,
            validation=_losses(clients, validation) if observed.validation_losses else None,
            failures={client: reason for result in results for client, reason in result.failures.items()},
            round_seconds=round_seconds,
        )


def _losses(clients: Sequence[int], scores: Mapping[int, ClientScore]) -> calls.Losses:
    """Return the columns of the clients' means."""
    means = np.full((4, len(clients)), np.nan)
    for place, client in enumerate(clients):
        sums = None if client not in scores else scores[client].statistics
        if sums is not None:
            means[:, place] = sums / scores[client].num_examples
    return calls.Losses(*means)


Seconds = Callable[[Device, RoundWork], float]


def client_seconds(
    facts: calls.FederationFacts,
    session: calls.Session,
    of_device: Seconds,
    shortest: bool = False,
    sends_all: bool = True,
) -> calls.DoubleArray:
    """Return the duration of each client's round, shape `(num_clients,)`; 0 for clients without a device.

    Args:
        facts: Facts of the federation.
        session: Session of the trial.
        of_device: A device's duration of its work.
        shortest: Whether the work is the least possible: for rows in groups one step per epoch, and for clients with
            settings of their own a single step.
        sends_all: Whether each client sends its whole model; otherwise uploads are not counted.
    """
    algorithm, local_epochs = session.algorithm, session.training.local_epochs
    rows = num_part_rows(facts.client_rows, session.test_fraction, session.validation_fraction)["train"]
    steps = session.training.num_steps(rows) if facts.holds_rows else np.full(len(rows), local_epochs)
    chooses = algorithm is not None and type(algorithm).settings is not ClientAlgorithm.settings
    if shortest and (session.client_table is not None or chooses):
        steps = np.minimum(steps, 1)
    elif shortest and facts.grouped:
        steps = np.minimum(steps, local_epochs)
    down = client_bytes_down(facts.layout, algorithm, ())
    up = client_bytes_up(facts.layout, algorithm) if sends_all else 0
    durations = np.zeros(facts.num_clients)
    for client, device in facts.devices.items():
        durations[client] = of_device(device, RoundWork(int(steps[client]), down, up))
    return durations


def expected_seconds(facts: calls.FederationFacts, session: calls.Session) -> calls.DoubleArray:
    """Return the expected duration of each client's round, shape `(num_clients,)`; 0 for clients without a device."""
    return client_seconds(facts, session, Device.expected_seconds)


def least_seconds(facts: calls.FederationFacts, session: calls.Session) -> calls.DoubleArray:
    """Return the duration of each client's round without its random part, shape `(num_clients,)`."""
    return client_seconds(facts, session, Device.least_seconds)


def able_clients(
    facts: calls.FederationFacts, session: calls.Session, policy: calls.SelectionPolicy
) -> npt.NDArray[np.bool_]:
    """Return which clients a policy may choose, shape `(num_clients,)`.

    Clients with too few training rows abstain, and those whose shortest round ends after the deadline are always late.
    If the policy may let clients withhold tensors, uploads are not counted, as the share sent is unknown in advance.
    """
    rows = facts.client_rows
    if not facts.grouped:
        rows = num_part_rows(rows, session.test_fraction, session.validation_fraction)["train"]
    able = np.asarray(rows >= facts.least_training_rows)
    able[[*facts.unseen]] = False
    if session.deadline_seconds is not None:
        sends_all = type(policy).assign is calls.SelectionPolicy.assign
        shortest = client_seconds(facts, session, Device.least_seconds, shortest=True, sends_all=sends_all)
        able &= shortest <= session.deadline_seconds
    return able


_TRAIN_ALL_SETTINGS = {"fraction_train": 1.0, "min_train_nodes": 1, "min_available_nodes": 1}
"""The settings of Flower's strategies with which they train every node that a grid shows."""


class ChosenNodes:
    """A grid restricted to the nodes of some clients; everything else is delegated to the grid.

    Attributes:
        full_grid: The grid of all nodes.
    """

    def __init__(self, grid: Grid, clients: Collection[int]) -> None:
        self.full_grid = grid
        self._clients = frozenset(clients)

    def get_node_ids(self) -> list[int]:
        """Return the nodes of the chosen clients, ascending."""
        return [node for node in self.full_grid.get_node_ids() if client_of(node) in self._clients]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.full_grid, name)


def train_all_shown(strategy: Any) -> None:
    """Configure a strategy, and those that it wraps, to train every available node instead of a sample."""
    while strategy is not None:
        for name, value in _TRAIN_ALL_SETTINGS.items():
            if hasattr(strategy, name):
                setattr(strategy, name, value)
        strategy = getattr(strategy, "strategy", None)


def scored_clients(facts: calls.FederationFacts, session: calls.Session) -> IntArray | None:
    """Return the clients that score models, ascending; None if all do.

    Unseen clients, which join after the training, are drawn separately, as many as of the others if there are enough.

    Args:
        facts: Facts of the federation.
        session: Session of the trial.
    """
    if session.num_scored is None or session.num_scored >= facts.num_clients:
        return None
    rows = facts.client_rows  # an upper bound on those to be scored on, if they are grouped
    if not facts.grouped:
        rows = num_part_rows(rows, session.test_fraction, session.validation_fraction)[session.evaluate_on]
    may_have_rows = (rows >= max(1, facts.least_training_rows)) | (not facts.holds_rows)
    is_unseen = np.isin(np.arange(facts.num_clients), [*facts.unseen])
    drawn = []
    for group, members in enumerate((~is_unseen, is_unseen)):
        clients, generator = np.flatnonzero(members & may_have_rows), stream(session.seed, "scored-clients", group)
        drawn.append(generator.choice(clients, min(len(clients), session.num_scored), replace=False))
    return np.sort(np.concatenate(drawn))
