"""An experiment: methods (rows) crossed with federations (columns), each cell measured on the same seeds.

```yaml
title: two strategies under label skew
settings: {federation.dataset: digits, training.num_rounds: 20}   # of every cell
axes: {federation.partition.alpha: [0.1, 1]}                      # a column for each combination
rows:
  FedAvg: {settings: {strategy: fedavg}}
  FedAdam: {settings: {strategy: {kind: fedadam, eta: 0.1}}}
  eight trials: {kind: search, settings: {search.budget: 8}}
reference: FedAvg
seeds: 5
statements:
  "FedAdam > FedAvg @ alpha=0.1": an adaptive server under label skew
```

`columns` names federations one by one in place of `axes`. A row is a method (`fedscout.experiments.grids.methods`), by
default a training. In place of rows of methods, `measured_by` names a function that measures all cells.

A statement compares cells. `A > B @ C` says that row A is above row B in column C, `A = B @ C` that they are level.
`@ C | D` is said of both columns, `@ *` of every one, `A > B > C @ D` is two statements, and `A @ C > B @ D` names each
cell whole. `published` holds what
a source prints, by row a list over the columns or a mapping of columns; a number, or number and standard deviation.

`scales` overrides parts of the file by name, such as `published: {seeds: 10}` for the sizes of a source.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedscout.engine.errors import ConfigurationError
from fedscout.engine.fault_text import details, did_you_mean, predicate
from fedscout.experiments.grids.methods import Function, Method
from fedscout.search.confirmation.intervals import Bounds

Cell = tuple[str, str]
"""A row and a column."""

PERCENT = "accuracy"
"""The unit that is shown in percent."""
SHARES = (PERCENT, "reward over 500")
"""Units of which 1 is the largest number."""

Relation = Literal["above", "level"]

RELATIONS: Mapping[str, Relation] = {">": "above", "=": "level"}

Settings = dict[str, Any]
"""Values by dotted key, as in a study's YAML file."""


@dataclass(frozen=True)
class Statement:
    """What is said of two cells.

    Attributes:
        first: A cell.
        second: Another.
        relation: `above`: the first is larger than the second. `level`: they are the same, within noise.
        says: In a few words.
    """

    first: Cell
    second: Cell
    relation: Relation
    says: str


@dataclass(frozen=True)
class Number:
    """A published number, and its standard deviation over repetitions where the source gives one."""

    value: float
    deviation: float | None = None


