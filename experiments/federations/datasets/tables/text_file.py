"""Opening of one text file, packed or not, and the delimiter of its columns.

Its bytes are counted as they are unpacked, and what is no text is named.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from fedscout.engine.errors import DataError
from fedscout.experiments.federations.datasets.read_limits import (
    MAX_CELL_LENGTH,
    MAX_LINE_BYTES,
    USUAL_LIMITS,
    ReadLimits,
)

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
ENCODING = "utf-8-sig"
NUM_BYTES_LOOKED_AT = 1_048_576
NUM_LINES_LOOKED_AT = 50

BINARY = {
    b"\x80\x02": "a Python pickle, which is never opened as it can run code",
    b"\x80\x03": "a Python pickle, which is never opened as it can run code",
    b"\x80\x04": "a Python pickle, which is never opened as it can run code",
    b"\x80\x05": "a Python pickle, which is never opened as it can run code",
    b"\x93NUMPY": "a NumPy array",
    b"PAR1": "a Parquet file, whose name must end in .parquet",
    b"\x1f\x8b": "packed with gzip, so its name must end in .gz",
    b"PK\x03\x04": "a zip archive or an Excel sheet",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
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


@contextmanager
def opened(path: Path, limits: ReadLimits) -> Iterator[IO[bytes]]:
    """Open a text file, unpacked if its name says that it is packed. Reading from it raises DataErrors as well.

    Args:
        path: `.gz`, and `.zip` with one file in it, are unpacked on the fly.
        limits: Unpacking ends where they are passed, whatever the file says of its size.

    Raises:
        DataError: If it can't be read, is no regular file, no UTF-8 text, too large, or an archive of several files.
    """
    limits.check_file(path)
    try:
        with ExitStack() as stack:
            with _faults_told(path):
                file = stack.enter_context(_unpacked(path))
            yield io.BufferedReader(_CountedText(path, file, limits))
    except UnicodeDecodeError as error:
        raise DataError(f"{path} must be UTF-8 text: {error.reason} at byte {error.start}") from None


def sniff_delimiter(path: Path, limits: ReadLimits = USUAL_LIMITS) -> str:
    """Return the delimiter of a text file: the one that gives its first lines the same number of fields, above one.

    Of several such, the one with the most fields. Where none fits all lines, the one that splits the first line most,
    so that reading the file names the line that does not fit.

    Args:
        path: An existing file, as for `opened`.
        limits: How much is read.

    Raises:
        DataError: If the file is no text, is empty, has an endless first line, names one column only, or two
            delimiters fit equally well.
    """
    lines = _first_lines(path, limits)
    if not lines:
        raise DataError(f"{path} must hold a header and rows, but it is empty")
    widths = {delimiter: found for delimiter in DELIMITERS if (found := _widths(lines, delimiter))}
    if not widths:
        raise DataError(
            f"every cell of {path} must have at most {MAX_CELL_LENGTH} characters, but one has more; a quote that is "
            "left open has such an effect"
        )
    fitting = {delimiter: found[0] for delimiter, found in widths.items() if found[0] > 1 and len(set(found)) == 1}
    candidates = fitting or {delimiter: found[0] for delimiter, found in widths.items() if found[0] > 1}
    if not candidates:
        allowed = ", ".join(DELIMITERS.values())
        raise DataError(
            f"the columns of {path} must be separated by one of {allowed}, but its header names one column only: "
            f"{lines[0].strip()[:60]!r}"
        )
    most = max(candidates.values())
    best = [delimiter for delimiter, width in candidates.items() if width == most]
    if len(best) > 1:
        names = " or a ".join(DELIMITERS[delimiter] for delimiter in best)
        raise DataError(f"the columns of {path} must be separated in one way, but a {names} fits equally well")
    return best[0]


@contextmanager
def _faults_told(path: Path) -> Iterator[None]:
    try:
        yield
    except UNREADABLE as error:
        raise DataError(f"{path} can't be read: {error}") from None


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
                raise DataError(f"{path} must hold one file, got {len(members)}: {names}")
            with archive.open(members[0]) as member:
                yield member
    else:
        with path.open("rb") as plain:
            yield plain


def _first_lines(path: Path, limits: ReadLimits) -> list[str]:
    with opened(path, limits) as file:
        head = file.read(NUM_BYTES_LOOKED_AT + 1)
    is_whole = len(head) <= NUM_BYTES_LOOKED_AT
    try:
        text = codecs.getincrementaldecoder(ENCODING)().decode(head, final=is_whole)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} must be UTF-8 text: {error.reason} at byte {error.start}") from None
    with_ends = io.StringIO(text, newline="").readlines()
    lines = [line for line in (with_ends if is_whole else with_ends[:-1]) if line.strip()]
    if not lines and not is_whole:
        raise DataError(f"the first line of {path} must end within {NUM_BYTES_LOOKED_AT} bytes, but it does not")
    return lines[:NUM_LINES_LOOKED_AT]


def _widths(lines: list[str], delimiter: str) -> list[int]:
    """Return the number of fields of each line; nothing where one is too long for a field."""
    try:
        return [len(row) for row in csv.reader(lines, delimiter=delimiter, skipinitialspace=True) if row]
    except csv.Error:
        return []


class _CountedText(io.RawIOBase):
    """The bytes of a text as they are unpacked. Every block passes through Python, so signals are heard between two."""

    def __init__(self, path: Path, file: IO[bytes], limits: ReadLimits) -> None:
        self._path = path
        self._file = file
        self._limits = limits
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
                    raise DataError(f"{self._path} must be UTF-8 text, but it is {kind}")
        zero = block.find(b"\0")
        if zero >= 0:
            raise DataError(
                f"{self._path} must be UTF-8 text, but it holds a zero byte at byte {self._num_bytes + zero}"
            )
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
            raise DataError(f"every line of {self._path} must end within {MAX_LINE_BYTES} bytes, but one does not")
