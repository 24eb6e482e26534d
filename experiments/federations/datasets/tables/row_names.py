"""How messages name a row of a table: by its place in the file that it is from, whatever was left out before it.

Messages are made where a cell is looked at, which knows the place of the row in the table alone; `rows_from` says for
the time of a load where the rows of the table are from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

import numpy as np

from fedscout.engine.arrays import IntArray


@dataclass(frozen=True)
class _Origin:
    """Where rows are from: how many each file holds, and which stayed; nothing means one file, and all."""

    files: Sequence[tuple[str, int]] = ()
    kept: IntArray | None = None


_ONE_FILE = _Origin()
_ORIGIN: ContextVar[_Origin] = ContextVar("origin", default=_ONE_FILE)


@contextmanager
def rows_of_files(files: Sequence[tuple[str, int]]) -> Iterator[None]:
    """Name rows by file while this lasts.

    Args:
        files: Name and number of rows of each, in the order of the table.
    """
    token = _ORIGIN.set(_Origin(files))
    try:
        yield
    finally:
        _ORIGIN.reset(token)


@contextmanager
def rows_kept(kept: IntArray | None) -> Iterator[None]:
    """Name rows of a table of which some stayed by their places before, while this lasts.

    Args:
        kept: The place of each; None where all stayed.
    """
    token = _ORIGIN.set(replace(_ORIGIN.get(), kept=kept))
    try:
        yield
    finally:
        _ORIGIN.reset(token)


def row_name(row: int) -> str:
    """Return such as `row 7`, or `row 2 of north/train.csv`.

    Args:
        row: Its place in the table, from 0.
    """
    origin = _ORIGIN.get()
    place = int(row if origin.kept is None else origin.kept[row])
    if not origin.files:
        return f"row {place + 1}"
    ends = np.cumsum([num_rows for _, num_rows in origin.files])
    file = int(np.searchsorted(ends, place, side="right"))
    start = int(ends[file - 1]) if file else 0
    return f"row {place - start + 1} of {origin.files[file][0]}"


def file_of_rows(rows: IntArray) -> list[str]:
    """Return the file of each row of the table; nothing where there is one file."""
    files = _ORIGIN.get().files
    ends = np.cumsum([num_rows for _, num_rows in files])
    return [files[place][0] for place in np.searchsorted(ends, rows, side="right").tolist()] if files else []
