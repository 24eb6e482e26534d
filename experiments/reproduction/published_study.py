"""A published table or figure: its numbers, what its source says of them, and how ours are measured.

A new study is one value of `PublishedStudy` in the file of its source, and needs nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Literal, Protocol

from fedscout.search.confirmation.intervals import Bounds

Scale = Literal["laptop", "published"]

Steps = Literal["rows", "columns"]

Cell = tuple[str, str]
"""A row and a column."""

Note = Callable[[str], None]

PERCENT = "accuracy"
"""The unit that is told in percent."""
SHARES = (PERCENT, "reward over 500")
"""Units of which 1 is the largest number."""


@dataclass(frozen=True)
class Number:
    """A published number, and its standard deviation over repetitions where the source tells one."""

    value: float
    deviation: float | None = None


@dataclass(frozen=True)
class Ordering:
    """What a source says of two cells.

    Attributes:
        first: A cell.
        second: Another.
        says: In a few words.
        relation: `above`: the first is larger than the second. `level`: they are the same, within noise.
    """

    first: Cell
    second: Cell
    says: str
    relation: Literal["above", "level"] = "above"


@dataclass(frozen=True)
class Desk:
    """Where a study is measured.

    Attributes:
        folder: Of the source: its studies share their trials there.
        settings: Arguments that hold for every training, which win.
        num_seeds: In place of a study's own number.
        note: Told what is done next.
    """

    folder: Path
    settings: tuple[str, ...] = ()
    num_seeds: int | None = None
    note: Note = lambda _: None


@dataclass(frozen=True)
class Measured:
    """Our numbers.

    Attributes:
        values: By cell one a seed, in the same order of seeds everywhere; None where a seed has no such number.
        test_to_train: n_test / n_train of the splits behind them, by which intervals widen; 0 where there is none.
        resolution: Step of the scale, such as one test row's share; 0 where it is not known.
        absent: What could not be measured, and why.
    """

    values: Mapping[Cell, tuple[float | None, ...]]
    test_to_train: float = 0.0
    absent: Mapping[str, str] = field(default_factory=dict)
    resolution: float = 0.0


class Measurement(Protocol):
    """A way to obtain a study's numbers; what it has measured before is not measured again."""

    def measure(self, desk: Desk) -> Measured:
        """Return the numbers.

        Raises:
            UserError: If something can't be built or trained as it is asked for.
        """
        ...


@dataclass(frozen=True)
class PublishedStudy:
    """A table or figure of a source.

    Attributes:
        name: Of the table or figure, as in `table6`.
        title: What is compared.
        rows: Names, from top to bottom.
        columns: Names, from left to right.
        measurements: By scale.
        published: What is printed, or can be read, in the source.
        orderings: What the source says.
        unit: Of the numbers; accuracies are told in percent.
        notes: What could not be obtained, and what stands in for it, at any scale.
        scale_notes: Further ones, by scale.
        also: Further tables or figures that the same numbers answer.
        steps: Whether rows or columns are steps of one quantity, such as rounds: then the picture is of curves.
    """

    name: str
    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    measurements: Mapping[Scale, Measurement]
    published: Mapping[Cell, Number] = field(default_factory=dict)
    orderings: tuple[Ordering, ...] = ()
    unit: str = PERCENT
    notes: tuple[str, ...] = ()
    scale_notes: Mapping[Scale, tuple[str, ...]] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    steps: Steps | None = None

    @property
    def bounds(self) -> Bounds:
        """The smallest and the largest number that there can be; no unit of the sources is negative."""
        return 0.0, 1.0 if self.unit in SHARES else math.inf

    @property
    def names(self) -> tuple[str, ...]:
        """All names by which it is found."""
        return (self.name, *self.also)


@dataclass(frozen=True)
class Source:
    """A publication.

    Attributes:
        name: Short, as in `choice/table6`.
        about: The work, for people.
        studies: Its tables and figures.
    """

    name: str
    about: str
    studies: tuple[PublishedStudy, ...]


def numbers(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    deviations: Sequence[Sequence[float | None]] | None = None,
    factor: float = 1.0,
) -> dict[Cell, Number]:
    """Return a published table, given row by row; None where a number is not known.

    Args:
        rows: Names.
        columns: Names.
        values: A sequence a row, as long as `columns`.
        deviations: Likewise; None where the source tells none.
        factor: By which all are multiplied, such as 0.01 for percent.
    """
    found = {}
    for place, (row, line) in enumerate(zip(rows, values, strict=True)):
        for position, (column, value) in enumerate(zip(columns, line, strict=True)):
            if value is not None:
                deviation = None if deviations is None else deviations[place][position]
                scaled = None if deviation is None else deviation * factor
                found[row, column] = Number(value * factor, scaled)
    return found


def chain(row_names: Sequence[str], column: str, says: str) -> tuple[Ordering, ...]:
    """Return the orderings of rows, each above the next, in a column."""
    return tuple(Ordering((first, column), (second, column), says) for first, second in pairwise(row_names))


def chain_of_columns(row: str, column_names: Sequence[str], says: str) -> tuple[Ordering, ...]:
    """Return the orderings of columns, each above the next, in a row."""
    return tuple(Ordering((row, first), (row, second), says) for first, second in pairwise(column_names))
