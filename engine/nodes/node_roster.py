"""Who takes part: the nodes that a Flower grid knows, as numbered clients.

Everywhere else a client is a number from 0 on, from which its random streams derive; here alone it has a node's id. The
numbers follow the positions that owners gave their clients, if all did, else the names; whoever joins later has the
next one. A node that comes back under its name, with another id after a restart, is the client that it was, unless the
node that was it before is still there and answers. Names are what owners say: that nobody else can connect is what
Flower's authentication of nodes is for.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedscout.engine.errors import DataError, Fault
from fedscout.engine.fault_text import shown
from fedscout.engine.nodes.node_call import ACTION, Greeting, Introduction, Wire, one_line
from fedscout.engine.nodes.node_exchange import Exchange

logger = logging.getLogger("fedscout")

MAX_ROWS = 2**27
"""Of a client: the exact sums of models have the less room for what follows the point, the more rows clients claim."""

UNTOLD_ROWS = 1000
"""As which a client counts at most that has not said how many it holds, which are too few for its owner to tell."""

LONGEST_NAME = 100
ALIVE_SECONDS = 10.0
"""In which a node must answer that is said to be another one now."""

STRANGERS_TOLD = 5


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
        self._exchange = Exchange(link)
        self._asked: dict[int, int] = {}

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
                self.refresh(max(0.0, min(self._timeout, end - time.monotonic())))
            if len(self.members) >= at_least:
                return
            if time.monotonic() >= end:
                named = [*self.strangers.items()][:STRANGERS_TOLD]
                why = "".join(f"; node {node} {reason}" for node, reason in named)
                came = f"within {patience:g} s {len(self.members)} did{why}"
                raise DataError(Fault(f"at least {at_least} clients", f"take part, but {came}"))
            time.sleep(pause)

    def refresh(self, seconds: float = 0.0) -> None:
        """Look who is connected, greet who is new, and take in who has answered.

        Args:
            seconds: To wait for answers; who takes longer is taken in at a later look.
        """
        connected = {*self.link.get_node_ids()}
        self.members = [member if member.node in connected else replace(member, node=None) for member in self.members]
        known = {member.node for member in self.members} | self.strangers.keys()
        self._asked = {node: number for node, number in self._asked.items() if node in connected}
        for node in sorted(connected - known - self._asked.keys()):
            message = Message(self._wire.packed(self._greeting), node, f"{MessageType.QUERY}.{ACTION}")
            self._asked[node] = self._exchange.send(message)
        if self._asked:
            if not self._exchange.wait(self._asked.values(), seconds) and seconds:
                logger.warning("%d nodes have not answered within %g s", len(self._asked), seconds)
            self._take_answers()

    def is_here(self) -> bool:
        """Whether anybody is connected."""
        return any(member.node is not None for member in self.members)

    def node_of(self, client: int) -> int | None:
        """Return where a client is; None if it is not connected."""
        return self.members[client].node

    def rows_of(self, client: int) -> int:
        """Return how many rows a client can count as, at most."""
        return self.members[client].introduction.num_rows or UNTOLD_ROWS

    def _take_answers(self) -> None:
        """Take in who has answered a greeting."""
        replies = self._exchange.take_arrived(self._asked.values())
        found: dict[int, Introduction] = {}
        for node, number in [*self._asked.items()]:
            if number in replies:
                del self._asked[node]
                try:
                    found[node] = self._read(replies[number])
                except ValueError as error:
                    self._refuse(node, str(error))
        names = Counter(introduction.name for introduction in found.values())
        for node, introduction in sorted(found.items(), key=_order(found)):
            if names[introduction.name] > 1:
                self._refuse(node, f"another node has its name, {shown(introduction.name)}")
            else:
                self._take_in(node, introduction)

    def _refuse(self, node: int, reason: str) -> None:
        self.strangers[node] = reason
        logger.warning("node %d can't take part: %s", node, reason)

    def _read(self, reply: Message) -> Introduction:
        """Return what a client says of itself.

        Raises:
            ValueError: If it can't take part.
        """
        if reply.has_error():
            raise ValueError(one_line(reply.error.reason or "it gave no reason"))
        told = self._wire.opened(reply.content)
        if not isinstance(told, Introduction):
            raise ValueError("it did not introduce itself")
        if told.version != (own := version("fedscout")):
            raise ValueError(f"it has version {shown(told.version)} of fedscout, this is {own}")
        if told.model != self._model:
            raise ValueError("it has another model, or other columns or classes")
        if not 1 <= len(told.name) <= LONGEST_NAME or not told.name.isprintable():
            raise ValueError(
                f"its name must be of 1 to {LONGEST_NAME} characters that can be printed, got {shown(told.name)}"
            )
        if not 0 <= told.num_rows <= MAX_ROWS:
            raise ValueError(f"it says that it holds {shown(told.num_rows)} rows, which must be from 0 to {MAX_ROWS}")
        return told

    def _take_in(self, node: int, introduction: Introduction) -> None:
        """Number a client, or find it again: after a restart a node has another id, and the old one lingers."""
        for client, member in enumerate(self.members):
            if member.introduction.name == introduction.name:
                if member.node is not None:
                    if self._is_alive(member.node):
                        self._refuse(node, f"another node has its name, {shown(introduction.name)}, and answers")
                        return
                    self.strangers[member.node] = f"node {node} took its place"
                logger.warning("client %d (%s) is back", client, introduction.name)
                self.members[client] = Member(node, introduction)
                return
        self.members.append(Member(node, introduction))

    def _is_alive(self, node: int) -> bool:
        exchange = Exchange(self.link)
        number = exchange.send(Message(self._wire.packed(self._greeting), node, f"{MessageType.QUERY}.{ACTION}"))
        exchange.wait([number], min(ALIVE_SECONDS, self._timeout))
        reply = exchange.take([number]).get(number)
        return reply is not None and reply.metadata.src_node_id == node


def _order(found: Mapping[int, Introduction]) -> Callable[[tuple[int, Introduction]], tuple[int, str, int]]:
    """Return by what new clients are numbered."""
    positions = [introduction.position for introduction in found.values()]
    given = None not in positions and len({*positions}) == len(positions)
    return lambda item: (item[1].position or 0 if given else 0, item[1].name, item[0])
