"""Parallel coordinates of what was searched: a line a trial, through its strategy, its parameters and its fitness.

After A. Inselberg. The plane with parallel coordinates. The Visual Computer 1, 1985; the axes lie one below the other,
so that the picture is as wide as a phone. An axis whose positive values span more than a factor of thirty is
logarithmic. A line leaves out the parameters that its strategy does not have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from fedscout.experiments.chart_style import BLUE, GREEN, inline, tooltips

MOST_AXES = 9
LOGARITHMIC = 30.0
ROW = 62
MARGIN = 0.06
PALE = "#c3c9d1"


def strategy_space(trials: pd.DataFrame, parameters: Sequence[str], measure: str) -> alt.TopLevelMixin:
    """Draw the search.

    Args:
        trials: A row a trial with `trial`, `name`, `strategy`, `fitness`, `chosen`, and a column a parameter, NaN or
            None where the strategy has none.
        parameters: Names of those columns.
        measure: What the fitness is.
    """
    axes = ["strategy", *parameters[: MOST_AXES - 2], measure]
    frame = trials.rename(columns={"fitness": measure})
    scales = {axis: _scale(frame[axis].dropna().tolist()) for axis in axes}
    rows, ticks = [], []
    for place, axis in enumerate(axes):
        position, labels = scales[axis]
        ticks += [{"axis": axis, "x": x, "label": label} for x, label in labels]
        rows += [
            {"axis": axis, "place": place, "x": position(trial[axis]), **_identity(trial, measure)}
            for trial in frame.to_dict("records")
            if not _missing(trial[axis])
        ]
    across = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, 1]))
    down = alt.Y("axis:N", sort=axes, title=None, axis=alt.Axis(grid=True, labelFontSize=12, offset=6))
    told = tooltips(trial="trial", name="strategy", fitness__Q=measure)
    colour = alt.Color("fitness:Q", scale=alt.Scale(range=[PALE, GREEN]), legend=None)
    every = alt.Chart(inline(rows))
    lines = every.mark_line(opacity=0.55, strokeWidth=1.4, orient="vertical").encode(
        across, down, detail="trial:N", order="place:Q", color=colour, tooltip=told
    )
    chosen = every.transform_filter("datum.chosen").mark_line(strokeWidth=3.2, color=BLUE, orient="vertical")
    points = every.mark_circle(size=34).encode(across, down, color=colour, tooltip=told)
    labels = (
        alt.Chart(inline(ticks))
        .mark_text(dy=15, fontSize=10, opacity=0.75, align="center")
        .encode(across, down, text="label:N")
    )
    layered = alt.layer(
        lines, chosen.encode(across, down, detail="trial:N", order="place:Q", tooltip=told), points, labels
    )
    return layered.properties(height=ROW * len(axes))


def _identity(trial: Mapping[Any, Any], measure: str) -> dict[str, Any]:
    named = {name: trial[name] for name in ("trial", "name", "chosen")}
    return {**named, "fitness": trial[measure]}


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _scale(values: Sequence[Any]) -> tuple[Any, list[tuple[float, str]]]:
    """Return where a value lies, in `[MARGIN, 1 − MARGIN]`, and the labels of the axis."""
    if any(isinstance(value, str | bool) for value in values):
        words = list(dict.fromkeys(map(str, values)))
        step = (1 - 2 * MARGIN) / max(len(words) - 1, 1)
        places = {word: (MARGIN + step * place if len(words) > 1 else 0.5) for place, word in enumerate(words)}
        return lambda value: places[str(value)], [(place, word) for word, place in places.items()]
    low, high = min(values), max(values)
    log = low > 0 and high >= LOGARITHMIC * low
    first, last = (math.log(low), math.log(high)) if log else (low, high)

    def position(value: float) -> float:
        share = ((math.log(value) if log else value) - first) / (last - first) if last > first else 0.5
        return MARGIN + (1 - 2 * MARGIN) * share

    ends = [low] if low == high else [low, high]
    return position, [(position(end), f"{end:.3g}") for end in ends]
