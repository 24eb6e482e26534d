"""Dominant class: of a fraction of the clients, each has 80 % of its rows from one class.

H. Wang, Z. Kaplan, D. Niu and B. Li, "Optimizing Federated Learning on Non-IID Data with Reinforcement Learning",
INFOCOM 2020: at level σ = 0.8, 80 % of a client's rows belong to one class and the rest to the others. Here:

- Clients 0, 1, …, `dominant_fraction` of them, rounded, have a dominant class; the others have the overall label
  distribution. Classes dominate in proportion to their frequency, as nearly as whole clients allow.
- A dominant class has `dominant_share` of the client's rows, rounded; the rest follows the overall distribution of the
  other classes.
- All clients have the same size, the largest at which no class is asked for more rows than it has; the rows that are
  left are not used.
"""

from __future__ import annotations

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.partitions.partition_request import Deal, PartitionRequest
from fedscout.experiments.federations.partitions.shares import FloatVector, whole_rows


def dominant_class(request: PartitionRequest) -> Deal:
    """Deal clients with and without a dominant class.

    Raises:
        DataError: If clients would have fewer than `min_size` rows, or there is one class only.
    """
    num_clients, settings, available = request.require_num_clients(), request.settings, request.class_counts
    request.require_min_size()
    if np.count_nonzero(available) < 2:
        raise DataError(Fault("federation.partition.kind=dominant_class", "have two classes or more", "one"))
    num_dominated = round(settings.dominant_fraction * num_clients)
    dominants = np.repeat(
        np.arange(len(available)), whole_rows(available / available.sum(), num_dominated, request.generator)
    )
    request.generator.shuffle(dominants)
    size = len(request.labels) // num_clients
    while size >= settings.min_size:
        matrix = _matrix(request, dominants, size)
        if matrix is not None:
            return request.deal_counts(matrix, num_dominated_clients=num_dominated)
        size -= 1
    raise DataError(
        Fault(
            "federation.partition.min_size",
            (
                f"be at most the rows that classes of {available.tolist()} rows allow with "
                f"{num_clients} clients of a dominant share of {settings.dominant_share:g}"
            ),
            settings.min_size,
        )
    )


def _matrix(request: PartitionRequest, dominants: IntArray, size: int) -> IntArray | None:
    """Return the rows of each class that each client gets, or None if the classes have too few.

    Args:
        request: Gives the classes, and draws who profits from rounding.
        dominants: The classes of the clients that have a dominant one.
        size: Rows of each client.
    """
    num_clients, available = request.require_num_clients(), request.class_counts
    rest = np.tile(available / available.sum(), (num_clients, 1))
    dominated = np.arange(len(dominants))
    rest[dominated, dominants] = 0
    rest /= rest.sum(axis=1, keepdims=True)
    num_dominant = round(request.settings.dominant_share * size)
    rest *= np.where(np.arange(num_clients) < len(dominants), size - num_dominant, size)[:, None]
    asked = rest.sum(axis=0) + np.bincount(dominants, minlength=len(available)) * num_dominant
    if (asked > available + 1e-6).any():
        return None
    matrix = _rounded(rest, request.generator)
    matrix[dominated, dominants] += num_dominant
    return matrix if _cut_to(available, matrix, rest, request.generator) else None


def _rounded(expected: FloatVector, generator: np.random.Generator) -> IntArray:
    """Round each client's expected rows up or down, its total exactly, and nobody's or no class's favour on average."""
    classes = generator.permutation(expected.shape[1])
    cumulated = np.cumsum(expected[:, classes], axis=1)
    cumulated[:, -1] = np.rint(cumulated[:, -1])
    shift = generator.random((len(expected), 1))
    edges = np.floor(np.round(cumulated, 9) + shift).astype(np.int64)
    matrix = np.empty(expected.shape, dtype=np.int64)
    matrix[:, classes] = np.diff(edges, axis=1, prepend=0)
    return matrix


def _cut_to(available: IntArray, matrix: IntArray, expected: FloatVector, generator: np.random.Generator) -> bool:
    """Take back what rounding asked of a class beyond its rows, in place; return whether that was possible.

    Clients whose number was rounded up get a row of another class instead, one whose number was rounded down if any.
    """
    asked = matrix.sum(axis=0)
    for label in np.flatnonzero(asked > available):
        rounded_up = generator.permutation(
            np.flatnonzero((matrix[:, label] > expected[:, label]) & (expected[:, label] > 0))
        )
        for client in rounded_up[: asked[label] - available[label]]:
            spare = available - asked
            possible = np.flatnonzero((spare > 0) & (expected[client] > 0))
            if not len(possible):
                return False
            down = possible[matrix[client, possible] < expected[client, possible]]
            other = generator.choice(down if len(down) else possible)
            matrix[client, label] -= 1
            matrix[client, other] += 1
            asked[label] -= 1
            asked[other] += 1
    return not (asked > available).any()
