"""The sums of a metric over a host's clients: what travels on is the total, and no client's own."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from fedscout.engine.contracts.client_update import ClientScore
from fedscout.engine.messages.host_calls import EvaluateResults
from fedscout.engine.metrics.metric import add


def add_statistics(results: EvaluateResults, unseen: Container[int]) -> None:
    """Add the clients' statistics and take them out of their scores.

    Args:
        results: Of a host; changed.
        unseen: Clients that take no part, whose sums stand apart.
    """
    clean = {client: results.clean.get(client, score) for client, score in results.own.items()}
    seen = {client for client in results.own if client not in unseen}
    parts: Mapping[str, Iterable[ClientScore]] = {
        "own": [score for client, score in results.own.items() if client in seen],
        "clean": [score for client, score in clean.items() if client in seen],
        "received": results.received.values(),
        "unseen": [score for client, score in results.own.items() if client not in seen],
    }
    for part, scores in parts.items():
        total = add(score.statistics for score in scores)
        if total is not None:
            results.sums[part] = total
    for told in (results.own, results.clean, results.received):
        for client, score in told.items():
            told[client] = replace(score, statistics=None)
