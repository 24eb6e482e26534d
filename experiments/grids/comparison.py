"""Comparison of an experiment's numbers: intervals of cells, gains over the reference, verdicts on statements.

Intervals are those of `fedscout.search.confirmation.intervals` for new data from the same clients, of differences taken
seed by seed. A statement that one cell is above another is

    seen            if the interval of the difference is above zero,
    contradicted    if it is below zero,
    within noise    if it contains zero, which is inconclusive.

That two cells are equal can only be contradicted: an interval that contains zero does not contradict it.

Beside a statement within noise stands the number of seeds that would show a difference as large as the published one,
or as the measured one if none is published, with a power of 80 % at 5 % (`fedscout.search.confirmation.intervals`).

The agreement with the published order is Kendall's τ of published and measured cells, the mean over columns.

The chart shows every cell: published values hollow, measured ones filled with their interval. If rows or columns are
steps of one quantity, such as rounds, it shows curves, as the source's figure does. Text is made by
`fedscout.experiments.reports.sweep_console`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import product
from math import isfinite
from statistics import fmean
from typing import Literal, get_args

import altair as alt
import numpy as np
from pydantic import BaseModel

from fedscout.engine.seeds import stream
from fedscout.experiments.charts import curves, inline, tooltips
from fedscout.experiments.grids.cells import CellValues, Measured, Values
from fedscout.experiments.grids.experiment import SHARE, Cell, Experiment, Relation, Statement, part_name
from fedscout.experiments.studies.run_folder import versions
from fedscout.search.confirmation.intervals import (
    ERROR,
    PairedDifference,
    deviation_of,
    mean_score,
    paired_difference,
    seeds_to_decide,
)

NUM_RESAMPLES = 4000

Verdict = Literal["seen", "within noise", "contradicted", "not contradicted", "not measured"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


class CellResult(BaseModel, frozen=True):
    """The result of a cell.

    Attributes:
        published: In the unit of the experiment; None if unknown.
        deviation: The source's standard deviation.
        values: The measured values, one for each seed that has one.
        mean: Of the values; None without any.
        low: Lower end of its 95 % interval; None with a single value.
        high: Upper end.
        gain: Over the reference in the same column; None without one.
        figures: Further numbers by their name: one per seed, or a single one such as a tuned client rate.
    """

    row: str
    column: str
    published: float | None
    deviation: float | None
    values: tuple[float, ...]
    mean: float | None
    low: float | None
    high: float | None
    gain: PairedDifference | None = None
    figures: Mapping[str, Values] = {}


class GroupMean(BaseModel, frozen=True):
    """A row's mean over a group of columns, with its 95 % bootstrap interval over columns and seeds.

    Attributes:
        figure: Name of the averaged figure; empty for the values themselves.
        columns: Number of columns that have a value.
    """

    row: str
    group: str
    figure: str
    mean: float
    low: float
    high: float
    columns: int


class StatementResult(Statement, frozen=True):
    """A statement and its verdict.

    Attributes:
        difference: Of the first cell minus the second; None if one was not measured.
        published: The same difference of the published numbers, if both are known.
        seeds_to_decide: The seeds that would decide a statement within noise, at most `MOST_SEEDS`; else None.
    """

    difference: PairedDifference | None
    published: float | None
    verdict: Verdict
    seeds_to_decide: int | None = None


class ExperimentResult(BaseModel, frozen=True):
    """The result of an experiment.

    Attributes:
        name: Such as `choice/table6`.
        date: Of the run, ISO 8601.
        version: Of the program.
        command: The command that ran it.
        seconds: Wall time of this run; less if an earlier one had finished cells.
        test_to_train: The ratio by which intervals are widened for new data; 0 if they are of repetitions alone.
        notes: What could not be obtained, and its substitutes.
        absent: What could not be measured, and why.
        steps: Whether rows or columns are steps of one quantity.
        groups: Means over groups of columns.
        levels: Names of the levels that cells are averaged over.
        parts: Results of each cell and level, in columns named by both.
    """

    name: str
    title: str
    unit: str
    date: str
    version: str
    command: str
    seconds: float
    test_to_train: float
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    reference: str | None
    cells: tuple[CellResult, ...]
    statements: tuple[StatementResult, ...]
    notes: tuple[str, ...]
    absent: Mapping[str, str]
    steps: Literal["rows", "columns"] | None = None
    groups: tuple[GroupMean, ...] = ()
    levels: tuple[str, ...] = ()
    parts: tuple[CellResult, ...] = ()

    def of(self, cell: Cell) -> CellResult:
        """Return the result of a cell, or of a part of one."""
        return next(one for one in (*self.cells, *self.parts) if (one.row, one.column) == cell)


def result_of(experiment: Experiment, parts: Measured, name: str, command: str, seconds: float) -> ExperimentResult:
    """Return the result of an experiment from the numbers of its parts."""
    measured = means(experiment, parts)
    return ExperimentResult(
        **experiment.model_dump(include={"title", "unit", "reference", "notes", "steps"}),
        name=name,
        date=datetime.now(UTC).date().isoformat(),
        version=versions()["fedscout"],
        command=command,
        seconds=seconds,
        test_to_train=measured.test_to_train,
        rows=tuple(experiment.rows),
        columns=tuple(experiment.federations),
        cells=cell_results(experiment, measured),
        statements=statement_results(experiment, measured),
        absent=measured.absent,
        groups=group_means(experiment, measured),
        levels=tuple(experiment.levels),
        parts=cell_results(experiment.parts(), parts) if experiment.levels else (),
    )


def means(experiment: Experiment, parts: Measured) -> Measured:
    """Return an experiment's cells averaged over their parts, and the parts; a cell that lacks a part is left out."""
    cells = dict(parts.cells)
    for row, column in experiment.cells() if experiment.levels else ():
        of_levels = [parts.cells.get((row, part_name(column, level))) for level in experiment.levels]
        measured = [numbers.values for numbers in of_levels if numbers is not None]
        if len(measured) == len(of_levels):
            mean = np.mean(np.array(measured, np.float64), axis=0)  # NaN if a level has no value
            cells[row, column] = CellValues(
                values=tuple(None if np.isnan(value) else float(value) for value in mean),
                test_to_train=parts.test_to_train,
                resolution=parts.resolution,
            )
    return Measured(cells, parts.absent)


