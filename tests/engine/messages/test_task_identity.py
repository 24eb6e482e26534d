"""What Flower's own runtime would tell of messages."""

from __future__ import annotations

import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedscout.engine.messages.contents import claim_task_identity, give_id


def test_a_reply_names_the_message_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Flower keeps the id is private: this fails when it moves."""
    monkeypatch.setattr(TaskIdentity, "_run_id", None)
    claim_task_identity(run_id=3)
    message = Message(RecordDict(), 5, "query")
    assert (message.metadata.run_id, message.metadata.src_node_id) == (3, 1)
    give_id(message, "7")
    assert message.metadata.message_id == "7"
    assert Message(RecordDict(), reply_to=message).metadata.reply_to_message_id == "7"
    claim_task_identity()
    assert TaskIdentity.run_id == 3, "a run that Flower's own runtime has begun is not taken over"
