"""The page of a sweep: gain over FedAvg and winning strategy for each setting, and all studies.

FedAvg means tuned FedAvg in studies that tuned it. Cells are means over seeds with the
intervals of `fedscout.experiments.sweeps.run`, read from the sweep's table.

A chart of means shows the measure against one axis; a curve is a chooser at a value of a second axis. A point is a mean
over seeds, and its bar the 95 % interval for new data where scores on fresh seeds exist; a single study has its own
interval. Overlapping bars do not imply that two choosers are alike, as scores are paired. The x axis is
`federation.partition.alpha` if the sweep varies it, else the first numeric axis, else the first axis; the second one is
the next. Every combination of further axes has its own panel, as a mean over different federations would be
meaningless.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedscout.engine.errors import LogError
from fedscout.experiments.charts import curves, gain_map, winner_map
from fedscout.experiments.reports.page_study import Page, Picture, Section, Table
from fedscout.experiments.reports.sweep_console import sweep_table
from fedscout.experiments.studies.run_folder import read_json
from fedscout.experiments.sweeps.run import LABELS, SEEDS, TUNED, Group, Row, compared_choosers, groups_of, measure_of
from fedscout.experiments.sweeps.sweep import BINDING, value_text
from fedscout.search.objective import MEASURES, UNLIKE, Measure

MOST_PANELS = 6
KEEP = "fedavg"

Cell = dict[str, Any]


def sweep_page(folder: Path) -> Page:
    """Return the page of a sweep's folder.

    Raises:
        LogError: If the folder holds no readable table of a sweep.
    """
    binding, rows = read_json(folder / BINDING), _rows(folder / "table.parquet")
    axes = [axis for axis in (binding or {}).get("axes", ()) if rows and axis in rows[0]]
    groups = groups_of(rows, axes)
    names = {row["measure"] for row in rows} - {None}
    measure = next((known for known in MEASURES.values() if {known.name} == names), UNLIKE)
    cells = _cells(groups, rows, measure)
    is_confirmed = measure_of(rows) == "accuracy"
    seeds = "fresh seeds" if is_confirmed else "the search's seed"
    failed = list({row["study"]: row for row in rows if row["status"] != "completed"}.values())
    reasons = tuple(f"{row['study']} {row['status']}: {row['error']}" for row in failed[:20])
    sections = (
        _maps(cells, groups, measure, seeds),
        _list(cells, groups, measure, is_confirmed),
        Section("studies", "Studies", table=_studies(rows, axes), missing=reasons),
    )
    headline, lead = _verdict(cells, measure)
    num_studies = len({row["study"] for row in rows})
    figures = (("combinations of values", str(len(groups))), ("studies", str(num_studies)))
    title = f"sweep over {', '.join(_short(axis, axes) for axis in axes)}"
    return Page(title, headline, lead, figures, sections, footer=folder.name)


def _short(axis: str, axes: Sequence[str]) -> str:
    """Return the last part of an axis's key, or the whole key if another axis ends in the same part."""
    end = axis.rpartition(".")[2]
    return end if [other.rpartition(".")[2] for other in axes].count(end) == 1 else axis


def _rows(path: Path) -> list[Row]:
    try:
        with pq.ParquetFile(path) as file:
            rows: list[Row] = file.read().to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise LogError.of("the folder", "hold a sweep's table", f"{path}, which can't be read") from error
    if not rows:
        raise LogError.of("the folder", "hold a sweep's table", f"{path} without rows")
    return rows


def _cells(groups: Sequence[Group], rows: Sequence[Row], measure: Measure) -> list[Cell]:
    """Return one row per group with a difference: its group, gain, and recommended strategy."""
    choice = compared_choosers(rows)[-1:]
    cells = []
    for group in groups:
        gain = group.gain
        if gain is None:
            continue
        chosen_rows = [row for row in rows if group.values.items() <= row.items() and row["chooser"] in choice]
        strategy = Counter(row["strategy"] for row in chosen_rows).most_common(1)[0][0]
        factor = measure.per_unit
        better = group.is_distinguished and gain.mean > 0
        cells.append(
            {
                "group": group,
                "gain": factor * gain.mean,
                "low": None if gain.low is None else factor * gain.low,
                "high": None if gain.high is None else factor * gain.high,
                "certain": group.is_distinguished,
                "strategy": strategy,
                "advised": strategy if better else KEEP,
                "studies": group.num_completed,
                "text": measure.number(gain.mean),
            }
        )
    return cells


