"""Strict reading of one delimited text file.

Everything is read as text first: a parser that guesses types turns a wrong delimiter, a comma decimal or a repeated
header into columns that look plausible. What a cell means is decided by `columns.py`.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}


def read_csv(path: Path, delimiter: str) -> pd.DataFrame:
    """Read a file whose first line names the columns.

    Args:
        path: An existing file; `.gz` is unpacked on the fly.
        delimiter: One of `DELIMITERS`.

    Returns:
        Text cells, spaces at their ends removed, an absent one as the empty text.

    Raises:
        DataError: If the file cannot be read, has another delimiter, ragged rows, nameless or repeated columns, or no
            rows.
    """
    import pandas as pd

    try:
        raw = pd.read_csv(
            path,
            sep=delimiter,
            header=None,
            dtype=str,
            keep_default_na=False,
            na_values=[""],
            encoding="utf-8-sig",
            skipinitialspace=True,
        )
    except pd.errors.EmptyDataError:
        raise DataError(f"{path} must hold a header and rows, but it is empty") from None
    except pd.errors.ParserError as error:
        reason = str(error).removeprefix("Error tokenizing data. C error: ").strip()
        raise DataError(f"every line of {path} must have as many fields as the header: {reason}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} must be UTF-8 text: {error.reason} at byte {error.start}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} can't be read: {error}") from None
    cells = raw.fillna("").apply(lambda column: column.str.strip())
    header = [str(name) for name in cells.iloc[0]]
    faults = list(_header_faults(path, header, delimiter))
    if len(cells) == 1:
        faults.append(f"{path} must hold rows below its header, but it has none")
    if faults:
        raise DataError(faults)
    rows: pd.DataFrame = cells.iloc[1:].reset_index(drop=True)
    rows.columns = pd.Index(header)
    return rows


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
