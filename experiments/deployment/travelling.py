"""What may travel between a driver and real clients: the engine's values, and every strategy's client algorithm."""

from __future__ import annotations

from flwr.app import Message

from fedscout.engine.nodes.node_call import DOCUMENT_KEY, Wire, algorithms_of

STRATEGIES = "fedscout.strategies"


def wire() -> Wire:
    """Return what writes and reads all of it."""
    from fedscout.strategies.space import strategy_table  # which imports every strategy's clients

    assert strategy_table
    return Wire(algorithms_of(STRATEGIES))


def wire_of(message: Message) -> Wire:
    """Return what reads a message: without the strategies where it names none, as their import takes a second."""
    return wire() if STRATEGIES in document_of(message) else Wire()


def document_of(message: Message) -> str:
    """Return the text of what a driver of this program asks; nothing of other messages."""
    record = message.content.config_records.get(DOCUMENT_KEY)
    return "" if record is None else str(record.get(DOCUMENT_KEY, ""))
