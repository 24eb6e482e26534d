"""A study that was run again: each number beside the published one, and each statement of the source beside ours.

Intervals are those of `intervals` for new data from the same clients. A statement that one cell is above another is

    seen            if the interval of the difference, seed by seed, lies above zero,
    contradicted    if it lies below,
    within noise    if it holds zero, so that we can't tell.

That two cells are level can only be contradicted: an interval that holds zero does not contradict it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Literal

from pydantic import BaseModel

from fedscout.experiments.reproduction.published_study import Cell, Measured, Ordering, PublishedStudy, Scale, Steps
from fedscout.search.confirmation.intervals import ERROR, PairedDifference, mean_score, paired_difference

Verdict = Literal["seen", "within noise", "contradicted", "not contradicted", "not measured"]


class ReproducedCell(BaseModel, frozen=True):
    """A cell of the table.

    Attributes:
        published: In the unit of the study; None if it is not known.
        deviation: The source's standard deviation.
        values: Ours, one a seed that has one.
        mean: Of them; None without any.
        low: Lower end of its 95 % interval; None with a single value.
        high: Upper end.
    """

    row: str
    column: str
    published: float | None
    deviation: float | None
    values: tuple[float, ...]
    mean: float | None
    low: float | None
    high: float | None


class ReproducedOrdering(BaseModel, frozen=True):
    """A statement of the source, and what we see.

    Attributes:
        difference: Of the first cell less the second; None where one was not measured.
        published: The same of the published numbers, where both are known.
    """

    first: Cell
    second: Cell
    says: str
    relation: Literal["above", "level"]
    difference: PairedDifference | None
    published: float | None
    verdict: Verdict


class ReproducedStudy(BaseModel, frozen=True):
    """The whole table.

    Attributes:
        source: Its short name.
        name: Of the study in the source.
        date: Of the run, ISO 8601.
        version: Of the program.
        command: By which it was run.
        seconds: Wall time of this run; less where an earlier one left trials.
        test_to_train: By which intervals are widened to be for new data; 0 where they are of repetitions alone.
        notes: What could not be obtained, and what stands in.
        absent: What could not be measured, and why.
        steps: Whether rows or columns are steps of one quantity.
    """

    source: str
    name: str
    title: str
    scale: Scale
    unit: str
    date: str
    version: str
    command: str
    seconds: float
    test_to_train: float
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[ReproducedCell, ...]
    orderings: tuple[ReproducedOrdering, ...]
    notes: tuple[str, ...]
    absent: Mapping[str, str]
    steps: Steps | None = None

    def of(self, cell: Cell) -> ReproducedCell:
        """Return a cell."""
        return next(one for one in self.cells if (one.row, one.column) == cell)

    def count(self, verdict: Verdict) -> int:
        """Return how many statements have a verdict."""
        return sum(one.verdict == verdict for one in self.orderings)


def cells_of(study: PublishedStudy, measured: Measured) -> tuple[ReproducedCell, ...]:
    """Return the table, from left to right and from top to bottom."""
    return tuple(_cell(study, measured, (row, column)) for row in study.rows for column in study.columns)


def orderings_of(study: PublishedStudy, measured: Measured) -> tuple[ReproducedOrdering, ...]:
    """Return what is seen of every statement."""
    return tuple(_ordering(study, measured, one) for one in study.orderings)


def _cell(study: PublishedStudy, measured: Measured, cell: Cell) -> ReproducedCell:
    published = study.published.get(cell)
    values = tuple(value for value in measured.values.get(cell, ()) if value is not None)
    alone = mean_score(values, measured.resolution, measured.test_to_train, study.bounds) if values else None
    return ReproducedCell(
        row=cell[0],
        column=cell[1],
        published=None if published is None else published.value,
        deviation=None if published is None else published.deviation,
        values=values,
        mean=None if alone is None else alone.mean,
        low=None if alone is None else alone.low,
        high=None if alone is None else alone.high,
    )


def _ordering(study: PublishedStudy, measured: Measured, ordering: Ordering) -> ReproducedOrdering:
    pairs = _paired(measured.values.get(ordering.first, ()), measured.values.get(ordering.second, ()))
    ours, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    least, most = study.bounds
    span = most - least if isfinite(most) else None
    shared = measured.test_to_train
    difference = paired_difference(ours, theirs, ERROR, measured.resolution, shared, span) if pairs else None
    first, second = (study.published.get(cell) for cell in (ordering.first, ordering.second))
    return ReproducedOrdering(
        first=ordering.first,
        second=ordering.second,
        says=ordering.says,
        relation=ordering.relation,
        difference=difference,
        published=None if first is None or second is None else first.value - second.value,
        verdict=verdict_of(ordering, difference),
    )


def _paired(first: Sequence[float | None], second: Sequence[float | None]) -> list[tuple[float, float]]:
    both = zip(first, second, strict=bool(first and second))
    return [(one, other) for one, other in both if one is not None and other is not None]


def verdict_of(ordering: Ordering, difference: PairedDifference | None) -> Verdict:
    """Return what the difference says of a statement."""
    if difference is None or difference.low is None:
        return "not measured"
    if ordering.relation == "level":
        return "contradicted" if difference.verdict else "not contradicted"
    return "seen" if difference.verdict > 0 else "contradicted" if difference.verdict < 0 else "within noise"
