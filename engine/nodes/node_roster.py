"""Who takes part: the nodes that a Flower grid knows, as numbered clients.

Everywhere else a client is a number from 0 on, from which its random streams derive; here alone it has a node's id. The
numbers follow the positions that owners gave their clients, if all did, else the names; whoever joins later has the
next one. A node that comes back under its name, with another id after a restart, is the client that it was.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedscout.engine.errors import DataError
from fedscout.engine.fault_text import shown
from fedscout.engine.nodes.node_call import ACTION, Greeting, Introduction, Wire
from fedscout.engine.nodes.node_exchange import Exchange

logger = logging.getLogger("fedscout")

MAX_ROWS = 2**40
"""Of all clients together: beyond it the exact sums of their models have no room."""


@dataclass(frozen=True)
class Member:
    """A client and where it is.

    Attributes:
        node: Its node's id; None while it is not connected.
        introduction: What it said of itself.
    """

    node: int | None
    introduction: Introduction


class NodeRoster:
    """The clients that were met so far, by number.

    Args:
        link: Flower's grid.
        wire: Writes and reads messages.
        model: Digest of the model's layout, which must be the clients' too.
        greeting: What a client is told and asked first.
        timeout: Seconds that a client may take to answer.

    Attributes:
        members: By number.
        strangers: Why other nodes can't take part, by id.
    """

    def __init__(self, link: Grid, wire: Wire, model: str, greeting: Greeting, timeout: float) -> None:
        self.link = link
        self.members: list[Member] = []
        self.strangers: dict[int, str] = {}
        self._wire, self._model, self._greeting, self._timeout = wire, model, greeting, timeout

    def meet(self, at_least: int, patience: float, pause: float = 1.0) -> None:
        """Wait for clients, and number them.

        Args:
            at_least: So many must take part.
            patience: Seconds to wait for them.
            pause: Seconds between two looks.

        Raises:
            DataError: If they do not come.
        """
        end = time.monotonic() + patience
        while True:
            if len(list(self.link.get_node_ids())) >= at_least or self.members:
                self.refresh()
            if len(self.members) >= at_least:
                return
            if time.monotonic() >= end:
                why = "".join(f"; node {node} {reason}" for node, reason in self.strangers.items())
                came = f"within {patience:g} s {len(self.members)} did{why}"
                raise DataError(f"at least {at_least} clients must take part, but {came}")
            time.sleep(pause)

    def refresh(self) -> None:
        """Look who is connected, and greet who is new."""
        connected = {*self.link.get_node_ids()}
        self.members = [member if member.node in connected else replace(member, node=None) for member in self.members]
        known = {member.node for member in self.members}
        new = sorted(connected - known - self.strangers.keys())
        if new:
            self._greet(new)

    def node_of(self, client: int) -> int | None:
        """Return where a client is; None if it is not connected."""
        return self.members[client].node

    def _greet(self, nodes: Iterable[int]) -> None:
        exchange = Exchange(self.link)
        sent = {
            node: exchange.send(Message(self._wire.packed(self._greeting), node, f"{MessageType.QUERY}.{ACTION}"))
            for node in nodes
        }
        exchange.wait(sent.values(), self._timeout)
        replies = exchange.take(sent.values())
        found: dict[int, Introduction] = {}
        for node, flight in sent.items():
            reply = replies.get(flight)
            if reply is None:
                logger.warning("node %d did not answer within %g s", node, self._timeout)  # asked again later
                continue
            try:
                found[node] = self._read(reply)
            except ValueError as error:
                self.strangers[node] = str(error)
                logger.warning("node %d can't take part: %s", node, error)
        names = Counter(introduction.name for introduction in found.values())
        for node, introduction in sorted(found.items(), key=_order(found)):
            if names[introduction.name] > 1:
                self.strangers[node] = f"another node has its name, {shown(introduction.name)}"
                logger.warning("node %d can't take part: %s", node, self.strangers[node])
            else:
                self._take_in(node, introduction)

    def _read(self, reply: Message) -> Introduction:
        """Return what a client says of itself.

        Raises:
            ValueError: If it can't take part.
        """
        if reply.has_error():
            raise ValueError(reply.error.reason or "it gave no reason")
        told = self._wire.opened(reply.content)
        if not isinstance(told, Introduction) or not isinstance(told.name, str):
            raise ValueError("it did not introduce itself")
        if told.version != (own := version("fedscout")):
            raise ValueError(f"it has version {shown(told.version)} of fedscout, this is {own}")
        if told.model != self._model:
            raise ValueError("it has another model, or other columns or classes")
        rows, total = told.num_rows, sum(member.introduction.num_rows for member in self.members)
        if type(rows) is not int or not 0 <= rows <= MAX_ROWS - total:
            raise ValueError(f"it says that it holds {shown(rows)} rows")
        return told

    def _take_in(self, node: int, introduction: Introduction) -> None:
        """Number a client, or find it again: after a restart a node has another id, and the old one lingers."""
        for client, member in enumerate(self.members):
            if member.introduction.name == introduction.name:
                if member.node is not None:
                    self.strangers[member.node] = f"node {node} took its place as {introduction.name}"
                logger.warning("client %d (%s) is back", client, introduction.name)
                self.members[client] = Member(node, introduction)
                return
        self.members.append(Member(node, introduction))


def _order(found: Mapping[int, Introduction]) -> Callable[[tuple[int, Introduction]], tuple[int, str, int]]:
    """Return by what new clients are numbered."""
    positions = [introduction.position for introduction in found.values()]
    given = None not in positions and len({*positions}) == len(positions)
    return lambda item: (item[1].position or 0 if given else 0, item[1].name, item[0])
