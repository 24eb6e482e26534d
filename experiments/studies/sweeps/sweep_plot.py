"""The picture of a sweep: what is measured against one axis, by a second (colour) and by chooser (line style).

A point is a mean over seeds, the bar its 95 % interval for new data, as far as there are such scores; a single study
has its own. A hollow point of what the search chose is not shown to differ from FedAvg; whether bars overlap does not
tell, as scores are paired. The axis along x is `federation.partition.alpha` if it is one, else the first with numbers,
else the first of all; colour is the next one. Every combination of any further axes gets a panel of its own, as a mean
over different federations would mean nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedscout.experiments.studies.sweeps.grid_configurations import value_text
from fedscout.experiments.studies.sweeps.sweep_folder import SweepFolder
from fedscout.experiments.studies.sweeps.sweep_summary import (
    SEEDS,
    Group,
    Mean,
    compared_choosers,
    groups_of,
    measure_of,
)
from fedscout.experiments.studies.sweeps.sweep_table import FEDAVG, Row
from fedscout.search.measure import ACCURACY, Measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FAVOURITE = "federation.partition.alpha"
WHERE_SEARCHED = "the search's seed"
MAX_PANELS = 12
COLUMNS = 3
STYLES: Mapping[str, tuple[Literal["-", "--", ":"], str]] = {
    "fedavg": ("--", "o"),
    "tuned fedavg": (":", "s"),
    "search best": ("-", "^"),
    "challenger": ("-", "^"),
}
"""Line and marker of each chooser; what the search chose is the full line."""

LABELS: Mapping[str, str] = {
    "fedavg": "FedAvg",
    "tuned fedavg": "FedAvg, tuned rate",
    "search best": "best of the search",
    "challenger": "chosen by the search",
}
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D1F")
"""Told apart by the colour-blind, too; after Okabe and Ito, Color Universal Design (2008)."""


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


def draw(rows: Sequence[Row], axes: Sequence[str], measure: Measure = ACCURACY) -> Figure:
    """Draw the rows of a table whose axes are these, those of seeds included, and whose scores are of a measure."""
    from matplotlib.figure import Figure

    groups = [group for group in groups_of(rows, axes) if group.accuracy]
    kept = [axis for axis in axes if axis not in SEEDS]
    values = {axis: _ordered([group.values[axis] for group in groups]) for axis in kept}
    layout = layout_of(values)
    panels = list(product(*(values[axis] for axis in layout.panels)))
    shown = panels[:MAX_PANELS]
    columns = min(COLUMNS, len(shown))
    lines = -(-len(shown) // columns)
    figure = Figure(figsize=(2.2 + 4.4 * columns, 0.9 + 3.3 * lines), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    choosers = compared_choosers(rows)
    for place in grid.flat[len(shown) :]:
        place.set_visible(False)
    for place, panel in zip(grid.flat, shown, strict=False):
        title = dict(zip(layout.panels, panel, strict=True))
        inside = [group for group in groups if title.items() <= group.values.items()]
        _panel(place, inside, layout, values, choosers, measure)
        place.set_title(", ".join(f"{axis.rpartition('.')[2]} {value_text(own)}" for axis, own in title.items()))
    figure.supylabel(f"{measure.name} on {'fresh seeds' if measure_of(rows) == 'accuracy' else WHERE_SEARCHED}")
    figure.supxlabel(layout.x or "")
    _legends(figure, layout, values, choosers)
    if len(panels) > len(shown):
        figure.suptitle(f"the first {len(shown)} of {len(panels)} combinations; the table has all")
    return figure


def _ordered(values: Sequence[Any]) -> list[Any]:
    """Return the different values: numbers by size, anything else in the order of the table."""
    different = list(dict.fromkeys(values))
    return sorted(different) if all(_is_number(value) for value in different) else different


def _panel(
    place: Axes,
    groups: Sequence[Group],
    layout: PlotLayout,
    values: Mapping[str, Sequence[Any]],
    choosers: Sequence[str],
    measure: Measure,
) -> None:
    along = values[layout.x] if layout.x else [None]
    numeric = all(_is_number(value) for value in along)
    for number, colour_value in enumerate(values[layout.colour] if layout.colour else [None]):
        own = [group for group in groups if layout.colour is None or group.values[layout.colour] == colour_value]
        by_value = {group.values[layout.x] if layout.x else None: group.accuracy for group in own}
        equal = [group.values[layout.x] if layout.x else None for group in own if not group.told_apart]
        for chooser in choosers:
            means = {value: by_value[value][chooser] for value in along if chooser in by_value.get(value, {})}
            xs = [value if numeric else along.index(value) for value in means]
            _line(place, xs, list(means.values()), COLOURS[number % len(COLOURS)], chooser, measure)
        undecided = [
            (value if numeric else along.index(value), by_value[value][choosers[-1]].mean)
            for value in along
            if value in equal and choosers[-1] != FEDAVG and choosers[-1] in by_value[value]
        ]
        _hollow(place, undecided, COLOURS[number % len(COLOURS)], choosers[-1])
    if numeric and min(along) > 0 and max(along) >= 10 * min(along):
        place.set_xscale("log")
    labels = ["" if layout.x is None else value_text(value) for value in along]
    place.set_xticks(np.array(along, dtype=np.float64) if numeric else range(len(along)), labels)
    if numeric:
        place.minorticks_off()
    place.grid(alpha=0.25)


def _line(place: Axes, xs: Sequence[Any], means: Sequence[Mean], colour: str, chooser: str, measure: Measure) -> None:
    """Draw one chooser's means and their bars; of none nothing."""
    if not means:
        return
    line, marker = STYLES[chooser]
    place.plot(xs, [mean.mean for mean in means], color=colour, linestyle=line, marker=marker, markersize=4)
    lows = [mean.mean if mean.low is None else mean.low for mean in means]
    highs = [mean.mean if mean.high is None else mean.high for mean in means]
    place.vlines(
        xs,
        np.clip(lows, measure.worst, None),
        np.clip(highs, None, measure.best),
        color=colour,
        linestyle=line,
        alpha=0.5,
    )


