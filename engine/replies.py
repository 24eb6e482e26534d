"""From hosts' results to the contents of reply messages, keyed by client.

Flower wants exactly one ArrayRecord and one MetricRecord in a train reply, with the same keys in every reply.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

from engine.evaluation import Evaluation
from engine.exact_mean import ExactScale
from engine.federation import FloatArray
from engine.host_calls import FederationFacts, QueryResults, TrainResults
from engine.messages import (
    ARRAYS_KEY,
    FLAT_KEY,
    METRICS_KEY,
    NUM_CLIENTS_KEY,
    NUM_EXAMPLES_KEY,
    TRAIN_LOSS_KEY,
)

Contents = tuple[dict[int, RecordDict], dict[int, str]]
"""Content of each client that answered, and reason of each that failed."""

Metrics = dict[str, int | float]


class TrainReplies:
    """Makes train replies, individual or merged.

    Args:
        facts: Of the federation.
        weighted_by: The metric that weighs a merged mean.
    """

    def __init__(self, facts: FederationFacts, weighted_by: str) -> None:
        self._layout = facts.layout
        self._weighted_by = weighted_by
        self._max_weight = max(1, int(facts.client_rows.sum()))

    def train(self, received: FloatArray, merged: bool, named: bool, results: Sequence[TrainResults]) -> Contents:
        """Return the contents for one job.

        Args:
            received: The global model that the clients were sent.
            merged: Whether one mean answers for all clients.
            named: Whether arrays go by the model's names, or as one flat vector.
            results: Of the hosts.
        """
        failures = {client: reason for result in results for client, reason in result.failures.items()}
        metrics = _client_metrics(results)
        if merged:
            if not metrics:
                return {}, failures
            vector = self._exact_mean(received, results, metrics)
            return {next(iter(metrics)): self._content(vector, self._merged_metrics(metrics), named)}, failures
        contents = {}
        for result in results:
            assert result.vectors is not None
            for client, vector in zip(result.clients, result.vectors, strict=True):
                contents[client] = self._content(vector, metrics[client], named)
        return contents, failures

    def _content(self, vector: FloatArray, metrics: Metrics, named: bool) -> RecordDict:
        arrays = self._layout.split(vector) if named else {FLAT_KEY: vector}
        record = ArrayRecord({name: Array(np.ascontiguousarray(value)) for name, value in arrays.items()})
        return RecordDict({ARRAYS_KEY: record, METRICS_KEY: MetricRecord(dict(metrics))})

    def _exact_mean(
        self, received: FloatArray, results: Sequence[TrainResults], metrics: Mapping[int, Metrics]
    ) -> FloatArray:
        """Fold sums or individual vectors into the exact mean; NaN throughout if a client diverged."""
        total = np.zeros(self._layout.size, np.int64)
        scale = ExactScale.of(received, self._max_weight)
        diverged = False
        for result in results:
            if result.total is not None:
                total += result.total
                diverged = diverged or bool(result.diverged)
                continue
            assert result.vectors is not None
            for client, vector in zip(result.clients, result.vectors, strict=True):
                if scale.holds(vector):
                    total += scale.scaled(vector, int(metrics[client][self._weighted_by]))
                else:
                    diverged = True
        weight_sum = sum(int(entry[self._weighted_by]) for entry in metrics.values())
        vector = scale.mean(total, weight_sum)
        return np.full_like(vector, np.nan) if diverged else vector

    def _merged_metrics(self, metrics: Mapping[int, Metrics]) -> Metrics:
        weights = np.array([entry[self._weighted_by] for entry in metrics.values()], dtype=np.float64)
        merged: Metrics = {}
        for key in next(iter(metrics.values())):
            column = np.array([entry[key] for entry in metrics.values()], dtype=np.float64)
            if key in (NUM_EXAMPLES_KEY, NUM_CLIENTS_KEY):
                merged[key] = int(column.sum())
            else:
                merged[key] = float(np.dot(column, weights) / weights.sum())
        return merged


def _client_metrics(results: Sequence[TrainResults]) -> dict[int, Metrics]:
    """Return the metrics of each client, sorted by client."""
    metrics: dict[int, Metrics] = {}
    for result in results:
        for index, client in enumerate(result.clients):
            metrics[client] = {
                NUM_EXAMPLES_KEY: result.num_examples[index],
                NUM_CLIENTS_KEY: 1,
                "loss": result.losses[index],
            }
            if result.initial_losses:
                metrics[client][TRAIN_LOSS_KEY] = result.initial_losses[index]
    return dict(sorted(metrics.items()))


def evaluate_contents(asked: Container[int], evaluation: Evaluation) -> Contents:
    """Return the evaluation replies of the clients that were asked."""
    contents = {}
    for index, client in enumerate(evaluation.clients):
        if client in asked:
            metrics: Metrics = {
                NUM_EXAMPLES_KEY: int(evaluation.num_examples[index]),
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
            record = ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})
            metrics = MetricRecord({NUM_EXAMPLES_KEY: count})
            contents[client] = RecordDict({ARRAYS_KEY: record, METRICS_KEY: metrics})
    return contents, {client: reason for result in results for client, reason in result.failures.items()}
