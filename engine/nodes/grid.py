"""A grid over clients on remote machines, reached through any Flower grid, such as a SuperLink's.

Each client is a host of its own (`fedscout.engine.grid.host_grid`), so a trial, a detection or a search runs as in a
simulation. Differences: calls are sent as values (`NodeCall`), results are validated (`fedscout.engine.nodes.answers`),
a client that is absent or fails is left out of a round's training and scoring, and client state stays on the clients.
Nodes may leave, join and return between rounds. Models are summed on the driver, one client after the other; the bits
are those of a simulation of the same clients.

`NodeRoster` maps the nodes of a Flower grid to client numbers from 0 on, from which the clients' random streams derive.
The numbers follow the positions that owners gave their clients, if all did, else the names; clients that join later get
the next number. A node with a known name and another id, after a restart, is the same client, unless the previous node
is still connected and replies. Names are chosen by owners: Flower's node authentication is what restricts who connects.

`Exchange` sends messages together and polls for replies until all have arrived or the time is up;
`Grid.send_and_receive` polls only every three seconds and waits for all or none, and a reply can be pulled only once. A
reply counts if it answers a pending message and comes from that message's node; a report of a failed delivery comes
from Flower's SuperLink.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from flwr.app import Message, MessageType
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid

from fedscout.engine.arrays import FloatArray
from fedscout.engine.errors import DataError, EngineError, TrialError
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.messages import calls
from fedscout.engine.messages.values import NotPlainError
from fedscout.engine.nodes import answers, wire
from fedscout.engine.text import shown

if TYPE_CHECKING:
    from fedscout.engine.client.host import ClientHost

LINK = SUPERLINK_NODE_ID
"""Sender of the notice that a message can't be delivered."""

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5
"""Seconds between two looks for replies, doubled from the first to the longest."""


@dataclass(eq=False)
class Request:
    """A message and its reply, which is None until it has arrived."""

    message: Message
    reply: Message | None = None


class Exchange:
    """Sends messages and collects their replies.

    Args:
        link: Flower's grid.
    """

    def __init__(self, link: Grid) -> None:
        self._link = link
        self._queued: list[Request] = []
        self._pending: dict[str, Request] = {}

    def send(self, message: Message) -> Request:
        """Queue a message for sending at the next wait."""
        self._queued.append(Request(message))
        return self._queued[-1]

    def wait(self, requests: Collection[Request], timeout: float | None) -> bool:
        """Return whether no reply to these is outstanding any more, after at most `timeout` seconds."""
        queued, self._queued = self._queued, []
        if queued:
            ids = self._link.push_messages([request.message for request in queued])
            self._pending |= {each: request for each, request in zip(ids, queued, strict=True) if each}
        end = None if timeout is None else time.monotonic() + timeout
        pause = FIRST_PAUSE
        while self._pull(requests):
            left = LONGEST_PAUSE if end is None else end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)
        return True

    def drop(self, requests: Collection[Request]) -> None:
        """Wait no longer for the replies to these."""
        self._queued = [request for request in self._queued if request not in requests]
        self._pending = {each: request for each, request in self._pending.items() if request not in requests}

    def _pull(self, requests: Collection[Request]) -> bool:
        """Pull replies; return whether some to these requests are still outstanding."""
        message_ids = [message_id for message_id, request in self._pending.items() if request in requests]
        for reply in self._link.pull_messages(message_ids) if message_ids else ():
            message_id, sender = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
            request = self._pending.get(message_id)
            if request is None:
                continue
            if sender == request.message.metadata.dst_node_id or (reply.has_error() and sender == LINK):
                self._pending.pop(message_id).reply = reply
        return any(request in requests for request in self._pending.values())


logger = logging.getLogger("fedscout")

MAX_ROWS = 2**27
"""Of a client: the more rows clients report, the fewer fractional bits the exact sums of models have."""

ROWS_IF_UNKNOWN = 1000
"""Upper bound for a client that has too few rows for its owner to report their number."""

LONGEST_NAME = 100
ALIVE_SECONDS = 10.0
"""Time in which a node must respond, or a node of its name replaces it."""

MAX_STRANGERS_LOGGED = 5


