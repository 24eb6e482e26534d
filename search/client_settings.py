"""The configuration of settings that clients choose for themselves, by a table."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator

from fedscout.engine.contracts.client_table import HETEROGENEITY, METRICS, SettingsLookup, SettingsTable
from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.user_code import code_digests


def _metric(name: str) -> str:
    module, _, function = name.partition(":")
    if name not in METRICS and not all(part.isidentifier() for part in (function, *module.split("."))):
        raise ValueError(f"must be {', '.join(METRICS)} or package.module:function, got {name!r}")
    return name


class ClientSettingsConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Which table clients are sent, and what they measure of themselves."""

    kind: Literal["table"] | None = Field(
        default=None, description="table: each client takes rate, batches and epochs from a table; nothing trains alike"
    )
    path: str | None = Field(default=None, description="the table, a file of fedscout tune-table")
    metric: Annotated[str, AfterValidator(_metric)] = Field(
        default=HETEROGENEITY,
        description="what clients measure of their labels: heterogeneity, entropy or package.module:function",
    )
    threshold: float | None = Field(
        default=None, ge=0, description="a client farther than this from every cell says so; nothing means the table's"
    )
    epsilon: float | None = Field(
        default=None, gt=0, description="privacy of that answer, by randomised response; nothing says the truth"
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        given = [name for name, field in type(self).model_fields.items() if getattr(self, name) != field.default]
        if self.kind is None and given:
            raise ValueError(f"must have kind=table where {', '.join(given)} is given")
        if self.kind is not None and self.path is None:
            raise ValueError("must have a path, of the table, where kind is table")
        return self

    def read(self) -> tuple[SettingsTable, Mapping[str, Any]]:
        """Return the table with the threshold that counts, and where it comes from.

        Raises:
            ConfigurationError: If the file holds no table, or one by which clients do not say what ε is the privacy of.
        """
        path = Path(self.path or "")
        stat = path.stat() if path.is_file() else None
        table, provenance = _read(path, (stat.st_mtime_ns, stat.st_size) if stat else None)
        told = provenance.get("metric", HETEROGENEITY)
        if told != self.metric:
            raise ConfigurationError(
                Fault("client_settings.metric", f"be {told}, for which {path} was tuned", self.metric)
            )
        table = table if self.threshold is None else SettingsTable(table.cells, self.threshold)
        if self.epsilon is not None and table.threshold is None:
            raise ConfigurationError(
                Fault(
                    "client_settings.epsilon",
                    (f"come with client_settings.threshold, as {path} has none: without one clients say nothing"),
                    f"{self.epsilon:g}",
                )
            )
        return table, provenance

    def identity(self) -> dict[str, Any]:
        """Return what of it decides results: what the table holds, not where it lies.

        Raises:
            ConfigurationError: If the file holds no table.
        """
        table = SettingsLookup(self.read()[0], self.metric, epsilon=self.epsilon)
        code = {} if self.metric in METRICS else {"code": dict(code_digests(self.metric))}
        return {"kind": self.kind, "metric": self.metric, "table": table.digest(), **code}


@lru_cache(maxsize=16)
def _read(path: Path, version: tuple[int, int] | None) -> tuple[SettingsTable, Mapping[str, Any]]:
    """Return what a file holds; its version only says that it is another one."""
    from fedscout.search.settings_table_file import read_settings_table  # pyarrow, which others do without

    del version
    return read_settings_table(path)
