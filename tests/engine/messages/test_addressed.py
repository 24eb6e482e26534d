"""Copies of a message are the messages that Flower would make."""

from __future__ import annotations

from flwr.app import ConfigRecord, Message, RecordDict

from fedscout.engine.messages.contents import addressed


def test_copies_are_flowers_messages_but_for_the_clock() -> None:
    content = RecordDict({"config": ConfigRecord({"a": 1})})
    first = Message(content, 7, "train", ttl=5.0, group_id="3")
    copies = addressed(first, [7, 2, 9])
    for node, copy in zip([7, 2, 9], copies, strict=True):
        made = Message(content, node, "train", ttl=5.0, group_id="3")
        assert copy.content is content
        assert not copy.has_error()
        made_at = {"_created_at": first.metadata.created_at}
        assert vars(copy.metadata) == {**vars(made.metadata), **made_at}
        assert set(vars(copy)) == set(vars(made))


def test_a_reply_to_a_copy_comes_from_its_addressee() -> None:
    content = RecordDict({"config": ConfigRecord({"a": 1})})
    _, second = addressed(Message(content, 2, "query", group_id="1"), [2, 5])
    reply = Message(RecordDict({}), reply_to=second)
    assert reply.metadata.src_node_id == 5
    assert reply.metadata.group_id == "1"


def test_what_is_written_on_one_copy_is_not_on_another() -> None:
    """As a grid does with message ids."""
    first = Message(RecordDict({}), 2, "query")
    one, two = addressed(first, [2, 3])
    one.metadata.__dict__["_message_id"] = "8"
    one.content = RecordDict({"config": ConfigRecord({"a": 1})})
    assert two.metadata.message_id == first.metadata.message_id == ""
    assert len(two.content) == len(first.content) == 0
    assert addressed(first, []) == []
