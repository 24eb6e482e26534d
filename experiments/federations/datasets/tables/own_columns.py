"""What becomes of the columns of one's own table: which kind each is, what is left out, and the key that overrules it.

Kinds are read from the whole table, as a federation agrees on them before anything is computed. By rule, in this order:

- a column in which less than a hundredth of the cells, or fewer than `federation.min_release`, hold something is left
  out as empty; one that holds the same in every row as constant;
- dates and times of day become their parts (`parts_of_time.py`), of which those stay that vary;
- what names rows, or what rows belong to, is an identifier (`identifiers.py`; a running number is used where nothing
  else can be), and so is a copy of one, or of the clients' names;
- numbers as people write them are read where all cells are of one form (`written_numbers.py`);
- other numbers are numbers, other words categories.

Categories that hardly repeat are an identifier or, from three words a cell, a text; how often they repeat is known once
clients have told their counts (`mixed_table.py`). What is neither, as a word among numbers, is refused with its row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.errors import DataError
from fedscout.engine.fault_text import shown
from fedscout.experiments.federations.datasets.dataset_request import ColumnKind, DatasetRequest
from fedscout.experiments.federations.datasets.tables.column_fates import ColumnFate
from fedscout.experiments.federations.datasets.tables.column_kinds import (
    LARGEST_WHOLE,
    MAX_CATEGORIES,
    NUM_FAULTS_SHOWN,
    CategoryColumn,
    Column,
    NumberColumn,
    as_numbers,
    distinct_cells,
    first_faults,
    is_text,
    lenient_numbers,
    numbers_of_texts,
    present_cells,
    typed_column,
)
from fedscout.experiments.federations.datasets.tables.column_roles import MAX_DISCRETE_LENGTH, ColumnRoles, are_numbers
from fedscout.experiments.federations.datasets.tables.hints import column_key, list_argument, text_argument
from fedscout.experiments.federations.datasets.tables.identifiers import (
    ALMOST_ALL,
    FEWEST_DIFFERENT,
    RUNNING,
    are_copies,
    identifier_reason,
)
from fedscout.experiments.federations.datasets.tables.label_leaks import parts_of_sum, sample_of_rows, suspicion
from fedscout.experiments.federations.datasets.tables.missing_codes import missing_codes
from fedscout.experiments.federations.datasets.tables.mixed_table import Predicted
from fedscout.experiments.federations.datasets.tables.parts_of_time import (
    date_fault,
    date_order,
    parts_of_time,
    varying,
)
from fedscout.experiments.federations.datasets.tables.row_names import row_name
from fedscout.experiments.federations.datasets.tables.table_file import CATEGORY_FIELD
from fedscout.experiments.federations.datasets.tables.written_numbers import written_form, written_numbers

if TYPE_CHECKING:
    import pyarrow as pa

ALMOST_EMPTY = 0.01
FIRST_CELLS = 20
FEW_CATEGORIES = 20
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
        return OwnColumn(replace(self.fate, kind=kind, became=f"left out: {reason}", key=key), looked_at=self.columns)

    def used(self) -> OwnColumn:
        """Return a running number as a number, which it is where there is nothing else."""
        if not self.fate.became.endswith(RUNNING):
            return self
        fate = replace(self.fate, kind="number", became=RUNNING, key=column_key(self.fate.name, "category"))
        return replace(self, fate=fate, columns=self.looked_at, looked_at=())

    def checked(
        self, labels: IntArray, class_names: tuple[str, ...], rows: IntArray, summands: Sequence[str]
    ) -> OwnColumn:
        """Return it with what is suspected of it."""
        looked_at = (*self.columns, *self.looked_at)
        told = [suspicion(column, labels, class_names, rows) for column in looked_at]
        if self.fate.name in summands:
            told.append(f"is part of a sum that is the label: {' + '.join(summands)}")
        codes = missing_codes(looked_at[0]) if len(looked_at) == 1 else {}
        held = ", ".join(f"{code} in {count} rows" for code, count in codes.items())
        fate = replace(self.fate, suspicion=next(filter(None, told), ""), missing_codes=tuple(codes))
        return replace(self, fate=replace(fate, became=f"{fate.became}; {held}: missing?" if held else fate.became))


def own_columns(
    name: str,
    table: pa.Table,
    columns: Sequence[str],
    roles: ColumnRoles,
    request: DatasetRequest,
    clients: IntArray | None = None,
) -> list[OwnColumn]:
    """Return what the columns of a table are.

    Args:
        name: The data set's name, for messages.
        table: Plain cells.
        columns: Those that have no other role, and those that name rows.
        roles: Says which these are.
        request: Says which kinds are overruled.
        clients: The natural client of each row, >= 0, or None.

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
                is_category = CATEGORY_FIELD.items() <= (table.schema.field(column).metadata or {}).items()
                wanted = request.columns.get(column)
                own = _own_column(column, table[column], wanted, request.min_release, clients, is_category)
                found.append(own)
        except ValueError as error:
            ways = " or ".join(_ways(column, table[column], request))
            takes = f"; {ways} takes it as that" if ways else ""
            faults[column] = f"column {column!r} of data set {name!r} {error}{takes}"
    if faults:
        shown_faults = first_faults([*faults.values()])
        words = dict.fromkeys(word for column in faults for word in _words_among_numbers(table[column]))
        if words:
            key = list_argument("missing_values", *request.missing_values, *words)
            shown_faults[-1] += f"; {key} takes words as missing"
        left_out = [*request.drop_columns, *faults]
        shown_faults[-1] += f"; {list_argument('drop_columns', *left_out)} leaves out what is at fault"
        raise DataError(shown_faults)
    found = _without_copies(found, table, roles, request)
    if not any(own.columns for own in found):
        found = [own.used() for own in found]
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


