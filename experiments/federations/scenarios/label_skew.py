"""Label skew: clients of equal size, of whose rows 90, 70, 50 and 10 % belong to one class.

Published for four clients and a binary label. Generalised:

- The class of the first four clients is the most frequent one. Its share follows the published list, the rest of a
  client mirrors the other classes in their overall proportions; with two classes that is the published scenario.
- Further clients repeat the list, four at a time, each four with a class of their own: the next most frequent one, and
  the first again once the r most frequent have had their turn. r is chosen so that clients get as many rows as possible
  (the smallest such r): it is large where classes are balanced and 1 where all but one are rare.
- Clients have equal sizes, the largest that the class counts allow; the rows that are left are not used, and counted.
- A client is affected if its label distribution differs from that of all dealt rows by more than 0.1 in total variation
  distance (½ Σ|p − g|: the part of its rows that would have to change class). With four clients the shares average
  55 %, so the clients with 90, 70 and 10 % are affected, and the one with 50 % is not.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import IntArray
from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.partitions.partition_request import Deal, PartitionRequest

SHARES = (0.9, 0.7, 0.5, 0.1)
MIN_SIZE = 10
AFFECTED_DISTANCE = 0.1


def label_skew(request: PartitionRequest) -> Deal:
    """Deal rows in the published shares.

    Raises:
        DataError: If the class counts do not allow ten rows a client, the fewest in which all shares are whole rows.
    """
    assert request.num_clients is not None
    counts = _largest_deal(request.class_counts, request.num_clients)
    distributions = counts / counts.sum(axis=1, keepdims=True)
    distances = 0.5 * np.abs(distributions - counts.sum(axis=0) / counts.sum()).sum(axis=1)
    affected = tuple(np.flatnonzero(distances > AFFECTED_DISTANCE).tolist())
    return replace(request.deal_counts(counts), affected_clients=affected)


def _largest_deal(class_counts: IntArray, num_clients: int) -> IntArray:
    """Return the rows of each class that each client gets, shape `(num_clients, num_classes)`."""
    by_frequency = np.argsort(-class_counts, kind="stable")[: np.count_nonzero(class_counts)]
    num_turns = min(len(by_frequency), -(-num_clients // len(SHARES)))
    size, mixtures = 0, np.empty((1, len(class_counts)))
    for num_in_turn in range(1, num_turns + 1):
        candidate = _mixtures(class_counts, by_frequency[:num_in_turn])
        candidate_size = _largest_size(candidate, class_counts, num_clients, size)
        if candidate_size > size:
            size, mixtures = candidate_size, candidate
    if size < MIN_SIZE:
        raise DataError(
            Fault(
                "federation.scenario=label_skew",
                f"be able to give every client {MIN_SIZE} rows, the fewest that show its shares",
                f"{num_clients} clients for classes of {class_counts.tolist()} rows",
            )
        )
    return _whole_rows(mixtures, size)[np.arange(num_clients) % len(mixtures)]


def _mixtures(class_counts: IntArray, in_turn: IntArray) -> npt.NDArray[np.float64]:
    """Return the label distributions that clients have in turn, shape `(4 r, num_classes)`."""
    own = np.repeat(in_turn, len(SHARES))
    shares = np.tile(SHARES, len(in_turn))
    turns = np.arange(len(own))
    mixtures = np.tile(class_counts.astype(np.float64), (len(own), 1))
    mixtures[turns, own] = 0
    mixtures *= ((1 - shares) / mixtures.sum(axis=1))[:, None]
    mixtures[turns, own] = shares
    return mixtures


def _largest_size(
    mixtures: npt.NDArray[np.float64], class_counts: IntArray, num_clients: int, size_to_beat: int
) -> int:
    """Return the most rows a client that the class counts allow, if every client gets as many.

    A size that would not exceed `size_to_beat` is not worked out: any number up to it may be returned.
    """
    num_of_each = np.bincount(np.arange(num_clients) % len(mixtures), minlength=len(mixtures))
    demand = num_of_each @ mixtures
    # The tolerance keeps a quotient such as 1100 / 2.2 = 499.999… from losing a row.
    size = int((class_counts[demand > 0] / demand[demand > 0]).min() + 1e-9)
    # Rounding to whole rows may ask for a few more of a class than there are.
    while size > size_to_beat and (num_of_each @ _whole_rows(mixtures, size) > class_counts).any():
        size -= 1
    return size


def _whole_rows(mixtures: npt.NDArray[np.float64], size: int) -> IntArray:
    """Round each client's expected rows to whole ones that add up to `size`, by the largest remainder."""
    expected = mixtures * size
    # The tolerance keeps a product such as 0.7 * 10 = 6.999… from losing a row.
    whole = np.floor(expected + 1e-9).astype(np.int64)
    missing = size - whole.sum(axis=1)
    order = np.argsort(-(expected - whole), axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    whole += rank < missing[:, None]
    return whole
