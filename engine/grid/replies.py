"""Jobs, replies and evaluations: grouping of messages, reply messages from hosts' results, and scores of models.

Jobs: messages that share one content object, as Flower's strategies create them, form one job.

Train replies: a merged job is answered by a single message from its lowest client: the exact mean with the summed
weights, on which any weighted average of Flower's is the identity. The other clients of that job send no message,
unless they failed. Flower requires exactly one ArrayRecord and one MetricRecord in a train reply, with the same keys in
every reply.

Evaluation: `Evaluation` holds every client's score of one model and is the trial's own record, created before a
strategy sees any reply. Median, trimmed mean and q-fair strategies alter the evaluation metrics that they aggregate,
so fitness is always computed from `Evaluation`.

Scores of received models: the model that is sent out for training is scored by every client in the same round trip,
so that a round costs one round trip instead of two. The driver of the rounds requests this (`ReceivedScores.ask`)
before the messages are sent. The next training that sends exactly that model carries the request: its calls list all
clients of each host (`HostCall.evaluated`), which score the received model before any client trains
(`ClientHost.train`), and the scores are returned with the training results (`TrainResults.evaluation`). The driver
collects them with `take`. `ReceivedScores` decides which training carries the scoring and which scores are already
known. For personalised models, scores depend on client states as well, so known scores are valid for one version of the
states only. A strategy that drives its rounds itself requests nothing; then all trainings are scored (`followed`) and
numbered in the order in which they are sent.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from flwr.app import Error, Message, MessageType, MetricRecord, RecordDict

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientScore
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.messages import keys
from fedscout.engine.messages.calls import (
    LARGE_VECTOR_BYTES,
    EvaluateResults,
    FederationFacts,
    HostCall,
    QueryResults,
    Session,
    TrainResults,
)
from fedscout.engine.messages.contents import (
    asks_for_clipping,
    auxiliary_record,
    client_of,
    clipped,
    flat_vector,
    integer_buffers,
    one_learning_rate,
    sent_auxiliary,
    train_config,
    view_record,
)
from fedscout.engine.messages.exact_mean import ExactScale
from fedscout.engine.metrics import Metric, add
from fedscout.engine.models.layout import ParameterLayout

if TYPE_CHECKING:
    from fedscout.engine.client.host import ClientHost


WORST_OF = 10
"""The worst client of so many counts among the worst."""


@dataclass(frozen=True)
class Evaluation:
    """Every client's score of one model, sorted by client.

    Attributes:
        clients: Evaluated clients, shape `(clients,)`.
        num_examples: Evaluation rows of each client; 0 for a client too small to be split.
        accuracies: Share of correct rows in `[0, 1]`, 0 if there are no rows; NaN if the model's outputs are not finite
            numbers, as for losses and metrics.
        losses: Mean cross-entropy, 0 if there are no rows.
        clean_accuracies: Accuracies on uncorrupted rows.
        clean_losses: Losses on uncorrupted rows.
        failures: Reason of each client that could not be evaluated.
        repeats: Repeated scores of a task, shape `(clients, repeats)`; None for classification and regression.
        of_received: Scores of the received model for the same clients if some use a personalised model; else None.
        of_unseen: Scores of unseen clients, which do not train; None if there are none.
        metric: The session's metric, pooled over all these clients' rows; None if it has none.
        clean_metric: The pooled metric on uncorrupted rows.
        metrics: The metric of each client, NaN if it is undefined for the client's rows.
        clean_metrics: The metric of each client on uncorrupted rows.
    """

    clients: tuple[int, ...]
    num_examples: npt.NDArray[np.int64]
    accuracies: npt.NDArray[np.float64]
    losses: npt.NDArray[np.float64]
    clean_accuracies: npt.NDArray[np.float64]
    clean_losses: npt.NDArray[np.float64]
    failures: Mapping[int, str]
    repeats: npt.NDArray[np.float64] | None = None
    of_received: Evaluation | None = None
    of_unseen: Evaluation | None = None
    metric: float | None = None
    clean_metric: float | None = None
    metrics: npt.NDArray[np.float64] | None = None
    clean_metrics: npt.NDArray[np.float64] | None = None

    @property
    def accuracy(self) -> float:
        """Accuracy of the federation, weighted by rows; for a task, the median over repeats of client means."""
        if self.repeats is not None:
            return float(np.median(self.repeats.mean(axis=0)))
        return self.weighted(self.accuracies)

    @property
    def clean_accuracy(self) -> float:
        """Accuracy on uncorrupted rows; equal to `accuracy` for a task, which has no corruption."""
        return self.accuracy if self.repeats is not None else self.weighted(self.clean_accuracies)

    @property
    def is_missing(self) -> bool:
        """Whether the outputs of some model are not numbers."""
        parts = (self.of_received, self.of_unseen)
        views = ((self.losses, self.accuracies), (self.clean_losses, self.clean_accuracies))
        any_missing = any((np.isnan(losses) & np.isnan(accuracies)).any() for losses, accuracies in views)
        return any_missing or any(part is not None and part.is_missing for part in parts)

    def weighted(self, values: npt.NDArray[np.float64]) -> float:
        """Return the mean of per-client values, weighted by evaluation rows."""
        total = int(self.num_examples.sum())
        return float(np.dot(values, self.num_examples) / total) if total else float("nan")

    def worst_clients(self, clean: bool = False) -> float:
        """Return the mean score, or metric if there is one, of the worst tenth of the clients, rounded up.

        Clients without rows, or without a defined score, are excluded. NaN if no client is left, or if the outputs of a
        client's model are not numbers.
        """
        if self.is_missing:
            return float("nan")
        accuracies, metrics = (self.clean_accuracies, self.clean_metrics) if clean else (self.accuracies, self.metrics)
        scores = accuracies if metrics is None else metrics
        defined = np.sort(scores[(self.num_examples > 0) & ~np.isnan(scores)])
        return float(defined[: -(-len(defined) // WORST_OF)].mean()) if len(defined) else float("nan")


def fold_evaluation(
    results: Sequence[EvaluateResults], unseen: Container[int] = (), metric: Metric | None = None
) -> Evaluation:
    """Merge the evaluation results of hosts, sorted by client.

    Args:
        results: Results of the hosts.
        unseen: Clients that do not train; their scores are reported separately.
        metric: The session's metric.
    """
    own = {client: score for result in results for client, score in result.own.items()}
    clean = {client: score for result in results for client, score in result.clean.items()}
    received = {client: score for result in results for client, score in result.received.items()}
    unseen_scores = {client: score for client, score in own.items() if client in unseen}
    seen_scores = {client: score for client, score in own.items() if client not in unseen_scores}
    scores = {
        "own": seen_scores.values(),
        "clean": [clean.get(client, score) for client, score in seen_scores.items()],
        "received": received.values(),
        "unseen": unseen_scores.values(),
    }
    pooled = {} if metric is None else _pooled(metric, results)
    for part in pooled:
        if any(score.is_missing for score in scores[part]):
            pooled[part] = float("nan")
    return replace(
        _evaluation(seen_scores, clean),
        failures=dict(sorted(failure for result in results for failure in result.failures.items())),
        of_received=replace(_evaluation(received, {}), metric=pooled.get("received")) if received else None,
        of_unseen=replace(_evaluation(unseen_scores, clean), metric=pooled.get("unseen")) if unseen_scores else None,
        metric=pooled.get("own"),
        clean_metric=pooled.get("clean"),
    )


def _pooled(metric: Metric, results: Sequence[EvaluateResults]) -> dict[str, float]:
    """Return the metric pooled over all clients' rows, for each kind of scores."""
    parts = {part for result in results for part in result.sums}
    totals = {part: add(result.sums.get(part) for result in results) for part in parts}
    return {part: metric.value(total) for part, total in totals.items() if total is not None}


