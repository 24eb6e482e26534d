"""A sweep over two of its axes: by how much the search's choice beats FedAvg, and which strategy it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from fedscout.experiments.chart_style import BLUE, GREY, RED, inline, tooltips

ROW = 46
MIDDLE = "#8fa3b8"


def gain_map(cells: Sequence[Mapping[str, Any]], axes: tuple[str, str], unit: str) -> alt.TopLevelMixin:
    """Draw a cell a combination of values; one whose interval holds zero, or has none, is an outline.

    Args:
        cells: A row a combination with `x`, `y` (both text, in order), `gain`, `low`, `high`, `certain`, `strategy`,
            `studies` and `text`, which stands in the cell.
        axes: What x and y are; an empty name has no heading.
        unit: Of the gain.
    """
    base = _base(cells)
    most = max(1e-9, *(abs(cell["gain"]) for cell in cells))
    colour = alt.Color("gain:Q", scale=alt.Scale(domain=[-most, 0, most], range=[RED, MIDDLE, BLUE]), legend=None)
    told = tooltips(
        x=axes[0],
        y=axes[1],
        gain__Q=f"gain ({unit})",
        low__Q="95 %, from",
        high__Q="to",
        strategy="strategy",
        studies__Q="studies",
    )
    sure = base.transform_filter("datum.certain").mark_rect(cornerRadius=4).encode(color=colour, tooltip=told)
    unsure = base.transform_filter("!datum.certain").mark_rect(
        cornerRadius=4, fill=GREY, fillOpacity=0.08, stroke=GREY, strokeOpacity=0.6, strokeWidth=1
    )
    return _placed(
        cells, axes, [sure, unsure.encode(tooltip=told)], [("datum.certain", "white"), ("!datum.certain", None)]
    )


def winner_map(cells: Sequence[Mapping[str, Any]], axes: tuple[str, str]) -> alt.TopLevelMixin:
    """Draw which strategy to use for each combination of values.

    Args:
        cells: As for `gain_map`; `advised` is FedAvg where nothing is shown to be better.
        axes: Likewise.
    """
    kinds = list(dict.fromkeys(cell["advised"] for cell in cells))
    colour = alt.Color("advised:N", scale=alt.Scale(domain=kinds), title=None, legend=alt.Legend(columns=3))
    told = tooltips(x=axes[0], y=axes[1], advised="use", strategy="the search chose", studies__Q="studies")
    tiles = _base(cells).mark_rect(cornerRadius=4, opacity=0.85).encode(color=colour, tooltip=told)
    return _placed(cells, axes, [tiles], [])


def _base(cells: Sequence[Mapping[str, Any]]) -> alt.Chart:
    return alt.Chart(inline(cells))


def _placed(
    cells: Sequence[Mapping[str, Any]],
    axes: tuple[str, str],
    tiles: list[alt.Chart],
    texts: list[tuple[str, str | None]],
) -> alt.TopLevelMixin:
    columns, rows = (list(dict.fromkeys(cell[name] for cell in cells)) for name in ("x", "y"))
    across = alt.X(
        "x:N",
        scale=alt.Scale(domain=columns, paddingInner=0.05),
        title=axes[0] or None,
        axis=alt.Axis(labelAngle=0, labelOverlap=True),
    )
    down = alt.Y("y:N", scale=alt.Scale(domain=rows, paddingInner=0.08), title=axes[1] or None)
    layers = [layer.encode(across, down) for layer in tiles]
    for test, colour in texts:
        own = alt.Undefined if colour is None else colour
        words = _base(cells).transform_filter(test).mark_text(fontSize=12, color=own)
        layers.append(words.encode(across, down, text="text:N"))
    return alt.layer(*layers).properties(height=ROW * len(rows))
