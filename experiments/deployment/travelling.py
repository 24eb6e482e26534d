"""What may travel between a driver and real clients: the engine's values, and every strategy's client algorithm."""

from __future__ import annotations

from fedscout.engine.nodes.node_call import Wire, algorithms_of
from fedscout.strategies.space import strategy_table


def wire() -> Wire:
    """Return what writes and reads it."""
    assert strategy_table  # importing it has imported every strategy's clients
    return Wire(algorithms_of("fedscout.strategies"))
