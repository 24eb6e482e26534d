"""Readers of text files, JSON lines, Parquet, Arrow files and DataFrames into tables of plain cells.

A plain cell is a text without surrounding white space, a float64, an integer or a timestamp. An empty cell is null in
every format: nothing between two delimiters, spaces, a null, NaN. Types are not inferred from text here, as a parser
that infers them turns a wrong delimiter, a decimal comma or a repeated header into plausible columns; `columns.py`
decides what a cell means.

Text files and JSON lines (https://jsonlines.org), one object per line, are parsed by Arrow. The encoding of a file that
is not UTF-8 is detected by charset-normalizer (https://charset-normalizer.readthedocs.io); among encodings that fit
equally well, cp1252 is preferred.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import logging
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv as arrow_csv, json as arrow_json

from fedscout.engine.errors import DataError, Fault, first_line
from fedscout.engine.text import listed, shown
from fedscout.experiments.data.columns import DATE, is_text, numbers_of_texts
from fedscout.experiments.data.dataset import (
    MAX_CELL_LENGTH,
    NO_LIMITS,
    SEPARATORS,
    USUAL_LIMITS,
    ReadLimits,
    column_key,
    reading,
)

if TYPE_CHECKING:
    import pandas as pd

MAX_NAME_LENGTH = 1_000
MAX_COLUMNS = 20_000
DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
UTF_8 = "utf-8-sig"
CHARACTERS_SNIFFED = 1_048_576
LINES_SNIFFED = 50
USUAL_ENCODING = "cp1252"
NO_SINGLE_BYTES = ("utf_16", "utf_16_be", "utf_16_le", "utf_32", "utf_32_be", "utf_32_le", "utf_7")
BYTE_ORDER_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
BLOCK_BYTES = 2**20
LONGEST_ROW = 2**24
"""In bytes."""
JSON_KEY = re.compile(r'"((?:[^"\\]|\\.)*)"\s*:')
MOST_SPARSE_CELLS = 20_000_000
MOST_CELLS_A_VALUE = 100
CATEGORY_FIELD = {b"kind": b"category"}
"""Metadata of the Arrow field of a column whose cells are categories, whatever they look like."""
INDEX = "index"
SAVED_INDEX = re.compile(r"__index_level_\d+__")
FRAME = "the DataFrame"
ARROW_ERRORS = (pa.ArrowException, OSError)
UNREADABLE = (OSError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError, NotImplementedError)
"""The last two are raised for zip archives with a password, or packed in a way that Python does not support."""

logger = logging.getLogger(__name__)


def read_text(path: Path, encoding: str | None = "utf-8", limits: ReadLimits = USUAL_LIMITS) -> str:
    """Return the text of a file.

    Args:
        path: An existing file; `.gz` files, and `.zip` files with one member, are unpacked.
        encoding: None means UTF-8 or, with a warning, the best-fitting encoding.
        limits: Maximum size, unpacked.

    Raises:
        DataError: If the file can't be read, is too large, binary, of another encoding, or an archive of several files.
    """
    limits.check_file(path)
    content = bytearray()
    with reading(path, *UNREADABLE), _unpacked(path) as file:
        while block := file.read(BLOCK_BYTES):
            content += block
            limits.check_bytes(path, len(content))
    text = _decoded(path, content, encoding)
    if (zero := text.find("\0")) >= 0:
        raise DataError.of(path, f"be text, but it holds a zero byte at character {zero}")
    return text


@contextmanager
def _unpacked(path: Path) -> Iterator[IO[bytes]]:
    if path.suffix == ".gz":
        with gzip.open(path) as packed:
            yield cast(IO[bytes], packed)
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            if len(members) != 1:
                names = ", ".join(member.filename for member in members[:5]) or "none"
                raise DataError.of(path, "hold one file", f"{len(members)}: {names}")
            with archive.open(members[0]) as member:
                yield member
    else:
        with path.open("rb") as plain:
            yield plain


def _decoded(path: Path, content: bytearray, encoding: str | None) -> str:
    if encoding in (None, "utf-8"):
        try:
            return content.decode(UTF_8)
        except UnicodeDecodeError as error:
            if encoding is not None:
                raise DataError.of(path, f"be UTF-8 text: {error.reason} at byte {error.start}") from None
        encoding = _likely_encoding(path, content)
        logger.warning("%s is not UTF-8: read as %s; federation.encoding overrules that", path, encoding)
    assert encoding is not None
    try:
        return content.decode(encoding)
    except UnicodeError as error:
        raise DataError.of(path, f"be {encoding} text: {error}") from None


def _likely_encoding(path: Path, content: bytearray) -> str:
    import charset_normalizer

    if content.startswith(BYTE_ORDER_MARKS):
        return "utf-16"
    lines = (line for line in content.splitlines() if not line.isascii())
    sample = b"\n".join(islice(lines, LINES_SNIFFED * LINES_SNIFFED))[:BLOCK_BYTES]
    matches = charset_normalizer.from_bytes(sample, cp_exclusion=[*NO_SINGLE_BYTES])
    best = matches.best()
    if best is None:
        raise DataError.of(
            path, "be text in UTF-8 or another known encoding", hint="federation.encoding names the encoding"
        )
    equal = (match for match in matches if (match.chaos, match.coherence) == (best.chaos, best.coherence))
    fitting = {encoding for match in equal for encoding in match.could_be_from_charset}
    return USUAL_ENCODING if USUAL_ENCODING in fitting else best.encoding


def sniff_delimiter(path: Path, text: str) -> str:
    """Return the delimiter that splits the first lines of a text into the same number of fields, above one.

    If several do, the one with the most fields is taken. If none fits all lines, the one that splits the first line
    into the most fields is taken, so that reading the file reports the row that does not fit.

    Raises:
        DataError: If the header names one column only, or two delimiters fit equally well.
    """
    lines = [line for line in io.StringIO(text[:CHARACTERS_SNIFFED], newline="") if line.strip()]
    lines = (lines if len(text) <= CHARACTERS_SNIFFED else lines[:-1])[:LINES_SNIFFED]
    widths: dict[str, list[int]] = {}
    for delimiter in DELIMITERS:
        with suppress(csv.Error):  # a line too long for a field
            widths[delimiter] = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
    if not widths:
        raise DataError(_long_cell_fault(path))
    dividing = {delimiter: counts for delimiter, counts in widths.items() if counts and counts[0] > 1}
    fitting = {delimiter: counts for delimiter, counts in dividing.items() if len(set(counts)) == 1} or dividing
    if not fitting:
        raise DataError.of(
            f"the columns of {path}",
            f"be separated by one of {', '.join(SEPARATORS)}, but its header names one column only",
            shown("".join(lines[:1]).strip()),
            "federation.separator names another character",
        )
    most = max(counts[0] for counts in fitting.values())
    best, *equal = [delimiter for delimiter, counts in fitting.items() if counts[0] == most]
    if equal:
        arguments = [f"federation.separator={DELIMITERS[delimiter]}" for delimiter in (best, *equal)]
        must = f"be separated in one way, but several fit: {' or '.join(arguments)}"
        raise DataError.of(f"the columns of {path}", must)
    return best


def read_csv(
    path: Path,
    delimiter: str | None = None,
    columns: tuple[str, ...] | None = None,
    limits: ReadLimits = USUAL_LIMITS,
    encoding: str | None = "utf-8",
    has_header: bool | None = True,
    required: Collection[str] = (),
) -> pa.Table:
    """Read a text file with or without a header line. A first column without a name is called `index`.

    Args:
        path: An existing file; `.gz` files, and `.zip` files with one member, are unpacked.
        delimiter: One character; None to detect it from the first lines.
        columns: Column names of a file without a header; None if the first line is the header.
        limits: Maximum file size.
        encoding: Encoding of the file; None to detect it.
        has_header: Whether the first line names the columns; without a header they are `column1`, `column2`, …. None
            means that it does, but a header that holds numbers is rejected.
        required: Columns that the file must have.

    Raises:
        DataError: If the file can't be read, is not text, is too large, has another delimiter, ragged rows, nameless,
            repeated or missing columns, a cell of more than `MAX_CELL_LENGTH` characters, or no rows.
    """
    text = read_text(path, encoding, limits)
    if not text.strip():
        raise DataError.of(path, "hold a header and rows, but it is empty")
    delimiter = delimiter or sniff_delimiter(path, text)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        first = next(row for row in rows if len(row) > 1 or any(map(str.strip, row)))
    except (csv.Error, StopIteration):
        raise DataError(_long_cell_fault(path)) from None
    if columns is not None or has_header is False:
        names = [*(columns or (f"column{number}" for number in range(1, len(first) + 1)))]
        num_header_lines = 0
        wrong = f"{path} must have the {len(names)} columns {', '.join(names)}, got {len(first)} columns"
        faults = [wrong] if len(first) != len(names) else [*name_faults(path, names)]
    else:
        names = [field.strip() for field in first]
        names[0] = names[0] or (INDEX if INDEX not in names else "")
        num_header_lines = rows.line_num
        faults = _header_faults(path, names, delimiter, is_said=has_header is True)
    if faults:
        raise DataError(faults)
    table = plain_table(path, _table(path, text, delimiter, names, num_header_lines), limits=limits)
    if missing := [name for name in required if name not in names]:
        raise DataError.of(path, f"have the columns {', '.join(missing)}, but its columns are: {listed(names)}")
    return table


def _table(path: Path, text: str, delimiter: str, names: list[str], num_header_lines: int) -> pa.Table:
    """Return the rows below the header as texts; blank lines are skipped."""
    read = arrow_csv.ReadOptions(column_names=names, skip_rows=num_header_lines, block_size=LONGEST_ROW)
    parse = arrow_csv.ParseOptions(
        delimiter=delimiter,
        newlines_in_values=True,
        invalid_row_handler=lambda row: "error" if row.text.strip() else "skip",
    )
    texts = arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    try:
        return arrow_csv.read_csv(pa.BufferReader(f"{text}\n".encode()), read, parse, texts)
    except pa.ArrowInvalid as error:
        must = f"have the {len(names)} fields of the header; an unclosed quote can cause others"
        raise DataError.of(f"every row of {path}", must, shown(first_line(error))) from None


def _long_cell_fault(path: Path | str) -> str:
    must = f"have at most {MAX_CELL_LENGTH} characters, but one has more; an unclosed quote can cause this"
    return Fault(f"every cell of {path}", must)


def _header_faults(path: Path, header: list[str], delimiter: str, is_said: bool) -> list[str]:
    if len(header) == 1:
        must = f"be separated by {delimiter!r}, but its header names one column only"
        return [Fault(f"the columns of {path}", must, shown(header[0]))]
    if not is_said and (data_field := _data_field_in_header(header)):
        return [
            Fault(
                f"the first line of {path}",
                f"name the columns, but it holds {data_field[:60]!r}: federation.header=false names them "
                "column1, column2 and so on, federation.header=true reads the line as names",
            )
        ]
    return name_faults(path, header)


def _data_field_in_header(header: list[str]) -> str:
    """Return a number or date in the first line that marks it as data; empty if the line may be a header.

    Column names may be increasing numbers, such as years and positions.
    """
    if dates := [name for name in header if DATE.fullmatch(name)]:
        return dates[0]
    numbers = numbers_of_texts(header)
    present = numbers[~np.isnan(numbers)]
    is_data = (np.diff(present) <= 0).any() if len(present) > 1 else (present != np.rint(present)).any()
    return header[int(np.argmax(~np.isnan(numbers)))] if is_data else ""


def name_faults(source: Path | str, names: Sequence[str]) -> list[str]:
    """Return the faults in the number and the names of columns."""
    if len(names) > MAX_COLUMNS:
        return [Fault(source, f"have at most {MAX_COLUMNS:,} columns", f"{len(names):,}")]
    wrong = [name for name, count in Counter(names).items() if count > 1 or not 0 < len(name) <= MAX_NAME_LENGTH]
    must = f"differ, and have 1 to {MAX_NAME_LENGTH} characters"
    return [Fault(f"the column names of {source}", must, listed(map(shown, sorted(wrong))))] if wrong else []


def read_json_lines(
    path: Path, dropped: Collection[str] = (), limits: ReadLimits = USUAL_LIMITS, encoding: str | None = "utf-8"
) -> pa.Table:
    """Read a file of JSON objects, one per line; a key that an object lacks is a missing cell.

    Args:
        path: An existing file; `.gz` files, and `.zip` files with one member, are unpacked.
        dropped: Keys whose values may be of any type; their columns are returned empty.
        limits: Maximum file size.
        encoding: Encoding of the file; None to detect it.

    Raises:
        DataError: If a line is not an object, or holds an object or a list, or the file is too large or not text.
    """
    text = read_text(path, encoding, limits)
    if not text.strip():
        raise DataError.of(path, "hold one object of keys and values per line, but it is empty")
    num_keys = len(set(JSON_KEY.findall(text)))
    if num_keys * text.count("\n") > max(MOST_SPARSE_CELLS, MOST_CELLS_A_VALUE * text.count(":")):
        raise DataError.of(f"the objects of {path}", "share their keys", f"{num_keys:,} different ones")
    try:
        read = arrow_json.ReadOptions(block_size=LONGEST_ROW)
        table = arrow_json.read_json(pa.BufferReader(text.encode()), read)
    except pa.ArrowException as error:
        must = "be a JSON object whose keys hold values of one type"
        raise DataError.of(f"every line of {path}", must, shown(first_line(error))) from None
    return plain_table(path, table, dropped, limits=limits)


def column_of(values: Sequence[Any]) -> pa.Array:
    """Return Python values as a column; those of several types become text, as in a CSV file."""
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return pa.array([None if value is None else str(value) for value in values], pa.string())


def concatenated(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the concatenation of tables; a column without a common type becomes text, as in a CSV file."""
    columns: list[pa.ChunkedArray] = []
    fields: list[pa.Field] = []
    for name in tables[0].column_names:
        parts = [table.select([name]) for table in tables]
        try:
            joined = pa.concat_tables(parts, promote_options="permissive")[name]
        except pa.ArrowException:
            joined = pa.chunked_array(chunk for part in parts for chunk in pc.cast(part[name], pa.string()).chunks)
        is_category = any(table.schema.field(name).metadata for table in tables)
        columns.append(joined)
        fields.append(pa.field(name, joined.type, metadata=CATEGORY_FIELD if is_category else None))
    return pa.table(columns, schema=pa.schema(fields))


