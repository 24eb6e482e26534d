"""The grid of a table of client settings: how heterogeneous, and how many, the rows of each cell's clients are.

FedCust: a heterogeneity index HI = 1 − (c − 1)/(C − 1) takes as many values as there are classes. The grid takes the
nearest that there is, c = round((1 − HI)(C − 1) + 1), and names the cell by what its clients then have. So two classes
know the indices 0 and 1 only, and values that come to the same are one row of the table.

Of a class sampling (`engine.contracts.class_sampling`) the rows of the grid are parameters, and all clients may hold
all classes; and so it is where the rows of the grid are entropies.

Of a metric of the user's own (`own_metric.py`) they are values of that.

A refined grid has a value between any two, and one half a step beyond each end; all of the coarser one are in it.
Parameters are halved in log space, entropies and values of one's own as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import exp, floor, inf, log
from typing import cast

from fedscout.engine.contracts.class_sampling import ClassSampling, Sampling
from fedscout.engine.contracts.settings_lookup import ENTROPY, HETEROGENEITY, SHARES
from fedscout.experiments.studies.settings_tables.own_metric import OwnMetric

HETEROGENEITIES = (0.2, 0.4, 0.6, 0.8)
QUANTITIES = (100, 200, 400, 600, 800, 1000)
LEVELS = {
    HETEROGENEITY: HETEROGENEITIES,
    ENTROPY: HETEROGENEITIES,
    "gaussian": (0.5, 1.0, 2.0, 4.0),
    "poisson": (0.1, 0.5, 2.0, 8.0),
    "dirichlet": (0.05, 0.2, 1.0, 5.0),
}
"""Rows of the grid where nothing else is said, by the metric of a table."""


@dataclass(frozen=True, order=True)
class Place:
    """Of one cell.

    Attributes:
        num_classes: Classes that each of its clients holds.
        quantity: Training rows that each of its clients holds.
        sampling: From which the classes of its clients come, in place of equal shares of those that they hold; or
            what a metric of the user's own is to give of them.
    """

    num_classes: int
    quantity: int
    sampling: ClassSampling | OwnMetric | None = None

    def heterogeneity(self, num_classes: int) -> float:
        """Return HI where there are so many classes, or the parameter of the sampling, or the metric's value."""
        return index_of(self.num_classes, num_classes) if self.sampling is None else self.sampling.parameter

    @property
    def level(self) -> tuple[int, ClassSampling | OwnMetric | None]:
        """Its row of the grid."""
        return self.num_classes, self.sampling


def index_of(held: int, num_classes: int) -> float:
    """Return HI of who holds so many of the classes, two or more."""
    return 1 - (held - 1) / (num_classes - 1)


def classes_of(heterogeneity: float, num_classes: int) -> int:
    """Return how many classes give the HI that is nearest to one in [0, 1]; of two equally near, more classes."""
    return floor((1 - heterogeneity) * (num_classes - 1) + 1.5)


def grid_of(held: Iterable[int], quantities: Iterable[int]) -> tuple[Place, ...]:
    """Return the full grid: classes from many to few, which is HI from low to high, and quantities from few to many."""
    return tuple(Place(*place) for place in product(sorted({*held}, reverse=True), sorted({*quantities})))


def sampled_grid(
    metric: str,
    parameters: Iterable[float],
    quantities: Iterable[int],
    num_classes: int,
    among: Sequence[float] | None = None,
) -> tuple[Place, ...]:
    """Return the full grid of a class sampling, or a metric of one's own: parameters ascending, quantities likewise.

    Args:
        metric: Of the first axis.
        parameters: Its values.
        quantities: Of the second axis.
        num_classes: There are.
        among: All values of the table, from which clients tell theirs apart; None is `parameters`.
    """
    values = sorted({*parameters})
    samplings: list[ClassSampling | OwnMetric]
    if metric in LEVELS:
        samplings = [ClassSampling(cast(Sampling, metric), value) for value in values]
    else:
        reach = min((high - low for low, high in pairwise(sorted({*(among or values)}))), default=inf) / 2
        samplings = [OwnMetric(metric, value, reach) for value in values]
    return tuple(Place(num_classes, quantity, one) for one, quantity in product(samplings, sorted({*quantities})))


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


def refined_parameters(metric: str, parameters: Iterable[float]) -> tuple[float, ...]:
    """Return the parameters of a refined grid: those, and those between and beyond; of samplings in log space."""
    values = sorted({*parameters})
    if metric in SHARES:
        return tuple(sorted({*values, *_halved(values, 0.0, 1.0)}))
    if metric not in LEVELS:
        return tuple(sorted({*values, *(_halved(values, -inf, inf) if len(values) > 1 else ())}))
    return tuple(sorted({*values, *map(exp, _halved([log(value) for value in values], -inf, inf))}))


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
