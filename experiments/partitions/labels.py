"""Partitions by label: sets of classes, and Dirichlet proportions.

`classes_per_client` and `heterogeneity_index` give each client a set of classes and no row of any other class. Sets are
assigned greedily: clients with the largest demand per class choose first, and each draws at random among the classes
with the most supply left, so that demand follows supply as far as the set sizes allow.

`classes_per_client`: a client has `class_share` of the classes, rounded, at least one. The clients of a class share its
rows equally. All rows are used, unless the clients' sets together are fewer than the classes. This is what the
severities "20", "50" and "90" mean in the code of FedPilot: the percentage of classes per client (20 is the most
severe). Its documentation defines them as Dirichlet parameters of 1.0, 0.5 and 0.1 (90 is the most severe), which is
`dirichlet` here.

`heterogeneity_index`: the FedCust method characterizes a client by HI = 1 − (c − 1)/(c_max − 1), with c the number of
classes that it holds and c_max the number of all classes, and by its number of rows; its experiments use equally large
groups of clients, one per combination. Here client k has level k mod L and quantity ⌊k/L⌋ mod Q: with 4 levels and 6
quantities, 24 clients cover all combinations. As c is an integer, a client's index is the one nearest to its level that
the number of classes allows; the realised ones are on record. With `quantities`, each client has that many rows, in
equal parts from each of its classes, and the remaining rows are not used; without, all rows are used and clients are as
equal in size as the class counts allow.

`dirichlet` and `inner_dirichlet`: label skew of adjustable strength by Dirichlet(α): small α is strong skew, large α
tends to IID. All rows are used.

`dirichlet`: for each class, clients share its rows in Dirichlet proportions. M. Yurochkin, M. Agarwal, S. Ghosh, K.
Greenewald, N. Hoang and Y. Khazaeni, "Bayesian Nonparametric Federated Learning of Neural Networks", ICML 2019: p_c ~
Dir_K(α) for each class c, and client k gets the share p_c,k of its rows. Both sizes and labels are skewed. T.-M. H.
Hsu, H. Qi and M. Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
arXiv:1909.06335, 2019, instead draw a mixture of classes per client and keep sizes equal. This is flwr-datasets'
`DirichletPartitioner` with `self_balancing=False`, its default.

Deviation for clients below `min_size` rows: others, including flwr-datasets, redraw until there are none, which may not
terminate (many clients, small α). Here at most 20 draws are made; if all fail, the draw with the fewest missing rows is
repaired: randomly drawn rows move from the currently largest client to the clients below the minimum. The numbers of
draws and of moved rows are on record.

`inner_dirichlet`: sizes are equal up to one row; each client draws its rows from its own mixture of classes,
Dirichlet(α) over classes. D. A. E. Acar, Y. Zhao, R. M. Navarro, M. Mattina, P. N. Whatmough and V. Saligrama,
"Federated Learning Based on Dynamic Regularization", ICLR 2021 (arXiv:2111.04263), as in flwr-datasets'
`InnerDirichletPartitioner`: rows are assigned one by one, to clients in random order; the class is drawn from the
client's mixture, and an exhausted class is removed from all mixtures.

Deviations from flwr-datasets, which draws row by row: rows are assigned in passes. In each, every open slot draws a
class, and as many slots as the class has rows are filled, in random order; a pass that leaves a slot open exhausts a
class, so there are no more passes than classes. A client whose mixture has only exhausted classes left, where the
original divides zero by zero, draws from the remaining rows; the number of such draws is on record. As all rows are
used, the last ones do not follow the mixtures closely.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.errors import DataError
from fedscout.experiments.partitions.base import (
    BoolArray,
    FloatVector,
    PartitionRequest,
    PartitionResult,
    dirichlet_shares,
    fill_up,
    whole_rows,
)


def classes_per_client(request: PartitionRequest) -> PartitionResult:
    """Partition rows so that each client holds a share of the classes.

    Raises:
        DataError: If some client would have fewer than `min_size` rows, or a class fewer rows than clients.
    """
    num_clients = request.require_num_clients()
    request.require_min_size()
    num_classes = max(1, round(request.settings.class_share * np.count_nonzero(request.class_counts)))
    return _partition_sets(request, np.full(num_clients, num_classes), classes_per_client=num_classes)


def heterogeneity_index(request: PartitionRequest) -> PartitionResult:
    """Partition rows by sets of classes whose sizes yield the requested heterogeneity levels.

    Raises:
        DataError: If the classes have too few rows, or there is one class only.
    """
    num_clients, settings = request.require_num_clients(), request.settings
    request.require_min_size()
    max_extra_classes = int(np.count_nonzero(request.class_counts)) - 1
    if max_extra_classes < 1:
        raise DataError.of("federation.partition.kind=heterogeneity_index", "have two classes or more", "one")
    clients, levels = np.arange(num_clients), np.array(settings.levels)
    set_sizes = 1 + np.rint((1 - levels) * max_extra_classes).astype(np.int64)
    realised = tuple((1 - (set_sizes - 1) / max_extra_classes).tolist())
    set_sizes = set_sizes[clients % len(levels)]
    if settings.quantities:
        sizes = np.array(settings.quantities)[clients // len(levels) % len(settings.quantities)]
        least = max(settings.min_size, int(set_sizes.max()))
        if sizes.min() < least:
            raise DataError.of(
                "federation.partition.quantities",
                f"be at least {least}, federation.partition.min_size and a row of each class that a client holds",
                sizes.min(),
            )
        return _partition_sized_sets(request, set_sizes, sizes, realised_levels=realised)
    return _partition_sets(request, set_sizes, realised_levels=realised)


def _partition_sets(request: PartitionRequest, set_sizes: IntArray, **facts: Any) -> PartitionResult:
    """Partition all rows so that client k holds `set_sizes[k]` classes and client sizes are as equal as possible.

    A client's weight in each of its classes is one over their number; it gets at least one row of each. A class that no
    client holds is not used, which only happens if the sets together are smaller than the number of classes.

    Args:
        request: Provides the labels and the random generator.
        set_sizes: Number of classes of each client, in `[1, classes that have rows]`, shape `(num_clients,)`.
        facts: Facts to record.

    Raises:
        DataError: If the classes have too few rows for their clients.
    """
    num_clients, available = len(set_sizes), request.class_counts
    supply = available * (num_clients / available.sum())
    is_held = _choose_class_sets(supply, 1 / set_sizes, set_sizes, available, request.generator)
    matrix = np.zeros(is_held.shape, dtype=np.int64)
    for label in np.flatnonzero(is_held.any(axis=0)):
        holders = np.flatnonzero(is_held[:, label])
        weights = 1 / set_sizes[holders]
        spare = np.maximum(weights / weights.sum() * available[label] - 1, 0)
        shares = spare / spare.sum() if spare.sum() > 0 else weights / weights.sum()
        matrix[holders, label] = 1 + whole_rows(shares, int(available[label]) - len(holders), request.generator)
    request.check_sizes(matrix.sum(axis=1))
    return request.by_class_counts(matrix, **facts)


def _partition_sized_sets(
    request: PartitionRequest, set_sizes: IntArray, sizes: IntArray, **facts: Any
) -> PartitionResult:
    """Assign `sizes[k]` rows to client k, in equal parts from each of `set_sizes[k]` classes.

    Args:
        request: Provides the labels and the random generator.
        set_sizes: Number of classes of each client, in `[1, classes that have rows]`, shape `(num_clients,)`.
        sizes: Rows of each client, shape `(num_clients,)`, at least its number of classes.
        facts: Facts to record.

    Raises:
        DataError: If the classes have too few rows.
    """
    available = request.class_counts
    parts = -(-sizes // set_sizes)
    is_held = _choose_class_sets(
        available.astype(np.float64), parts.astype(np.float64), set_sizes, available, request.generator
    )
    matrix = np.zeros(is_held.shape, dtype=np.int64)
    for client, (size, num_classes) in enumerate(zip(sizes, set_sizes, strict=True)):
        classes = request.generator.permutation(np.flatnonzero(is_held[client]))
        matrix[client, classes] = size // num_classes
        matrix[client, classes[: size % num_classes]] += 1
    requested = matrix.sum(axis=0)
    for label in np.flatnonzero(requested > available):
        raise DataError.of(
            "federation.partition.quantities",
            f"not request more rows of a class than exist, {available[label]} of class {label}",
            requested[label],
            "use smaller quantities, fewer clients or lower levels",
        )
    return request.by_class_counts(matrix, **facts)


def _choose_class_sets(
    supply: FloatVector, demand: FloatVector, set_sizes: IntArray, available: IntArray, generator: np.random.Generator
) -> BoolArray:
    """Return which classes each client holds, shape `(num_clients, num_classes)`.

    Args:
        supply: Amount available of each class.
        demand: Amount that each client takes of each of its classes.
        set_sizes: Number of classes of each client.
        available: Rows of each class, the maximum number of its clients.
        generator: Breaks ties.
    """
    remaining_supply = supply.copy()
    num_rows_free = available.copy()
    is_held = np.zeros((len(set_sizes), len(supply)), dtype=np.bool_)
    unheld = available > 0
    num_slots = int(set_sizes.sum())
    order = generator.permutation(len(set_sizes))
    for client in order[np.argsort(-demand[order], kind="stable")]:
        num_classes = int(set_sizes[client])
        num_slots -= num_classes
        # Classes that nobody holds come first as soon as the clients after this one have too few places for them.
        last_chance = unheld if num_slots < np.count_nonzero(unheld) else np.zeros_like(unheld)
        classes = generator.permutation(len(supply))
        ranks = np.lexsort(
            (-np.round(remaining_supply[classes], 9), ~last_chance[classes], num_rows_free[classes] == 0)
        )
        chosen = classes[ranks[:num_classes]]
        if (num_rows_free[chosen] == 0).any():
            raise DataError.of(
                "every client",
                f"get a row of each of its classes, {num_classes} at client {client}, but only "
                f"{np.count_nonzero(num_rows_free)} classes have a row left",
                hint=f"use fewer classes per client, or fewer than {len(set_sizes)} clients",
            )
        is_held[client, chosen] = True
        remaining_supply[chosen] -= demand[client]
        num_rows_free[chosen] -= 1
        unheld[chosen] = False
    return is_held


MAX_DRAWS = 20
CHUNK_PLACES = 65_536


def dirichlet(request: PartitionRequest) -> PartitionResult:
    """Partition the rows of each class in Dirichlet proportions."""
    num_clients, min_size = request.require_num_clients(), request.require_min_size()
    owners, num_draws = _draw_owners(request, num_clients)
    num_moved = fill_up(owners, num_clients, min_size, request.generator)
    return request.by_owners(owners, dirichlet_draws=num_draws, dirichlet_moved_rows=num_moved)


def _draw_owners(request: PartitionRequest, num_clients: int) -> tuple[IntArray, int]:
    """Return the first draw without a client below `min_size`, else the least short one, and the draw count."""
    best: IntArray | None = None
    least_short = 0
    for draw in range(1, MAX_DRAWS + 1):
        owners = _owners(request, num_clients)
        sizes = np.bincount(owners, minlength=num_clients)
        short = int(np.maximum(request.settings.min_size - sizes, 0).sum())
        if short == 0:
            return owners, draw
        if best is None or short < least_short:
            best, least_short = owners, short
    assert best is not None
    return best, MAX_DRAWS


def _owners(request: PartitionRequest, num_clients: int) -> IntArray:
    """Return the client of each row, shape `(num_rows,)`."""
    owners = np.empty(len(request.labels), dtype=np.int64)
    for label in np.unique(request.labels):
        rows = request.generator.permutation(np.flatnonzero(request.labels == label))
        # In an order of their own for each class, or rounding would favour the same clients in all of them.
        shares = dirichlet_shares(request.settings.alpha, num_clients, request.generator)
        order = request.generator.permutation(num_clients)
        cuts = np.floor(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
        counts = np.diff(np.concatenate([[0], np.minimum(cuts, len(rows)), [len(rows)]]))
        owners[rows] = np.repeat(order, counts)
    return owners


def inner_dirichlet(request: PartitionRequest) -> PartitionResult:
    """Partition rows by each client's own Dirichlet mixture of classes."""
    num_clients, generator = request.require_num_clients(), request.generator
    num_left = request.class_counts
    mixtures = _mixtures(request.settings.alpha, num_clients, len(num_left), generator)
    slots = generator.permutation(np.arange(len(request.labels)) % num_clients)
    matrix = np.zeros((num_clients, len(num_left)), dtype=np.int64)
    num_off_mixture = 0
    while len(slots):
        cumulated, is_off = _cumulated(mixtures, num_left)
        drawn_classes = _draw_classes(cumulated, slots, generator)
        is_served = _served(drawn_classes, num_left)
        num_off_mixture += int(np.count_nonzero(is_off[slots[is_served]]))
        np.add.at(matrix, (slots[is_served], drawn_classes[is_served]), 1)
        num_left = num_left - np.bincount(drawn_classes[is_served], minlength=len(num_left))
        slots = slots[~is_served]
    return request.by_class_counts(matrix, num_rows_off_mixture=num_off_mixture)


