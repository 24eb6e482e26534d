"""The picture of an experiment: every cell, published hollow, ours filled with its interval.

Where rows or columns are steps of one quantity, such as rounds, it is a curve over them, as the source's figure is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from fedscout.experiments.chart_style import inline, tooltips
from fedscout.experiments.grids.comparison import ExperimentResult
from fedscout.experiments.grids.experiment import Cell

LINE_PIXELS, PANEL_PIXELS, PANELS_ACROSS = 26, 180, 3
STEP_PIXELS, CURVES_PIXELS = 90, 240


def experiment_picture(result: ExperimentResult) -> alt.TopLevelMixin:
    """Draw curves, or a panel a column, in it a line a row; the other way round where there are fewer rows."""
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
    down = alt.Y("line:N", sort=[line["line"] for line in lines], title=None)
    across = alt.Scale(zero=False, nice=True)
    told = tooltips(line=" ", mean__Q="ours", low__Q="from", high__Q="to", published__Q="published")
    base = alt.Chart(inline(lines)).encode(down, tooltip=told)
    drawn = alt.layer(
        base.mark_rule(size=2).encode(alt.X("low:Q", title=result.unit, scale=across), x2="high:Q"),
        base.mark_point(filled=True, size=70, opacity=1).encode(alt.X("mean:Q"), alt.Color("line:N", legend=None)),
        base.mark_point(filled=False, size=70, shape="diamond").encode(alt.X("published:Q")),
    )
    return drawn.properties(title=title, height=LINE_PIXELS * len(lines), width=PANEL_PIXELS)


def _curves(result: ExperimentResult) -> alt.LayerChart | alt.FacetChart:
    """Draw a curve for each row over the columns, or for each column over the rows."""
    steps = result.rows if result.steps == "rows" else result.columns
    points: list[dict[str, Any]] = [
        {
            "step": cell.row if result.steps == "rows" else cell.column,
            "curve": cell.column if result.steps == "rows" else cell.row,
            **cell.model_dump(include={"published", "mean", "low", "high"}),
        }
        for cell in result.cells
    ]
    along = alt.X("step:N", sort=list(steps), title=None, axis=alt.Axis(labelAngle=0))
    told = tooltips(curve=" ", step=" ", mean__Q="ours", low__Q="from", high__Q="to", published__Q="published")
    colour = alt.Color("curve:N", sort=list(dict.fromkeys(point["curve"] for point in points)), title=None)
    base = alt.Chart(inline(points)).encode(along, colour, tooltip=told)
    scale = alt.Scale(zero=False, nice=True)
    return alt.layer(
        base.mark_line(size=2).encode(alt.Y("mean:Q", title=result.unit, scale=scale)),
        base.mark_rule(size=2).encode(alt.Y("low:Q"), alt.Y2("high:Q")),
        base.mark_point(filled=True, size=50, opacity=1).encode(alt.Y("mean:Q")),
        base.mark_point(filled=False, size=70, shape="diamond").encode(alt.Y("published:Q")),
    ).properties(width=STEP_PIXELS * len(steps), height=CURVES_PIXELS)
