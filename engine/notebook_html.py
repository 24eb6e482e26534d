"""Small tables and pictures for notebooks: what `_repr_html_` of federations, reports, trials and studies is made of.

Names of clients, classes and strategies are the work of others, so whatever is not `Markup` is escaped. Colours are
those of the page (`currentColor`, transparent shades), so a picture is right on light and on dark ground.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from math import isfinite

SHADE = "0, 114, 178"
CURVE_WIDTH, CURVE_HEIGHT = 140, 32
INTERVAL_WIDTH = 180


class Markup(str):
    """HTML that is finished: escaped, and shown as it is."""

    __slots__ = ()


def html(value: object) -> Markup:
    """Return a value as HTML."""
    return value if isinstance(value, Markup) else Markup(escape(str(value)))


def paragraph(text: object, strong: bool = False) -> Markup:
    """Return a text as a paragraph."""
    return Markup(f"<p><strong>{html(text)}</strong></p>" if strong else f"<p>{html(text)}</p>")


def table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> Markup:
    """Return a table; a cell that is `Markup` of a whole `<td>` stays one."""
    head = "".join(f"<th>{html(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return Markup(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")


def shaded(share: float, told: object) -> Markup:
    """Return a cell that is the darker, the larger a share in `[0, 1]`; `told` shows when one points at it."""
    shade = f"background: rgba({SHADE}, {min(max(share, 0.0), 1.0):.2f})"
    return Markup(f'<td style="{shade}; min-width: 1.2em" title="{html(told)}"></td>')


def curve(values: Sequence[float | None], span: tuple[float, float] | None = None) -> Markup:
    """Return values, such as accuracy after each round, as a line.

    Args:
        values: In their order; None and what is not finite are passed over.
        span: Values at the lower and the upper edge, for curves to compare; None takes the lowest and the highest.
    """
    points = [(place, value) for place, value in enumerate(values) if value is not None and isfinite(value)]
    if not points:
        return Markup("")
    told = [value for _, value in points]
    low, high = span or (min(told), max(told))
    across, up = (CURVE_WIDTH - 4) / max(len(values) - 1, 1), (CURVE_HEIGHT - 4) / ((high - low) or 1.0)
    line = " ".join(f"{2 + place * across:.1f},{CURVE_HEIGHT - 2 - (value - low) * up:.1f}" for place, value in points)
    drawn = f'<polyline points="{line}" fill="none" stroke="rgb({SHADE})" stroke-width="2"/>'
    return _picture(CURVE_WIDTH, CURVE_HEIGHT, f"{told[0]:.4g} to {told[-1]:.4g}, highest {max(told):.4g}", drawn)


def interval(low: float, mean: float, high: float, told: str) -> Markup:
    """Return an interval with its middle, and where zero is."""
    left, right = min(low, 0.0), max(high, 0.0)
    wide = (INTERVAL_WIDTH - 12) / ((right - left) or 1.0)
    at_zero, at_low, at_mean, at_high = (6 + (value - left) * wide for value in (0.0, low, mean, high))
    drawn = (
        f'<line x1="{at_zero:.1f}" x2="{at_zero:.1f}" y1="0" y2="20" stroke="currentColor" stroke-dasharray="2 2"/>'
        f'<line x1="{at_low:.1f}" x2="{at_high:.1f}" y1="10" y2="10" stroke="rgb({SHADE})" stroke-width="3"/>'
        f'<circle cx="{at_mean:.1f}" cy="10" r="5" fill="rgb({SHADE})"/>'
    )
    return _picture(INTERVAL_WIDTH, 20, told, drawn)


def _cell(value: object) -> str:
    return value if isinstance(value, Markup) and value.startswith("<td") else f"<td>{html(value)}</td>"


def _picture(width: int, height: int, told: str, drawn: str) -> Markup:
    return Markup(f'<svg width="{width}" height="{height}" role="img"><title>{html(told)}</title>{drawn}</svg>')
