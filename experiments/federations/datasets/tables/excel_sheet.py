"""Excel workbooks (`.xlsx`, `.xlsm`): the first sheet, whose first row names the columns.

Formulas are not computed: their values are those that were saved with them. Merged cells all hold what the sheet shows.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedscout.engine.errors import DataError, Fault, first_line
from fedscout.experiments.extras import extra_module
from fedscout.experiments.federations.datasets.read_limits import MAX_COLUMNS, USUAL_LIMITS, ReadLimits
from fedscout.experiments.federations.datasets.tables.hints import column_key
from fedscout.experiments.federations.datasets.tables.kept_rows import EnoughRowsError, KeptRows
from fedscout.experiments.federations.datasets.tables.text_rows import table_of_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from openpyxl.worksheet.cell_range import CellRange

BLOCK_BYTES = 2**20
FORMULA = re.compile(rb"<f[ >]")
MERGED = re.compile(rb'<mergeCell [^>]*ref="([A-Z0-9:]+)"')


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
        DataError: If the file is no workbook, too large, its first sheet is no table, or a formula has no value.
    """
    openpyxl = extra_module("openpyxl", "tables", f"reading {path} needs openpyxl")
    limits.check_file(path)
    try:
        has_formulas = _has_formulas(path, limits)
        with ExitStack() as opened:
            book = opened.enter_context(closing(openpyxl.load_workbook(path, read_only=True, data_only=True)))
            sheet = book.worksheets[0]
            areas = _merged_areas(book, sheet)
            header = next(sheet.iter_rows(max_row=1, max_col=MAX_COLUMNS + 1, values_only=True), ())
            names = _names(next(_filled(iter([header]), areas, 1), ()))
            below = {"min_row": 2, "max_col": max(1, len(names))}
            rows = opened.enter_context(closing(sheet.iter_rows(values_only=True, **below)))
            if areas:
                rows = _filled(rows, areas, 2)
            if has_formulas:
                plain = opened.enter_context(closing(openpyxl.load_workbook(path, read_only=True)))
                formulas = opened.enter_context(closing(plain.worksheets[0].iter_rows(values_only=True, **below)))
                rows = _computed(path, names, dropped, rows, formulas)
            full = (row for row in rows if row.count(None) < len(row))
            cells = ((None if name in dropped else _plain(cell) for name, cell in _paired(names, row)) for row in full)
            filled = (row for row in map(list, cells) if any(cell is not None for cell in row))
            return table_of_rows(str(path), names, filled, limits, kept)
    except (DataError, EnoughRowsError, MemoryError):
        raise
    except Exception as error:  # openpyxl lets through whatever a broken part makes of it
        raise DataError(f"{path} can't be read as an Excel workbook: {first_line(error)}") from None


def _has_formulas(path: Path, limits: ReadLimits) -> bool:
    """Return whether a sheet holds a formula; count the bytes of all parts, as what an archive says is not trusted."""
    num_bytes, found = 0, False
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as part:
                end = b""
                while block := part.read(BLOCK_BYTES):
                    num_bytes += len(block)
                    limits.check_bytes(path, num_bytes)
                    found |= FORMULA.search(end + block) is not None
                    end = block[-2:]
    return found


def _merged_areas(book: Any, sheet: Any) -> list[CellRange]:
    """Return the areas of merged cells, which openpyxl does not tell of a sheet that it reads row by row."""
    from openpyxl.worksheet.cell_range import CellRange

    with book._archive.open(sheet._worksheet_path) as part:
        found = MERGED.findall(part.read())
    return [CellRange(reference.decode()) for reference in found]


def _filled(rows: Iterator[tuple[Any, ...]], areas: list[CellRange], first: int) -> Iterator[tuple[Any, ...]]:
    """Yield rows whose merged cells all hold what the sheet shows, which the first alone does in the file.

    Args:
        rows: Those from `first` on.
        areas: Of merged cells.
        first: Number of the first row.
    """
    waiting = sorted(areas, key=lambda area: area.min_row)
    open_areas: list[tuple[CellRange, Any]] = []
    for number, row in enumerate(rows, start=first):
        open_areas = [(area, value) for area, value in open_areas if area.max_row >= number]
        while waiting and waiting[0].min_row <= number:
            area = waiting.pop(0)
            if area.max_row >= number and area.min_col <= len(row):
                open_areas.append((area, row[area.min_col - 1]))
        if open_areas:
            cells = [*row]
            for area, value in open_areas:
                cells[area.min_col - 1 : area.max_col] = [value] * (min(area.max_col, len(row)) - area.min_col + 1)
            yield tuple(cells)
        else:
            yield row


def _computed(
    path: Path,
    names: list[str],
    dropped: Collection[str],
    rows: Iterator[tuple[Any, ...]],
    formulas: Iterator[tuple[Any, ...]],
) -> Iterator[tuple[Any, ...]]:
    """Yield rows of values.

    Raises:
        DataError: If the file holds a formula, but not what it gives.
    """
    for number, (row, written) in enumerate(zip(rows, formulas, strict=True), start=2):
        for name, value, text in zip(names, row, written, strict=False):
            if value is None and isinstance(text, str) and text.startswith("=") and name not in dropped:
                raise DataError(
                    Fault(
                        f"column {name!r} of {path}",
                        (
                            f"hold values, but line {number} holds the formula {text[:60]!r} without its value, "
                            "which is stored when a spreadsheet program saves the workbook"
                        ),
                        hint=f"{column_key(name, 'drop')} leaves the column out",
                    )
                )
        yield row


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
