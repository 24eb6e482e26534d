"""Detection among clients of which each misses an exchange at random, as where only a part of them answers.

Whoever misses the first exchange has told of no labels and is asked for nothing more; whoever misses a later one is
left out of what that exchange is about.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Error, Message

from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.grid.replies import CLIENT_FAILED
from fedscout.engine.messages.message_contents import client_of
from fedscout.engine.messages.session import Session
from fedscout.engine.seeds import stream
from fedscout.engine.trials.trial_runner import OpensGrids

REASON = "the client misses this exchange"


@dataclass(frozen=True)
class AbsentClients:
    """Opens grids on which clients miss exchanges.

    Attributes:
        runner: Whose grids these are.
        probability: That a client misses an exchange, in `[0, 1)`, independently of others and of other exchanges.
        seed: Of who is absent when.
    """

    runner: OpensGrids
    probability: float
    seed: int

    def grid(self, session: Session) -> HostGrid[Any]:
        """Return a grid whose clients miss exchanges."""
        grid = self.runner.grid(session)
        ask, exchanges = grid.send_and_receive, itertools.count()

        def send_and_receive(messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
            sent = list(messages)
            absent = self.absent(next(exchanges), grid.facts.num_clients)
            missed = [message for message in sent if client_of(message.metadata.dst_node_id) in absent]
            asked = [message for message in sent if client_of(message.metadata.dst_node_id) not in absent]
            refusals = [Message(Error(CLIENT_FAILED, REASON), reply_to=message) for message in missed]
            return [*(ask(asked, timeout=timeout) if asked else ()), *refusals]

        grid.send_and_receive = send_and_receive  # type: ignore[method-assign]
        return grid

    def absent(self, exchange: int, num_clients: int) -> Sequence[int]:
        """Return who misses an exchange."""
        drawn = stream(self.seed, "absent from an exchange", exchange).random(num_clients)
        return [client for client in range(num_clients) if drawn[client] < self.probability]