def read_parquet(path: Path, dropped: Collection[str] = (), limits: ReadLimits = USUAL_LIMITS) -> pa.Table:
    """Read a Parquet file whose columns are numbers, texts, truth values or dates and times.

    Args:
        path: An existing file.
        dropped: Columns that may be of any type; they are returned empty.
        limits: Maximum file size; bytes are those of the unpacked columns.

    Returns:
        Numbers unchanged, truth values as the texts `true` and `false`, all else as text. The index saved by pandas is
        left out.

    Raises:
        DataError: If the file can't be read, is too large, has columns of other types, repeated column names, a text of
            more than `MAX_CELL_LENGTH` characters, or no rows.
    """
    limits.check_file(path)
    with reading(path, *ARROW_ERRORS, kind="Parquet"), pq.ParquetFile(path) as file:
        limits.check_rows(path, file.metadata.num_rows)
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        limits.check_bytes(path, sum(group.total_byte_size for group in groups))
        table = file.read()
    return plain_table(path, table, dropped, limits=limits)


def read_arrow(path: Path, dropped: Collection[str] = (), limits: ReadLimits = USUAL_LIMITS) -> pa.Table:
    """Read an Arrow IPC file (Feather) with the same column types as `read_parquet`.

    Raises:
        DataError: As `read_parquet`.
    """
    limits.check_file(path)
    with reading(path, *ARROW_ERRORS, kind="an Arrow file"), pa.OSFile(str(path)) as file:
        try:
            table = pa.ipc.open_file(file).read_all()
        except pa.ArrowInvalid:
            file.seek(0)
            table = pa.ipc.open_stream(file).read_all()
        table.validate(full=True)
    limits.check_bytes(path, table.nbytes)
    return plain_table(path, table, dropped, limits=limits)