def _evaluation(scores: Mapping[int, ClientScore], cleaned: Mapping[int, ClientScore]) -> Evaluation:
    """Return the evaluation of some clients, with the scores on uncorrupted rows where these differ."""
    own = dict(sorted(scores.items(), key=itemgetter(0)))
    clean = {client: cleaned.get(client, score) for client, score in own.items()}
    counts = np.array([score.num_examples for score in own.values()], dtype=np.int64)

    def share(sums: Iterable[float]) -> npt.NDArray[np.float64]:
        totals = np.fromiter(sums, np.float64, len(counts))
        return np.asarray(np.divide(totals, counts, out=np.zeros(len(counts)), where=counts > 0))

    repeats = np.array([score.repeats for score in own.values() if score.repeats], dtype=np.float64)
    return Evaluation(
        clients=tuple(own),
        num_examples=counts,
        accuracies=share(score.num_correct for score in own.values()),
        losses=share(score.loss_sum for score in own.values()),
        clean_accuracies=share(score.num_correct for score in clean.values()),
        clean_losses=share(score.loss_sum for score in clean.values()),
        failures={},
        repeats=repeats if len(repeats) else None,
        metrics=_metrics(own.values()),
        clean_metrics=_metrics(clean.values()),
    )


def _metrics(scores: Iterable[ClientScore]) -> npt.NDArray[np.float64] | None:
    """Return the metric of each client, or None if none was measured."""
    values = [score.metric for score in scores]
    return None if all(value is None for value in values) else np.array(values, dtype=np.float64)


