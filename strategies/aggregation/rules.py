"""Base classes of server rules: Flower strategies over client models, over means, and with work on a host.

`QuickMessages` builds a round's messages by copying the first one. `FedAvg` to `FedYogi` are Flower's strategies that
see the replies only through their mean. `QFedAvg` uses Flower's formula and leaves the replies as they are.

`ServerRule` computes the new model in float64 from the model sent out and one model per client, for rules
that Flower lacks. It stores the model sent out; failed clients and rounds without a reply are handled by
Flower. Replies are read one by one, so memory grows with the model and not with the number of clients.
Non-finite values propagate without NumPy's warnings; a rule defines what they mean. A model with NaN fails
the trial, as for Flower's strategies.

`MeanRule` computes the new model from the means of a round, for strategies with a client algorithm. The
engine forms them (`replies="merged"`): the mean of the models, of each auxiliary vector by the weight that
the algorithm declares, and the sums of the clients' reports. The rule may send auxiliary vectors with the
next model.

`Hosted` runs part of a rule on a host, where torch, the model and the server's rows are. A rule calls
`hosts.serve` during aggregation. Flower passes the grid, which leads to the hosts, only to `configure_train`, so it is
stored until the round's replies are aggregated and then dropped, because strategies are written to
checkpoints. `hosts.serve_each` processes many models one at a time, so that no host receives all of them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, strategy as flower
from flwr.serverapp.strategy.qfedavg import compute_delta_and_h, get_train_loss

from fedscout.engine.arrays import FloatArray
from fedscout.engine.data.client import Arrays
from fedscout.engine.errors import StrategyError
from fedscout.engine.messages.calls import ServerContext, ServesWork
from fedscout.engine.messages.contents import addressed, put_auxiliary, read_array, replied_auxiliary, view_record
from fedscout.engine.messages.keys import ARRAYS_KEY, FLAT_KEY, METRICS_KEY

Vector = npt.NDArray[np.float64]
ClientModel = npt.NDArray[np.float32]


def array_record(content: RecordDict) -> ArrayRecord:
    """Return the arrays of a reply."""
    return cast(ArrayRecord, content[ARRAYS_KEY])


def flat(record: ArrayRecord) -> ClientModel:
    """Return the one vector of a record, read-only: what the engine sends to these strategies and their clients."""
    return read_array(record[FLAT_KEY])


def metric_record(content: RecordDict) -> MetricRecord:
    """Return the metrics of a reply."""
    return cast(MetricRecord, content[METRICS_KEY])


Messages = Iterable[Message]
Aggregate = tuple[ArrayRecord | None, MetricRecord | None]
"""The new model and the mean metrics; nothing where no reply can be used."""


class QuickMessages(flower.FedAvg):
    """Builds a round's messages as copies of the first, and does not compare the engine's replies with each other."""

    def _construct_messages(self, record: RecordDict, node_ids: list[int], message_type: str) -> Iterable[Message]:
        """Return one message per node; Flower builds the first, the others are copies for other nodes."""
        messages = list(super()._construct_messages(record, node_ids[:1], message_type))
        return messages + [copy for message in messages for copy in addressed(message, node_ids[1:])]

    def _check_and_log_replies(
        self, replies: Messages, is_train: bool, validate: bool = True
    ) -> tuple[list[Message], list[Message]]:
        """Return the replies with content and those with errors; train replies are alike, as the engine makes them."""
        return super()._check_and_log_replies(replies, is_train, validate and not is_train)

    def _train_metrics(self, contents: list[RecordDict]) -> MetricRecord:
        return self.train_metrics_aggr_fn(contents, self.weighted_by_key)


class Unevaluated(flower.Strategy):
    """Base class of strategies whose models the trial evaluates itself."""

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Messages:
        """Return no messages."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Messages) -> MetricRecord | None:
        """Return nothing."""
        return None


