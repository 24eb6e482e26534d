"""Readers of the user's tables, selected by file suffix or database address: Excel, NumPy arrays, databases.

Excel: the first sheet, whose first row names the columns. Formulas are not computed: their stored values are read.
Every merged cell holds the value that the sheet displays.

NumPy (`.npz`): arrays named `x` and `y`, and `client` if each row has a client; or the parts `x_train`, `y_train`,
`x_test` and `y_test`, as in Keras' `mnist.npz`, which are concatenated. Rows of numbers are a table of the columns
`x0`, `x1`, …, `y` and `client`; rows of two or three axes are images (`own.py`). Pickled objects are never loaded.

Databases: the rows of one SELECT (`federation.query`). SQLite and DuckDB files are opened read-only in a separate
process (`query_process.py`), as neither limits the resources of a query. Others are accessed by SQLAlchemy; the
statement runs in a transaction that is rolled back, read-only on PostgreSQL. The address is logged, so it must not
contain a password: `FEDSCOUT_DATABASE_PASSWORD` holds it, or a variable of the database driver, such as `PGPASSWORD`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.errors import ConfigurationError, DataError, Fault, first_line
from fedscout.engine.seeds import stream
from fedscout.engine.text import listed, shown
from fedscout.experiments.data import query_process
from fedscout.experiments.data.columns import column_key
from fedscout.experiments.data.dataset import DatasetRequest
from fedscout.experiments.data.files import (
    MAX_QUERY_SECONDS,
    NO_LIMITS,
    USUAL_LIMITS,
    ReadLimits,
    TooLargeError,
)
from fedscout.experiments.data.table_files import (
    TableRows,
    plain_table,
    read_arrow,
    read_csv,
    read_json_lines,
    read_parquet,
    table_of_rows,
)
from fedscout.experiments.text import extra_module

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlalchemy import URL, CursorResult

ARRAY_SUFFIX = ".npz"
ROWS, LABEL, CLIENT = "x", "y", "client"
PARTS = ("_train", "_test")
Arrays = dict[str, npt.NDArray[Any]]


def read_array_table(path: Path, limits: ReadLimits) -> pa.Table:
    """Read arrays as a table of plain cells.

    Raises:
        DataError: If the file can't be read, holds other arrays, objects or images, or is too large.
    """
    import pyarrow as pa

    arrays = read_arrays(path, limits)
    rows = arrays.pop(ROWS)
    if rows.ndim != 2:
        raise DataError.of(f"the rows of {path}", "have two dimensions to be a table", f"the shape {rows.shape}")
    columns = {f"{ROWS}{number}": rows[:, number] for number in range(rows.shape[1])} | arrays
    return plain_table(path, pa.table({name: pa.array(cells) for name, cells in columns.items()}))


def read_arrays(path: Path, limits: ReadLimits) -> Arrays:
    """Return the arrays by name, with parts concatenated.

    Raises:
        DataError: If the file can't be read, holds other arrays or objects, or is too large.
    """
    limits.check_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            limits.check_bytes(path, sum(member.file_size for member in archive.infolist()))
        with np.load(path, allow_pickle=False) as file:
            parts = _parts(path, file.files)
            arrays = {part: file[part] for names in parts.values() for part in names}
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        raise DataError.of(path, problem=f"can't be read as NumPy arrays: {first_line(error)}") from None
    faults = [fault for name, array in arrays.items() if (fault := _array_fault(path, name, array))]
    lengths = {name: sum(len(arrays[part]) for part in names) for name, names in parts.items()} if not faults else {}
    if len(set(lengths.values())) > 1:
        faults.append(Fault(f"the arrays of {path}", "have the same number of rows", lengths))
    if faults:
        raise DataError(faults)
    limits.check_rows(path, lengths[ROWS])
    return {name: np.concatenate([arrays[part] for part in names]) for name, names in parts.items()}


def _parts(path: Path, names: Collection[str]) -> dict[str, list[str]]:
    """Return the names of the parts of each array."""
    if {ROWS, LABEL} <= {*names}:
        return {name: [name] for name in (ROWS, LABEL, CLIENT) if name in names}
    parts = [part for part in PARTS if ROWS + part in names and LABEL + part in names]
    if not parts:
        expected = f"{ROWS!r} and {LABEL!r}, or {ROWS}_train, {LABEL}_train, {ROWS}_test and {LABEL}_test"
        raise DataError.of(path, f"hold the arrays {expected}", listed(names) or "none")
    return {name: [name + part for part in parts] for name in (ROWS, LABEL)}


def _array_fault(path: Path, name: str, array: npt.NDArray[Any]) -> str | None:
    is_rows = name.startswith(ROWS)
    if array.dtype.kind not in ("fiub" if is_rows else "fiubU"):
        return Fault(f"the array {name!r} of {path}", f"hold numbers{'' if is_rows else ' or texts'}", array.dtype)
    if array.ndim not in ((2, 3, 4) if is_rows else (1,)) or not array.size:
        return Fault(f"the array {name!r} of {path}", f"not have the shape {array.shape}")
    return None


def read_excel(path: Path, dropped: Collection[str] = (), limits: ReadLimits = USUAL_LIMITS) -> pa.Table:
    """Read a workbook's first sheet, with the stored values of formulas.

    Args:
        path: An existing file.
        dropped: Columns that are returned empty.
        limits: Maximum file size; bytes are those of its unpacked parts.

    Raises:
        ConfigurationError: If openpyxl is not installed.
        DataError: If the file is not a workbook, is too large, its first sheet is not a table, or a formula has no
            value.
    """
    openpyxl = extra_module("openpyxl", "tables", f"reading {path}")
    limits.check_file(path)
    try:
        with path.open("rb") as file:  # openpyxl leaves a damaged file open that it opened itself
            limits.check_bytes(path, sum(member.file_size for member in zipfile.ZipFile(file).infolist()))
            written = openpyxl.load_workbook(file).worksheets[0]
            formulas = {position: cell for position, cell in written._cells.items() if cell.data_type == "f"}
            sheet = openpyxl.load_workbook(file, data_only=True).worksheets[0] if formulas else written
        cells = _displayed_cells(sheet)
        num_columns = max((column for row, column in cells if row == 1), default=0)
        names = [str(cells.get((1, column), "")).strip() for column in range(1, num_columns + 1)]
        used = {column for column, name in enumerate(names, start=1) if name not in dropped}
        for (row, column), formula in formulas.items():
            if column in used and (row, column) not in cells:
                raise DataError(_formula_fault(path, names[column - 1], formula))
        lines = sorted({row for row, column in cells if row > 1 and column in used})
        rows = ([cells.get((row, column)) for column in range(1, num_columns + 1)] for row in lines)
        return table_of_rows(path, names, rows, limits, dropped)
    except (DataError, MemoryError):
        raise
    except Exception as error:  # openpyxl raises whatever a broken part leads to
        raise DataError.of(path, problem=f"can't be read as an Excel workbook: {first_line(error)}") from None


def _displayed_cells(sheet: Any) -> dict[tuple[int, int], Any]:
    """Return the displayed values of a sheet, by row and column; empty cells are omitted.

    Excel stores every number as a float, so integral values are converted to int.
    """
    values = {position: cell.value for position, cell in sheet._cells.items()}  # `iter_rows` would create empty cells
    for area in sheet.merged_cells.ranges:
        values |= dict.fromkeys(area.cells, sheet.cell(area.min_row, area.min_col).value)
    return {
        position: int(value) if isinstance(value, float) and value.is_integer() else value
        for position, value in values.items()
        if value is not None
    }


def _formula_fault(path: Path, name: str, cell: Any) -> str:
    return Fault(
        f"column {name!r} of {path}",
        f"hold values, but line {cell.row} holds the formula {str(cell.value)[:60]!r} without its value, which is "
        "stored when a spreadsheet program saves the workbook",
        hint=f"{column_key(name, 'drop')} leaves the column out",
    )


SQLITE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
DUCKDB_SUFFIXES = (".duckdb", ".ddb")
PASSWORD_VARIABLE = "FEDSCOUT_DATABASE_PASSWORD"  # noqa: S105 the name of a variable
ROWS_AT_ONCE = 10_000
READS = re.compile(r"(select|with)\b", re.IGNORECASE)
WRITES = re.compile(r";|\binto\b", re.IGNORECASE)  # another statement; rows into a table or a file
SECRETS = ("pass", "pwd", "token", "secret")


def read_database(
    place: Path | str,
    query: str | None,
    dropped: Collection[str] = (),
    limits: ReadLimits = USUAL_LIMITS,
    seconds: float = MAX_QUERY_SECONDS,
) -> pa.Table:
    """Read the rows of one statement.

    Args:
        place: SQLite or DuckDB file, or the address of a database in SQLAlchemy's syntax.
        query: One SELECT; None reads the only table of a file.
        dropped: Columns that are returned empty.
        limits: Maximum table size; bytes are counted as text.
        seconds: Time limit for reading all rows.

    Raises:
        ConfigurationError: If the statement is not one SELECT, the address holds a password, or a library is missing.
        DataError: If the database can't be read, takes too long, or returns too much.
    """
    statement = None if query is None else query.strip().removesuffix(";").rstrip()
    if statement is not None and (not READS.match(statement) or WRITES.search(statement)):
        raise ConfigurationError.of("federation.query", "be one SELECT, without INTO or a semicolon", shown(query))
    if isinstance(place, Path):
        limits.check_file(place)
        return _rows_of_file(place, {"query": statement, "dropped": [*dropped], **asdict(limits)}, limits, seconds)
    if statement is None:
        raise ConfigurationError.of("federation.query", "be a SELECT statement for data in a database", "nothing")
    with _query_result(place, statement, seconds) as result:
        return table_of_rows(place, [*map(str, result.keys())], result, limits, dropped)


def _rows_of_file(path: Path, read: Mapping[str, Any], limits: ReadLimits, seconds: float) -> pa.Table:
    import pyarrow as pa

    is_duckdb = path.name.lower().endswith(DUCKDB_SUFFIXES)
    if is_duckdb:
        extra_module("duckdb", "tables", f"reading {path}")
    try:
        process = subprocess.run(  # noqa: S603 our own program
            [sys.executable, "-m", query_process.__name__],
            input=json.dumps({**read, "path": str(path), "is_duckdb": is_duckdb}).encode(),
            capture_output=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DataError(
            f"the query of {path} must finish within federation.max_query_seconds={seconds:g} seconds, but takes longer"
        ) from None
    if process.returncode in query_process.FAULTS:
        raise query_process.FAULTS[process.returncode](json.loads(process.stderr.splitlines()[-1]))
    if process.returncode:
        last_line = process.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        reason = last_line or f"its process ended with {process.returncode}"
        raise DataError.of(path, problem=f"can't be read as a database: {reason}")
    with pa.ipc.open_stream(process.stdout) as reader:
        return plain_table(path, reader.read_all(), limits=limits)


@contextmanager
def _query_result(place: str, query: str, seconds: float) -> Iterator[CursorResult[Any]]:
    import sqlalchemy
    from sqlalchemy import exc

    url = _address(place)
    try:
        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
        with engine.connect() as base_connection:
            is_postgresql = url.get_backend_name() == "postgresql"
            options = {"postgresql_readonly": True} if is_postgresql else {}
            connection = base_connection.execution_options(stream_results=True, yield_per=ROWS_AT_ONCE, **options)
            if is_postgresql:
                connection.exec_driver_sql(f"SET LOCAL statement_timeout = {1000 * seconds:.0f}")
            yield connection.exec_driver_sql(query)
            connection.rollback()
    except exc.SQLAlchemyError as error:
        raise DataError.of(
            url.render_as_string(), problem=f"can't be read as a database: {first_line(error)}"
        ) from None
    except ImportError as error:
        raise ConfigurationError.of(
            f"reading {url.render_as_string()}",
            problem="needs a driver that is not installed",
            hint=f"pip install {error.name}",
        ) from None


def _address(place: str) -> URL:
    """Return the address of a database, with the password from the environment.

    Raises:
        ConfigurationError: If it holds a password or is not an address.
    """
    import sqlalchemy

    try:
        url = sqlalchemy.make_url(place)
    except sqlalchemy.exc.ArgumentError:
        raise ConfigurationError.of(
            "federation.dataset", "be an address such as postgresql://user@host/name if it names a database"
        ) from None
    if url.password is not None or any(word in key.lower() for key in url.query for word in SECRETS):
        raise ConfigurationError.of(
            "federation.dataset",
            f"hold no password, as it is logged; set {PASSWORD_VARIABLE} instead",
            url.set(query={}).render_as_string(),
        )
    return url.set(password=os.environ[PASSWORD_VARIABLE]) if PASSWORD_VARIABLE in os.environ else url


PACKINGS = ("", ".gz", ".zip")
PARQUET_SUFFIXES = (".parquet", ".pq")
TEXT_SUFFIXES = tuple(kind + packing for kind in (".csv", ".tsv", ".txt") for packing in PACKINGS)
JSON_SUFFIXES = tuple(kind + packing for kind in (".jsonl", ".ndjson") for packing in PACKINGS)
ARROW_SUFFIXES = (".feather", ".arrow", ".ipc")
EXCEL_SUFFIXES = (".xlsx", ".xlsm")
DATABASE_SUFFIXES = (*SQLITE_SUFFIXES, *DUCKDB_SUFFIXES)
SUFFIXES = (*PARQUET_SUFFIXES, *TEXT_SUFFIXES, *JSON_SUFFIXES, *ARROW_SUFFIXES, *EXCEL_SUFFIXES, *DATABASE_SUFFIXES)
UNSAFE_SUFFIXES = (".pkl", ".pickle", ".p", ".joblib", ".npy", ".pt", ".pth", ".h5", ".hdf5", ".mat", ".rds")

logger = logging.getLogger(__name__)


def read_table(place: Path | str, request: DatasetRequest) -> TableRows:
    """Read a table of the user.

    Args:
        place: A file, or the address of a database.
        request: Dropped columns and size limits.

    Raises:
        ConfigurationError: If a library for it is missing, or `federation.query` does not apply.
        DataError: If it can't be read, is too large, or has an unsupported format.
    """
    try:
        return TableRows(_read(place, request, request.limits))
    except TooLargeError as error:
        if request.max_rows is None or is_array_file(place):
            raise
        table = _read(place, request, NO_LIMITS)
        draws = stream(request.row_seed, "rows-read").random(len(table))
        rows = table.take(np.sort(np.argsort(draws, kind="stable")[: request.max_rows]))
        reason = str(error).partition(" must ")[2]
        logger.warning("%s must %s: a random sample of %s of its %s rows is read", place, reason, len(rows), len(table))
        return TableRows(rows, facts={"num_rows_not_sampled": len(table) - len(rows)})


def is_array_file(place: Path | str) -> bool:
    """Return whether a file holds NumPy arrays, which may be images."""
    return isinstance(place, Path) and place.name.lower().endswith(ARRAY_SUFFIX)


def _read(place: Path | str, request: DatasetRequest, limits: ReadLimits) -> pa.Table:
    name = place.name.lower() if isinstance(place, Path) else ""
    if isinstance(place, str) or name.endswith(DATABASE_SUFFIXES):
        return read_database(place, request.query, request.dropped, limits, request.max_query_seconds)
    _reject_unused_settings(request, name)
    if name.endswith(TEXT_SUFFIXES):
        return read_csv(place, request.separator, None, limits, request.encoding, request.header)
    if is_array_file(place):
        return read_array_table(place, limits)
    if name.endswith(JSON_SUFFIXES):
        return read_json_lines(place, request.dropped, limits, request.encoding)
    readers = {PARQUET_SUFFIXES: read_parquet, ARROW_SUFFIXES: read_arrow, EXCEL_SUFFIXES: read_excel}
    for suffixes, reader in readers.items():
        if name.endswith(suffixes):
            return reader(place, request.dropped, limits)
    raise _unknown_format(place)


def _reject_unused_settings(request: DatasetRequest, name: str) -> None:
    """Reject settings of databases, and those of text files for other files.

    Raises:
        ConfigurationError: Lists each of these keys.
    """
    is_text = name.endswith(TEXT_SUFFIXES)
    uses = {
        "query": (False, "databases"),
        "encoding": (is_text or name.endswith(JSON_SUFFIXES), "text files"),
        "separator": (is_text, "text files"),
        "header": (is_text, "text files"),
    }
    faults = [
        Fault(f"federation.{key}", f"only be given for {what}", f"{getattr(request, key)!r} for {name}")
        for key, (is_used, what) in uses.items()
        if not is_used and getattr(request, key) is not None
    ]
    if faults:
        raise ConfigurationError(faults)


def _unknown_format(path: Path) -> DataError:
    is_unsafe = path.name.lower().endswith(UNSAFE_SUFFIXES)
    reason = f"{path.suffix} can contain code or objects, so it is never opened" if is_unsafe else None
    endings = ".parquet, .csv, .csv.gz, .csv.zip, .tsv, .jsonl, .feather, .xlsx, .sqlite, .npz"
    return DataError.of("the file of a table", f"end in {endings} or similar", path, reason)
