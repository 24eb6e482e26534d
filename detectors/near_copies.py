"""Near copies: rows whose nearest neighbours are much closer than expected for independent rows.

Rows of one subject, or neighbours in a time series, form small clusters. Let r_1 ≤ r_2 ≤ … be the distances of a row
to the others, and q a number below 1. A row **has near copies** if r_1 = 0, or if its distances have a gap: some r_k
with k ≤ K is less than q r_(k+1), so that its k nearest rows form a cluster. The next distance, r_(k+1), is the local
scale around this row; no global scale, density or number of clients enters.

Independent rows have gaps by chance, more often in fewer dimensions: if the density of rows is locally uniform in m
dimensions, (r_k / r_(k+1))^m is distributed as the maximum of k uniform numbers, so r_k is below q r_(k+1) with
probability q^(km), independently for all k. Hence the expected share of independent rows with a gap is

    1 − Π_(k=1…K) (1 − q^(km)).

The dimension is estimated from more distant neighbours, beyond clusters of up to K rows, by E ln(r_2K / r_K) =
(1/K + … + 1/(2K−1)) / m (E. Levina and P. J. Bickel. Maximum likelihood estimation of intrinsic dimension. NIPS 17,
2004, with the inverses averaged). K is 16, or a quarter of the rows to which distances are computed if that is less. A
small q detects clusters in few dimensions, a large one in many, so several are tried and the largest excess counts;
its threshold, `SURPLUS`, is many times what data sets of independent rows reach.

Rows of few categories, or of integers, coincide and have gaps although they are independent. So the count is repeated
after each column is shuffled among the rows, which keeps the marginal distributions: independent rows are expected to
have near copies at least as often as shuffled ones. Mutually exclusive binary columns, such as a one-hot encoding, are
shuffled together. Dependent categories coincide more often than that; if in every column the distinct values are fewer
than half of the distinct rows, the two halves of the columns are also shuffled, each as a whole, and the larger count
is expected. Shuffling a single column changes nothing, so near copies cannot be detected in rows of one column.

Clients count near copies among their own rows, for up to `NUM_EXAMINED` of them, selected by a hash of their content so
that the order of rows is not revealed; only the sums of `NearCopies` are released.

Limitations: not detected are groups of more than K rows that are not equal, groups whose rows are hardly closer than
others, and copies in tables of few categories.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from fedscout.detectors.statistics import Values, flat_features
from fedscout.engine.arrays import IntArray
from fedscout.engine.data.client import Answer, Arrays, QueryInputs, RowAggregate

NUM_EXAMINED: Final = 100

LEAPS: Final = np.array([0.5, 0.6, 0.7, 0.8])
"""q."""

NO_COPIES: Final = np.zeros(3 + 2 * len(LEAPS))
SURPLUS: Final = 0.25
MOST_COPIES: Final = 16
FEWEST_ROWS: Final = 16
"""With fewer rows, distances are not informative."""

BLOCK_ROWS: Final = 4096

Number = TypeVar("Number", bound=np.generic)
Blocks = Callable[[], Iterable[Values]]
"""Gives the rows anew, block by block, each of shape `(rows, d)`."""


@dataclass(frozen=True)
class NearCopies:
    """Near-copy counts, additive over clients.

    Attributes:
        sums: The number of examined rows; Σ ln(r_2K / r_K) over those with r_K > 0; Σ (1/K + … + 1/(2K−1)) over the
            same rows; the rows with near copies for each of `LEAPS`, and after columns are shuffled. Shape
            `(3 + 2 leaps,)`.
    """

    sums: Values

    @classmethod
    def pooled(cls, answers: Iterable[Arrays]) -> NearCopies:
        """Return the sum of the clients' counts."""
        return cls(np.sum([NO_COPIES, *(answer["sums"].astype(np.float64) for answer in answers)], axis=0))

    @property
    def num_rows(self) -> float:
        """Number of examined rows."""
        return float(self.sums[0])

    @property
    def _by_leap(self) -> Values:
        """Shares of the rows with near copies, of the rows as they are and after shuffling, shape `(2, leaps)`."""
        return np.asarray(self.sums[3:].reshape(2, -1) / max(self.num_rows, 1.0))

    @property
    def shares(self) -> Values:
        """Shares of the rows with near copies, in `[0, 1]`; 0 without rows."""
        return np.asarray(self._by_leap[0])

    @property
    def expected(self) -> Values:
        """Expected shares under independence, in `[0, 1]`: by the dimension, or of shuffled rows if that is more.

        1 if the dimension cannot be estimated.
        """
        log_ratios, harmonics = self.sums[1:3]
        if log_ratios <= 0:
            return np.ones(len(LEAPS))
        powers = harmonics / log_ratios * np.arange(1, MOST_COPIES + 1)
        uniform = 1 - (1 - LEAPS[:, None] ** powers).prod(axis=1)
        return np.asarray(np.maximum(uniform, self._by_leap[1]))

    @property
    def clearest(self) -> int:
        """Position of the leap with the largest excess."""
        return int(np.argmax(self.shares - self.expected))

    @property
    def too_many(self) -> bool:
        """Whether the share of rows with near copies exceeds the expected one by at least `SURPLUS`."""
        return bool((self.shares - self.expected).max() >= SURPLUS)

    def text(self) -> str:
        """Return a description of the observed and the expected share."""
        share, expected = float(self.shares[self.clearest]), float(self.expected[self.clearest])
        return (
            f"{share:.0%} of {self.num_rows:.0f} rows (the nearest row is at less than {LEAPS[self.clearest]:g} times "
            f"the distance of the next one; {expected:.0%} are expected if rows are independent)"
        )


