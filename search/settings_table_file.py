"""A client settings table as a file: a small Parquet file with one row per cell, readable by pandas.

Its columns are `heterogeneity`, `quantity`, `learning_rate`, `batch_size` and `local_epochs`, and optional ones with
further information on each cell from tuning. Its metadata hold the provenance as JSON and a format identifier. The
cells are a full grid: a missing cell would silently assign its clients settings tuned for other data.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from itertools import product
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import FiniteFloat, PositiveInt, ValidationError, field_validator

from fedscout.engine.contracts.client_table import HETEROGENEITY, METRICS, SettingsCell, SettingsTable
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.errors import ConfigurationError, first_line
from fedscout.engine.runtime.files import not_written, write_atomically
from fedscout.engine.text import details, fault_of

FORMAT = "fedscout settings table 1"

MOST_CELLS, MOST_BYTES = 10_000, 2**24
"""A table is sent to every client, so larger files are rejected."""

COLUMNS = tuple(field.name for field in fields(SettingsCell))

_KEY = b"fedscout.settings-table"


class _Row(LocalTraining):
    """The columns of a cell."""

    heterogeneity: FiniteFloat
    quantity: PositiveInt

    @field_validator(*COLUMNS, mode="before")
    @classmethod
    def _is_number(cls, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"must be a number, got {value!r}")
        return value

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Return the cell of a row, which may have further columns of any name."""
        return cls.model_validate({name: row[name] for name in COLUMNS})


def write_settings_table(path: Path, table: SettingsTable, provenance: Mapping[str, Any]) -> None:
    """Write a table atomically.

    Args:
        path: Path of the file.
        table: Its cells are a full grid.
        provenance: JSON-serialisable provenance: by convention `dataset`, `model`, `num_classes` and `metric`. `cells`,
            if present, has one mapping per cell, in the table's order, with further columns.

    Raises:
        ConfigurationError: If the table is invalid, or the file can't be written.
    """
    extra_columns = provenance.get("cells") or [{} for _ in table.cells]
    rows = [{**asdict(cell), **extra} for cell, extra in zip(table.cells, extra_columns, strict=True)]
    if faults := _faults(rows, provenance):
        raise ConfigurationError.of("a table of client settings", problem=faults[0])
    table_provenance = {name: value for name, value in provenance.items() if name != "cells"}
    document = {"format": FORMAT, "threshold": table.threshold, "provenance": table_provenance}
    metadata = {_KEY: json.dumps(document, sort_keys=True, allow_nan=False)}
    content = pa.Table.from_pylist(rows).replace_schema_metadata(metadata)
    try:
        write_atomically(path, lambda temporary: pq.write_table(content, temporary))
    except OSError as error:
        raise ConfigurationError(not_written(path, error)) from error


def read_settings_table(path: Path) -> tuple[SettingsTable, dict[str, Any]]:
    """Return a table and its provenance, with the further columns of each cell under `cells`.

    Raises:
        ConfigurationError: If it is no file, has another format, or its cells are not a full grid of valid settings.
    """
    rows, document = _read(path)
    if faults := _faults(rows, document["provenance"]):
        raise ConfigurationError.of(path, problem=faults[0])
    cells = tuple(SettingsCell(**_Row.of(row).model_dump(include={*COLUMNS})) for row in rows)
    extra_columns = [{name: value for name, value in row.items() if name not in COLUMNS} for row in rows]
    return SettingsTable(cells, document["threshold"]), {**document["provenance"], "cells": extra_columns}


def _read(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows of a file and the document in its metadata."""
    try:
        if not path.is_file():  # a pipe would be waited for
            what = "a folder is there" if path.is_dir() else "there is no such file"
            raise ConfigurationError.of(path, f"be a table of client settings, but {what}")
        if path.stat().st_size > MOST_BYTES:
            raise ConfigurationError.of(path, f"be a table of client settings of at most {MOST_BYTES >> 20} MiB")
        with pq.ParquetFile(path) as file:
            num_rows, metadata = file.metadata.num_rows, file.schema_arrow.metadata or {}
            if num_rows > MOST_CELLS:
                raise ConfigurationError.of(path, f"have at most {MOST_CELLS:,} cells", f"{num_rows:,}")
            rows: list[dict[str, Any]] = file.read().to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigurationError.of(path, f"be a Parquet file, but can't be read: {first_line(error)}") from error
    return rows, _document(path, metadata.get(_KEY))


def _document(path: Path, text: bytes | None) -> dict[str, Any]:
    """Return the document in a file's metadata."""
    try:
        document = json.loads(text or b"{}")
        threshold = document.get("threshold")
        if document.get("format") == FORMAT and isinstance(document["provenance"], dict):
            return {"threshold": None if threshold is None else float(threshold), "provenance": document["provenance"]}
    except (ValueError, TypeError, KeyError, AttributeError):
        pass  # as a file without the mark
    raise ConfigurationError.of(path, f'be a table of client settings with the mark "{FORMAT}", which it lacks')


def _faults(rows: Sequence[Mapping[str, Any]], provenance: Mapping[str, Any]) -> list[str]:
    """Return the faults of the cells of a table, in the order of reporting."""
    if not rows:
        return ["must have cells, got none"]
    if missing := [name for name in COLUMNS if name not in rows[0]]:
        return [f"must have the columns {', '.join(COLUMNS)}, but lacks {', '.join(missing)}"]
    for number, row in enumerate(rows, 1):
        try:
            _Row.of(row)
        except ValidationError as error:
            detail = details(error)[0]
            return [f"has a fault in cell {number}: {fault_of(str(detail['loc'][0]), detail)}"]
    places = [(float(row["heterogeneity"]), int(row["quantity"])) for row in rows]
    if provenance.get("metric", HETEROGENEITY) in METRICS:  # a user's own may have any values
        outside = [f"must have heterogeneity in [0, 1], got {value:g}" for value, _ in places if not 0 <= value <= 1]
        if outside:
            return outside
    times = Counter(places)
    faults = [
        f"must have each cell once, got {_place(place)} {number} times" for place, number in times.items() if number > 1
    ]
    heterogeneities, quantities = {h for h, _ in places}, {q for _, q in places}
    if missing_places := [
        place for place in product(sorted(heterogeneities), sorted(quantities)) if place not in times
    ]:
        size = f"{len(heterogeneities)} x {len(quantities)}"
        count, first = len(missing_places), _place(missing_places[0])
        faults.append(f"must be a full {size} grid, but lacks {count} cells, the first at {first}")
    return faults


def _place(place: tuple[float, int]) -> str:
    return f"heterogeneity {place[0]:g}, quantity {place[1]}"
