"""The one reader of tables: a CSV or a Parquet file becomes an Arrow table of texts, numbers and moments in time.

Nothing is guessed from text: a parser that guesses types turns a wrong delimiter, a comma decimal or a repeated header
into columns that look plausible. What a cell means is decided by `column_kinds.py`. A cell without content is null,
whatever the format calls it: nothing between two delimiters, spaces, a null, NaN.

Files are read block by block, so that what is too much is noticed on the way and signals are heard. A few bytes of
Parquet can stand for any number of equal cells: texts are read as positions in the list of those that differ, and
counted before each cell gets a copy of its own.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedscout.engine.errors import DataError, Fault, first_line
from fedscout.engine.fault_text import listed, shown
from fedscout.experiments.federations.datasets.read_limits import (
    CELL_BYTES,
    MAX_CELL_LENGTH,
    MAX_COLUMNS,
    MAX_NAME_LENGTH,
    NO_LIMITS,
    USUAL_LIMITS,
    ReadLimits,
)
from fedscout.experiments.federations.datasets.tables.column_kinds import DATE, is_text, numbers_of_texts
from fedscout.experiments.federations.datasets.tables.hints import column_key
from fedscout.experiments.federations.datasets.tables.kept_rows import KeptRows
from fedscout.experiments.federations.datasets.tables.text_file import (
    DELIMITERS,
    ENCODING,
    fields,
    opened,
    read_text,
    sniff_delimiter,
)
from fedscout.experiments.federations.datasets.text_style import WHITE_SPACE

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

CATEGORY_FIELD = {b"kind": b"category"}
"""On the field of a column whose cells are categories, whatever they are."""
INDEX = "index"
SAVED_INDEX = re.compile(r"__index_level_\d+__")
FRAME = "the DataFrame"
NUM_CELLS_AT_ONCE = 1_000_000
OPEN_QUOTE = "; a quote that is left open has such an effect"


class _UnlikeArrowError(Exception):
    """A text that Arrow's parser does not take, or takes in another way."""


def read_csv(
    path: Path,
    delimiter: str | None = None,
    columns: tuple[str, ...] | None = None,
    nameless_index: bool = False,
    limits: ReadLimits = USUAL_LIMITS,
    kept: KeptRows | None = None,
    encoding: str | None = "utf-8",
    has_header: bool | None = True,
) -> pa.Table:
    """Read a text file whose first line names the columns, or one without such a line.

    Args:
        path: An existing file; `.gz`, and `.zip` with one file in it, are unpacked on the fly.
        delimiter: One character, `WHITE_SPACE` for any number of blanks; None to find it out from the first lines.
        columns: The columns of a file that does not name them; None where the first line does.
        nameless_index: Whether the first column may lack a name; it is then called `index`.
        limits: How much is read.
        kept: Takes the rows in place of the table, which comes back empty.
        encoding: Of the file; None to find it out.
        has_header: Whether the first line names the columns; without one they are `column1`, `column2`, …. None means
            that it does, but refuses one that holds numbers.

    Returns:
        Texts without spaces at their ends.

    Raises:
        DataError: If the file cannot be read, is no text, is too large, has another delimiter, ragged rows, nameless
            or repeated columns, a cell of more than `MAX_CELL_LENGTH` characters, or no rows.
    """

    def read(encoding: str) -> pa.Table:
        form = _Form(path, encoding, delimiter or sniff_delimiter(path, limits, encoding))
        return _read_form(form, columns, nameless_index, limits, kept, has_header)

    return read_text(path, encoding, limits, kept, read)


@dataclass(frozen=True)
class _Form:
    """A text file of which it is known how it is written."""

    path: Path
    encoding: str
    delimiter: str


