"""Label skew of adjustable strength: for each class, clients share its rows in Dirichlet(α) proportions.

M. Yurochkin, M. Agarwal, S. Ghosh, K. Greenewald, N. Hoang and Y. Khazaeni, "Bayesian Nonparametric Federated Learning
of Neural Networks", ICML 2019: p_c ~ Dir_K(α) for each class c, and client k gets the share p_c,k of its rows. All rows
are used; small α is strong skew, of sizes as of labels, large α tends to IID with equal sizes. T.-M. H. Hsu, H. Qi and
M. Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
arXiv:1909.06335, 2019, instead draw a mixture of classes per client and keep sizes equal.

Deviation: a client that would get fewer than `min_size` rows. Others draw again until there is none, which need not end
(many clients, small α). Here at most 20 draws are made; if none will do, the one that falls short by the fewest rows is
repaired: rows, drawn at random, move from whichever client is then the largest to the clients below the minimum. The
numbers of draws and of moved rows are on record.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from engine.errors import ConfigurationError, DataError
from engine.federation import IntArray
from experiments.partitions.contract import Deal, PartitionRequest, deal_to_owners

MAX_DRAWS = 20


def dirichlet(request: PartitionRequest) -> Deal:
    """Deal the rows of each class in Dirichlet proportions.

    Raises:
        ConfigurationError: If α is not a positive number.
        DataError: If there are too few rows to give every client `min_size` of them.
    """
    num_clients = request.require_num_clients()
    num_rows = len(request.labels)
    if not (np.isfinite(request.settings.alpha) and request.settings.alpha > 0):
        raise ConfigurationError(f"federation.partition.alpha must be a number above 0, got {request.settings.alpha}")
    if num_clients * request.settings.min_size > num_rows:
        raise DataError(
            f"federation.num_clients times federation.partition.min_size must not exceed the number of rows, "
            f"{num_rows}, got {num_clients} times {request.settings.min_size}; the largest minimum that {num_clients} "
            f"clients allow is {num_rows // num_clients}"
        )
    owners, num_draws = _draw(request, num_clients)
    num_moved = _repair(owners, num_clients, request.settings.min_size, request.generator)
    partition = deal_to_owners(owners, num_clients, request.generator)
    return Deal(partition, facts={"dirichlet_draws": num_draws, "dirichlet_moved_rows": num_moved})


def _draw(request: PartitionRequest, num_clients: int) -> tuple[IntArray, int]:
    """Return the first draw that leaves no client short, else the least short one, and the number of draws made."""
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
        shares = _shares(request.settings.alpha, num_clients, request.generator)
        cuts = np.floor(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
        counts = np.diff(np.concatenate([[0], np.minimum(cuts, len(rows)), [len(rows)]]))
        # In an order of their own for each class, or rounding would favour the same clients in all of them.
        owners[rows] = np.repeat(request.generator.permutation(num_clients), counts)
    return owners


def _shares(alpha: float, num_clients: int, generator: np.random.Generator) -> npt.NDArray[np.float64]:
    """Draw proportions; where α is too small for floating point, its limit: one client, drawn uniformly, has all."""
    shares: npt.NDArray[np.float64] = generator.dirichlet(np.full(num_clients, alpha))
    if np.isfinite(shares).all() and shares.sum() > 0.5:
        return shares
    shares = np.zeros(num_clients)
    shares[generator.integers(num_clients)] = 1.0
    return shares


def _repair(owners: IntArray, num_clients: int, min_size: int, generator: np.random.Generator) -> int:
    """Change `owners` in place until every client has `min_size` rows; return how many rows moved."""
    sizes = np.bincount(owners, minlength=num_clients)
    short = np.flatnonzero(sizes < min_size)
    if not len(short):
        return 0
    held: list[list[int]] = [[] for _ in range(num_clients)]
    for row in generator.permutation(len(owners)):
        held[owners[row]].append(int(row))
    largest = [(-int(size), client) for client, size in enumerate(sizes) if size > min_size]
    heapq.heapify(largest)
    num_moved = 0
    for client in short:
        for _ in range(min_size - int(sizes[client])):
            size, donor = heapq.heappop(largest)
            owners[held[donor].pop()] = client
            num_moved += 1
            if -size - 1 > min_size:
                heapq.heappush(largest, (size + 1, donor))
    return num_moved
