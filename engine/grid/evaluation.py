"""Every client's score of one model: the trial's own record, made before a strategy sees anything.

Median, trimmed mean and q-fair strategies alter the evaluation metrics that they aggregate; fitness never comes from
those, but from here.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from fedscout.engine.contracts.client_update import ClientScore
from fedscout.engine.messages.host_calls import EvaluateResults
from fedscout.engine.metrics.metric import Metric, add

WORST_OF = 10
"""The worst client of so many counts among the worst."""


@dataclass(frozen=True)
class Evaluation:
    """Every client's score of one model, sorted by client.

    Attributes:
        clients: Who was evaluated, shape `(clients,)`.
        num_examples: Evaluation rows of each; 0 for a client too small to be split.
        accuracies: Share of correct rows in `[0, 1]`, 0 where there are no rows; NaN where the model's outputs are not
            numbers, as are losses and metrics.
        losses: Mean cross-entropy, 0 where there are no rows.
        clean_accuracies: The same on uncorrupted rows.
        clean_losses: The same on uncorrupted rows.
        failures: Reason of each client that could not be evaluated.
        repeats: A task's repeated scores, shape `(clients, repeats)`; None where rows are classified.
        of_received: The same clients under the model itself, where some may use another of their own; else None.
        of_unseen: Of clients that take no part; None where there are none.
        metric: The session's metric over all these clients' rows together; None if it has none.
        clean_metric: The same on uncorrupted rows.
        metrics: That of each client, NaN where its rows have none.
        clean_metrics: The same on uncorrupted rows.
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
        """The federation's: weighted by rows; of a task, the median over repeats of the mean over clients."""
        if self.repeats is not None:
            return float(np.median(self.repeats.mean(axis=0)))
        return self.weighted(self.accuracies)

    @property
    def clean_accuracy(self) -> float:
        """The same on uncorrupted rows; a task knows no corruption."""
        return self.accuracy if self.repeats is not None else self.weighted(self.clean_accuracies)

    @property
    def is_missing(self) -> bool:
        """Whether outputs of some model are not numbers."""
        parts = (self.of_received, self.of_unseen)
        views = ((self.losses, self.accuracies), (self.clean_losses, self.clean_accuracies))
        own = any((np.isnan(losses) & np.isnan(accuracies)).any() for losses, accuracies in views)
        return own or any(part is not None and part.is_missing for part in parts)

    def weighted(self, values: npt.NDArray[np.float64]) -> float:
        """Return the mean of per-client values, weighted by evaluation rows."""
        total = int(self.num_examples.sum())
        return float(np.dot(values, self.num_examples) / total) if total else float("nan")

    def worst_clients(self, clean: bool = False) -> float:
        """Return the mean score, the metric's if there is one, of the worst tenth of the clients, rounded up.

        Clients without rows, or whose rows have no score, do not count; NaN if none is left, or if the outputs of a
        client's model are not numbers.
        """
        if self.is_missing:
            return float("nan")
        accuracies, metrics = (self.clean_accuracies, self.clean_metrics) if clean else (self.accuracies, self.metrics)
        scores = accuracies if metrics is None else metrics
        known = np.sort(scores[(self.num_examples > 0) & ~np.isnan(scores)])
        return float(known[: -(-len(known) // WORST_OF)].mean()) if len(known) else float("nan")


def fold_evaluation(
    results: Sequence[EvaluateResults], unseen: Container[int] = (), metric: Metric | None = None
) -> Evaluation:
    """Join the results of hosts, in the order of the clients.

    Args:
        results: Of the hosts.
        unseen: Clients that take no part, whose scores stand apart.
        metric: The session's.
    """
    own = {client: score for result in results for client, score in result.own.items()}
    clean = {client: score for result in results for client, score in result.clean.items()}
    received = {client: score for result in results for client, score in result.received.items()}
    apart = {client: score for client, score in own.items() if client in unseen}
    together = {client: score for client, score in own.items() if client not in apart}
    scores = {
        "own": together.values(),
        "clean": [clean.get(client, score) for client, score in together.items()],
        "received": received.values(),
        "unseen": apart.values(),
    }
    pooled = {} if metric is None else _pooled(metric, results)
    for part in pooled:
        if any(score.is_missing for score in scores[part]):
            pooled[part] = float("nan")
    return replace(
        _evaluation(together, clean),
        failures=dict(sorted(failure for result in results for failure in result.failures.items())),
        of_received=replace(_evaluation(received, {}), metric=pooled.get("received")) if received else None,
        of_unseen=replace(_evaluation(apart, clean), metric=pooled.get("unseen")) if apart else None,
        metric=pooled.get("own"),
        clean_metric=pooled.get("clean"),
    )


def _pooled(metric: Metric, results: Sequence[EvaluateResults]) -> dict[str, float]:
    """Return the metric of all clients' rows together, by whose scores they are."""
    parts = {part for result in results for part in result.sums}
    totals = {part: add(result.sums.get(part) for result in results) for part in parts}
    return {part: metric.value(total) for part, total in totals.items() if total is not None}


def _evaluation(scores: Mapping[int, ClientScore], cleaned: Mapping[int, ClientScore]) -> Evaluation:
    """Return some clients' scores, those on uncorrupted rows where they are others."""
    own = dict(sorted(scores.items(), key=itemgetter(0)))
    clean = {client: cleaned.get(client, score) for client, score in own.items()}
    counts = np.array([score.num_examples for score in own.values()], dtype=np.int64)

    def share(sums: Iterable[float]) -> npt.NDArray[np.float64]:
        sums_of = np.fromiter(sums, np.float64, len(counts))
        return np.asarray(np.divide(sums_of, counts, out=np.zeros(len(counts)), where=counts > 0))

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
    """Return the metric of each client; None if none was measured."""
    found = [score.metric for score in scores]
    return None if all(value is None for value in found) else np.array(found, dtype=np.float64)
