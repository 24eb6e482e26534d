"""Experiments: methods (rows) crossed with federations (columns), each cell measured on the same seeds.

```yaml
title: two strategies under label skew
settings: {federation.dataset: digits, training.num_rounds: 20}   # of every cell
axes: {federation.partition.alpha: [0.1, 1]}                      # a column for each combination of values
rows:
  FedAvg: {settings: {strategy.kind: fedavg}}
  FedAdam: {settings: {strategy: {kind: fedadam, eta: 0.1}}}
  eight trials: {kind: search, settings: {search.budget: 8}}
reference: FedAvg
seeds: 5
statements:
  "FedAdam > FedAvg @ alpha=0.1": an adaptive server under label skew
```

`columns` lists federations by name in place of `axes`. The values of an axis are a list, or a mapping from names. A row
is a method, by default a training. In place of methods in the rows, `measured_by` names a class that measures all
cells. A row or column that is `published` has published numbers alone.

`mean_over: {strategy.kind: [fedavg, scaffold]}` measures each cell with each of these values; its number is their mean,
seed by seed, and the values are shown as well; a statement names one as `C, fedavg`.

A statement compares cells. `A > B @ C` says that row A is above row B in column C, `A = B @ C` that they are equal. `@
C | D` applies to both columns, `@ *` to all, `A > B > C @ D` is two statements, and `A @ C > B @ D` specifies each cell
in full. `published` holds the numbers of a publication: for each row a list over the columns or a mapping of columns,
of numbers or pairs of number and standard deviation.

`scales` overrides parts of the file by name, such as `published: {seeds: 10}` for the sizes of a publication: its
`settings` are merged over the file's, every other part replaces the file's.

A row's method says what a cell measures on each seed:

| kind | value of a seed |
| --- | --- |
| `train` | the score of the configured strategy, trained on that fresh seed |
| `search` | the score, on a fresh seed, of the best (or worst) configuration of a search on a search seed |
| `choose` | likewise of the choice of a recommender of `fedscout bench choice`, or of a searcher of the user's own |
| `best_of_kind` | the best fitness of one kind of strategy among a search's trials |
| `given` | computed by a function, or by the experiment's `measured_by`, from the row's arguments |
| `detect` | a number of the heterogeneity report, with that `federation.seed` |

Fresh seeds are the same for all cells, so differences are taken seed by seed. Trials are logged by federation, and none
is trained twice (`federation_runner`). A failed trial scores like a constant prediction.

With `rates`, a training's client learning rate is the one with the best score on two tuning seeds. `score: best_round`
is the best of all rounds, on uncorrupted test rows. With `seconds_to`, the value is, in place of the score, the
simulated time until the mean of five successive rounds reaches that accuracy; a seed that never reaches it has no
value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from itertools import pairwise, product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.text import details, did_you_mean, fault_of
from fedscout.experiments.config import YAML_SUFFIXES
from fedscout.search.confirmation.intervals import Bounds

Cell = tuple[str, str]
"""A row and a column."""

PERCENT = "accuracy"
"""The unit that is shown in percent."""
SHARE = "share"
"""The unit of values that are 0 or 1; their mean has a Wilson interval."""
SHARES = (PERCENT, SHARE, "reward over 500")
"""Units of which 1 is the largest number."""

SIGNED = ("R_t", "growth exponent")
"""Units of numbers that may be negative."""

Relation = Literal[">", "="]

Published = Literal["published"]
"""In place of the content of a row or column that is not measured."""

Settings = dict[str, Any]
"""Values by dotted key, as in a study's YAML file."""

PLAIN: Mapping[str, Any] = {"settings": {}, "axes": {}, "method": {}}
"""Fields of an experiment whose columns and rows hold all their settings."""

Levels = list[Any] | dict[str, Any]
"""Values of a key, or their names and values."""