class Experiment(BaseModel):
    """An experiment, validated.

    Attributes:
        title: What is compared.
        about: A source, or what the experiment is for.
        settings: Of every cell, under those of columns and rows.
        columns: Settings of each federation by its name.
        axes: Values by key, crossed to columns.
        method: What the rows' methods have in common.
        rows: Methods by name.
        measured_by: What measures all cells, in place of the rows' methods; then `rows` are names alone.
        reference: The row that others are compared with.
        seeds: Of every cell, the same for all.
        fresh_stream: Of random numbers, from which the seeds are drawn.
        tuning_stream: From which the two seeds are drawn on which client rates are tuned.
        statements: What is said of cells, by what they say in words.
        published: Printed numbers by row and column.
        unit: Of the numbers; `accuracy` is shown in percent.
        factor: By which published numbers are multiplied, such as 0.01 for percent.
        notes: What stands in for what.
        also: Further names of the same table.
        steps: Whether rows or columns are steps of one quantity, such as rounds: then the picture is of curves.
        scales: Parts of the file that are replaced, by name of the scale.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    about: str = ""
    settings: Settings = {}
    columns: dict[str, Settings] = {}
    axes: dict[str, list[Any]] = {}
    method: dict[str, Any] = {}
    rows: dict[str, Method | None]
    measured_by: Function | None = None
    reference: str | None = None
    seeds: int = Field(default=5, ge=1)
    fresh_stream: str = "reproduction"
    tuning_stream: str = "tuning"
    statements: dict[str, str] = {}
    published: dict[str, Any] = {}
    unit: str = PERCENT
    factor: float = 1.0
    notes: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    steps: Literal["rows", "columns"] | None = None
    scales: dict[str, dict[str, Any]] = {}

    @model_validator(mode="before")
    @classmethod
    def _with_common_method(cls, given: Any) -> Any:
        shared = given.get("method") if isinstance(given, Mapping) else None
        if not shared:
            return given
        rows = {name: {**shared, **own} if isinstance(own, Mapping) else own for name, own in given["rows"].items()}
        return {**given, "rows": rows}

    @model_validator(mode="after")
    def _consistent(self) -> Experiment:
        faults = []
        if bool(self.columns) == bool(self.axes):
            faults.append("columns or axes must be given, one of the two")
        if self.measured_by is None and (without := [name for name, method in self.rows.items() if method is None]):
            faults.append(f"rows.{without[0]} must be a method where measured_by is left out")
        if self.reference is not None and self.reference not in self.rows:
            faults.append(f"reference must be a row, got {self.reference!r}{did_you_mean(self.reference, self.rows)}")
        if not faults:
            for text in self.statements:
                try:
                    [*self._read(text, "")]
                except ValueError as error:
                    faults.append(str(error))
            faults += [f"published.{row} must be a row" for row in self.published if row not in self.rows]
        if faults:
            raise ValueError("; ".join(faults))
        return self

    @cached_property
    def federations(self) -> dict[str, Settings]:
        """Settings of each column by its name, those of the experiment included."""
        if self.columns:
            return {name: {**self.settings, **own} for name, own in self.columns.items()}
        short = {key: key.rpartition(".")[2] for key in self.axes}
        named = {}
        for values in product(*self.axes.values()):
            own = dict(zip(self.axes, values, strict=True))
            name = ", ".join(f"{short[key]}={_shown(value)}" for key, value in own.items())
            named[name] = {**self.settings, **own}
        return named

    @property
    def bounds(self) -> Bounds:
        """The smallest and the largest number that there can be; none is negative."""
        return 0.0, 1.0 if self.unit in SHARES else math.inf

    def cells(self) -> list[Cell]:
        """Return all cells, column by column."""
        return [(row, column) for column in self.federations for row in self.rows]

    def said(self) -> tuple[Statement, ...]:
        """Return the statements, each of two cells."""
        return tuple(one for text, says in self.statements.items() for one in self._read(text, says))

    def printed(self) -> dict[Cell, Number]:
        """Return the published numbers by cell."""
        found = {}
        for row, line in self.published.items():
            by_column = line if isinstance(line, Mapping) else dict(zip(self.federations, line, strict=True))
            for column, value in by_column.items():
                if value is not None:
                    number, deviation = value if isinstance(value, Sequence) else (value, None)
                    scaled = None if deviation is None else deviation * self.factor
                    found[row, str(column)] = Number(number * self.factor, scaled)
        return found

    def at(self, scale: str | None) -> Experiment:
        """Return the experiment with what a scale replaces; None, or a scale it does not name, replaces nothing."""
        replaced = self.scales.get(scale or "", {})
        return Experiment.model_validate({**self.model_dump(exclude_unset=True), **replaced}) if replaced else self

    def only(self, rows: Sequence[str] | None, columns: Sequence[str] | None) -> Experiment:
        """Return the experiment with some rows, the reference included, and columns; None keeps all.

        Raises:
            ConfigurationError: If there is none of a name.
        """
        for what, names, known in (("row", rows, self.rows), ("column", columns, self.federations)):
            if unknown := [name for name in names or () if name not in known]:
                raise ConfigurationError(
                    f"a {what} must be one of {', '.join(known)}, got {unknown[0]!r}{did_you_mean(unknown[0], known)}"
                )
        kept = {
            row: method for row, method in self.rows.items() if rows is None or row in rows or row == self.reference
        }
        federations = {name: own for name, own in self.federations.items() if columns is None or name in columns}
        cells = {(row, column) for row in kept for column in federations}
        published: dict[str, dict[str, Any]] = {}
        for (row, column), number in self.printed().items():
            if (row, column) in cells:
                published.setdefault(row, {})[column] = (number.value, number.deviation)
        signs = {relation: sign for sign, relation in RELATIONS.items()}
        said = {
            f"{' @ '.join(one.first)} {signs[one.relation]} {' @ '.join(one.second)}": one.says
            for one in self.said()
            if {one.first, one.second} <= cells
        }
        fields = {name: getattr(self, name) for name in Experiment.model_fields}
        flat = {"settings": {}, "axes": {}, "method": {}, "factor": 1.0}
        parts = {"rows": kept, "columns": federations, "published": published, "statements": said}
        return Experiment.model_validate({**fields, **flat, **parts})

    def _read(self, text: str, says: str) -> Iterator[Statement]:
        """Yield the statements of a text.

        Raises:
            ValueError: If it names no cell of the table.
        """
        parts = re.split(r" ([>=]) ", text)
        sides, signs = parts[::2], parts[1::2]
        if not signs:
            raise ValueError(f"a statement must compare two cells by > or =, got {text!r}")
        rows, columns = [], []
        for side in sides:
            row, _, column = side.partition(" @ ")
            rows.append(row.strip())
            columns.append(column.strip())
        last = columns[-1]
        columns = [column or last for column in columns]
        for row in rows:
            if row not in self.rows:
                raise ValueError(f"statement {text!r} must name rows, got {row!r}{did_you_mean(row, self.rows)}")
        for (one, other), (here, there), sign in zip(pairwise(rows), pairwise(columns), signs, strict=True):
            both = self._columns(text, here), self._columns(text, there)
            for first, second in zip(*both, strict=True):
                yield Statement((one, first), (other, second), RELATIONS[sign], says)

    def _columns(self, text: str, names: str) -> list[str]:
        found = [*self.federations] if names == "*" else [name.strip() for name in names.split(" | ")]
        for name in found:
            if name not in self.federations:
                raise ValueError(
                    f"statement {text!r} must name columns, got {name!r}{did_you_mean(name, self.federations)}"
                )
        return found


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def arguments(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return settings as arguments of a command."""
    return tuple(f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in settings.items())


def read_experiment(path: Path) -> Experiment:
    """Read a YAML file.

    Raises:
        ConfigurationError: With every fault.
    """
    import yaml

    try:
        document = yaml.safe_load(path.read_text())
        return Experiment.model_validate(document)
    except OSError as error:
        raise ConfigurationError(f"the experiment must be a YAML file, got {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} must be YAML: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, each['loc']))}{predicate(each)}".lstrip() for each in details(error)]
        raise ConfigurationError([f"{path}: {fault}" for fault in faults]) from error
