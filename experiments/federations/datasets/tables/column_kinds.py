"""What the cells of a table mean: a column of numbers, or a column of categories.

A column is taken as numbers if all its cells that are not missing are numbers, or all are `true` or `false` (1 and 0);
else as categories. A cell is missing if it has no content (`table_file.py`) or one of the words `MISSING`, however it
was stored. What is neither is refused rather than guessed: dates, numbers with a decimal comma, columns that are mostly
but not all numbers, values that are infinite, columns without a value. In a real federation clients agree on this
schema before anything is computed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import IntArray
from fedscout.engine.errors import DataError
from fedscout.engine.fault_text import shown
from fedscout.experiments.federations.datasets.tables.hints import list_argument
from fedscout.experiments.federations.datasets.tables.row_names import row_name

if TYPE_CHECKING:
    import pyarrow as pa

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
            faults[name] = f"column {name!r} of data set {dataset!r} {error}"
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
        return _category(name, *distinct_names(cells))
    numbers = as_numbers(cells)
    is_number = ~np.isnan(numbers)
    if np.count_nonzero(is_number) == len(cells) - cells.null_count:
        return NumberColumn(name, _checked(numbers, cells))
    codes, values = distinct_cells(cells)
    _refuse_lookalikes(codes, values, is_number)
    return _category(name, codes, values)


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


def _category(name: str, codes: IntArray, values: list[str]) -> CategoryColumn:
    categories = sorted(set(values))
    position = {category: number for number, category in enumerate(categories)}
    return CategoryColumn(name, np.array([*(position[value] for value in values), -1])[codes], tuple(categories))
