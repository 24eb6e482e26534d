"""Readers of the user's tables, selected by file suffix or database address: Excel, NumPy arrays, databases.

Excel: the first sheet, whose first row names the columns. Formulas are not computed: their stored values are read.
Every merged cell holds the value that the sheet displays.

NumPy (`.npz`): arrays named `x` and `y`, and `client` if each row has a client. Rows of numbers are a table of the
columns `x0`, `x1`, …, `y` and `client`; rows of two or three axes are images (`own.py`). Pickled objects are never
loaded.

Databases: the rows of one SELECT (`federation.query`). SQLite and DuckDB files are opened read-only, and a query that
takes too long is interrupted. Others are accessed by SQLAlchemy; the statement runs in a transaction that is rolled
back, read-only on PostgreSQL. The address is logged, so it must not contain a password: `FEDSCOUT_DATABASE_PASSWORD`
holds it, or a variable of the database driver, such as `PGPASSWORD`.
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import time
import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fedscout.engine.errors import ConfigurationError, DataError, Fault, UserError, first_line
from fedscout.engine.text import listed, shown
from fedscout.experiments.data.dataset import (
    MAX_CELL_LENGTH,
    USUAL_LIMITS,
    DatasetRequest,
    ReadLimits,
    column_key,
    reading,
)
from fedscout.experiments.data.table_files import (
    UNREADABLE,
    column_of,
    concatenated,
    name_faults,
    plain_table,
    read_arrow,
    read_csv,
    read_json_lines,
    read_parquet,
)
from fedscout.experiments.text import extra_module

if TYPE_CHECKING:
    from sqlalchemy import URL

ARRAY_SUFFIX = ".npz"
ROWS, LABEL, CLIENT = "x", "y", "client"
Arrays = dict[str, npt.NDArray[Any]]


def read_array_table(path: Path, limits: ReadLimits) -> pa.Table:
    """Read arrays as a table of plain cells.

    Raises:
        DataError: If the file can't be read, holds other arrays, objects or images, or is too large.
    """
    arrays = read_arrays(path, limits)
    rows = arrays.pop(ROWS)
    columns = {f"{ROWS}{number}": rows[:, number] for number in range(rows.shape[1])} | arrays
    return plain_table(path, pa.table({name: pa.array(cells) for name, cells in columns.items()}))


def read_arrays(path: Path, limits: ReadLimits, label: str = LABEL) -> Arrays:
    """Return the arrays by name.

    Args:
        path: An `.npz` file.
        limits: Maximum size, unpacked.
        label: Name of the array of labels.

    Raises:
        DataError: If the file can't be read, holds other arrays or objects, or is too large.
    """
    limits.check_file(path)
    with reading(path, *UNREADABLE, ValueError, KeyError, kind="NumPy arrays"):
        with zipfile.ZipFile(path) as archive:
            limits.check_bytes(path, sum(member.file_size for member in archive.infolist()))
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in (ROWS, label, CLIENT) if name in file.files}
    are_right = {ROWS, label} <= arrays.keys() and len({len(array) for array in arrays.values() if array.ndim}) == 1
    for name, array in arrays.items():
        types, axes = ("fiub", (2, 3, 4)) if name == ROWS else ("fiubU", (1,))
        are_right = are_right and array.dtype.kind in types and array.ndim in axes and array.size > 0
    if not are_right:
        raise DataError.of(
            path,
            f"hold in {ROWS} numbers in rows of 1 to 3 axes, in {label}, and {CLIENT} if any, a number or text per row",
            listed(f"{name}: {array.dtype} of shape {array.shape}" for name, array in arrays.items()) or "neither",
        )
    limits.check_rows(path, len(arrays[ROWS]))
    return arrays


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
    with reading(path, Exception, kind="an Excel workbook"):  # openpyxl raises whatever a broken part leads to
        with path.open("rb") as file:  # it leaves a damaged file open that it opened itself
            limits.check_bytes(path, sum(member.file_size for member in zipfile.ZipFile(file).infolist()))
            written = openpyxl.load_workbook(file).worksheets[0]
            formulas = [place for place, cell in written._cells.items() if cell.data_type == "f"]
            sheet = openpyxl.load_workbook(file, data_only=True).worksheets[0] if formulas else written
        cells = _displayed_cells(sheet)
        num_columns = max((column for row, column in cells if row == 1), default=0)
        names = [str(cells.get((1, column), "")).strip() for column in range(1, num_columns + 1)]
        used = {column for column, name in enumerate(names, start=1) if name not in dropped}
        unknown = [place for place in formulas if place[1] in used and place not in cells]
        if unknown:
            row, column = unknown[0]
            raise DataError.of(
                f"column {names[column - 1]!r} of {path}",
                f"hold values, but the formula in line {row} has none until a spreadsheet program saves the workbook",
                hint=f"{column_key(names[column - 1], 'drop')} leaves the column out",
            )
        lines = sorted({row for row, column in cells if row > 1 and column in used})
        columns = [column_of([cells.get((row, number)) for row in lines]) for number in range(1, num_columns + 1)]
        faults = name_faults(path, names)
        if faults:
            raise DataError(faults)
        return plain_table(path, pa.table(dict(zip(names, columns, strict=True))), dropped, limits=limits)


def _displayed_cells(sheet: Any) -> dict[tuple[int, int], Any]:
    """Return the displayed values of a sheet, by row and column; empty cells are omitted."""
    values = {place: cell.value for place, cell in sheet._cells.items()}  # `iter_rows` would create empty cells
    for area in sheet.merged_cells.ranges:
        values |= dict.fromkeys(area.cells, sheet.cell(area.min_row, area.min_col).value)
    return {place: value for place, value in values.items() if value is not None}


SQLITE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
DUCKDB_SUFFIXES = (".duckdb", ".ddb")
PASSWORD_VARIABLE = "FEDSCOUT_DATABASE_PASSWORD"  # noqa: S105 the name of a variable
ROWS_AT_ONCE = 10_000
READS = re.compile(r"(select|with)\b", re.IGNORECASE)
WRITES = re.compile(r";|\binto\b", re.IGNORECASE)  # another statement; rows into a table or a file
SECRETS = ("pass", "pwd", "token", "secret")
SQLITE_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
DUCKDB_TABLES = "SELECT table_name FROM duckdb_tables()"
DUCKDB_SETTINGS = {"enable_external_access": "false", "memory_limit": "1GB", "temp_directory": ""}


def read_database(
    place: Path | str, query: str | None, dropped: Collection[str], limits: ReadLimits, seconds: float
) -> pa.Table:
    """Read the rows of one statement.

    Args:
        place: SQLite or DuckDB file, or the address of a database in SQLAlchemy's syntax.
        query: One SELECT; None reads the only table of a file.
        dropped: Columns that are returned empty.
        limits: Maximum table size.
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
        opened = (_duckdb if place.name.lower().endswith(DUCKDB_SUFFIXES) else _sqlite)(place, seconds)
    elif statement is None:
        raise ConfigurationError.of("federation.query", "be a SELECT statement for data in a database", "nothing")
    else:
        opened = _server(_address(place), seconds)
    begin = time.monotonic()
    try:
        with opened as (execute, tables):
            statement = statement or f'SELECT * FROM "{_only_table(place, execute(tables))}"'  # noqa: S608
            return plain_table(place, _fetched(place, execute(statement), limits), dropped, limits=limits)
    except (UserError, MemoryError):
        raise
    except ImportError as error:
        raise ConfigurationError.of(
            f"reading {place}", problem="needs a driver that is not installed", hint=f"pip install {error.name}"
        ) from None
    except Exception as error:  # the libraries have no class of errors in common
        if time.monotonic() - begin >= seconds:
            must = f"finish within federation.max_query_seconds={seconds:g} seconds, but takes longer"
            raise DataError.of(f"the query of {place}", must) from None
        raise DataError.of(place, problem=f"can't be read as a database: {first_line(error)}") from None


