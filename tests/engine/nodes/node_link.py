"""A Flower grid in this process whose nodes are Flower apps: messages travel as bytes, as through a SuperLink."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run

from fedscout import strategies
from fedscout.engine.client.host import ClientHost
from fedscout.engine.data.client import Partition, QueryTable
from fedscout.engine.data.federation import Federation, ServerData
from fedscout.engine.messages.calls import Session
from fedscout.engine.nodes.client import ClientNode
from fedscout.engine.nodes.grid import NodeGrid, NodeRoster
from fedscout.engine.nodes.policy import OwnerPolicy
from fedscout.engine.nodes.wire import Greeting, NodeAnswers, NodeCalls, Wire, algorithms_of, model_digest
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.trial import run_trial
from tests.engine.federations import QUERIES, uneven_federation

WIRE = Wire(algorithms_of(strategies.__name__))
FIRST_NODE = 7_000_000_000_000_000_000
SIZES = (40, 17, 26, 12)
"""Rows of four clients."""

FEDERATION = uneven_federation(sizes=SIZES)
TRUSTING = OwnerPolicy(small_clients="train")


def node_of(client: int) -> int:
    """Return the id of a client's node."""
    return FIRST_NODE - 17 * client


def owner_of(**changes: Any) -> OwnerPolicy:
    """Return an owner that allows all but some."""
    return OwnerPolicy(**{**TRUSTING.model_dump(), **changes})


def carried(message: Message) -> Message:
    """Return a message as it arrives."""
    message.metadata.__dict__["_message_id"] = message.object_id
    contents = {object_id: each.deflate() for object_id, each in get_all_nested_objects(message).items()}
    arrived = inflate_object_from_contents(message.object_id, contents)
    assert isinstance(arrived, Message)
    arrived.metadata.__dict__["_message_id"] = message.object_id
    return arrived


@dataclass
class NodeLink(Grid):
    """Nodes by id, each an app with its context.

    Attributes:
        apps: By node id; who is missing is not connected.
        heard: Every message that was carried, in both directions.
        tamper: Told a node and its reply, what arrives in its place; None loses it.
    """

    apps: dict[int, tuple[ClientApp, Context]] = field(default_factory=dict)
    heard: list[Message] = field(default_factory=list)
    tamper: Callable[[int, Message], Message | None] = lambda _, reply: reply
    _replies: dict[str, Message] = field(default_factory=dict)
    _ids: Iterable[int] = field(default_factory=lambda: itertools.count(1))

    def tamper_with(self, node: int, change: Callable[[Message], Message | None]) -> None:
        """Have what one node replies arrive otherwise."""
        self.tamper = lambda sender, reply: change(reply) if sender == node else reply

    def set_run(self, run: Run) -> None: ...

    @property
    def run(self) -> Run:
        return Run.create_empty(run_id=1)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return sorted(self.apps, reverse=True)  # in no order that means anything

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            arrived, node = carried(message), message.metadata.dst_node_id
            ids.append(arrived.metadata.message_id)
            self.heard.append(arrived)
            if node not in self.apps:
                refusal = Message(Error(13, "Node unavailable"), reply_to=arrived)
                refusal.metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID
                self._replies[ids[-1]] = refusal
                continue
            app, context = self.apps[node]
            reply = self.tamper(node, app(arrived, context))
            if reply is not None:
                self._replies[ids[-1]] = carried(reply)
                self.heard.append(self._replies[ids[-1]])
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(message_id) for message_id in message_ids if message_id in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))

    def connect(
        self,
        node: int,
        client: int,
        federation: Federation = FEDERATION,
        owner: OwnerPolicy = TRUSTING,
        queries: QueryTable = QUERIES,
    ) -> None:
        """Connect a node that holds the rows of one client."""

        def rows(number: int, terms: str, context: Context) -> Federation:
            del terms, context
            return federation.alone(client, number)

        context = Context(1, node, {"partition-id": client}, RecordDict(), {})
        self.apps[node] = (ClientNode(rows, queries, owner, WIRE).app(), context)


def met(
    link: NodeLink,
    federation: Federation = FEDERATION,
    at_least: int = 1,
    patience: float = 0.0,
    timeout: float = 0.3,
    asks_rows: bool = True,
) -> NodeRoster:
    """Return the roster of whoever introduces itself well."""
    digest = model_digest(server_side(federation).facts())
    roster = NodeRoster(link, WIRE, digest, Greeting(asks_rows), timeout)
    roster.meet(at_least, patience, pause=0.05)
    return roster


def linked(federation: Federation = FEDERATION, queries: QueryTable = QUERIES) -> tuple[NodeLink, NodeRoster]:
    """Return a grid with a node for each client of a federation, and the roster that has met them."""
    link = NodeLink()
    for client in range(federation.num_clients):
        link.connect(node_of(client), client, federation, queries=queries)
    return link, met(link, federation, federation.num_clients, patience=5.0, timeout=5.0)


def server_side(federation: Federation, server: ServerData | None = None, targets: Any = None) -> ClientHost:
    """Return the driver's own side of a federation: no clients, and the server's rows."""
    empty = replace(
        federation,
        features=federation.features[:0],
        labels=federation.labels[:0],
        targets=targets,
        groups=None,
        partition=Partition.from_lists([]),
        transforms={},
        server=server,
    )
    return ClientHost(empty, {})


def node_grid(federation: Federation, roster: NodeRoster, session: Session, trial: str = "") -> NodeGrid:
    """Return a grid over a roster's nodes."""
    return NodeGrid(roster, server_side(federation, federation.server), WIRE, session, trial)


def over_nodes(settings: TrialSettings, roster: NodeRoster, federation: Federation = FEDERATION) -> Trial:
    """Return the result of a trial over a roster's nodes, which does not fail."""
    trial = run_trial(settings, node_grid(federation, roster, settings.session, settings.checkpoint))
    assert trial.error is None
    return trial


def join_late(link: NodeLink, roster: NodeRoster) -> None:
    """Have the last node of a roster appear after the first reply of the others."""
    late, roster.members[-1:] = roster.members[-1], []
    app = link.apps.pop(late.node or 0)

    def join(node: int, reply: Message) -> Message:
        link.apps[late.node or 0] = app
        return reply

    link.tamper = join


def told_in(message: Message) -> list[Any]:
    """Return what a message tells: each call, or each answer, of those that travel together."""
    value = WIRE.opened(message.content)
    if isinstance(value, NodeCalls):
        return [*value.calls]
    return [*value.answers] if isinstance(value, NodeAnswers) else [value]
