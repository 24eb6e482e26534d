"""What Flower's own runtime would tell of messages: who makes them in this process, and which one each is.

Outside that runtime `flwr.app.Message` refuses to be made until the process has an identity, and no public call gives
a message its id: Flower's grids, too, write it into the metadata's dictionary.
"""

from __future__ import annotations

from contextlib import suppress

from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

SERVER_NODE_ID = 1


def claim_task_identity(run_id: int = 1) -> None:
    """Make this process the server of run `run_id`, unless Flower's own runtime has said which it is."""
    with suppress(RuntimeError):
        if TaskIdentity.run_id:
            return
    TaskIdentity.task_id = run_id
    TaskIdentity.run_id = run_id
    TaskIdentity.node_id = SERVER_NODE_ID


def give_id(message: Message, message_id: str) -> None:
    """Give a message the id that its reply will name."""
    message.metadata.__dict__["_message_id"] = message_id
