"""Near copies: rows whose nearest neighbours are much closer than independent rows could be.

Rows of one subject, or neighbours in a series, lie together in little heaps. Let r_1 ≤ r_2 ≤ … be the distances of a
row to the others, and q a number below 1. A row **has near copies** if r_1 = 0, or if its distances leap: some r_k with
k ≤ K is less than q r_(k+1), so that its k nearest rows lie by themselves. The next one, r_(k+1), is what is typical
around this row; no scale, no density and no number of clients enters.

Independent rows leap by chance, too, and the more often the fewer dimensions they fill: where the density of rows is
locally even in m dimensions, (r_k / r_(k+1))^m has the distribution of the largest of k uniform numbers, so that r_k is
below q r_(k+1) with the probability q^(km), independently for all k. Hence of independent rows the share

    1 − Π_(k=1…K) (1 − q^(km))

leaps. The dimension is estimated farther out, where heaps of up to K rows have ended, from E ln(r_2K / r_K) =
(1/K + … + 1/(2K−1)) / m (E. Levina and P. J. Bickel. Maximum likelihood estimation of intrinsic dimension. NIPS 17,
2004, with the inverses averaged). K is 16, or a quarter of the rows to which distances are taken if that is less. A
small q tells heaps in few dimensions, a large one in many, so several are tried and the largest surplus counts; the
limit on it, `SURPLUS`, is many times what data sets of independent rows reach.

Rows of few categories, or of whole numbers, coincide and leap though they are independent. So the same is counted once
more after each column was shuffled among the rows by itself, which leaves every column as it is and takes rows apart:
independent rows are expected to have near copies at least as often as shuffled ones. Columns of two values that exclude
each other, as those of one category, are shuffled together. Categories that depend on each other coincide more often
than that; where no column has a value of its own in half of the rows that differ, the two halves of the columns are
also shuffled, each as a whole, and the larger count is expected. Rows of one column are the same rows afterwards, and
have no near copies that could be told.

Clients count near copies among their own rows, of up to `LOOKED_AT` of them, drawn by what they hold, so that the order
of rows is not told; only the sums of `NearCopies` leave them.

What this can't see: groups of more than K rows whose rows are not equal, and groups whose rows are little closer than
others are, and copies in tables of few categories.
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

NEAR_COPIES: Final = "near_copies"
LOOKED_AT: Final = 100

LEAPS: Final = np.array([0.5, 0.6, 0.7, 0.8])
"""q."""

SURPLUS: Final = 0.25
MOST_COPIES: Final = 16
FEWEST_ROWS: Final = 16
"""Distances to fewer rows than these say nothing."""

BLOCK_ROWS: Final = 4096

Number = TypeVar("Number", bound=np.generic)
Blocks = Callable[[], Iterable[Values]]
"""Gives the rows anew, block by block, each of shape `(rows, d)`."""


@dataclass(frozen=True)
class NearCopies:
    """What was counted; adds up over clients.

    Attributes:
        num_rows: Rows that were looked at.
        log_ratios: Σ ln(r_2K / r_K) over the rows where r_K > 0.
        harmonics: Σ (1/K + … + 1/(2K−1)) over the same rows.
        num_with_copies: How many have near copies, for each of `LEAPS`, shape `(leaps,)`.
        num_shuffled: How many would after columns were shuffled, likewise.
    """

    num_rows: float
    log_ratios: float
    harmonics: float
    num_with_copies: Values
    num_shuffled: Values

    @classmethod
    def read(cls, sums: Values) -> NearCopies:
        """Return it from its numbers in their order, shape `(3 + 2 leaps,)`."""
        num_rows, log_ratios, harmonics = sums[:3].tolist()
        return cls(num_rows, log_ratios, harmonics, *np.split(sums[3:], 2))

    @property
    def sums(self) -> Values:
        """The numbers that `read` takes."""
        numbers = [self.num_rows, self.log_ratios, self.harmonics]
        return np.concatenate([numbers, self.num_with_copies, self.num_shuffled])

    @classmethod
    def pooled(cls, answers: Iterable[Arrays]) -> NearCopies:
        """Return what clients have counted together."""
        told = [answer["sums"].astype(np.float64) for answer in answers]
        return cls.read(np.sum([np.zeros(3 + 2 * len(LEAPS)), *told], axis=0))

    @property
    def shares(self) -> Values:
        """Shares of the rows that have near copies, in `[0, 1]`; 0 without rows."""
        return self.num_with_copies / max(self.num_rows, 1.0)

    @property
    def expected(self) -> Values:
        """Shares of independent rows that would, in `[0, 1]`: by their dimension, or of shuffled rows if that is more.

        It is 1 where the dimension is not known.
        """
        if self.log_ratios <= 0:
            return np.ones(len(LEAPS))
        powers = self.harmonics / self.log_ratios * np.arange(1, MOST_COPIES + 1)
        even = 1 - (1 - LEAPS[:, None] ** powers).prod(axis=1)
        return np.asarray(np.maximum(even, self.num_shuffled / max(self.num_rows, 1.0)))

    @property
    def clearest(self) -> int:
        """Position of the leap with the largest surplus."""
        return int(np.argmax(self.shares - self.expected))

    @property
    def too_many(self) -> bool:
        """Whether many more rows have near copies than independent rows could."""
        return bool((self.shares - self.expected).max() >= SURPLUS)

    def text(self) -> str:
        """Say how many, and how many it would be of independent rows."""
        share, expected = float(self.shares[self.clearest]), float(self.expected[self.clearest])
        return (
            f"{share:.0%} of {self.num_rows:.0f} (nearest rows at less than {LEAPS[self.clearest]:g} of the next one's "
            f"distance; {expected:.0%} if rows were independent)"
        )


def near_copies(inputs: QueryInputs) -> Answer:
    """Client half: return `sums`, those of `NearCopies` over the client's own rows, shape `(3 + 2 leaps,)`."""
    data = inputs.data
    digests = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for part, _ in data.chunks() for row in part]
    order = np.array(sorted(range(len(data)), key=digests.__getitem__), dtype=np.int64)

    def blocks() -> Iterable[Values]:
        return (flat_features(data.take(part)[0]) for part in _parts(order))

    counted = _compared(flat_features(data.take(order[:LOOKED_AT])[0]), blocks, len(data), among=True)
    return {"sums": RowAggregate(counted.sums, int(counted.num_rows))}


