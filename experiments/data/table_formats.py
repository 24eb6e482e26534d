"""Readers of table formats: Arrow and array files, JSON lines, Excel, SQLite and DuckDB.

Which reader takes a table of one's own: by the ending of its name, or the address of a database.

A table beyond the limits is refused, unless `federation.max_rows` asks for a sample: then it is read once more, block
by block, and a random sample of so many rows stays.

JSON lines (https://jsonlines.org): one object a line, packed or not. Numbers keep the digits that are written.

Feather and other files of Arrow's IPC format (https://arrow.apache.org/docs/format/Columnar.html), by blocks.

Arrays of NumPy in one file (`.npz`), by documented names; nothing that could carry code or objects is read.

`x` and `y`, and `client` if each row names its client; or the parts `x_train`, `y_train`, `x_test` and `y_test`, as in
Keras' `mnist.npz`, which are joined. Rows of numbers are a table of the columns `x0`, `x1`, …, `y` and `client`. Rows
of two or three axes are pictures (`own.py`).

What an array says of its shape is read first (NumPy enhancement proposal 1), so that what is too large or holds objects
is refused before it is in memory.

Excel workbooks (`.xlsx`, `.xlsm`): the first sheet, whose first row names the columns.

Formulas are not computed: their values are those that were saved with them. Merged cells all hold what the sheet shows.

Rows of a database: one SELECT (`federation.query`), of which nothing is changed.

SQLite and DuckDB files are opened to read only, by a process that is ended when it takes too long or too much memory.
Others are reached by SQLAlchemy: the statement runs in a transaction that is rolled back, which PostgreSQL is told to
read only. A password is no part of the address, as that is logged: `FEDSCOUT_DATABASE_PASSWORD` holds it, or what the
database's own driver reads, such as `PGPASSWORD`.
"""

from __future__ import annotations

import io
import json
import logging
import math
import os
import re
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import psutil  # type: ignore[import-untyped]

from fedscout.engine.errors import ConfigurationError, DataError, Fault, first_line
from fedscout.engine.text import listed, shown
from fedscout.experiments.data import query_process
from fedscout.experiments.data.columns import column_key
from fedscout.experiments.data.dataset import DatasetRequest, TextStyle
from fedscout.experiments.data.files import (
    MAX_COLUMNS,
    MAX_QUERY_SECONDS,
    NO_LIMITS,
    USUAL_LIMITS,
    EndlessQueryError,
    ReadLimits,
    TooLargeError,
)
from fedscout.experiments.data.table_files import (
    SAVED_INDEX,
    EnoughRowsError,
    HeadRows,
    KeptRows,
    SampledRows,
    bytes_of_cells,
    collected,
    name_faults,
    opened,
    plain_cells,
    read_csv,
    read_parquet,
    read_text,
    type_faults,
    with_empty,
)
from fedscout.experiments.data.text_rows import table_of_blocks, table_of_rows
from fedscout.experiments.text import extra_module

if TYPE_CHECKING:
    import pyarrow as pa
    from openpyxl.worksheet.cell_range import CellRange
    from sqlalchemy import URL


MOST_SPARSE_CELLS = 20_000_000
MOST_CELLS_A_VALUE = 100


