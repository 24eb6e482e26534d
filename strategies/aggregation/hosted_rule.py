"""Server rules part of which is done on a host: where torch, the model and the server's own rows are.

A rule calls `serve` while it aggregates. The grid leads to the hosts, and Flower shows it to `configure_train` alone,
so it is kept from there until the round's replies are in. Between rounds nothing is kept: a strategy is written into
checkpoints.

Many vectors go each by itself, not as a matrix, which would be a copy of all of them (`numbered`, `in_order`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower

from fedscout.engine.contracts.server_work import Arrays, ServerWork, ServesWork
from fedscout.engine.errors import StrategyError
from fedscout.strategies.aggregation.round_messages import Aggregate
from fedscout.strategies.aggregation.server_rule import ServerRule


class Hosted(flower.Strategy):
    """Goes ahead of a strategy's class, which then may have work done on the server's rows.

    Attributes:
        grid: Of the round; None between rounds.
    """

    grid: Any = None

    def serve(self, work: ServerWork, arrays: Arrays) -> Arrays:
        """Have work of this round done, and return what it returns.

        Args:
            work: A frozen, picklable value.
            arrays: What it is given.

        Raises:
            StrategyError: If the grid has no hosts.
            TrialError: If the work fails.
        """
        grid: ServesWork | None = self.grid if hasattr(self.grid, "serve") else None  # maybe by way of another grid
        if grid is None:
            name = type(self.grid).__name__
            raise StrategyError(f"{type(self).__name__} needs a grid with hosts for the server's work, got {name}")
        return grid.serve(work, arrays)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of the round, and remember the grid."""
        self.grid = grid
        return super().configure_train(server_round, arrays, config, grid)  # type: ignore[safe-super]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        """Return the model where the rule puts it, and the mean metrics."""
        try:
            return super().aggregate_train(server_round, replies)  # type: ignore[safe-super]
        finally:
            self.grid = None


def numbered(name: str, vectors: Iterable[npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return vectors under a name and their numbers."""
    return {f"{name} {number}": vector for number, vector in enumerate(vectors)}


def in_order(name: str, arrays: Arrays) -> Sequence[npt.NDArray[Any]]:
    """Return the vectors that lie under a name and their numbers."""
    found: list[npt.NDArray[Any]] = []
    while (key := f"{name} {len(found)}") in arrays:
        found.append(arrays[key])
    return found


class HostedRule(Hosted, ServerRule):
    """A server rule that may have work done on the server's rows."""
