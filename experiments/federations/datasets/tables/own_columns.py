"""What becomes of the columns of one's own table: which kind each is, what is left out, and the key that overrules it.

Kinds are read from the whole table, as a federation agrees on them before anything is computed. By rule, in this order:

- a column in which less than a hundredth of the cells, or fewer than `federation.min_release`, hold something is left
  out as empty; one that holds the same in every row as constant;
- dates and times of day become their parts (`parts_of_time.py`), of which those stay that vary;
- whole numbers are an identifier if all rows have different ones without a gap between them (a running number, which is
  used where nothing else can be), or nearly all have different ones and the name says so (`patient_id`, `key`);
- other numbers are numbers, other words categories.

Categories that hardly repeat are an identifier or, from three words a cell, a text; how often they repeat is known once
clients have told their counts (`mixed_table.py`). What is neither, as a word among numbers, is refused with its row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import IntArray
from fedscout.engine.errors import DataError
from fedscout.engine.fault_text import shown
from fedscout.experiments.federations.datasets.dataset_request import ColumnKind, DatasetRequest
from fedscout.experiments.federations.datasets.tables.column_fates import ColumnFate
from fedscout.experiments.federations.datasets.tables.column_kinds import (
    MAX_CATEGORIES,
    CategoryColumn,
    Column,
    NumberColumn,
    as_numbers,
    distinct_cells,
    first_faults,
    lenient_numbers,
    present_cells,
    typed_column,
)
from fedscout.experiments.federations.datasets.tables.column_roles import ColumnRoles
from fedscout.experiments.federations.datasets.tables.hints import column_key, list_argument, text_argument
from fedscout.experiments.federations.datasets.tables.label_leaks import sample_of_rows, suspicion
from fedscout.experiments.federations.datasets.tables.parts_of_time import (
    date_fault,
    date_order,
    parts_of_time,
    varying,
)

if TYPE_CHECKING:
    import pyarrow as pa

ALMOST_EMPTY = 0.01
ALMOST_ALL = 0.95
FEWEST_IDENTIFIERS = 20
RUNNING = "a running number"
NAMES_ROWS = {"id", "ids", "uuid", "guid", "key", "index", "idx", "row", "nr", "no"}
WORDS_OF_NAME = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
WORDS_OF_TEXT = 3


@dataclass(frozen=True)
class OwnColumn:
    """A column, and what it gives.

    Attributes:
        fate: What became of it.
        columns: What models are to see of it; nothing if it is left out.
        looked_at: What a suspicion rests on, of one that is left out.
        agreement: What a client must know to read its own cells in the same way; by column seen.
    """

    fate: ColumnFate
    columns: tuple[Column, ...] = ()
    looked_at: tuple[Column, ...] = ()
    agreement: Mapping[str, Mapping[str, str]] | None = None

    def left_out(self, kind: str, reason: str, key: str) -> OwnColumn:
        """Return it as one that no model sees."""
        return OwnColumn(replace(self.fate, kind=kind, became=f"left out: {reason}", key=key))

    def used(self) -> OwnColumn:
        """Return a running number as a number, which it is where there is nothing else."""
        if not self.fate.became.endswith(RUNNING):
            return self
        fate = replace(self.fate, kind="number", became=RUNNING, key=column_key(self.fate.name, "category"))
        return replace(self, fate=fate, columns=self.looked_at, looked_at=())

    def checked(self, labels: IntArray, class_names: tuple[str, ...], rows: IntArray) -> OwnColumn:
        """Return it with what is suspected of it."""
        told = (suspicion(column, labels, class_names, rows) for column in (*self.columns, *self.looked_at))
        return replace(self, fate=replace(self.fate, suspicion=next(filter(None, told), "")))


def own_columns(
    name: str, table: pa.Table, columns: Sequence[str], roles: ColumnRoles, request: DatasetRequest
) -> list[OwnColumn]:
    """Return what the columns of a table are.

    Args:
        name: The data set's name, for messages.
        table: Plain cells.
        columns: Those that have no other role, and those that name rows.
        roles: Says which these are.
        request: Says which kinds are overruled.

    Raises:
        DataError: With all columns that are of no kind, or not of the kind that was asked for.
    """
    found: list[OwnColumn] = []
    faults = {}
    for column in columns:
        try:
            if column in roles.never_features:
                found.append(_naming_rows(column, table[column]))
            else:
                found.append(_own_column(column, table[column], request.columns.get(column), request.min_release))
        except ValueError as error:
            ways = " or ".join(_ways(column, table[column], request))
            takes = f"; {ways} takes it as that" if ways else ""
            faults[column] = f"column {column!r} of data set {name!r} {error}{takes}"
    if not any(own.columns for own in found):
        found = [own.used() for own in found]
    if faults:
        shown_faults = first_faults([*faults.values()])
        left_out = [*request.drop_columns, *faults]
        shown_faults[-1] += f"; {list_argument('drop_columns', *left_out)} leaves out what is at fault"
        raise DataError(shown_faults)
    return found


def _ways(name: str, cells: pa.ChunkedArray, request: DatasetRequest) -> Iterator[str]:
    """Yield the arguments by which a refused column can be used."""
    if name in request.columns:
        return
    with suppress(ValueError):
        lenient_numbers(name, cells)
        yield column_key(name, "number")
    codes, values = distinct_cells(present_cells(cells))
    _, counts = np.unique(codes[codes >= 0], return_counts=True)
    if len(values) <= min(MAX_CATEGORIES, counts.sum() // 2) and counts.max() >= request.min_release:
        yield column_key(name, "category")


def suspected(columns: Sequence[OwnColumn], labels: IntArray, class_names: tuple[str, ...]) -> list[OwnColumn]:
    """Return columns with what is suspected of each."""
    rows = sample_of_rows(len(labels))
    return [column.checked(labels, class_names, rows) for column in columns]


def hardly_repeats(column: OwnColumn, num_different: int) -> OwnColumn:
    """Return a column of categories that hardly repeat as what it is: a text or an identifier."""
    (cells,) = column.columns
    assert isinstance(cells, CategoryColumn)
    num_words = float(np.mean([len(category.split()) for category in cells.categories]))
    if num_words < WORDS_OF_TEXT:
        reason = f"{num_different:,} different names hardly repeat"
        return column.left_out("identifier", reason, text_argument("group_column", cells.name))
    reason = f"{num_different:,} different texts, of {num_words:.0f} words each"
    return column.left_out("text", reason, text_argument("text_column", cells.name))


def _naming_rows(name: str, cells: pa.ChunkedArray) -> OwnColumn:
    """Return a column that is called what names rows."""
    numbers = as_numbers(present_cells(cells))
    looked_at = () if np.isnan(numbers).all() else (NumberColumn(name, numbers),)
    fate = ColumnFate(name, "identifier", "left out: names rows", column_key(name, "number"))
    return OwnColumn(fate, looked_at=looked_at)


def _own_column(name: str, given: pa.ChunkedArray, wanted: ColumnKind | None, min_release: int) -> OwnColumn:
    """Return one column; a ValueError says what must hold and does not."""
    cells = present_cells(given)
    num_present = len(cells) - cells.null_count
    if wanted == "drop":
        return OwnColumn(ColumnFate(name, "dropped", "left out as asked"))
    if wanted is None and num_present < max(min_release, ALMOST_EMPTY * len(cells)):
        reason = f"left out: {num_present} of {len(cells)} cells hold something"
        return OwnColumn(ColumnFate(name, "empty", reason, column_key(name, "category") if num_present else ""))
    if wanted == "date" or (wanted is None and num_present):
        parts = _date(name, cells, is_wanted=wanted == "date")
        if parts is not None:
            return parts
    if wanted == "number":
        numbers = lenient_numbers(name, cells)
        num_words = int(np.count_nonzero(np.isnan(numbers.numbers))) - cells.null_count
        became = "a number" + (f"; words are taken as missing in {num_words} of {len(cells)} rows" if num_words else "")
        agreement = {name: {"as": "number"}}
        return OwnColumn(ColumnFate(name, "number", became, column_key(name, "drop")), (numbers,), agreement=agreement)
    column = typed_column(name, cells, is_category=wanted == "category")
    found = _category(column) if isinstance(column, CategoryColumn) else _number(column, _is_written_whole(cells))
    if wanted is not None and not found.columns:
        return OwnColumn(ColumnFate(name, wanted, "constant", column_key(name, "drop")), (column,))
    return found


def _date(name: str, cells: pa.ChunkedArray, is_wanted: bool) -> OwnColumn | None:
    """Return a column of dates; None if it is none."""
    order = date_order(cells)
    if order is None:
        if fault := date_fault(cells):
            raise ValueError(fault)
        if is_wanted:
            written = "2024-01-31, 31 Jan 2024 or 31.01.2024 10:30"
            raise ValueError(f"must hold dates such as {written}, all written alike, got others")
        return None
    parts = parts_of_time(name, cells, order)
    names = varying(parts)
    if not names:
        return OwnColumn(ColumnFate(name, "constant", "left out: always the same time", ""))
    columns = tuple(NumberColumn(f"{name} {part}", parts[part]) for part in names)
    agreement = {f"{name} {part}": {"of": name, "part": part, "order": order} for part in names}
    became = f"{', '.join(names)} (read as {order})"
    return OwnColumn(ColumnFate(name, "date", became, column_key(name, "drop")), columns, agreement=agreement)


def _category(column: CategoryColumn) -> OwnColumn:
    if len(column.categories) == 1 and not column.missing.any():
        reason = f"left out: always {shown(column.categories[0][:40])}"
        return OwnColumn(ColumnFate(column.name, "constant", reason, column_key(column.name, "category")))
    became = f"{len(column.categories)} categories"
    return OwnColumn(ColumnFate(column.name, "category", became, column_key(column.name, "drop")), (column,))


def _is_written_whole(cells: pa.ChunkedArray) -> bool:
    """Whether the first number of a column is written without a point, as identifiers are."""
    first = next((cell for cell in cells.slice(0, FEWEST_IDENTIFIERS).to_pylist() if cell is not None), "")
    return isinstance(first, int) or (isinstance(first, str) and "." not in first)


def _number(column: NumberColumn, is_whole: bool) -> OwnColumn:
    present = column.numbers[~column.missing]
    if len(present) == len(column.numbers) and present.min() == present.max():
        reason = f"left out: always {present[0]:g}"
        return OwnColumn(ColumnFate(column.name, "constant", reason, column_key(column.name, "number")))
    if reason := _identifies(column.name, present, is_whole):
        key = column_key(column.name, "number")
        return OwnColumn(ColumnFate(column.name, "identifier", f"left out: {reason}", key), looked_at=(column,))
    return OwnColumn(ColumnFate(column.name, "number", "a number", column_key(column.name, "category")), (column,))


def _identifies(name: str, numbers: npt.NDArray[np.float64], is_whole: bool) -> str:
    """Return why numbers name rows; nothing if they do not."""
    if len(numbers) < FEWEST_IDENTIFIERS or not (numbers == np.rint(numbers)).all():
        return ""
    num_different = len(np.unique(numbers))
    if is_whole and num_different == len(numbers) and numbers.max() - numbers.min() == len(numbers) - 1:
        return RUNNING
    is_named = NAMES_ROWS & {word.lower() for word in WORDS_OF_NAME.findall(name)}
    if is_named and num_different >= ALMOST_ALL * len(numbers):
        return f"{num_different:,} different numbers in {len(numbers):,} rows"
    return ""
