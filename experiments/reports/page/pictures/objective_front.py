"""The trials of a search for a front by both objectives; the front is what no other trial beats."""

from __future__ import annotations

import altair as alt
import pandas as pd

from fedscout.experiments.chart_style import BLUE, GREY, inline, tooltips

ON_FRONT, BEATEN = "on the front", "another beats it"


def objective_front(trials: pd.DataFrame, objectives: tuple[str, str]) -> alt.TopLevelMixin:
    """Draw a point a trial, and a line along the front.

    Args:
        trials: A row a trial with `trial`, `name`, `first`, `second`, the larger the better, and `front`, one of
            `ON_FRONT` and `BEATEN`.
        objectives: What the two are.
    """
    first, second = objectives
    every = alt.Chart(inline(trials.to_dict("records")))
    across = alt.X("first:Q", title=first, scale=alt.Scale(zero=False, nice=True, padding=12))
    down = alt.Y("second:Q", title=second, scale=alt.Scale(zero=False, nice=True, padding=12))
    colour = alt.Color(
        "front:N",
        scale=alt.Scale(domain=[ON_FRONT, BEATEN], range=[BLUE, GREY]),
        title=None,
        legend=alt.Legend(columns=2),
    )
    told = tooltips(trial="trial", name="strategy", first__Q=first, second__Q=second, front="standing")
    is_front = alt.datum.front == ON_FRONT
    line = every.transform_filter(is_front).mark_line(color=BLUE, strokeWidth=1.4, opacity=0.6)
    size = alt.condition(is_front, alt.value(130), alt.value(60))
    points = every.mark_circle(opacity=0.85).encode(across, down, color=colour, size=size, tooltip=told)
    return alt.layer(line.encode(across, down, order="first:Q"), points).properties(height=260)
