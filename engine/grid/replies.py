"""From hosts' results to reply messages.

A merged job is answered by a single message from its lowest client: the exact mean with the summed weights, on which
any weighted average of Flower's is the identity. The other clients of that job send no message of their own, unless
they failed.

Flower wants exactly one ArrayRecord and one MetricRecord in a train reply, with the same keys in every reply.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Error, Message, MessageType, MetricRecord, RecordDict

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.client_algorithm import ClientAlgorithm
from fedscout.engine.grid.evaluation import Evaluation
from fedscout.engine.grid.jobs import Job
from fedscout.engine.messages.client_half import asks_for_clipping, clipped
from fedscout.engine.messages.companion_record import companion_record
from fedscout.engine.messages.exact_mean import ExactScale
from fedscout.engine.messages.host_calls import LARGE_VECTOR_BYTES, FederationFacts, QueryResults, TrainResults
from fedscout.engine.messages.message_keys import (
    ARRAYS_KEY,
    COMPANIONS_KEY,
    FLAT_KEY,
    METRICS_KEY,
    NUM_CLIENTS_KEY,
    NUM_EXAMPLES_KEY,
    NUM_STEPS_KEY,
    SIMULATED_SECONDS_KEY,
    TRAIN_LOSS_KEY,
)
from fedscout.engine.messages.view_array import view_record

CLIENT_FAILED = 1000
"""Error code of a client's failure; Flower's own codes lie below 100."""

Contents = tuple[dict[int, RecordDict], dict[int, str]]
"""Content of each client that answered, and reason of each that failed."""

Metrics = dict[str, int | float]


class TrainReplies:
    """Makes train replies, individual or merged.

    Args:
        facts: Of the federation.
        weighted_by: The metric that weighs a merged mean.
        algorithm: What the clients do; declares the weights of companions.
        durations: Whether replies of individuals hold what a client's round took on the simulated clock.
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
        self._companions_weighted_by = {} if algorithm is None else algorithm.companions
        self._at_home = None if algorithm is None else algorithm.at_home(facts.layout)
        self._max_weight = max(1, int(facts.client_rows.sum()))

    def train(self, job: Job[Any], results: Sequence[TrainResults]) -> Contents:
        """Return the contents for one job.

        Args:
            job: Says what the clients were sent, whether one mean answers for all of them, and whether arrays go by
                the model's names.
            results: Of the hosts.
        """
        assert job.vector is not None
        failures = {client: reason for result in results for client, reason in result.failures.items()}
        answered = [result for result in results if result.clients]
        if not answered:
            return {}, failures
        columns = _MetricColumns.of(answered)
        if job.merged:
            vector, companions = self._exact_means(job.vector, job.companions, answered, columns)
            metrics, steps = columns.merged(self._weighted_by), columns.mean_steps(self._weighted_by)
            return {int(columns.clients[0]): self._content(job, vector, metrics, steps, companions)}, failures
        contents = {}
        metrics_of = dict(columns.each())
        for result in answered:
            assert result.vectors is not None
            if self._durations:
                for client in result.clients:
                    metrics_of[client][SIMULATED_SECONDS_KEY] = result.durations.get(client, 0.0)
            for row, (client, vector) in enumerate(zip(result.clients, result.vectors, strict=True)):
                companions = {name: rows[row] for name, rows in result.companions.items()}
                # A reply that a strategy keeps must not keep the host's whole answer alive, whose part a small one is.
                own = vector if vector.nbytes >= LARGE_VECTOR_BYTES else vector.copy()
                metrics = metrics_of[client]
                contents[client] = self._content(job, own, metrics, metrics[NUM_STEPS_KEY], companions)
        return contents, failures

    def _content(
        self,
        job: Job[Any],
        vector: FloatArray,
        metrics: Metrics,
        num_steps: float,
        companions: Mapping[str, FloatArray],
    ) -> RecordDict:
        arrays = {FLAT_KEY: vector}
        if job.named:
            arrays = self._layout.split(vector, self._layout.integers_after(job.arrays, num_steps))
        content = RecordDict({ARRAYS_KEY: view_record(arrays), METRICS_KEY: MetricRecord(dict(metrics))})
        if companions:
            content[COMPANIONS_KEY] = companion_record(companions)
        return content

    def _exact_means(
        self,
        received: FloatArray,
        sent: Mapping[str, FloatArray],
        results: Sequence[TrainResults],
        columns: _MetricColumns,
    ) -> tuple[FloatArray, dict[str, FloatArray]]:
        """Return the exact means of vectors and of companions; NaN throughout if a client diverged."""
        model = _ExactSum(ExactScale.of(received, self._max_weight), self._weighted_by)
        companions = {
            name: _ExactSum(ExactScale.of_companion(sent.get(name), self._max_weight), weighted_by)
            for name, weighted_by in self._companions_weighted_by.items()
        }
        diverged = any(result.diverged for result in results)
        for result in results:
            if result.sum_elsewhere:
                continue
            if result.total is not None:
                model.add_total(result.total)
                for name, total in result.companion_totals.items():
                    companions[name].add_total(total)
                continue
            assert result.vectors is not None
            vectors = np.stack(result.vectors)
            inside = model.scale.holds(vectors)
            beside = {name: np.asarray(result.companions[name]) for name in companions}
            for name, one in companions.items():
                inside &= one.scale.holds(beside[name])
            diverged = diverged or not inside.all()
            model.add(vectors, result, inside)
            for name, one in companions.items():
                one.add(beside[name], result, inside)
        means = {name: one.mean(columns) for name, one in companions.items()}
        vector = model.mean(columns)
        if self._at_home is not None:  # an exact sum rounds values far below 1
            vector[self._at_home] = received[self._at_home]
        return (np.full_like(vector, np.nan) if diverged else vector), means


