"""A selection policy at work in a trial: ahead of each round it says who trains, afterwards it is told what came of it.

The policy replaces the strategy's own sampling: the strategy is shown the chosen nodes alone (`ChosenNodes`) and trains
all that it is shown. One that does not is refused, as its round would be another than the policy is told of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import index
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedscout.engine.contracts.client_selection import Assignment, ClientTable, SelectionChoice, SelectionPolicy
from fedscout.engine.errors import TrialError
from fedscout.engine.fault_text import shown
from fedscout.engine.grid.able_clients import able_clients
from fedscout.engine.grid.chosen_nodes import ChosenNodes, train_all_shown
from fedscout.engine.grid.expected_durations import expected_seconds
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.messages.host_calls import FederationFacts, Watched
from fedscout.engine.messages.message_contents import FIRST_NODE_ID
from fedscout.engine.messages.several_models import holds_several
from fedscout.engine.seeds import stream
from fedscout.engine.trials.trial_settings import TrialSettings
from fedscout.engine.trials.trial_state import TrialState


class ClientChoice:
    """Who trains in the rounds of one trial.

    Args:
        settings: Of the trial.
        state: Holds the policy, if there is one, and the strategy that it chooses for.
        grid: Of the trial.

    Raises:
        TrialError: If there is a policy and the strategy drives its rounds itself, or clients have no labelled rows on
            which the losses could be measured that the policy wants.
    """

    def __init__(self, settings: TrialSettings, state: TrialState, grid: HostGrid[Any]) -> None:
        self._settings = settings
        self._state = state
        self._grid = grid
        self._num_chosen = self._num_asked = 0
        self._facts: FederationFacts | None = None
        if settings.selection is not None:
            self._refuse_impossible(settings.selection)
            train_all_shown(state.strategy)

    def nodes(self, server_round: int, arrays: ArrayRecord) -> Grid:
        """Return the grid as the strategy is to see it in a round whose model this is."""
        policy, selection = self._state.policy, self._settings.selection
        if policy is None or selection is None:
            return self._grid
        table = self._table(policy, selection.label)
        generator = stream(self._settings.session.seed, "selection", server_round)
        num_asked = min(self._settings.num_sampled, len(table.clients))
        chosen = _checked(policy.choose(server_round, table, num_asked, generator), table, selection.label)
        if server_round > 1:  # in the first a policy may ask everybody
            self._num_chosen, self._num_asked = len(chosen), num_asked
        assigned = _checked_assignments(policy.assign(table, chosen), chosen, selection.label)
        others = set(table.clients.tolist()) - {*chosen} if policy.observes.everybody else ()
        self._grid.reports.watched = Watched(policy.observes, tuple(sorted(others)), assigned)
        if others and holds_several([*arrays]):
            self._grid.measure(arrays)
        return cast(Grid, ChosenNodes(self._grid, chosen))

    def check(self, nodes: Grid, messages: Iterable[Message]) -> None:
        """Return if a round's messages go to all that were chosen, or to nobody.

        Raises:
            TrialError: If the strategy made a choice of its own among them.
        """
        if not isinstance(nodes, ChosenNodes):
            return
        asked, shown = {message.metadata.dst_node_id for message in messages}, {*nodes.get_node_ids()}
        if asked and asked != shown:
            assert self._settings.selection is not None
            raise TrialError(
                f"{type(self._state.strategy).__name__} must train all {len(shown)} clients that "
                f"selection.kind={self._settings.selection.label} chose, it asked {len(asked)}: it samples by itself"
            )

    def tell(self, seconds: Mapping[int, float], round_seconds: float) -> None:
        """Tell the policy what a round brought.

        Args:
            seconds: Simulated, of each client that was asked.
            round_seconds: Of the round.
        """
        if self._state.policy is None:
            return
        report = self._grid.reports.take(self._grid.server_round, seconds, round_seconds)
        for client in report.clients[report.trained].tolist():
            self._state.trained_rounds[client] = self._state.trained_rounds.get(client, 0) + 1
        self._state.policy.observe(report)

    def rounds_of(self, clients: Iterable[int]) -> tuple[int, ...] | None:
        """Return in how many rounds each client has trained; None without a policy."""
        trained = self._state.trained_rounds
        return None if self._state.policy is None else tuple(trained.get(client, 0) for client in clients)

    def notes(self) -> Iterator[str]:
        """Yield that the policy goes on to choose more or fewer than are asked for."""
        num_later = self._grid.facts.num_clients - self._state.num_choosable
        if self._state.policy is not None and num_later > 0:
            yield f"{num_later} clients joined after the first round, from which the policy does not choose"
        if self._num_chosen != self._num_asked:
            label = "" if self._settings.selection is None else self._settings.selection.label
            yield f"selection.kind={label} chose {self._num_chosen} clients in the last round, not {self._num_asked}"

    def _table(self, policy: SelectionPolicy, label: str) -> ClientTable:
        """Return the clients that can be reached, without those that could never train.

        Raises:
            TrialError: If nobody could.
        """
        nodes = np.array([*self._grid.get_node_ids()], np.int64)  # who has joined is in the facts then
        facts = self._grid.facts
        if facts is not self._facts:
            self._facts, self._expected = facts, expected_seconds(facts, self._grid.session)
            self._able = able_clients(facts, self._grid.session, policy)
        reached = nodes - FIRST_NODE_ID
        clients = reached[reached < self._state.num_choosable]
        clients = clients[self._able[clients]]
        if not len(clients):
            raise TrialError(
                f"selection.kind={label} must have clients to choose from, got none: all of the {len(nodes)} train on "
                "too few rows to take part, or take longer than the deadline"
            )
        columns = clients, facts.client_rows[clients], self._expected[clients]
        for column in columns:
            column.flags.writeable = False  # a policy's choice is checked against what it was shown
        return ClientTable(*columns)

    def _refuse_impossible(self, selection: SelectionChoice) -> None:
        assert self._state.policy is not None
        if type(self._state.strategy).start is not Strategy.start:
            name = type(self._state.strategy).__name__
            raise TrialError(f"selection.kind={selection.label} can't choose for {name}, which brings its own start")
        if self._state.policy.observes.losses and not (self._grid.facts.holds_rows and self._grid.facts.classifies):
            raise TrialError(f"selection.kind={selection.label} must have clients with labels, to measure losses on")


def _checked(chosen: Any, table: ClientTable, label: str) -> Sequence[int]:
    """Return who was chosen, ascending.

    Raises:
        TrialError: If that is nobody, somebody twice, or somebody who can't be reached, or not told by whole numbers.
    """
    told = [*chosen] if isinstance(chosen, Iterable) else [chosen]
    try:
        clients = [index(client) for client in told]
    except TypeError:
        raise TrialError(f"selection.kind={label} must choose clients by their numbers, got {shown(told)}") from None
    if not clients or len({*clients}) < len(clients) or not np.isin(clients, table.clients).all():
        raise TrialError(
            f"selection.kind={label} must choose different clients of the {len(table.clients)} that can be reached, "
            f"got {shown(clients)}"
        )
    return sorted(clients)


def _checked_assignments(assigned: Any, chosen: Sequence[int], label: str) -> Mapping[int, Assignment]:
    """Return what chosen clients do otherwise.

    Raises:
        TrialError: If that is anything but an `Assignment` for some of those that were chosen.
    """
    fits = isinstance(assigned, Mapping) and all(isinstance(each, Assignment) for each in assigned.values())
    if not fits or not {*assigned} <= {*chosen}:
        raise TrialError(
            f"selection.kind={label} must assign an Assignment to some of the clients {shown(chosen)} that it chose, "
            f"got {shown(assigned)}"
        )
    return dict(assigned)
