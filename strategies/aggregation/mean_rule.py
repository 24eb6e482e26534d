"""A rule over means: what a strategy with a client algorithm of its own does with those of a round.

The engine forms them (`replies="merged"`): of the models, of each companion by the weight that the algorithm declares,
and the sums of what clients report. A rule is then one function of them and of the model that was sent, and may send
companions along with the next one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from fedscout.engine.arrays import FloatArray
from fedscout.engine.errors import Fault, StrategyError
from fedscout.engine.messages.companion_record import put_companions, replied_companions
from fedscout.engine.messages.message_keys import FLAT_KEY
from fedscout.engine.messages.view_array import read_array, view_record
from fedscout.strategies.aggregation.mean_aggregation import PlainMean
from fedscout.strategies.aggregation.reply_matrices import metric_record
from fedscout.strategies.aggregation.round_messages import Aggregate

DoubleArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RoundMeans:
    """What a round gave.

    Attributes:
        received: x, the model that was sent, shape `(size,)`.
        model: The mean of the clients' models, likewise.
        companions: The mean of each companion, likewise.
        sums: By name what adds up over the clients that answered: `num-clients`, `num-examples`, `num-steps`, and what
            the algorithm reports.
    """

    received: DoubleArray
    model: DoubleArray
    companions: Mapping[str, DoubleArray]
    sums: Mapping[str, float]


def with_share(kept: FloatArray | None, means: RoundMeans, name: str, num_clients: int) -> DoubleArray:
    """Return what a server keeps, 0 at first, plus |S|/N times the mean of a companion: of all clients, S answered.

    Args:
        kept: After the round before.
        means: Of this round.
        name: Of the companion.
        num_clients: N.
    """
    change: DoubleArray = means.companions[name] * (means.sums["num-clients"] / num_clients)
    return change if kept is None else kept + change


class MeanRule(PlainMean):
    """Flower's FedAvg with another step; takes its arguments."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._received: FloatArray | None = None

    def companions(self) -> Mapping[str, FloatArray]:
        """Return what is sent beside the model, each of its length."""
        return {}

    @abstractmethod
    def step(self, means: RoundMeans) -> DoubleArray:
        """Return the new model; called once a round in which a client answered."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return FedAvg's messages with companions in their shared content."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self._received = read_array(arrays[FLAT_KEY])
        if messages:
            put_companions(messages[0].content, self.companions())
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        """Return the new model and the mean metrics.

        Raises:
            StrategyError: If there are several replies, as of clients that clip their updates.
        """
        replies = list(replies)
        contents = [reply.content for reply in replies if reply.has_content()]
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is None:
            return arrays, metrics
        if len(contents) != 1:
            raise StrategyError(Fault(type(self).__name__, "be answered by one merged reply", len(contents)))
        assert self._received is not None
        numbers = {name: value for name, value in metric_record(contents[0]).items() if not isinstance(value, list)}
        means = RoundMeans(
            received=self._received.astype(np.float64),
            model=read_array(arrays[FLAT_KEY]).astype(np.float64),
            companions={name: mean.astype(np.float64) for name, mean in replied_companions(contents[0]).items()},
            sums=numbers,
        )
        self._received = None
        return view_record({FLAT_KEY: self.step(means).astype(np.float32)}), metrics
