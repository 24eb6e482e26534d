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

The Markdown tables hold published and measured numbers, gains over the reference, and verdicts on statements. The chart
shows every cell: published values hollow, measured ones filled with their interval. If rows or columns are steps of one
quantity, such as rounds, it shows curves, as the source's figure does.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
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
from fedscout.experiments.grids.experiment import PERCENT, SHARE, Cell, Experiment, Relation, Statement, part_name
from fedscout.experiments.reports.console import markdown_table
from fedscout.experiments.studies.run_folder import versions
from fedscout.search.confirmation.intervals import (
    ERROR,
    MOST_SEEDS,
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


NOTHING = "–"


def result_lines(result: ExperimentResult) -> list[str]:
    """Return a result's section of the document."""
    unit = "percent" if result.unit == PERCENT else result.unit
    covers = "for new data from these clients" if result.test_to_train else "of repetitions"
    number = "published ± standard deviation | ours" if _is_published(result) else "mean"
    lines = [
        f"## {result.name}",
        "",
        f"{_sentence(result.title)}.",
        "",
        f"`{result.command}`, {result.date}, version {result.version}. In {unit}; {number} [95 % interval {covers}].",
        *_grid(result.rows, result.columns, lambda *cell: _cell(result, result.of(cell))),
    ]
    for column in result.columns if result.levels else ():
        parts = {level: part_name(column, level) for level in result.levels}
        numbers = {(one.row, one.column): _number(one.mean, result.unit) for one in result.parts}
        grid = _grid(result.rows, [*parts], lambda row, level: numbers[row, parts[level]])  # noqa: B023
        lines += ["", f"{_sentence(column)}, whose means are shown above:", *grid]
    lines += _groups(result)
    if result.reference is not None:
        others = [row for row in result.rows if row != result.reference]
        gains = _grid(others, result.columns, lambda *cell: _difference_text(result.of(cell).gain, result.unit))
        lines += ["", f"Gain over {result.reference}, paired by seed:", *gains]
    for name in dict.fromkeys(name for cell in result.cells for name, values in cell.figures.items() if any(values)):
        figures = _grid(result.rows, result.columns, lambda *cell: _figure(result.of(cell).figures.get(name, ())))  # noqa: B023
        lines += ["", f"{_sentence(name)}:", *figures]
    if (correlation := rank_correlation(result.cells)) is not None:
        lines += ["", f"Kendall's τ of published and measured cells: {correlation:.2f}."]
    if result.statements:
        headings = ["statement", "cells", *(["published"] if _is_published(result) else []), "ours", "verdict"]
        lines += ["", *markdown_table(headings, [_said(result, one) for one in result.statements])]
    absent = [f"{entry}: {reason}" for entry, reason in _by_reason(result.absent)]
    return [*lines, *([""] if result.notes or absent else []), *(f"- {note}" for note in [*result.notes, *absent])]


def page_lines(results: Sequence[ExperimentResult]) -> list[str]:
    """Return a page of several results: a summary, the notes that several share, and a section for each."""
    names: dict[str, list[str]] = {}
    for result in results:
        for note in result.notes:
            names.setdefault(note, []).append(result.name)
    shared = {note: of for note, of in names.items() if len(of) > 1}
    lines = [*summary(results), ""]
    for note, of in shared.items():
        lines += _wrapped(f"- **{', '.join(of)}**: {note}", indent="  ")
    for result in results:
        lines += ["", f"## {result.name}", "", *_wrapped(_told(result, [*shared]))]
        measured = [row for row in result.rows if any(_any_number(result.of((row, name))) for name in result.columns)]
        lines += _grid(measured, result.columns, lambda *cell: _cell(result, result.of(cell)))  # noqa: B023
    return lines


def summary(results: Sequence[ExperimentResult]) -> list[str]:
    """Return a Markdown table of statements by verdict and agreement in order, linked to the results' sections."""
    counts = [verdict_counts(result) for result in results]
    rows = []
    for result, found in zip(results, counts, strict=True):
        seen, noise, *others = (found[verdict] or "" for verdict in VERDICTS)
        needed = f" ({_seeds_needed(result)})" if noise else ""
        link = f"[{result.name}](#{result.name.replace('/', '').lower()})"
        tau = rank_correlation(result.cells)
        rows.append([link, result.title, seen, f"{noise}{needed}", *others, "" if tau is None else f"{tau:.2f}"])
    rows.append(["all", "", *(sum(found[verdict] for found in counts) or "" for verdict in VERDICTS), ""])
    return markdown_table(["study", "", "seen", "within noise (seeds to decide)", *VERDICTS[2:], "Kendall's τ"], rows)


def verdict_counts(result: ExperimentResult) -> dict[Verdict, int]:
    """Return the number of statements of each verdict."""
    found = Counter(one.verdict for one in result.statements)
    return {verdict: found[verdict] for verdict in VERDICTS}


def _seeds_needed(result: ExperimentResult) -> str:
    """Return the range of the seeds that decide statements within noise, and how many of these no number decides."""
    needed = [one.seeds_to_decide for one in result.statements if one.verdict == "within noise"]
    numbers = sorted({number for number in needed if number is not None})
    texts = [f"{numbers[0]}–{numbers[-1]}" if len(numbers) > 1 else str(numbers[0])] if numbers else []
    return ", ".join([*texts, *([f"{needed.count(None)} not"] if None in needed else [])])


MOST_DIFFERENCES = 6


def _told(result: ExperimentResult, shared: Collection[str]) -> str:
    """Return what was compared and how, the statements that are seen or contradicted, and the result's own notes."""
    most = max((len(cell.values) for cell in result.cells), default=0)
    unit = "" if result.unit == PERCENT else f" In {result.unit}."
    told = [f"{_sentence(result.title)}.{unit} {most} seeds, {result.date}."]
    told += [] if result.test_to_train else ["Intervals of repetitions."]
    for verdict, says in dict.fromkeys((one.verdict, one.says) for one in result.statements):
        of_claim = [one for one in result.statements if one.says == says]
        found = sorted((one for one in of_claim if one.verdict == verdict), key=_mean_difference)
        if verdict not in ("seen", "contradicted"):
            continue
        kept = found if len(found) <= MOST_DIFFERENCES else [found[0], found[-1]]
        differences = "; ".join(f"{_pair(one)}: {_difference_text(one.difference, result.unit)}" for one in kept)
        count = f" in {len(found)} of {len(of_claim)}" if len(of_claim) > 1 else ""
        extremes = "" if kept == found else ", from the least to the largest difference"
        told.append(f"**{_sentence(verdict)}**{count}{extremes}, {says} ({differences}).")
    own = [note for note in result.notes if note not in shared]
    absent = [f"{entry}: {reason}" for entry, reason in _by_reason(result.absent)]
    return " ".join([*told, *(f"{_sentence(note).rstrip('.')}." for note in [*own, *absent])])


def _mean_difference(one: StatementResult) -> float:
    return 0.0 if one.difference is None else one.difference.mean


def _pair(one: StatementResult) -> str:
    """Return the two cells of a statement, the row or the column that they share said once."""
    (row, column), (other_row, other_column) = one.first, one.second
    if column == other_column:
        return f"{row} minus {other_row}, {column}"
    return f"{row}, {column} minus {other_column if row == other_row else f'{other_row}, {other_column}'}"


def _any_number(cell: CellResult) -> bool:
    return cell.published is not None or cell.mean is not None


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def _grid(rows: Sequence[str], columns: Sequence[str], text: Callable[[str, str], str]) -> list[str]:
    """Return a blank line and a table with the text of each row and column."""
    return ["", *markdown_table(["", *columns], [[row, *(text(row, column) for column in columns)] for row in rows])]


def _by_reason(absent: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the absent entries grouped by reason: the first, and the number of others."""
    reasons: dict[str, list[str]] = {}
    for what, why in absent.items():
        reasons.setdefault(why, []).append(what)
    return [
        (what[0] if len(what) == 1 else f"{what[0]} and {len(what) - 1} more", why) for why, what in reasons.items()
    ]


def _is_published(result: ExperimentResult) -> bool:
    return any(cell.published is not None for cell in result.cells)


def _cell(result: ExperimentResult, cell: CellResult) -> str:
    ours = _with_interval(cell.mean, cell.low, cell.high, result.unit)
    if result.unit == SHARE and cell.values:
        ours = f"{sum(cell.values):.0f}/{len(cell.values)} [{cell.low:.2f}, {cell.high:.2f}]"
    if not _is_published(result):
        return ours
    published = _number(cell.published, result.unit)
    if cell.deviation is not None:
        published += f" ± {_number(cell.deviation, result.unit)}"
    return NOTHING if cell.published is None and cell.mean is None else f"{published} \\| {ours}"


def _figure(values: Values) -> str:
    present = [value for value in values if value is not None]
    if not present:
        return NOTHING
    value = fmean(present)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"


def _groups(result: ExperimentResult) -> list[str]:
    """Return the means over each group of columns."""
    lines = []
    for group in dict.fromkeys(one.group for one in result.groups):
        means = {(one.row, one.figure): one for one in result.groups if one.group == group}
        rows, figures = ([*dict.fromkeys(names)] for names in zip(*means, strict=True))
        headings = {figure or result.unit: figure for figure in figures}
        table = _grid(rows, [*headings], lambda row, name: _mean_text(means.get((row, headings[name])), result.unit))  # noqa: B023
        most = max(one.columns for one in means.values())
        lines += ["", f"{_sentence(group)}, means over at most {most} columns [95 % bootstrap interval]:", *table]
    return lines


def _mean_text(one: GroupMean | None, unit: str) -> str:
    if one is None:
        return NOTHING
    if not one.figure and unit == PERCENT:
        return _with_interval(one.mean, one.low, one.high, unit)
    if one.low == one.high:
        return _figure((one.mean,))
    return f"{one.mean:.3g} [{one.low:.3g}, {one.high:.3g}]"


def _difference_text(difference: PairedDifference | None, unit: str) -> str:
    if difference is None:
        return NOTHING
    return _with_interval(difference.mean, difference.low, difference.high, unit, sign="+")


def _with_interval(mean: float | None, low: float | None, high: float | None, unit: str, sign: str = "") -> str:
    ends = "" if low is None else f" [{_number(low, unit, sign)}, {_number(high, unit, sign)}]"
    return _number(mean, unit, sign) + ends


def _said(result: ExperimentResult, one: StatementResult) -> list[str]:
    ours = _difference_text(one.difference, result.unit)
    published = [_number(one.published, result.unit, sign="+")] if _is_published(result) else []
    return [one.says, _pair(one), *published, ours, verdict_text(one)]


def verdict_text(one: StatementResult) -> str:
    """Return the verdict and, if it is within noise, the number of seeds that would decide."""
    if one.verdict != "within noise":
        return one.verdict
    would = f"{one.seeds_to_decide} seeds would" if one.seeds_to_decide else f"{MOST_SEEDS} seeds would not"
    return f"{one.verdict}; {would} decide"


def _number(value: float | None, unit: str, sign: str = "") -> str:
    if value is None:
        return NOTHING
    return f"{100 * value:{sign}.1f}" if unit == PERCENT else f"{value:{sign}.4g}"


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
