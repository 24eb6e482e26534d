"""Server rules part of which is done on a host: where torch, the model and the server's own rows are.

A rule calls `serve` while it aggregates. The grid leads to the hosts, and Flower shows it to `configure_train` alone,
so it is kept from there until the round's replies are in. Between rounds nothing is kept: a strategy is written into
checkpoints.

Many models are worked on one at a time (`serve_each`), so that no host is sent all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.server_work import Arrays, ServerContext, ServerWork, ServesWork
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
        return self._serving.serve(work, arrays)

    def serve_each(self, work: ServerWork, inputs: Sequence[Arrays]) -> Iterator[Arrays]:
        """Have work of this round done on each of some inputs, by all hosts, and yield what it returns, in order.

        Args:
            work: A frozen, picklable value.
            inputs: What it is given.

        Raises:
            StrategyError: If the grid has no hosts.
            TrialError: If the work fails for one.
        """
        return self._serving.serve_each(work, inputs)

    def outputs(self, models: Iterable[FloatArray]) -> Iterator[FloatArray]:
        """Yield what each model says of the server's rows, its logits, shape `(rows, num_classes)`."""
        return (said["outputs"] for said in self.serve_each(Outputs(), [{"model": model} for model in models]))

    @property
    def _serving(self) -> ServesWork:
        grid: ServesWork | None = self.grid if hasattr(self.grid, "serve") else None  # maybe by way of another grid
        if grid is None:
            name = type(self.grid).__name__
            raise StrategyError(f"{type(self).__name__} needs a grid with hosts for the server's work, got {name}")
        return grid

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


@dataclass(frozen=True)
class Outputs:
    """What a model says of the server's rows."""

    def run(self, context: ServerContext, arrays: Arrays) -> Arrays:
        """Return the logits of the `model` as `outputs`, shape `(rows, num_classes)`."""
        import torch

        return {"outputs": context.outputs(torch.from_numpy(np.array(arrays["model"], np.float32))).numpy()}


class HostedRule(Hosted, ServerRule):
    """A server rule that may have work done on the server's rows."""
