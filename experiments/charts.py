"""Charts of studies and federations, as functions from data frames to Altair charts.

Charts are Vega-Lite specifications (A. Satyanarayan, D. Moritz, K. Wongsuphasawat, J. Heer. Vega-Lite: a grammar of
interactive graphics. IEEE TVCG 23(1), 2017), and files are rendered by vl-convert, without a browser. The colors are
after Okabe and Ito, Color Universal Design (2008), moved to a medium lightness that works on dark and light pages.

Learning curves of background trials hold at most `MOST_POINTS` rounds, evenly spaced and including the first and the
last, so that a page of hundreds of trials stays small; highlighted trials hold up to `MOST_POINTS_IN_FRONT`.

The search space is drawn as parallel coordinates (A. Inselberg. The plane with parallel coordinates. The Visual
Computer 1, 1985), with axes stacked vertically so that the chart fits the width of a phone. An axis whose positive
values span more than a factor of thirty is logarithmic. A trial's line skips parameters that its strategy does not
have.

The heat map of clients × classes has a row for each of up to `MAX_ROWS` clients, in their order. With more clients,
those whose labels diverge most from the overall distribution have a row each, most divergent first; below, all measured
clients are summarized by decile of that divergence, each row summing the rows of its clients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Literal

import altair as alt
import numpy as np
import numpy.typing as npt
import pandas as pd

from fedscout.experiments.description import ClientDescription, Description
from fedscout.experiments.text import visible

BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#2f80c3", "#dd8a1f", "#1f9e77", "#d1495b", "#9566c0", "#8b929c"
CATEGORIES = (BLUE, ORANGE, GREEN, PURPLE, RED, "#56a8c9", "#b59b2b", "#c77aa8", "#6b8e5a", "#a1765c")
DIGITS = 5
"""Significant digits of a number in a picture; the page's text and tables have theirs."""

PIXELS_A_POINT = 3.0
"""Scale of a PNG: about 300 pixels per inch if the figure is printed as wide as a page."""

FileFormat = Literal["png", "pdf", "svg"]

MANY_MARKS = 4000
"""More than these are drawn on a canvas, as a browser is slow with so many elements."""


def rounded(value: Any) -> Any:
    """Return a value prepared for a chart: few digits, None if not finite, text without control characters."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return visible(value) if isinstance(value, str) else value


def inline(rows: pd.DataFrame | Iterable[Mapping[Any, Any]]) -> alt.InlineData:
    """Return rows as the data of a chart."""
    records: Iterable[Mapping[Any, Any]] = rows.to_dict("records") if isinstance(rows, pd.DataFrame) else rows
    return alt.InlineData(values=[{str(name): rounded(value) for name, value in row.items()} for row in records])


def _drawn_by(mark: str, rows: pd.DataFrame | Iterable[Mapping[Any, Any]], look: Any, **encoding: Any) -> alt.Chart:
    """Return a chart of rows by one mark."""
    chart: alt.Chart = getattr(alt.Chart(inline(rows)), f"mark_{mark}")(**look).encode(**encoding)
    return chart


def _of_height(chart: Any, height: int) -> alt.TopLevelMixin:
    sized: alt.TopLevelMixin = chart.properties(height=height)
    return sized


def tooltips(**titles: str) -> list[alt.Tooltip]:
    """Return tooltips with a heading per field, such as `fitness="accuracy"`.

    A field's type follows its name after two underscores unless it is text: `value__Q`. Fields with an empty heading
    are left out.
    """
    kinds = {"Q": "quantitative", "": "nominal"}
    fields = [(*name.partition("__")[::2], title) for name, title in titles.items() if title]
    return [alt.Tooltip(field, type=kinds[kind], title=title) for field, kind, title in fields]  # type: ignore[arg-type]


def chart_config(dark: bool) -> dict[str, Any]:
    """Return the theme of all charts for a dark or a light background, as Vega's `config`."""
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
    """Return the bytes of a chart's file, on a white background."""
    import vl_convert

    specification = chart.to_dict(validate=False)
    specification["config"] = chart_config(dark=False)
    if file_format == "svg":
        return vl_convert.vegalite_to_svg(specification).encode()
    if file_format == "pdf":
        return vl_convert.vegalite_to_pdf(specification)
    return vl_convert.vegalite_to_png(specification, scale=PIXELS_A_POINT)


