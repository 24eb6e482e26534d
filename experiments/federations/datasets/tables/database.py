"""Rows of a database: one SELECT (`federation.query`), of which nothing is changed.

SQLite and DuckDB files are opened to read only. Others are reached by SQLAlchemy: the statement runs in a transaction
that is rolled back, which PostgreSQL is told to read only. A password is no part of the address, as that is logged:
`FEDSCOUT_DATABASE_PASSWORD` holds it, or what the database's own driver reads, such as `PGPASSWORD`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedscout.engine.errors import ConfigurationError, DataError, first_line
from fedscout.engine.fault_text import listed, shown
from fedscout.experiments.extras import extra_module
from fedscout.experiments.federations.datasets.read_limits import USUAL_LIMITS, ReadLimits
from fedscout.experiments.federations.datasets.tables.kept_rows import KeptRows
from fedscout.experiments.federations.datasets.tables.text_rows import table_of_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlalchemy import URL

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
    kept: KeptRows | None = None,
) -> pa.Table:
    """Read the rows of one statement.

    Args:
        place: A file of SQLite or DuckDB, or the address of a database, as SQLAlchemy writes it.
        query: One SELECT; None reads the only table of a file.
        dropped: Columns that come back empty.
        limits: How much is read; bytes are counted as text.
        kept: Takes the rows in place of the table, which comes back empty.

    Raises:
        ConfigurationError: If the statement is not one SELECT, the address holds a password, or a library is missing.
        DataError: If the database can't be read, or holds too much.
    """
    if query is not None:
        query = _one_select(query)
    if isinstance(place, Path):
        limits.check_file(place)
    is_duckdb = isinstance(place, Path) and place.name.lower().endswith(DUCKDB_SUFFIXES)
    opened = _duckdb(place) if is_duckdb else _sqlalchemy(place)
    with opened as ask:
        chosen = query or f'SELECT * FROM "{_only_table(place, ask, is_duckdb)}"'  # noqa: S608 a name it told
        names, rows = ask(chosen)
        cells = ([None if name in dropped else cell for name, cell in zip(names, row, strict=True)] for row in rows)
        return table_of_rows(str(place), names, cells, limits, kept)


def _one_select(query: str) -> str:
    """Return a statement without the semicolon at its end.

    Raises:
        ConfigurationError: If it is none that only reads, or there may be several.
    """
    text = query.strip().removesuffix(";").rstrip()
    if not READS.match(text) or WRITES.search(text):
        raise ConfigurationError(
            f"federation.query must be one SELECT, without INTO or a semicolon, got {shown(query)}"
        )
    return text


def _only_table(place: Path | str, ask: Any, is_duckdb: bool) -> str:
    if not isinstance(place, Path):
        raise ConfigurationError("federation.query must be a SELECT where rows are those of a database, got nothing")
    listing = "SELECT table_name FROM duckdb_tables()" if is_duckdb else SQLITE_TABLES
    names = sorted(str(row[0]) for row in ask(listing)[1])
    if len(names) != 1:
        raise ConfigurationError(
            f"federation.query must be a SELECT, as {place} has not one table, but: {listed(names) or 'none'}"
        )
    return names[0].replace('"', '""')


SQLITE_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"


@contextmanager
def _duckdb(path: Path | str) -> Iterator[Any]:
    duckdb = extra_module("duckdb", "tables", f"reading {path} needs duckdb")
    try:
        settings: dict[str, Any] = {"enable_external_access": "false", "autoinstall_known_extensions": "false"}
        with duckdb.connect(str(path), read_only=True, config=settings) as connection:

            def ask(query: str) -> tuple[list[str], Iterator[Any]]:
                (statement,) = connection.extract_statements(query)
                found = connection.execute(statement)
                return [str(column[0]) for column in found.description or ()], _fetched(found)

            yield ask
    except (duckdb.Error, ValueError) as error:
        raise DataError(f"{path} can't be read as a database: {first_line(error)}") from None


def _fetched(found: Any) -> Iterator[Any]:
    while rows := found.fetchmany(ROWS_AT_ONCE):
        yield from rows


@contextmanager
def _sqlalchemy(place: Path | str) -> Iterator[Any]:
    import sqlalchemy
    from sqlalchemy import exc

    url = _address(place)
    try:
        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
        with engine.connect() as plain:
            options = {"postgresql_readonly": True} if url.get_backend_name() == "postgresql" else {}
            connection = plain.execution_options(stream_results=True, yield_per=ROWS_AT_ONCE, **options)

            def ask(query: str) -> tuple[list[str], Iterator[Any]]:
                found = connection.exec_driver_sql(query)
                return [*map(str, found.keys())], iter(found)

            yield ask
            connection.rollback()
    except exc.SQLAlchemyError as error:
        raise DataError(f"{url.render_as_string()} can't be read as a database: {first_line(error)}") from None
    except ImportError as error:
        raise ConfigurationError(
            f"reading {url.render_as_string()} needs a driver that is not installed: pip install {error.name}"
        ) from None


def _address(place: Path | str) -> URL:
    """Return the address of a database, of a file one that only reads.

    Raises:
        ConfigurationError: If it holds a password or is none.
    """
    import sqlalchemy

    if isinstance(place, Path):
        query = {"mode": "ro", "uri": "true"}
        return sqlalchemy.URL.create("sqlite", database=place.resolve().as_uri(), query=query)
    try:
        url = sqlalchemy.make_url(place)
    except sqlalchemy.exc.ArgumentError:
        raise ConfigurationError(
            "federation.dataset must be an address such as postgresql://user@host/name where it names a database"
        ) from None
    if url.password is not None or any(word in key.lower() for key in url.query for word in SECRETS):
        raise ConfigurationError(
            f"federation.dataset must hold no password, as it is logged: {PASSWORD_VARIABLE} may hold it, "
            f"got {url.set(query={}).render_as_string()}"
        )
    return url.set(password=os.environ[PASSWORD_VARIABLE]) if PASSWORD_VARIABLE in os.environ else url
