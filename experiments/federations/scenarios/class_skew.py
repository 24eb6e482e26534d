"""Class skew of some clients, on top of any partition: most of their rows are of one class, as rows change hands.

X. Chang et al., "FLASH: Federated Learning Across Simultaneous Heterogeneities", arXiv:2402.08769, 2024: of a skewed
client's own rows 80 % are of one class and the rest uniform; the fraction says how many clients are skewed. The
partition `dominant_class` deals such clients from scratch; this effect leaves all else about a partition as it is:

- Every client keeps its number of rows, and every row stays in one client's hands: a skewed client gives rows away and
  gets as many of its class, and whoever gave those gets what the first one gave.
- A client keeps what it has of its class, as far as that is wanted. The others of its rows, too, are some that it had,
  drawn at random: on rows dealt IID they have the overall distribution of the other classes, which for equal classes is
  the source's uniform one, and on skewed rows the client's own.
- Classes are drawn one client after the other, in proportion to the rows that no skewed client claims yet, among
  classes of which enough are left; the source is silent. So no class is asked for more than there is.
- Rows come from all clients at random, from other skewed ones as far as these do not claim them. Where hardly anybody
  is not skewed, no rows of other classes may be left, and a client has a few more of its class than its share.

The labels are those before any corruption: rows change hands before labels are flipped, wherever the effect stands.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedscout.engine.arrays import IntArray
from fedscout.engine.data.client_data import Partition
from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.scenarios.effect import EffectRequest, ScenarioEffect, ScenarioPlan, with_rows


class ClassSkewEffect(ScenarioEffect):
    """Most of a client's rows are of one class: it exchanges rows with the others until they are."""

    needs_classes: ClassVar[bool] = True
    moves_rows: ClassVar[bool] = True

    kind: Literal["class_skew"] = "class_skew"
    share: float = Field(default=0.8, gt=0, le=1, description="part of the client's rows that are of its class")

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return who holds which rows.

        Raises:
            DataError: If no class has enough rows for a client.
        """
        skewed, sizes = with_rows(clients, request), request.partition.sizes
        generator = request.stream("class_skew")
        wanted = {client: round(self.share * int(sizes[client])) for client in skewed}
        labels = request.labels[request.partition.rows]
        classes = _drawn_classes(wanted, np.bincount(labels, minlength=request.num_classes), generator)
        exchange = _Exchange(request.partition, labels, generator)
        rows = exchange.rows_after(wanted, classes)
        return ScenarioPlan(
            partition=Partition(rows, request.partition.offsets),
            affected_clients=skewed,
            facts={
                "classes": [classes[client] for client in skewed],
                "rows_of_class": [_count(request, rows, client, classes[client]) for client in skewed],
                "rows_exchanged": int(np.count_nonzero(rows != request.partition.rows)),
            },
        )


def _count(request: EffectRequest, rows: IntArray, client: int, label: int) -> int:
    own = rows[request.partition.offsets[client] : request.partition.offsets[client + 1]]
    return int(np.count_nonzero(request.labels[own] == label))


def _drawn_classes(wanted: dict[int, int], class_counts: IntArray, generator: np.random.Generator) -> dict[int, int]:
    """Return the class of each client, in proportion to the rows that nobody claims yet."""
    left, classes = class_counts.copy(), {}
    for client, count in wanted.items():
        weights = np.where(left >= count, left, 0).astype(np.float64)
        if not weights.any():
            raise DataError(
                Fault(
                    "federation.scenario: class_skew",
                    f"find a class with {count} rows left for client {client}",
                    f"classes of {class_counts.tolist()} rows and {len(wanted)} skewed clients",
                    "fewer clients or a smaller share need fewer",
                )
            )
        classes[client] = int(generator.choice(len(left), p=weights / weights.sum()))
        left[classes[client]] -= count
    return classes


class _Exchange:
    """Rows on their way between the places of a partition.

    Args:
        partition: Who holds which rows.
        labels: Of the rows in its order.
        generator: Draws.
    """

    def __init__(self, partition: Partition, labels: IntArray, generator: np.random.Generator) -> None:
        self._partition = partition
        self._labels = labels
        self._generator = generator
        self._free = np.ones(len(labels), np.bool_)

    def rows_after(self, wanted: dict[int, int], classes: dict[int, int]) -> IntArray:
        """Return the rows of all clients in the order of the partition, shape `(total_rows,)`.

        Args:
            wanted: Rows of its class of each skewed client.
            classes: Which that is.
        """
        offsets, labels = self._partition.offsets, self._labels
        places = {client: np.arange(offsets[client], offsets[client + 1]) for client in wanted}
        held = {c: self._claim(places[c][labels[places[c]] == classes[c]], wanted[c]) for c in wanted}
        for client, own in held.items():
            if missing := wanted[client] - len(own):
                alike = np.flatnonzero(labels == classes[client])
                held[client] = np.concatenate([own, self._claim(alike, missing)])
        for client, own in held.items():
            others = places[client][labels[places[client]] != classes[client]]
            held[client] = np.concatenate([own, self._claim(others, len(places[client]) - len(own))])
        for others_only in (True, False):
            for client, own in held.items():
                if missing := len(places[client]) - len(own):
                    allowed = np.flatnonzero(labels != classes[client]) if others_only else np.arange(len(labels))
                    held[client] = np.concatenate([own, self._claim(allowed, missing)])
        return self._settled(places, held)

    def _claim(self, candidates: IntArray, count: int) -> IntArray:
        """Return the places of up to so many rows among candidates that nobody claims, and claim them."""
        free = candidates[self._free[candidates]]
        claimed: IntArray = self._generator.permutation(free)[:count]
        self._free[claimed] = False
        return claimed

    def _settled(self, places: dict[int, IntArray], held: dict[int, IntArray]) -> IntArray:
        """Return the rows, what skewed clients gave away in the places of what they got from others."""
        rows, skewed = self._partition.rows.copy(), np.zeros(len(self._free), np.bool_)
        for client, own in held.items():
            come = ~np.isin(places[client], own)
            rows[places[client][come]] = self._partition.rows[own[~np.isin(own, places[client])]]
            skewed[places[client]] = True
        emptied, given = np.flatnonzero(~skewed & ~self._free), np.flatnonzero(skewed & self._free)
        rows[emptied] = self._partition.rows[self._generator.permutation(given)]
        return rows
