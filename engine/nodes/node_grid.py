"""Flower's grid over clients on machines of their own, reached through any Flower grid, such as a SuperLink's.

Each client is a host of its own (`fedscout.engine.grid.host_grid`), so a trial, a detection or a search runs here as in
a simulation. What differs: calls travel as values (`node_call`), answers are looked at before they are used
(`checked_answers`), a client that is away or fails is left out of a round's training and scoring, and what clients keep
stays with them. Between rounds nodes may come, go and come back (`node_roster`).

Models are summed here, each client's after the other; the bits are those of a simulation of the same clients.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from flwr.app import Message, MessageType

from fedscout.engine.arrays import FloatArray
from fedscout.engine.errors import DataError, EngineError, Fault, TrialError
from fedscout.engine.fault_text import shown
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.messages.host_calls import (
    EvaluateResults,
    FederationFacts,
    HostCall,
    QueryResults,
    ServeResults,
    TrainResults,
)
from fedscout.engine.messages.session import Session
from fedscout.engine.nodes.checked_answers import (
    AnswerError,
    Asked,
    checked_query,
    checked_scores,
    checked_training,
    like_most,
)
from fedscout.engine.nodes.node_call import ACTION, NodeAnswers, NodeCall, NodeCalls, Refusal, Wire, one_line
from fedscout.engine.nodes.node_exchange import Exchange
from fedscout.engine.nodes.node_roster import NodeRoster
from fedscout.engine.nodes.wire_values import UnsendableError

logger = logging.getLogger("fedscout")

Results = TrainResults | EvaluateResults | QueryResults | ServeResults

LATER_SECONDS = 3600.0
"""After a round's limit in which a message is still delivered; then Flower drops it, and nobody trains for nothing."""

PATIENCE_SECONDS = 600.0
"""With nobody connected, where a round may take any time."""

PAUSE_SECONDS = 1.0
"""Between two looks whether somebody is there."""

_TYPE_OF = {"train": MessageType.TRAIN, "measure": MessageType.TRAIN, "evaluate": MessageType.EVALUATE}


class ServerSide(Protocol):
    """What the driver's own machine does: a `ClientHost` of no clients."""

    def facts(self) -> FederationFacts:
        """Return what holds for every client: the model's layout, the classes."""
        ...

    def initial_vector(self, seed: int) -> FloatArray:
        """Return the initial model of a seed, shape `(params,)`."""
        ...

    def serve(self, call: HostCall) -> ServeResults:
        """Do work on the server's rows."""
        ...


@dataclass(frozen=True)
class Flight:
    """A call on its way.

    Attributes:
        method: Of a host.
        client: Whose part it is; None of the server's own work.
        call: As it was made.
        number: Its own; None if the client is not connected.
        sent: When, by this process's clock.
    """

    method: str
    client: int | None
    call: HostCall
    number: int | None = None
    sent: float = field(default_factory=time.monotonic)


