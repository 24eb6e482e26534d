"""The program that reads a database file, in a process of its own, so that a query without end can be ended.

Neither SQLite nor DuckDB bounds what a query takes: an expression such as `repeat('a', 1e9)` is outside of DuckDB's
memory limit and hears no interruption. The process that starts this one ends it by time and memory
(`table_formats.py`).

Standard input holds a JSON object (`path`, `query` or null, `dropped`, `is_duckdb`); standard output gets the rows as a
stream of Arrow's IPC format, all cells as text; a fault is a JSON string on standard error, with exit code 3.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from fedscout.engine.errors import DataError, Fault, UserError, first_line
from fedscout.engine.text import listed
from fedscout.experiments.data.files import MAX_CELL_LENGTH, NO_LIMITS
from fedscout.experiments.data.text_rows import text_blocks

FAULT = 3
ROWS_AT_ONCE = 10_000
SQLITE_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
DUCKDB_TABLES = "SELECT table_name FROM duckdb_tables()"
DUCKDB_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "temp_directory": "",
}


def main() -> int:
    """Read the database that standard input names."""
    asked = json.load(sys.stdin)
    try:
        with _duckdb(asked["path"]) if asked["is_duckdb"] else _sqlite(asked["path"]) as cursor:
            query = asked["query"] or f'SELECT * FROM "{_only_table(asked["path"], cursor, asked["is_duckdb"])}"'  # noqa: S608
            _write(asked["path"], _executed(cursor, query), {*asked["dropped"]})
    except UserError as error:
        print(json.dumps(str(error)), file=sys.stderr)
        return FAULT
    except Exception as error:  # the two libraries have no class of errors in common
        print(json.dumps(f"{asked['path']} can't be read as a database: {first_line(error)}"), file=sys.stderr)
        return FAULT
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


def _executed(cursor: Any, query: str) -> Any:
    if isinstance(cursor, sqlite3.Cursor):
        return cursor.execute(query)
    (statement,) = cursor.extract_statements(query)
    return cursor.execute(statement)


def _only_table(path: str, cursor: Any, is_duckdb: bool) -> str:
    found = cursor.execute(DUCKDB_TABLES if is_duckdb else SQLITE_TABLES).fetchall()
    names = sorted(str(row[0]) for row in found)
    if len(names) != 1:
        raise DataError(
            Fault("federation.query", f"be a SELECT, as {path} has not one table, but: {listed(names) or 'none'}")
        )
    return names[0].replace('"', '""')


def _write(path: str, found: Any, dropped: set[str]) -> None:
    import pyarrow as pa

    names = [str(column[0]) for column in found.description or ()]
    schema = pa.schema([(name, pa.string()) for name in names])
    cells = ([None if name in dropped else cell for name, cell in zip(names, row, strict=True)] for row in _rows(found))
    with pa.ipc.new_stream(sys.stdout.buffer, schema) as stream:
        for block in text_blocks(path, names, cells, NO_LIMITS):
            stream.write_batch(block)


def _rows(found: Any) -> Iterator[Any]:
    while rows := found.fetchmany(ROWS_AT_ONCE):
        yield from rows


if __name__ == "__main__":
    sys.exit(main())
