"""A weighted mean of float32 vectors whose bits do not depend on grouping or order.

Every product weight * value is rounded once to a multiple of 2^-b and added as a 64-bit integer. Integer addition is
associative, so partial sums of any hosts, in any order, give the same total, which is divided and rounded to float32
once. With b = 46 - (bits of the total weight) the sum cannot overflow while |value| < 2^16, and the mean is within
2^-(b+1) * clients / weight of the exact one: below half a float32 step for values of usual size.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.federation import FloatArray, IntArray

MAGNITUDE_LIMIT = 2.0**16


def fraction_bits(max_total_weight: int) -> int:
    """Return b for sums of weights up to `max_total_weight` (>= 1)."""
    return 46 - int(max_total_weight).bit_length()


def representable(vector: npt.NDArray[np.floating]) -> bool:
    """Whether all values are finite and inside the range of the exact sum."""
    return bool(np.all(np.abs(vector) < MAGNITUDE_LIMIT))


def scaled(vector: FloatArray, weight: int, bits: int) -> IntArray:
    """Return weight * vector as integers in units of 2^-bits, shape as `vector`."""
    return np.rint(vector.astype(np.float64) * (float(weight) * 2.0**bits)).astype(np.int64)


def mean(total: IntArray, total_weight: int, bits: int) -> FloatArray:
    """Return the float32 mean of a sum of `scaled` vectors."""
    return (total / (float(total_weight) * 2.0**bits)).astype(np.float32)