class NodeGrid(HostGrid[Flight]):
    """A grid over nodes.

    Args:
        roster: The clients.
        server: The driver's own side.
        wire: Writes and reads messages.
        session: What the trial fixes; its limit of a round's time is that of each call.
        trial: Under which clients keep what they keep.
        terms: See `NodeCall`.

    Attributes:
        away: In how many calls each client gave no answer that could be used, and why the last time.

    Raises:
        DataError: If clients would have to tell each other of their rows.
    """

    clips_for_clients = False

    def __init__(
        self, roster: NodeRoster, server: ServerSide, wire: Wire, session: Session, trial: str = "", terms: str = ""
    ) -> None:
        self._roster, self._server, self._wire, self._trial, self._terms = roster, server, wire, trial, terms
        self._exchange = Exchange(roster.link)
        self._numbers = itertools.count(1)
        self._waiting: dict[int, list[tuple[int, NodeCall]]] = {}  # by node, with the flights' numbers
        self._message_of: dict[int, int] = {}
        self._arrived: dict[int, Any] = {}
        self.away: dict[int, tuple[int, str]] = {}
        if session.client_table is not None and session.metric is not None:
            raise DataError(
                Fault("a table of client settings", f"be without the metric {session.metric.name}: it tells rows")
            )
        facts = self._facts()
        super().__init__(facts, num_hosts=facts.num_clients, session=session, merge_on_hosts=False)

    def initial_vector(self, seed: int) -> FloatArray:
        """Return the initial model of a seed, shape `(params,)`."""
        return self._server.initial_vector(seed)

    def get_node_ids(self) -> list[int]:
        """Return the clients' numbers in the grid, with those that have joined since; who is away fails when asked.

        While nobody is connected it waits, as long as a round may take.

        Raises:
            EngineError: If nobody comes: the trial can go on from its checkpoint.
        """
        limit = self.session.round_timeout_seconds or PATIENCE_SECONDS
        end = time.monotonic() + limit
        self._roster.refresh()
        if not self._roster.is_here():
            logger.warning("round %d: nobody is connected, waiting up to %g s", self.server_round, limit)
        while not self._roster.is_here() and time.monotonic() < end:
            time.sleep(min(PAUSE_SECONDS, max(0.0, end - time.monotonic())))
            self._roster.refresh()
        if not self._roster.is_here():
            raise EngineError(f"no client was connected for {limit:g} s; the same run goes on when some are back")
        told = self._facts()
        if not np.array_equal(told.client_rows, self.facts.client_rows):
            self._take_facts(told, told.num_clients)
        return [*super().get_node_ids()]

    def _facts(self) -> FederationFacts:
        told = [member.introduction for member in self._roster.members]
        rows = np.array([introduction.num_rows for introduction in told], np.int64)
        grouped = bool(told) and all(introduction.grouped for introduction in told)
        facts = self._server.facts()
        if not (facts.classifies and facts.holds_rows):
            raise DataError(
                Fault(
                    "clients on machines of their own",
                    (
                        "tell classes: a quantity is standardised over the rows of all clients, which nobody "
                        "sees there, and clients that play have no rows"
                    ),
                )
            )
        known = replace(facts, least_training_rows=0)  # each owner says from how many rows its client takes part
        return replace(known, num_clients=len(told), client_rows=rows, grouped=grouped)

    def _start(self, host: int, method: str, call: HostCall) -> Flight:
        del host  # each has one client
        if method == "serve":
            return Flight(method, None, call)
        measured = () if call.watched is None else call.watched.measured
        (client,) = {*call.clients, *call.evaluated, *measured}
        node = self._roster.node_of(client)
        if node is None:
            return Flight(method, client, call)
        called: Any = method
        flight = Flight(method, client, call, next(self._numbers))
        assert flight.number is not None
        self._waiting.setdefault(node, []).append((flight.number, NodeCall(called, call, self._trial, self._terms)))
        return flight

    def _send(self) -> None:
        """Send every node what waits for it, as one message."""
        waiting, self._waiting = self._waiting, {}
        ttl = self.session.round_timeout_seconds
        for node, calls in waiting.items():
            (kind, *others) = {_TYPE_OF.get(call.method, MessageType.QUERY) for _, call in calls}
            try:
                content = self._wire.packed(NodeCalls(tuple(call for _, call in calls)))
            except UnsendableError as error:
                raise TrialError(f"what it asks of clients can't be sent to other machines: {error}") from error
            kind = MessageType.TRAIN if others else kind
            message = Message(content, node, f"{kind}.{ACTION}", ttl=None if ttl is None else ttl + LATER_SECONDS)
            self._message_of |= dict.fromkeys((number for number, _ in calls), self._exchange.send(message))

    def _receive(self, messages: Collection[int]) -> None:
        """Take in the answers of those messages that were answered, and wait for the others no longer."""
        for message, reply in self._exchange.take(messages).items():
            numbers = [number for number, one in self._message_of.items() if one == message]
            self._arrived |= zip(numbers, self._answers(reply, len(numbers)), strict=True)
        self._message_of = {number: one for number, one in self._message_of.items() if one not in messages}

    def _gather(self, handles: Sequence[Flight], timeout: float | None) -> list[Any] | None:
        self._send()
        sent = {self._message_of[flight.number] for flight in handles if flight.number in self._message_of}
        limit = self.session.round_timeout_seconds
        left = (
            None if limit is None else min((flight.sent for flight in handles), default=0.0) + limit - time.monotonic()
        )
        waits = [max(0.0, seconds) for seconds in (timeout, left) if seconds is not None]
        complete = self._exchange.wait(sent, min(waits, default=None))
        if not complete and (left is None or (timeout is not None and timeout < left)):
            return None
        self._receive(sent)
        return self._alike([self._result(flight) for flight in handles])

    def _alike(self, results: list[Results]) -> list[Results]:
        """Return the results of one call, without those that have another form than most."""
        trained = [result for result in results if isinstance(result, TrainResults)]
        queried = [result for result in results if isinstance(result, QueryResults)]
        alike: list[Results] = [*like_most(trained), *like_most(queried)]
        if not alike:
            return results
        for before, after in zip(results, alike, strict=True):
            if before is not after and isinstance(after, TrainResults | QueryResults):
                for client, reason in after.failures.items():
                    self._miss(client, reason)
        return alike

    def _give_up(self, handles: Sequence[Flight]) -> None:
        self._receive({self._message_of[flight.number] for flight in handles if flight.number in self._message_of})
        for flight in handles:
            self._arrived.pop(flight.number or 0, None)

    def _result(self, flight: Flight) -> Results:
        """Return what a call gave; of a client without an answer that can be used, why."""
        if flight.client is None:
            return self._server.serve(flight.call)
        limit = self.session.round_timeout_seconds or 0
        late = AnswerError("is not connected" if flight.number is None else f"did not answer within {limit:g} s")
        answer = self._arrived.pop(flight.number or 0, late)
        try:
            if isinstance(answer, ValueError):
                raise answer
            return self._checked(flight, answer)
        except ValueError as error:
            return self._absent(flight, str(error), timed_out=error is late and flight.number is not None)

    def _answers(self, reply: Message, num_calls: int) -> Sequence[Any]:
        """Return what a client answered to each call of a message, or why that can't be used."""
        if reply.has_error():
            return [AnswerError(one_line(reply.error.reason or "it gave no reason"))] * num_calls
        try:
            told = self._wire.opened(reply.content)
        except ValueError as error:
            return [error] * num_calls
        if not isinstance(told, NodeAnswers) or len(told.answers) != num_calls:
            return [AnswerError("it answered something else than it was asked")] * num_calls
        return [AnswerError(one_line(one.reason)) if isinstance(one, Refusal) else one for one in told.answers]

    def _checked(self, flight: Flight, answer: Any) -> Results:
        client = flight.client
        assert client is not None
        asked = Asked(client, flight.call, self._roster.rows_of(client), self.facts.num_classes)
        if flight.method == "query":
            return checked_query(answer, asked)
        if flight.method == "evaluate":
            return self._scored(client, checked_scores(answer, asked))
        results = checked_training(answer, asked)
        if results.evaluation is not None:
            results.evaluation = self._scored(client, results.evaluation)
        for reason in results.failures.values():
            self._miss(client, reason)
        return results

    def _scored(self, client: int, scores: EvaluateResults) -> EvaluateResults:
        """Return scores; where a client has none, the others' are those of the round."""
        if scores.failures:
            self._miss(client, scores.failures[client])
        return replace(scores, failures={})

    def _absent(self, flight: Flight, reason: str, timed_out: bool) -> Results:
        client, call = flight.client, flight.call
        assert client is not None
        self._miss(client, reason)
        if flight.method == "query":
            return QueryResults(failures={client: reason})
        if flight.method == "evaluate":
            return EvaluateResults()
        trained = client in call.clients
        return TrainResults(
            failures={client: reason} if trained else {}, hanging=[client] if timed_out and trained else []
        )

    def _miss(self, client: int, reason: str) -> None:
        times, before = self.away.get(client, (0, ""))
        if reason != before:
            name = self._roster.members[client].introduction.name
            logger.warning("round %d: client %d (%s): %s", self.server_round, client, shown(name), reason)
        self.away[client] = (times + 1, reason)
