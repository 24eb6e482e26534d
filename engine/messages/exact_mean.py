"""A weighted mean of float32 vectors whose bits do not depend on grouping or order.

Every product weight * value, with a weight >= 0, is rounded once to a multiple of a unit and added as a 64-bit integer.
Integer addition is associative, so partial sums of any hosts, in any order and grouping, give the same total, which is
divided and rounded to float32 once. `with_one_sum` adds up the sums in the answers of several hosts.

The unit of an element is 2^(e - b), where b = 46 - (bits of the largest total weight) and 2^e bounds the magnitude of
the element in the received global model, e >= 0. The sum cannot overflow while no client's element exceeds 2^(16 + e),
that is, unless it grew 2^16-fold in one round, which counts as divergence. The mean is within
2^(e - b - 1) * clients / weight of the exact one: far below half a float32 step, unless a large federation samples a
few clients with very few rows.

Hosts on many nodes add large sums among themselves in groups of √n (`group_size`), so that the driver holds √n sums in
place of n: in a simulation of the messages a round of 32 nodes with a model of a megabyte takes a third of the time. On
one node, where sums need not travel, 16 hosts took a tenth longer in groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Self

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.messages.calls import TrainResults

GROWTH_BITS = 16
EXACT_BITS = 53
"""Whole numbers below 2^53 are exact in float64, and so are their sums."""

CHUNK_ELEMENTS = 2**15
"""Elements of a matrix that are summed at a time, in cache."""


def fraction_bits(max_total_weight: int) -> int:
    """Return b for sums of weights up to `max_total_weight` (>= 1)."""
    return 62 - GROWTH_BITS - int(max_total_weight).bit_length()


def exponents(received: FloatArray) -> IntArray:
    """Return e of each element: the smallest integer >= 0 with |received| < 2^e; shape as `received`, finite."""
    _, powers = np.frexp(np.abs(received))
    return np.maximum(powers, 0).astype(np.int64)


@dataclass(frozen=True)
class ExactScale:
    """The units of one sum; every participant derives the same units from the received model.

    Few elements of a trained model reach 1, so only those are stored individually.

    Attributes:
        per_unit: 2^b, which equals 2^(b - e) for every element that is not `raised`.
        raised: Elements with e > 0, ascending.
        per_raised: 2^(b - e) of each raised element, float64.
        limits: 2^(16 + e) of each raised element, beyond which it can't enter the sum, float32.
    """

    per_unit: float
    raised: IntArray
    per_raised: npt.NDArray[np.float64]
    limits: FloatArray

    @classmethod
    def of(cls, received: FloatArray | None, max_total_weight: int) -> Self:
        """Return the scale of a round.

        Args:
            received: The global model that was sent to the clients, or the auxiliary vector of the same name; finite,
                shape `(params,)`. None means zeros.
            max_total_weight: Upper bound of any sum of the federation's weights, >= 1.
        """
        received = np.zeros(1, np.float32) if received is None else received
        raised = np.flatnonzero((received >= 1) | (received <= -1))
        exponent = exponents(received[raised])
        with np.errstate(over="ignore"):  # a limit beyond float32 is none
            limits = np.ldexp(1.0, GROWTH_BITS + exponent).astype(np.float32)
        bits = fraction_bits(max_total_weight)
        return cls(float(np.ldexp(1.0, bits)), raised, np.ldexp(1.0, bits - exponent), limits)

    def holds(self, vectors: FloatArray) -> npt.NDArray[np.bool_]:
        """Return for each row whether all its values are finite and within the range of the sum.

        Args:
            vectors: Shape `(clients, params)`.
        """
        limit = np.float32(2.0**GROWTH_BITS)
        inside = np.asarray((vectors.max(axis=1) < limit) & (vectors.min(axis=1) > -limit))  # NaN compares as outside
        if len(self.raised) and not inside.all():
            limits = np.full(vectors.shape[1], limit)
            limits[self.raised] = self.limits
            inside[~inside] = (np.abs(vectors[~inside]) < limits).all(axis=1)
        return inside

    def total(self, vectors: FloatArray, weights: npt.ArrayLike) -> IntArray:
        """Return the sum of weight * vector over clients in integer units, each product rounded once.

        Args:
            vectors: Rows within the range of the scale, shape `(clients, params)`.
            weights: One per row.
        """
        total = np.zeros(vectors.shape[1], np.int64)
        self.add(total, vectors, weights)
        return total

    def add(self, total: IntArray, vectors: FloatArray, weights: npt.ArrayLike) -> None:
        """Add the sum of weight * vector over clients to a total of the same scale, in place."""
        factors = np.asarray(weights, dtype=np.float64)[:, None]
        raised = total[self.raised]
        raised += _units(vectors[:, self.raised], factors * self.per_raised)
        width = max(1, CHUNK_ELEMENTS // max(1, len(vectors)))
        with np.errstate(invalid="ignore"):  # raised elements can be too large for these units
            for start in range(0, len(total), width):
                part = slice(start, start + width)
                total[part] += _units(vectors[:, part], factors * self.per_unit)
        total[self.raised] = raised

    def mean(self, total: IntArray, total_weight: float) -> FloatArray:
        """Return the float32 mean for a total."""
        mean = (total / (self.per_unit * total_weight)).astype(np.float32)
        mean[self.raised] = total[self.raised] / (self.per_raised * total_weight)
        return mean


def _units(values: FloatArray, factors: npt.NDArray[np.float64]) -> IntArray:
    """Return the sums of rounded products over rows.

    Args:
        values: Shape `(clients, elements)`.
        factors: Weights in units; shape `(clients, 1)`, or that of `values`.
    """
    # exact until it is rounded: 24 bits of the value times at most 29 of a whole weight; a power of two only shifts
    units = values.astype(np.float64)
    units *= factors
    np.rint(units, out=units)
    exact = len(units) == 1 or max(units.max(initial=0), -units.min(initial=0)) * len(units) < 2.0**EXACT_BITS
    total: IntArray = units.sum(axis=0).astype(np.int64) if exact else units.astype(np.int64).sum(axis=0)
    return total


FROM_NODES = 32
FROM_BYTES = 2**20
"""Hosts add their sums in groups from this number of nodes and this size of a sum on."""

Answer = TrainResults | list[TrainResults]
"""Result of a call; with a time limit it may be in several parts."""


def group_size(num_hosts: int, num_nodes: int, sum_bytes: int) -> int:
    """Return how many hosts add their sums before these are sent to the driver; 1 if sums are sent directly."""
    return isqrt(num_hosts) if num_nodes >= FROM_NODES and sum_bytes >= FROM_BYTES else 1


def with_one_sum(answers: Sequence[Answer]) -> list[Answer]:
    """Return the same answers; one of them holds the sum of all, and the others are marked with `in_another_sum`.

    Args:
        answers: Answers of merged calls; modified.
    """
    parts = [part for answer in answers for part in (answer if isinstance(answer, list) else [answer])]
    first, *others = [part for part in parts if part.total is not None] or [TrainResults()]
    if others:
        first.total = np.require(first.total, requirements="W")
        sums = {name: np.require(total, requirements="W") for name, total in first.auxiliary_totals.items()}
        for part in others:
            assert part.total is not None
            first.total += part.total
            for name, total in part.auxiliary_totals.items():
                if name in sums:
                    sums[name] += total
                else:
                    sums[name] = total.copy()
            part.total, part.auxiliary_totals, part.in_another_sum = None, {}, True
        first.auxiliary_totals = sums
    return [*answers]


def added_to(before: Answer, answer: Answer) -> list[TrainResults]:
    """Return the parts of two answers, the earlier one's first, with one sum for both; both are modified."""
    with_one_sum([answer, before])
    return [part for parts in (before, answer) for part in (parts if isinstance(parts, list) else [parts])]