Handle = TypeVar("Handle")


@dataclass
class Job(Generic[Handle]):
    """A pending job: messages that share one content.

    Attributes:
        message_type: `train`, `evaluate` or `query`.
        messages: Messages by client.
        config: Configuration of the content, merged over the session's defaults.
        vector: The model that is sent; None for a query.
        named: Whether arrays are sent by tensor name.
        auxiliary: Auxiliary vectors sent with the model.
        arrays: Arrays of a query; for a training, the integer buffers of a model that was sent by tensor name.
        handles: Handles of the host calls.
        scores_received: Whether every client scores the model before training.
        states_version: Version of the client states when the job was sent.
        training: Number of the training under which its scores are recorded, if all trainings are scored.
        evaluation: Scores that were already known.
        replies: Replies by the id of the message that they answer; None until the job is done.
    """

    message_type: str
    messages: Mapping[int, Message]
    config: dict[str, Any]
    vector: FloatArray | None = None
    named: bool = False
    auxiliary: Mapping[str, FloatArray] = field(default_factory=dict)
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    handles: list[Handle] = field(default_factory=list)
    scores_received: bool = False
    states_version: int = 0
    training: int | None = None
    evaluation: Evaluation | None = None
    replies: dict[str, Message] | None = None

    @property
    def merged(self) -> bool:
        """Whether a single mean answers for all clients."""
        return bool(self.config[keys.REPLY_KEY] == "merged")


def grouped(
    messages: Iterable[Message], num_clients: int, unseen: Container[int] = ()
) -> list[tuple[str, dict[int, Message]]]:
    """Return the message type and the messages by client of each job.

    Args:
        messages: Messages of any type.
        num_clients: Number of clients in the federation.
        unseen: Clients that do not train.

    Raises:
        ValueError: If a message is addressed to a node that is not a participating client.
    """
    groups: dict[tuple[str, int, int], dict[int, Message]] = {}
    for message in messages:
        metadata = message.metadata
        client = client_of(metadata.dst_node_id)
        if not 0 <= client < num_clients or client in unseen:
            raise ValueError(f"message to node {metadata.dst_node_id}, which is not in this federation")
        message_type, content, times = metadata.message_type, id(message.content), 0
        while client in groups.setdefault((message_type, content, times), {}):
            times += 1  # the same content twice to one client is two jobs
        groups[message_type, content, times][client] = message
    return [(message_type.partition(".")[0], group) for (message_type, *_), group in groups.items()]


def base_config(session: Session, server_round: int) -> dict[str, Any]:
    """Return the default configuration, which a message's own entries override."""
    needs = session.needs
    return dict(train_config(session.training, session.seed, server_round, needs.replies, needs.initial_loss))