def _read_form(
    form: _Form,
    columns: tuple[str, ...] | None,
    nameless_index: bool,
    limits: ReadLimits,
    kept: KeptRows | None,
    has_header: bool | None,
) -> pa.Table:
    import pyarrow as pa

    path = form.path
    first, num_lines = next(_rows(form, limits), ([], 0))
    if not first:
        raise DataError(Fault(path, "hold a header and rows, but it is empty"))
    if columns is None and has_header is False:
        columns = tuple(f"column{number}" for number in range(1, len(first) + 1))
    if columns is None:
        names = [INDEX if nameless_index and not first[0] and INDEX not in first else first[0], *first[1:]]
        faults = _header_faults(path, names, form.delimiter, is_said=has_header is True)
    else:
        names, num_lines = list(columns), 0
        wrong = f"{path} must have the {len(columns)} columns {', '.join(columns)}, got {len(first)} columns"
        faults = [wrong] if len(first) != len(columns) else [*name_faults(path, names)]
    if faults:
        raise DataError(faults)
    try:
        blocks = collected(path, _arrow_blocks(form, names, num_lines, limits), limits, OPEN_QUOTE, kept)
    except _UnlikeArrowError:
        if kept is not None:
            kept.restart()
        blocks = collected(path, _row_blocks(form, names, num_lines, limits), limits, OPEN_QUOTE, kept)
    if not blocks:
        raise DataError(Fault(path, "hold rows below its header, but it has none"))
    return pa.Table.from_batches(blocks)