def cell_results(experiment: Experiment, measured: Measured) -> tuple[CellResult, ...]:
    """Return the results of all cells, row by row."""
    printed, results = experiment.printed(), []
    for cell in product(experiment.rows, experiment.federations):
        row, column = cell
        numbers = measured.cells.get(cell, CellValues(values=()))
        published, deviation = printed.get(cell, (None, None))
        values = _present(numbers.values)
        mean, low, high = _mean(experiment, measured, values) if values else (None, None, None)
        compared = experiment.reference not in (None, row)
        results.append(
            CellResult(
                row=row,
                column=column,
                published=published,
                deviation=deviation,
                values=tuple(values),
                mean=mean,
                low=low,
                high=high,
                gain=_difference(experiment, measured, cell, (str(experiment.reference), column)) if compared else None,
                figures=numbers.figures,
            )
        )
    return tuple(results)


def rank_correlation(cells: Sequence[CellResult]) -> float | None:
    """Return the mean over columns, with three published cells or more, of Kendall's τ with the measured ones."""
    from scipy.stats import kendalltau

    columns: dict[str, list[tuple[float, float]]] = {}
    for cell in cells:
        if cell.published is not None and cell.mean is not None:
            columns.setdefault(cell.column, []).append((cell.published, cell.mean))
    taus = [float(kendalltau(*zip(*pairs, strict=True)).statistic) for pairs in columns.values() if len(pairs) > 2]
    defined = [tau for tau in taus if isfinite(tau)]
    return fmean(defined) if defined else None


def statement_results(experiment: Experiment, measured: Measured) -> tuple[StatementResult, ...]:
    """Return the result of every statement."""
    printed, results = experiment.printed(), []
    for one in experiment.all_statements():
        difference = _difference(experiment, measured, one.first, one.second)
        first, second = printed.get(one.first), printed.get(one.second)
        published = None if first is None or second is None else first[0] - second[0]
        verdict, seeds = verdict_of(one.relation, difference), None
        if difference is not None and verdict == "within noise":
            deviation = deviation_of(difference.differences, measured.resolution)
            effect = difference.mean if published is None else published
            seeds = seeds_to_decide(effect, deviation, measured.test_to_train)
        results.append(
            StatementResult(
                **one.model_dump(), difference=difference, published=published, verdict=verdict, seeds_to_decide=seeds
            )
        )
    return tuple(results)


def group_means(experiment: Experiment, measured: Measured) -> tuple[GroupMean, ...]:
    """Return the means of every row over every group of columns, for its values and its further figures."""
    numbers, results = {"": measured.values, **measured.figures}, []
    for (group, columns), row, (figure, values) in product(experiment.groups.items(), experiment.rows, numbers.items()):
        present = {column: own for column in columns if (own := _present(values.get((row, column), ())))}
        if present:
            mean, low, high = bootstrap_mean(present)
            results.append(
                GroupMean(row=row, group=group, figure=figure, mean=mean, low=low, high=high, columns=len(present))
            )
    return tuple(results)


def _present(values: Values) -> list[float]:
    return [value for value in values if value is not None]