def _words_among_numbers(cells: pa.ChunkedArray) -> list[str]:
    """Return the few words that keep a column from being one of numbers, in whatever form these are written."""
    codes, texts = distinct_cells(present_cells(cells))
    numbers = numbers_of_texts(texts)
    if np.isnan(numbers).all() and (found := written_form(texts, np.bincount(codes[codes >= 0], minlength=len(texts)))):
        numbers = found[0].numbers(texts)
    words = [text for text, number in zip(texts, numbers.tolist(), strict=True) if np.isnan(number)]
    are_few = len(words) < len(texts) and len(words) <= NUM_FAULTS_SHOWN
    return words if are_few and all(len(word) <= MAX_DISCRETE_LENGTH for word in words) else []


def _without_copies(
    columns: list[OwnColumn], table: pa.Table, roles: ColumnRoles, request: DatasetRequest
) -> list[OwnColumn]:
    """Leave out copies of identifiers, of the groups, and of the clients' names."""
    named = [own.fate.name for own in columns if own.fate.kind == "identifier"]
    named += [roles.group] if roles.group is not None else []
    known = {name: present_cells(table[name]) for name in named}
    client = None if roles.client is None else table[roles.client]
    return [
        own
        if own.fate.kind not in {"number", "category"} or own.fate.name in request.columns
        else _unless_copy(own, present_cells(table[own.fate.name]), known, client)
        for own in columns
    ]


def _unless_copy(
    own: OwnColumn, cells: pa.ChunkedArray, known: Mapping[str, pa.ChunkedArray], client: pa.ChunkedArray | None
) -> OwnColumn:
    """Return a column, left out if it is a copy of an identifier or of the clients' names."""
    key = column_key(own.fate.name, own.fate.kind)
    original = next((name for name, values in known.items() if are_copies(cells, values)), None)
    if original is not None:
        return own.left_out("identifier", f"a copy of {original}", key)
    if client is not None and are_copies(cells, client):
        is_name = own.fate.kind == "category" or np.array_equal(as_numbers(cells), as_numbers(client))
        if is_name:  # what a site has measured once, as its height, goes with its name, too, but is a feature
            return own.left_out("identifier", "it repeats the client's name", key)
    return own


def suspected(columns: Sequence[OwnColumn], predicted: Predicted) -> list[OwnColumn]:
    """Return columns with what is suspected of each: leaks of the label, and codes for missing values."""
    rows = sample_of_rows(len(predicted.labels))
    numbers = [column for own in columns for column in own.columns if isinstance(column, NumberColumn)]
    values = predicted.targets
    if values is None and are_numbers(predicted.class_names):
        values = np.array([float(name) for name in predicted.class_names])[predicted.labels]
    summands = [] if values is None else parts_of_sum(numbers, values, rows)
    return [column.checked(predicted.labels, predicted.class_names, rows, summands) for column in columns]


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
    num_different = len(distinct_cells(cells)[1])
    if num_different == len(cells):
        fate = ColumnFate(name, "identifier", "left out: names rows", column_key(name, "number"))
        return OwnColumn(fate, looked_at=looked_at)
    reason = f"left out: {num_different:,} different names in {len(cells):,} rows"
    return OwnColumn(ColumnFate(name, "identifier", reason, text_argument("group_column", name)), looked_at=looked_at)


def _own_column(
    name: str,
    given: pa.ChunkedArray,
    wanted: ColumnKind | None,
    min_release: int,
    clients: IntArray | None,
    is_category: bool,
) -> OwnColumn:
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
    return _numbers_or_names(name, cells, wanted, clients, is_category)