@dataclass(frozen=True)
class Member:
    """A client and its node.

    Attributes:
        node: Its node's id; None while it is not connected.
        introduction: Its description of itself.
    """

    node: int | None
    introduction: wire.Introduction


class NodeRoster:
    """The clients known so far, by number.

    Args:
        link: Flower's grid.
        wire: Encodes and decodes messages.
        model: Digest of the model's layout, which must equal the clients'.
        greeting: The first message to a client.
        timeout: Seconds that a client may take to reply.

    Attributes:
        members: By number.
        strangers: Why other nodes can't take part, by id.
    """

    def __init__(self, link: Grid, wire: wire.Wire, model: str, greeting: wire.Greeting, timeout: float) -> None:
        self.link = link
        self.members: list[Member] = []
        self.strangers: dict[int, str] = {}
        self._wire, self._model, self._greeting, self._timeout = wire, model, greeting, timeout
        self._exchange = Exchange(link)
        self._asked: dict[int, Request] = {}

    def meet(self, at_least: int, patience: float, pause: float = 1.0) -> None:
        """Wait for clients, and number them.

        Args:
            at_least: Required number of clients.
            patience: Maximum seconds to wait for them.
            pause: Seconds between two polls.

        Raises:
            DataError: If they do not join.
        """
        end = time.monotonic() + patience
        while True:
            if len(list(self.link.get_node_ids())) >= at_least or self.members:
                self.refresh(max(0.0, min(self._timeout, end - time.monotonic())))
            if len(self.members) >= at_least:
                return
            if time.monotonic() >= end:
                examples = [*self.strangers.items()][:MAX_STRANGERS_LOGGED]
                reasons = "".join(f"; node {node}: {reason}" for node, reason in examples)
                outcome = f"{len(self.members)} joined within {patience:g} s{reasons}"
                raise DataError.of(f"at least {at_least} clients", f"take part, but {outcome}")
            time.sleep(pause)

    def refresh(self, seconds: float = 0.0) -> None:
        """Update the connected nodes, greet new ones, and add those that replied.

        Args:
            seconds: Time to wait for replies; later ones are handled by a later call.
        """
        connected = {*self.link.get_node_ids()}
        self.members = [member if member.node in connected else replace(member, node=None) for member in self.members]
        known_nodes = {member.node for member in self.members} | self.strangers.keys()
        self._asked = {node: request for node, request in self._asked.items() if node in connected}
        for node in sorted(connected - known_nodes - self._asked.keys()):
            self._asked[node] = self._exchange.send(self._greeting_to(node))
        if self._asked:
            if not self._exchange.wait([*self._asked.values()], seconds) and seconds:
                logger.warning("%d nodes have not answered within %g s", len(self._asked), seconds)
            self._admit_answered()

    def is_here(self) -> bool:
        """Return whether any client is connected."""
        return any(member.node is not None for member in self.members)

    def _admit_answered(self) -> None:
        """Add the nodes that replied to a greeting."""
        introductions: dict[int, wire.Introduction] = {}
        for node, request in [*self._asked.items()]:
            if request.reply is not None:
                del self._asked[node]
                try:
                    introductions[node] = self._read(request.reply)
                except ValueError as error:
                    self._refuse(node, str(error))
        names = Counter(introduction.name for introduction in introductions.values())
        for node, introduction in sorted(introductions.items(), key=_order(introductions)):
            if names[introduction.name] > 1:
                self._refuse(node, f"another node has its name, {shown(introduction.name)}")
            else:
                self._admit(node, introduction)

    def _refuse(self, node: int, reason: str) -> None:
        self.strangers[node] = reason
        logger.warning("node %d can't take part: %s", node, reason)

    def _read(self, reply: Message) -> wire.Introduction:
        """Return a client's introduction.

        Raises:
            ValueError: If it can't take part.
        """
        if reply.has_error():
            raise ValueError(wire.one_line(reply.error.reason or "it gave no reason"))
        greeted = self._wire.opened(reply.content)
        if not isinstance(greeted, wire.Introduction):
            raise ValueError("it did not introduce itself")
        if greeted.version != (own_version := version("fedscout")):
            raise ValueError(f"it runs fedscout {shown(greeted.version)}, the server runs {own_version}")
        if greeted.model != self._model:
            raise ValueError("its model, columns or classes differ from the server's")
        if not 1 <= len(greeted.name) <= LONGEST_NAME or not greeted.name.isprintable():
            raise ValueError(f"its name must have 1 to {LONGEST_NAME} printable characters, got {shown(greeted.name)}")
        if not 0 <= greeted.num_rows <= MAX_ROWS:
            raise ValueError(f"its number of rows must be from 0 to {MAX_ROWS}, got {shown(greeted.num_rows)}")
        return greeted

    def _admit(self, node: int, introduction: wire.Introduction) -> None:
        """Number a new client, or reconnect a known one: after a restart its node has another id."""
        for client, member in enumerate(self.members):
            if member.introduction.name == introduction.name:
                if member.node is not None:
                    if self._is_alive(member.node):
                        self._refuse(node, f"another node with its name, {shown(introduction.name)}, still responds")
                        return
                    self.strangers[member.node] = f"node {node} replaced it"
                logger.warning("client %d (%s) is back", client, introduction.name)
                self.members[client] = Member(node, introduction)
                return
        self.members.append(Member(node, introduction))

    def _is_alive(self, node: int) -> bool:
        exchange = Exchange(self.link)
        request = exchange.send(self._greeting_to(node))
        exchange.wait([request], min(ALIVE_SECONDS, self._timeout))
        return request.reply is not None and request.reply.metadata.src_node_id == node

    def _greeting_to(self, node: int) -> Message:
        return Message(self._wire.packed(self._greeting), node, f"{MessageType.QUERY}.{wire.ACTION}")