def bootstrap_mean(groups: Mapping[str, Sequence[float]], seed: int = 0) -> tuple[float, float, float]:
    """Return the mean over columns of the mean over seeds, of which each has some, and its 95 % interval.

    The interval is that of percentiles of bootstrap means: columns are drawn with replacement, and so are the seeds of
    each (Davison and Hinkley, Bootstrap Methods and their Application, 1997, section 3.8). It covers other columns of
    the same kind and other seeds.
    """
    values = [np.asarray(group, dtype=np.float64) for group in groups.values()]
    generator = stream(seed, "bootstrap of regrets")
    totals = np.zeros(NUM_RESAMPLES)
    for _ in values:  # a column that is drawn twice draws its seeds twice
        drawn = generator.integers(len(values), size=NUM_RESAMPLES)
        for index, group in enumerate(values):
            chosen = np.flatnonzero(drawn == index)
            totals[chosen] += group[generator.integers(len(group), size=(len(chosen), len(group)))].mean(axis=1)
    totals /= len(values)
    low, high = np.quantile(totals, [0.025, 0.975]).tolist()
    return float(np.mean([group.mean() for group in values])), low, high


def _mean(
    experiment: Experiment, measured: Measured, values: Sequence[float]
) -> tuple[float, float | None, float | None]:
    """Return the mean of a cell's values and its interval."""
    if experiment.unit == SHARE:
        return share(values)
    score = mean_score(values, measured.resolution, measured.test_to_train, experiment.bounds)
    return score.mean, score.low, score.high


def share(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the share of ones among values of 0 and 1, at least one, with its 95 % Wilson interval.

    E. B. Wilson. Probable inference, the law of succession, and statistical inference. Journal of the American
    Statistical Association 22, 1927.
    """
    from scipy.stats import binomtest

    ones = round(sum(values))
    interval = binomtest(ones, len(values)).proportion_ci(method="wilson")
    return ones / len(values), float(interval.low), float(interval.high)


def _difference(experiment: Experiment, measured: Measured, first: Cell, second: Cell) -> PairedDifference | None:
    values, others = measured.values.get(first, ()), measured.values.get(second, ())
    pairs = [
        (one, other)
        for one, other in zip(values, others, strict=bool(values and others))
        if one is not None and other is not None
    ]
    if not pairs:
        return None
    least, most = experiment.bounds
    span = most - least if isfinite(most) else None
    ours, theirs = zip(*pairs, strict=True)
    return paired_difference(ours, theirs, ERROR, measured.resolution, measured.test_to_train, span)


def verdict_of(relation: Relation, difference: PairedDifference | None) -> Verdict:
    """Return the verdict on a statement from the difference."""
    if difference is None or difference.low is None:
        return "not measured"
    if relation == "=":
        return "contradicted" if difference.verdict else "not contradicted"
    return "seen" if difference.verdict > 0 else "contradicted" if difference.verdict < 0 else "within noise"


def verdict_counts(result: ExperimentResult) -> dict[Verdict, int]:
    """Return the number of statements of each verdict."""
    found = Counter(one.verdict for one in result.statements)
    return {verdict: found[verdict] for verdict in VERDICTS}


LINE_PIXELS, PANEL_PIXELS, PANELS_ACROSS = 26, 180, 3
STEP_PIXELS, CURVES_PIXELS = 90, 240


def experiment_picture(result: ExperimentResult) -> alt.TopLevelMixin:
    """Return the chart: curves, or one panel per column with one line per row, transposed if rows are fewer."""
    names = ("published", "mean", "low", "high")
    numbers = [{"row": cell.row, "column": cell.column, **cell.model_dump(include={*names})} for cell in result.cells]
    if result.steps is not None:
        step, curve = ("row", "column") if result.steps == "rows" else ("column", "row")
        points = [{"step": one[step], "curve": one[curve], **one} for one in numbers]
        width = STEP_PIXELS * len({one[step] for one in numbers})
        return curves(points, "", result.unit).properties(width=width, height=CURVES_PIXELS)
    line, panel = ("row", "column") if len(result.rows) >= len(result.columns) else ("column", "row")
    y = alt.Y(f"{line}:N", sort=[*dict.fromkeys(one[line] for one in numbers)], title=None)
    tooltip = tooltips(**{line: " "}, mean__Q="ours", low__Q="from", high__Q="to", published__Q="published")
    base = alt.Chart(inline(numbers)).encode(y, tooltip=tooltip)
    drawn = alt.layer(
        base.mark_rule(size=2).encode(
            alt.X("low:Q", title=result.unit, scale=alt.Scale(zero=False, nice=True)), x2="high:Q"
        ),
        base.mark_point(filled=True, size=70, opacity=1).encode(alt.X("mean:Q"), alt.Color(f"{line}:N", legend=None)),
        base.mark_point(filled=False, size=70, shape="diamond").encode(alt.X("published:Q")),
    ).properties(height=alt.Step(LINE_PIXELS), width=PANEL_PIXELS)
    panels = [*dict.fromkeys(one[panel] for one in numbers)]
    facet = alt.Facet(f"{panel}:N", sort=panels, title=None)
    faceted: alt.FacetChart = drawn.facet(facet, columns=PANELS_ACROSS).resolve_scale(x="independent")
    return faceted
