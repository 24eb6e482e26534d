"""Columns of a table: kinds, roles, codes for missing values, and what became of each.

What the cells of a table mean: a column of numbers, or a column of categories.

A column is taken as numbers if all its cells that are not missing are numbers, or all are `true` or `false` (1 and 0);
else as categories. A cell is missing if it has no content (`table_files.py`) or one of the words `MISSING`, however it
was stored. What is neither is refused rather than guessed: dates, numbers with a decimal comma, columns that are mostly
but not all numbers, values that are infinite, columns without a value. In a real federation clients agree on this
schema before anything is computed.

Which column of a table is the label, which the client, and what these two tell.

What became of a table's columns, for the record and for people, and the key that overrules it.

From a column of dates or times of day to its parts, which are numbers.

A client reads its own rows alone: what must be agreed on beforehand is that the column holds dates, the order in which
day, month and year are written, and which parts are told. Zones are not converted: 10:30 is 10:30 wherever it was.
Day-month-year and month-day-year are told apart by the numbers beyond twelve; where there are none, a date with slashes
begins with the month and one with points or dashes with the day. A month may have its English name (`12 Mar 2024`,
`March 12, 2024`); the year then has four digits, as of `12 Mar 24` nobody knows which number is the day.

Arguments that messages propose, as they are typed in a shell: quoted where the shell or YAML needs it.

How messages name a row of a table: by its place in the file that it is from, whatever was left out before it.

Messages are made where a cell is looked at, which knows the place of the row in the table alone; `rows_from` says for
the time of a load where the rows of the table are from.

Columns of numbers as people write them: thousands, decimal commas, units, percent, ranges, and truth values.

A form is one for the whole column, so that every client reads its own rows alike, and is found from all cells: the
prefix (a currency) and suffix (a unit or %) that most cells have, and how their digits are grouped. A range is read as
its middle. `1,234` alone may be one thousand or one and a bit: such a column has no form unless other cells tell.

Codes that stand for a missing value beside plausible ones: -9999, 999, `unknown`. They are suspected, not replaced.

A number of the list is suspected if three cells hold it or more, and it lies farther from all other values than these
spread, or is negative where no other value is. What it is meant for is said by `federation.missing_values`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import IntArray
from fedscout.engine.data.federation import PLAIN_NUMBER
from fedscout.engine.errors import DataError, Fault
from fedscout.engine.text import did_you_mean, listed, shown
from fedscout.experiments.data.dataset import TextArray, distinct_texts

if TYPE_CHECKING:
    import pyarrow as pa


PLAIN_NAME = re.compile(r"\w[\w-]*")
PLAIN_TEXT = re.compile(r"[^\W\d][\w-]*")
WORDS_OF_YAML = {"yes", "no", "on", "off", "true", "false", "null", "y", "n"}


def text_argument(key: str, value: str) -> str:
    """Return `federation.KEY=VALUE` of a key that takes text."""
    return shlex.quote(f"federation.{key}={_quoted(value)}")


def list_argument(key: str, *values: str) -> str:
    """Return `federation.KEY=[VALUE, …]`; without quotes where the values are plain, as shells take brackets."""
    argument = f"federation.{key}=[{','.join(map(_quoted, values))}]"
    return argument if all(map(_is_plain, values)) else shlex.quote(argument)


def column_key(name: str, kind: str) -> str:
    """Return the argument that says of which kind a column is."""
    if PLAIN_NAME.fullmatch(name):
        return f"federation.columns.{name}={kind}"
    return shlex.quote(f"federation.columns={{{json.dumps(name, ensure_ascii=False)}: {kind}}}")


def _quoted(value: str) -> str:
    return value if _is_plain(value) else json.dumps(value, ensure_ascii=False)


def _is_plain(value: str) -> bool:
    return PLAIN_TEXT.fullmatch(value) is not None and value.lower() not in WORDS_OF_YAML


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


MISSING = ("?", "na", "n/a", "#n/a", "<na>", "nan", "null", "none")
BOOLEANS = {"false": 0.0, "true": 1.0}
DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([ T].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}( .*)?|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?",
    re.ASCII,
)
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+", re.ASCII)
LARGEST_NUMBER = 1e150
LARGEST_WHOLE = 2**53
NUM_FAULTS_SHOWN = 5
MAX_CATEGORIES = 256
BLOCK_ROWS = 100_000  # between two of which signals are heard


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers.

    Attributes:
        name: What the file calls it.
        numbers: float64, NaN where missing, at most `LARGEST_NUMBER` in magnitude, shape `(num_rows,)`.
    """

    name: str
    numbers: npt.NDArray[np.float64]

    @property
    def missing(self) -> npt.NDArray[np.bool_]:
        """Where a cell is empty, shape `(num_rows,)`."""
        return np.isnan(self.numbers)


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories.

    Attributes:
        name: What the file calls it.
        codes: Positions in `categories`, -1 where missing, shape `(num_rows,)`.
        categories: The distinct ones, in alphabetical order.
    """

    name: str
    codes: IntArray
    categories: tuple[str, ...]

    @property
    def missing(self) -> npt.NDArray[np.bool_]:
        """Where a cell is empty, shape `(num_rows,)`."""
        return self.codes < 0


Column = NumberColumn | CategoryColumn


def typed_columns(
    dataset: str, table: pa.Table, names: Sequence[str], categories: Sequence[str] = ()
) -> tuple[Column, ...]:
    """Return some columns of a table with their meaning.

    Args:
        dataset: The data set's name, for messages.
        table: Plain columns of text, numbers or moments in time.
        names: The columns wanted, in order.
        categories: Those of them that are categories although their cells may be numbers.

    Raises:
        DataError: With all columns that can't be used, and how to leave them out.
    """
    columns: list[Column] = []
    faults: dict[str, str] = {}
    for name in names:
        try:
            columns.append(typed_column(name, table[name], name in categories))
        except ValueError as error:
            faults[name] = Fault(f"column {name!r} of data set {dataset!r}", problem=str(error))
    if faults:
        shown_faults = first_faults([*faults.values()])
        shown_faults[-1] += f"; {list_argument('drop_columns', *faults)} leaves out what is at fault"
        raise DataError(shown_faults)
    return tuple(columns)


def first_faults(faults: list[str]) -> list[str]:
    """Return the first faults of columns, and how many more there are."""
    num_more = len(faults) - NUM_FAULTS_SHOWN
    return faults if num_more <= 0 else [*faults[:NUM_FAULTS_SHOWN], f"and {num_more} more columns with such a fault"]


def as_numbers(cells: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    """Return cells as numbers, NaN where one is missing or no number; truth values alone are 0 and 1.

    Args:
        cells: Plain cells, texts or numbers.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    try:  # much faster, but all or nothing
        return np.asarray(pc.cast(cells, pa.float64(), safe=False).to_numpy(), dtype=np.float64)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        codes, values = distinct_cells(cells)
        lower = [value.lower() for value in values]
        are_truths = all(word in BOOLEANS for word in lower)
        numbers = np.array([BOOLEANS[word] for word in lower]) if are_truths else numbers_of_texts(values)
        return np.append(numbers, np.nan)[codes]


