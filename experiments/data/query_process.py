"""Program that reads a database file in a separate process, which is terminated on timeout.

Neither SQLite nor DuckDB limits the resources of a query: DuckDB's `repeat('a', 1e9)` is not covered by its memory
limit and can't be interrupted. So memory is limited by the operating system (on Linux), time by the parent process.

Standard input holds a JSON object (`path`, `query` or null, `dropped`, `is_duckdb`, `max_rows`, `max_bytes`); standard
output receives the rows as a stream in Arrow's IPC format, all cells as text; a fault is a JSON string on standard
error, with an exit code of `FAULTS`.
"""

from __future__ import annotations

import json
import resource
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from fedscout.engine.errors import DataError, UserError, first_line
from fedscout.engine.text import listed
from fedscout.experiments.data.files import MAX_CELL_LENGTH, ReadLimits, TooLargeError
from fedscout.experiments.data.table_files import blocks_of_rows

FAULTS: dict[int, type[DataError]] = {3: DataError, 4: TooLargeError}
MAX_BYTES = 2**31
ROWS_AT_ONCE = 10_000
SQLITE_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
DUCKDB_TABLES = "SELECT table_name FROM duckdb_tables()"
DUCKDB_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "threads": 4,  # the stacks of as many as a large machine has cores would count against the limit of memory
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "temp_directory": "",
}


def main() -> int:
    """Read the database described on standard input; return the exit code."""
    request = json.load(sys.stdin)
    if sys.platform == "linux":  # elsewhere the limit has no effect
        import psutil  # type: ignore[import-untyped]  # Ray brings it along
        import pyarrow  # noqa: F401 before the limit, as libraries reserve far more addresses than they use

        limit = psutil.Process().memory_info().vms + MAX_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    path, is_duckdb = request["path"], request["is_duckdb"]
    try:
        with _duckdb(path) if is_duckdb else _sqlite(path) as cursor:
            query = request["query"] or f'SELECT * FROM "{_only_table(path, cursor, is_duckdb)}"'  # noqa: S608
            # a second statement is an error in SQLite, and here in DuckDB
            (statement,) = cursor.extract_statements(query) if is_duckdb else (query,)
            _write(request, cursor.execute(statement))
    except UserError as error:
        print(json.dumps(str(error)), file=sys.stderr)
        return 4 if isinstance(error, TooLargeError) else 3
    except Exception as error:  # the two libraries have no class of errors in common
        print(json.dumps(f"{path} can't be read as a database: {first_line(error)}"), file=sys.stderr)
        return 3
    return 0


@contextmanager
def _sqlite(path: str) -> Iterator[Any]:
    with closing(sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro", uri=True)) as connection:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 8 * MAX_CELL_LENGTH)
        connection.execute("PRAGMA temp_store = MEMORY")
        yield connection.cursor()


@contextmanager
def _duckdb(path: str) -> Iterator[Any]:
    import duckdb

    with duckdb.connect(path, read_only=True, config=DUCKDB_SETTINGS) as connection:
        yield connection


def _only_table(path: str, cursor: Any, is_duckdb: bool) -> str:
    table_rows = cursor.execute(DUCKDB_TABLES if is_duckdb else SQLITE_TABLES).fetchall()
    names = sorted(str(row[0]) for row in table_rows)
    if len(names) != 1:
        raise DataError.of(
            "federation.query", f"be a SELECT statement, as {path} has not one table, but: {listed(names) or 'none'}"
        )
    return names[0].replace('"', '""')


def _write(request: dict[str, Any], result: Any) -> None:
    import pyarrow as pa

    names = [str(column[0]) for column in result.description or ()]
    rows = chain.from_iterable(iter(partial(result.fetchmany, ROWS_AT_ONCE), []))
    limits = ReadLimits(request["max_bytes"], request["max_rows"])
    with pa.ipc.new_stream(sys.stdout.buffer, pa.schema([(name, pa.string()) for name in names])) as stream:
        for block in blocks_of_rows(request["path"], names, rows, limits, request["dropped"]):
            stream.write_batch(block)


if __name__ == "__main__":
    sys.exit(main())
