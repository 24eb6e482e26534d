"""The configuration of client-specific training settings from a settings table."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator

from fedscout.engine.contracts.client_table import HETEROGENEITY, METRICS, SettingsLookup, SettingsTable
from fedscout.engine.errors import ConfigurationError
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
    from fedscout.search.settings_table_file import read_settings_table  # pyarrow, which others do without

    del version
    return read_settings_table(path)
