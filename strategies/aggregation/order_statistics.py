"""Median, trimmed mean and mean around the median of every coordinate of many models.

NumPy takes statistics along the first axis column by column, each gathered from rows that lie far apart. Here blocks of
coordinates are transposed first, so that a coordinate's values lie together and stay in the cache. Blocks do not depend
on each other and run in a few threads: NumPy sorts and partitions outside Python's global lock.

float32 sums depend on the order of their terms, and Flower's means sum in the order in which a partition leaves the
values. So the same partitions are made and the same sums taken. Other types than float32 go to NumPy as they are.

NaN and infinite values are followed as NumPy follows them, without its warnings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK = 1024
"""Coordinates in a block: with a hundred clients 400 KB, which a core's own cache holds."""

SLAB = 64 * BLOCK
"""Coordinates that are gathered from all clients at a time: of a hundred clients 26 MB."""

NUM_THREADS = min(4, os.cpu_count() or 1)

ALL_BUT_SIGN = np.int32(0x7FFFFFFF)

OfBlock = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]
"""From a copy of some coordinates' values, shape `(coordinates, clients)`, to one value each."""

Values = Sequence[npt.NDArray[Any]] | npt.NDArray[Any]
"""One array a client, all of a shape."""


@np.errstate(over="ignore", invalid="ignore")
def median(values: Values) -> npt.NDArray[Any]:
    """Return `np.median(values, axis=0)`; a coordinate with a NaN gives NaN."""
    if not _are_single(values):
        return np.asarray(np.median(np.asarray(values), axis=0))
    return _in_blocks(values, _medians)


@np.errstate(over="ignore", invalid="ignore")
def trimmed_mean(values: Values, num_trimmed: int) -> npt.NDArray[Any]:
    """Return the mean over clients without the smallest and the largest values of every coordinate.

    Args:
        values: One array a client.
        num_trimmed: Values cut off at either end, less than half of the clients.
    """
    first, last = num_trimmed, len(values) - num_trimmed - 1
    if not _are_single(values):
        return np.asarray(np.mean(np.partition(values, (first, last), axis=0)[first : last + 1], axis=0))
    return _in_blocks(values, lambda block: _means(_partitioned(block, first, last)[:, first : last + 1]))


@np.errstate(over="ignore", invalid="ignore")
def mean_around_median(values: Values, num_kept: int) -> npt.NDArray[Any]:
    """Return the mean over clients of those values that lie nearest to the median of their coordinate.

    Args:
        values: One array a client.
        num_kept: Values in the mean, in `[1, clients]`.
    """
    if not _are_single(values):
        matrix = np.asarray(values)
        distances = np.abs(matrix - np.median(matrix, axis=0))
        nearest = np.argpartition(distances, num_kept - 1, axis=0)[:num_kept]
        return np.asarray(np.mean(np.take_along_axis(matrix, nearest, axis=0), axis=0))

    def of_block(block: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        distances = np.abs(block - _medians(block.copy())[:, None])
        nearest = np.argpartition(distances, num_kept - 1, axis=1)[:, :num_kept]
        nearest += (np.arange(len(block)) * block.shape[1])[:, None]  # places in the block as one vector
        return _means(block.reshape(-1).take(nearest))

    return _in_blocks(values, of_block)


def _are_single(values: Values) -> bool:
    return all(value.dtype == np.float32 for value in values)


def _in_blocks(values: Values, of_block: OfBlock) -> npt.NDArray[np.float32]:
    """Return a statistic of every coordinate; besides the values and the result, memory holds one slab of them."""
    rows = [value.reshape(-1) for value in values]
    found = np.empty(rows[0].size, np.float32)

    @np.errstate(over="ignore", invalid="ignore")  # each thread has its own
    def one(slab: npt.NDArray[np.float32], into: npt.NDArray[np.float32], part: slice) -> None:
        into[part] = of_block(np.array(slab[:, part].T, order="C"))

    with ThreadPoolExecutor(max(1, min(NUM_THREADS, -(-found.size // BLOCK)))) as pool:
        for part in _parts(found.size, SLAB):
            slab = np.stack([row[part] for row in rows])
            list(pool.map(partial(one, slab, found[part]), _parts(slab.shape[1], BLOCK)))
    return found.reshape(values[0].shape)


def _parts(size: int, width: int) -> Iterator[slice]:
    """Yield parts of so many coordinates, of which NumPy sums none in another order than all: none has but one."""
    for start in range(0, size, width):
        yield slice(min(start, max(0, size - 2)), min(start + width, size))


def _means(chosen: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the mean of every row, summed one value after the other, as NumPy does along the first axis."""
    means: npt.NDArray[np.float32] = np.mean(np.ascontiguousarray(chosen.T), axis=0)
    return means


def _medians(block: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the median of every row, and sort the rows in place."""
    num_values = block.shape[1]
    block.sort(axis=1)
    lower, upper, largest = block[:, (num_values - 1) // 2], block[:, num_values // 2], block[:, -1]
    medians: npt.NDArray[np.float32] = upper.copy() if num_values % 2 else (lower + upper) / np.float32(2)
    np.copyto(medians, largest, where=np.isnan(largest))  # NaN sorts last
    return medians


def _partitioned(block: npt.NDArray[np.float32], first: int, last: int) -> npt.NDArray[np.float32]:
    """Return `np.partition(block, (first, last), axis=1)`; the block may be overwritten.

    The integers with the bits of floats, those of negative numbers mirrored, have the order of the floats, and NumPy
    compares them in less time. They know no NaN, and the largest of floats is found by another algorithm.
    """
    if first == 0 or np.isnan(block).any():
        return np.partition(block, (first, last), axis=1)
    block += np.float32(0)  # −0 becomes 0: they are equal as floats
    keys = block.view(np.int32)
    keys ^= (keys >> 31) & ALL_BUT_SIGN
    keys.partition((first, last), axis=1)
    keys ^= (keys >> 31) & ALL_BUT_SIGN
    return block
