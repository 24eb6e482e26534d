"""Opening of one text file, packed or not, its encoding, and the delimiter of its columns.

Its bytes are counted as they are unpacked, and what is no text is named. The encoding of what is not UTF-8 is found out
by charset-normalizer (https://charset-normalizer.readthedocs.io); of those that fit equally well, cp1252 is taken.
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
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.datasets.read_limits import (
    MAX_CELL_LENGTH,
    MAX_LINE_BYTES,
    USUAL_LIMITS,
    ReadLimits,
)
from fedscout.experiments.federations.datasets.tables.kept_rows import HeadRows, KeptRows
from fedscout.experiments.federations.datasets.text_style import SEPARATORS, WHITE_SPACE

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

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
    return WrongEncodingError(f"{path} must be {name} text: {reason}{where}")


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
