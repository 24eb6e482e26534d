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
states only.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord, Error, Message, MessageType, MetricRecord, RecordDict

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientScore
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.messages import calls, contents, keys
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
        metrics: The session's metric of each client, NaN if it is undefined for the client's rows; None if it has none.
        metric: The metric, pooled over all these clients' rows.
        repeats: Repeated scores of a task, shape `(clients, repeats)`; None for classification and regression.
        failures: Reason of each client that could not be evaluated.
        clean: Scores of the same clients on uncorrupted rows.
        of_received: Scores of the received model for the same clients if some use a personalised model; else None.
        of_unseen: Scores of unseen clients, which do not train; None if there are none.
    """

    clients: tuple[int, ...]
    num_examples: IntArray
    accuracies: calls.DoubleArray
    losses: calls.DoubleArray
    metrics: calls.DoubleArray | None = None
    metric: float | None = None
    repeats: calls.DoubleArray | None = None
    failures: Mapping[int, str] = field(default_factory=dict)
    clean: Evaluation | None = None
    of_received: Evaluation | None = None
    of_unseen: Evaluation | None = None

    @property
    def accuracy(self) -> float:
        """Accuracy of the federation, weighted by rows; for a task, the median over repeats of client means."""
        if self.repeats is not None:
            return float(np.median(self.repeats.mean(axis=0)))
        return self.weighted(self.accuracies)

    @property
    def is_missing(self) -> bool:
        """Whether the outputs of some model are not numbers."""
        if (np.isnan(self.losses) & np.isnan(self.accuracies)).any():
            return True
        parts = (self.clean, self.of_received, self.of_unseen)
        return any(part is not None and part.is_missing for part in parts)

    def weighted(self, values: calls.DoubleArray) -> float:
        """Return the mean of per-client values, weighted by evaluation rows."""
        total = int(self.num_examples.sum())
        return float(np.dot(values, self.num_examples) / total) if total else float("nan")

    def worst_clients(self, clean: bool = False) -> float:
        """Return the mean score, or metric if there is one, of the worst tenth of the clients, rounded up.

        Clients without rows, or without a defined score, are excluded. NaN if no client is left, or if the outputs of a
        client's model are not numbers.
        """
        view = self.clean if clean else self
        if view is None or self.is_missing:
            return float("nan")
        scores = view.accuracies if view.metrics is None else view.metrics
        defined = np.sort(scores[(view.num_examples > 0) & ~np.isnan(scores)])
        return float(defined[: -(-len(defined) // WORST_OF)].mean()) if len(defined) else float("nan")


def fold_evaluation(
    results: Sequence[calls.EvaluateResults], unseen: Container[int] = (), metric: Metric | None = None
) -> Evaluation:
    """Merge the evaluation results of hosts, sorted by client.

    Args:
        results: Results of the hosts.
        unseen: Clients that do not train; their scores are reported separately.
        metric: The session's metric.
    """
    own, changed, received = (
        {client: score for result in results for client, score in getattr(result, part).items()}
        for part in ("own", "clean", "received")
    )
    seen = {client: score for client, score in own.items() if client not in unseen}
    parts = {
        "own": seen,
        "clean": {client: changed.get(client, score) for client, score in seen.items()},
        "received": received,
        "unseen": {client: score for client, score in own.items() if client in unseen},
    }
    views = {}
    for part, scores in parts.items():
        total = None if metric is None else add(result.sums.get(part) for result in results)
        pooled = None if metric is None or total is None else metric.value(total)
        if pooled is not None and any(score.is_missing for score in scores.values()):
            pooled = float("nan")
        views[part] = _evaluation(scores, pooled)
    return replace(
        views["own"],
        failures=dict(sorted(failure for result in results for failure in result.failures.items())),
        clean=views["clean"],
        of_received=views["received"] if received else None,
        of_unseen=views["unseen"] if parts["unseen"] else None,
    )


def _evaluation(scores: Mapping[int, ClientScore], metric: float | None) -> Evaluation:
    """Return the evaluation of some clients, given their pooled metric."""
    clients = tuple(sorted(scores))
    ordered = [scores[client] for client in clients]
    counts = np.array([score.num_examples for score in ordered], dtype=np.int64)

    def share(sums: Sequence[float]) -> calls.DoubleArray:
        return np.divide(np.array(sums, np.float64), counts, out=np.zeros(len(counts)), where=counts > 0)

    repeats = np.array([score.repeats for score in ordered if score.repeats], dtype=np.float64)
    metrics = [score.metric for score in ordered]
    return Evaluation(
        clients,
        counts,
        accuracies=share([score.num_correct for score in ordered]),
        losses=share([score.loss_sum for score in ordered]),
        metrics=None if all(value is None for value in metrics) else np.array(metrics, np.float64),
        metric=metric,
        repeats=repeats if len(repeats) else None,
    )


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
        client = contents.client_of(metadata.dst_node_id)
        if not 0 <= client < num_clients or client in unseen:
            raise ValueError(f"message to node {metadata.dst_node_id}, which is not in this federation")
        message_type, content, times = metadata.message_type, id(message.content), 0
        while client in groups.setdefault((message_type, content, times), {}):
            times += 1  # the same content twice to one client is two jobs
        groups[message_type, content, times][client] = message
    return [(message_type.partition(".")[0], group) for (message_type, *_), group in groups.items()]


def base_config(session: calls.Session, server_round: int) -> dict[str, Any]:
    """Return the default configuration, which a message's own entries override."""
    needs = session.needs
    return dict(contents.train_config(session.training, session.seed, server_round, needs.replies, needs.initial_loss))


