"""Server rules: by every client's model, by means, or with part of the work done on a host.

Server rules that Flower lacks: a strategy that says, in float64, where the model goes from what each client sent.

What all of them do is here: they remember the model that was sent out, read one model per client, and leave failed
clients and rounds without a reply to Flower's own handling. Vectors are flat, arrays in the order in which they were
sent. Replies are read one by one, so memory grows with the model and not with the clients.

What is not finite is followed by the arithmetic, without NumPy's warnings; a rule says itself what it means. A model
that ends with NaN fails the trial, as it does for Flower's strategies.

Server rules part of which is done on a host: where torch, the model and the server's own rows are.

A rule calls `serve` while it aggregates. The grid leads to the hosts, and Flower shows it to `configure_train` alone,
so it is kept from there until the round's replies are in. Between rounds nothing is kept: a strategy is written into
checkpoints.

Many models are worked on one at a time (`serve_each`), so that no host is sent all of them.

What all strategies do with messages: make a round's, check the replies, average their metrics.

What is in replies: their records, their arrays and vectors by client, whether they fit together.

The weighted mean of the replies' metrics, by Flower's formula; a record is made once, at the end.

A rule over means: what a strategy with a client algorithm of its own does with those of a round.

The engine forms them (`replies="merged"`): of the models, of each companion by the weight that the algorithm declares,
and the sums of what clients report. A rule is then one function of them and of the model that was sent, and may send
companions along with the next one.

The strategies that see the replies through their mean: Flower's, with `QuickMessages`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from fedscout.engine.arrays import FloatArray
from fedscout.engine.data.client import Arrays
from fedscout.engine.errors import Fault, StrategyError
from fedscout.engine.messages.calls import ServerContext, ServerWork, ServesWork
from fedscout.engine.messages.contents import addressed, put_companions, read_array, replied_companions, view_record
from fedscout.engine.messages.keys import FLAT_KEY


def array_record(content: RecordDict) -> ArrayRecord:
    """Return the only array record of a reply that Flower has checked."""
    return next(record for record in content.values() if isinstance(record, ArrayRecord))


def arrays_by_name(contents: Sequence[RecordDict]) -> dict[str, list[npt.NDArray[Any]]]:
    """Return each array of all replies, one a client and to be read only, keyed by the names of the first reply."""
    records = [array_record(content) for content in contents]
    return {name: [read_array(record[name]) for record in records] for name in records[0]}


def flat_vectors(contents: Sequence[RecordDict]) -> Iterator[npt.NDArray[Any]]:
    """Yield all parameters of each reply, shape `(params,)` and to be read only, its arrays in its own order."""
    for content in contents:
        vectors = [read_array(array).reshape(-1) for array in array_record(content).values()]
        yield vectors[0] if len(vectors) == 1 else np.concatenate(vectors)


def metric_record(content: RecordDict) -> MetricRecord:
    """Return the only metric record of a reply that Flower has checked."""
    return next(record for record in content.values() if isinstance(record, MetricRecord))


def alike(contents: Sequence[RecordDict], weighted_by: str) -> bool:
    """Return whether all contents pass Flower's check because the first does and all are outlined as it is.

    A reply holds exactly one array record and one metric record, the keys are those of the other replies, and the
    weight is one number. Contents that are not alike may still pass, such as with their keys in another order.
    """
    outline = _outline(contents[0])
    kinds = [kind for _, kind, _ in outline]
    return (
        kinds.count(ArrayRecord) == 1
        and kinds.count(MetricRecord) == 1
        and all(_outline(content) == outline for content in contents)
        and all(isinstance(metric_record(content).get(weighted_by), int | float) for content in contents)
    )


def _outline(content: RecordDict) -> list[tuple[str, type, list[str]]]:
    return [(name, type(record), list(record)) for name, record in content.items()]


def mean_metrics(contents: list[RecordDict], weighted_by: str) -> MetricRecord:
    """Return the weighted mean of every metric but the weight, lists element by element.

    Args:
        contents: Of the replies, with equal metric keys.
        weighted_by: The metric that weighs.
    """
    records = [metric_record(content) for content in contents]
    weights = [cast(float, record[weighted_by]) for record in records]
    total_weight = sum(weights)
    means: dict[str, Any] = {}
    for record, weight in zip(records, [weight / total_weight for weight in weights], strict=True):
        for key, value in record.items():
            if key == weighted_by:
                continue
            part = [one * weight for one in value] if isinstance(value, list) else value * weight
            if key not in means:
                means[key] = part
            elif isinstance(part, list):
                means[key] = [one + other for one, other in zip(means[key], part, strict=True)]
            else:
                means[key] += part
    return MetricRecord(means)


Aggregate = tuple[ArrayRecord | None, MetricRecord | None]
"""The new model and the mean metrics; nothing where no reply can be used."""


class QuickMessages(flower.FedAvg):
    """Handles many messages that differ in little as one and its copies."""

    def _construct_messages(self, record: RecordDict, node_ids: list[int], message_type: str) -> Iterable[Message]:
        """Return one message per node, the first made by Flower; the others differ in their addressee alone."""
        messages = list(super()._construct_messages(record, node_ids[:1], message_type))
        return messages + [copy for message in messages for copy in addressed(message, node_ids[1:])]

    def _check_and_log_replies(
        self, replies: Iterable[Message], is_train: bool, validate: bool = True
    ) -> tuple[list[Message], list[Message]]:
        """Return the replies with content and those with errors, as Flower does."""
        replies = list(replies)
        contents = [reply.content for reply in replies if reply.has_content()]
        if is_train and contents and alike(contents, self.weighted_by_key):
            validate = False
        return super()._check_and_log_replies(replies, is_train, validate)

    def _train_metrics(self, contents: list[RecordDict]) -> MetricRecord:
        """Return the mean metrics, or what the user's own function makes of them."""
        flowers = self.train_metrics_aggr_fn is aggregate_metricrecords
        aggregate = mean_metrics if flowers else self.train_metrics_aggr_fn
        return aggregate(contents, self.weighted_by_key)


