"""What all charts share: colours that hold on a dark and on a light page, numbers as they travel, the look, files.

The colours are after Okabe and Ito, Color Universal Design (2008), moved to a middle lightness. Vega-Lite: A.
Satyanarayan, D. Moritz, K. Wongsuphasawat, J. Heer. Vega-Lite: a grammar of interactive graphics. IEEE TVCG 23(1),
2017. Files are rendered by vl-convert, without a browser.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import altair as alt

from fedscout.experiments.visible import visible

BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#2f80c3", "#dd8a1f", "#1f9e77", "#d1495b", "#9566c0", "#8b929c"
CATEGORIES = (BLUE, ORANGE, GREEN, PURPLE, RED, "#56a8c9", "#b59b2b", "#c77aa8", "#6b8e5a", "#a1765c")
DIGITS = 5
"""Significant digits of a number in a picture; the page's text and tables have theirs."""

PIXELS_A_POINT = 3.0
"""Of a PNG: some 300 a printed inch where the figure is as wide as a page."""

FileFormat = Literal["png", "pdf", "svg"]

MANY_MARKS = 4000
"""More than these are drawn on a canvas, as a browser is slow with so many elements."""


def rounded(value: Any) -> Any:
    """Return a value as a picture holds it: few digits, None if not finite, text without what steers."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return visible(value) if isinstance(value, str) else value


def inline(rows: Iterable[Mapping[Any, Any]]) -> alt.InlineData:
    """Return rows as the data of a chart."""
    return alt.InlineData(values=[{name: rounded(value) for name, value in row.items()} for row in rows])


def tooltips(**titles: str) -> list[alt.Tooltip]:
    """Return what is shown of a mark that is pointed at: heading by field, such as `fitness="accuracy"`.

    A field's type stands behind its name after two underscores where it is no text: `value__Q`. What has no heading is
    left out.
    """
    shown = []
    for name, title in ((name, title) for name, title in titles.items() if title):
        field, _, kind = name.partition("__")
        shown.append(alt.Tooltip(field, type="quantitative" if kind == "Q" else "nominal", title=title))
    return shown


def chart_config(dark: bool) -> dict[str, Any]:
    """Return the look of all pictures on a dark or a light ground, for Vega's `config`."""
    ink, soft, line = ("#d9dee5", "#98a1ad", "#343b45") if dark else ("#22272e", "#5d6670", "#e4e7eb")
    axis = {"labelColor": soft, "titleColor": soft, "gridColor": line, "domainColor": line, "tickColor": line}
    font = {"labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal"}
    return {
        "background": "transparent" if dark else "white",
        "font": "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif",
        "view": {"stroke": None},
        "axis": {**axis, **font, "labelLimit": 120, "titlePadding": 8, "domain": False, "ticks": False},
        "legend": {
            "labelColor": ink,
            "titleColor": soft,
            **font,
            "orient": "top",
            "direction": "horizontal",
            "columns": 1,
            "labelLimit": 320,
            "symbolStrokeWidth": 3,
            "symbolOpacity": 1,
        },
        "text": {"color": ink, "fontSize": 11},
        "rule": {"color": soft},
        "range": {"category": list(CATEGORIES)},
        "title": {"color": ink, "fontSize": 12, "anchor": "start", "fontWeight": "normal"},
    }


def drawn(chart: alt.TopLevelMixin, file_format: FileFormat) -> bytes:
    """Return the bytes of a chart's file, on a white ground."""
    import vl_convert

    specification = chart.to_dict(validate=False)
    specification["config"] = chart_config(dark=False)
    if file_format == "svg":
        return vl_convert.vegalite_to_svg(specification).encode()
    if file_format == "pdf":
        return vl_convert.vegalite_to_pdf(specification)
    return vl_convert.vegalite_to_png(specification, scale=PIXELS_A_POINT)
