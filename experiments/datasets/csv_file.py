"""Strict reading of one delimited text file.

Everything is read as text first: a parser that guesses types turns a wrong delimiter, a comma decimal or a repeated
header into columns that look plausible. What a cell means is decided by `columns.py` and `column_kinds.py`.
"""

from __future__ import annotations

import csv
import gzip
import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from engine.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
ENCODING = "utf-8-sig"
INDEX = "index"
NUM_BYTES_LOOKED_AT = 65_536
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


def read_csv(
    path: Path, delimiter: str, columns: tuple[str, ...] | None = None, nameless_index: bool = False
) -> pd.DataFrame:
    """Read a file whose first line names the columns, or one without such a line.

    Args:
        path: An existing file; `.gz`, and `.zip` with one file in it, are unpacked on the fly.
        delimiter: One of `DELIMITERS`.
        columns: The columns of a file that does not name them; None where the first line does.
        nameless_index: Whether the first column may lack a name; it is then called `index`.

    Returns:
        Text cells, spaces at their ends removed, an absent one as the empty text.

    Raises:
        DataError: If the file cannot be read, is no text, has another delimiter, ragged rows, nameless or repeated
            columns, or no rows.
    """
    import pandas as pd

    cells = _cells(path, delimiter)
    if columns is None:
        header = [str(name) for name in cells.iloc[0]]
        if nameless_index and header[0] == "" and INDEX not in header:
            header[0] = INDEX
        faults = list(_header_faults(path, header, delimiter))
        rows = cells.iloc[1:].reset_index(drop=True)
        if not len(rows):
            faults.append(f"{path} must hold rows below its header, but it has none")
    else:
        header, rows = list(columns), cells.copy()
        faults = [] if cells.shape[1] == len(columns) else [_width_fault(path, cells.shape[1], columns)]
    faults = faults or _ragged_faults(path, delimiter, cells)
    if faults:
        raise DataError(faults)
    rows.columns = pd.Index(header)
    return rows


def sniff_delimiter(path: Path) -> str:
    """Return the delimiter of a text file: the one that gives its first lines the same number of fields, above one.

    Of several such, the one with the most fields. Where none fits all lines, the one that splits the first line most,
    so that reading the file names the line that does not fit.

    Args:
        path: An existing file, as for `read_csv`.

    Raises:
        DataError: If the file is no text, is empty, names one column only, or two delimiters fit equally well.
    """
    lines = _first_lines(path)
    if not lines:
        raise DataError(f"{path} must hold a header and rows, but it is empty")
    widths = {delimiter: [len(row) for row in _split(lines, delimiter)] for delimiter in DELIMITERS}
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


def require_columns(path: Path, rows: pd.DataFrame, wanted: tuple[str, ...]) -> None:
    """Check that a file has certain columns.

    Args:
        path: Where the rows were read from.
        rows: As `read_csv` returned them.
        wanted: Column names.

    Raises:
        DataError: If any is missing; all of them and the columns found are named.
    """
    missing = [name for name in wanted if name not in rows.columns]
    if missing:
        found = ", ".join(map(str, rows.columns))
        raise DataError(f"{path} must have the columns {', '.join(missing)}, but its columns are: {found}")


def _cells(path: Path, delimiter: str) -> pd.DataFrame:
    """Return all lines as text, the header among them."""
    import pandas as pd

    try:
        with opened(path) as file:
            raw = pd.read_csv(
                file,
                sep=delimiter,
                header=None,
                dtype=str,
                keep_default_na=False,
                na_values=[""],
                encoding=ENCODING,
                skipinitialspace=True,
            )
    except pd.errors.EmptyDataError:
        raise DataError(f"{path} must hold a header and rows, but it is empty") from None
    except pd.errors.ParserError as error:
        reason = str(error).removeprefix("Error tokenizing data. C error: ").strip()
        raise DataError(f"every line of {path} must have as many fields as the header: {reason}") from None
    cells: pd.DataFrame = raw.fillna("").apply(lambda column: column.str.strip())
    return cells


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a text file, unpacked if its name says that it is packed.

    Raises:
        DataError: If it can't be read, is no UTF-8 text, or is an archive of several files.
    """
    try:
        with _unpacked(path) as file:
            head = file.read(NUM_BYTES_LOOKED_AT)
            _refuse_binary(path, head)
            file.seek(0)
            yield file
    except UnicodeDecodeError as error:
        raise DataError(f"{path} must be UTF-8 text: {error.reason} at byte {error.start}") from None
    except (OSError, EOFError, zlib.error, csv.Error, zipfile.BadZipFile) as error:
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


def _refuse_binary(path: Path, head: bytes) -> None:
    for start, kind in BINARY.items():
        if head.startswith(start):
            raise DataError(f"{path} must be UTF-8 text, but it is {kind}")
    if b"\0" in head:
        raise DataError(f"{path} must be UTF-8 text, but it holds a zero byte at byte {head.index(0)}")


def _first_lines(path: Path) -> list[str]:
    with opened(path) as file, io.TextIOWrapper(file, encoding=ENCODING, newline="") as text:
        lines = (line for line in text if line.strip())
        return list(islice(lines, NUM_LINES_LOOKED_AT))


def _split(lines: list[str], delimiter: str) -> list[list[str]]:
    return [row for row in csv.reader(lines, delimiter=delimiter, skipinitialspace=True) if row]


def _header_faults(path: Path, header: list[str], delimiter: str) -> list[str]:
    if len(header) == 1:
        found = [name for character, name in DELIMITERS.items() if character != delimiter and character in header[0]]
        seen = f"its header holds a {found[0]} instead" if found else "its header names one column only"
        return [f"the columns of {path} must be separated by a {DELIMITERS[delimiter]} ({delimiter!r}), but {seen}"]
    faults = []
    if "" in header:
        faults.append(f"every column of {path} must have a name, but column {header.index('') + 1} has none")
    repeated = sorted({name for name in header if name and header.count(name) > 1})
    if repeated:
        faults.append(f"the column names of {path} must differ, but {', '.join(map(repr, repeated))} occurs repeatedly")
    return faults


def _width_fault(path: Path, width: int, columns: tuple[str, ...]) -> str:
    return f"{path} must have the {len(columns)} columns {', '.join(columns)}, got {width} columns"


def _ragged_faults(path: Path, delimiter: str, cells: pd.DataFrame) -> list[str]:
    """Name the first line that is too short: the parser fills it up, and its last cell is empty then."""
    width = cells.shape[1]
    if not (cells.iloc[:, -1] == "").any():
        return []
    with opened(path) as file, io.TextIOWrapper(file, encoding=ENCODING, newline="") as text:
        reader = csv.reader(text, delimiter=delimiter, skipinitialspace=True)
        for row in reader:
            blank = not any(cell.strip() for cell in row) and len(row) < 2
            if len(row) != width and not blank:
                return [
                    f"every line of {path} must have as many fields as the header: line {reader.line_num} has "
                    f"{len(row)} fields, the header {width}"
                ]
    return []
