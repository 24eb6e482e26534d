"""Which reader takes a table of one's own: by the ending of its name, or the address of a database.

A table beyond the limits is refused, unless `federation.max_rows` asks for a sample: then it is read once more, block
by block, and a random sample of so many rows stays.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedscout.engine.errors import ConfigurationError, DataError, Fault
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest
from fedscout.experiments.federations.datasets.read_limits import NO_LIMITS, ReadLimits, TooLargeError
from fedscout.experiments.federations.datasets.tables.array_file import ARRAY_SUFFIX, read_array_table
from fedscout.experiments.federations.datasets.tables.arrow_file import read_arrow
from fedscout.experiments.federations.datasets.tables.database import DUCKDB_SUFFIXES, SQLITE_SUFFIXES, read_database
from fedscout.experiments.federations.datasets.tables.excel_sheet import read_excel
from fedscout.experiments.federations.datasets.tables.json_lines import read_json_lines
from fedscout.experiments.federations.datasets.tables.kept_rows import (
    EnoughRowsError,
    HeadRows,
    KeptRows,
    SampledRows,
)
from fedscout.experiments.federations.datasets.tables.table_file import read_csv, read_parquet
from fedscout.experiments.federations.datasets.text_style import TextStyle

if TYPE_CHECKING:
    import pyarrow as pa

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
    allowed = f"one's own table must end in {', '.join((*kinds, *SQLITE_SUFFIXES[:1], ARRAY_SUFFIX))} or similar"
    if path.name.lower().endswith(UNSAFE_SUFFIXES):
        return DataError(f"{allowed}, got {path}: {path.suffix} can carry code or objects, so it is never opened")
    return DataError(f"{allowed}, got {path}")
