"""The configuration of client-specific training settings from a settings table, and the table's file.

The file is a small Parquet file with one row per cell, readable by pandas. Its columns are `heterogeneity`, `quantity`,
`learning_rate`, `batch_size` and `local_epochs`, and optional ones with further information on each cell from tuning.
Its metadata hold the provenance as JSON and a format identifier. The cells are a full grid: a missing cell would
silently assign its clients settings tuned for other data. pyarrow is imported when a file is read or written, because
the configuration is loaded without it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, FiniteFloat, PositiveInt, ValidationError
from pydantic.functional_validators import AfterValidator, field_validator, model_validator

from fedscout.engine.contracts.client_table import HETEROGENEITY, METRICS, SettingsCell, SettingsLookup, SettingsTable
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.errors import ConfigurationError, first_line
from fedscout.engine.runtime.files import not_written, write_atomically
from fedscout.engine.text import details, fault_of
from fedscout.engine.user_code import code_digests


def _metric(name: str) -> str:
    module, _, function = name.partition(":")
    if name not in METRICS and not all(part.isidentifier() for part in (function, *module.split("."))):
        raise ValueError(f"must be {', '.join(METRICS)} or package.module:function, got {name!r}")
    return name


class ClientSettingsConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """The settings table sent to clients, and the metric that they compute on their labels."""

    kind: Literal["table"] | None = Field(
        default=None,
        description=(
            "table: each client takes learning rate, batch size and epochs from a table; by default all use the same"
        ),
    )
    path: str | None = Field(default=None, description="path of the table, a file of fedscout tune-table")
    metric: Annotated[str, AfterValidator(_metric)] = Field(
        default=HETEROGENEITY,
        description="measure of a client's labels: heterogeneity, entropy or package.module:function",
    )
    threshold: float | None = Field(
        default=None,
        ge=0,
        description="distance to the nearest cell above which a client reports it; the table's by default",
    )
    epsilon: float | None = Field(
        default=None, gt=0, description="ε of the randomised response in that report; no noise by default"
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        changed = [name for name, field in type(self).model_fields.items() if getattr(self, name) != field.default]
        if self.kind is None and changed:
            raise ValueError(f"must have kind=table where {', '.join(changed)} is given")
        if self.kind is not None and self.path is None:
            raise ValueError("must have the path of the table if kind is table")
        return self

    def read(self) -> tuple[SettingsTable, Mapping[str, Any]]:
        """Return the table with the effective threshold, and its provenance.

        Raises:
            ConfigurationError: If the file holds no table, was tuned for another metric, or has no threshold although
                `epsilon` is set.
        """
        path = Path(self.path or "")
        stat = path.stat() if path.is_file() else None
        table, provenance = _read(path, (stat.st_mtime_ns, stat.st_size) if stat else None)
        tuned_metric = provenance.get("metric", HETEROGENEITY)
        if tuned_metric != self.metric:
            raise ConfigurationError.of(
                "client_settings.metric", f"be {tuned_metric}, for which {path} was tuned", self.metric
            )
        table = table if self.threshold is None else SettingsTable(table.cells, self.threshold)
        if self.epsilon is not None and table.threshold is None:
            raise ConfigurationError.of(
                "client_settings.epsilon",
                f"be given with client_settings.threshold, as {path} has none and clients report nothing without one",
                f"{self.epsilon:g}",
            )
        return table, provenance

    def identity(self) -> dict[str, Any]:
        """Return what determines results: the table's content rather than its path, and the metric.

        Raises:
            ConfigurationError: If the file holds no table.
        """
        table = SettingsLookup(self.read()[0], self.metric, epsilon=self.epsilon)
        code = {} if self.metric in METRICS else {"code": dict(code_digests(self.metric))}
        return {"kind": self.kind, "metric": self.metric, "table": table.digest(), **code}


@lru_cache(maxsize=16)
def _read(path: Path, version: tuple[int, int] | None) -> tuple[SettingsTable, Mapping[str, Any]]:
    """Return the table and provenance of a file; `version` only invalidates the cache."""
    del version
    return read_settings_table(path)


FORMAT = "fedscout settings table 1"

MOST_CELLS = 10_000
"""A table is sent to every client, so larger ones are rejected."""

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


class _Document(BaseModel):
    """The metadata of a file."""

    format: str
    threshold: float | None
    provenance: dict[str, Any]


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
    import pyarrow as pa
    import pyarrow.parquet as pq

    further_columns = provenance.get("cells") or [{} for _ in table.cells]
    rows = [{**asdict(cell), **further} for cell, further in zip(table.cells, further_columns, strict=True)]
    _cells("a table of client settings", rows, provenance)
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
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():  # a pipe would be waited for
        raise ConfigurationError.of(path, "be a table of client settings, but there is no such file")
    try:
        with pq.ParquetFile(path) as file:
            num_rows, metadata = file.metadata.num_rows, file.schema_arrow.metadata or {}
            if num_rows > MOST_CELLS:
                raise ConfigurationError.of(path, f"have at most {MOST_CELLS:,} cells", f"{num_rows:,}")
            rows: list[dict[str, Any]] = file.read().to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigurationError.of(path, f"be a Parquet file, but can't be read: {first_line(error)}") from error
    document: _Document | None = None
    with suppress(ValidationError):
        document = _Document.model_validate_json(metadata.get(_KEY, b""))
    if document is None or document.format != FORMAT:
        raise ConfigurationError.of(path, f'be a table of client settings with the mark "{FORMAT}", which it lacks')
    table = SettingsTable(_cells(path, rows, document.provenance), document.threshold)
    further_columns = [{name: value for name, value in row.items() if name not in COLUMNS} for row in rows]
    return table, {**document.provenance, "cells": further_columns}


def _cells(
    source: Path | str, rows: Sequence[Mapping[str, Any]], provenance: Mapping[str, Any]
) -> tuple[SettingsCell, ...]:
    """Return the cells of rows.

    Args:
        source: What holds them, for error messages.
        rows: Rows with the columns of a cell, and possibly further ones.
        provenance: Names the metric, by default heterogeneity.

    Raises:
        ConfigurationError: If they are not a full grid of valid settings; names the first fault.
    """
    if not rows:
        raise ConfigurationError.of(source, "have cells", "none")
    if missing := [name for name in COLUMNS if name not in rows[0]]:
        raise ConfigurationError.of(source, f"have the columns {', '.join(COLUMNS)}, but lacks {', '.join(missing)}")
    cells = []
    for number, row in enumerate(rows, 1):
        try:
            valid = _Row.model_validate({name: row[name] for name in COLUMNS})
        except ValidationError as error:
            detail = details(error)[0]
            fault = fault_of(str(detail["loc"][0]), detail)
            raise ConfigurationError.of(source, problem=f"has a fault in cell {number}: {fault}") from error
        cells.append(SettingsCell(**valid.model_dump(include={*COLUMNS})))
    outside = [cell.heterogeneity for cell in cells if not 0 <= cell.heterogeneity <= 1]
    if outside and provenance.get("metric", HETEROGENEITY) in METRICS:  # a user's own may have any values
        raise ConfigurationError.of(source, "have heterogeneity in [0, 1]", f"{outside[0]:g}")
    times = Counter((cell.heterogeneity, cell.quantity) for cell in cells)
    place, number = times.most_common(1)[0]
    if number > 1:
        raise ConfigurationError.of(source, "have each cell once", f"{_place(place)} {number} times")
    axes = [sorted({*values}) for values in zip(*times, strict=True)]
    if left_out := [place for place in product(*axes) if place not in times]:
        size, first = " x ".join(str(len(axis)) for axis in axes), _place(left_out[0])
        raise ConfigurationError.of(
            source, f"be a full {size} grid, but lacks {len(left_out)} cells, the first at {first}"
        )
    return tuple(cells)


def _place(place: tuple[float, ...]) -> str:
    return f"heterogeneity {place[0]:g}, quantity {place[1]:.0f}"