def _verdict(cells: Sequence[Cell], measure: Measure) -> tuple[str, tuple[str, ...]]:
    if not cells:
        return "No study has a strategy that can be compared with FedAvg.", ()
    better = [cell for cell in cells if cell["certain"] and cell["gain"] > 0]
    num_worse = sum(cell["certain"] and cell["gain"] < 0 for cell in cells)
    num_open = sum(not cell["certain"] for cell in cells)
    headline = f"Another strategy beats FedAvg in {len(better)} of {len(cells)} settings."
    lead = []
    if better:
        kinds = Counter(cell["strategy"] for cell in better).most_common(3)
        lead.append("The winning strategies are " + ", ".join(f"{kind} ({count})" for kind, count in kinds) + ".")
        largest = max(better, key=lambda cell: float(cell["gain"]))
        lead.append(f"The largest gain is {largest['text']} {measure.unit}, by {largest['strategy']}.")
    shown = f"Settings without a shown difference, as the interval contains zero or is missing: {num_open}"
    return headline, (*lead, f"{shown}; in which the search's choice is worse: {num_worse}.")


def _maps(cells: Sequence[Cell], groups: Sequence[Group], measure: Measure, seeds: str) -> Section:
    title = "Which strategy wins where"
    if not cells:
        return Section("maps", title, missing=("There is nothing to compare.",))
    scored = [group for group in groups if group.accuracy]
    values = axis_values(scored)
    layout, names = layout_of(values), list(values)
    panels = [
        dict(zip(layout.panels, panel, strict=True)) for panel in product(*(values[axis] for axis in layout.panels))
    ]
    is_tuned = any(TUNED in group.accuracy for group in groups)
    reference = "FedAvg at its tuned client rate" if is_tuned else "FedAvg at the configured learning rate"
    x_name, y_name = axes = (_short(layout.x or "", names), _short(layout.colour or "", names))
    pictures = []
    for number, fixed in enumerate(panels[:MOST_PANELS], start=1):
        panel_cells = _panel_cells(cells, fixed, values, (layout.colour, layout.x))
        if not panel_cells:
            continue
        where = "".join(f" At {_short(axis, names)} = {value_text(value)}." for axis, value in fixed.items())
        ending = f"-{number}" if len(panels) > 1 else ""
        gain = f"Gain over {reference}, in {measure.unit}; outlined where the interval contains zero.{where}"
        pictures.append(Picture(f"gain-map{ending}", gain, gain_map(panel_cells, axes, measure.unit)))
        winner = f"Recommended strategy: FedAvg, unless another strategy is shown to be better.{where}"
        pictures.append(Picture(f"winner-map{ending}", winner, winner_map(panel_cells, axes)))
        points = points_of([group for group in scored if fixed.items() <= group.values.items()], layout, measure)
        means = f"Means over seeds with their 95 % intervals{f', by {y_name}' if y_name else ''}.{where}"
        chart = curves(points, x_name, f"{measure.name} on {seeds}")
        pictures.append(Picture(f"means{ending}", means, chart))
    missing = (
        (f"Shown: {MOST_PANELS} of {len(panels)} panels; the table has all.",) if len(panels) > MOST_PANELS else ()
    )
    return Section("maps", title, pictures=tuple(pictures), missing=missing)


