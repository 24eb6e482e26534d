"""What a detector has on each client: its value beside the threshold, and where clients lie in feature space."""

from __future__ import annotations

import altair as alt
import pandas as pd

from fedscout.experiments.chart_style import BLUE, GREY, RED, inline, tooltips

FLAGGED, NOT_FLAGGED = "flagged", "not flagged"


def evidence(values: pd.DataFrame, title: str, threshold: float | None) -> alt.TopLevelMixin:
    """Draw a value of each client, the largest first, and the threshold where it is in the same unit.

    Args:
        values: A row a client with `client`, `value`, `flagged` (one of the two words above) and `why`, a text.
        title: What the value is.
        threshold: None draws none.
    """
    colours = alt.Scale(domain=[FLAGGED, NOT_FLAGGED], range=[RED, GREY])
    bars = (
        alt.Chart(inline(values.to_dict("records")))
        .mark_bar(cornerRadiusEnd=2)
        .encode(
            x=alt.X("client:N", sort="-y", title="client", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
            y=alt.Y("value:Q", title=None, axis=alt.Axis(tickCount=5)),
            color=alt.Color("flagged:N", scale=colours, title=None, legend=alt.Legend(columns=2)),
            tooltip=tooltips(client="client", value__Q=title, flagged="decision", why="evidence"),
        )
    )
    layers: list[alt.Chart] = [bars]
    if threshold is not None:
        line = alt.Chart(inline([{"threshold": threshold}]))
        layers.append(
            line.mark_rule(strokeDash=[5, 4], size=1.5).encode(
                y="threshold:Q", tooltip=tooltips(threshold__Q="published threshold")
            )
        )
    return alt.layer(*layers).properties(height=170, title=title)


def positions(places: pd.DataFrame, axes: tuple[str, str]) -> alt.TopLevelMixin:
    """Draw where clients lie on two axes that they share.

    Args:
        places: A row a client with `client`, `x`, `y`, `flagged` and `rows`.
        axes: What the two axes are.
    """
    colours = alt.Scale(domain=[FLAGGED, NOT_FLAGGED], range=[RED, BLUE])
    chart: alt.Chart = (
        alt.Chart(inline(places.to_dict("records")))
        .mark_circle(opacity=0.8)
        .encode(
            x=alt.X("x:Q", title=axes[0], scale=alt.Scale(nice=True, padding=12), axis=alt.Axis(tickCount=6)),
            y=alt.Y("y:Q", title=axes[1], scale=alt.Scale(nice=True, padding=12)),
            size=alt.Size("rows:Q", legend=None, scale=alt.Scale(range=[40, 400])),
            color=alt.Color("flagged:N", scale=colours, title=None, legend=alt.Legend(columns=2)),
            tooltip=tooltips(client="client", x__Q=axes[0], y__Q=axes[1], rows__Q="rows", flagged="decision"),
        )
        .properties(height=240)
    )
    return chart


def density(bins: pd.DataFrame, title: str) -> alt.TopLevelMixin:
    """Draw how each client's values of one feature are spread.

    Args:
        bins: A row a client and bin with `client`, `value` (the bin's middle), `share` of its rows, and `flagged`.
        title: The feature.
    """
    colours = alt.Scale(domain=[FLAGGED, NOT_FLAGGED], range=[RED, GREY])
    chart: alt.Chart = (
        alt.Chart(inline(bins.to_dict("records")))
        .mark_line(interpolate="monotone", opacity=0.75)
        .encode(
            x=alt.X("value:Q", title=title, scale=alt.Scale(zero=False, nice=False), axis=alt.Axis(tickCount=6)),
            y=alt.Y("share:Q", title="share of the client's rows", axis=alt.Axis(format="%")),
            detail="client:N",
            color=alt.Color("flagged:N", scale=colours, title=None, legend=alt.Legend(columns=2)),
            tooltip=tooltips(client="client", flagged="decision"),
        )
        .properties(height=200)
    )
    return chart
