"""Rows of a database: one SELECT (`federation.query`), of which nothing is changed.

SQLite and DuckDB files are opened to read only, by a process that is ended when it takes too long or too much memory.
Others are reached by SQLAlchemy: the statement runs in a transaction that is rolled back, which PostgreSQL is told to
read only. A password is no part of the address, as that is logged: `FEDSCOUT_DATABASE_PASSWORD` holds it, or what the
database's own driver reads, such as `PGPASSWORD`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]

from fedscout.engine.errors import ConfigurationError, DataError, Fault, first_line
from fedscout.engine.fault_text import shown
from fedscout.experiments.extras import extra_module
from fedscout.experiments.federations.datasets.read_limits import (
    MAX_QUERY_SECONDS,
    USUAL_LIMITS,
    EndlessQueryError,
    ReadLimits,
)
from fedscout.experiments.federations.datasets.tables import query_process
from fedscout.experiments.federations.datasets.tables.kept_rows import KeptRows
from fedscout.experiments.federations.datasets.tables.text_rows import table_of_blocks, table_of_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlalchemy import URL

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
        extra_module("duckdb", "tables", f"reading {path} needs duckdb")
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
        raise DataError(f"{path} can't be read as a database: {told.splitlines()[-1] if told else error}") from None
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
        raise DataError(f"{url.render_as_string()} can't be read as a database: {first_line(error)}") from None
    except ImportError as error:
        raise ConfigurationError(
            f"reading {url.render_as_string()} needs a driver that is not installed: pip install {error.name}"
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