TALL_SCORE, LOW_SCORE = 20, 7
MANY_SCORES = 60


def client_scores(scores: pd.DataFrame, names: tuple[str, str], measure: str) -> alt.TopLevelMixin:
    """Return a dumbbell chart with one row per client: before in grey, after in blue, or in red where the score fell.

    Args:
        scores: One row per client with `client`, `before`, `after`, `change`, `worse` (on how many seeds), and `rows`
            that were scored.
        names: Names of the strategies before and after.
        measure: What the scores measure.
    """
    before, after = names
    frame = scores.sort_values("change")
    base = alt.Chart(inline(frame.assign(lost=frame["change"] < 0)))
    y = alt.Y("client:N", sort=None, title="client", axis=alt.Axis(labelOverlap=True))
    tooltip = tooltips(
        client="client", before__Q=before, after__Q=after, change__Q="change", worse="worse on", rows__Q="rows scored"
    )
    colour = alt.condition("datum.lost", alt.value(RED), alt.value(BLUE))
    scale = alt.Scale(zero=False, nice=True)
    x = alt.X("before:Q", title=measure, scale=scale, axis=alt.Axis(tickCount=6))
    lines = base.mark_rule(size=2.5, opacity=0.6).encode(x, y, x2="after:Q", color=colour, tooltip=tooltip)
    tails = base.mark_circle(size=55, color=GREY, opacity=1).encode(alt.X("before:Q", scale=scale), y, tooltip=tooltip)
    heads = base.mark_circle(size=85, opacity=1).encode(alt.X("after:Q", scale=scale), y, color=colour, tooltip=tooltip)
    row = TALL_SCORE if len(frame) <= MANY_SCORES else LOW_SCORE
    return alt.layer(lines, tails, heads).properties(height=row * len(frame))


DIFFERENCE_ROW = 64


def confirmed_difference(
    means: pd.DataFrame, seeds: pd.DataFrame, unit: str, wider: str = "new data"
) -> alt.TopLevelMixin:
    """Return a chart of the confirmation: mean difference with its two intervals, and the difference of each seed.

    Args:
        means: One row per comparison with `against`, `mean`, and `low`, `high`, `here_low`, `here_high` in the given
            unit, NaN where there is no interval.
        seeds: One row per comparison and seed with `against`, `seed` and `difference`.
        unit: Unit of the differences.
        wider: What the wider interval covers.
    """
    base = alt.Chart(inline(means))
    y = alt.Y("against:N", sort=None, title=None, axis=alt.Axis(labelLimit=130, labelFontSize=12))
    tooltip = tooltips(
        against="compared with",
        mean__Q=f"mean ({unit})",
        low__Q=f"{wider}, from",
        high__Q="to",
        here_low__Q="another run, from",
        here_high__Q="to ",
    )
    x = alt.X("low:Q", title=f"gain, {unit}", scale=alt.Scale(zero=True, nice=True), axis=alt.Axis(tickCount=6))
    wide_interval = base.mark_rule(size=2, color=BLUE).encode(x, y, x2="high:Q", tooltip=tooltip)
    narrow_interval = base.mark_rule(size=8, color=BLUE, opacity=0.45).encode(
        alt.X("here_low:Q"), y, x2="here_high:Q", tooltip=tooltip
    )
    mean = base.mark_point(size=110, filled=True, color=BLUE, shape="diamond", opacity=1).encode(
        alt.X("mean:Q"), y, tooltip=tooltip
    )
    seed_tooltip = tooltips(against="compared with", seed="seed", difference__Q=f"difference ({unit})")
    look = {"size": 16, "thickness": 2, "color": ORANGE, "yOffset": 18}
    seed_ticks = _drawn_by("tick", seeds, look, x="difference:Q", y=y, tooltip=seed_tooltip)
    zero = alt.Chart(inline([{"zero": 0.0}])).mark_rule(strokeDash=[4, 4]).encode(x="zero:Q")
    layers = alt.layer(zero, wide_interval, narrow_interval, mean, seed_ticks)
    return layers.properties(height=DIFFERENCE_ROW * len(means))


FLAGGED, NOT_FLAGGED = "flagged", "not flagged"


def _flagged(colour_of_others: str) -> alt.Color:
    scale = alt.Scale(domain=[FLAGGED, NOT_FLAGGED], range=[RED, colour_of_others])
    return alt.Color("flagged:N", scale=scale, title=None, legend=alt.Legend(columns=2))