def _fetched(place: Path | str, result: Any, limits: ReadLimits) -> pa.Table:

    names = [str(column[0]) for column in result.description or ()]
    if faults := name_faults(place, names):
        raise DataError(faults)
    blocks: list[pa.Table] = []
    while (rows := result.fetchmany(ROWS_AT_ONCE)) or not blocks:
        columns = zip(*rows, strict=True) if rows else ((),) * len(names)
        blocks.append(pa.table(dict(zip(names, map(column_of, columns), strict=True))))
        limits.check_rows(place, sum(map(len, blocks)))
        limits.check_bytes(place, sum(block.nbytes for block in blocks))
    return concatenated(blocks)


def _only_table(place: Path | str, result: Any) -> str:
    names = sorted(str(row[0]) for row in result.fetchall())
    if len(names) != 1:
        raise DataError.of(
            "federation.query", f"be a SELECT statement, as {place} has not one table, but: {listed(names) or 'none'}"
        )
    return names[0].replace('"', '""')


Opened = Iterator[tuple[Callable[[str], Any], str]]
"""What executes a statement, and the statement that lists the tables."""


@contextmanager
def _interrupted(connection: Any, seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, connection.interrupt)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _sqlite(path: Path, seconds: float) -> Opened:
    address = f"{path.resolve().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True)) as connection, _interrupted(connection, seconds):
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 8 * MAX_CELL_LENGTH)
        yield connection.execute, SQLITE_TABLES


