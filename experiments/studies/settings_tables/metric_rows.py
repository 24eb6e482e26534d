"""Clients of a cell whose row of the table is a value of a metric: entropy, or a function of the user's own.

Class counts are tried: shares of a Dirichlet distribution over some of the classes, how many and with which
concentration being drawn, and a client's rows by them. Of those that the proxy rows can fill the nearest to the cell's
value are kept. Of a user's own metric, of which nothing is known, they must lie nearer than half-way to the next row
of the grid: a client of them finds the cell. Where none is found, nothing can be tuned there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import inf

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.settings_lookup import metric_named
from fedscout.engine.errors import ConfigurationError, first_line
from fedscout.engine.seeds import stream

DoubleArray = npt.NDArray[np.float64]

TRIES, KEPT = 4000, 20

CONCENTRATIONS = 0.05, 100.0
"""Between nearly all rows in one class, and nearly as many in each."""


@dataclass(frozen=True, order=True)
class MetricRow:
    """A row of a grid.

    Attributes:
        metric: `entropy` or `package.module:function`.
        value: Of the metric.
        reach: How far from that a client's may lie, exclusive.
    """

    metric: str
    value: float
    reach: float = field(default=inf, compare=False)

    def counts(self, quantity: int, class_rows: IntArray) -> IntArray:
        """Return rows of each class of clients of the cell, the nearest first, shape `(found, classes)`.

        Args:
            quantity: Rows of a client.
            class_rows: What there is of each class, shape `(classes,)`.
        """
        counts, values = _tried(self.metric, quantity, tuple(class_rows.tolist()))
        distances = np.abs(values - self.value)
        nearest = np.argsort(distances, kind="stable")[:KEPT]
        return np.asarray(counts[nearest[distances[nearest] < self.reach]])

    def fault(self, quantity: int, class_rows: IntArray) -> str | None:
        """Return why no client of the cell can be drawn; None if one can."""
        if len(self.counts(quantity, class_rows)):
            return None
        _, values = _tried(self.metric, quantity, tuple(class_rows.tolist()))
        given = f"{values.min():.3g} to {values.max():.3g}" if len(values) else "no client that the proxy rows fill"
        return f"needs clients within {self.reach:.3g} of that value, got {given} in {TRIES:,} tries"


@lru_cache(maxsize=64)
def _tried(metric: str, quantity: int, class_rows: tuple[int, ...]) -> tuple[IntArray, DoubleArray]:
    """Return class counts that rows suffice for, shape `(found, classes)`, and what the metric gives of them."""
    generator, num_classes = stream(0, "metric-rows", quantity), len(class_rows)
    num_held = generator.integers(1, num_classes + 1, TRIES)
    ranks = generator.permuted(np.tile(np.arange(num_classes), (TRIES, 1)), axis=1)
    low, high = np.log(CONCENTRATIONS).tolist()
    concentrations = np.exp(generator.uniform(low, high, TRIES))
    weights = generator.gamma(np.tile(concentrations[:, None], num_classes)) + 1e-9  # some may be 0 to rounding
    weights[ranks >= num_held[:, None]] = 0.0
    counts = generator.multinomial(quantity, weights / weights.sum(axis=1, keepdims=True))
    counts = counts[(counts <= np.array(class_rows)).all(axis=1)]
    measure = metric_named(metric)
    try:
        values = np.array([float(measure(row, quantity)) for row in counts], np.float64)
    except Exception as error:  # user code may raise anything
        raise ConfigurationError(
            f"{metric} must give a number of (class counts, rows), got {type(error).__name__}: {first_line(error)}"
        ) from error
    known = np.isfinite(values)
    return counts[known], values[known]
