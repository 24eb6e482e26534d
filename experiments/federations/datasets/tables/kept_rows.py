"""Which rows of a table stay while it is read by blocks: a random sample of a table that is too large, or its head.

Every row gets a random number, and the rows of the smallest numbers stay: a uniform sample without replacement of known
size, whatever the number of rows and however they come in blocks (a reservoir; C. Fan, M. Muller and I. Rezucha,
"Development of sampling plans by using sequential (item by item) selection techniques and digital computers", Journal
of the American Statistical Association 57(298), 1962, method 4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from fedscout.engine.seeds import stream
from fedscout.experiments.federations.datasets.read_limits import ReadLimits

if TYPE_CHECKING:
    import pyarrow as pa


class KeptRows(Protocol):
    """What is told of every block."""

    def add(self, block: pa.RecordBatch) -> None:
        """Take what stays of a block."""

    def restart(self) -> None:
        """Forget all blocks, as the table is read from its beginning again."""


class EnoughRowsError(Exception):
    """The head of a table has been read."""


class HeadRows:
    """The first rows: reading ends there, with an `EnoughRowsError`.

    Args:
        num_rows: How many at least, if there are as many.
    """

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self.restart()

    def restart(self) -> None:
        """Forget all blocks."""
        self.blocks: list[pa.RecordBatch] = []
        self._num_missing = self._num_rows

    def add(self, block: pa.RecordBatch) -> None:
        """Take a block."""
        self.blocks.append(block)
        self._num_missing -= len(block)
        if self._num_missing <= 0:
            raise EnoughRowsError


class SampledRows:
    """A random sample, in the order of the table.

    Args:
        path: Of the table, for messages.
        num_rows: Of the sample.
        seed: Of the generator that draws a number for each row.
        limits: How many bytes the sample may take.
    """

    def __init__(self, path: str, num_rows: int, seed: int, limits: ReadLimits) -> None:
        self._path, self._num_rows, self._seed, self._limits = path, num_rows, seed, limits
        self.restart()

    def restart(self) -> None:
        """Forget all blocks."""
        self.num_seen = 0
        self._generator = stream(self._seed, "rows-read")
        self._blocks: list[pa.RecordBatch] = []
        self._draws: list[npt.NDArray[np.float64]] = []
        self._largest = 1.0

    def add(self, block: pa.RecordBatch) -> None:
        """Take a block: rows whose number is below the largest that stays so far."""
        draws = self._generator.random(len(block))
        self.num_seen += len(block)
        stays = np.flatnonzero(draws < self._largest)
        if len(stays):
            self._blocks.append(block.take(stays))
            self._draws.append(draws[stays])
        if sum(map(len, self._draws)) > 2 * self._num_rows:
            self._trim()

    def table(self) -> pa.Table:
        """Return the sample."""
        import pyarrow as pa

        self._trim()
        return pa.Table.from_batches(self._blocks)

    def _trim(self) -> None:
        """Drop the rows of too large a number."""
        import pyarrow as pa

        draws = np.concatenate(self._draws)
        rows = np.sort(np.argsort(draws, kind="stable")[: self._num_rows])
        whole = pa.Table.from_batches(self._blocks).take(rows)
        self._limits.check_bytes(f"the sample of {self._path}", whole.nbytes)
        self._blocks, self._draws = whole.combine_chunks().to_batches(), [draws[rows]]
        if len(rows) == self._num_rows:
            self._largest = float(draws[rows].max())