class ServerRule(QuickMessages):
    """A strategy whose new model is a function of the model sent out and of each client's model.

    Attributes:
        received: The model sent to the clients in this round; None between rounds.
    """

    received: ArrayRecord | None = None

    @abstractmethod
    def aggregate_models(self, received: Vector, models: Sequence[ClientModel], weights: Vector) -> Vector:
        """Return the model of the round, shape `(params,)`.

        Args:
            received: The model sent to the clients, shape `(params,)`.
            models: Models of the clients that replied, at least one, each of shape `(params,)`; read-only.
            weights: p_i of those clients, shape `(clients,)`; they sum to 1.
        """

    def aggregate_replies(self, received: Vector, models: Sequence[ClientModel], replies: Sequence[Message]) -> Vector:
        """Return the model of the round; override it for rules that need the replies.

        Args:
            received: As for `aggregate_models`.
            models: As for `aggregate_models`.
            replies: The replies with those models, in the same order.
        """
        return self.aggregate_models(received, models, self._weights([reply.content for reply in replies]))

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Messages:
        """Return Flower's messages, and store the model that is sent."""
        self.received = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Messages) -> Aggregate:
        """Return the new model, float32, and the mean metrics."""
        sent, self.received = self.received, None
        valid_replies, _ = self._check_and_log_replies(replies, is_train=True)
        if not valid_replies:
            return None, None
        assert sent is not None, "clients reply to `configure_train`"
        contents = [reply.content for reply in valid_replies]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            models = [flat(array_record(content)) for content in contents]
            moved = self.aggregate_replies(flat(sent).astype(np.float64), models, valid_replies)
            arrays = view_record({FLAT_KEY: moved.astype(np.float32)})
        return arrays, self._train_metrics(contents)

    def _weights(self, contents: Sequence[RecordDict]) -> Vector:
        counts = [metric_record(content)[self.weighted_by_key] for content in contents]
        weights: Vector = np.array(counts, dtype=np.float64)
        weights /= weights.sum()
        return weights


def weighted_mean(models: Sequence[ClientModel], weights: Vector) -> Vector:
    """Return Σ p_k y_k, shape `(params,)`.

    Args:
        models: y_k, at least one, each of shape `(params,)`.
        weights: p_k, shape `(clients,)`.
    """
    mean = np.zeros(len(models[0]))
    for weight, model in zip(weights.tolist(), models, strict=True):
        mean += weight * model.astype(np.float64)
    return mean


class Hosted(flower.Strategy):
    """Mixin that runs work on the server's rows; it precedes the strategy's class in the bases.

    Attributes:
        grid: Grid of the current round; None between rounds.
    """

    grid: Any = None

    def outputs(self, models: Iterable[FloatArray]) -> Iterator[FloatArray]:
        """Yield the logits of each model on the server's rows, shape `(rows, num_classes)`."""
        inputs = [{"model": model} for model in models]
        return (result["outputs"] for result in self.hosts.serve_each(Outputs(), inputs))

    @property
    def hosts(self) -> ServesWork:
        """The hosts of the current round.

        Raises:
            StrategyError: If the grid has none.
        """
        grid: ServesWork | None = self.grid if hasattr(self.grid, "serve") else None  # possibly through a wrapping grid
        if grid is None:
            name = type(self.grid).__name__
            raise StrategyError.of(type(self).__name__, "run on a grid with hosts for the server's work", name)
        return grid

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Messages:
        """Return the messages of the round, and store the grid."""
        self.grid = grid
        return super().configure_train(server_round, arrays, config, grid)  # type: ignore[safe-super]

    def aggregate_train(self, server_round: int, replies: Messages) -> Aggregate:
        """Return the new model and the mean metrics."""
        try:
            return super().aggregate_train(server_round, replies)  # type: ignore[safe-super]
        finally:
            self.grid = None


@dataclass(frozen=True)
class Outputs:
    """Server work: the logits of a model on the server's rows."""

    def run(self, context: ServerContext, arrays: Arrays) -> Arrays:
        """Return the logits of the `model` as `outputs`, shape `(rows, num_classes)`."""
        import torch

        return {"outputs": context.outputs(torch.from_numpy(np.array(arrays["model"], np.float32))).numpy()}


class HostedRule(Hosted, ServerRule):
    """A server rule that may run work on the server's rows."""


class FedAvg(QuickMessages):
    """Flower's FedAvg; a single reply, such as a merged one, is returned as it is."""

    def aggregate_train(self, server_round: int, replies: Messages) -> Aggregate:
        """Return the mean model and the mean metrics."""
        replies = list(replies)
        contents = [reply.content for reply in replies if reply.has_content()]
        if len(contents) != 1:
            return super().aggregate_train(server_round, replies)
        self._check_and_log_replies(replies, is_train=True)
        return array_record(contents[0]), self._train_metrics(contents)