def read_job(
    message_type: str, messages: Mapping[int, Message], session: Session, server_round: int, layout: ParameterLayout
) -> Job[Any]:
    """Return the job of messages that share one content.

    Raises:
        ValueError: If the content does not match its message type, or the model does not match the layout.
        TrialError: If it sets two different learning rates, or a local training parameter out of range.
    """
    content = next(iter(messages.values())).content
    overrides = {key: value for record in content.config_records.values() for key, value in record.items()}
    job: Job[Any] = Job(message_type, messages, base_config(session, server_round) | overrides)
    records = list(content.array_records.values())
    if message_type == MessageType.QUERY:
        job.arrays = {name: array.numpy() for name, array in records[0].items()} if records else {}
        return job
    if message_type not in (MessageType.TRAIN, MessageType.EVALUATE):
        raise ValueError(f"message type must be train, evaluate or query, got {message_type!r}")
    if message_type == MessageType.TRAIN and session.algorithm is not None and session.algorithm.accepts_auxiliary:
        job.auxiliary = sent_auxiliary(content)
        records = [record for name, record in content.array_records.items() if name != keys.AUXILIARY_KEY]
    if len(records) != 1:
        raise ValueError(f"a {message_type} message must hold exactly one ArrayRecord, got {len(records)}")
    job.named = keys.FLAT_KEY not in records[0]
    job.vector = flat_vector(records[0], layout)
    if message_type == MessageType.TRAIN:
        job.arrays = integer_buffers(records[0], layout)
        job.config[keys.RATE_KEY] = one_learning_rate(job.config, session.training.learning_rate)
        LocalTraining.from_config(job.config)  # refuses here what would break a host
        if asks_for_clipping(job.config):
            job.config[keys.REPLY_KEY] = "individual"  # each client clips its own
    return job


CLIENT_FAILED = 1000
"""Error code of a client's failure; Flower's own codes lie below 100."""

Contents = tuple[dict[int, RecordDict], dict[int, str]]
"""Content of each client that answered, and reason of each that failed."""

Metrics = dict[str, int | float]


