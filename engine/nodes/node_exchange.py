"""Messages to nodes and their replies, over any Flower grid: sent together, pulled until all are there or time is up.

`Grid.send_and_receive` looks for replies every three seconds, and waits for all or for none; a reply can be pulled
once. A reply counts if it is to a message that is on its way, and from the node that this went to; one that says that
it can't be delivered comes from Flower's link.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

from flwr.app import Message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid

LINK = SUPERLINK_NODE_ID
"""Who says that a message can't be delivered."""

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5
"""Seconds between two looks for replies, doubled from the first to the longest."""


class Exchange:
    """Messages on their way.

    Args:
        link: Flower's grid.
    """

    def __init__(self, link: Grid) -> None:
        self._link = link
        self._waiting: dict[int, Message] = {}
        self._ids: dict[str, int] = {}
        self._nodes: dict[int, int] = {}
        self._replies: dict[int, Message] = {}
        self._next = 0

    def send(self, message: Message) -> int:
        """Have a message sent with those that are waiting, at the next look; return its number."""
        self._next += 1
        self._waiting[self._next] = message
        self._nodes[self._next] = message.metadata.dst_node_id
        return self._next

    def wait(self, numbers: Iterable[int], timeout: float | None) -> bool:
        """Return whether the replies to some messages are there, at the latest after `timeout` seconds."""
        wanted = {*numbers}
        self._push()
        end = None if timeout is None else time.monotonic() + timeout
        pause = FIRST_PAUSE
        while self._pull(wanted):
            left = LONGEST_PAUSE if end is None else end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)
        return True

    def take(self, numbers: Iterable[int]) -> dict[int, Message]:
        """Hand over the replies to some messages, by number, and wait for the others no longer."""
        taken = {*numbers}
        for number in taken:
            self._nodes.pop(number, None)
            self._waiting.pop(number, None)
        self._ids = {message_id: number for message_id, number in self._ids.items() if number not in taken}
        return {number: self._replies.pop(number) for number in taken if number in self._replies}

    def take_arrived(self, numbers: Iterable[int]) -> dict[int, Message]:
        """Hand over those replies to some messages that are there, and go on waiting for the others."""
        return self.take([number for number in numbers if number in self._replies])

    def _push(self) -> None:
        waiting, self._waiting = self._waiting, {}
        if waiting:
            ids = self._link.push_messages([*waiting.values()])
            self._ids |= {message_id: number for message_id, number in zip(ids, waiting, strict=True) if message_id}

    def _pull(self, wanted: Collection[int]) -> bool:
        """Take in what came; return whether some of what is wanted may still come."""
        asked = [message_id for message_id, number in self._ids.items() if number in wanted]
        for reply in self._link.pull_messages(asked) if asked else ():
            number = self._ids.get(reply.metadata.reply_to_message_id)
            sender = reply.metadata.src_node_id
            if number is None or not (sender == self._nodes[number] or (reply.has_error() and sender == LINK)):
                continue
            del self._ids[reply.metadata.reply_to_message_id]
            self._replies[number] = reply
        return any(number in wanted for number in self._ids.values())
