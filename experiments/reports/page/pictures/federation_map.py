"""Who holds what: clients × classes as a heat map, and the rows of each client."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

import altair as alt
import pandas as pd

from fedscout.experiments.chart_style import BLUE, RED, inline, rounded, tooltips
from fedscout.experiments.federations.description.description import Description
from fedscout.experiments.reports.class_strip import class_labels, strip_of

MOST_CLIENTS = 100
MOST_CLASSES = 60
TALL_ROW, LOW_ROW = 20, 6
MANY_ROWS = 40
SHORT_NAME = 4
"""Letters that have room above a column."""

CLASS_WIDTH, WIDEST, ROWS_WIDTH = 36, 640, 140
"""Pixels of a column of classes, of all of them at most, and of the bars beside."""


def class_map(counts: pd.DataFrame, by_count: bool = False) -> alt.Chart:
    """Draw which share of a client's rows is of which class.

    Args:
        counts: A row a client and class with `client`, `class`, `rows` and `share`, in the order in which they are
            drawn.
        by_count: Whether a cell is as deep as its rows are many, in place of their share.
    """
    clients, classes = ([rounded(name) for name in dict.fromkeys(counts[axis])] for axis in ("client", "class"))
    base = alt.Chart(inline(counts[counts["rows"] > 0].to_dict("records")))
    angle = 0 if max(map(len, classes)) <= SHORT_NAME else -60
    shade, most = ("rows:Q", int(counts["rows"].max())) if by_count else ("share:Q", 1)
    chart: alt.Chart = (
        base.mark_rect(cornerRadius=2, color=BLUE)
        .encode(
            x=alt.X(
                "class:N",
                scale=alt.Scale(domain=classes),
                title=None,
                axis=alt.Axis(labelAngle=angle, labelOverlap=True, orient="top"),
            ),
            y=alt.Y("client:N", scale=alt.Scale(domain=clients), title="client", axis=alt.Axis(labelOverlap=True)),
            opacity=alt.Opacity(shade, scale=alt.Scale(domain=[0, most], range=[0.12, 1]), legend=None),
            tooltip=[
                *tooltips(client="client", **{"class": "class"}, rows__Q="rows"),
                alt.Tooltip("share:Q", title="share", format=".1%"),
            ],
        )
        .properties(height=len(clients) * (TALL_ROW if len(clients) <= MANY_ROWS else LOW_ROW))
    )
    return chart


def federation_map(description: Description, by_count: bool = False) -> alt.HConcatChart:
    """Draw clients × classes with the rows of each client beside them: the rows of the strip that a terminal shows.

    Args:
        description: Of the federation.
        by_count: As in `class_map`; rows of a decile are means of its clients.
    """
    strip = strip_of(description, MOST_CLASSES)
    names, together = class_labels(description), strip.classes_per_column
    columns = [_column(names[first : first + together]) for first in range(0, len(names), together)]
    cells, sizes = [], []
    for row in (*strip.clients, *strip.deciles):
        label = f"{row.label} *" if row.affected else row.label
        sizes.append({"client": label, "rows": row.num_rows / row.num_clients, "affected": row.affected})
        for column, count, share in zip(columns, row.counts.tolist(), row.shares.tolist(), strict=True):
            cells.append({"client": label, "class": column, "rows": count / row.num_clients, "share": share})
    tiles = class_map(pd.DataFrame(cells), by_count).properties(width=min(WIDEST, CLASS_WIDTH * len(columns)))
    bars = (
        alt.Chart(inline(sizes))
        .mark_bar(cornerRadiusEnd=2)
        .encode(
            x=alt.X("rows:Q", title="rows a client", axis=alt.Axis(tickCount=3, orient="top")),
            y=alt.Y("client:N", axis=None),
            color=_affected(),
        )
        .properties(width=ROWS_WIDTH, height=tiles.height)
    )
    remarks = [strip.remark] if strip.remark else []
    remarks += ["* affected by the scenario"] if any(row.affected for row in strip.clients) else []
    title = alt.TitleParams(rounded(description.name), subtitle=[line for text in remarks for line in wrap(text, 90)])
    whole: alt.HConcatChart = alt.hconcat(tiles, bars, title=title).resolve_scale(y="shared")
    return whole


def _column(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"


def _affected() -> Any:
    return alt.condition("datum.affected", alt.value(RED), alt.value(BLUE))


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
            color=_affected(),
            tooltip=tooltips(client="client", rows__Q="rows"),
        )
        .properties(height=140)
    )
    return chart