def read_parquet(
    path: Path, dropped: Collection[str] = (), limits: ReadLimits = USUAL_LIMITS, kept: KeptRows | None = None
) -> pa.Table:
    """Read a Parquet file whose columns are numbers, texts, truth values or moments in time.

    Args:
        path: An existing file.
        dropped: Columns that may be of any type, as nobody looks at them; they come back empty.
        limits: How much is read; bytes are counted as the cells take them in memory.
        kept: Takes the rows in place of the table, which comes back empty.

    Returns:
        Numbers as they are, truth values as the texts `true` and `false`, all else as text. The index that pandas
        saves is left out.

    Raises:
        DataError: If the file can't be read, is too large, has columns of other types, repeated column names, a text of
            more than `MAX_CELL_LENGTH` characters, or no rows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    limits.check_file(path)
    try:
        schema = pq.read_schema(path)
        with pq.ParquetFile(path, read_dictionary=[field.name for field in schema if is_text(field.type)]) as file:
            limits.check_rows(path, file.metadata.num_rows)
            row_bytes = sum(_cell_bytes(field) for field in schema if field.name not in dropped)
            limits.check_bytes(path, file.metadata.num_rows * row_bytes)
            faults = [*name_faults(path, schema.names), *type_faults(path, schema, dropped)]
            if file.metadata.num_rows == 0:
                faults.append(Fault(path, "hold rows, but it has none"))
            if faults:
                raise DataError(faults)
            names = [name for name in schema.names if name not in dropped and not SAVED_INDEX.fullmatch(name)]
            blocks = collected(path, _parquet_blocks(path, file, names, limits), limits, kept=kept)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, MemoryError):
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"{path} can't be read as Parquet: {reason}") from None
    return with_empty(pa.Table.from_batches(blocks), [name for name in schema.names if name in dropped])


def read_frame(frame: pd.DataFrame, dropped: Collection[str] = ()) -> pa.Table:
    """Take a DataFrame for what it would be as a Parquet file: an index with a name is a column.

    Args:
        frame: Of numbers, texts, truth values or moments in time.
        dropped: Columns that may hold anything, as nobody looks at them; they come back empty.

    Raises:
        DataError: If it has columns of other types, repeated column names, too long a text, or no rows.
    """
    import pyarrow as pa

    empty = [name for name in dropped if name in frame.columns]
    try:
        given = pa.Table.from_pandas(frame.drop(columns=empty))
        given = given.drop_columns([name for name in given.column_names if SAVED_INDEX.fullmatch(name)])
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(
            Fault(FRAME, f"have one type a column, a name each, all different: {first_line(error)}")
        ) from None
    return with_empty(read_rows(given, FRAME), empty)


def read_rows(given: pa.Table, what: str) -> pa.Table:
    """Take Arrow's columns for what they would be as a Parquet file.

    Args:
        given: Of numbers, texts, truth values or moments in time.
        what: How messages call it.

    Raises:
        DataError: If it has columns of other types, repeated names, too long a text, or no rows.
    """
    import pyarrow as pa

    faults = [*name_faults(what, given.schema.names), *type_faults(what, given.schema, ())]
    if faults or not len(given):
        raise DataError(faults or Fault(what, "hold rows, but it has none"))
    return pa.Table.from_batches(collected(what, given.to_batches(), NO_LIMITS))


def with_empty(table: pa.Table, names: Collection[str]) -> pa.Table:
    """Return a table with further columns that hold nothing."""
    import pyarrow as pa

    for name in names:
        table = table.append_column(name, pa.nulls(len(table), pa.string()))
    return table


def require_columns(path: Path, rows: pa.Table, wanted: tuple[str, ...]) -> None:
    """Check that a file has certain columns.

    Raises:
        DataError: If any is missing; all of them and the columns found are named.
    """
    missing = [name for name in wanted if name not in rows.column_names]
    if missing:
        raise DataError(
            Fault(path, (f"have the columns {', '.join(missing)}, but its columns are: {listed(rows.column_names)}"))
        )


def plain_cells(cells: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Return cells as text without spaces at its ends, float64, whole numbers or moments, null where one is missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind, types = cells.type, pa.types
    if types.is_dictionary(kind):
        return plain_cells(pc.cast(cells, pa.large_string() if is_text(kind.value_type) else kind.value_type))
    if types.is_floating(kind) or types.is_decimal(kind):
        numbers = pc.cast(cells, pa.float64())
        return pc.if_else(pc.is_nan(numbers), None, numbers)
    if types.is_integer(kind) or types.is_timestamp(kind):
        return cells
    if types.is_date(kind):
        return pc.cast(cells, pa.timestamp("s"))
    text = pc.utf8_trim_whitespace(cells if is_text(kind) else pc.cast(cells, pa.string()))
    return pc.if_else(pc.equal(text, ""), None, text)


def _categorical(schema: pa.Schema) -> set[str]:
    """Return the columns of categories whose values may be numbers: pandas' `Categorical`, or Arrow's dictionaries."""
    import pyarrow as pa

    dictionaries = [field for field in schema if pa.types.is_dictionary(field.type)]
    categories = {field.name for field in dictionaries if not is_text(field.type.value_type)}
    with suppress(ValueError, LookupError, TypeError, AttributeError):  # damaged, or by others than pandas
        said = schema.pandas_metadata["columns"]
        categories |= {column["name"] for column in said if column["pandas_type"] == "categorical"}
    return categories


def collected(
    path: Path | str,
    blocks: Iterable[pa.RecordBatch],
    limits: ReadLimits,
    hint: str = "",
    kept: KeptRows | None = None,
) -> list[pa.RecordBatch]:
    """Return blocks of plain cells, checked as they come.

    Args:
        path: Of the table, for messages.
        blocks: As the file holds them.
        limits: How many rows are read.
        hint: Follows the message about a long cell.
        kept: Takes each block; an empty one alone comes back then.

    Raises:
        DataError: If there are too many rows, or a cell is too long.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    plain: list[pa.RecordBatch] = []
    num_rows = 0
    for block in blocks:
        num_rows += len(block)
        limits.check_rows(path, num_rows)
        columns = [plain_cells(column) for column in block.columns]
        texts = [column for column in columns if is_text(column.type)]
        if any((pc.max(pc.utf8_length(column)).as_py() or 0) > MAX_CELL_LENGTH for column in texts):
            raise DataError(_long_cell_fault(path, hint))
        categories = _categorical(block.schema)
        fields = [
            pa.field(name, column.type, metadata=CATEGORY_FIELD if name in categories else None)
            for name, column in zip(block.schema.names, columns, strict=True)
        ]
        plain.append(pa.record_batch(columns, schema=pa.schema(fields)))
        if kept is not None:
            kept.add(plain[-1])
            plain = [plain[-1].slice(0, 0)]
    return plain