def read_frame(frame: pd.DataFrame, dropped: Collection[str] = ()) -> pa.Table:
    """Return a DataFrame as if it were read from a Parquet file: a named index becomes a column.

    Args:
        frame: Numbers, texts, truth values or dates and times.
        dropped: Columns that may be of any type; they are returned empty.

    Raises:
        DataError: If it has columns of other types, repeated column names, a text that is too long, or no rows.
    """
    empty = dict.fromkeys(name for name in dropped if name in frame.columns)
    try:
        table = pa.Table.from_pandas(frame.assign(**empty) if empty else frame)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError.of(FRAME, f"have one type per column, and unique column names: {first_line(error)}") from None
    return plain_table(FRAME, table, dropped)


def plain_table(
    source: Path | str, table: pa.Table, dropped: Collection[str] = (), *, limits: ReadLimits = NO_LIMITS
) -> pa.Table:
    """Return a table with plain cells; a saved index without a name is left out.

    Args:
        source: Source of the table, for messages.
        table: Numbers, texts, truth values or dates and times.
        dropped: Columns that may be of any type; they are returned empty.
        limits: Maximum table size.

    Raises:
        DataError: If it has columns of other types, repeated names, a text that is too long, too many rows, or none.
    """
    faults = [*name_faults(source, table.column_names), *_type_faults(source, table.schema, dropped)]
    if not faults and not len(table):
        faults = [Fault(source, "hold rows, but it has none")]
    if faults:
        raise DataError(faults)
    limits.check_rows(source, len(table))
    categories = _categorical(table.schema)
    columns: list[pa.ChunkedArray] = []
    fields: list[pa.Field] = []
    for name in table.column_names:
        if SAVED_INDEX.fullmatch(name):
            continue
        cells = pa.chunked_array([pa.nulls(len(table), pa.string())]) if name in dropped else plain_cells(table[name])
        if is_text(cells.type) and (pc.max(pc.utf8_length(cells)).as_py() or 0) > MAX_CELL_LENGTH:
            raise DataError(_long_cell_fault(source))
        columns.append(cells)
        fields.append(pa.field(name, cells.type, metadata=CATEGORY_FIELD if name in categories else None))
    return pa.table(columns, schema=pa.schema(fields))


def plain_cells(cells: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Return cells as trimmed text, float64, integers or timestamps, null where missing."""
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
    """Return the categorical columns whose values may be numbers: pandas `Categorical`, or Arrow dictionaries."""
    dictionaries = [field for field in schema if pa.types.is_dictionary(field.type)]
    categories = {field.name for field in dictionaries if not is_text(field.type.value_type)}
    with suppress(ValueError, LookupError, TypeError, AttributeError):  # damaged, or by others than pandas
        pandas_columns = schema.pandas_metadata["columns"]
        categories |= {column["name"] for column in pandas_columns if column["pandas_type"] == "categorical"}
    return categories


def _type_faults(source: Path | str, schema: pa.Schema, dropped: Collection[str]) -> Iterator[str]:
    """Yield a fault for each column whose type is not plain."""
    types = pa.types
    for column in schema:
        kind = column.type.value_type if types.is_dictionary(column.type) else column.type
        is_bytes = types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
        if column.name not in dropped and (types.is_nested(kind) or is_bytes):
            yield Fault(
                f"column {column.name!r} of {source}",
                "hold a number, text, truth value or date in every cell",
                column.type,
                f"{column_key(column.name, 'drop')} leaves it out",
            )
