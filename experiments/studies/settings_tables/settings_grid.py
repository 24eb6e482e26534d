"""The grid of a table of client settings: how heterogeneous, and how many, the rows of each cell's clients are.

FedCust: a heterogeneity index HI = 1 − (c − 1)/(C − 1) takes as many values as there are classes. The grid takes the
nearest that there is, c = round((1 − HI)(C − 1) + 1), and names the cell by what its clients then have. So two classes
know the indices 0 and 1 only, and values that come to the same are one row of the table.

Of entropy, and of a metric of the user's own (`metric_rows.py`), the rows of the grid are values, and all clients may
hold all classes.

A refined grid has a value between any two, and one half a step beyond each end; all of the coarser one are in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import floor, inf

from fedscout.engine.contracts.settings_lookup import ENTROPY, HETEROGENEITY, METRICS
from fedscout.experiments.studies.settings_tables.metric_rows import MetricRow

HETEROGENEITIES = (0.2, 0.4, 0.6, 0.8)
QUANTITIES = (100, 200, 400, 600, 800, 1000)
LEVELS = {HETEROGENEITY: HETEROGENEITIES, ENTROPY: HETEROGENEITIES}
"""Rows of the grid where nothing else is said, by the metric of a table."""


@dataclass(frozen=True, order=True)
class Place:
    """Of one cell.

    Attributes:
        num_classes: Classes that each of its clients holds.
        quantity: Training rows that each of its clients holds.
        row: What a metric is to give of its clients, in place of equal shares of the classes that they hold.
    """

    num_classes: int
    quantity: int
    row: MetricRow | None = None

    def heterogeneity(self, num_classes: int) -> float:
        """Return HI where there are so many classes, or the metric's value."""
        return index_of(self.num_classes, num_classes) if self.row is None else self.row.value

    @property
    def level(self) -> tuple[int, MetricRow | None]:
        """Its row of the grid."""
        return self.num_classes, self.row


def index_of(held: int, num_classes: int) -> float:
    """Return HI of who holds so many of the classes, two or more."""
    return 1 - (held - 1) / (num_classes - 1)


def classes_of(heterogeneity: float, num_classes: int) -> int:
    """Return how many classes give the HI that is nearest to one in [0, 1]; of two equally near, more classes."""
    return floor((1 - heterogeneity) * (num_classes - 1) + 1.5)


def grid_of(held: Iterable[int], quantities: Iterable[int]) -> tuple[Place, ...]:
    """Return the full grid: classes from many to few, which is HI from low to high, and quantities from few to many."""
    return tuple(Place(*place) for place in product(sorted({*held}, reverse=True), sorted({*quantities})))


def metric_grid(
    metric: str,
    values: Iterable[float],
    quantities: Iterable[int],
    num_classes: int,
    among: Sequence[float] | None = None,
) -> tuple[Place, ...]:
    """Return the full grid of entropy, or of a metric of one's own: values ascending, quantities likewise.

    Args:
        metric: Of the first axis.
        values: Of it.
        quantities: Of the second axis.
        num_classes: There are.
        among: All values of the table, from which clients tell theirs apart; None is `values`.
    """
    wanted = sorted({*values})
    reach = inf
    if metric not in METRICS:
        reach = min((high - low for low, high in pairwise(sorted({*(among or wanted)}))), default=inf) / 2
    rows = [MetricRow(metric, value, reach) for value in wanted]
    return tuple(Place(num_classes, quantity, row) for row, quantity in product(rows, sorted({*quantities})))


def scaled(quantities: Sequence[int], most: int) -> tuple[int, ...]:
    """Return quantities in the same proportions of which the largest is `most`, if one is larger; none below 1."""
    largest = max(quantities)
    if largest <= most:
        return tuple(quantities)
    return tuple(max(1, floor(quantity * most / largest + 0.5)) for quantity in quantities)


def warm_started_by(cells: Sequence[Place], known: Sequence[Place] = ()) -> dict[Place, tuple[Place, ...]]:
    """Return for each cell those whose best settings it tries first: its neighbours in the grid that come before it.

    Neighbours are next to it in its row or column. What is known comes before all others, and these in their order;
    so nothing depends on which cell happens to be done first.

    Args:
        cells: To be tuned, in order.
        known: Tuned before.
    """
    order = {place: number for number, place in enumerate([*known, *cells])}
    levels = sorted({place.level for place in order})
    quantities = sorted({place.quantity for place in order})

    def around(place: Place) -> list[Place]:
        row, column = levels.index(place.level), quantities.index(place.quantity)
        steps = ((row + 1, column), (row - 1, column), (row, column - 1), (row, column + 1))
        inside = [(r, c) for r, c in steps if 0 <= r < len(levels) and 0 <= c < len(quantities)]
        return [Place(levels[r][0], quantities[c], levels[r][1]) for r, c in inside]

    return {
        place: tuple(near for near in around(place) if order.get(near, len(order)) < order[place]) for place in cells
    }


def refined_classes(held: Iterable[int], num_classes: int) -> tuple[int, ...]:
    """Return the classes held in a refined grid: those, and those of the indices between and beyond, in [0, 1]."""
    indices = _halved(sorted(index_of(count, num_classes) for count in {*held}), 0.0, 1.0)
    return tuple(sorted({*held, *(classes_of(index, num_classes) for index in indices)}))


def refined_values(metric: str, values: Iterable[float]) -> tuple[float, ...]:
    """Return the values of a refined grid: those, and those between and beyond; none beyond a single one's own."""
    known = sorted({*values})
    if metric in METRICS:
        return tuple(sorted({*known, *_halved(known, 0.0, 1.0)}))
    return tuple(sorted({*known, *(_halved(known, -inf, inf) if len(known) > 1 else ())}))


def refined_quantities(quantities: Iterable[int]) -> tuple[int, ...]:
    """Return the quantities of a refined grid: those, and those between and beyond; none below half the smallest."""
    values = sorted({*quantities})
    halved = (max(value, values[0] / 2) for value in _halved(values, 0.0, 2.0 * values[-1]))
    return tuple(sorted({*values, *(floor(value + 0.5) for value in halved)}))


def _halved(values: Sequence[float], lowest: float, highest: float) -> list[float]:
    """Return what lies half-way between neighbours, and half a step beyond the ends as far as the bounds allow.

    A single value has the bounds as its neighbours.
    """
    steps = [high - low for low, high in pairwise(values)]
    first, last = (steps[0], steps[-1]) if steps else (values[0] - lowest, highest - values[0])
    between = [low + step / 2 for low, step in zip(values[:-1], steps, strict=True)]
    return [max(lowest, values[0] - first / 2), *between, min(highest, values[-1] + last / 2)]