def _arrow_blocks(form: _Form, names: list[str], num_lines: int, limits: ReadLimits) -> Iterator[pa.RecordBatch]:
    """Yield the rows below some lines, as texts, by Arrow's parser.

    Raises:
        _UnlikeArrowError: Where a line has other than as many fields, or fields are quoted behind a space.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv as arrow_csv

    if form.delimiter == WHITE_SPACE:
        raise _UnlikeArrowError
    encoding = "utf8" if form.encoding == ENCODING else form.encoding
    with opened(form.path, limits, form.encoding) as file:
        try:
            with arrow_csv.open_csv(
                file,
                arrow_csv.ReadOptions(column_names=names, skip_rows=num_lines, encoding=encoding),
                arrow_csv.ParseOptions(
                    delimiter=form.delimiter,
                    newlines_in_values=True,
                    invalid_row_handler=lambda row: "error" if row.text.strip() else "skip",
                ),
                arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
            ) as reader:
                for block in reader:
                    if any(
                        pc.any(pc.starts_with(column, " ")).as_py()
                        and pc.any(pc.match_substring_regex(column, '^ +"')).as_py()
                        for column in block.columns
                    ):
                        raise _UnlikeArrowError
                    yield block
        except pa.ArrowInvalid:
            raise _UnlikeArrowError from None


def _row_blocks(form: _Form, names: list[str], num_lines: int, limits: ReadLimits) -> Iterator[pa.RecordBatch]:
    """Yield what `_arrow_blocks` does, row by row: slower, but it takes spaces before quotes and names a wrong line."""
    import pyarrow as pa

    def block() -> pa.RecordBatch:
        return pa.record_batch([pa.array(cells, pa.string()) for cells in zip(*rows, strict=True)], names)

    rows: list[list[str]] = []
    for row, number in _rows(form, limits):
        if number <= num_lines:
            continue
        if len(row) != len(names):
            hint = OPEN_QUOTE if "\n" in row[-1] else ""
            raise DataError(
                Fault(
                    f"every line of {form.path}",
                    (
                        f"have as many fields as the header: line {number} has {len(row)} fields, the "
                        f"header {len(names)}{hint}"
                    ),
                )
            )
        rows.append(row)
        if len(rows) * len(names) >= NUM_CELLS_AT_ONCE:
            yield block()
            rows.clear()
    if rows:
        yield block()


def _rows(form: _Form, limits: ReadLimits) -> Iterator[tuple[list[str], int]]:
    """Yield the fields of each row that is not blank, without spaces at their ends, and the number of its last line."""
    with opened(form.path, limits, form.encoding) as file, io.TextIOWrapper(file, form.encoding, newline="") as text:
        reader = fields(text, form.delimiter)
        try:
            for row in reader:
                if len(row) > 1 or any(field.strip() for field in row):
                    yield [field.strip() for field in row], reader.line_num
        except csv.Error:
            raise DataError(_long_cell_fault(form.path, OPEN_QUOTE)) from None


def _long_cell_fault(path: Path | str, hint: str) -> str:
    return Fault(f"every cell of {path}", f"have at most {MAX_CELL_LENGTH} characters, but one has more{hint}")


def _header_faults(path: Path, header: list[str], delimiter: str, is_said: bool) -> list[str]:
    if len(header) == 1:
        found = [name for character, name in DELIMITERS.items() if character != delimiter and character in header[0]]
        seen = f"its header holds a {found[0]} instead" if found else "its header names one column only"
        return [Fault(f"the columns of {path}", f"be separated by {delimiter!r}, but {seen}")]
    if not is_said and (held := _held_by_data(header)):
        return [
            Fault(
                f"the first line of {path}",
                (
                    f"name the columns, but it holds {held[:60]!r}: federation.header=false names them "
                    "column1, column2 and so on, federation.header=true takes the line for names"
                ),
            )
        ]
    nameless = [number for number, name in enumerate(header, start=1) if not name][:1]
    return [
        *(Fault(f"every column of {path}", f"have a name, but column {number} has none") for number in nameless),
        *name_faults(path, header),
    ]


def _held_by_data(header: list[str]) -> str:
    """Return a number or date that a first line of data holds; nothing of one that may name columns.

    Names may be numbers that rise, as years and positions do.
    """
    if dates := [name for name in header if DATE.fullmatch(name)]:
        return dates[0]
    numbers = numbers_of_texts(header)
    found = numbers[~np.isnan(numbers)]
    is_data = (np.diff(found) <= 0).any() if len(found) > 1 else (found != np.rint(found)).any()
    return header[int(np.argmax(~np.isnan(numbers)))] if is_data else ""


def name_faults(path: Path | str, names: list[str]) -> Iterator[str]:
    """Yield what is wrong with the number and the names of columns."""
    if len(names) > MAX_COLUMNS:
        raise DataError(Fault(path, f"have at most {MAX_COLUMNS:,} columns", f"{len(names):,}"))
    for number, name in enumerate(names, start=1):
        if len(name) > MAX_NAME_LENGTH:
            raise DataError(
                Fault(
                    f"the column names of {path}",
                    (
                        f"have at most {MAX_NAME_LENGTH} characters, but that of column {number} has "
                        f"{len(name)}: {name[:40]!r}…"
                    ),
                )
            )
    repeated = sorted(name for name, count in Counter(names).items() if name and count > 1)
    if repeated:
        yield Fault(f"the column names of {path}", f"differ, but {listed(map(shown, repeated))} occurs repeatedly")


def _parquet_blocks(path: Path, file: pq.ParquetFile, names: list[str], limits: ReadLimits) -> Iterator[pa.RecordBatch]:
    num_bytes = 0
    for block in file.iter_batches(max(1, NUM_CELLS_AT_ONCE // max(1, len(names))), columns=names):
        num_bytes += sum(bytes_of_cells(column) for column in block.columns)
        limits.check_bytes(path, num_bytes)
        yield block


def _cell_bytes(field: pa.Field) -> int:
    """Return how much a cell takes at least: what numbers take, nothing for what has no fixed size."""
    try:
        return int(field.type.bit_width) // 8
    except ValueError:
        return 0


def bytes_of_cells(column: pa.Array) -> int:
    """Return how much a column's cells take once each is on its own; one that holds nothing takes `CELL_BYTES`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_dictionary(column.type) or not is_text(column.type.value_type):
        return max(int(column.nbytes), CELL_BYTES * len(column))
    lengths = pc.take(pc.binary_length(column.dictionary), column.indices)
    return int(pc.sum(pc.cast(lengths, pa.int64())).as_py() or 0) + int(column.indices.nbytes)


def type_faults(path: Path | str, schema: pa.Schema, dropped: Collection[str]) -> Iterator[str]:
    """Yield the columns that hold something else than plain cells."""
    import pyarrow as pa

    types = pa.types
    for field in schema:
        kind = field.type.value_type if types.is_dictionary(field.type) else field.type
        is_bytes = types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
        if field.name not in dropped and (types.is_nested(kind) or is_bytes):
            yield (
                Fault(
                    f"column {field.name!r} of {path}",
                    "hold a number, text, truth value or date a cell",
                    field.type,
                    f"{column_key(field.name, 'drop')} leaves it out",
                )
            )
