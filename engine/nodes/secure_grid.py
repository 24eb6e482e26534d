"""A grid over nodes that learns of clients' answers their masked sum alone.

What a node grid asks client by client is here one sum over all clients of a call (`sum_exchanges`): of training the
exact sums from which a merged reply is made, with the bits of the same training in the clear, and on the same way the
scores of all rows together. What needs a single client's answer is refused.

Of how many rows the federation has, on which the units of these sums depend, the clients tell the sum, too: before the
first training, and again when somebody comes who was not asked.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import MessageType

from fedscout.engine.errors import TrialError
from fedscout.engine.grid.jobs import Job
from fedscout.engine.messages.exchange import Query
from fedscout.engine.messages.host_calls import EvaluateResults, FederationFacts, HostCall, TrainResults
from fedscout.engine.messages.message_keys import FUNCTION_KEY, NUM_CLIENTS_KEY, ROUND_KEY
from fedscout.engine.messages.session import Session
from fedscout.engine.nodes.kept_states import is_mark
from fedscout.engine.nodes.node_call import Greeting, NodeCall, Wire
from fedscout.engine.nodes.node_grid import Flight, NodeGrid, ServerSide
from fedscout.engine.nodes.node_roster import MAX_ROWS, NodeRoster
from fedscout.engine.nodes.sum_exchanges import LostSumError, SumExchanges, Total
from fedscout.engine.nodes.summed_results import Totals, impossible, summed_scores, summed_training

logger = logging.getLogger("fedscout")

SCORING_ATTEMPTS = 3
"""A round of training may be lost; its model's scores may not, as every round has a record."""


