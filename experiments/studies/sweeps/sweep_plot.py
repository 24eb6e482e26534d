"""The chart of a sweep: what is measured against one axis, by a second (colour) and by chooser (line style).

A point is a mean over seeds, the bar its 95 % interval for new data, as far as there are such scores; a single study
has its own. A hollow point of what the search chose is not shown to differ from FedAvg; whether bars overlap does not
tell, as scores are paired. The axis along x is `federation.partition.alpha` if it is one, else the first with numbers,
else the first of all; colour is the next one. Every combination of any further axes gets a panel of its own, as a mean
over different federations would mean nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

from fedscout.experiments.chart_style import CATEGORIES, drawn, inline, tooltips
from fedscout.experiments.studies.sweeps.grid_configurations import value_text
from fedscout.experiments.studies.sweeps.sweep_folder import SweepFolder
from fedscout.experiments.studies.sweeps.sweep_summary import (
    SEEDS,
    Group,
    compared_choosers,
    groups_of,
    measure_of,
)
from fedscout.experiments.studies.sweeps.sweep_table import FEDAVG, LABELS, Row
from fedscout.search.measure import ACCURACY, Measure

FAVOURITE = "federation.partition.alpha"
WHERE_SEARCHED = "the search's seed"
HOLLOW = "hollow: no difference from FedAvg is shown"
MAX_PANELS = 12
COLUMNS = 3
PANEL_WIDTH, PANEL_HEIGHT = 300, 220
DASHES: Mapping[str, tuple[int, int]] = {
    "fedavg": (6, 4),
    "tuned fedavg": (2, 3),
    "search best": (1, 0),
    "challenger": (1, 0),
}
"""Line of each chooser; what the search chose is the full line."""

SHAPES: Mapping[str, str] = {
    "fedavg": "circle",
    "tuned fedavg": "square",
    "search best": "triangle-up",
    "challenger": "triangle-up",
}


@dataclass(frozen=True)
class PlotLayout:
    """Which axis goes along x and by colour; None if there is none. The others make panels."""

    x: str | None
    colour: str | None
    panels: tuple[str, ...]


def layout_of(values: Mapping[str, Sequence[Any]]) -> PlotLayout:
    """Choose the place of each axis by its different values; axes of seeds are none of them."""
    varying = [axis for axis, own in values.items() if len(own) > 1]
    numeric = [axis for axis in varying if all(_is_number(value) for value in values[axis])]
    along = FAVOURITE if FAVOURITE in numeric else next(iter([*numeric, *varying]), None)
    rest = [axis for axis in varying if axis != along]
    return PlotLayout(along, rest[0] if rest else None, tuple(rest[1:]))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class SweepPlot:
    """What is drawn of a sweep.

    Attributes:
        groups: Studies that differ in seeds alone, as far as they have scores.
        choosers: Who is compared, in order.
        values: The different values of each axis but those of seeds: numbers by size, others in the table's order.
        layout: The place of each axis.
        measure: Of the scores.
        seeds: On which they are measured.
    """

    groups: Sequence[Group]
    choosers: Sequence[str]
    values: Mapping[str, Sequence[Any]]
    layout: PlotLayout
    measure: Measure
    seeds: str

    @property
    def panels(self) -> list[dict[str, Any]]:
        """The values of the axes that make panels, one combination a panel."""
        own = self.layout.panels
        return [dict(zip(own, panel, strict=True)) for panel in product(*(self.values[axis] for axis in own))]

    def chart(self, panels: Sequence[Mapping[str, Any]]) -> alt.LayerChart | alt.FacetChart:
        """Draw the groups of some panels, which the field `panel` tells apart."""
        points = [{"panel": _title(panel), **point} for panel in panels for point in self._points(panel)]
        along: Sequence[Any] = self.values[self.layout.x] if self.layout.x else [""]
        numeric = all(map(_is_number, along))
        if numeric:
            wide = min(along) > 0 and max(along) >= 10 * min(along)
            scale = alt.Scale(type="log" if wide else "linear", zero=False, nice=False, padding=12)
            x = alt.X("x:Q", scale=scale, axis=alt.Axis(values=along, format="~g"), title=self.layout.x)
        else:
            x = alt.X("x:N", sort=None, axis=alt.Axis(labelAngle=0), title=self.layout.x)
        y = alt.Y("score:Q", title=f"{self.measure.name} on {self.seeds}", scale=alt.Scale(zero=False))
        labels = [LABELS[chooser] for chooser in self.choosers]
        dash = alt.Scale(domain=labels, range=[list(DASHES[chooser]) for chooser in self.choosers])
        shape = alt.Scale(domain=labels, range=[SHAPES[chooser] for chooser in self.choosers])
        told = tooltips(
            chooser=" ", colour=self.layout.colour or "", score__Q=self.measure.name, low__Q="from", high__Q="to"
        )
        base = alt.Chart().encode(x=x, color=self._colour(), tooltip=told)
        marked = base.encode(y, alt.Shape("chooser:N", scale=shape, title=None))
        return alt.layer(
            base.mark_line().encode(y, alt.StrokeDash("chooser:N", scale=dash, legend=None)),
            base.mark_rule(opacity=0.5, size=2).encode(alt.Y("low:Q"), alt.Y2("high:Q")),
            marked.transform_filter("datum.shown").mark_point(filled=True, size=45, opacity=1),
            marked.transform_filter("!datum.shown").mark_point(filled=False, fill="white", size=45, opacity=1),
            data=inline(points),
        )

    def _colour(self) -> Any:
        axis = self.layout.colour
        if axis is None:
            return alt.value(CATEGORIES[0])
        domain = [value_text(value) for value in self.values[axis]]
        return alt.Color("colour:N", scale=alt.Scale(domain=domain), title=axis.rpartition(".")[2])

    def _points(self, panel: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield a point a group and chooser, in the order along x."""
        along, colour = self.layout.x, self.layout.colour
        inside = [group for group in self.groups if panel.items() <= group.values.items()]
        order = self.values[along] if along else []
        ends = self.measure.worst, self.measure.best
        for group in sorted(inside, key=lambda group: order.index(group.values[along]) if along else 0):
            value = group.values[along] if along else ""
            for chooser in self.choosers:
                if (mean := group.accuracy.get(chooser)) is None:
                    continue
                open_ = chooser == self.choosers[-1] != FEDAVG and not group.told_apart
                yield {
                    "x": value if _is_number(value) else value_text(value),
                    "colour": value_text(group.values[colour]) if colour else "",
                    "chooser": LABELS[chooser],
                    "score": mean.mean,
                    "low": float(np.clip(mean.mean if mean.low is None else mean.low, *ends)),
                    "high": float(np.clip(mean.mean if mean.high is None else mean.high, *ends)),
                    "shown": not open_,
                }