def _order(found: Mapping[int, wire.Introduction]) -> Callable[[tuple[int, wire.Introduction]], tuple[int, str, int]]:
    """Return the sort key by which new clients are numbered."""
    positions = [introduction.position for introduction in found.values()]
    use_positions = None not in positions and len({*positions}) == len(positions)
    return lambda item: (item[1].position or 0 if use_positions else 0, item[1].name, item[0])


Results = calls.TrainResults | calls.EvaluateResults | calls.QueryResults | calls.ServeResults

LATER_SECONDS = 3600.0
"""Time after a round's limit until Flower drops an undelivered message, so that no client trains in vain."""

PATIENCE_SECONDS = 600.0
"""Wait for a first client if rounds have no time limit."""

PAUSE_SECONDS = 1.0
"""Between two checks whether a client is connected."""


@dataclass
class Batch:
    """The calls of one node that travel in one message.

    Attributes:
        calls: The calls.
        request: The message; None before it is sent.
        answers: A result for each call, or the error why it can't be used; None until the reply is read.
    """

    calls: list[wire.NodeCall] = field(default_factory=list)
    request: Request | None = None
    answers: Sequence[Any] | None = None


@dataclass(frozen=True)
class PendingCall:
    """A call in progress.

    Attributes:
        method: Method of a host.
        client: The client; None for the server's own work.
        call: The request.
        batch: The calls that are sent together with this one; None if the client is not connected.
        place: Place among these.
        sent: Time of sending, by this process's monotonic clock.
    """

    method: str
    client: int | None
    call: calls.HostCall
    batch: Batch | None = None
    place: int = 0
    sent: float = field(default_factory=time.monotonic)