class FedProx(FedAvg, flower.FedProx):
    """Flower's FedProx."""


class FedAvgM(QuickMessages, flower.FedAvgM):
    """Flower's FedAvgM."""


class FedAdagrad(QuickMessages, flower.FedAdagrad):
    """Flower's FedAdagrad."""


class FedAdam(QuickMessages, flower.FedAdam):
    """Flower's FedAdam."""


class FedYogi(QuickMessages, flower.FedYogi):
    """Flower's FedYogi."""


class QFedAvg(QuickMessages, flower.QFedAvg):
    """Flower's QFedAvg."""

    def aggregate_train(self, server_round: int, replies: Messages) -> Aggregate:
        """Return the q-fair aggregate, float64, and the mean metrics."""
        valid_replies, _ = self._check_and_log_replies(replies, is_train=True)
        if not valid_replies or self.current_arrays is None:
            return super().aggregate_train(server_round, valid_replies)  # nothing, or an error that says why
        received = flat(self.current_arrays)
        self.current_arrays.clear()
        total: Any = 0.0  # in the precision of the changes
        sum_h = 0.0
        for reply in valid_replies:
            local = flat(array_record(reply.content)).copy()  # Flower's function writes into it
            loss = get_train_loss(reply, self.train_loss_key)
            (delta,), h = compute_delta_and_h([received], [local], self.q, 1.0 / self.client_learning_rate, loss)
            total, sum_h = total + delta, sum_h + h
        arrays = view_record({FLAT_KEY: received - total / sum_h})
        metrics = self._train_metrics([reply.content for reply in valid_replies])
        return arrays, metrics


DoubleArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RoundMeans:
    """Means and sums of a round.

    Attributes:
        received: x, the model that was sent, shape `(size,)`.
        model: The mean of the clients' models, likewise.
        auxiliary: The mean of each auxiliary vector, likewise.
        sums: Sums over the clients that replied, by name: `num-clients`, `num-examples`, `num-steps`, and those
            that the algorithm reports.
    """

    received: DoubleArray
    model: DoubleArray
    auxiliary: Mapping[str, DoubleArray]
    sums: Mapping[str, float]


def with_share(kept: FloatArray | None, means: RoundMeans, name: str, num_clients: int) -> DoubleArray:
    """Return a server vector, 0 at first, plus |S|/N times the mean of an auxiliary vector; S are the repliers.

    Args:
        kept: The server vector after the round before.
        means: Means of this round.
        name: Name of the auxiliary vector.
        num_clients: N.
    """
    change: DoubleArray = means.auxiliary[name] * (means.sums["num-clients"] / num_clients)
    return change if kept is None else kept + change


class MeanRule(FedAvg):
    """Flower's FedAvg with another server step; takes FedAvg's arguments."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._received: FloatArray | None = None

    def auxiliary(self) -> Mapping[str, FloatArray]:
        """Return the auxiliary vectors sent with the model, each of the model's length."""
        return {}

    @abstractmethod
    def step(self, means: RoundMeans) -> DoubleArray:
        """Return the new model; called once for each round with a reply."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Messages:
        """Return FedAvg's messages with the auxiliary vectors in their shared content."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self._received = read_array(arrays[FLAT_KEY])
        if messages:
            put_auxiliary(messages[0].content, self.auxiliary())
        return messages

    def aggregate_train(self, server_round: int, replies: Messages) -> Aggregate:
        """Return the new model and the mean metrics.

        Raises:
            StrategyError: If there are several replies, as from clients that clip their updates.
        """
        replies = list(replies)
        contents = [reply.content for reply in replies if reply.has_content()]
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is None:
            return arrays, metrics
        if len(contents) != 1:
            raise StrategyError.of(type(self).__name__, "be answered by one merged reply", len(contents))
        assert self._received is not None
        numbers = {name: value for name, value in metric_record(contents[0]).items() if not isinstance(value, list)}
        means = RoundMeans(
            received=self._received.astype(np.float64),
            model=read_array(arrays[FLAT_KEY]).astype(np.float64),
            auxiliary={name: mean.astype(np.float64) for name, mean in replied_auxiliary(contents[0]).items()},
            sums=numbers,
        )
        self._received = None
        return view_record({FLAT_KEY: self.step(means).astype(np.float32)}), metrics