def near_copies(inputs: QueryInputs) -> Answer:
    """Client half: return `sums` of `NearCopies` over the client's own rows, shape `(3 + 2 leaps,)`."""
    data = inputs.data
    digests = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for part, _ in data.chunks() for row in part]
    order = np.array(sorted(range(len(data)), key=digests.__getitem__), dtype=np.int64)
    counts = _count(
        flat_features(data.take(order[:NUM_EXAMINED])[0]),
        lambda: (flat_features(data.take(part)[0]) for part in _split_blocks(order)),
        len(data),
        among=True,
    )

    return {"sums": RowAggregate(counts.sums, int(counts.num_rows))}


def count_near_copies(rows: Values, others: Values, among: bool = False) -> NearCopies:
    """Count the rows that have near copies among other rows.

    Args:
        rows: Shape `(num_rows, d)`.
        others: Shape `(num_others, d)`.
        among: Whether `rows` are the first of `others`, at most `BLOCK_ROWS`, so that each row is not its own copy.
    """
    return _count(rows, lambda: _split_blocks(others), len(others), among)


def _split_blocks(values: npt.NDArray[Number]) -> Iterator[npt.NDArray[Number]]:
    return (values[start : start + BLOCK_ROWS] for start in range(0, len(values), BLOCK_ROWS))


def _count(rows: Values, blocks: Blocks, num_others: int, among: bool) -> NearCopies:
    """Count near copies of the original rows and of rows with shuffled columns."""
    num_others -= among
    if len(rows) == 0 or num_others < FEWEST_ROWS or rows.shape[1] == 0:
        return NearCopies(NO_COPIES)
    limit = min(MOST_COPIES, num_others // 4)
    near = _nearest(rows, blocks(), among, 2 * limit)
    separate = near[:, limit - 1] > 0
    ratios = np.log(near[separate, 2 * limit - 1] / near[separate, limit - 1])
    harmonic = float((1 / np.arange(limit, 2 * limit)).sum())
    columns = columns_together(rows)
    halves = 2 * columns // (columns[-1] + 1)
    shuffled = np.zeros(len(LEAPS))
    for sets in (columns, halves) if all_categories(rows) else (columns,):
        mixed = next(_shuffled(blocks() if among else [rows], sets))[: len(rows)]
        copies = _num_with_copies(_nearest(mixed, _shuffled(blocks(), sets), among, limit + 1), limit)
        shuffled = np.maximum(shuffled, copies)
    sums = [float(len(rows)), float(ratios.sum()), harmonic * int(separate.sum())]
    return NearCopies(np.concatenate([sums, _num_with_copies(near, limit), shuffled]))


def all_categories(rows: Values) -> bool:
    """Return whether in every column the distinct values are fewer than half of the distinct rows."""
    distinct = np.unique(rows, axis=0)
    return all(2 * len(np.unique(column)) < len(distinct) for column in distinct.T)


def _num_with_copies(near: Values, most: int) -> Values:
    """Return how many rows have near copies, for each of `LEAPS`, from their distances, `(rows, more than most)`."""
    leaps = (near[:, :most, None] < LEAPS * near[:, 1 : most + 1, None]).any(axis=1)
    return np.asarray((leaps | (near[:, :1] == 0)).sum(axis=0), np.float64)


def columns_together(rows: Values) -> IntArray:
    """Return the set of each column, shape `(d,)`.

    Adjacent binary columns are one set if each row has the higher value in at most one of them.
    """
    low, high = rows.min(axis=0), rows.max(axis=0)
    is_high = (rows == high) & (high > low)
    binary = (is_high | (rows == low)).all(axis=0)
    sets, taken = np.zeros(rows.shape[1], np.int64), is_high[:, 0]
    for column in range(1, rows.shape[1]):
        joins = binary[column] and binary[column - 1] and not (taken & is_high[:, column]).any()
        sets[column] = sets[column - 1] + (not joins)
        taken = is_high[:, column] | (taken if joins else False)
    return sets


def _shuffled(blocks: Iterable[Values], sets: IntArray) -> Iterator[Values]:
    """Yield blocks whose column sets are shuffled among the block's rows, with a fixed seed."""
    generator = np.random.default_rng(0)
    for block in blocks:
        places = generator.permuted(np.tile(np.arange(len(block)), (int(sets[-1]) + 1, 1)), axis=1)
        yield np.take_along_axis(block, places[sets].T, axis=0)


def _nearest(rows: Values, blocks: Iterable[Values], among: bool, count: int) -> Values:
    """Return the smallest distances of each row, ascending, shape `(num_rows, count)`."""
    centre = rows.mean(axis=0)
    rows = rows - centre
    lengths = (rows**2).sum(axis=1)[:, None]
    near = np.full((len(rows), count), np.inf)
    for position, others in enumerate(blocks):
        block = others - centre
        both = lengths + (block**2).sum(axis=1)
        squares = both - 2 * rows @ block.T
        squares[squares < 1e-12 * both] = 0.0  # what rounding leaves of equal rows
        if among and position == 0:
            np.fill_diagonal(squares, np.inf)
        near = np.partition(np.hstack([near, squares]), count - 1, axis=1)[:, :count]
    return np.asarray(np.sqrt(np.sort(near, axis=1)))