def _numbers_or_names(
    name: str, cells: pa.ChunkedArray, wanted: ColumnKind | None, clients: IntArray | None, is_category: bool
) -> OwnColumn:
    """Return a column that holds no dates, of cells that are null where they are missing."""
    num_present = len(cells) - cells.null_count
    numbers_alone = np.count_nonzero(~np.isnan(as_numbers(cells))) == num_present
    if wanted != "category" and not numbers_alone and (written := _written(name, cells, wanted)) is not None:
        return written
    if wanted == "number":
        numbers = lenient_numbers(name, cells)
        num_words = int(np.count_nonzero(np.isnan(numbers.numbers))) - cells.null_count
        became = "a number" + (f"; words are taken as missing in {num_words} of {len(cells)} rows" if num_words else "")
        agreement = {name: {"as": "number"}}
        return OwnColumn(ColumnFate(name, "number", became, column_key(name, "drop")), (numbers,), agreement=agreement)
    if wanted is None and not numbers_alone and (reason := _hardly_numbers(name, cells, clients)):
        return OwnColumn(ColumnFate(name, "identifier", f"left out: {reason}", column_key(name, "category")))
    column = typed_column(name, cells, is_category=wanted == "category" or is_category)
    is_whole = isinstance(column, NumberColumn) and _is_written_whole(cells)
    if wanted is None and (
        reason := _too_long_for_numbers(column, cells) or identifier_reason(name, column, is_whole, clients)
    ):
        repeats = not reason.startswith(RUNNING) and len(np.unique(distinct_cells(cells)[0])) < num_present
        kind = "number" if isinstance(column, NumberColumn) else "category"
        key = text_argument("group_column", name) if repeats else column_key(name, kind)
        return OwnColumn(ColumnFate(name, "identifier", f"left out: {reason}", key), looked_at=(column,))
    found = _category(column) if isinstance(column, CategoryColumn) else _number(column)
    if wanted is not None and not found.columns:
        return OwnColumn(ColumnFate(name, wanted, "constant", column_key(name, "drop")), (column,))
    return found


def _too_long_for_numbers(column: Column, cells: pa.ChunkedArray) -> str:
    """Return why whole numbers of more digits than a number has are an identifier; nothing if they are none."""
    if not isinstance(column, NumberColumn) or not np.nanmax(np.abs(column.numbers)) > LARGEST_WHOLE:
        return ""
    num_different, num_rows = len(distinct_cells(cells)[1]), len(cells) - cells.null_count
    is_identifier = _is_written_whole(cells) and FEWEST_DIFFERENT <= num_different >= ALMOST_ALL * num_rows
    return f"{num_different:,} different numbers in {num_rows:,} rows" if is_identifier else ""


def _hardly_numbers(name: str, cells: pa.ChunkedArray, clients: IntArray | None) -> str:
    """Return why cells of which some look like numbers, as hexadecimal ones do, are an identifier; nothing if not."""
    codes, values = distinct_cells(cells)
    num_words = np.count_nonzero(np.isnan(numbers_of_texts(values)))
    if num_words == len(values):
        return ""
    column = CategoryColumn(name, codes, tuple(values))
    is_unique = FEWEST_DIFFERENT <= len(values) >= ALMOST_ALL * np.count_nonzero(codes >= 0)
    if is_unique and num_words >= max(ALMOST_EMPTY * len(values), FEWEST_DIFFERENT // 4):
        return f"{len(values):,} different names hardly repeat"
    return identifier_reason(name, column, False, clients)


def _written(name: str, cells: pa.ChunkedArray, wanted: ColumnKind | None) -> OwnColumn | None:
    """Return a column of numbers as people write them; None if it is none, a ValueError if only most cells are."""
    if not is_text(cells.type):
        return None
    codes, texts = distinct_cells(cells)
    counts = np.bincount(codes[codes >= 0], minlength=len(texts))
    found = written_form(texts, counts)
    if found is None:
        return None
    form, num_others = found
    if num_others:
        if wanted is not None or len(texts) <= FEW_CATEGORIES:
            return None
        wrong = np.append(np.isnan(form.numbers(texts)), False)[codes]
        row = int(np.argmax(wrong))
        raise ValueError(
            f"must hold {form.said} in every cell, as most do, got {shown(texts[codes[row]])} in {row_name(row)} and "
            f"others in {num_others - 1} more of {counts.sum()} cells"
        )
    column = NumberColumn(name, written_numbers(cells, form))
    fate = ColumnFate(name, "number", form.said, column_key(name, "category"))
    if column.numbers[~column.missing].min() == column.numbers[~column.missing].max() and not column.missing.any():
        return OwnColumn(fate, (column,)).left_out("constant", f"always {shown(texts[0][:40])}", fate.key)
    return OwnColumn(fate, (column,), agreement={name: form.agreement()})


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
    first = next((cell for cell in cells.slice(0, FIRST_CELLS).to_pylist() if cell is not None), "")
    return isinstance(first, int) or (isinstance(first, str) and "." not in first)


def _number(column: NumberColumn) -> OwnColumn:
    present = column.numbers[~column.missing]
    if len(present) == len(column.numbers) and present.min() == present.max():
        reason = f"left out: always {present[0]:g}"
        return OwnColumn(ColumnFate(column.name, "constant", reason, column_key(column.name, "number")))
    return OwnColumn(ColumnFate(column.name, "number", "a number", column_key(column.name, "category")), (column,))
