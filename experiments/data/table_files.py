"""Text files as tables: encodings, separators, headers, and several files as one.

The one reader of tables: a CSV or a Parquet file becomes an Arrow table of texts, numbers and moments in time.

Nothing is guessed from text: a parser that guesses types turns a wrong delimiter, a comma decimal or a repeated header
into columns that look plausible. What a cell means is decided by `columns.py`. A cell without content is null,
whatever the format calls it: nothing between two delimiters, spaces, a null, NaN.

Files are read block by block, so that what is too much is noticed on the way and signals are heard. A few bytes of
Parquet can stand for any number of equal cells: texts are read as positions in the list of those that differ, and
counted before each cell gets a copy of its own.

Opening of one text file, packed or not, its encoding, and the delimiter of its columns.

Its bytes are counted as they are unpacked, and what is no text is named. The encoding of what is not UTF-8 is found out
by charset-normalizer (https://charset-normalizer.readthedocs.io); of those that fit equally well, cp1252 is taken.

Which rows of a table stay while it is read by blocks: a random sample of a table that is too large, or its head.

Every row gets a random number, and the rows of the smallest numbers stay: a uniform sample without replacement of known
size, whatever the number of rows and however they come in blocks (a reservoir; C. Fan, M. Muller and I. Rezucha,
"Development of sampling plans by using sequential (item by item) selection techniques and digital computers", Journal
of the American Statistical Association 57(298), 1962, method 4).
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import logging
import lzma
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt

from fedscout.engine.errors import DataError, Fault, first_line
from fedscout.engine.seeds import stream
from fedscout.engine.text import listed, shown
from fedscout.experiments.data.columns import DATE, column_key, is_text, numbers_of_texts
from fedscout.experiments.data.dataset import SEPARATORS, WHITE_SPACE
from fedscout.experiments.data.files import (
    CELL_BYTES,
    MAX_CELL_LENGTH,
    MAX_COLUMNS,
    MAX_LINE_BYTES,
    MAX_NAME_LENGTH,
    NO_LIMITS,
    USUAL_LIMITS,
    ReadLimits,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq
    from _typeshed import WriteableBuffer


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


Read = TypeVar("Read")

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
ENCODING = "utf-8-sig"
NUM_BYTES_LOOKED_AT = 1_048_576
NUM_LINES_LOOKED_AT = 50
USUAL_ENCODING = "cp1252"
NO_SINGLE_BYTES = ("utf_16", "utf_16_be", "utf_16_le", "utf_32", "utf_32_be", "utf_32_le", "utf_7")
BYTE_ORDER_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
BLANKS = re.compile(r'("(?:[^"]|"")*")|[ \t]+')

logger = logging.getLogger(__name__)

BINARY = {
    b"\x80\x02": "a Python pickle, which is never opened as it can run code",
    b"\x80\x03": "a Python pickle, which is never opened as it can run code",
    b"\x80\x04": "a Python pickle, which is never opened as it can run code",
    b"\x80\x05": "a Python pickle, which is never opened as it can run code",
    b"\x93NUMPY": "a NumPy array",
    b"PAR1": "a Parquet file, whose name must end in .parquet",
    b"\x1f\x8b": "packed with gzip, so its name must end in .gz",
    b"PK\x03\x04": "a zip archive or an Excel sheet",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"\x89HDF": "an HDF5 file",
}
UNREADABLE = (
    OSError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    RuntimeError,  # a zip archive with a password, or packed in a way that Python does not know
)


class WrongEncodingError(DataError):
    """A text file that is not of the encoding in which it is read."""


def read_text(
    path: Path, encoding: str | None, limits: ReadLimits, kept: KeptRows | None, read: Callable[[str], Read]
) -> Read:
    """Return what a text file gives, read in the encoding that it has.

    Args:
        path: An existing file, as for `opened`.
        encoding: As the user says; None means UTF-8, or else what is found out, with a note.
        limits: How much is read.
        kept: Is emptied before the file is read a second time.
        read: Reads the file in an encoding.

    Raises:
        DataError: As `read`, or if the file is not of this encoding, or of none that can be found out.
    """
    try:
        return read(ENCODING if encoding in (None, "utf-8") else encoding)
    except WrongEncodingError:
        if encoding is not None:
            raise
    found = _found_encoding(path, limits)
    if kept is not None:
        kept.restart()
    if not isinstance(kept, HeadRows):
        logger.warning("%s is not UTF-8: read as %s; federation.encoding overrules that", path, found)
    return read(found)


def _found_encoding(path: Path, limits: ReadLimits) -> str:
    import charset_normalizer

    decoder, block = codecs.getincrementaldecoder("utf-8")(), b""
    with opened(path, limits, "utf-16") as file, suppress(UnicodeDecodeError):  # behind the block that shows it
        while following := file.read(NUM_BYTES_LOOKED_AT):
            if not block and following.startswith(BYTE_ORDER_MARKS):
                return "utf-16"
            block = block[-NUM_BYTES_LOOKED_AT:] + following
            decoder.decode(following)
    sample = b"\n".join(line for line in block.splitlines() if not line.isascii())
    found = charset_normalizer.from_bytes(sample, cp_exclusion=[*NO_SINGLE_BYTES])
    best = found.best()
    if best is None:
        raise DataError(
            Fault(
                path,
                "be text in UTF-8 or an encoding that can be found out, but it is neither",
                hint="federation.encoding names the encoding of a text",
            )
        )
    equal = (match for match in found if (match.chaos, match.coherence) == (best.chaos, best.coherence))
    fitting = {encoding for match in equal for encoding in match.could_be_from_charset}
    return USUAL_ENCODING if USUAL_ENCODING in fitting else best.encoding


@contextmanager
def opened(path: Path, limits: ReadLimits, encoding: str = ENCODING) -> Iterator[IO[bytes]]:
    """Open a text file, unpacked if its name says that it is packed. Reading from it raises DataErrors as well.

    Args:
        path: `.gz`, and `.zip` with one file in it, are unpacked on the fly.
        limits: Unpacking ends where they are passed, whatever the file says of its size.
        encoding: In which the caller decodes the bytes, which come as they are.

    Raises:
        WrongEncodingError: If its bytes are no text of this encoding.
        DataError: If it can't be read, is no regular file, no text, too large, or an archive of several files.
    """
    limits.check_file(path)
    try:
        with ExitStack() as stack:
            with _faults_told(path):
                file = stack.enter_context(_unpacked(path))
            yield io.BufferedReader(_CountedText(path, file, limits, encoding))
    except UnicodeError as error:
        raise _wrong_encoding(path, encoding, error) from None


def sniff_delimiter(path: Path, limits: ReadLimits = USUAL_LIMITS, encoding: str = ENCODING) -> str:
    """Return the delimiter of a text file: the one that gives its first lines the same number of fields, above one.

    Of several such, the one with the most fields; white space only where no other does so. Where none fits all lines,
    the one that splits the first line most, so that reading the file names the line that does not fit.

    Args:
        path: An existing file, as for `opened`.
        limits: How much is read.
        encoding: Of the file.

    Raises:
        DataError: If the file is no text, is empty, has an endless first line, names one column only, or two
            delimiters fit equally well.
    """
    lines = _first_lines(path, limits, encoding)
    if not lines:
        raise DataError(Fault(path, "hold a header and rows, but it is empty"))
    widths = {delimiter: found for delimiter in DELIMITERS if (found := _widths(lines, delimiter))}
    if not widths:
        raise DataError(
            Fault(
                f"every cell of {path}",
                f"have at most {MAX_CELL_LENGTH} characters, but one has more",
                hint="a quote that is left open has such an effect",
            )
        )
    fitting = {delimiter: found[0] for delimiter, found in widths.items() if found[0] > 1 and len(set(found)) == 1}
    candidates = fitting or {delimiter: found[0] for delimiter, found in widths.items() if found[0] > 1}
    if not candidates:
        blanks = _widths(lines, WHITE_SPACE)
        if len(blanks) > 1 and blanks[0] > 1 and len(set(blanks)) == 1:
            return WHITE_SPACE
        raise DataError(
            Fault(
                f"the columns of {path}",
                (
                    f"be separated by one of {', '.join(SEPARATORS)}, but its header names one column "
                    f"only: {lines[0].strip()[:60]!r}"
                ),
                hint="federation.separator names another character",
            )
        )
    most = max(candidates.values())
    best = [delimiter for delimiter, width in candidates.items() if width == most]
    if len(best) > 1:
        names = [DELIMITERS[delimiter] for delimiter in best]
        ways = " or ".join(f"federation.separator={name}" for name in names)
        raise DataError(
            Fault(
                f"the columns of {path}",
                f"be separated in one way, but a {' or a '.join(names)} fits equally well: {ways}",
            )
        )
    return best[0]


@contextmanager
def _faults_told(path: Path) -> Iterator[None]:
    try:
        yield
    except UNREADABLE as error:
        raise DataError(Fault(path, problem=f"can't be read: {error}")) from None


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
                raise DataError(Fault(path, "hold one file", f"{len(members)}: {names}"))
            with archive.open(members[0]) as member:
                yield member
    else:
        with path.open("rb") as plain:
            yield plain


def _first_lines(path: Path, limits: ReadLimits, encoding: str) -> list[str]:
    with opened(path, limits, encoding) as file:
        head = file.read(NUM_BYTES_LOOKED_AT + 1)
    is_whole = len(head) <= NUM_BYTES_LOOKED_AT
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(head, final=is_whole)
    except UnicodeError as error:
        raise _wrong_encoding(path, encoding, error) from None
    with_ends = io.StringIO(text, newline="").readlines()
    lines = [line for line in (with_ends if is_whole else with_ends[:-1]) if line.strip()]
    if not lines and not is_whole:
        raise DataError(Fault(f"the first line of {path}", f"end within {NUM_BYTES_LOOKED_AT} bytes, but it does not"))
    return lines[:NUM_LINES_LOOKED_AT]


def _widths(lines: list[str], delimiter: str) -> list[int]:
    """Return the number of fields of each line; nothing where one is too long for a field."""
    try:
        return [len(row) for row in fields(lines, delimiter) if row]
    except csv.Error:
        return []


def fields(lines: Iterable[str], delimiter: str) -> Any:
    """Return a reader of the fields of each row; of `WHITE_SPACE` runs of it count as one, but in quotes."""
    if delimiter == WHITE_SPACE:
        single = (BLANKS.sub(lambda found: found[1] or WHITE_SPACE, line.strip()) + "\n" for line in lines)
        return csv.reader(single, delimiter=WHITE_SPACE)
    return csv.reader(lines, delimiter=delimiter, skipinitialspace=True)


def _wrong_encoding(path: Path, encoding: str, error: UnicodeError) -> WrongEncodingError:
    name = "UTF-8" if encoding == ENCODING else encoding
    where = f" at byte {error.start}" if isinstance(error, UnicodeDecodeError) else ""
    reason = error.reason if isinstance(error, UnicodeDecodeError) else str(error)
    return WrongEncodingError(Fault(path, f"be {name} text", f"{reason}{where}"))


class _CountedText(io.RawIOBase):
    """The bytes of a text as they are unpacked. Every block passes through Python, so signals are heard between two."""

    def __init__(self, path: Path, file: IO[bytes], limits: ReadLimits, encoding: str) -> None:
        self._path = path
        self._file = file
        self._limits = limits
        self._encoding = encoding
        self._is_wide = encoding.startswith(("utf-16", "utf-32"))
        self._num_bytes = 0
        self._num_line_bytes = 0

    def readable(self) -> bool:
        """Whether it can be read: yes."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill a buffer as far as there are bytes; return how many there were."""
        view = memoryview(buffer).cast("B")
        with _faults_told(self._path):
            block = self._file.read(min(len(view), self._limits.max_bytes + 1 - self._num_bytes))
        if self._num_bytes == 0:
            for start, kind in BINARY.items():
                if block.startswith(start):
                    raise DataError(Fault(self._path, f"be text, but it is {kind}"))
            if block.startswith(BYTE_ORDER_MARKS) and not self._is_wide:
                raise WrongEncodingError(f"{self._path} must be {self._encoding} text, but it is UTF-16")
        zero = -1 if self._is_wide else block.find(b"\0")
        if zero >= 0:
            raise DataError(Fault(self._path, f"be text, but it holds a zero byte at byte {self._num_bytes + zero}"))
        self._num_bytes += len(block)
        self._limits.check_bytes(self._path, self._num_bytes)
        self._check_line(block)
        view[: len(block)] = block
        return len(block)

    def _check_line(self, block: bytes) -> None:
        """Refuse a line without end before a parser has all of it in memory."""
        end = max(block.rfind(b"\n"), block.rfind(b"\r"))
        self._num_line_bytes = len(block) - end - 1 + (self._num_line_bytes if end < 0 else 0)
        if self._num_line_bytes > MAX_LINE_BYTES:
            raise DataError(
                Fault(f"every line of {self._path}", f"end within {MAX_LINE_BYTES} bytes, but one does not")
            )


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
        raise DataError(Fault(path, problem=f"can't be read as Parquet: {reason}")) from None
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
    path: Path | str, blocks: Iterable[pa.RecordBatch], limits: ReadLimits, hint: str = "", kept: KeptRows | None = None
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