class SecureGrid(NodeGrid):
    """A node grid whose clients send masked vectors; takes its arguments.

    Attributes:
        sums: The exchanges.
    """

    def __init__(
        self, roster: NodeRoster, server: ServerSide, wire: Wire, session: Session, trial: str = "", terms: str = ""
    ) -> None:
        self.sums = SumExchanges(roster, wire, session.round_timeout_seconds)
        self._counted: set[int] = set()
        self._total_rows = 0
        super().__init__(roster, server, wire, session, trial, terms)

    def total_of(self, query: Query) -> tuple[Totals, int]:
        """Return the sum of the clients' answers to a query, by array, and how many clients it is of.

        Raises:
            TrialError: If too few answer.
        """
        clients = tuple(range(self.facts.num_clients))
        config = {FUNCTION_KEY: query.function, **query.config}
        asked = {
            client: self._call("query", HostCall((client,), self.session, config, arrays=dict(query.arrays)))
            for client in clients
        }
        try:
            total = self._sum(asked, {"query": clients}, None)
        except LostSumError as error:
            raise TrialError(f"the sum of {query.function} could not be formed: {error}{self._why()}") from error
        return total.values, len(total.added["query"])

    def follow_trainings(self) -> None:
        """Refuse a strategy that drives its rounds itself.

        Raises:
            TrialError: Always.
        """
        raise TrialError("secure sums need rounds that the trial drives; this strategy brings its own start")

    def _facts(self) -> FederationFacts:
        """Return what is known: of the clients' rows their sum, which stands here in equal parts."""
        facts = super()._facts()
        rows = np.full(facts.num_clients, self._total_rows // max(1, facts.num_clients), np.int64)
        rows[:1] += self._total_rows - rows.sum()
        return replace(facts, client_rows=rows)

    def _start(self, host: int, method: str, call: HostCall) -> Flight:
        if method == "serve":
            return super()._start(host, method, call)
        if method in ("query", "measure"):
            raise TrialError(f"a {method} asks for each client's own answer, and secure sums are of all clients")
        (client,) = {*call.clients, *call.evaluated}
        return Flight(method, client, call)

    def _launch(self, job: Job[Flight], clients: Collection[int]) -> None:
        if job.message_type == MessageType.TRAIN and not job.merged:
            raise TrialError("this strategy reads each client's own model, and secure sums are of all clients")
        if self.reports.watched is not None:
            raise TrialError("a selection policy reads each client's own report, and secure sums are of all clients")
        super()._launch(job, clients)

    def _gather(self, handles: Sequence[Flight], timeout: float | None) -> list[Any] | None:
        if any(flight.client is None for flight in handles):
            return super()._gather(handles, timeout)
        asked = {
            flight.client: self._call(flight.method, flight.call) for flight in handles if flight.client is not None
        }
        if not asked:
            return []
        trained = tuple(client for client, one in asked.items() if one.method == "train" and one.call.clients)
        scored = tuple(
            client
            for client, one in asked.items()
            if one.call.evaluated or (one.method == "evaluate" and one.call.clients)
        )
        groups = {name: clients for name, clients in (("train", trained), ("score", scored)) if clients}
        return [self._trained(asked, groups, timeout) if trained else self._scored_together(asked, groups, timeout)]

    def _call(self, method: Any, call: HostCall) -> NodeCall:
        return NodeCall(method, call, self._trial, self._terms)

    def _trained(self, asked: Mapping[int, NodeCall], groups: Mapping[str, Any], timeout: float | None) -> TrainResults:
        """Return what clients trained together; of a lost sum, why none of them did."""
        try:
            total = self._sum(asked, groups, timeout)
        except LostSumError as error:
            reason = f"the round's sum is lost: {error}{self._why()}"
            logger.warning("round %d: %s", self.server_round, reason)
            return TrainResults(failures=dict.fromkeys(groups["train"], reason))
        weighted_by_clients = self.session.needs.weighted_by == NUM_CLIENTS_KEY
        trained, absent = total.added["train"], self.sums.absent  # who did not open shares has added all the same
        dropped = {client: absent[client] for client in groups["train"] if client in absent and client not in trained}
        results = summed_training(total.values, trained, weighted_by_clients)
        results.failures = {**dropped, **total.failures["train"]}
        results.hanging = sorted(self.sums.timed_out & dropped.keys())
        server_round = int(next(iter(asked.values())).call.config[ROUND_KEY])
        results.states = {
            client: state for client, state in total.states.items() if not state or is_mark(state, server_round)
        }
        if "score" in groups:
            results.evaluation = summed_scores(total.values, self.session)
        return results

    def _scored_together(
        self, asked: Mapping[int, NodeCall], groups: Mapping[str, Any], timeout: float | None
    ) -> EvaluateResults:
        """Return how the rows of all clients are scored together.

        Raises:
            TrialError: If that can't be summed.
        """
        for attempt in range(SCORING_ATTEMPTS):
            try:
                return summed_scores(self._sum(asked, groups, timeout).values, self.session)
            except LostSumError as error:
                reason = f"round {self.server_round}: the model can't be scored: {error}{self._why()}"
                logger.warning("%s", reason)
                if attempt + 1 < SCORING_ATTEMPTS:
                    self._roster.refresh()
        raise TrialError(reason)

    def _sum(self, asked: Mapping[int, NodeCall], groups: Mapping[str, Any], timeout: float | None) -> Total:
        """Return a sum, and say once who is not in it.

        Raises:
            LostSumError: If too few are.
        """
        try:
            self._count(timeout)
            classes, total_rows = self.facts.num_classes, max(1, self._total_rows)
            total = self.sums.total(asked, groups, total_rows, classes, timeout)
        finally:
            for client, reason in self.sums.absent.items():
                self._miss(client, reason)
        for client, reason in total.failures.get("score", {}).items():
            self._miss(client, reason)
        if fault := impossible(total.values, self.session.needs.weighted_by, self._total_rows):
            self._counted.clear()
            raise LostSumError(fault)
        return total

    def _count(self, timeout: float | None) -> None:
        """Have the clients tell how many rows they hold together, if some who are here were not asked yet."""
        here = {client for client, member in enumerate(self._roster.members) if member.node is not None}
        if here and here <= self._counted:
            return
        greetings = dict.fromkeys(sorted(here), Greeting(asks_rows=True, terms=self._terms))
        counted = self.sums.total(greetings, {"rows": here}, 1, self.facts.num_classes, timeout)
        rows = int(counted.values["rows"])
        if not 0 < rows <= MAX_ROWS * len(here):
            raise LostSumError(f"its clients say that they hold {rows} rows")
        self._counted, self._total_rows = here, rows
        self._take_facts(self._facts(), len(self._roster.members))

    def _why(self) -> str:
        """Return why the first who dropped out did, as the end of a sentence."""
        client = min(self.sums.absent, default=None)
        return "" if client is None else f" (client {client}: {self.sums.absent[client]})"

    def _reply(self, job: Job[Flight], results: list[Any]) -> Any:
        before = self._bytes["up"]
        replies = super()._reply(job, results)
        self._bytes["up"] += self._bytes["up"] - before  # a value goes up in 8 bytes, not 4
        return replies