def numbers_of_texts(texts: list[str]) -> npt.NDArray[np.float64]:
    """Return the number that each text writes, NaN where it writes none."""
    import pandas as pd

    blocks = [pd.Series(texts[start : start + BLOCK_ROWS], dtype="str") for start in range(0, len(texts), BLOCK_ROWS)]
    numbers = [np.asarray(pd.to_numeric(block, errors="coerce"), np.float64) for block in blocks]
    return np.concatenate([np.empty(0), *numbers])


def lenient_numbers(name: str, cells: pa.ChunkedArray) -> NumberColumn:
    """Return a column as numbers because somebody says that it is one: words are missing, decimal commas are read.

    Raises:
        ValueError: If no cell is a number, or one is too large; the text follows the column's name.
    """
    codes, values = distinct_cells(present_cells(cells))
    points = [value.replace(",", ".") if DECIMAL_COMMA.fullmatch(value) else value for value in values]
    numbers = np.append(numbers_of_texts(points), np.nan)[codes] if values else np.full(len(cells), np.nan)
    if np.isnan(numbers).all():
        raise ValueError("must hold a number, as federation.columns says, but it holds none")
    return NumberColumn(name, _checked(numbers, cells))


def is_text(kind: pa.DataType) -> bool:
    """Whether an Arrow type is one of text."""
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def distinct_cells(cells: pa.ChunkedArray) -> tuple[IntArray, list[str]]:
    """Return for each cell the position of its text among those that differ, -1 where it is null, and these texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # The texts that differ may be more than 32-bit offsets reach.
    wide = pc.cast(cells, pa.large_string()) if is_text(cells.type) else cells
    places: dict[str, int] = {}
    codes = [np.empty(0, np.int64)]
    for start in range(0, len(wide), BLOCK_ROWS):
        encoded = pc.dictionary_encode(wide.slice(start, BLOCK_ROWS)).combine_chunks()
        own = [places.setdefault(str(value), len(places)) for value in encoded.dictionary.to_pandas()]
        of_block = pc.fill_null(pc.cast(encoded.indices, pa.int64()), -1).to_numpy(zero_copy_only=False)
        codes.append(np.array([*own, -1])[of_block])
    return np.concatenate(codes), [*places]


def distinct_names(cells: pa.ChunkedArray) -> tuple[IntArray, list[str]]:
    """Return what `distinct_cells` does, of cells that name something: a text is its own name, so `007` is not `7`.

    In a column of floating-point numbers 6.0 is the name `6`, as gaps make a library store whole numbers so.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(cells.type):
        is_whole = pc.and_(pc.equal(cells, pc.round(cells)), pc.less(pc.abs(cells), LARGEST_WHOLE))
        if pc.all(is_whole).as_py():
            cells = pc.cast(cells, pa.int64())
    return distinct_cells(cells)


