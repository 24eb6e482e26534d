"""FedBuff: buffered asynchronous aggregation, in which every K updates that arrive make a new model.

Clients train asynchronously: slow ones continue while others have contributed to new models. With x the
model, Δ_i = y_i − x_i the update of client i to the model x_i that it received, τ_i the number of models made
since then, and K the buffer size (Nguyen et al. 2022, Algorithm 1; staleness as in its section 5):

    x ← x + η_g / K · Σ Δ_i / √(1 + τ_i)     over the K updates that arrive first

A round is the making of one model. `num_sampled` clients train at a time. The engine's simulated clock
determines the arrivals: an update arrives when its client received the model plus the duration of its
training, and the round lasts until the K-th arrival. Ties are broken by the earlier dispatch, then by the
lower node. Without a clock all updates arrive at once, so the K oldest are used.

Deviations: a client that is done is replaced at the end of the round, by one that receives the newer model;
in the paper it is replaced immediately, with the current model. A failed client frees its slot at the end of
the round. If fewer than K clients are training because of failures, the mean is over those.

Equivalent: with K = `num_sampled` and η_g = 1 every round waits for all clients, which is FedAvg with equal
weights.

Reference:
    Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: Federated learning with buffered asynchronous
        aggregation. AISTATS 2022. arXiv:2106.06639
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from typing import Annotated, Any, ClassVar, Literal, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from pydantic import Field

from fedscout.engine.errors import Fault
from fedscout.engine.grid.selection import ChosenNodes
from fedscout.engine.messages.calls import Cohort, EngineNeeds
from fedscout.engine.messages.contents import client_of
from fedscout.engine.messages.keys import SIMULATED_SECONDS_KEY
from fedscout.strategies.aggregation.rules import (
    Aggregate,
    ClientModel,
    QuickMessages,
    Vector,
    array_record,
    flat,
    metric_record,
    shaped,
)
from fedscout.strategies.methods.averaging import FedAvgSpec
from fedscout.strategies.specification import (
    IntegerRange,
    RealRange,
    SearchRange,
    StrategySpec,
    Value,
    clients_text,
    node_counts,
)

ROUNDING_SLACK = 1e-9
"""A share of the clients above 0, as Flower selects none at 0, but too small to raise the minimum number."""


def buffered_change(changes: Sequence[ClientModel], staleness: Sequence[int]) -> Vector:
    """Return the mean of Δ_i / √(1 + τ_i), shape `(params,)`.

    Args:
        changes: Δ_i, at least one, each of shape `(params,)`.
        staleness: τ_i, >= 0.
    """
    total = np.zeros(len(changes[0]))
    for change, stale in zip(changes, staleness, strict=True):
        total += change.astype(np.float64) / sqrt(1 + stale)
    return total / len(changes)


class FedBuff(QuickMessages):
    """Server rule of FedBuff.

    Args:
        buffer_size: K.
        server_learning_rate: η_g.
        settings: Arguments of Flower's FedAvg.

    Attributes:
        in_training: For each client in training: arrival time of its update, number of models made at dispatch,
            node, and Δ_i, shape `(params,)`.
        num_models: Number of models made.
        seconds: Time of the last model, on the simulated clock.
        received: The model sent out last; None between rounds.
    """

    def __init__(self, buffer_size: int = 2, server_learning_rate: float = 1.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.buffer_size = buffer_size
        self.server_learning_rate = server_learning_rate
        self.num_places = self.min_train_nodes
        self.fraction_train = ROUNDING_SLACK
        self.in_training: list[list[Any]] = []
        self.num_models = 0
        self.seconds = 0.0
        self.received: ArrayRecord | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return messages to idle clients, one for each free slot."""
        self.received = arrays
        busy = {node for _, _, node, _ in self.in_training}
        self.min_train_nodes = self.min_available_nodes = self.num_places - len(busy)
        if not self.min_train_nodes:
            return []
        free = ChosenNodes(grid, [client_of(node) for node in grid.get_node_ids() if node not in busy])
        return super().configure_train(server_round, arrays, config, cast(Grid, free))

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        """Return the model of the K updates that arrive first, and the duration of the round."""
        sent, self.received = self.received, None
        valid_replies, _ = self._check_and_log_replies(replies, is_train=True)
        if sent is None or not (valid_replies or self.in_training):
            return None, None
        with np.errstate(over="ignore", invalid="ignore"):
            self._take_in(valid_replies, sent)
            arrived, self.in_training = self.in_training[: self.buffer_size], self.in_training[self.buffer_size :]
            staleness = [self.num_models - version for _, version, _, _ in arrived]
            change = buffered_change([update[-1] for update in arrived], staleness)
            moved = flat(sent, sent) + self.server_learning_rate * change
            arrays = shaped(moved.astype(np.float32), sent)
        metrics = self._train_metrics([reply.content for reply in valid_replies]) if valid_replies else MetricRecord()
        end = max(self.seconds, arrived[-1][0])
        metrics[SIMULATED_SECONDS_KEY] = end - self.seconds
        self.seconds, self.num_models = end, self.num_models + 1
        return arrays, metrics

    def _take_in(self, replies: Sequence[Message], sent: ArrayRecord) -> None:
        """Add the updates of a round to the queue, ordered by arrival."""
        received = flat(sent, sent)
        for reply in replies:
            duration = metric_record(reply.content).get(SIMULATED_SECONDS_KEY, 0.0)
            change = flat(array_record(reply.content), sent) - received
            node = reply.metadata.src_node_id
            self.in_training.append([self.seconds + float(cast(float, duration)), self.num_models, node, change])
        self.in_training.sort(key=lambda one: one[:3])