def read_json_lines(
    path: Path,
    dropped: Collection[str] = (),
    limits: ReadLimits = USUAL_LIMITS,
    kept: KeptRows | None = None,
    encoding: str | None = "utf-8",
) -> pa.Table:
    """Read a file of objects; a key that one lacks is a missing cell.

    Args:
        path: An existing file; `.gz`, and `.zip` with one file in it, are unpacked on the fly.
        dropped: Keys whose values may be anything; they come back empty.
        limits: How much is read.
        kept: Takes the rows in place of the table, which comes back empty.
        encoding: Of the file; None to find it out.

    Raises:
        DataError: If a line is no object, or holds an object or a list, or the file is too large or no text.
    """

    def read(encoding: str) -> pa.Table:
        names: dict[str, None] = {}
        num_lines = num_values = 0
        for line in _objects(path, limits, encoding):
            num_lines, num_values = num_lines + 1, num_values + len(line)
            names |= dict.fromkeys(line)
            if len(names) > MAX_COLUMNS:
                raise DataError(Fault(path, f"have at most {MAX_COLUMNS:,} columns, but it has more keys"))
        if not names:
            raise DataError(Fault(path, "hold one object of keys and values a line, but it is empty"))
        if num_lines * len(names) > max(MOST_SPARSE_CELLS, MOST_CELLS_A_VALUE * num_values):
            raise DataError(
                Fault(
                    f"the objects of {path}",
                    (
                        f"share their keys, but {num_lines:,} of them have {len(names):,} keys, of which each "
                        f"has {num_values / num_lines:.1f} on average"
                    ),
                )
            )
        rows = ([None if n in dropped else line.get(n) for n in names] for line in _objects(path, limits, encoding))
        return table_of_rows(str(path), [*names], rows, limits, kept)

    return read_text(path, encoding, limits, kept, read)


def _objects(path: Path, limits: ReadLimits, encoding: str) -> Iterator[dict[str, Any]]:
    with opened(path, limits, encoding) as file, io.TextIOWrapper(file, encoding, newline="\n") as text:
        for number, line in enumerate(text, start=1):
            if not line.strip():
                continue
            try:
                found = json.loads(line, parse_float=str, parse_int=str, parse_constant=str)
            except (ValueError, RecursionError):
                found = None
            if not isinstance(found, dict):
                hint = "; a list of objects is no file of lines" if line.lstrip().startswith("[") else ""
                raise DataError(
                    Fault(
                        f"every line of {path}",
                        "be a JSON object",
                        f"{shown(line.strip()[:60])} in line {number}{hint}",
                    )
                )
            yield found


def read_arrow(
    path: Path, dropped: Collection[str] = (), limits: ReadLimits = USUAL_LIMITS, kept: KeptRows | None = None
) -> pa.Table:
    """Read a file whose columns are numbers, texts, truth values or moments in time.

    Args:
        path: An existing file.
        dropped: Columns that may be of any type; they come back empty.
        limits: How much is read; bytes are counted as the cells take them in memory, once a block is unpacked.
        kept: Takes the rows in place of the table, which comes back empty.

    Raises:
        DataError: If the file can't be read, is too large, has columns of other types, or no rows.
    """
    import pyarrow as pa

    limits.check_file(path)
    try:
        with pa.OSFile(str(path)) as file:
            reader = _opened(file)
            faults = [*name_faults(path, reader.schema.names), *type_faults(path, reader.schema, dropped)]
            if faults:
                raise DataError(faults)
            names = [name for name in reader.schema.names if name not in dropped and not SAVED_INDEX.fullmatch(name)]
            blocks = collected(path, _blocks_of_batches(path, reader, names, limits), limits, kept=kept)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, MemoryError):
            raise
        raise DataError(Fault(path, problem=f"can't be read as an Arrow file: {first_line(error)}")) from None
    if not blocks:
        raise DataError(Fault(path, "hold rows, but it has none"))
    return with_empty(pa.Table.from_batches(blocks), [name for name in reader.schema.names if name in dropped])


def _opened(file: pa.NativeFile) -> pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader:
    """Open a file, or what was written as a stream."""
    import pyarrow as pa

    try:
        return pa.ipc.open_file(file)
    except pa.ArrowInvalid:
        file.seek(0)
        return pa.ipc.open_stream(file)