def count_near_copies(rows: Values, others: Values, among: bool = False) -> NearCopies:
    """Look for near copies of some rows among others.

    Args:
        rows: Shape `(num_rows, d)`.
        others: Shape `(num_others, d)`.
        among: Whether the rows are the first of the others, up to `BLOCK_ROWS`, as a row is no copy of itself.
    """

    def blocks() -> Iterable[Values]:
        return _parts(others)

    return _compared(rows, blocks, len(others), among)


def _parts(values: npt.NDArray[Number]) -> Iterator[npt.NDArray[Number]]:
    return (values[start : start + BLOCK_ROWS] for start in range(0, len(values), BLOCK_ROWS))


def _compared(rows: Values, blocks: Blocks, num_others: int, among: bool) -> NearCopies:
    """Count near copies of rows as they are, and of rows whose columns were shuffled."""
    num_others -= among
    if len(rows) == 0 or num_others < FEWEST_ROWS or rows.shape[1] == 0:
        return NearCopies.read(np.zeros(3 + 2 * len(LEAPS)))
    most = min(MOST_COPIES, num_others // 4)
    near = _nearest(rows, blocks(), among, 2 * most)
    apart = near[:, most - 1] > 0
    ratios = np.log(near[apart, 2 * most - 1] / near[apart, most - 1])
    harmonic = float((1 / np.arange(most, 2 * most)).sum())
    together = columns_together(rows)
    halves = 2 * together // (together[-1] + 1)
    shuffled = np.zeros(len(LEAPS))
    for sets in (together, halves) if all_categories(rows) else (together,):
        mixed = next(_shuffled(blocks() if among else [rows], sets))[: len(rows)]
        found = _num_with_copies(_nearest(mixed, _shuffled(blocks(), sets), among, most + 1), most)
        shuffled = np.maximum(shuffled, found)
    sums = [float(len(rows)), float(ratios.sum()), harmonic * int(apart.sum())]
    return NearCopies.read(np.concatenate([sums, _num_with_copies(near, most), shuffled]))


def all_categories(rows: Values) -> bool:
    """Return whether no column has a value of its own in at least half of the rows that differ."""
    apart = np.unique(rows, axis=0)
    return all(2 * len(np.unique(column)) < len(apart) for column in apart.T)


def _num_with_copies(near: Values, most: int) -> Values:
    """Return how many rows have near copies, for each of `LEAPS`, by their distances, `(rows, more than most)`."""
    leaps = (near[:, :most, None] < LEAPS * near[:, 1 : most + 1, None]).any(axis=1)
    return np.asarray((leaps | (near[:, :1] == 0)).sum(axis=0), np.float64)


def columns_together(rows: Values) -> IntArray:
    """Return to which set each column belongs, shape `(d,)`.

    Neighbours of at most two values of which no row is at the higher one in more than one are one set.
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
    """Yield blocks whose sets of columns are shuffled among the block's rows, by the same draws each time."""
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