def _hollow(place: Axes, points: Sequence[tuple[Any, float]], colour: str, chooser: str) -> None:
    """Draw over the points that are not shown to differ from FedAvg."""
    if points:
        xs, ys = zip(*points, strict=True)
        place.scatter(xs, ys, s=16, marker=STYLES[chooser][1], facecolors="white", edgecolors=colour, zorder=3)


def _legends(figure: Figure, layout: PlotLayout, values: Mapping[str, Sequence[Any]], choosers: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color="#444444", linestyle=line, marker=marker, markersize=4, label=LABELS[chooser])
        for chooser in choosers
        for line, marker in (STYLES[chooser],)
    ]
    if choosers[-1] != FEDAVG:
        hollow = {"color": "#444444", "linestyle": "", "marker": STYLES[choosers[-1]][1], "markerfacecolor": "white"}
        handles.append(Line2D([], [], markersize=4, label="no difference shown", **hollow))  # type: ignore[arg-type]
    if layout.colour:
        name = layout.colour.rpartition(".")[2]
        for number, value in enumerate(values[layout.colour]):
            label = f"{name} {value_text(value)}"
            handles.append(Line2D([], [], color=COLOURS[number % len(COLOURS)], linewidth=3, label=label))
    figure.legend(handles=handles, loc="outside right upper", frameon=False)


def write_plot(
    rows: Sequence[Row], axes: Sequence[str], folder: SweepFolder, measure: Measure = ACCURACY
) -> tuple[Path, ...]:
    """Write `plot.png` and `plot.svg`; nothing if no study went through."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells of the font cache that it builds
    if not any(row["chooser"] for row in rows):
        return ()
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = draw(rows, axes, measure)
    FigureCanvasAgg(figure)
    save = partial(figure.savefig, dpi=150)
    with rc_context({"svg.hashsalt": "fedscout"}):
        return (
            folder.write("plot.png", partial(save, format="png")),
            folder.write("plot.svg", partial(save, format="svg", metadata={"Date": None})),
        )