def _blocks_of_batches(
    path: Path,
    reader: pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader,
    names: list[str],
    limits: ReadLimits,
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    total = 0
    is_file = isinstance(reader, pa.ipc.RecordBatchFileReader)
    for block in (reader.get_batch(number) for number in range(reader.num_record_batches)) if is_file else reader:
        if len(block):
            block.validate(full=True)
            total += sum(bytes_of_cells(block[name]) for name in names)
            limits.check_bytes(path, total)
            yield block.select(names)


ARRAY_SUFFIX = ".npz"
ROWS, LABEL, CLIENT = "x", "y", "client"
PARTS = ("_train", "_test")
Arrays = dict[str, npt.NDArray[Any]]


def read_array_table(path: Path, limits: ReadLimits) -> pa.Table:
    """Read arrays as a table of plain cells.

    Raises:
        DataError: If the file can't be read, holds other arrays, objects, pictures, or too much.
    """
    import pyarrow as pa

    arrays = read_arrays(path, limits)
    if arrays[ROWS].ndim != 2:
        raise DataError(
            Fault(f"the rows of {path}", "be rows of numbers to be a table", f"the shape {arrays[ROWS].shape}")
        )
    columns = {f"{ROWS}{number}": arrays[ROWS][:, number] for number in range(arrays[ROWS].shape[1])}
    columns |= {name: arrays[name] for name in (LABEL, CLIENT) if name in arrays}
    return pa.table({name: plain_cells(pa.array(cells)) for name, cells in columns.items()})


def read_arrays(path: Path, limits: ReadLimits) -> Arrays:
    """Return the arrays by name, parts joined.

    Raises:
        DataError: If the file can't be read, holds other arrays, objects, or too much.
    """
    limits.check_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            told = {name.removesuffix(".npy"): _header(archive, name) for name in archive.namelist()}
        wanted = _wanted(path, told)
        _check(path, {name: told[name] for names in wanted.values() for name in names}, limits)
        with np.load(path, allow_pickle=False) as file:
            found = {name: np.concatenate([file[part] for part in parts]) for name, parts in wanted.items()}
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        raise DataError(Fault(path, problem=f"can't be read as arrays of NumPy: {first_line(error)}")) from None
    _check_lengths(path, found)
    return found


def _header(archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return what an array says of its shape and type."""
    with archive.open(name) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    return shape, dtype


def _wanted(path: Path, told: Any) -> dict[str, list[str]]:
    """Return the parts of each array."""
    if {ROWS, LABEL} <= told.keys():
        return {name: [name] for name in (ROWS, LABEL, CLIENT) if name in told}
    parts = [part for part in PARTS if ROWS + part in told and LABEL + part in told]
    if not parts:
        raise DataError(
            Fault(
                path,
                (
                    f"hold the arrays {ROWS!r} and {LABEL!r}, or {ROWS}_train, {LABEL}_train, "
                    f"{ROWS}_test and {LABEL}_test"
                ),
                listed(told) or "none",
            )
        )
    return {name: [name + part for part in parts] for name in (ROWS, LABEL)}


def _check(path: Path, told: dict[str, tuple[tuple[int, ...], np.dtype[Any]]], limits: ReadLimits) -> None:
    """Refuse arrays of objects or of an odd shape, and what is too large, before any of it is read."""
    faults = []
    for name, (shape, dtype) in told.items():
        is_rows = name.startswith(ROWS)
        if dtype.hasobject or dtype.kind not in ("fiub" if is_rows else "fiubU"):
            faults.append(
                Fault(f"the array {name!r} of {path}", f"hold numbers{('' if is_rows else ' or texts')}", dtype)
            )
        elif len(shape) not in ((2, 3, 4) if is_rows else (1,)) or not all(shape):
            faults.append(Fault(f"the array {name!r} of {path}", f"have another shape than {shape}"))
    if faults:
        raise DataError(faults)
    limits.check_bytes(path, sum(math.prod(shape) * dtype.itemsize for shape, dtype in told.values()))
    limits.check_rows(path, sum(shape[0] for name, (shape, _) in told.items() if name.startswith(ROWS)))


def _check_lengths(path: Path, arrays: Arrays) -> None:
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(Fault(f"the arrays of {path}", "have as many rows each", lengths))


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
    openpyxl = extra_module("openpyxl", "tables", f"reading {path}")
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
        raise DataError(Fault(path, problem=f"can't be read as an Excel workbook: {first_line(error)}")) from None


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


SQLITE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
DUCKDB_SUFFIXES = (".duckdb", ".ddb")
PASSWORD_VARIABLE = "FEDSCOUT_DATABASE_PASSWORD"  # noqa: S105 the name of a variable
ROWS_AT_ONCE = 10_000
READS = re.compile(r"(select|with)\b", re.IGNORECASE)
WRITES = re.compile(r";|\binto\b", re.IGNORECASE)  # another statement; rows into a table or a file
MAX_QUERY_MEMORY = 2**30
WATCHED_EVERY_SECONDS = 0.02
SECONDS_TO_END = 2.0
SECRETS = ("pass", "pwd", "token", "secret")


def read_database(
    place: Path | str,
    query: str | None,
    dropped: Collection[str] = (),
    limits: ReadLimits = USUAL_LIMITS,
    kept: KeptRows | None = None,
    seconds: float = MAX_QUERY_SECONDS,
) -> pa.Table:
    """Read the rows of one statement.

    Args:
        place: A file of SQLite or DuckDB, or the address of a database, as SQLAlchemy writes it.
        query: One SELECT; None reads the only table of a file.
        dropped: Columns that come back empty.
        limits: How much is read; bytes are counted as text.
        kept: Takes the rows in place of the table, which comes back empty.
        seconds: How long its rows may take in all.

    Raises:
        ConfigurationError: If the statement is not one SELECT, the address holds a password, or a library is missing.
        DataError: If the database can't be read, takes too long, or holds too much.
    """
    if query is not None:
        query = _one_select(query)
    if isinstance(place, Path):
        limits.check_file(place)
        return _of_file(place, query, dropped, limits, kept, seconds)
    if query is None:
        raise ConfigurationError(Fault("federation.query", "be a SELECT where rows are those of a database", "nothing"))
    with _answer(place, query, seconds) as (names, rows):
        cells = ([None if name in dropped else cell for name, cell in zip(names, row, strict=True)] for row in rows)
        return table_of_rows(place, names, cells, limits, kept)


def _one_select(query: str) -> str:
    """Return a statement without the semicolon at its end.

    Raises:
        ConfigurationError: If it is none that only reads, or there may be several.
    """
    text = query.strip().removesuffix(";").rstrip()
    if not READS.match(text) or WRITES.search(text):
        raise ConfigurationError(Fault("federation.query", "be one SELECT, without INTO or a semicolon", shown(query)))
    return text


def _of_file(
    path: Path, query: str | None, dropped: Collection[str], limits: ReadLimits, kept: KeptRows | None, seconds: float
) -> pa.Table:
    """Read a file in a process of its own (`query_process.py`), which is ended once it takes too long or too much."""
    import pyarrow as pa

    is_duckdb = path.name.lower().endswith(DUCKDB_SUFFIXES)
    if is_duckdb:
        extra_module("duckdb", "tables", f"reading {path}")
    asked = json.dumps({"path": str(path), "query": query, "dropped": [*dropped], "is_duckdb": is_duckdb})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(  # noqa: S603 our own program
        [sys.executable, "-m", query_process.__name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    watch = _Watch(process, path, seconds)
    watch.start()
    try:
        process.stdin.write(asked.encode())
        process.stdin.close()
        with pa.ipc.open_stream(process.stdout) as reader:
            table = table_of_blocks(str(path), reader.schema.names, watch.blocks(reader, limits), limits, kept)
        if process.wait():  # a stream that ends too early looks like one that is whole
            raise EOFError("its rows end too early")
        return table
    except (pa.ArrowException, OSError, EOFError) as error:
        if isinstance(error, MemoryError):
            raise
        with suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS_TO_END)
        process.kill()  # which may wait for its rows to be read
        told = process.stderr.read().decode(errors="replace").strip()
        process.wait()
        if watch.fault:
            raise watch.fault from None
        if process.returncode == query_process.FAULT:
            raise DataError(json.loads(told.splitlines()[-1])) from None
        raise DataError(
            Fault(path, problem=f"can't be read as a database: {told.splitlines()[-1] if told else error}")
        ) from None
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()


class _Watch(threading.Thread):
    """Ends a process once this one has waited too long for its rows, or it takes too much memory.

    Args:
        process: Reads the database.
        path: Of the database, for the message.
        seconds: How long its rows may take in all.
    """

    def __init__(self, process: subprocess.Popen[bytes], path: Path, seconds: float) -> None:
        super().__init__(daemon=True)
        self.fault: EndlessQueryError | None = None
        self._process, self._path, self._seconds = process, path, seconds
        self._waits, self._waited = True, 0.0

    def blocks(self, reader: pa.RecordBatchReader, limits: ReadLimits) -> Iterator[pa.RecordBatch]:
        """Yield the blocks, and count the time without them; a DataError says that there is too much."""
        num_bytes = 0
        for block in reader:
            self._waits = False
            num_bytes += block.nbytes
            limits.check_bytes(self._path, num_bytes)
            yield block
            self._waits = True

    def run(self) -> None:
        """Watch until the process ends."""
        with suppress(psutil.Error):
            watched = psutil.Process(self._process.pid)
            while self._process.returncode is None and not self.fault:
                began = time.monotonic()
                time.sleep(WATCHED_EVERY_SECONDS)
                self._waited += self._waits * (time.monotonic() - began)
                if self._waited > self._seconds:
                    self.fault = EndlessQueryError(
                        f"the rows of {self._path} must come within federation.max_query_seconds={self._seconds:g} "
                        "seconds, but they take longer"
                    )
                if watched.memory_info().rss > MAX_QUERY_MEMORY:
                    self.fault = EndlessQueryError(
                        f"reading {self._path} must take at most {MAX_QUERY_MEMORY / 2**30:g} GiB of memory, but its "
                        "query takes more"
                    )
        if self.fault:
            self._process.kill()


@contextmanager
def _answer(place: str, query: str, seconds: float) -> Iterator[tuple[list[str], Iterator[Any]]]:
    import sqlalchemy
    from sqlalchemy import exc

    url = _address(place)
    try:
        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
        with engine.connect() as plain:
            is_postgresql = url.get_backend_name() == "postgresql"
            options = {"postgresql_readonly": True} if is_postgresql else {}
            connection = plain.execution_options(stream_results=True, yield_per=ROWS_AT_ONCE, **options)
            if is_postgresql:
                connection.exec_driver_sql(f"SET LOCAL statement_timeout = {1000 * seconds:.0f}")
            found = connection.exec_driver_sql(query)
            yield [*map(str, found.keys())], iter(found)
            connection.rollback()
    except exc.SQLAlchemyError as error:
        raise DataError(
            Fault(url.render_as_string(), problem=f"can't be read as a database: {first_line(error)}")
        ) from None
    except ImportError as error:
        raise ConfigurationError(
            Fault(
                f"reading {url.render_as_string()}",
                problem="needs a driver that is not installed",
                hint=f"pip install {error.name}",
            )
        ) from None


def _address(place: str) -> URL:
    """Return the address of a database.

    Raises:
        ConfigurationError: If it holds a password or is none.
    """
    import sqlalchemy

    try:
        url = sqlalchemy.make_url(place)
    except sqlalchemy.exc.ArgumentError:
        raise ConfigurationError(
            Fault("federation.dataset", "be an address such as postgresql://user@host/name where it names a database")
        ) from None
    if url.password is not None or any(word in key.lower() for key in url.query for word in SECRETS):
        raise ConfigurationError(
            Fault(
                "federation.dataset",
                f"hold no password, as it is logged: {PASSWORD_VARIABLE} may hold it",
                url.set(query={}).render_as_string(),
            )
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


@dataclass(frozen=True)
class ReadTable:
    """A table of plain cells.

    Attributes:
        rows: Of it.
        num_left: Rows that were read but did not come into the sample.
    """

    rows: pa.Table
    num_left: int = 0


def read_table(place: Path | str, request: DatasetRequest) -> ReadTable:
    """Read a table of one's own.

    Args:
        place: A file, or the address of a database.
        request: Says which columns nobody looks at, and how much is read.

    Raises:
        ConfigurationError: If a library for it is missing, or `federation.query` does not fit.
        DataError: If it can't be read, is too large, or is of a format that is not read.
    """
    try:
        return ReadTable(_read(place, request, request.limits))
    except TooLargeError as error:
        if request.max_rows is None or is_array_file(place):
            raise
        sample = SampledRows(str(place), request.max_rows, request.row_seed, request.limits)
        _read(place, request, NO_LIMITS, sample)
        num_left = max(0, sample.num_seen - request.max_rows)
        reason = str(error).partition(" must ")[2]
        logger.warning(
            "%s must %s: a random sample of %s of its %s rows is read", place, reason, request.max_rows, sample.num_seen
        )
        return ReadTable(sample.table(), num_left)


def table_head(place: Path | str, request: DatasetRequest, num_rows: int) -> pa.Table:
    """Return the first rows of a table: at least so many, if it has as many.

    Raises:
        UserError: As `read_table`, of what is seen of it.
    """
    import pyarrow as pa

    head = HeadRows(num_rows)
    try:
        whole = _read(place, request, request.limits, head)
    except EnoughRowsError:
        return pa.Table.from_batches(head.blocks)
    return pa.Table.from_batches(head.blocks) if head.blocks else whole


def is_array_file(place: Path | str) -> bool:
    """Whether a file holds arrays, which may be those of pictures."""
    return isinstance(place, Path) and place.name.lower().endswith(ARRAY_SUFFIX)


def _read(place: Path | str, request: DatasetRequest, limits: ReadLimits, kept: KeptRows | None = None) -> pa.Table:
    name = place.name.lower() if isinstance(place, Path) else ""
    dropped = request.dropped
    if isinstance(place, str) or name.endswith(DATABASE_SUFFIXES):
        return read_database(place, request.query, dropped, limits, kept, request.max_query_seconds)
    if request.query is not None:
        raise ConfigurationError(Fault("federation.query", "be left out but for databases", repr(request.query)))
    _refuse_style(request.text_style, name)
    if name.endswith(TEXT_SUFFIXES):
        style = request.text_style
        return read_csv(
            place,
            style.separator,
            nameless_index=True,
            limits=limits,
            kept=kept,
            encoding=style.encoding,
            has_header=style.has_header,
        )
    if is_array_file(place):
        return read_array_table(place, limits)
    if name.endswith(JSON_SUFFIXES):
        return read_json_lines(place, dropped, limits, kept, request.text_style.encoding)
    readers = {PARQUET_SUFFIXES: read_parquet, ARROW_SUFFIXES: read_arrow, EXCEL_SUFFIXES: read_excel}
    for suffixes, reader in readers.items():
        if name.endswith(suffixes):
            return reader(place, dropped, limits, kept)
    raise _unknown_format(place)


def _refuse_style(style: TextStyle, name: str) -> None:
    """Refuse what is said of a text file where there is none.

    Raises:
        ConfigurationError: With each of these keys.
    """
    columns = {"separator": style.separator, "header": style.has_header}
    given = {"encoding": style.encoding, **columns}
    unread = given if not name.endswith((*TEXT_SUFFIXES, *JSON_SUFFIXES)) else columns
    faults = [
        Fault(f"federation.{key}", "be left out but for text files", f"{value!r} for {name}")
        for key, value in unread.items()
        if value is not None and not name.endswith(TEXT_SUFFIXES)
    ]
    if faults:
        raise ConfigurationError(faults)


def _unknown_format(path: Path) -> DataError:
    kinds = (*PARQUET_SUFFIXES[:1], *TEXT_SUFFIXES[:4], *JSON_SUFFIXES[:1], *ARROW_SUFFIXES[:1], *EXCEL_SUFFIXES[:1])
    is_unsafe = path.name.lower().endswith(UNSAFE_SUFFIXES)
    why = f"{path.suffix} can carry code or objects, so it is never opened" if is_unsafe else None
    endings = ", ".join((*kinds, *SQLITE_SUFFIXES[:1], ARRAY_SUFFIX))
    return DataError(Fault("the file of a table", f"end in {endings} or similar", path, why))
