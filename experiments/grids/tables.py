"""Markdown tables and charts of an experiment's result.

The tables hold published and measured numbers, gains over the reference, and verdicts on statements. The chart shows
every cell: published values hollow, measured ones filled with their interval. If rows or columns are steps of one
quantity, such as rounds, it shows curves, as the source's figure does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, get_args

import altair as alt

from fedscout.experiments.charts import curves, inline, tooltips
from fedscout.experiments.grids.cells import Values
from fedscout.experiments.grids.comparison import CellResult, ExperimentResult, GroupMean, StatementResult, Verdict
from fedscout.experiments.grids.experiment import PERCENT, SHARE, Cell, part_name
from fedscout.experiments.reports.console import markdown_table
from fedscout.search.confirmation.intervals import PairedDifference

NOTHING = "–"

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


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
        f"{result.title[0].upper()}{result.title[1:]}.",
        "",
        f"`{result.command}`, {result.date}, version {result.version}. In {unit}; {number_format} [{interval}].",
        "",
        *markdown_table(["", *result.columns], [_row(result, row) for row in result.rows]),
    ]
    for column in result.columns if result.levels else ():
        lines += ["", f"{column[0].upper()}{column[1:]}, whose means are shown above:", "", *_parts(result, column)]
    lines += _groups(result)
    if result.reference is not None:
        lines += ["", f"Gain over {result.reference}, paired by seed:", "", *_gains(result)]
    for name in dict.fromkeys(name for cell in result.cells for name in cell.figures):
        lines += ["", f"{name[0].upper()}{name[1:]}:", "", *_figures(result, name)]
    if result.statements:
        headings = ["statement", "cells", *(["published"] if _is_published(result) else []), "ours", "verdict"]
        lines += ["", *markdown_table(headings, [_said(result, one) for one in result.statements])]
    absent = [f"Not measured: {entry}: {reason}" for entry, reason in _by_reason(result.absent)]
    return [
        *lines,
        *(f"\n- {note}" if index == 0 else f"- {note}" for index, note in enumerate([*result.notes, *absent])),
    ]


def summary_lines(results: Sequence[ExperimentResult]) -> list[str]:
    """Return the number of statements by verdict, one line per result."""
    rows = [
        [
            f"[{result.name}](#{result.name.replace('/', '')})",
            result.title,
            *(result.count(one) or "" for one in VERDICTS),
        ]
        for result in results
    ]
    totals = ["all", "", *(sum(result.count(one) for result in results) for one in VERDICTS)]
    return markdown_table(["study", "", *VERDICTS], [*rows, totals])


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


def _row(result: ExperimentResult, row: str) -> list[str]:
    return [row, *(_cell(result, result.of((row, column))) for column in result.columns)]


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


def _parts(result: ExperimentResult, column: str) -> list[str]:
    rows = [
        [row, *(_number(result.of((row, part_name(column, level))).mean, result.unit) for level in result.levels)]
        for row in result.rows
    ]
    return markdown_table(["", *result.levels], rows)


def _gains(result: ExperimentResult) -> list[str]:
    rows = [row for row in result.rows if row != result.reference]
    gains = {row: [result.of((row, column)).gain for column in result.columns] for row in rows}
    return markdown_table(
        ["", *result.columns],
        [
            [row, *(NOTHING if gain is None else _difference(gain, result.unit) for gain in of_row)]
            for row, of_row in gains.items()
        ],
    )


def _figures(result: ExperimentResult, name: str) -> list[str]:
    rows = [
        [row, *(_figure(result.of((row, column)).figures.get(name, ())) for column in result.columns)]
        for row in result.rows
    ]
    return markdown_table(["", *result.columns], rows)


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
        figures = [*dict.fromkeys(figure for _, figure in means)]
        rows = [
            [row, *(_mean(means.get((row, figure)), result.unit) for figure in figures)]
            for row in result.rows
            if any((row, figure) in means for figure in figures)
        ]
        most = max(one.columns for one in means.values())
        lines += [
            "",
            f"{group[0].upper()}{group[1:]}, means over at most {most} columns [95 % bootstrap interval]:",
            "",
        ]
        lines += markdown_table(["", *(figure or result.unit for figure in figures)], rows)
    return lines


def _mean(one: GroupMean | None, unit: str) -> str:
    if one is None:
        return NOTHING
    if not one.figure and unit == PERCENT:
        return _with_interval(one.mean, one.low, one.high, unit)
    if one.low == one.high:
        return _figure((one.mean,))
    return f"{one.mean:.3g} [{one.low:.3g}, {one.high:.3g}]"


def _difference(difference: PairedDifference, unit: str) -> str:
    return _with_interval(difference.mean, difference.low, difference.high, unit, sign="+")


def _with_interval(mean: float | None, low: float | None, high: float | None, unit: str, sign: str = "") -> str:
    ends = "" if low is None else f" [{_number(low, unit, sign)}, {_number(high, unit, sign)}]"
    return _number(mean, unit, sign) + ends


def _said(result: ExperimentResult, one: StatementResult) -> list[str]:
    ours = NOTHING if one.difference is None else _difference(one.difference, result.unit)
    published = [_number(one.published, result.unit, sign="+")] if _is_published(result) else []
    return [one.says, _pair(one.first, one.second), *published, ours, one.verdict]


def _pair(first: Cell, second: Cell) -> str:
    if first[1] == second[1]:
        return f"{first[0]} minus {second[0]}, {first[1]}"
    if first[0] == second[0]:
        return f"{first[1]} minus {second[1]}, {first[0]}"
    return f"{first[0]}, {first[1]} minus {second[0]}, {second[1]}"


def _number(value: float | None, unit: str, sign: str = "") -> str:
    if value is None:
        return NOTHING
    return f"{100 * value:{sign}.1f}" if unit == PERCENT else f"{value:{sign}.4g}"


LINE_PIXELS, PANEL_PIXELS, PANELS_ACROSS = 26, 180, 3
STEP_PIXELS, CURVES_PIXELS = 90, 240


def experiment_picture(result: ExperimentResult) -> alt.TopLevelMixin:
    """Return the chart: curves, or one panel per column with one line per row, transposed if rows are fewer."""
    if result.steps is not None:
        return _curves(result)
    if len(result.rows) < len(result.columns):
        panels = [_panel(result, row, [(row, column) for column in result.columns], place=1) for row in result.rows]
    else:
        panels = [_panel(result, column, [(row, column) for row in result.rows], place=0) for column in result.columns]
    return alt.concat(*panels, columns=PANELS_ACROSS)


def _panel(result: ExperimentResult, title: str, cells: Sequence[Cell], place: int) -> alt.LayerChart | alt.FacetChart:
    lines: list[dict[str, Any]] = [
        {"line": cell[place], **result.of(cell).model_dump(include={"published", "mean", "low", "high"})}
        for cell in cells
    ]
    y = alt.Y("line:N", sort=[line["line"] for line in lines], title=None)
    scale = alt.Scale(zero=False, nice=True)
    tooltip = tooltips(line=" ", mean__Q="ours", low__Q="from", high__Q="to", published__Q="published")
    base = alt.Chart(inline(lines)).encode(y, tooltip=tooltip)
    drawn = alt.layer(
        base.mark_rule(size=2).encode(alt.X("low:Q", title=result.unit, scale=scale), x2="high:Q"),
        base.mark_point(filled=True, size=70, opacity=1).encode(alt.X("mean:Q"), alt.Color("line:N", legend=None)),
        base.mark_point(filled=False, size=70, shape="diamond").encode(alt.X("published:Q")),
    )
    return drawn.properties(title=title, height=LINE_PIXELS * len(lines), width=PANEL_PIXELS)


def _curves(result: ExperimentResult) -> alt.LayerChart | alt.FacetChart:
    """Return a chart with one curve per row over the columns, or per column over the rows."""
    steps = result.rows if result.steps == "rows" else result.columns
    points: list[dict[str, Any]] = [
        {
            "step": cell.row if result.steps == "rows" else cell.column,
            "curve": cell.column if result.steps == "rows" else cell.row,
            **cell.model_dump(include={"published", "mean", "low", "high"}),
        }
        for cell in result.cells
    ]
    return curves(points, "", result.unit).properties(width=STEP_PIXELS * len(steps), height=CURVES_PIXELS)