def _panel_cells(
    cells: Sequence[Cell],
    fixed: Mapping[str, Any],
    values: Mapping[str, Sequence[Any]],
    axes: tuple[str | None, str | None],
) -> list[Cell]:
    """Return the cells of a panel with `y` and `x`, in the order of these axes' values."""
    panel = [cell for cell in cells if fixed.items() <= cell["group"].values.items()]
    panel.sort(key=lambda cell: [values[axis].index(cell["group"].values[axis]) for axis in axes if axis])
    texts = [["" if axis is None else value_text(cell["group"].values[axis]) for axis in axes] for cell in panel]
    facts = [{name: value for name, value in cell.items() if name != "group"} for cell in panel]
    return [{**fact, "y": y, "x": x} for fact, (y, x) in zip(facts, texts, strict=True)]


def _list(cells: Sequence[Cell], groups: Sequence[Group], measure: Measure, is_confirmed: bool) -> Section:
    """Return the table of the console, with the strategy chosen most often and the recommended one."""
    headings, rows = sweep_table(groups, measure, is_confirmed)
    strategies = {id(cell["group"]): (cell["strategy"], cell["advised"]) for cell in cells}
    all_rows = [(*row, *strategies.get(id(group), ("", ""))) for row, group in zip(rows, groups, strict=True)]
    words = ("chosen", "recommended")
    return Section("settings", "All settings", table=Table([*headings, *words], all_rows, words))


def _studies(rows: Sequence[Row], axes: Sequence[str]) -> Table:
    per_study = {row["study"]: row for row in rows}
    seeds = [axis for axis in axes if axis in SEEDS]
    table_rows = [
        (
            name,
            *(value_text(row[axis]) for axis in seeds),
            row["status"],
            "" if row["num_trials"] is None else str(row["num_trials"]),
            "" if row["seconds"] is None else f"{row['seconds']:.0f} s",
        )
        for name, row in per_study.items()
    ]
    return Table(("study", *seeds, "status", "trials", "time"), table_rows[:200], ("status",))


PREFERRED_AXIS = "federation.partition.alpha"


@dataclass(frozen=True)
class PlotLayout:
    """The axes along x and by colour, None if there is none; the others form panels."""

    x: str | None
    colour: str | None
    panels: tuple[str, ...]


def layout_of(values: Mapping[str, Sequence[Any]]) -> PlotLayout:
    """Return the layout for axes with these distinct values, without the axes of seeds."""
    varying = [axis for axis, distinct in values.items() if len(distinct) > 1]
    numeric = [axis for axis in varying if all(_is_number(value) for value in values[axis])]
    x_axis = PREFERRED_AXIS if PREFERRED_AXIS in numeric else next(iter([*numeric, *varying]), None)
    rest = [axis for axis in varying if axis != x_axis]
    return PlotLayout(x_axis, rest[0] if rest else None, tuple(rest[1:]))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def axis_values(groups: Sequence[Group]) -> dict[str, list[Any]]:
    """Return the distinct values of each axis: numbers ascending, anything else in the order of the groups."""
    values = {}
    for axis in groups[0].values if groups else ():
        distinct = list(dict.fromkeys(group.values[axis] for group in groups))
        values[axis] = sorted(distinct) if all(map(_is_number, distinct)) else distinct
    return values


def points_of(groups: Sequence[Group], layout: PlotLayout, measure: Measure) -> list[dict[str, Any]]:
    """Return the means of a panel's groups, ordered along x, with their intervals within the measure's bounds."""
    values = axis_values(groups)
    bounds = measure.worst, measure.best
    axes = [axis for axis in (layout.x, layout.colour) if axis is not None]
    points = []
    for group in sorted(groups, key=lambda group: [values[axis].index(group.values[axis]) for axis in axes]):
        colour = [] if layout.colour is None else [f"{layout.colour.rpartition('.')[2]} {_text(group, layout.colour)}"]
        for chooser, mean in group.accuracy.items():
            ends = [mean.mean if end is None else end for end in (mean.low, mean.high)]
            low, high = np.clip(ends, *bounds).tolist()
            curve = ", ".join([LABELS[chooser], *colour])
            step = _text(group, layout.x)
            points.append({"step": step, "curve": curve, "mean": mean.mean, "low": low, "high": high})
    return points


def _text(group: Group, axis: str | None) -> str:
    return "" if axis is None else value_text(group.values[axis])