def evidence(values: pd.DataFrame, title: str, threshold: float | None) -> alt.TopLevelMixin:
    """Return a bar chart of a detector's value for each client, with the threshold if it has the same unit.

    Args:
        values: One row per client with `client`, `value`, `flagged` (`FLAGGED` or `NOT_FLAGGED`) and `why`, a text.
        title: What the value is.
        threshold: None draws none.
    """
    layers = [
        _drawn_by(
            "bar",
            values,
            {"cornerRadiusEnd": 2},
            x=alt.X("client:N", sort="-y", title="client", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
            y=alt.Y("value:Q", title=None, axis=alt.Axis(tickCount=5)),
            color=_flagged(GREY),
            tooltip=tooltips(client="client", value__Q=title, flagged="decision", why="evidence"),
        )
    ]
    if threshold is not None:
        tooltip, look = tooltips(threshold__Q="published threshold"), {"strokeDash": [5, 4], "size": 1.5}
        layers.append(_drawn_by("rule", [{"threshold": threshold}], look, y="threshold:Q", tooltip=tooltip))
    return alt.layer(*layers).properties(height=170, title=title)


def positions(places: pd.DataFrame, axes: tuple[str, str]) -> alt.TopLevelMixin:
    """Return a scatter plot of clients in a two-dimensional feature space.

    Args:
        places: One row per client with `client`, `x`, `y`, `flagged` and `rows`.
        axes: Titles of the two axes.
    """
    chart = _drawn_by(
        "circle",
        places,
        {"opacity": 0.8},
        x=alt.X("x:Q", title=axes[0], scale=alt.Scale(nice=True, padding=12), axis=alt.Axis(tickCount=6)),
        y=alt.Y("y:Q", title=axes[1], scale=alt.Scale(nice=True, padding=12)),
        size=alt.Size("rows:Q", legend=None, scale=alt.Scale(range=[40, 400])),
        color=_flagged(BLUE),
        tooltip=tooltips(client="client", x__Q=axes[0], y__Q=axes[1], rows__Q="rows", flagged="decision"),
    )
    return _of_height(chart, 240)


MAX_ROWS = 40
MOST_DIFFERENT = 20
NUM_DECILES = 10
NUM_SHADES = 4


@dataclass(frozen=True)
class StripRow:
    """One row of the heat map.

    Attributes:
        label: Displayed label.
        num_rows: Data rows it stands for.
        counts: Rows in each column, shape `(columns,)`.
        divergence: Label divergence from all clients in bits, the mean if there are several clients; None if not
            measured.
        affected: Whether a scenario affects the client.
        num_clients: Number of clients whose rows are summed.
    """

    label: str
    num_rows: int
    counts: npt.NDArray[np.int64]
    divergence: float | None
    affected: bool = False
    num_clients: int = 1

    @property
    def shares(self) -> npt.NDArray[np.float64]:
        """The counts divided by their sum; zeros without data rows."""
        return self.counts / max(self.num_rows, 1)


@dataclass(frozen=True)
class Strip:
    """Rows and columns of the heat map of clients × classes.

    Attributes:
        clients: Rows of single clients.
        deciles: One row per decile of the measured clients, least divergent first; empty if every client has a row.
        classes_per_column: Number of adjacent classes that share a column.
        num_clients: Number of clients in the federation.
    """

    clients: tuple[StripRow, ...]
    deciles: tuple[StripRow, ...]
    classes_per_column: int
    num_clients: int

    @property
    def remark(self) -> str | None:
        """What is not shown; None if everything is shown."""
        if len(self.clients) == self.num_clients:
            return None
        text = f"The {len(self.clients)} of {self.num_clients} clients whose labels diverge most from all labels"
        if not self.deciles:
            return f"{text}."
        return f"{text}; below, all measured clients by decile of that divergence, with the rows of a decile summed."


def strip_of(description: Description, max_columns: int) -> Strip:
    """Return the rows and columns of the heat map.

    Args:
        description: Description of the federation.
        max_columns: Maximum number of columns; with more classes, adjacent ones share a column.
    """
    together = max(1, -(-description.realised.num_classes // max(max_columns, 1)))
    clients = description.clients
    if len(clients) <= MAX_ROWS:
        return Strip(tuple(_client_row(client, together) for client in clients), (), together, len(clients))
    measured = [client for client in clients if client.label_divergence is not None]
    ordered = sorted(measured, key=lambda client: (client.label_divergence or 0.0, -client.client))
    shown = [_client_row(client, together) for client in ordered[: -MOST_DIFFERENT - 1 : -1]]
    deciles: list[StripRow] = []
    if len(ordered) >= NUM_DECILES:
        positions = np.array_split(np.arange(len(ordered)), NUM_DECILES)
        deciles = [
            _decile_row(number, [ordered[position] for position in part], together)
            for number, part in enumerate(positions, 1)
        ]
    return Strip(tuple(shown), tuple(deciles), together, len(clients))


def label_of(client: ClientDescription) -> str:
    """Return a client's label: its number, and its name if it has one."""
    return str(client.client) if client.name is None else f"{client.client} {client.name}"


def class_labels(description: Description) -> tuple[str, ...]:
    """Return the names of the classes, or their numbers if they have no names."""
    return description.class_names or tuple(str(number) for number in range(description.realised.num_classes))


def _client_row(client: ClientDescription, together: int) -> StripRow:
    counts = _columns(np.array(client.label_counts, np.int64), together)
    return StripRow(label_of(client), client.num_rows, counts, client.label_divergence, client.affected)


def _decile_row(number: int, clients: Sequence[ClientDescription], together: int) -> StripRow:
    counts = np.sum([client.label_counts for client in clients], axis=0).astype(np.int64)
    mean = float(np.mean([client.label_divergence or 0.0 for client in clients]))
    label = f"decile {number}: {len(clients)} clients"
    return StripRow(label, int(counts.sum()), _columns(counts, together), mean, num_clients=len(clients))


def _columns(counts: npt.NDArray[np.int64], together: int) -> npt.NDArray[np.int64]:
    """Return counts summed over adjacent classes."""
    return np.add.reduceat(counts, np.arange(0, len(counts), together))


def shades(values: npt.ArrayLike, largest: float) -> npt.NDArray[np.int64]:
    """Return 0 for values of 0, else 1 to `NUM_SHADES` in equal steps up to the largest value."""
    array = np.asarray(values, dtype=np.float64)
    steps = np.ceil(NUM_SHADES * array / largest) if largest > 0 else np.zeros_like(array)
    return np.where(array > 0, np.clip(steps, 1, NUM_SHADES), 0).astype(np.int64)


MOST_CLIENTS = 100
MOST_CLASSES = 60
TALL_CLIENT, LOW_CLIENT = 20, 6
MANY_CLIENTS = 40
SHORT_NAME = 4
"""Letters that have room above a column."""

CLASS_WIDTH, WIDEST, ROWS_WIDTH = 36, 640, 140
"""Pixels of a column of classes, of all columns at most, and of the bars beside them."""


def class_map(counts: pd.DataFrame) -> alt.Chart:
    """Return a heat map of the share of each class in the rows of each client.

    Args:
        counts: One row per client and class with `client`, `class`, `rows` and `share`, in drawing order.
    """
    clients, classes = ([rounded(name) for name in dict.fromkeys(counts[axis])] for axis in ("client", "class"))
    angle = 0 if max(map(len, classes)) <= SHORT_NAME else -60
    axis, row_axis = alt.Axis(labelAngle=angle, labelOverlap=True, orient="top"), alt.Axis(labelOverlap=True)
    tooltip = tooltips(client="client", **{"class": "class"}, rows__Q="rows")
    chart: alt.Chart = _drawn_by(
        "rect",
        counts[counts["rows"] > 0],
        {"cornerRadius": 2, "color": BLUE},
        x=alt.X("class:N", scale=alt.Scale(domain=classes), title=None, axis=axis),
        y=alt.Y("client:N", scale=alt.Scale(domain=clients), title="client", axis=row_axis),
        opacity=alt.Opacity("share:Q", scale=alt.Scale(domain=[0, 1], range=[0.12, 1]), legend=None),
        tooltip=[*tooltip, alt.Tooltip("share:Q", title="share", format=".1%")],
    ).properties(height=len(clients) * (TALL_CLIENT if len(clients) <= MANY_CLIENTS else LOW_CLIENT))
    return chart


def federation_map(description: Description) -> alt.HConcatChart:
    """Return a heat map of clients × classes with a bar chart of rows per client; same rows as in the terminal.

    A decile's values are means over its clients.
    """
    strip = strip_of(description, MOST_CLASSES)
    names, together = class_labels(description), strip.classes_per_column
    parts = [names[first : first + together] for first in range(0, len(names), together)]
    columns = [part[0] if len(part) == 1 else f"{part[0]} … {part[-1]}" for part in parts]
    cells, sizes = [], []
    for row in (*strip.clients, *strip.deciles):
        label = f"{row.label} *" if row.affected else row.label
        sizes.append({"client": label, "rows": row.num_rows / row.num_clients, "affected": row.affected})
        for column, count, share in zip(columns, row.counts.tolist(), row.shares.tolist(), strict=True):
            cells.append({"client": label, "class": column, "rows": count / row.num_clients, "share": share})
    tiles = class_map(pd.DataFrame(cells)).properties(width=min(WIDEST, CLASS_WIDTH * len(columns)))
    bars = _drawn_by(
        "bar",
        sizes,
        {"cornerRadiusEnd": 2},
        x=alt.X("rows:Q", title="rows per client", axis=alt.Axis(tickCount=3, orient="top")),
        y=alt.Y("client:N", axis=None),
        color=_affected(),
    ).properties(width=ROWS_WIDTH, height=tiles.height)
    remarks = [strip.remark] if strip.remark else []
    remarks += ["* affected by the scenario"] if any(row.affected for row in strip.clients) else []
    title = alt.TitleParams(rounded(description.name), subtitle=[line for text in remarks for line in wrap(text, 90)])
    chart: alt.HConcatChart = alt.hconcat(tiles, bars, title=title).resolve_scale(y="shared")
    return chart


def _affected() -> Any:
    return alt.condition("datum.affected", alt.value(RED), alt.value(BLUE))


def client_sizes(sizes: pd.DataFrame) -> alt.TopLevelMixin:
    """Return a bar chart of the number of rows of each client.

    Args:
        sizes: One row per client with `client`, `rows` and `affected`, whether a scenario changed its data.
    """
    chart = _drawn_by(
        "bar",
        sizes,
        {"cornerRadiusEnd": 2},
        x=alt.X("client:N", sort=None, title="client", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
        y=alt.Y("rows:Q", title="rows", axis=alt.Axis(tickCount=4)),
        color=_affected(),
        tooltip=tooltips(client="client", rows__Q="rows"),
    )
    return _of_height(chart, 140)


MOST_POINTS = 40
MOST_POINTS_IN_FRONT = 400
FRONT_COLOURS = (BLUE, ORANGE, GREEN, PURPLE)


def learning_curves(trials: pd.DataFrame, measure: str) -> alt.TopLevelMixin:
    """Return a line chart of the learning curves of all trials, with selected trials highlighted.

    Args:
        trials: One row per trial with `trial`, `name`, `scores` (one per round), `fitness`, and `role`, empty for
            background trials.
        measure: What the scores measure.
    """
    front = trials[trials["role"] != ""]
    back = trials[trials["role"] == ""]
    scale = alt.Scale(zero=False, nice=False)
    axis = alt.X("round:Q", title="round", scale=scale, axis=alt.Axis(tickMinStep=1, grid=False))
    score = alt.Y("score:Q", title=measure, scale=alt.Scale(zero=False))
    roles = sorted(dict.fromkeys(front["role"]), key=lambda role: "FedAvg" in role)  # the pick is blue
    role_scale = alt.Scale(domain=roles, range=list(FRONT_COLOURS[: len(roles)]))
    colour = alt.Color("role:N", title=None, legend=alt.Legend(symbolOpacity=1, columns=2), scale=role_scale, sort=None)
    behind = (
        alt.Chart(_curves(back, MOST_POINTS))
        .transform_flatten(["round", "score"])
        .mark_line(color=GREY, opacity=0.35, strokeWidth=1.2)
        .encode(axis, score, detail="trial:N", tooltip=tooltips(trial="trial", name="strategy", fitness__Q="fitness"))
    )
    lines = alt.Chart(_curves(front, MOST_POINTS_IN_FRONT)).transform_flatten(["round", "score"])
    ahead = lines.mark_line(strokeWidth=2.4).encode(axis, score, colour, detail="trial:N")
    points = lines.mark_circle(size=90, opacity=0.001).encode(
        axis, score, colour, tooltip=tooltips(role="trial", name="strategy", round__Q="round", score__Q=measure)
    )
    return alt.layer(behind, ahead, points).properties(height=300)


def thinned(scores: Sequence[float], most: int) -> tuple[list[int], list[float]]:
    """Return rounds, counted from 1, and their scores: all, or `most` of them including the first and the last."""
    places = np.unique(np.linspace(0, len(scores) - 1, min(len(scores), most)).round().astype(int)).tolist()
    return [place + 1 for place in places], [float(scores[place]) for place in places]


def _curves(trials: pd.DataFrame, most: int) -> alt.InlineData:
    rows = []
    for trial in trials.to_dict("records"):
        rounds, scores = thinned(trial["scores"], most) if len(trial["scores"]) else ([], [])
        identity = {name: trial[name] for name in ("trial", "name", "role", "fitness")}
        rows.append({**identity, "round": rounds, "score": scores})
    return inline(rows)


MOST_AXES = 9
LOGARITHMIC = 30.0
SPACE_ROW = 62
MARGIN = 0.06
PALE = "#c3c9d1"


def strategy_space(trials: pd.DataFrame, parameters: Sequence[str], measure: str) -> alt.TopLevelMixin:
    """Return a parallel-coordinates chart of the search: strategy, parameters and fitness of each trial.

    Args:
        trials: One row per trial with `trial`, `name`, `strategy`, `fitness`, `chosen`, and one column per parameter,
            NaN or None where the strategy has none.
        parameters: Names of the parameter columns.
        measure: What the fitness measures.
    """
    axes = ["strategy", *parameters[: MOST_AXES - 2], measure]
    frame = trials.rename(columns={"fitness": measure})
    scales = {axis: _scale(frame[axis].dropna().tolist()) for axis in axes}
    rows, ticks = [], []
    for place, axis in enumerate(axes):
        position, labels = scales[axis]
        ticks += [{"axis": axis, "x": x, "label": label} for x, label in labels]
        known = frame[frame[axis].notna()].to_dict("records")
        identities = [{name: trial[name] for name in ("trial", "name", "chosen")} for trial in known]
        rows += [
            {**identity, "axis": axis, "place": place, "x": position(trial[axis]), "fitness": trial[measure]}
            for trial, identity in zip(known, identities, strict=True)
        ]
    x_axis = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, 1]))
    y_axis = alt.Y("axis:N", sort=axes, title=None, axis=alt.Axis(grid=True, labelFontSize=12, offset=6))
    tooltip = tooltips(trial="trial", name="strategy", fitness__Q=measure)
    colour = alt.Color("fitness:Q", scale=alt.Scale(range=[PALE, GREEN]), legend=None)
    base = alt.Chart(inline(rows))
    lines = base.mark_line(opacity=0.55, strokeWidth=1.4, orient="vertical").encode(
        x_axis, y_axis, detail="trial:N", order="place:Q", color=colour, tooltip=tooltip
    )
    chosen = base.transform_filter("datum.chosen").mark_line(strokeWidth=3.2, color=BLUE, orient="vertical")
    points = base.mark_circle(size=34).encode(x_axis, y_axis, color=colour, tooltip=tooltip)
    chosen = chosen.encode(x_axis, y_axis, detail="trial:N", order="place:Q", tooltip=tooltip)
    look = {"dy": 15, "fontSize": 10, "opacity": 0.75, "align": "center"}
    names = _drawn_by("text", ticks, look, x=x_axis, y=y_axis, text="label:N")
    return alt.layer(lines, chosen, points, names).properties(height=SPACE_ROW * len(axes))


def _scale(values: Sequence[Any]) -> tuple[Any, list[tuple[float, str]]]:
    """Return a function from a value to its position, in `[MARGIN, 1 − MARGIN]`, and the axis labels."""
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


MAP_ROW = 46
MIDDLE = "#8fa3b8"


def curves(points: Sequence[Mapping[str, Any]], x_title: str, y_title: str) -> alt.LayerChart | alt.FacetChart:
    """Return a chart with one curve of means with intervals per colour, and published numbers hollow.

    Args:
        points: Of each mean its `step` along x and its `curve`, both in their order of appearance, `mean`, `low`,
            `high`, and `published`, if there are such numbers.
        x_title: Title of the axis of steps.
        y_title: Unit of the means.
    """
    steps, names = (list(dict.fromkeys(point[field] for point in points)) for field in ("step", "curve"))
    x = alt.X("step:N", sort=steps, title=x_title or None, axis=alt.Axis(labelAngle=0))
    is_published = any(point.get("published") is not None for point in points)
    published = {"published__Q": "published"} if is_published else {}
    tooltip = tooltips(curve=" ", step=x_title or " ", mean__Q="mean", low__Q="from", high__Q="to", **published)
    base = alt.Chart(inline(points)).encode(x, alt.Color("curve:N", sort=names, title=None), tooltip=tooltip)
    scale = alt.Scale(zero=False, nice=True)
    layers = [
        base.mark_line(size=2).encode(alt.Y("mean:Q", title=y_title, scale=scale)),
        base.mark_rule(size=2).encode(alt.Y("low:Q"), alt.Y2("high:Q")),
        base.mark_point(filled=True, size=50, opacity=1).encode(alt.Y("mean:Q")),
    ]
    if is_published:
        layers.append(base.mark_point(filled=False, size=70, shape="diamond").encode(alt.Y("published:Q")))
    return alt.layer(*layers)


def gain_map(cells: Sequence[Mapping[str, Any]], axes: tuple[str, str], unit: str) -> alt.TopLevelMixin:
    """Return a map of the gain by setting; cells whose interval contains 0 or is missing are outlined.

    Args:
        cells: One row per combination with `x`, `y` (both text, in order), `gain`, `low`, `high`, `certain`,
            `strategy`, `studies` and `text`, the text of the cell.
        axes: Titles of x and y; an empty one is omitted.
        unit: Unit of the gain.
    """
    most = max(1e-9, *(abs(cell["gain"]) for cell in cells))
    colour = alt.Color("gain:Q", scale=alt.Scale(domain=[-most, 0, most], range=[RED, MIDDLE, BLUE]), legend=None)
    interval = {"low__Q": "95 % interval, from", "high__Q": "to"}
    about = {"gain__Q": f"gain ({unit})", **interval, "strategy": "strategy", "studies__Q": "studies"}
    tooltip = tooltips(x=axes[0], y=axes[1], **about)
    outlined = {"fill": GREY, "fillOpacity": 0.08, "stroke": GREY, "strokeOpacity": 0.6, "strokeWidth": 1}
    certain, others = ([cell for cell in cells if cell["certain"] == is_certain] for is_certain in (True, False))
    layers = [
        _drawn_by("rect", certain, {"cornerRadius": 4}, color=colour, tooltip=tooltip),
        _drawn_by("rect", others, {"cornerRadius": 4, **outlined}, tooltip=tooltip),
        _drawn_by("text", certain, {"fontSize": 12, "color": "white"}, text="text:N"),
        _drawn_by("text", others, {"fontSize": 12}, text="text:N"),
    ]
    return _layered_cells(cells, axes, layers)


def winner_map(cells: Sequence[Mapping[str, Any]], axes: tuple[str, str]) -> alt.TopLevelMixin:
    """Return a map of the recommended strategy for each combination of values.

    Args:
        cells: As for `gain_map`, with `advised`, which is FedAvg where no strategy is shown to be better.
        axes: As for `gain_map`.
    """
    kinds = list(dict.fromkeys(cell["advised"] for cell in cells))
    colour = alt.Color("advised:N", scale=alt.Scale(domain=kinds), title=None, legend=alt.Legend(columns=3))
    tooltip = tooltips(x=axes[0], y=axes[1], advised="recommended", strategy="search's pick", studies__Q="studies")
    tiles = _drawn_by("rect", cells, {"cornerRadius": 4, "opacity": 0.85}, color=colour, tooltip=tooltip)
    return _layered_cells(cells, axes, [tiles])


def _layered_cells(
    cells: Sequence[Mapping[str, Any]], axes: tuple[str, str], layers: Sequence[alt.Chart]
) -> alt.TopLevelMixin:
    columns, rows = (list(dict.fromkeys(cell[name] for cell in cells)) for name in ("x", "y"))
    scale, axis = alt.Scale(domain=columns, paddingInner=0.05), alt.Axis(labelAngle=0, labelOverlap=True)
    x = alt.X("x:N", scale=scale, title=axes[0] or None, axis=axis)
    y = alt.Y("y:N", scale=alt.Scale(domain=rows, paddingInner=0.08), title=axes[1] or None)
    return _of_height(alt.layer(*(layer.encode(x, y) for layer in layers)), MAP_ROW * len(rows))