@contextmanager
def _duckdb(path: Path, seconds: float) -> Opened:
    duckdb = extra_module("duckdb", "tables", f"reading {path}")
    database = duckdb.connect(str(path), read_only=True, config=DUCKDB_SETTINGS)
    with database as connection, _interrupted(connection, seconds):
        connection.execute("SET enable_progress_bar = false")  # which goes to standard output
        yield connection.execute, DUCKDB_TABLES


@contextmanager
def _server(url: URL, seconds: float) -> Opened:
    import sqlalchemy

    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    with engine.connect() as base_connection:
        is_postgresql = url.get_backend_name() == "postgresql"
        options = {"postgresql_readonly": True} if is_postgresql else {}
        connection = base_connection.execution_options(stream_results=True, yield_per=ROWS_AT_ONCE, **options)
        if is_postgresql:
            connection.exec_driver_sql(f"SET LOCAL statement_timeout = {1000 * seconds:.0f}")
        yield lambda statement: connection.exec_driver_sql(statement).cursor, ""
        connection.rollback()


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


def stem(name: str) -> str:
    """Return a file name without its format suffix."""
    endings = [ending for ending in SUFFIXES if name.lower().endswith(ending)]
    return name[: len(name) - len(max(endings, key=len, default=PurePath(name).suffix))]


def is_array_file(place: Path | str) -> bool:
    """Return whether a file holds NumPy arrays, which may be images."""
    return isinstance(place, Path) and place.name.lower().endswith(ARRAY_SUFFIX)


def read_table(place: Path | str, request: DatasetRequest) -> pa.Table:
    """Read a table of the user, as plain cells.

    Args:
        place: A file, or the address of a database.
        request: Dropped columns and size limits.

    Raises:
        ConfigurationError: If a library for it is missing, or `federation.query` does not apply.
        DataError: If it can't be read, is too large, or has an unsupported format.
    """
    name, limits = place.name.lower() if isinstance(place, Path) else "", request.limits
    if isinstance(place, str) or name.endswith(DATABASE_SUFFIXES):
        return read_database(place, request.query, request.dropped, limits, request.max_query_seconds)
    if unread := _unread(place, request):
        must = "only be given for text files, and query for databases"
        faults = [Fault(f"federation.{key}", must, f"{value!r} for {name}") for key, value in unread.items()]
        raise ConfigurationError(faults)
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
    endings = ".parquet, .csv, .csv.gz, .csv.zip, .tsv, .jsonl, .feather, .xlsx, .sqlite, .npz"
    hint = "files that can contain code or objects, such as pickles, are never opened"
    raise DataError.of("the file of a table", f"end in {endings} or similar", place, hint)


def _unread(place: Path | str, request: DatasetRequest) -> dict[str, Any]:
    """Return the settings of databases and of text files that are set although a place does not read them."""
    name = place.name.lower() if isinstance(place, Path) else ""
    is_text = name.endswith(TEXT_SUFFIXES)
    reads = {
        "query": isinstance(place, str) or name.endswith(DATABASE_SUFFIXES),
        "encoding": is_text or name.endswith(JSON_SUFFIXES),
        "separator": is_text,
        "header": is_text,
    }
    settings = {key: getattr(request, key) for key, is_read in reads.items() if not is_read}
    return {key: value for key, value in settings.items() if value is not None}


def for_place(place: Path | str, request: DatasetRequest) -> DatasetRequest:
    """Return the request of a training for rows at another place, whose format may not read all of its settings."""
    return request.model_copy(update=dict.fromkeys(_unread(place, request)))
