"""Markdown tables and charts of an experiment's result.

The tables hold published and measured numbers, gains over the reference, and verdicts on statements. The chart shows
every cell: published values hollow, measured ones filled with their interval. If rows or columns are steps of one
quantity, such as rounds, it shows curves, as the source's figure does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import altair as alt

from fedscout.experiments.charts import curves, inline, tooltips
from fedscout.experiments.grids.cells import Values
from fedscout.experiments.grids.comparison import CellResult, ExperimentResult, GroupMean, StatementResult
from fedscout.experiments.grids.experiment import PERCENT, SHARE, part_name
from fedscout.experiments.reports.console import markdown_table
from fedscout.search.confirmation.intervals import PairedDifference

NOTHING = "–"


def result_lines(result: ExperimentResult) -> list[str]:
    """Return a result's section of the document."""
    unit = "percent" if result.unit == PERCENT else result.unit
    interval = (
        "95 % interval for new data from these clients" if result.test_to_train else "95 % interval of repetitions"
    )
    number_format = "published ± standard deviation | ours" if _is_published(result) else "mean"
    lines = [
        f"## {result.name}",
        "",
        f"{_sentence(result.title)}.",
        "",
        f"`{result.command}`, {result.date}, version {result.version}. In {unit}; {number_format} [{interval}].",
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
        gains = _grid(others, result.columns, lambda *cell: _difference(result.of(cell).gain, result.unit))
        lines += ["", f"Gain over {result.reference}, paired by seed:", *gains]
    for name in dict.fromkeys(name for cell in result.cells for name, values in cell.figures.items() if any(values)):
        figures = _grid(result.rows, result.columns, lambda *cell: _figure(result.of(cell).figures.get(name, ())))  # noqa: B023
        lines += ["", f"{_sentence(name)}:", *figures]
    if result.statements:
        headings = ["statement", "cells", *(["published"] if _is_published(result) else []), "ours", "verdict"]
        lines += ["", *markdown_table(headings, [_said(result, one) for one in result.statements])]
    absent = [f"Not measured: {entry}: {reason}" for entry, reason in _by_reason(result.absent)]
    return [*lines, *([""] if result.notes or absent else []), *(f"- {note}" for note in [*result.notes, *absent])]


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
        table = _grid(rows, [*headings], lambda row, name: _mean(means.get((row, headings[name])), result.unit))  # noqa: B023
        most = max(one.columns for one in means.values())
        lines += ["", f"{_sentence(group)}, means over at most {most} columns [95 % bootstrap interval]:", *table]
    return lines


def _mean(one: GroupMean | None, unit: str) -> str:
    if one is None:
        return NOTHING
    if not one.figure and unit == PERCENT:
        return _with_interval(one.mean, one.low, one.high, unit)
    if one.low == one.high:
        return _figure((one.mean,))
    return f"{one.mean:.3g} [{one.low:.3g}, {one.high:.3g}]"


def _difference(difference: PairedDifference | None, unit: str) -> str:
    if difference is None:
        return NOTHING
    return _with_interval(difference.mean, difference.low, difference.high, unit, sign="+")


def _with_interval(mean: float | None, low: float | None, high: float | None, unit: str, sign: str = "") -> str:
    ends = "" if low is None else f" [{_number(low, unit, sign)}, {_number(high, unit, sign)}]"
    return _number(mean, unit, sign) + ends


def _said(result: ExperimentResult, one: StatementResult) -> list[str]:
    ours = _difference(one.difference, result.unit)
    published = [_number(one.published, result.unit, sign="+")] if _is_published(result) else []
    pair = f"{', '.join(one.first)} minus {', '.join(one.second)}"
    return [one.says, pair, *published, ours, one.verdict]


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