class TrainReplies:
    """Creates train replies, individual or merged.

    Args:
        facts: Facts of the federation.
        weighted_by: The metric that weights a merged mean.
        algorithm: The client algorithm; declares the weights of auxiliary vectors.
        durations: Whether individual replies contain the client's simulated round duration.
    """

    def __init__(
        self,
        facts: FederationFacts,
        weighted_by: str,
        algorithm: ClientAlgorithm | None = None,
        durations: bool = False,
    ) -> None:
        self._durations = durations
        self._layout = facts.layout
        self._weighted_by = weighted_by
        self._auxiliary_weighted_by = {} if algorithm is None else algorithm.auxiliary
        self._at_home = None if algorithm is None else algorithm.private_mask(facts.layout)
        self._max_weight = max(1, int(facts.client_rows.sum()))

    def train(self, job: Job[Any], results: Sequence[TrainResults]) -> Contents:
        """Return the reply contents of one job.

        Args:
            job: Specifies what was sent, whether replies are merged, and whether arrays are sent by tensor name.
            results: Results of the hosts.
        """
        assert job.vector is not None
        failures = {client: reason for result in results for client, reason in result.failures.items()}
        answered = [result for result in results if result.clients]
        if not answered:
            return {}, failures
        columns = _MetricColumns.of(answered)
        if job.merged:
            vector, auxiliary = self._exact_means(job.vector, job.auxiliary, answered, columns)
            metrics, steps = columns.merged(self._weighted_by), columns.mean_steps(self._weighted_by)
            return {int(columns.clients[0]): self._content(job, vector, metrics, steps, auxiliary)}, failures
        contents = {}
        metrics_of = dict(columns.each())
        for result in answered:
            assert result.vectors is not None
            if self._durations:
                for client in result.clients:
                    metrics_of[client][keys.SIMULATED_SECONDS_KEY] = result.durations.get(client, 0.0)
            for row, (client, vector) in enumerate(zip(result.clients, result.vectors, strict=True)):
                auxiliary = {name: rows[row] for name, rows in result.auxiliary.items()}
                # A reply that a strategy keeps must not keep the host's whole answer alive, whose part a small one is.
                own = vector if vector.nbytes >= LARGE_VECTOR_BYTES else vector.copy()
                metrics = metrics_of[client]
                contents[client] = self._content(job, own, metrics, metrics[keys.NUM_STEPS_KEY], auxiliary)
        return contents, failures

    def _content(
        self,
        job: Job[Any],
        vector: FloatArray,
        metrics: Metrics,
        num_steps: float,
        auxiliary: Mapping[str, FloatArray],
    ) -> RecordDict:
        arrays = {keys.FLAT_KEY: vector}
        if job.named:
            arrays = self._layout.split(vector, self._layout.integers_after(job.arrays, num_steps))
        content = RecordDict({keys.ARRAYS_KEY: view_record(arrays), keys.METRICS_KEY: MetricRecord(dict(metrics))})
        if auxiliary:
            content[keys.AUXILIARY_KEY] = auxiliary_record(auxiliary)
        return content

    def _exact_means(
        self,
        received: FloatArray,
        sent: Mapping[str, FloatArray],
        results: Sequence[TrainResults],
        columns: _MetricColumns,
    ) -> tuple[FloatArray, dict[str, FloatArray]]:
        """Return the exact means of models and auxiliary vectors; the model is NaN throughout if a client diverged."""
        model = _ExactSum(ExactScale.of(received, self._max_weight), self._weighted_by)
        auxiliary = {
            name: _ExactSum(ExactScale.of_auxiliary(sent.get(name), self._max_weight), weighted_by)
            for name, weighted_by in self._auxiliary_weighted_by.items()
        }
        diverged = any(result.diverged for result in results)
        for result in results:
            if result.in_another_sum:
                continue
            if result.total is not None:
                model.add_total(result.total)
                for name, total in result.auxiliary_totals.items():
                    auxiliary[name].add_total(total)
                continue
            assert result.vectors is not None
            vectors = np.stack(result.vectors)
            inside = model.scale.holds(vectors)
            auxiliary_rows = {name: np.asarray(result.auxiliary[name]) for name in auxiliary}
            for name, exact_sum in auxiliary.items():
                inside &= exact_sum.scale.holds(auxiliary_rows[name])
            diverged = diverged or not inside.all()
            model.add(vectors, result, inside)
            for name, exact_sum in auxiliary.items():
                exact_sum.add(auxiliary_rows[name], result, inside)
        means = {name: exact_sum.mean(columns) for name, exact_sum in auxiliary.items()}
        vector = model.mean(columns)
        if self._at_home is not None:  # an exact sum rounds values far below 1
            vector[self._at_home] = received[self._at_home]
        return (np.full_like(vector, np.nan) if diverged else vector), means


@dataclass
class _ExactSum:
    """The exact sum of one vector per client, and the metric that weights it."""

    scale: ExactScale
    weighted_by: str
    total: IntArray | None = None
    is_own: bool = False

    def add_total(self, total: IntArray) -> None:
        """Add a host's sum."""
        if self.total is None:
            self.total = total
        elif self.is_own:
            self.total += total
        else:  # the first is the host's, maybe in shared memory
            self.total, self.is_own = self.total + total, True

    def add(self, rows: FloatArray, result: TrainResults, inside: npt.NDArray[np.bool_]) -> None:
        """Add the rows of those clients of a host that are within the range of the scale."""
        self.add_total(self.scale.total(rows[inside], _count_columns([result])[self.weighted_by][inside]))

    def mean(self, columns: _MetricColumns) -> FloatArray:
        """Return the mean over all clients."""
        assert self.total is not None, "some host answered"
        return self.scale.mean(self.total, columns.counts[self.weighted_by].sum().item())


def _count_columns(results: Sequence[TrainResults]) -> dict[str, npt.NDArray[Any]]:
    """Return the additive counts by name, one element per client, in the order of the results."""

    def column(lists: Iterable[Sequence[int | float]]) -> npt.NDArray[Any]:
        return np.concatenate([np.asarray(values) for values in lists])

    return {
        keys.NUM_EXAMPLES_KEY: column(result.num_examples for result in results),
        keys.NUM_CLIENTS_KEY: np.ones(sum(len(result.clients) for result in results), np.int64),
        keys.NUM_STEPS_KEY: column(result.num_steps for result in results),
        **{name: column(result.sums[name] for result in results) for name in results[0].sums},
    }