def read_job(
    message_type: str,
    messages: Mapping[int, Message],
    session: calls.Session,
    server_round: int,
    layout: ParameterLayout,
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
        job.auxiliary = contents.sent_auxiliary(content)
        records = [record for name, record in content.array_records.items() if name != keys.AUXILIARY_KEY]
    if len(records) != 1:
        raise ValueError(f"a {message_type} message must hold exactly one ArrayRecord, got {len(records)}")
    job.named = keys.FLAT_KEY not in records[0]
    job.vector = contents.flat_vector(records[0], layout)
    if message_type == MessageType.TRAIN:
        job.arrays = contents.integer_buffers(records[0], layout)
        job.config[keys.RATE_KEY] = contents.one_learning_rate(job.config, session.training.learning_rate)
        LocalTraining.from_config(job.config)  # refuses here what would break a host
        if keys.CLIPPING_KEY in job.config:
            job.config[keys.REPLY_KEY] = "individual"  # each client clips its own
    return job


CLIENT_FAILED = 1000
"""Error code of a client's failure; Flower's own codes lie below 100."""

Contents = tuple[dict[int, RecordDict], dict[int, str]]
"""Content of each client that answered, and reason of each that failed."""

Metrics = dict[str, int | float]
Columns = Mapping[str, npt.NDArray[Any]]
"""Of counts or means by name, one element per client."""


class TrainReplies:
    """Creates train replies, individual or merged.

    Args:
        facts: Facts of the federation.
        needs: The metric that weights a merged mean, and whether individual replies contain the client's simulated
            round duration.
        algorithm: The client algorithm; declares the weights of auxiliary vectors.
    """

    def __init__(
        self, facts: calls.FederationFacts, needs: calls.EngineNeeds, algorithm: ClientAlgorithm | None = None
    ) -> None:
        self._needs = needs
        self._layout = facts.layout
        self._auxiliary_weighted_by = {} if algorithm is None else algorithm.auxiliary
        self._at_home = None if algorithm is None else algorithm.private_mask(facts.layout)
        self._max_weight = max(1, int(facts.client_rows.sum()))

    def train(self, job: Job[Any], results: Sequence[calls.TrainResults]) -> Contents:
        """Return the reply contents of one job.

        Args:
            job: Specifies what was sent, whether replies are merged, and whether arrays are sent by tensor name.
            results: Results of the hosts.
        """
        failures = {client: reason for result in results for client, reason in result.failures.items()}
        answered = [result for result in results if result.clients]
        if not answered:
            return {}, failures
        counts, means = _count_columns(answered), {"loss": np.concatenate([result.losses for result in answered])}
        if answered[0].initial_losses:
            means[keys.TRAIN_LOSS_KEY] = np.concatenate([result.initial_losses for result in answered])
        clients = np.concatenate([result.clients for result in answered])
        order = np.argsort(clients)
        counts, means = ({name: column[order] for name, column in columns.items()} for columns in (counts, means))
        if job.merged:
            return {int(clients[order[0]]): self._merged(job, answered, counts, means)}, failures
        columns = {**counts, **means}
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        metrics_of = {
            client: dict(zip(columns, row, strict=True))
            for client, row in zip(clients[order].tolist(), rows, strict=True)
        }
        answers = {}
        for result in answered:
            assert result.vectors is not None
            for row, (client, vector) in enumerate(zip(result.clients, result.vectors, strict=True)):
                auxiliary = {name: rows[row] for name, rows in result.auxiliary.items()}
                # A reply that a strategy keeps must not keep the host's whole answer alive, whose part a small one is.
                own = vector if vector.nbytes >= calls.LARGE_VECTOR_BYTES else vector.copy()
                metrics = metrics_of[client]
                if self._needs.durations:
                    metrics[keys.SIMULATED_SECONDS_KEY] = result.durations.get(client, 0.0)
                answers[client] = self._content(job, own, metrics, metrics[keys.NUM_STEPS_KEY], auxiliary)
        return answers, failures

    def _merged(
        self, job: Job[Any], results: Sequence[calls.TrainResults], counts: Columns, means: Columns
    ) -> RecordDict:
        """Return the one reply for all clients: means, and sums of counts.

        A weight that the client algorithm reports applies to models only; metrics are then weighted by examples.
        """
        by_clients = self._needs.weighted_by == keys.NUM_CLIENTS_KEY
        counted = counts[keys.NUM_CLIENTS_KEY if by_clients else keys.NUM_EXAMPLES_KEY].astype(np.float64)
        metrics = {name: column.sum().item() for name, column in counts.items()}
        metrics |= {name: float(np.dot(column, counted) / counted.sum()) for name, column in means.items()}
        weights = counts[self._needs.weighted_by].astype(np.float64)
        num_steps = float(np.dot(counts[keys.NUM_STEPS_KEY], weights) / weights.sum())
        vector, auxiliary = self._exact_means(job, results, counts)
        return self._content(job, vector, metrics, num_steps, auxiliary)

    def _content(
        self, job: Job[Any], vector: FloatArray, metrics: Metrics, num_steps: float, auxiliary: Mapping[str, FloatArray]
    ) -> RecordDict:
        arrays = {keys.FLAT_KEY: vector}
        if job.named:
            arrays = self._layout.split(vector, self._layout.integers_after(job.arrays, num_steps))
        content = RecordDict(
            {keys.ARRAYS_KEY: contents.view_record(arrays), keys.METRICS_KEY: MetricRecord(dict(metrics))}
        )
        if auxiliary:
            content[keys.AUXILIARY_KEY] = ConfigRecord(
                {name: np.ascontiguousarray(rows).tobytes() for name, rows in auxiliary.items()}
            )
        return content

    def _exact_means(
        self, job: Job[Any], results: Sequence[calls.TrainResults], counts: Columns
    ) -> tuple[FloatArray, dict[str, FloatArray]]:
        """Return the exact means of models and auxiliary vectors; the model is NaN throughout if a client diverged."""
        assert job.vector is not None
        model = ""  # the name of the sum of models
        weighted_by = {model: self._needs.weighted_by, **self._auxiliary_weighted_by}
        scales = {
            name: ExactScale.of(job.auxiliary.get(name) if name else job.vector, self._max_weight)
            for name in weighted_by
        }
        diverged = any(result.diverged for result in results)
        totals: dict[str, IntArray] = {}
        own_totals: set[str] = set()  # a host's may lie in shared memory, and be the only one
        for result in results:
            if result.in_another_sum:
                continue
            if result.total is not None:
                host_totals = {model: result.total, **result.auxiliary_totals}
            else:
                vectors = {model: np.stack(result.vectors or [])}
                vectors |= {name: np.asarray(rows) for name, rows in result.auxiliary.items() if name in scales}
                inside = np.all([scales[name].holds(rows) for name, rows in vectors.items()], axis=0)
                diverged = diverged or not inside.all()
                own = {name: column[inside] for name, column in _count_columns([result]).items()}
                host_totals = {
                    name: scales[name].total(rows[inside], own[weighted_by[name]]) for name, rows in vectors.items()
                }
            for name, total in host_totals.items():
                if name in own_totals:
                    totals[name] += total
                elif name in totals:
                    totals[name] = totals[name] + total
                    own_totals.add(name)
                else:
                    totals[name] = total
        means = {name: scales[name].mean(totals[name], counts[by].sum().item()) for name, by in weighted_by.items()}
        vector = means.pop(model)
        if self._at_home is not None:  # an exact sum rounds values far below 1
            vector[self._at_home] = job.vector[self._at_home]
        return (np.full_like(vector, np.nan) if diverged else vector), means


def _count_columns(results: Sequence[calls.TrainResults]) -> Columns:
    """Return the additive counts by name, one element per client, in the order of the results."""
    return {
        keys.NUM_EXAMPLES_KEY: np.concatenate([result.num_examples for result in results]),
        keys.NUM_CLIENTS_KEY: np.ones(sum(len(result.clients) for result in results), np.int64),
        keys.NUM_STEPS_KEY: np.concatenate([result.num_steps for result in results]),
        **{name: np.concatenate([result.sums[name] for result in results]) for name in results[0].sums},
    }


def evaluate_contents(clients: Container[int], evaluation: Evaluation, tells_rows: bool = True) -> Contents:
    """Return the evaluation replies of the requested clients; each counts as one row if rows are not disclosed."""
    answers = {}
    for index, client in enumerate(evaluation.clients):
        if client in clients:
            metrics: Metrics = {
                keys.NUM_EXAMPLES_KEY: int(evaluation.num_examples[index]) if tells_rows else 1,
                keys.NUM_CLIENTS_KEY: 1,
                "accuracy": float(evaluation.accuracies[index]),
                "loss": float(evaluation.losses[index]),
            }
            answers[client] = RecordDict({keys.METRICS_KEY: MetricRecord(dict(metrics))})
    return answers, dict(evaluation.failures)


def query_contents(results: Sequence[calls.QueryResults]) -> Contents:
    """Return the query replies; arrays keep their dtypes."""
    answers = {}
    for result in results:
        for client, count, arrays in zip(result.clients, result.num_examples, result.arrays, strict=True):
            record = contents.view_record({name: np.asarray(value) for name, value in arrays.items()})
            metrics = MetricRecord({keys.NUM_EXAMPLES_KEY: count})
            answers[client] = RecordDict({keys.ARRAYS_KEY: record, keys.METRICS_KEY: metrics})
    return answers, {client: reason for result in results for client, reason in result.failures.items()}


def reply_messages(job: Job[Any], answers: Mapping[int, RecordDict], failures: Mapping[int, str]) -> list[Message]:
    """Return the replies to a job's messages, from clients that answered and from those that failed.

    Args:
        job: The job.
        answers: Contents of the replies by client.
        failures: Reasons of failures by client.
    """
    replies = [Message(content, reply_to=job.messages[client]) for client, content in answers.items()]
    return replies + [
        Message(Error(CLIENT_FAILED, reason), reply_to=job.messages[client])
        for client, reason in failures.items()
        if client in job.messages
    ]


class ReceivedScores:
    """Scores of the models that one grid sends out for training.

    Args:
        seed: Seed of the trial; messages that train with another seed are not scored.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
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

    def keep(self, vector: FloatArray, states_version: int, evaluation: Evaluation) -> Evaluation:
        """Store a model's scores."""
        self._last = (vector, states_version, evaluation)
        return evaluation

    def carried(self, vector: FloatArray, seed: int) -> bool:
        """Return whether the training that sends this model also carries its scoring."""
        if seed != self._seed or self._asked is None or not _same(self._asked, vector):
            return False
        self._asked = None
        return True


def _same(one: FloatArray, other: FloatArray) -> bool:
    """Return whether two models have equal values; models with NaN are equal only if they are the same object."""
    return one is other or bool(np.array_equal(one, other))


def timed_round(
    host: ClientHost, session: calls.Session, clients: Sequence[int], local_epochs: int = 1
) -> calls.TrainResults:
    """Let clients score the initial model and train, on one host, to estimate the duration of rounds.

    Args:
        host: A host of the federation.
        session: Session of the training.
        clients: Clients to train, ascending.
        local_epochs: Number of local epochs.
    """
    shorter = replace(session, training=session.training.model_copy(update={"local_epochs": local_epochs}))
    config, vector = base_config(shorter, server_round=1), host.initial_vector(session.seed)
    return host.train(calls.HostCall(tuple(clients), shorter, config, vector, evaluated=tuple(clients)))
