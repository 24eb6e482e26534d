"""Excel workbooks (`.xlsx`, `.xlsm`): the first sheet, whose first row names the columns. Formulas are not computed."""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedscout.engine.errors import DataError, first_line
from fedscout.experiments.extras import extra_module
from fedscout.experiments.federations.datasets.read_limits import USUAL_LIMITS, ReadLimits
from fedscout.experiments.federations.datasets.tables.kept_rows import EnoughRowsError, KeptRows
from fedscout.experiments.federations.datasets.tables.text_rows import table_of_rows

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES = 2**20


def read_excel(
    path: Path, dropped: Collection[str] = (), limits: ReadLimits = USUAL_LIMITS, kept: KeptRows | None = None
) -> pa.Table:
    """Read a workbook's first sheet; of a formula, the value that was saved with it.

    Args:
        path: An existing file.
        dropped: Columns that come back empty.
        limits: How much is read; bytes are counted as the workbook's parts are unpacked.
        kept: Takes the rows in place of the table, which comes back empty.

    Raises:
        ConfigurationError: If openpyxl is not installed.
        DataError: If the file is no workbook, too large, or its first sheet is no table.
    """
    openpyxl = extra_module("openpyxl", "tables", f"reading {path} needs openpyxl")
    limits.check_file(path)
    try:
        _check_unpacked(path, limits)
        with closing(openpyxl.load_workbook(path, read_only=True, data_only=True)) as book:
            rows: Iterator[Any] = book.worksheets[0].iter_rows(values_only=True)
            names = _names(next(rows, ()))
            cells = ((None if name in dropped else _plain(cell) for name, cell in _paired(names, row)) for row in rows)
            filled = (row for row in map(list, cells) if any(cell is not None for cell in row))
            return table_of_rows(str(path), names, filled, limits, kept)
    except (DataError, EnoughRowsError, MemoryError):
        raise
    except Exception as error:  # openpyxl lets through whatever a broken part makes of it
        raise DataError(f"{path} can't be read as an Excel workbook: {first_line(error)}") from None


def _check_unpacked(path: Path, limits: ReadLimits) -> None:
    """Count the bytes of all parts as they are unpacked: what an archive says of its size is not trusted."""
    num_bytes = 0
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as part:
                while block := part.read(BLOCK_BYTES):
                    num_bytes += len(block)
                    limits.check_bytes(path, num_bytes)


def _names(header: tuple[Any, ...]) -> list[str]:
    """Return the names of the columns, without empty ones behind the last."""
    names = ["" if cell is None else str(cell).strip() for cell in header]
    while names and not names[-1]:
        names.pop()
    return names


def _paired(names: list[str], row: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    return zip(names, (*row, *[None] * len(names)), strict=False)


def _plain(cell: Any) -> Any:
    """Return a cell; Excel has numbers alone, so a whole one is written without its point."""
    return int(cell) if isinstance(cell, float) and cell.is_integer() else cell