@dataclass
class _ExactSum:
    """The sum of one vector a client, and the metric that weighs it."""

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
        """Add the rows of those clients of a host that the scale holds."""
        self.add_total(self.scale.total(rows[inside], _count_columns([result])[self.weighted_by][inside]))

    def mean(self, columns: _MetricColumns) -> FloatArray:
        """Return the mean over all clients."""
        assert self.total is not None, "some host answered"
        return self.scale.mean(self.total, columns.counts[self.weighted_by].sum().item())


def _count_columns(results: Sequence[TrainResults]) -> dict[str, npt.NDArray[Any]]:
    """Return by name what adds up over clients, one element a client, in the order of the results."""

    def column(lists: Iterable[Sequence[int | float]]) -> npt.NDArray[Any]:
        return np.concatenate([np.asarray(one) for one in lists])

    return {
        NUM_EXAMPLES_KEY: column(result.num_examples for result in results),
        NUM_CLIENTS_KEY: np.ones(sum(len(result.clients) for result in results), np.int64),
        NUM_STEPS_KEY: column(result.num_steps for result in results),
        **{name: column(result.sums[name] for result in results) for name in results[0].sums},
    }


@dataclass(frozen=True)
class _MetricColumns:
    """The metrics of all clients that trained, one element a client, sorted by client.

    Attributes:
        clients: Who.
        counts: Numbers by name, which add up.
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
            means[TRAIN_LOSS_KEY] = column("initial_losses")
        counts = {name: values[order] for name, values in _count_columns(results).items()}
        return cls(clients[order], counts, means)

    def each(self) -> Iterator[tuple[int, Metrics]]:
        """Yield each client's metrics."""
        names = (*self.counts, *self.means)
        values = zip(*(column.tolist() for column in (*self.counts.values(), *self.means.values())), strict=True)
        for client, row in zip(self.clients.tolist(), values, strict=True):
            yield client, dict(zip(names, row, strict=True))

    def mean_steps(self, weighted_by: str) -> float:
        """Return the mean of the clients' steps, weighted as their models."""
        weights = self.counts[weighted_by].astype(np.float64)
        return float(np.dot(self.counts[NUM_STEPS_KEY], weights) / weights.sum())

    def merged(self, weighted_by: str) -> Metrics:
        """Return sums of the counts and weighted means of the means; an algorithm's own weight weighs models alone."""
        weights = self.counts[weighted_by if weighted_by == NUM_CLIENTS_KEY else NUM_EXAMPLES_KEY].astype(np.float64)
        sums: Metrics = {name: column.sum().item() for name, column in self.counts.items()}
        return {**sums, **{k: float(np.dot(column, weights) / weights.sum()) for k, column in self.means.items()}}


def evaluate_contents(asked: Container[int], evaluation: Evaluation, tells_rows: bool = True) -> Contents:
    """Return the evaluation replies of the clients that were asked; who does not tell its rows counts as one."""
    contents = {}
    for index, client in enumerate(evaluation.clients):
        if client in asked:
            metrics: Metrics = {
                NUM_EXAMPLES_KEY: int(evaluation.num_examples[index]) if tells_rows else 1,
                NUM_CLIENTS_KEY: 1,
                "accuracy": float(evaluation.accuracies[index]),
                "loss": float(evaluation.losses[index]),
            }
            contents[client] = RecordDict({METRICS_KEY: MetricRecord(dict(metrics))})
    return contents, dict(evaluation.failures)


def query_contents(results: Sequence[QueryResults]) -> Contents:
    """Return the query replies; arrays keep their types."""
    contents = {}
    for result in results:
        for client, count, arrays in zip(result.clients, result.num_examples, result.arrays, strict=True):
            record = view_record({name: np.asarray(value) for name, value in arrays.items()})
            metrics = MetricRecord({NUM_EXAMPLES_KEY: count})
            contents[client] = RecordDict({ARRAYS_KEY: record, METRICS_KEY: metrics})
    return contents, {client: reason for result in results for client, reason in result.failures.items()}


def reply_messages(
    job: Job[Any], contents: Mapping[int, RecordDict], failures: Mapping[int, str], clips: bool = True
) -> list[Message]:
    """Return the replies to a job's messages, of clients that answered and of those that failed.

    Args:
        job: Whose.
        contents: By client.
        failures: Likewise.
        clips: Whether updates that clients are to clip are clipped here.
    """
    replies = [Message(content, reply_to=job.messages[client]) for client, content in contents.items()]
    if clips and job.message_type == MessageType.TRAIN and asks_for_clipping(job.config):
        replies = [clipped(job.messages[client], reply) for client, reply in zip(contents, replies, strict=True)]
    return replies + [
        Message(Error(CLIENT_FAILED, reason), reply_to=job.messages[client])
        for client, reason in failures.items()
        if client in job.messages
    ]