def present_cells(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return plain cells with null in place of the words that mean a missing one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not is_text(cells.type):
        return cells
    return pc.if_else(pc.is_in(pc.utf8_lower(cells), pa.array(MISSING, cells.type)), None, cells)


def with_missing(table: pa.Table, values: Sequence[str], kept: Collection[str | None] = ()) -> pa.Table:
    """Return a table with nothing in the cells that hold one of some values, whatever their type and case.

    Args:
        table: Plain cells.
        values: Texts; those that are numbers stand for all cells of that number.
        kept: Columns that stay as they are.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    words = {value.lower() for value in values}
    numbers = numbers_of_texts([*values])
    for place, name in enumerate(table.column_names if values else ()):
        if name in kept:
            continue
        codes, texts = distinct_cells(table[name])
        gone = np.array([text.lower() in words for text in texts], dtype=np.bool_)
        gone |= np.isin(numbers_of_texts(texts), numbers[~np.isnan(numbers)])
        mask = pa.array(np.append(gone, False)[codes])
        table = table.set_column(place, table.schema.field(place), pc.if_else(mask, None, table[name]))
    return table


def typed_column(name: str, cells: pa.ChunkedArray, is_category: bool = False) -> Column:
    """Return one column with its meaning.

    Args:
        name: What the file calls it.
        cells: Plain.
        is_category: Whether it is one of categories although its cells may be numbers.

    Raises:
        ValueError: With what must hold and does not, as it follows the column's name.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_timestamp(cells.type) and cells.null_count < len(cells):
        row = pc.index(cells.is_null(), False).as_py()
        date = cells.slice(row, 1).to_pandas().iloc[0]
        raise ValueError(f"must hold numbers or categories, got a date such as {date} in {row_name(row)}")
    cells = present_cells(cells)
    if cells.null_count == len(cells):
        raise ValueError(f"must hold a value, got none in {len(cells)} rows")
    if is_category:
        return _category_of_codes(name, *distinct_names(cells))
    numbers = as_numbers(cells)
    is_number = ~np.isnan(numbers)
    if np.count_nonzero(is_number) == len(cells) - cells.null_count:
        return NumberColumn(name, _checked(numbers, cells))
    codes, values = distinct_cells(cells)
    _refuse_lookalikes(codes, values, is_number)
    return _category_of_codes(name, codes, values)


def _checked(numbers: npt.NDArray[np.float64], cells: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    wrong = np.flatnonzero(np.abs(numbers) > LARGEST_NUMBER)
    if len(wrong):
        others = f" and in {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise ValueError(
            f"must hold numbers up to {LARGEST_NUMBER:g} in magnitude, "
            f"got {shown(str(cells[wrong[0]]))} in {row_name(wrong[0])}{others}"
        )
    return numbers


def _refuse_lookalikes(codes: IntArray, values: list[str], is_number: npt.NDArray[np.bool_]) -> None:
    """Refuse cells that mean numbers or dates but do not read as such."""
    is_word = ~is_number & (codes >= 0)
    row = int(np.argmax(is_word))
    word = shown(values[codes[row]])
    words = [values[code] for code in np.unique(codes[is_word]).tolist()]
    if all(map(DECIMAL_COMMA.fullmatch, words)):
        raise ValueError(f"must hold numbers with a decimal point, got {word} in {row_name(row)}")
    if all(map(DATE.fullmatch, words)):
        raise ValueError(f"must hold numbers or categories, got a date such as {word} in {row_name(row)}")
    if np.count_nonzero(is_number) > np.count_nonzero(is_word):
        raise ValueError(
            f"must hold numbers alone, as most of its cells are numbers, got {word} in {row_name(row)} and words "
            f"in {np.count_nonzero(is_word)} of {np.count_nonzero(codes >= 0)} cells"
        )


def _category_of_codes(name: str, codes: IntArray, values: list[str]) -> CategoryColumn:
    categories = sorted(set(values))
    position = {category: number for number, category in enumerate(categories)}
    return CategoryColumn(name, np.array([*(position[value] for value in values), -1])[codes], tuple(categories))


NO_NAMES = {*MISSING} - {"none"}  # which a class may be called
MAX_DISCRETE_LENGTH = 200
MANY_CLASSES = 100
FEWEST_QUANTITIES = 20  # different fractions, or numbers of few rows each, beyond which they are no classes
FEWEST_ROWS_A_CLASS = 5
FEW_ROWS_A_CLASS = 20
MOST_CLASSES = 100_000
ROWS_AT_ONCE = 1_000_000  # between two of which signals are heard


@dataclass(frozen=True)
class ColumnRoles:
    """What the columns of a table are for.

    Attributes:
        label: The column to predict.
        client: The column that names each row's natural client, or None.
        never_features: Columns that describe a row without being a feature; all others become features, apart from
            the label, the client and the group.
        categories: Columns whose cells are categories even if they are numbers.
        dropped: Columns that the user leaves out; each must exist.
        group: The column that names what each row belongs to, or None.
        quantity: Whether the label is a quantity, and no class.
        classes: Whether somebody says that the label's values are classes, even if they look like a quantity.
    """

    label: str
    client: str | None = None
    never_features: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    group: str | None = None
    quantity: bool = False
    classes: bool = False

    def features(self, name: str, table: pa.Table) -> list[str]:
        """Return the columns of a table that become features.

        Args:
            name: The data set's name, for messages.
            table: The table.

        Raises:
            DataError: If there is none.
        """
        reserved = {self.label, self.client, self.group, *self.never_features, *self.dropped}
        names = [column for column in table.column_names if column not in reserved]
        if not names:
            raise DataError(Fault(f"data set {name!r}", "have a column of features beside the label, but it has none"))
        return names


def check_roles(name: str, table: pa.Table, roles: ColumnRoles) -> None:
    """Check that label, client, group and dropped ones are columns of the table, and different ones.

    Raises:
        DataError: With all faults found.
    """
    available = listed(table.column_names)
    named = {
        "federation.label": roles.label,
        "federation.client_column": roles.client,
        "federation.group_column": roles.group,
    }
    faults = [
        Fault(
            key,
            f"name {('columns' if key.endswith('s') else 'a column')} of data set {name!r}",
            repr(column),
            f"its columns are: {available}{did_you_mean(column, table.column_names)}",
        )
        for key, column in [*named.items(), *(("federation.drop_columns", column) for column in roles.dropped)]
        if column is not None and column not in table.column_names
    ]
    if roles.label == roles.client:
        faults.append(Fault("federation.label and federation.client_column", "differ", f"{roles.label!r} for both"))
    faults += [
        Fault(f"{key} and federation.group_column", f"differ, as {reason}", f"{roles.group!r} for both")
        for key, column, reason in (
            ("federation.label", roles.label, "a group's rows may be of any class"),
            ("federation.client_column", roles.client, "a client of one group would have nothing to test on"),
        )
        if roles.group is not None and roles.group == column
    ]
    faults += [
        Fault("federation.drop_columns", f"not name {key}", repr(column))
        for key, column in named.items()
        if column in roles.dropped
    ]
    if faults:
        raise DataError(faults)


def discrete(name: str, table: pa.Table, column: str) -> TextArray:
    """Return a column of names as text (`distinct_names`).

    Args:
        name: The data set's name, for messages.
        table: The table.
        column: One of its columns.

    Raises:
        DataError: If a cell is missing or longer than `MAX_DISCRETE_LENGTH`.
    """
    positions, values = _distinct(name, table, column)
    return np.array(values)[positions]


def _distinct(name: str, table: pa.Table, column: str) -> tuple[IntArray, list[str]]:
    """Return for each row a position in a list of texts that differ."""
    positions, values = distinct_names(table[column])

    def refuse(wrong: npt.NDArray[np.bool_], must: str, hint: str = "") -> None:
        if wrong.any():
            row = int(np.argmax(wrong))
            given = values[positions[row]] if positions[row] >= 0 else "nothing"
            raise DataError(
                Fault(f"column {column!r} of data set {name!r}", f"{must}", f"{shown(given)} in {row_name(row)}{hint}")
            )

    nameless = np.array([*(value.lower() in NO_NAMES for value in values), True])
    way = "; federation.unlabelled_rows=drop leaves such rows out"
    refuse(nameless[positions], "name a class or client or group in every row", way)
    long = np.array([len(value) > MAX_DISCRETE_LENGTH for value in values])
    refuse(long[positions], f"hold names of at most {MAX_DISCRETE_LENGTH} characters")
    return positions, values


def groups_of(name: str, table: pa.Table, column: str | None) -> IntArray | None:
    """Return the group of each row, in `[0, num_groups)`; None without a column.

    Raises:
        DataError: As `discrete`.
    """
    return None if column is None else distinct_texts(discrete(name, table, column))[1]


def classes(name: str, table: pa.Table, roles: ColumnRoles) -> tuple[IntArray, tuple[str, ...]]:
    """Return labels in `[0, num_classes)` and the names of the classes, in their order (`in_order`).

    Raises:
        DataError: If a cell names no class, there are fewer than two classes or more than `MOST_CLASSES`, or the
            column looks like a quantity (`are_quantities`) and nobody says that it holds classes.
    """
    column = roles.label
    blocks = (table[column].slice(start, ROWS_AT_ONCE) for start in range(0, len(table), ROWS_AT_ONCE))
    _refuse_too_many(name, column, len(table), map(_num_distinct, blocks))  # before each of them is looked at
    positions, values = _distinct(name, table, column)
    _refuse_too_many(name, column, len(table), [len(values)])
    names = in_order(values)
    if not roles.classes and are_quantities(numbers_of_texts(names), len(positions)):
        raise DataError(
            Fault(
                f"column {column!r} of data set {name!r}",
                "hold classes",
                f"{len(names)} different numbers in {len(positions)} rows, which looks like a quantity",
                "federation.task=regression predicts it, federation.task=classification takes the numbers as classes",
            )
        )
    if len(names) < 2 or len(names) > len(positions) // 2:
        raise DataError(
            Fault(
                f"column {column!r} of data set {name!r}",
                f"hold at least two classes and at most half as many as there are rows ({len(positions)})",
                f"{len(names)}: {names[0]}" if len(names) == 1 else len(names),
            )
        )
    place = {value: number for number, value in enumerate(names)}
    return np.array([place[value] for value in values], dtype=np.int64)[positions], tuple(names)


def are_quantities(different: npt.NDArray[np.float64], num_rows: int) -> bool:
    """Whether the different values of a label are too many numbers for the rows that there are to be classes.

    Args:
        different: NaN where a value is no number.
        num_rows: That hold them.
    """
    if not len(different) or not np.isfinite(different).all():
        return False
    if (different == np.rint(different)).all():
        most = MANY_CLASSES if len(different) * FEWEST_ROWS_A_CLASS <= num_rows else FEWEST_QUANTITIES
        return len(different) > max(most, num_rows // FEW_ROWS_A_CLASS)
    return len(different) > min(FEWEST_QUANTITIES, num_rows // 2)


def _num_distinct(cells: pa.ChunkedArray) -> int:
    import pyarrow.compute as pc

    return int(pc.count_distinct(cells).as_py())


def _refuse_too_many(name: str, column: str, num_rows: int, counts: Iterable[int]) -> None:
    """Refuse a label of which one of these numbers of values is more than there may be classes."""
    if any(count > MOST_CLASSES for count in counts):
        raise DataError(
            Fault(
                f"column {column!r} of data set {name!r}",
                f"hold at most {MOST_CLASSES:,} classes",
                f"more in {num_rows:,} rows, as identifiers and quantities have",
                "federation.task=regression predicts a quantity",
            )
        )


def in_order(names: Collection[str]) -> list[str]:
    """Return numbers in numeric order, then the other names in alphabetical order."""
    return sorted(names, key=lambda name: (0, Decimal(name), name) if PLAIN_NUMBER.fullmatch(name) else (1, 0, name))


def _spellings_remark(class_names: Sequence[str]) -> str:
    """Return which classes are one number in two spellings, as joined files may have them; empty if none are."""
    by_number: dict[Decimal, list[str]] = {}
    for name in filter(PLAIN_NUMBER.fullmatch, class_names):
        by_number.setdefault(Decimal(name), []).append(name)
    pairs = [" and ".join(names) for names in by_number.values() if len(names) > 1]
    return f"{listed(pairs)} are equal numbers but count as different classes" if pairs else ""


def are_numbers(names: Collection[str]) -> bool:
    """Whether all names are plain numbers, whose order means something."""
    return all(PLAIN_NUMBER.fullmatch(name) for name in names)


@dataclass(frozen=True)
class ColumnFate:
    """What became of a column.

    Attributes:
        name: What the file calls it.
        kind: number, category, date, text, identifier, constant, empty, label, client, group, or dropped.
        became: What is done with it.
        key: What overrules that, as it is written on the command line; nothing where nothing does.
        suspicion: What it tells of the label that it should not; nothing if it is not suspected.
        missing_codes: Values that may stand for a missing one.
        num_missing: Its cells without a value.
        num_features: Features that a model sees of it.
        remark: What a reader should know of its values; empty if nothing.
    """

    name: str
    kind: str
    became: str
    key: str = ""
    suspicion: str = ""
    missing_codes: tuple[str, ...] = ()
    num_missing: int = 0
    num_features: int = 0
    remark: str = ""


def documents(fates: Sequence[ColumnFate]) -> tuple[dict[str, Any], ...]:
    """Return what became of columns as JSON-able values."""
    return tuple(asdict(fate) for fate in fates)


def all_fates(
    table: pa.Table, roles: ColumnRoles, fates: Sequence[ColumnFate], class_names: Sequence[str] = ()
) -> list[ColumnFate]:
    """Return what became of every column, in the order of the table.

    Args:
        table: Plain cells.
        roles: What its columns are for.
        fates: Of the columns that have no other role.
        class_names: Of the label, where they are known.
    """
    known = {fate.name: fate for fate in fates}
    known |= {column: ColumnFate(column, "dropped", "left out as asked") for column in roles.dropped}
    what = "a quantity to predict" if roles.quantity else "the classes to predict"
    key = "federation.task=classification" if roles.quantity else "federation.label"
    if not roles.quantity and len(class_names) > FEWEST_QUANTITIES and are_numbers(class_names):
        what, key = f"{len(class_names)} classes to predict, all numbers: a quantity?", "federation.task=regression"
    remark = _spellings_remark(class_names)
    known[roles.label] = ColumnFate(roles.label, "label", what, key, remark=remark)
    if roles.client is not None:
        known[roles.client] = ColumnFate(roles.client, "client", "names the clients", "federation.client_column")
    if roles.group is not None:
        known[roles.group] = ColumnFate(roles.group, "group", "names the groups", "federation.group_column")
    return [replace(known[column], num_missing=table[column].null_count) for column in table.column_names]


def refuse_table(name: str, fates: Sequence[ColumnFate]) -> NoReturn:
    """Refuse a table of which no column can be used.

    Raises:
        DataError: With what became of each.
    """
    told = [fate for fate in fates if fate.kind not in {"label", "client", "group"}][:NUM_FAULTS_SHOWN]
    reasons = [f"{fate.name[:60]!r} is {fate.became}" + (f" ({fate.key[:100]})" if fate.key else "") for fate in told]
    raise DataError(
        Fault(
            f"data set {name!r}",
            "have a column of features beside the label",
            f"none that can be used: {'; '.join(reasons)}" if told else "none",
        )
    )


Numbers = npt.NDArray[np.float64]
DateOrder = Literal[
    "year-month-day", "day-month-year", "month-day-year", "time of day", "day-month name-year", "month name-day-year"
]

PARTS: Final = ("year", "month", "day", "weekday", "hour", "minute")
"""Weekdays are numbered from Monday, 0."""

MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
"""How the names of months begin."""

_CLOCK = r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::\d{2}(?:[.,]\d+)?)? ?(?P<half>[AaPp][Mm])?"
_BEHIND = rf"(?:[ T]+{_CLOCK}(?: ?(?:Z|UTC|GMT|[+-]\d{{2}}:?\d{{2}}))?)?"
_NAME = (
    r"(?P<month>(?i:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sep(?:t(?:ember)?)?|"
    r"oct(?:ober)?|nov(?:ember)?|dec(?:ember)?))\.?"
)
_DAY, _FULL_YEAR = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?", r"(?P<year>\d{4})"
_FIELDS = {"year": r"(?P<year>\d{4}|\d{2})", "month": r"(?P<month>\d{1,2})", "day": r"(?P<day>\d{1,2})"}
_PATTERNS: Final[dict[DateOrder, str]] = {
    "year-month-day": rf"^(?P<year>\d{{4}})[-/.]{_FIELDS['month']}[-/.]{_FIELDS['day']}{_BEHIND}$",
    "day-month-year": rf"^{_FIELDS['day']}[-/.]{_FIELDS['month']}[-/.]{_FIELDS['year']}{_BEHIND}$",
    "month-day-year": rf"^{_FIELDS['month']}[-/.]{_FIELDS['day']}[-/.]{_FIELDS['year']}{_BEHIND}$",
    "time of day": f"^{_CLOCK}$",
    "day-month name-year": rf"^{_DAY}[-/. ] ?{_NAME}[-/., ] ?{_FULL_YEAR}{_BEHIND}$",
    "month name-day-year": rf"^{_NAME}[-/. ] ?{_DAY}[-/., ] ?{_FULL_YEAR}{_BEHIND}$",
}
_CENTURY_ENDS = 70  # a year of two digits below it is of this century


def date_order(cells: pa.ChunkedArray) -> DateOrder | None:
    """Return how the cells of a column write dates, if each that is not missing does; else None.

    Args:
        cells: Plain.
    """
    texts = _texts(cells)
    first = next((text for text in texts.slice(0, 1).to_pylist() if text), "") if len(texts) else ""
    if not first[:1].isdigit() and first[:3].lower() not in MONTHS:
        return None
    orders: list[DateOrder] = [*_PATTERNS]
    if "/" in first:
        orders[1], orders[2] = orders[2], orders[1]
    for order in orders:
        if not np.isnan(_read(texts.slice(0, 1), order)["hour" if order == "time of day" else "day"]).any():
            read = _read(texts, order)
            if not np.isnan(read["hour" if order == "time of day" else "day"]).any():
                return order
    return None


def date_fault(cells: pa.ChunkedArray) -> str:
    """Return what keeps a column from being one of dates, as it follows the column's name; nothing where it is none.

    A column is meant to be one of dates where each cell looks like a date and more than half are, in one order.

    Args:
        cells: Plain.
    """
    import pyarrow as pa

    codes, values = distinct_cells(_as_text(cells)) if is_text(cells.type) else (np.empty(0, np.int64), [])
    if not values or not all(map(DATE.fullmatch, values)):
        return ""
    texts = pa.array(values, pa.string())
    wrong = {order: np.isnan(_read(texts, order)["day"]) for order in _PATTERNS if order != "time of day"}
    best = min(wrong, key=lambda order: int(wrong[order].sum()))
    if 2 * wrong[best].sum() >= len(values):
        return ""

    def place(cells_of: npt.NDArray[np.bool_]) -> str:
        row = int(np.argmax(np.append(cells_of, False)[codes]))
        return f"{values[codes[row]]!r} in {row_name(row)}"

    day_first, month_first = wrong["day-month-year"], wrong["month-day-year"]
    if (day_first & ~month_first).any() and (month_first & ~day_first).any():
        return (
            f"must write day and month in one order, got {place(month_first & ~day_first)}, which begins with the day, "
            f"beside {place(day_first & ~month_first)}, which begins with the month"
        )
    return f"must hold dates that exist, written alike ({best}), got {place(wrong[best])}"


def parts_of_time(name: str, cells: pa.ChunkedArray, order: DateOrder) -> dict[str, Numbers]:
    """Return the parts of each cell, NaN where it is missing, each of shape `(num_rows,)`.

    Args:
        name: Of the column, for the message.
        cells: Plain.
        order: How it writes dates.

    Raises:
        DataError: If a cell is no date of that order.
    """
    codes, texts = distinct_cells(_as_text(cells))
    import pyarrow as pa

    read = _read(pa.array(texts, pa.string()), order)
    wrong = np.isnan(read["hour" if order == "time of day" else "day"])
    if wrong.any():
        row = int(np.argmax(np.append(wrong, False)[codes]))
        raise DataError(Fault(f"column {name!r}", f"hold dates ({order})", f"{texts[codes[row]]!r} in {row_name(row)}"))
    return {part: np.append(numbers, np.nan)[codes] for part, numbers in read.items()}


def varying(parts: dict[str, Numbers]) -> list[str]:
    """Return the parts of which a column holds more than one value."""
    found = []
    for part, numbers in parts.items():
        present = numbers[~np.isnan(numbers)]
        if len(present) and present.min() < present.max():
            found.append(part)
    return found


def _as_text(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    return present_cells(cells) if is_text(cells.type) else pc.cast(cells, pa.string())


def _numbers_of_months(names: pa.Array) -> Numbers:
    """Return the numbers of months, 1 to 12, NaN where there is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    places = pc.index_in(pc.utf8_lower(pc.utf8_slice_codeunits(names, 0, 3)), value_set=pa.array(MONTHS))
    return np.asarray(pc.cast(places, pa.float64()).to_numpy(zero_copy_only=False), np.float64) + 1


def _texts(cells: pa.ChunkedArray) -> pa.Array:
    """Return the texts that differ; none of a column that can hold no dates."""
    import pyarrow as pa

    if not is_text(cells.type) and not pa.types.is_timestamp(cells.type):
        return pa.array([], pa.string())
    return pa.array(distinct_cells(_as_text(cells))[1], pa.string())


def _read(texts: pa.Array, order: DateOrder) -> dict[str, Numbers]:
    """Return the parts of each text, all NaN where it is no date of that order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.extract_regex(texts, _PATTERNS[order])

    def number(field: str) -> Numbers:
        if found.type.get_field_index(field) < 0:
            return np.full(len(texts), np.nan)
        digits = pc.struct_field(found, field)
        cells = pc.cast(pc.if_else(pc.equal(digits, ""), None, digits), pa.float64())
        return np.asarray(cells.to_numpy(zero_copy_only=False), np.float64)

    hours, minutes = number("hour"), number("minute")
    half = np.array(pc.fill_null(pc.utf8_lower(pc.struct_field(found, "half")), "").to_pylist(), dtype="U2")
    hours = np.where(half == "", hours, hours % 12 + 12 * (half == "pm"))
    is_wrong = (hours > 23) | (minutes > 59) | ~np.asarray(found.is_valid())
    if order == "time of day":
        return {"hour": np.where(is_wrong, np.nan, hours), "minute": np.where(is_wrong, np.nan, minutes)}
    years, days = number("year"), number("day")
    months = _numbers_of_months(pc.struct_field(found, "month")) if "name" in order else number("month")
    years = np.where(years < 100, years + np.where(years < _CENTURY_ENDS, 2000, 1900), years)
    is_wrong |= ~((months >= 1) & (months <= 12) & (days >= 1) & (days <= 31))
    year, month, day = (np.where(is_wrong, 1, numbers).astype(np.int64) for numbers in (years, months, days))
    date = (year - 1970).astype("M8[Y]").astype("M8[M]") + (month - 1)
    moment = date.astype("M8[D]") + (day - 1)
    is_wrong |= moment.astype("M8[M]") != date  # a 31st of April
    weekday = (moment.astype(np.int64) + 3) % 7
    parts = (year, month, day, weekday, hours, minutes)
    return {part: np.where(is_wrong, np.nan, numbers) for part, numbers in zip(PARTS, parts, strict=True)}


_AFFIXES = re.compile(r"([$€£¥]?) ?([+-]?\d[\d.,' \u00a0\u202f]*?|[+-]?\.\d+) ?((?:[^\W\d_]|[%°$€£¥])[^\s\d]{0,11}|)")
_PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)", re.ASCII)
_RANGE = re.compile(r"(\d+(?:\.\d+)?)(?: ?[-–] ?| to )(\d+(?:\.\d+)?)")
_STYLES: Final = {
    "plain": (_PLAIN, "", "."),
    "decimal comma": (re.compile(r"[+-]?\d+(,\d+)?", re.ASCII), "", ","),
    "thousands ,": (re.compile(r"[+-]?(\d{1,3}|[1-9]\d{0,2}(,\d{3})+)(\.\d+)?", re.ASCII), ",", "."),
    "thousands .": (re.compile(r"[+-]?(\d{1,3}|[1-9]\d{0,2}(\.\d{3})+)(,\d+)?", re.ASCII), ".", ","),
    "thousands '": (re.compile(r"[+-]?(\d{1,3}|[1-9]\d{0,2}('\d{3})+)(\.\d+)?", re.ASCII), "'", "."),
    "thousands space": (re.compile(r"[+-]?(\d{1,3}|[1-9]\d{0,2}([ \u00a0\u202f]\d{3})+)(,\d+)?"), " \u00a0\u202f", ","),
}
"""By name: what a number looks like, what groups its digits, and its decimal point."""

_CURRENCIES = "$€£¥"
TRUTHS: Final[tuple[dict[str, float], ...]] = (
    {"true": 1, "false": 0},
    {"yes": 1, "no": 0},
    {"y": 1, "n": 0},
    {"t": 1, "f": 0},
    {"1": 1, "0": 0, "1.0": 1, "0.0": 0},
)
"""Spellings of truth values, in lower case."""


@dataclass(frozen=True)
class WrittenForm:
    """How all cells of a column write numbers.

    Attributes:
        style: One of the groupings of digits, `range` or `truth`.
        prefix: Before each number, such as `$`.
        suffix: Behind each number, such as `kg` or `%`.
    """

    style: str
    prefix: str = ""
    suffix: str = ""

    @property
    def said(self) -> str:
        """What it is, for people."""
        if self.style in {"range", "truth"}:
            return {"range": "the middle of ranges", "truth": "truth values in several spellings"}[self.style]
        grouped = "" if self.style == "plain" else f" with {self.style.replace('thousands', 'thousands by')}"
        unit = f" in {self.prefix or self.suffix}" if self.prefix or self.suffix else ""
        return f"numbers{unit}{grouped}"

    def agreement(self) -> dict[str, str]:
        """Return what a client must know to read its own cells alike."""
        return {"as": "written", "style": self.style, "prefix": self.prefix, "suffix": self.suffix}

    def numbers(self, texts: Sequence[str]) -> Numbers:
        """Return the number of each text, NaN where it is not of this form."""
        return np.array([self._number(text) for text in texts], np.float64)

    def _number(self, text: str) -> float:
        if self.style == "truth":
            return next((words[text.lower()] for words in TRUTHS if text.lower() in words), np.nan)
        if self.style == "range":
            ends = _RANGE.fullmatch(text)
            if ends is None:
                return float(text) if _PLAIN.fullmatch(text) else np.nan
            low, high = float(ends[1]), float(ends[2])
            return (low + high) / 2 if low <= high else np.nan
        parts = _AFFIXES.fullmatch(text)
        if parts is None or (parts[1], parts[3]) != (self.prefix, self.suffix):
            return np.nan
        pattern, groups, point = _STYLES[self.style]
        if not pattern.fullmatch(parts[2]):
            return np.nan
        return float("".join(letter for letter in parts[2] if letter not in groups).replace(point, "."))


def written_numbers(cells: pa.ChunkedArray, form: WrittenForm) -> Numbers:
    """Return a column of a form as numbers, NaN where a cell is missing or of another form."""
    codes, texts = distinct_cells(present_cells(cells))
    return np.append(form.numbers(texts), np.nan)[codes]


def form_of_agreement(reading: Mapping[str, str]) -> WrittenForm:
    """Return the form that clients agreed on."""
    return WrittenForm(reading["style"], reading["prefix"], reading["suffix"])


def written_form(texts: Sequence[str], counts: IntArray) -> tuple[WrittenForm, int] | None:
    """Return the form in which most cells of a column write numbers, and how many cells are of another; None if none.

    Args:
        texts: Those that differ, of the cells that are not missing.
        counts: How many cells hold each, shape `(len(texts),)`.
    """
    if not texts:
        return None
    if _are_truths(texts):
        return WrittenForm("truth"), 0
    affixes: Counter[tuple[str, str]] = Counter()
    for text, count in zip(texts, counts.tolist(), strict=True):
        if parts := _AFFIXES.fullmatch(text):
            affixes[parts[1], parts[3]] += count
    usual, num_alike = affixes.most_common(1)[0] if affixes else (("", ""), 0)
    forms = [WrittenForm(style, *usual) for style in _STYLES] if 2 * num_alike > counts.sum() else []
    forms.append(WrittenForm("range"))
    others = [int(counts[np.isnan(form.numbers(texts))].sum()) for form in forms]
    best = int(np.argmin(others))
    form = forms[best]
    if 2 * others[best] >= counts.sum() or form == WrittenForm("plain"):
        return None
    if form.style == "decimal comma" and WrittenForm("thousands ,", form.prefix, form.suffix) in forms:
        thousands = WrittenForm("thousands ,", form.prefix, form.suffix)
        if others[forms.index(thousands)] == others[best]:  # each comma has three digits behind it
            if not {form.prefix, form.suffix} & {*_CURRENCIES} and all("," in text for text in texts):
                return None
            form = thousands
    return form, others[best]


def _are_truths(texts: Sequence[str]) -> bool:
    """Whether texts are truth values in two spellings or more, one of them with both of its words."""
    words = {text.lower() for text in texts}
    spellings = [spelling for spelling in TRUTHS if words & spelling.keys()]
    known = {word for spelling in spellings for word in spelling}
    are_both = any({spelling[word] for word in words & spelling.keys()} == {0, 1} for spelling in spellings)
    return len(spellings) > 1 and are_both and words <= known


NUMBERS: Final = (-99999.0, -9999.0, -999.0, -99.0, -9.0, 99.0, 999.0, 9999.0, 99999.0)
WORDS: Final = frozenset(
    ("unknown", "unspecified", "undefined", "missing", "not available", "not known", "no data", "-", "--", ".")
)
FEWEST_CELLS: Final = 3


def missing_codes(column: Column) -> dict[str, int]:
    """Return the suspected codes of a column, as its cells write them, and the number of cells that hold each."""
    if isinstance(column, CategoryColumn):
        counts = np.bincount(column.codes[column.codes >= 0], minlength=len(column.categories))
        held = zip(column.categories, counts.tolist(), strict=True)
        found = {name: count for name, count in held if name.lower() in WORDS and count >= FEWEST_CELLS}
        return found if len(found) < len(column.categories) else {}
    present = column.numbers[~column.missing]
    others = present[~np.isin(present, NUMBERS)]
    if not len(others):
        return {}
    low, high = others.min(), others.max()
    far = [
        code
        for code in NUMBERS
        if (code < 0 <= low) or (code < low and low - code > high - low) or (code > high and code - high > high - low)
    ]
    counts_of_codes = {f"{code:.0f}": int(np.count_nonzero(present == code)) for code in far}
    return {code: count for code, count in counts_of_codes.items() if count >= FEWEST_CELLS}
