"""Columns that name rows, or what rows belong to, rather than tell something of them.

Learning from an identifier is learning by heart: alone it may tell little, but with whom it names much. A column is one

- by its name (`patient_id`, `key`) where nearly all values differ, or, of `id` and the like, where a value has 20 rows
  or fewer; a column called `subject` or `patient` whatever the number of rows;
- if it holds whole numbers that all differ without a gap, over all rows or within each client (a running hour); but for
  years, months, days, hours and ages within clients, which are called so;
- if nearly all of its values differ and are whole numbers of eight digits or more, as many each;
- if it is a copy of another identifier, of the groups, or of the clients' names, whatever the values are called.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import IntArray
from fedscout.experiments.federations.datasets.tables.column_kinds import (
    CategoryColumn,
    Column,
    as_numbers,
    distinct_cells,
)

if TYPE_CHECKING:
    import pyarrow as pa

RUNNING: Final = "a running number"
FEWEST_DIFFERENT: Final = 20
ALMOST_ALL: Final = 0.95
MOST_ROWS_EACH: Final = 20
SMALLEST_LONG: Final = 10_000_000
ROWS_TRIED: Final = 1_000
NAMES_ROWS: Final = {"id", "ids", "uuid", "guid", "key", "index", "idx", "row", "nr", "no"}
NAMES_THINGS: Final = {"id", "ids", "uuid", "guid", "identifier"}
PEOPLE: Final = {"subject", "patient", "participant", "person"}
TIMES: Final = {"year", "month", "week", "day", "hour", "minute", "time", "age"}
WORDS_OF_NAME: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def identifier_reason(name: str, column: Column, is_whole: bool, clients: IntArray | None) -> str:
    """Return why a column is an identifier; nothing if it is none.

    Args:
        name: What the file calls it.
        column: Its cells.
        is_whole: Whether numbers are written as whole ones.
        clients: The client of each row, >= 0, or None.
    """
    is_present = ~column.missing
    is_number = not isinstance(column, CategoryColumn)
    cells = column.codes if isinstance(column, CategoryColumn) else column.numbers
    values = cells[is_present].astype(np.float64)
    num_rows, num_different = len(values), len(np.unique(values))
    if num_different < FEWEST_DIFFERENT or (is_number and not (values == np.rint(values)).all()):
        return ""
    if is_number and is_whole and is_present.all() and _is_running(values):
        return RUNNING
    words = {word.lower() for word in WORDS_OF_NAME.findall(name)}
    is_named = bool(words & NAMES_ROWS) and num_different >= ALMOST_ALL * num_rows
    is_named |= bool(words & NAMES_THINGS) and num_different * MOST_ROWS_EACH >= num_rows
    is_named |= bool(words) and words <= PEOPLE | NAMES_THINGS
    if is_number and is_whole and values.min() >= SMALLEST_LONG and num_different >= ALMOST_ALL * num_rows:
        is_named |= len(str(int(values.min()))) == len(str(int(values.max())))
    if is_named:
        return f"{num_different:,} different {'numbers' if is_number else 'names'} in {num_rows:,} rows"
    if is_number and is_whole and clients is not None and not words & TIMES and _runs(values, clients[is_present]):
        return f"{RUNNING} of each client"
    return ""


def are_copies(first: pa.ChunkedArray, second: pa.ChunkedArray) -> bool:
    """Whether two columns are the same but for what values are called: each value of one goes with one of the other.

    Where most values occur once, each column goes with each other; these must hold the same.

    Args:
        first: Cells, null where one is missing.
        second: Of the other column.
    """
    if not _go_together(distinct_cells(first[:ROWS_TRIED])[0], distinct_cells(second[:ROWS_TRIED])[0]):
        return False
    (codes, texts), (others, other_texts) = distinct_cells(first), distinct_cells(second)
    if 2 * len(texts) <= len(codes):
        return _go_together(codes, others)
    numbers, other_numbers = as_numbers(first), as_numbers(second)
    if not np.isnan(numbers).all():
        return np.array_equal(numbers, other_numbers, equal_nan=True)
    return bool((np.array([*texts, ""])[codes] == np.array([*other_texts, ""])[others]).all())


def _go_together(first: IntArray, second: IntArray) -> bool:
    base = int(second.max()) + 2
    num_pairs = len(np.unique((first.astype(np.int64) + 1) * base + second + 1))
    return len(np.unique(first)) == num_pairs == len(np.unique(second))


def _is_running(numbers: npt.NDArray[np.float64]) -> bool:
    """Whether whole numbers all differ and leave no gap."""
    return bool(numbers.max() - numbers.min() == len(numbers) - 1 and len(np.unique(numbers)) == len(numbers))


def _runs(numbers: npt.NDArray[np.float64], clients: IntArray) -> bool:
    """Whether the numbers of each client with rows enough differ and leave few gaps, and most rows are of such."""
    is_large = np.bincount(clients)[clients] >= FEWEST_DIFFERENT
    if 2 * np.count_nonzero(is_large) < len(clients):
        return False
    numbers, clients = numbers[is_large], clients[is_large]
    order = np.lexsort((numbers, clients))
    steps = np.diff(numbers[order])[np.diff(clients[order]) == 0]
    return bool(steps.min() >= 1 and np.mean(steps == 1) >= ALMOST_ALL)