Vector = npt.NDArray[np.float64]
ClientModel = npt.NDArray[np.float32]


class ServerRule(QuickMessages):
    """A strategy whose model after a round is a function of the model sent out and of each client's model.

    Attributes:
        received: What the clients were sent this round; None between rounds.
    """

    received: ArrayRecord | None = None

    @abstractmethod
    def moved(self, received: Vector, models: Sequence[ClientModel], weights: Vector) -> Vector:
        """Return the model of the round, shape `(params,)`.

        Args:
            received: The model that the clients were sent, shape `(params,)`.
            models: Of the clients that answered, at least one, each of shape `(params,)`; not to be changed.
            weights: p_i of those clients, shape `(clients,)`; they sum to 1.
        """

    def answered(self, received: Vector, models: Sequence[ClientModel], replies: Sequence[Message]) -> Vector:
        """Return the model of the round, for a rule that asks who answered, and what else is in the replies.

        Args:
            received: As for `moved`.
            models: As for `moved`.
            replies: Those models' replies, in their order.
        """
        return self.moved(received, models, self._weights([reply.content for reply in replies]))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return Flower's messages, and remember the model in them."""
        self.received = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        """Return the model where the rule puts it, float32, and the mean metrics.

        Raises:
            AggregationError: If no model was sent out.
        """
        sent, self.received = self.received, None
        valid_replies, _ = self._check_and_log_replies(replies, is_train=True)
        if not valid_replies:
            return None, None
        if sent is None:
            raise AggregationError("No model was sent out. Ensure that `configure_train` has been called before.")
        contents = [reply.content for reply in valid_replies]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            models = [flat(array_record(content), sent) for content in contents]
            moved = self.answered(flat(sent, sent).astype(np.float64), models, valid_replies)
            arrays = shaped(moved.astype(np.float32), sent)
        return arrays, self._train_metrics(contents)

    def _weights(self, contents: Sequence[RecordDict]) -> Vector:
        counted = [metric_record(content)[self.weighted_by_key] for content in contents]
        weights: Vector = np.array(counted, dtype=np.float64)
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


def flat(record: ArrayRecord, like: ArrayRecord) -> ClientModel:
    """Return a record as one vector, arrays in the order of another record; to be read only."""
    vectors = [read_array(record[name]).reshape(-1) for name in like]
    return vectors[0] if len(vectors) == 1 else np.concatenate(vectors)


def shaped(vector: ClientModel, like: ArrayRecord) -> ArrayRecord:
    """Return a vector as a record with the names and shapes of another."""
    shapes = {name: tuple(array.shape) for name, array in like.items()}
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])[:-1]
    pieces = zip(shapes.items(), np.split(vector, ends), strict=True)
    return view_record({name: piece.reshape(shape) for (name, shape), piece in pieces})


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
            raise StrategyError(Fault(type(self).__name__, "run on a grid with hosts for the server's work", name))
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


class PlainMean(QuickMessages):
    """Flower's weighted mean; that of one reply, such as a merged one, is the reply."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        """Return the mean model and the mean metrics."""
        replies = list(replies)
        contents = [reply.content for reply in replies if reply.has_content()]
        if len(contents) != 1 or not alike(contents, self.weighted_by_key):
            return super().aggregate_train(server_round, replies)
        self._check_and_log_replies(replies, is_train=True)
        (arrays,) = contents[0].array_records.values()
        return arrays, self._train_metrics(contents)


class FedAvg(PlainMean):
    """Flower's FedAvg."""


class FedProx(PlainMean, flower.FedProx):
    """Flower's FedProx."""


class FedAvgM(QuickMessages, flower.FedAvgM):
    """Flower's FedAvgM."""


class FedAdagrad(QuickMessages, flower.FedAdagrad):
    """Flower's FedAdagrad."""


class FedAdam(QuickMessages, flower.FedAdam):
    """Flower's FedAdam."""


class FedYogi(QuickMessages, flower.FedYogi):
    """Flower's FedYogi."""


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