class _Kind(BaseModel):
    """A method of a row; `settings` override those of the column."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: dict[str, Any] = {}


class Train(_Kind):
    """One training per seed.

    Attributes:
        rates: Candidate client learning rates; the best is used.
        score: Of the last rounds or of the best one.
        seconds_to: Target accuracy; the value is the simulated time until it is reached.
    """

    kind: Literal["train"] = "train"
    rates: tuple[float, ...] = ()
    score: Literal["final", "best_round"] = "final"
    seconds_to: float | None = None


class Search(_Kind):
    """One search per seed, whose result is trained on a fresh seed."""

    kind: Literal["search"]
    take: Literal["best", "worst"] = "best"


class Choose(_Kind):
    """One choice per seed, trained on a fresh seed, by a recommender or the import path of a searcher."""

    kind: Literal["choose"]
    by: str


class BestOfKind(_Kind):
    """The best trial of one kind of strategy in a search, FedAvg included."""

    kind: Literal["best_of_kind"]
    strategy: str


class Detect(_Kind):
    """A number of a heterogeneity report, such as `metrics.label_hellinger`, or by an import path `module:function`."""

    kind: Literal["detect"]
    value: str


class Given(_Kind):
    """A cell's numbers, computed from arguments.

    Attributes:
        function: Import path of a function of a cell, its settings, its context and the arguments; None if a class
            measures all cells.
        arguments: Of the function, or of the class that measures all cells.
    """

    kind: Literal["given"]
    function: str | None = None
    arguments: dict[str, Any] = {}


Method = Annotated[Train | Search | Choose | BestOfKind | Detect | Given, Field(discriminator="kind")]


class Function(BaseModel, frozen=True, extra="forbid"):
    """The import path of a class that measures all cells: made from the arguments, it has `measure`."""

    function: str
    arguments: dict[str, Any] = {}


class Statement(BaseModel, frozen=True):
    """A claim about two cells.

    Attributes:
        first: A cell.
        second: Another.
        relation: `>`: the first is larger than the second. `=`: they are equal within noise.
        says: A short description.
    """

    first: Cell
    second: Cell
    relation: Relation
    says: str


Number = tuple[float, float | None]
"""A published number, and its standard deviation over repetitions if the source gives one."""


class Experiment(BaseModel):
    """A validated experiment.

    Attributes:
        title: What is compared.
        settings: Of every cell, overridden by those of columns and rows.
        columns: Settings of each federation by its name.
        axes: Values by key, crossed to columns.
        mean_over: Values by key, crossed; a cell is the mean over them, seed by seed.
        method: Fields that the rows' methods share.
        rows: Methods by name.
        measured_by: The class that measures all cells, in place of the rows' methods; then `rows` are names, or of kind
            `given`.
        reference: The row that others are compared with.
        seeds: Number of seeds, the same for all cells.
        fresh_stream: Name of the random stream from which the seeds are drawn.
        tuning_stream: Name of the random stream of the two seeds for tuning client rates.
        statements: Descriptions by statement.
        published: Published numbers by row and column.
        unit: Of the numbers; `accuracy` is shown in percent.
        notes: Substitutions for what could not be obtained.
        steps: Whether rows or columns are steps of one quantity, such as rounds; then the chart shows curves.
        groups: Columns by group name; rows are averaged over each group with a bootstrap interval.
        scales: Overrides of parts of the file, by name of the scale.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    settings: Settings = {}
    columns: dict[str, Settings | Published] = {}
    axes: dict[str, Levels] = {}
    mean_over: dict[str, Levels] = {}
    method: dict[str, Any] = {}
    rows: dict[str, Method | Published | None]
    measured_by: Function | None = None
    reference: str | None = None
    seeds: int = Field(default=5, ge=1)
    fresh_stream: str = "reproduction"
    tuning_stream: str = "tuning"
    statements: dict[str, str] = {}
    published: dict[str, Any] = {}
    unit: str = PERCENT
    notes: tuple[str, ...] = ()
    steps: Literal["rows", "columns"] | None = None
    groups: dict[str, tuple[str, ...]] = {}
    scales: dict[str, dict[str, Any]] = {}

    @model_validator(mode="before")
    @classmethod
    def _with_common_method(cls, given: Any) -> Any:
        shared = given.get("method", {}) if isinstance(given, Mapping) else None
        if not (isinstance(shared, Mapping) and isinstance(given.get("rows"), Mapping)):
            return given
        rows = {
            name: {"kind": "train", **shared, **method} if isinstance(method, Mapping) else method
            for name, method in given["rows"].items()
        }
        return {**given, "rows": rows}

    @model_validator(mode="after")
    def _consistent(self) -> Experiment:
        faults = []
        if bool(self.columns) == bool(self.axes):
            faults.append("either columns or axes must be given")
        for name, method in self.rows.items() if self.measured_by is None else ():
            if method is None or (isinstance(method, Given) and method.function is None):
                faults.append(f"rows.{name} must be a method if measured_by is left out")
            if isinstance(method, Search | Choose | BestOfKind):
                wrong = [key for key in method.settings if key.partition(".")[0] not in ("search", "recommender")]
                must = "be left out: a row that searches or chooses sets search.* and recommender.* alone"
                faults += [Fault(f"rows.{name}.settings.{key}", must) for key in wrong]
        if not self.rows or not self.federations:
            faults.append(Fault("rows and columns", "have at least one entry each"))
        for key in sorted(key for key in self._keys() if key.partition(".")[0] in ("engine", "seed")):
            faults.append(Fault(key, "be left out: engine.* are arguments of the command, seeds counts the seeds"))
        if self.reference is not None and self.reference not in self.rows:
            faults.append(f"reference must be a row, got {self.reference!r}{did_you_mean(self.reference, self.rows)}")
        inside = {column for columns in self.groups.values() for column in columns}
        faults += [f"groups must name columns, got {name!r}" for name in sorted(inside - {*self.federations})]
        if not faults:
            for text in self.statements:
                try:
                    [*self._read(text, "")]
                except ValueError as error:
                    faults.append(str(error))
            faults += [Fault(f"published.{row}", "name a row") for row in self.published if row not in self.rows]
            try:
                self.printed()
            except (TypeError, ValueError) as error:
                faults.append(Fault("published", f"hold a number for each column or a mapping of columns: {error}"))
        if faults:
            raise ValueError("; ".join(faults))
        return self

    @cached_property
    def federations(self) -> dict[str, Settings]:
        """Settings of each column by its name, including those of the experiment."""
        return {
            name: {**self.settings, **({} if isinstance(column_settings, str) else column_settings)}
            for name, column_settings in (self.columns or _crossed(self.axes)).items()
        }

    @cached_property
    def levels(self) -> dict[str, Settings]:
        """Settings that a cell is averaged over, by name; empty if a cell is not a mean."""
        return _crossed(self.mean_over) if self.mean_over else {}

    def parts(self) -> Experiment:
        """Return the experiment whose cells are averaged: one column for each column and level."""
        if not self.levels:
            return self
        columns = {
            part_name(column, level): {**self.federations[column], **self.levels[level]}
            for column, level in product(self.federations, self.levels)
        }
        of_means: dict[str, Any] = {"mean_over": {}, "statements": {}, "published": {}, "groups": {}}
        return self._with(**PLAIN, **of_means, columns=columns)

    @property
    def bounds(self) -> Bounds:
        """The smallest and the largest possible number."""
        if self.unit in SIGNED:
            return -math.inf, math.inf
        return 0.0, 1.0 if self.unit in SHARES else math.inf

    def cells(self) -> list[Cell]:
        """Return all cells, column by column."""
        return [(row, column) for column in self.federations for row in self.rows]

    def measured(self) -> list[Cell]:
        """Return the cells that are not of published numbers alone."""
        return [
            (row, column)
            for row, column in self.cells()
            if isinstance(self.rows[row], BaseModel) and not isinstance(self.columns.get(column), str)
        ]

    def all_statements(self) -> tuple[Statement, ...]:
        """Return the statements, each on two cells."""
        return tuple(statement for text, says in self.statements.items() for statement in self._read(text, says))

    def printed(self) -> dict[Cell, Number]:
        """Return the published numbers by cell."""
        numbers: dict[Cell, Number] = {}
        for row, published_row in self.published.items():
            by_column = (
                published_row
                if isinstance(published_row, Mapping)
                else dict(zip(self.federations, published_row, strict=True))
            )
            for column, value in by_column.items():
                if value is not None:
                    number, deviation = value if isinstance(value, Sequence) else (value, None)
                    numbers[row, str(column)] = (float(number), None if deviation is None else float(deviation))
        return numbers

    def at(self, scale: str | None) -> Experiment:
        """Return the experiment with the overrides of a scale; unchanged for None or an unknown scale."""
        replaced = self.scales.get(scale or "", {})
        settings = {**self.settings, **replaced.get("settings", {})}
        given = {**self.model_dump(exclude_unset=True), **replaced, "settings": settings}
        return Experiment.model_validate(given) if replaced else self

    def only(self, rows: Sequence[str] | None, columns: Sequence[str] | None) -> Experiment:
        """Return the experiment with a subset of rows, plus the reference, and of columns; None keeps all.

        Args:
            rows: Names, which may be split at their commas, as a list on the command line is.
            columns: Likewise.

        Raises:
            ConfigurationError: If a name is unknown.
        """
        rows, columns = _named("row", rows, self.rows), _named("column", columns, self.federations)
        kept_rows = {
            row: method for row, method in self.rows.items() if rows is None or row in rows or row == self.reference
        }
        all_columns = self.federations | {name: own for name, own in self.columns.items() if isinstance(own, str)}
        kept_columns = {name: own for name, own in all_columns.items() if columns is None or name in columns}
        parts = [part_name(*part) for part in product(kept_columns, self.levels)]
        cells = {*product(kept_rows, [*kept_columns, *parts])}
        published: dict[str, dict[str, Any]] = {}
        for (row, column), number in self.printed().items():
            if (row, column) in cells:
                published.setdefault(row, {})[column] = number
        statements = {
            f"{' @ '.join(one.first)} {one.relation} {' @ '.join(one.second)}": one.says
            for one in self.all_statements()
            if {one.first, one.second} <= cells
        }
        groups = {group: tuple(name for name in names if name in kept_columns) for group, names in self.groups.items()}
        return self._with(
            **PLAIN,
            rows=kept_rows,
            columns=kept_columns,
            published=published,
            statements=statements,
            groups={group: names for group, names in groups.items() if names},
        )

    def with_rows(self, rows: Mapping[str, Method]) -> Experiment:
        """Return the experiment with further rows."""
        return self._with(method={}, rows={**self.rows, **rows})

    def _keys(self) -> set[str]:
        """Return every key that is set anywhere."""
        methods = [method.settings for method in self.rows.values() if isinstance(method, BaseModel)]
        columns = [settings for settings in self.columns.values() if not isinstance(settings, str)]
        return {*self.settings, *self.axes, *self.mean_over}.union(*columns, *methods)

    def _with(self, **changes: Any) -> Experiment:
        """Return the experiment with other fields, validated."""
        fields = {name: getattr(self, name) for name in Experiment.model_fields}
        return Experiment.model_validate({**fields, **changes})

    def _read(self, text: str, says: str) -> Iterator[Statement]:
        """Yield the statements in a text.

        Raises:
            ValueError: If it does not name cells of the table.
        """
        parts = re.split(r" ([>=]) ", text)
        if len(parts) == 1:
            raise ValueError(f"a statement must compare two cells by > or =, got {text!r}")
        sides = [side.partition(" @ ") for side in parts[::2]]
        rows = [row.strip() for row, _, _ in sides]
        columns = [self._columns(text, column.strip() or sides[-1][2].strip()) for _, _, column in sides]
        for row in rows:
            if row not in self.rows:
                raise ValueError(f"statement {text!r} must name rows, got {row!r}{did_you_mean(row, self.rows)}")
        for (left, right), both, relation in zip(pairwise(rows), pairwise(columns), parts[1::2], strict=True):
            for first, second in zip(*both, strict=True):
                yield Statement(first=(left, first), second=(right, second), relation=relation, says=says)

    def _columns(self, text: str, names: str) -> list[str]:
        columns = [*self.federations] if names == "*" else [name.strip() for name in names.split(" | ")]
        known = [*self.federations, *(part_name(*part) for part in product(self.federations, self.levels))]
        for name in columns:
            if name not in known:
                raise ValueError(f"statement {text!r} must name columns, got {name!r}{did_you_mean(name, known)}")
        return columns


