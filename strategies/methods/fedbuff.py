"""FedBuff: updates are gathered in a buffer as they arrive, and every K of them make a new model.

Clients train asynchronously: slow ones go on while others have made new models. With x the model, Δ_i = y_i − x_i what
client i adds to the model x_i that it was sent, τ_i the number of models made since, and K the size of the buffer
(Nguyen et al. 2022, Algorithm 1; staleness as in its section 5):

    x ← x + η_g / K · Σ Δ_i / √(1 + τ_i)     over the K updates that arrive first

A round is the making of one model. `num_sampled` clients are in training at a time. What arrives when, the engine's
simulated clock tells: an update arrives when its client was sent the model plus the seconds that its round takes, and
the round has lasted until the K-th arrival. Of equal arrivals the one that was sent out earlier is first, then the
lower node. Without a clock all arrive at once, so the oldest K count.

Deviations: a client that is done waits for the end of the round until another takes its place, which then gets the
newer model; the paper's takes its place at once, with the present one. A client that fails leaves its place at the end
of the round. If fewer than K clients are in training, as others failed, the mean is over those.

Equivalent: with K = `num_sampled` and η_g = 1 everybody is waited for, which is FedAvg with equal weights.

Reference:
    Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: Federated learning with buffered asynchronous aggregation.
        AISTATS 2022. arXiv:2106.06639
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

JUST_ENOUGH = 1e-9
"""A share of the clients that is not 0, where Flower asks nobody, and adds nobody to the least number of them."""


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
    """The server's half.

    Args:
        buffer_size: K.
        server_learning_rate: η_g.
        settings: Of Flower's FedAvg.

    Attributes:
        in_training: Of each client that trains, when its update arrives, how many models there were when it was sent
            one, its node, and Δ_i, shape `(params,)`.
        num_models: That were made.
        seconds: When the last one was made, on the simulated clock.
        received: The model that was sent out last; None between rounds.
    """

    def __init__(self, buffer_size: int = 2, server_learning_rate: float = 1.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.buffer_size = buffer_size
        self.server_learning_rate = server_learning_rate
        self.num_places = self.min_train_nodes
        self.fraction_train = JUST_ENOUGH
        self.in_training: list[list[Any]] = []
        self.num_models = 0
        self.seconds = 0.0
        self.received: ArrayRecord | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return messages to clients that are free, as many as there are places."""
        self.received = arrays
        busy = {node for _, _, node, _ in self.in_training}
        self.min_train_nodes = self.min_available_nodes = self.num_places - len(busy)
        if not self.min_train_nodes:
            return []
        free = ChosenNodes(grid, [client_of(node) for node in grid.get_node_ids() if node not in busy])
        return super().configure_train(server_round, arrays, config, cast(Grid, free))

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        """Return the model of the K updates that arrive first, and how long that took."""
        sent, self.received = self.received, None
        valid_replies, _ = self._check_and_log_replies(replies, is_train=True)
        if sent is None or not (valid_replies or self.in_training):
            return None, None
        with np.errstate(over="ignore", invalid="ignore"):
            self._take_in(valid_replies, sent)
            arrived, self.in_training = self.in_training[: self.buffer_size], self.in_training[self.buffer_size :]
            staleness = [self.num_models - version for _, version, _, _ in arrived]
            change = buffered_change([one[-1] for one in arrived], staleness)
            moved = flat(sent, sent) + self.server_learning_rate * change
            arrays = shaped(moved.astype(np.float32), sent)
        metrics = self._train_metrics([reply.content for reply in valid_replies]) if valid_replies else MetricRecord()
        ended = max(self.seconds, arrived[-1][0])
        metrics[SIMULATED_SECONDS_KEY] = ended - self.seconds
        self.seconds, self.num_models = ended, self.num_models + 1
        return arrays, metrics

    def _take_in(self, replies: Sequence[Message], sent: ArrayRecord) -> None:
        """Note when the updates of a round arrive, the first one first."""
        received = flat(sent, sent)
        for reply in replies:
            lasts = metric_record(reply.content).get(SIMULATED_SECONDS_KEY, 0.0)
            change = flat(array_record(reply.content), sent) - received
            node = reply.metadata.src_node_id
            self.in_training.append([self.seconds + float(cast(float, lasts)), self.num_models, node, change])
        self.in_training.sort(key=lambda one: one[:3])


def _buffer_sizes(cohort: Cohort, chosen: Mapping[str, Value]) -> IntegerRange:
    """1 … n: no more updates than clients in training."""
    del chosen
    return IntegerRange(1, cohort.num_sampled)


class FedBuffSpec(StrategySpec):
    """FedBuff: a new model for every K updates, late ones for less; needs a simulated clock."""

    paper: ClassVar[str] = "Nguyen et al. 2022, arXiv:2106.06639"

    kind: Literal["fedbuff"] = "fedbuff"
    buffer_size: Annotated[
        int,
        Field(ge=1, description="K, updates that make a new model: 1 to n of n clients in training"),
        SearchRange(_buffer_sizes),
    ] = 2
    server_learning_rate: Annotated[
        float, Field(gt=0, description="η_g, the server's step size"), SearchRange(RealRange(0.1, 1.5))
    ] = 1.0

    def needs(self) -> EngineNeeds:
        """Return what the engine must provide: one reply per client, with the time that its round takes."""
        return EngineNeeds(arrays="flat", replies="individual", durations=True)

    @classmethod
    def unavailable(cls, cohort: Cohort) -> str | None:
        """Return why no parameters could make it work: time stands still, one client trains, or others say who does."""
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
            return Fault("fedbuff", "be without a selection policy, as it asks the clients that are free")
        return None

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification: waiting for everybody is FedAvg with equal weights."""
        if self.buffer_size == cohort.num_sampled and self.server_learning_rate == 1:
            return FedAvgSpec(sample_scaling="uniform")
        return self

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        return FedBuff(self.buffer_size, self.server_learning_rate, **node_counts(cohort))
