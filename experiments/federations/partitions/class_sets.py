"""Clients that have a set of classes each, and no row of any other class.

`classes_per_client` is what severities of "20", "50" and "90" mean in the code of FedPilot: each client has that many
per cent of the classes (so 20 is the most severe), while its documentation gives them as Dirichlet parameters of 1.0,
0.5 and 0.1 (so 90 is). This partition is the former; `dirichlet` is the latter. A client has `class_share` of the
classes, rounded, at least one. The clients of a class share its rows equally. All rows are used, unless the clients'
sets together are fewer than the classes.

`heterogeneity_index`: the FedCust method measures a client by HI = 1 − (c − 1)/(c_max − 1), c being the classes that it
holds, and c_max all classes, and by its number of rows; its experiments use equally large groups of clients, one a
combination. Here client k has level k mod L, and quantity ⌊k/L⌋ mod Q: with 4 levels and 6 quantities, 24 clients have
all combinations. c is whole, so a client's index is the one nearest to its level that the number of classes allows; the
realised ones are on record. With `quantities` each client has as many rows, in equal parts from each of its classes,
and rows beyond that are not used; without, all rows are used and clients are as equal in size as the class counts
allow.

Sets are dealt greedily, as from shuffled packs of cards: clients that want much of a class choose first, and each takes
at random among the classes of which most is left. So demand follows supply as far as the sets' sizes allow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.partitions.partition_request import Deal, PartitionRequest
from fedscout.experiments.federations.partitions.shares import BoolArray, FloatVector, whole_rows


def classes_per_client(request: PartitionRequest) -> Deal:
    """Deal a share of the classes to each client.

    Raises:
        DataError: If some client would have fewer than `min_size` rows, or a class fewer rows than clients.
    """
    num_clients = request.require_num_clients()
    request.require_min_size()
    num_classes = max(1, round(request.settings.class_share * np.count_nonzero(request.class_counts)))
    return _deal_sets(request, np.full(num_clients, num_classes), classes_per_client=num_classes)


def heterogeneity_index(request: PartitionRequest) -> Deal:
    """Deal sets of classes whose sizes make the levels.

    Raises:
        DataError: If the classes have too few rows, or there is one class only.
    """
    num_clients, settings = request.require_num_clients(), request.settings
    request.require_min_size()
    largest = int(np.count_nonzero(request.class_counts)) - 1
    if largest < 1:
        raise DataError(Fault("federation.partition.kind=heterogeneity_index", "have two classes or more", "one"))
    clients, levels = np.arange(num_clients), np.array(settings.levels)
    set_sizes = 1 + np.rint((1 - levels) * largest).astype(np.int64)
    realised = tuple((1 - (set_sizes - 1) / largest).tolist())
    set_sizes = set_sizes[clients % len(levels)]
    if settings.quantities:
        sizes = np.array(settings.quantities)[clients // len(levels) % len(settings.quantities)]
        least = max(settings.min_size, int(set_sizes.max()))
        if sizes.min() < least:
            raise DataError(
                Fault(
                    "federation.partition.quantities",
                    (f"be at least {least}, federation.partition.min_size and a row of each class that a client holds"),
                    sizes.min(),
                )
            )
        return _deal_sized_sets(request, set_sizes, sizes, realised_levels=realised)
    return _deal_sets(request, set_sizes, realised_levels=realised)


def _deal_sets(request: PartitionRequest, set_sizes: IntArray, **facts: Any) -> Deal:
    """Deal all rows such that client k has rows of `set_sizes[k]` classes, clients being as equal in size as can be.

    A client's weight in each of its classes is one over their number, and at least one row. A class that nobody holds
    is not dealt, which only happens if the sets together are smaller than the number of classes.

    Args:
        request: Gives the labels, and draws sets and rows.
        set_sizes: Number of classes of each client, in `[1, classes that have rows]`, shape `(num_clients,)`.
        facts: For the record.

    Raises:
        DataError: If the classes have too few rows for their clients.
    """
    num_clients, available = len(set_sizes), request.class_counts
    supply = available * (num_clients / available.sum())
    held = _choose(supply, 1 / set_sizes, set_sizes, available, request.generator)
    matrix = np.zeros(held.shape, dtype=np.int64)
    for label in np.flatnonzero(held.any(axis=0)):
        holders = np.flatnonzero(held[:, label])
        weights = 1 / set_sizes[holders]
        spare = np.maximum(weights / weights.sum() * available[label] - 1, 0)
        shares = spare / spare.sum() if spare.sum() > 0 else weights / weights.sum()
        matrix[holders, label] = 1 + whole_rows(shares, int(available[label]) - len(holders), request.generator)
    _require_min_size(request, matrix)
    return request.deal_counts(matrix, **facts)


def _deal_sized_sets(request: PartitionRequest, set_sizes: IntArray, sizes: IntArray, **facts: Any) -> Deal:
    """Deal `sizes[k]` rows to client k, in equal parts from each of `set_sizes[k]` classes.

    Args:
        request: Gives the labels, and draws sets and rows.
        set_sizes: Number of classes of each client, in `[1, classes that have rows]`, shape `(num_clients,)`.
        sizes: Rows of each client, shape `(num_clients,)`, at least as many as its classes.
        facts: For the record.

    Raises:
        DataError: If the classes have too few rows.
    """
    available = request.class_counts
    parts = -(-sizes // set_sizes)
    num_missing = int(sizes.sum()) - len(request.labels)
    if num_missing > 0:
        raise DataError(
            Fault(
                "federation.partition.quantities",
                (f"not add up, over all clients, to more than the number of rows, {len(request.labels)}"),
                f"{sizes.sum()} for {len(sizes)} clients",
            )
        )
    held = _choose(available.astype(np.float64), parts.astype(np.float64), set_sizes, available, request.generator)
    matrix = np.zeros(held.shape, dtype=np.int64)
    for client, (size, num_classes) in enumerate(zip(sizes, set_sizes, strict=True)):
        classes = request.generator.permutation(np.flatnonzero(held[client]))
        matrix[client, classes] = size // num_classes
        matrix[client, classes[: size % num_classes]] += 1
    asked = matrix.sum(axis=0)
    for label in np.flatnonzero(asked > available):
        raise DataError(
            Fault(
                "federation.partition.quantities",
                (f"not ask for more rows of a class than there are, {available[label]} of class {label}"),
                asked[label],
                "smaller quantities, fewer clients or lower levels are possible",
            )
        )
    return request.deal_counts(matrix, **facts)


def _choose(
    supply: FloatVector, demand: FloatVector, set_sizes: IntArray, available: IntArray, generator: np.random.Generator
) -> BoolArray:
    """Return which classes each client holds, shape `(num_clients, num_classes)`.

    Args:
        supply: What there is of each class.
        demand: What each client takes of each of its classes.
        set_sizes: Number of classes of each client.
        available: Rows of each class: a class has no more clients than rows.
        generator: Draws among equals.
    """
    left = supply.copy()
    num_free = available.copy()
    held = np.zeros((len(set_sizes), len(supply)), dtype=np.bool_)
    unheld = available > 0
    num_places = int(set_sizes.sum())
    order = generator.permutation(len(set_sizes))
    for client in order[np.argsort(-demand[order], kind="stable")]:
        num_classes = int(set_sizes[client])
        num_places -= num_classes
        # Classes that nobody holds come first as soon as the clients after this one have too few places for them.
        last_chance = unheld if num_places < np.count_nonzero(unheld) else np.zeros_like(unheld)
        classes = generator.permutation(len(supply))
        ranks = np.lexsort((-np.round(left[classes], 9), ~last_chance[classes], num_free[classes] == 0))
        chosen = classes[ranks[:num_classes]]
        if (num_free[chosen] == 0).any():
            raise DataError(
                Fault(
                    "every client",
                    (
                        f"get a row of each of its classes, {num_classes} at client {client}, but only "
                        f"{np.count_nonzero(num_free)} classes have a row left"
                    ),
                    hint=f"fewer classes a client, or fewer than {len(set_sizes)} clients, are possible",
                )
            )
        held[client, chosen] = True
        left[chosen] -= demand[client]
        num_free[chosen] -= 1
        unheld[chosen] = False
    return held


def _require_min_size(request: PartitionRequest, matrix: IntArray) -> None:
    sizes = matrix.sum(axis=1)
    if sizes.min() < request.settings.min_size:
        raise DataError(
            Fault(
                "federation.partition.min_size",
                (f"be at most {sizes.min()}, the rows that client {sizes.argmin()} gets of its classes"),
                request.settings.min_size,
                "more is possible with fewer clients",
            )
        )