def part_name(column: str, level: str) -> str:
    """Return the column name of one level of a column."""
    return f"{column}, {level}"


def _crossed(axes: Mapping[str, Levels]) -> dict[str, Settings]:
    """Return every combination of values by its name."""
    named_levels = []
    for key, levels in axes.items():
        short = key.rpartition(".")[2]
        named = {value if isinstance(value, str) else f"{short}={json.dumps(value)}": value for value in levels}
        named_levels.append((levels if isinstance(levels, dict) else named).items())
    return {
        ", ".join(name for name, _ in combination): dict(zip(axes, (value for _, value in combination), strict=True))
        for combination in product(*named_levels)
    }


def _named(what: str, pieces: Sequence[str] | None, known: Collection[str]) -> list[str] | None:
    """Return the names from pieces that may be names split at their commas; None for None.

    Raises:
        ConfigurationError: If a piece belongs to no name.
    """
    if pieces is None:
        return None
    names, remaining = [], [*pieces]
    while remaining:
        ends = [end for end in range(1, len(remaining) + 1) if ", ".join(remaining[:end]) in known]
        if not ends:
            raise ConfigurationError.of(
                f"a {what}", f"be one of {'; '.join(known)}", repr(remaining[0]), did_you_mean(remaining[0], known)
            )
        names.append(", ".join(remaining[: ends[-1]]))
        remaining = remaining[ends[-1] :]
    return names


def arguments(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return settings as command-line arguments."""
    return tuple(f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in settings.items())


def is_experiment(path: Path) -> bool:
    """Return whether a file is a YAML file with `rows`, which no study configuration has."""
    import yaml

    if path.suffix not in YAML_SUFFIXES:
        return False
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, ValueError, RecursionError, yaml.YAMLError):  # read as a configuration, which reports the fault
        return False
    return isinstance(document, Mapping) and "rows" in document


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
        raise ConfigurationError.of("the experiment", "be a YAML file", f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError.of(path, f"be YAML: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        faults = [fault_of(".".join(map(str, detail["loc"])), detail).lstrip() for detail in details(error)]
        raise ConfigurationError([f"{path}: {fault}" for fault in faults]) from error


def imported(path: str) -> Any:
    """Return the object at an import path `module:name`.

    Raises:
        ConfigurationError: If there is none.
    """
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError.of("an import path", "name a function as module:name", f"{path!r}: {error}") from error