def _buffer_sizes(cohort: Cohort, chosen: Mapping[str, Value]) -> IntegerRange:
    """Return the range 1 … n: at most as many updates as clients in training."""
    del chosen
    return IntegerRange(1, cohort.num_sampled)


class FedBuffSpec(StrategySpec):
    """FedBuff: a new model for every K updates, with less weight for stale ones; needs a simulated clock."""

    paper: ClassVar[str] = "Nguyen et al. 2022, arXiv:2106.06639"

    kind: Literal["fedbuff"] = "fedbuff"
    buffer_size: Annotated[
        int,
        Field(ge=1, description="K, buffer size: number of updates per server step, 1 to n of n clients in training"),
        SearchRange(_buffer_sizes),
    ] = 2
    server_learning_rate: Annotated[
        float, Field(gt=0, description="η_g, the server's step size"), SearchRange(RealRange(0.1, 1.5))
    ] = 1.0

    def needs(self) -> EngineNeeds:
        """Return the engine features needed: one reply per client, with its duration."""
        return EngineNeeds(arrays="flat", replies="individual", durations=True)

    @classmethod
    def unavailable(cls, cohort: Cohort) -> str | None:
        """Return why no parameters work: no simulated clock, a single client, or a selection policy."""
        if cohort.has_clock is False:
            return Fault(
                "fedbuff",
                "have a simulated clock (federation.scenario with devices or latency, such as "
                "{kind: latency, clients: all, mean_seconds: 10})",
                "none",
            )
        if cohort.num_sampled < 2:
            return Fault("fedbuff", "have at least 2 clients in training at a time", clients_text(cohort.num_sampled))
        if cohort.chosen:
            return Fault("fedbuff", "be without a selection policy, as it selects the idle clients")
        return None

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification: waiting for all clients is FedAvg with equal weights."""
        if self.buffer_size == cohort.num_sampled and self.server_learning_rate == 1:
            return FedAvgSpec(sample_scaling="uniform")
        return self

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        return FedBuff(self.buffer_size, self.server_learning_rate, **node_counts(cohort))
