"""The configuration of client-specific training settings from a settings table, and the table's file.

The file is a JSON document with the `cells`, the `threshold`, and the `provenance` of the table, whose `cells` may hold
further information on each cell. The cells are a full grid: a missing cell would silently assign its clients settings
tuned for other data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AllowInfNan, BaseModel, Field, NonNegativeFloat, Strict
from pydantic.functional_validators import AfterValidator, model_validator

from fedscout.engine.contracts.client_table import HETEROGENEITY, METRICS, SettingsCell, SettingsLookup, SettingsTable
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.runtime.files import json_text, not_written, read_json_object, write_atomically
from fedscout.engine.text import reading_document
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


MOST_CELLS = 10_000
"""A table is sent to every client, so larger ones are rejected."""


class _Document(BaseModel, frozen=True, extra="forbid"):
    """The content of a file."""

    cells: tuple[SettingsCell, ...] = Field(min_length=1, max_length=MOST_CELLS)
    threshold: Annotated[NonNegativeFloat, Strict(), AllowInfNan(False)] | None
    provenance: dict[str, Any]

    @model_validator(mode="after")
    def _full_grid(self) -> Self:
        outside = [cell.heterogeneity for cell in self.cells if not 0 <= cell.heterogeneity <= 1]
        if outside and self.provenance.get("metric", HETEROGENEITY) in METRICS:  # a user's own may have any values
            raise ValueError(f"heterogeneity must be in [0, 1], got {outside[0]:g}")
        times = Counter((cell.heterogeneity, cell.quantity) for cell in self.cells)
        place, number = times.most_common(1)[0]
        if number > 1:
            raise ValueError(f"each cell must be given once, got {_place(place)} {number} times")
        axes = [sorted({*values}) for values in zip(*times, strict=True)]
        if left_out := [place for place in product(*axes) if place not in times]:
            size, first = " x ".join(str(len(axis)) for axis in axes), _place(left_out[0])
            raise ValueError(f"cells must be a full {size} grid, but lack {len(left_out)}, the first at {first}")
        return self


def _place(place: tuple[float, ...]) -> str:
    return f"heterogeneity {place[0]:g}, quantity {place[1]:.0f}"


def write_settings_table(path: Path, table: SettingsTable, provenance: Mapping[str, Any]) -> None:
    """Write a table atomically.

    Args:
        path: Path of the file.
        table: Its cells are a full grid.
        provenance: JSON-serialisable provenance: by convention `dataset`, `model`, `num_classes` and `metric`, and
            `cells` with one mapping per cell, in the table's order.

    Raises:
        ConfigurationError: If the table is invalid, or the file can't be written.
    """
    document = {**asdict(table), "provenance": dict(provenance)}
    with reading_document("a settings table", ConfigurationError, "be a full grid of valid settings"):
        _Document.model_validate(document)
    try:
        write_atomically(path, lambda temporary: temporary.write_text(json_text(document)))
    except OSError as error:
        raise ConfigurationError(not_written(path, error)) from error


def read_settings_table(path: Path) -> tuple[SettingsTable, dict[str, Any]]:
    """Return a table and its provenance.

    Raises:
        ConfigurationError: If it is no file, holds no table, or its cells are not a full grid of valid settings.
    """
    with reading_document(path, ConfigurationError, "be a settings table of fedscout tune-table"):
        document = _Document.model_validate(read_json_object(path))
    return SettingsTable(document.cells, document.threshold), document.provenance