def _mixtures(alpha: float, num_clients: int, num_classes: int, generator: np.random.Generator) -> FloatVector:
    """Draw each client's class probabilities; one-hot, the limit, where α is too small for floating point."""
    mixtures: FloatVector = generator.dirichlet(np.full(num_classes, alpha), size=num_clients)
    broken = ~(np.isfinite(mixtures).all(axis=1) & (mixtures.sum(axis=1) > 0.5))
    mixtures[broken] = np.eye(num_classes)[generator.integers(num_classes, size=int(broken.sum()))]
    return mixtures


def _cumulated(mixtures: FloatVector, left: IntArray) -> tuple[FloatVector, BoolArray]:
    """Return the clients' cumulative probabilities over classes with rows left, and whose mixture has none of these."""
    weights = np.where(left > 0, mixtures, 0.0)
    is_off = weights.sum(axis=1) == 0
    weights[is_off] = left
    cumulated = np.cumsum(weights, axis=1)
    return cumulated / cumulated[:, -1:], is_off


def _draw_classes(cumulated: FloatVector, places: IntArray, generator: np.random.Generator) -> IntArray:
    """Draw a class for each open slot; `places` holds the client of each."""
    points = generator.random(len(places))
    drawn = np.empty(len(places), dtype=np.int64)
    for start in range(0, len(places), CHUNK_PLACES):
        part = slice(start, start + CHUNK_PLACES)
        drawn[part] = (cumulated[places[part]] <= points[part, None]).sum(axis=1)
    return drawn


def _served(drawn: IntArray, left: IntArray) -> BoolArray:
    """Return which slots get a row of the class that they drew: for each class the first ones, while rows last."""
    order = np.argsort(drawn, kind="stable")
    counts = np.bincount(drawn, minlength=len(left))
    ranks = np.empty(len(drawn), dtype=np.int64)
    ranks[order] = np.arange(len(drawn)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(ranks < left[drawn])
