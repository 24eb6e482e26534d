"""A grid that shows a strategy only those nodes that a selection policy chose, so that it trains them and no others."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from flwr.serverapp import Grid

from fedscout.engine.messages.message_contents import client_of

_OF_ALL_SHOWN = {"fraction_train": 1.0, "min_train_nodes": 1, "min_available_nodes": 1}
"""The settings of Flower's strategies with which they train every node that a grid shows."""


class ChosenNodes:
    """A grid with the nodes of some clients alone; everything else is the grid's.

    Attributes:
        everybody: The grid itself.
    """

    def __init__(self, grid: Grid, clients: Collection[int]) -> None:
        self.everybody = grid
        self._clients = frozenset(clients)

    def get_node_ids(self) -> list[int]:
        """Return the nodes of those clients, ascending."""
        return [node for node in self.everybody.get_node_ids() if client_of(node) in self._clients]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.everybody, name)


def train_all_shown(strategy: Any) -> None:
    """Have a strategy, and one that it wraps, train every node that it is shown, in place of a sample of its own."""
    while strategy is not None:
        for name, value in _OF_ALL_SHOWN.items():
            if hasattr(strategy, name):
                setattr(strategy, name, value)
        strategy = getattr(strategy, "strategy", None)
