"""Who holds what: clients × classes as a heat map, and the rows of each client."""

from __future__ import annotations

import altair as alt
import pandas as pd

from fedscout.experiments.reports.page.pictures.chart_style import BLUE, RED, inline, tooltips

MOST_CLIENTS = 100
MOST_CLASSES = 60
TALL_ROW, LOW_ROW = 20, 6
MANY_ROWS = 40


def class_map(counts: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw which share of a client's rows is of which class.

    Args:
        counts: A row a client and class with `client`, `class`, `rows` and `share`, in the order in which they are
            drawn.
    """
    clients, classes = (list(dict.fromkeys(counts[name])) for name in ("client", "class"))
    base = alt.Chart(inline(counts[counts["rows"] > 0].to_dict("records")))
    tiles = base.mark_rect(cornerRadius=2, color=BLUE).encode(
        x=alt.X(
            "class:N",
            scale=alt.Scale(domain=classes),
            title=None,
            axis=alt.Axis(labelAngle=0, labelOverlap=True, orient="top"),
        ),
        y=alt.Y("client:N", scale=alt.Scale(domain=clients), title="client", axis=alt.Axis(labelOverlap=True)),
        opacity=alt.Opacity("share:Q", scale=alt.Scale(domain=[0, 1], range=[0.12, 1]), legend=None),
        tooltip=[
            *tooltips(client="client", **{"class": "class"}, rows__Q="rows"),
            alt.Tooltip("share:Q", title="share", format=".1%"),
        ],
    )
    chart: alt.Chart = tiles.properties(height=len(clients) * (TALL_ROW if len(clients) <= MANY_ROWS else LOW_ROW))
    return chart


def client_sizes(sizes: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw how many rows each client holds.

    Args:
        sizes: A row a client with `client`, `rows` and `affected`, whether a scenario changed its data.
    """
    chart: alt.Chart = (
        alt.Chart(inline(sizes.to_dict("records")))
        .mark_bar(cornerRadiusEnd=2)
        .encode(
            x=alt.X("client:N", sort=None, title="client", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
            y=alt.Y("rows:Q", title="rows", axis=alt.Axis(tickCount=4)),
            color=alt.condition("datum.affected", alt.value(RED), alt.value(BLUE)),
            tooltip=tooltips(client="client", rows__Q="rows"),
        )
        .properties(height=140)
    )
    return chart