def plot_of(rows: Sequence[Row], axes: Sequence[str], measure: Measure = ACCURACY) -> SweepPlot:
    """Return what is drawn of the rows of a table whose axes are these, those of seeds included."""
    groups = [group for group in groups_of(rows, axes) if group.accuracy]
    values = {axis: _ordered([group.values[axis] for group in groups]) for axis in axes if axis not in SEEDS}
    seeds = "fresh seeds" if measure_of(rows) == "accuracy" else WHERE_SEARCHED
    return SweepPlot(groups, compared_choosers(rows), values, layout_of(values), measure, seeds)


def _ordered(values: Sequence[Any]) -> list[Any]:
    """Return the different values: numbers by size, anything else in the order of the table."""
    different = list(dict.fromkeys(values))
    return sorted(different) if all(map(_is_number, different)) else different


def sweep_chart(plot: SweepPlot) -> alt.LayerChart | alt.FacetChart:
    """Draw a sweep, a panel for each combination of the axes that are neither x nor colour, up to `MAX_PANELS`."""
    panels = plot.panels
    chart = plot.chart(panels[:MAX_PANELS]).properties(width=PANEL_WIDTH, height=PANEL_HEIGHT)
    remarks = [HOLLOW] if any(not group.told_apart for group in plot.groups) and plot.choosers[-1] != FEDAVG else []
    if len(panels) > MAX_PANELS:
        remarks.append(f"the first {MAX_PANELS} of {len(panels)} combinations; the table has all")
    title = alt.TitleParams(remarks)
    if len(panels) == 1:
        return chart.properties(title=title)
    facets = alt.Facet("panel:N", title=None, sort=[_title(panel) for panel in panels])
    return chart.facet(facets, columns=COLUMNS).properties(title=title)


def _title(panel: Mapping[str, Any]) -> str:
    return ", ".join(f"{axis.rpartition('.')[2]} {value_text(value)}" for axis, value in panel.items())


def write_plot(
    rows: Sequence[Row], axes: Sequence[str], folder: SweepFolder, measure: Measure = ACCURACY
) -> tuple[Path, ...]:
    """Write `plot.png` and `plot.svg`; nothing if no study went through."""
    if not any(row["chooser"] for row in rows):
        return ()
    chart = sweep_chart(plot_of(rows, axes, measure))
    return (
        folder.write("plot.png", partial(Path.write_bytes, data=drawn(chart, "png"))),
        folder.write("plot.svg", partial(Path.write_bytes, data=drawn(chart, "svg"))),
    )
