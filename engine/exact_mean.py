"""A weighted mean of float32 vectors whose bits do not depend on grouping or order.

Every product weight * value is rounded once to a multiple of a unit and added as a 64-bit integer. Integer addition is
associative, so partial sums of any hosts, in any order, give the same total, which is divided and rounded to float32
once.

The unit of an element is 2^(e - b), where b = 46 - (bits of the largest total weight) and 2^e bounds the magnitude of
the element in the received global model, e >= 0. The sum cannot overflow while no client's element exceeds 2^(16 + e),
that is, unless it grew 2^16-fold in one round, which counts as divergence. The mean is within
2^(e - b - 1) * clients / weight of the exact one: far below half a float32 step, unless a large federation samples a
few clients with hardly any rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.federation import FloatArray, IntArray

GROWTH_BITS = 16


Bits = int | IntArray
"""One number for all elements, or one each."""


def fraction_bits(max_total_weight: int) -> int:
    """Return b for sums of weights up to `max_total_weight` (>= 1)."""
    return 62 - GROWTH_BITS - int(max_total_weight).bit_length()


def exponents(received: FloatArray) -> IntArray:
    """Return e of each element: the smallest integer >= 0 with |received| <= 2^e; shape as `received`, finite."""
    _, found = np.frexp(np.abs(received))
    return np.maximum(found, 0).astype(np.int64)


def representable(vector: npt.NDArray[np.floating], exponent: Bits = 0) -> bool:
    """Whether all values are finite and inside the range of the exact sum."""
    return bool(np.all(np.abs(vector) < np.ldexp(1.0, GROWTH_BITS + exponent)))


def scaled(vector: FloatArray, weight: int, bits: Bits) -> IntArray:
    """Return weight * vector as integers in units of 2^-bits, shape as `vector`; bits are b - e."""
    return np.rint(vector.astype(np.float64) * (float(weight) * np.ldexp(1.0, bits))).astype(np.int64)


def mean(total: IntArray, total_weight: int, bits: Bits) -> FloatArray:
    """Return the float32 mean of a sum of `scaled` vectors."""
    return (total / (float(total_weight) * np.ldexp(1.0, bits))).astype(np.float32)
