"""Each client's score before and after the choice."""

from __future__ import annotations

import altair as alt
import pandas as pd

from fedscout.experiments.chart_style import BLUE, GREY, RED, inline, tooltips

TALL_ROW, LOW_ROW = 20, 7
MANY_ROWS = 60


def client_scores(scores: pd.DataFrame, names: tuple[str, str], measure: str) -> alt.TopLevelMixin:
    """Draw a dumb-bell a client: before in grey, after in blue, in red where it lost.

    Args:
        scores: A row a client with `client`, `before`, `after`, `change`, `worse` (on how many seeds), and `rows`
            that were scored.
        names: What was used before and after.
        measure: What the scores are of.
    """
    before, after = names
    frame = scores.sort_values("change")
    base = alt.Chart(inline(frame.assign(lost=frame["change"] < 0).to_dict("records")))
    down = alt.Y("client:N", sort=None, title="client", axis=alt.Axis(labelOverlap=True))
    told = tooltips(
        client="client",
        before__Q=before,
        after__Q=after,
        change__Q="change",
        worse="worse on",
        rows__Q="rows scored",
    )
    colour = alt.condition("datum.lost", alt.value(RED), alt.value(BLUE))
    scale = alt.Scale(zero=False, nice=True)
    across = alt.X("before:Q", title=measure, scale=scale, axis=alt.Axis(tickCount=6))
    lines = base.mark_rule(size=2.5, opacity=0.6).encode(across, down, x2="after:Q", color=colour, tooltip=told)
    tails = base.mark_circle(size=55, color=GREY, opacity=1).encode(alt.X("before:Q", scale=scale), down, tooltip=told)
    heads = base.mark_circle(size=85, opacity=1).encode(alt.X("after:Q", scale=scale), down, color=colour, tooltip=told)
    row = TALL_ROW if len(frame) <= MANY_ROWS else LOW_ROW
    return alt.layer(lines, tails, heads).properties(height=row * len(frame))