class NodeGrid(HostGrid[PendingCall]):
    """A grid over nodes.

    Args:
        roster: The clients.
        server: The driver's own work: a host without clients.
        wire: Encodes and decodes messages.
        session: Settings of the trial; its round timeout applies to each call.
        trial: Key under which clients store their states.
        terms: See `NodeCall`.

    Attributes:
        away: For each client, the number of calls without a usable result, and the last reason.

    Raises:
        DataError: If a settings table is combined with a metric, which would disclose rows, or clients do not classify.
    """

    def __init__(
        self,
        roster: NodeRoster,
        server: ClientHost,
        wire: wire.Wire,
        session: calls.Session,
        trial: str = "",
        terms: str = "",
    ) -> None:
        self._roster, self._server, self._wire, self._trial, self._terms = roster, server, wire, trial, terms
        self._exchange = Exchange(roster.link)
        self._waiting: dict[int, Batch] = {}  # by node
        self.away: dict[int, tuple[int, str]] = {}
        if session.client_table is not None and session.metric is not None:
            raise DataError.of(
                "a table of client settings", f"not be used with the metric {session.metric.name}, which discloses rows"
            )
        facts = self._facts()
        super().__init__(facts, num_hosts=facts.num_clients, session=session, merge_on_hosts=False)

    def initial_vectors(self, seeds: Sequence[int]) -> list[FloatArray]:
        """Return the initial models of some seeds, in order, each of shape `(params,)`."""
        return [self._server.initial_vector(seed) for seed in seeds]

    def get_node_ids(self) -> list[int]:
        """Return the clients' numbers in the grid, including new ones; a disconnected client fails when called.

        While no client is connected it waits, up to the round timeout.

        Raises:
            EngineError: If none connects; the trial can resume from its checkpoint.
        """
        limit = self.session.round_timeout_seconds or PATIENCE_SECONDS
        end = time.monotonic() + limit
        self._roster.refresh()
        if not self._roster.is_here():
            logger.warning("round %d: no client is connected, waiting up to %g s", self.server_round, limit)
        while not self._roster.is_here() and time.monotonic() < end:
            time.sleep(min(PAUSE_SECONDS, max(0.0, end - time.monotonic())))
            self._roster.refresh()
        if not self._roster.is_here():
            raise EngineError(f"no client was connected for {limit:g} s; run it again to resume when clients are back")
        new_facts = self._facts()
        if not np.array_equal(new_facts.client_rows, self.facts.client_rows):
            self._take_facts(new_facts, new_facts.num_clients)
        return [*super().get_node_ids()]

    def _facts(self) -> calls.FederationFacts:
        introductions = [member.introduction for member in self._roster.members]
        rows = np.array([introduction.num_rows for introduction in introductions], np.int64)
        grouped = bool(introductions) and all(introduction.grouped for introduction in introductions)
        facts = self._server.facts()
        if not (facts.classifies and facts.holds_rows):
            raise DataError.of(
                "clients on their own machines",
                "have a classification task: regression targets are standardised over the rows of all clients, which "
                "no machine sees, and reinforcement-learning clients have no rows",
            )
        common = replace(facts, least_training_rows=0)  # each owner says from how many rows its client takes part
        return replace(common, num_clients=len(introductions), client_rows=rows, grouped=grouped)

    def _start(self, host: int, method: str, call: calls.HostCall) -> PendingCall:
        if method == "serve":
            return PendingCall(method, None, call)
        measured = () if call.watched is None else call.watched.measured
        (client,) = {*call.clients, *call.evaluated, *measured}
        node = self._roster.members[client].node
        if node is None:
            return PendingCall(method, client, call)
        batch = self._waiting.setdefault(node, Batch())
        batch.calls.append(wire.NodeCall(cast(wire.Method, method), call, self._trial, self._terms))
        return PendingCall(method, client, call, batch, len(batch.calls) - 1)

    def _send(self) -> None:
        """Send each node its pending calls as one message."""
        waiting, self._waiting = self._waiting, {}
        ttl = self.session.round_timeout_seconds
        for node, batch in waiting.items():
            kinds = {call.method for call in batch.calls}
            try:
                content = self._wire.packed(wire.NodeCalls(tuple(batch.calls)))
            except NotPlainError as error:
                raise TrialError(f"its requests can't be sent to clients on other machines: {error}") from error
            kind = kinds.pop() if len(kinds) == 1 else MessageType.TRAIN
            message = Message(content, node, f"{kind}.{wire.ACTION}", ttl=None if ttl is None else ttl + LATER_SECONDS)
            batch.request = self._exchange.send(message)

    def _gather(self, handles: Sequence[PendingCall], timeout: float | None) -> list[Any] | None:
        self._send()
        requests = _requests_of(handles)
        limit = self.session.round_timeout_seconds
        sent = min((pending.sent for pending in handles), default=0.0)
        remaining = None if limit is None else sent + limit - time.monotonic()
        waits = [max(0.0, seconds) for seconds in (timeout, remaining) if seconds is not None]
        complete = self._exchange.wait(requests, min(waits, default=None))
        if not complete and (remaining is None or (timeout is not None and timeout < remaining)):
            return None
        self._exchange.drop(requests)
        return self._drop_deviating([self._result(pending) for pending in handles])

    def _drop_deviating(self, results: list[Results]) -> list[Results]:
        """Return the results of one call, without those of another form than the majority."""
        alike: list[Results] = answers.like_most(results)
        for before, after in zip(results, alike, strict=True):
            if before is not after and isinstance(after, calls.TrainResults | calls.QueryResults):
                for client, reason in after.failures.items():
                    self._record_absence(client, reason)
        return alike

    def _give_up(self, handles: Sequence[PendingCall]) -> None:
        self._exchange.drop(_requests_of(handles))

    def _result(self, pending: PendingCall) -> Results:
        """Return the result of a call, or a failure of a client without a usable result."""
        if pending.client is None:
            return self._server.serve(pending.call)
        limit = self.session.round_timeout_seconds or 0
        batch, is_late = pending.batch, False
        if batch is not None and batch.answers is None and batch.request is not None:
            reply = batch.request.reply
            is_late = reply is None
            batch.answers = None if reply is None else self._read(reply, len(batch.calls))
        missing = answers.AnswerError(f"did not answer within {limit:g} s" if is_late else "is not connected")
        answer = missing if batch is None or batch.answers is None else batch.answers[pending.place]
        try:
            if isinstance(answer, ValueError):
                raise answer
            return self._checked(pending, answer)
        except ValueError as error:
            return self._absent(pending, str(error))

    def _read(self, reply: Message, num_calls: int) -> Sequence[Any]:
        if reply.has_error():
            return [answers.AnswerError(wire.one_line(reply.error.reason or "it gave no reason"))] * num_calls
        try:
            content = self._wire.opened(reply.content)
        except ValueError as error:
            return [error] * num_calls
        if not isinstance(content, wire.NodeAnswers) or len(content.answers) != num_calls:
            return [answers.AnswerError("its answer does not match the request")] * num_calls
        return [
            answers.AnswerError(wire.one_line(each.reason)) if isinstance(each, wire.Refusal) else each
            for each in content.answers
        ]

    def _checked(self, pending: PendingCall, answer: Any) -> Results:
        client = pending.client
        assert client is not None
        num_rows = self._roster.members[client].introduction.num_rows or ROWS_IF_UNKNOWN
        expectation = answers.ExpectedAnswer(client, pending.call, num_rows, self.facts.num_classes)
        if pending.method == "query":
            return answers.checked_query(answer, expectation)
        if pending.method == "evaluate":
            return self._scored(client, answers.checked_scores(answer, expectation))
        results = answers.checked_training(answer, expectation)
        if results.evaluation is not None:
            results.evaluation = self._scored(client, results.evaluation)
        for reason in results.failures.values():
            self._record_absence(client, reason)
        return results

    def _scored(self, client: int, scores: calls.EvaluateResults) -> calls.EvaluateResults:
        """Return scores, with failures recorded; a round's scores are those of the remaining clients."""
        if scores.failures:
            self._record_absence(client, scores.failures[client])
        return replace(scores, failures={})

    def _absent(self, pending: PendingCall, reason: str) -> Results:
        client, call = pending.client, pending.call
        assert client is not None
        self._record_absence(client, reason)
        if pending.method == "query":
            return calls.QueryResults(failures={client: reason})
        if pending.method == "evaluate":
            return calls.EvaluateResults()
        return calls.TrainResults(failures={client: reason} if client in call.clients else {})

    def _record_absence(self, client: int, reason: str) -> None:
        count, last_reason = self.away.get(client, (0, ""))
        if reason != last_reason:
            name = self._roster.members[client].introduction.name
            logger.warning("round %d: client %d (%s): %s", self.server_round, client, shown(name), reason)
        self.away[client] = (count + 1, reason)


def _requests_of(calls_sent: Sequence[PendingCall]) -> set[Request]:
    """Return the messages in which these calls were sent."""
    return {
        pending.batch.request
        for pending in calls_sent
        if pending.batch is not None and pending.batch.request is not None
    }