@dataclass(frozen=True)
class _MetricColumns:
    """Metrics of all clients that trained, one element per client, sorted by client.

    Attributes:
        clients: The clients.
        counts: Additive counts by name.
        means: Means over a client's rows by name.
    """

    clients: IntArray
    counts: Mapping[str, npt.NDArray[Any]]
    means: Mapping[str, npt.NDArray[np.float64]]

    @classmethod
    def of(cls, results: Sequence[TrainResults]) -> _MetricColumns:
        clients = np.concatenate([np.asarray(result.clients, dtype=np.int64) for result in results])
        order = np.argsort(clients)

        def column(name: str) -> npt.NDArray[Any]:
            return np.concatenate([np.asarray(getattr(result, name)) for result in results])[order]

        means = {"loss": column("losses")}
        if results[0].initial_losses:
            means[keys.TRAIN_LOSS_KEY] = column("initial_losses")
        counts = {name: values[order] for name, values in _count_columns(results).items()}
        return cls(clients[order], counts, means)

    def each(self) -> Iterator[tuple[int, Metrics]]:
        """Yield each client's metrics."""
        names = (*self.counts, *self.means)
        values = zip(*(column.tolist() for column in (*self.counts.values(), *self.means.values())), strict=True)
        for client, row in zip(self.clients.tolist(), values, strict=True):
            yield client, dict(zip(names, row, strict=True))

    def mean_steps(self, weighted_by: str) -> float:
        """Return the mean number of steps, with the same weights as the models."""
        weights = self.counts[weighted_by].astype(np.float64)
        return float(np.dot(self.counts[keys.NUM_STEPS_KEY], weights) / weights.sum())

    def merged(self, weighted_by: str) -> Metrics:
        """Return the sums of the counts and the weighted means of the means.

        A weight that the client algorithm reports applies to models only; metrics are then weighted by examples.
        """
        counted = weighted_by if weighted_by == keys.NUM_CLIENTS_KEY else keys.NUM_EXAMPLES_KEY
        weights = self.counts[counted].astype(np.float64)
        sums: Metrics = {name: column.sum().item() for name, column in self.counts.items()}
        return {**sums, **{k: float(np.dot(column, weights) / weights.sum()) for k, column in self.means.items()}}


def evaluate_contents(asked: Container[int], evaluation: Evaluation, tells_rows: bool = True) -> Contents:
    """Return the evaluation replies of the requested clients; each counts as one row if rows are not disclosed."""
    contents = {}
    for index, client in enumerate(evaluation.clients):
        if client in asked:
            metrics: Metrics = {
                keys.NUM_EXAMPLES_KEY: int(evaluation.num_examples[index]) if tells_rows else 1,
                keys.NUM_CLIENTS_KEY: 1,
                "accuracy": float(evaluation.accuracies[index]),
                "loss": float(evaluation.losses[index]),
            }
            contents[client] = RecordDict({keys.METRICS_KEY: MetricRecord(dict(metrics))})
    return contents, dict(evaluation.failures)


def query_contents(results: Sequence[QueryResults]) -> Contents:
    """Return the query replies; arrays keep their dtypes."""
    contents = {}
    for result in results:
        for client, count, arrays in zip(result.clients, result.num_examples, result.arrays, strict=True):
            record = view_record({name: np.asarray(value) for name, value in arrays.items()})
            metrics = MetricRecord({keys.NUM_EXAMPLES_KEY: count})
            contents[client] = RecordDict({keys.ARRAYS_KEY: record, keys.METRICS_KEY: metrics})
    return contents, {client: reason for result in results for client, reason in result.failures.items()}


def reply_messages(
    job: Job[Any], contents: Mapping[int, RecordDict], failures: Mapping[int, str], clips: bool = True
) -> list[Message]:
    """Return the replies to a job's messages, from clients that answered and from those that failed.

    Args:
        job: The job.
        contents: Reply contents by client.
        failures: Reasons of failures by client.
        clips: Whether to apply client-side clipping here.
    """
    replies = [Message(content, reply_to=job.messages[client]) for client, content in contents.items()]
    if clips and job.message_type == MessageType.TRAIN and asks_for_clipping(job.config):
        replies = [clipped(job.messages[client], reply) for client, reply in zip(contents, replies, strict=True)]
    return replies + [
        Message(Error(CLIENT_FAILED, reason), reply_to=job.messages[client])
        for client, reason in failures.items()
        if client in job.messages
    ]


class ReceivedScores:
    """Scores of the models that one grid sends out for training.

    Args:
        seed: Seed of the trial; messages that train with another seed are not scored.

    Attributes:
        message_rounds: For each sending of train messages so far, the round given in its messages, or None.
        by_training: If `followed`, the scores of the model that the n-th training sent out, by n; no entry for a
            sending
            of several models.
        followed: Whether all trainings are scored.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.message_rounds: list[int | None] = []
        self.by_training: dict[int, Evaluation] = {}
        self.followed = False
        self._sends_one_model = False
        self._asked: FloatArray | None = None
        self._last: tuple[FloatArray, int, Evaluation] | None = None

    def ask(self, vector: FloatArray | None) -> None:
        """Request that a model is scored by the next training that sends it; None cancels the request."""
        self._asked = vector

    def take(self) -> Evaluation | None:
        """Return the requested scores; None if no training sent that model."""
        waiting, self._asked = self._asked is not None, None
        return None if waiting or self._last is None else self._last[-1]

    def known(self, vector: FloatArray, states_version: int, seed: int) -> Evaluation | None:
        """Return the last scores if they are of this model and this version of client states, else None."""
        if self._last is None or seed != self._seed:
            return None
        scored, version, evaluation = self._last
        return evaluation if version == states_version and _same(scored, vector) else None

    def keep(
        self, vector: FloatArray, states_version: int, evaluation: Evaluation, training: int | None = None
    ) -> Evaluation:
        """Store a model's scores, also under the number of the training if one is given."""
        self._last = (vector, states_version, evaluation)
        if training is not None:
            self.by_training[training] = evaluation
        return evaluation

    @property
    def trainings(self) -> int:
        """Number of sendings of train messages so far."""
        return len(self.message_rounds)

    def count(self, num_models: int, message_round: int | None) -> None:
        """Count one sending of train messages with the given number of models, and record its round."""
        self.message_rounds.append(message_round)
        self._sends_one_model = num_models == 1

    def number(self, seed: int) -> int | None:
        """Return the number under which the last training's scores are recorded, or None."""
        return self.trainings if self.followed and self._sends_one_model and seed == self._seed else None

    def carried(self, vector: FloatArray, states_version: int, seed: int) -> bool:
        """Return whether the training that sends this model also carries its scoring."""
        training = self.number(seed)
        if training is not None:
            known = self.known(vector, states_version, seed)
            if known is not None:
                self.by_training[training] = known
            return known is None
        if seed != self._seed or self._asked is None or not _same(self._asked, vector):
            return False
        self._asked = None
        return True


def _same(one: FloatArray, other: FloatArray) -> bool:
    """Return whether two models have equal values; models with NaN are equal only if they are the same object."""
    return one is other or bool(np.array_equal(one, other))


def timed_round(host: ClientHost, session: Session, clients: Sequence[int], local_epochs: int = 1) -> TrainResults:
    """Let clients score the initial model and train, on one host, to estimate the duration of rounds.

    Args:
        host: A host of the federation.
        session: Session of the training.
        clients: Clients to train, ascending.
        local_epochs: Number of local epochs.
    """
    shorter = replace(session, training=session.training.model_copy(update={"local_epochs": local_epochs}))
    config, vector = base_config(shorter, server_round=1), host.initial_vector(session.seed)
    return host.train(HostCall(tuple(clients), shorter, config, vector, evaluated=tuple(clients)))
