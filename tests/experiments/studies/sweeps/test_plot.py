"""The picture: one line for each colour and chooser, and something sensible for every kind of axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib.collections import LineCollection

from fedscout.experiments.studies.sweeps.sweep_folder import SweepFolder
from fedscout.experiments.studies.sweeps.sweep_plot import PlotLayout, draw, layout_of, write_plot
from fedscout.experiments.studies.sweeps.sweep_table import COLUMNS
from fedscout.search.measure import MEASURES

ALPHA, CLIENTS, SCENARIO = "federation.partition.alpha", "federation.num_clients", "federation.scenario"
EMPTY: dict[str, Any] = dict.fromkeys(COLUMNS)


def rows_over(**axes: list[Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows of FedAvg and a challenger for every combination, and the axes' names."""
    points: list[dict[str, Any]] = [{}]
    for key, values in axes.items():
        points = [{**point, key: value} for point in points for value in values]
    rows = []
    for number, point in enumerate(points):
        for chooser, gain in (("fedavg", 0.0), ("challenger", 0.1)):
            found = {"study": str(number), "status": "completed", "chooser": chooser, "accuracy": 0.5 + gain}
            rows.append({**EMPTY, **point, **found})
    return rows, list(axes)


@pytest.mark.parametrize(
    ("values", "layout"),
    [
        ({}, PlotLayout(None, None, ())),
        ({ALPHA: [0.1]}, PlotLayout(None, None, ())),
        ({ALPHA: [0.1, 1.0]}, PlotLayout(ALPHA, None, ())),
        ({CLIENTS: [4, 10], ALPHA: [0.1, 1.0]}, PlotLayout(ALPHA, CLIENTS, ())),
        ({CLIENTS: [4, 10], ALPHA: [0.1]}, PlotLayout(CLIENTS, None, ())),
        ({SCENARIO: ["a", "b"], CLIENTS: [4, 10]}, PlotLayout(CLIENTS, SCENARIO, ())),
        ({SCENARIO: ["a", "b"]}, PlotLayout(SCENARIO, None, ())),
        ({CLIENTS: [4, 10], SCENARIO: ["a", "b"], ALPHA: [0.1, 1]}, PlotLayout(ALPHA, CLIENTS, (SCENARIO,))),
        ({"flag": [True, False], CLIENTS: [4, 10]}, PlotLayout(CLIENTS, "flag", ())),
    ],
)
def test_alpha_then_numbers_then_anything_lies_along_x(values: dict[str, list[Any]], layout: PlotLayout) -> None:
    assert layout_of(values) == layout


def test_there_is_a_line_for_each_colour_and_chooser() -> None:
    rows, axes = rows_over(**{ALPHA: [0.05, 0.5, 5.0], CLIENTS: [4, 10], "seed": [0, 1]})
    (panel,) = draw(rows, axes).axes
    assert len(panel.lines) == 2 * 2
    assert {tuple(line.get_xdata()) for line in panel.lines} == {(0.05, 0.5, 5.0)}
    assert sorted({float(value) for line in panel.lines for value in line.get_ydata()}) == [0.5, 0.6]
    assert len({line.get_color() for line in panel.lines}) == 2
    assert len({line.get_linestyle() for line in panel.lines}) == 2
    assert panel.get_xscale() == "log"


def test_points_have_bars_and_are_hollow_where_no_difference_is_shown() -> None:
    """Of three values of alpha the challenger is better at one; a single study's own interval is its bar."""
    rows, axes = rows_over(**{ALPHA: [0.05, 0.5, 5.0]})
    for row in rows:
        row |= {"accuracy_low": row["accuracy"] - 0.2, "accuracy_high": row["accuracy"] + 0.6}
        if row["chooser"] == "challenger":
            row["verdict"] = "better" if row[ALPHA] == 0.5 else "no difference"
    (panel,) = draw(rows, axes).axes
    *bars, hollow = sorted(panel.collections, key=lambda drawn: len(drawn.get_offsets()))
    assert [[tuple(ends[:, 1]) for ends in bar.get_segments()] for bar in bars] == [  # type: ignore[attr-defined]
        [(pytest.approx(0.3), 1.0)] * 3,
        [(pytest.approx(0.4), 1.0)] * 3,
    ]
    assert [tuple(point) for point in hollow.get_offsets()] == [(0.05, 0.6), (5.0, 0.6)]


@pytest.mark.parametrize(
    ("name", "ends"),
    [("accuracy", (0.0, 1.0)), ("macro_f1", (0.0, 1.0)), ("r2", (-2.0, 1.0)), ("mae", (-2.0, 8.0))],
)
def test_bars_end_where_scores_do(name: str, ends: tuple[float, float]) -> None:
    """A model can be worse than a constant answer, whose R² and whose reduction of the error are 0."""
    rows, axes = rows_over(**{ALPHA: [0.05, 0.5]})
    for row in rows:
        row |= {"accuracy_low": -2.0, "accuracy_high": 8.0}
    figure = draw(rows, axes, MEASURES[name])
    (panel,) = figure.axes
    bars = [drawn for drawn in panel.collections if isinstance(drawn, LineCollection)]
    assert {tuple(bar[:, 1]) for drawn in bars for bar in drawn.get_segments()} == {ends}
    assert figure.get_supylabel() == f"{MEASURES[name].name} on fresh seeds"


def test_a_narrow_axis_is_linear() -> None:
    rows, axes = rows_over(**{CLIENTS: [4, 10]})
    (panel,) = draw(rows, axes).axes
    assert panel.get_xscale() == "linear"


def test_further_axes_get_panels() -> None:
    rows, axes = rows_over(**{ALPHA: [0.1, 1.0], CLIENTS: [4, 10], SCENARIO: ["a", "b", "c"], "x.y": [1, 2]})
    panels = [panel for panel in draw(rows, axes).axes if panel.get_visible()]
    assert [panel.get_title() for panel in panels] == [f"scenario {one}, y {two}" for one in "abc" for two in (1, 2)]
    assert {len(panel.lines) for panel in panels} == {4}


@pytest.mark.slow
@pytest.mark.parametrize(
    "axes", [{}, {"seed": [0, 1, 2]}, {SCENARIO: ["a", None]}, {"flag": [True, False], SCENARIO: ["a", "b"]}]
)
def test_without_numbers_there_is_a_picture_all_the_same(tmp_path: Path, axes: dict[str, list[Any]]) -> None:
    rows, names = rows_over(**axes)
    png, svg = write_plot(rows, names, SweepFolder(tmp_path))
    assert png.read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    (panel,) = draw(rows, names).axes
    assert len(panel.lines) == 2 * max(1, len(axes.get("flag", [1])))


def test_the_same_table_gives_the_same_svg(tmp_path: Path) -> None:
    rows, axes = rows_over(**{ALPHA: [0.1, 1.0], "seed": [0, 1]})
    texts = []
    for name in ("a", "b"):
        texts.append(write_plot(rows, axes, SweepFolder(tmp_path / name))[1].read_text())
    assert texts[0] == texts[1]


def test_without_a_completed_study_there_is_no_picture(tmp_path: Path) -> None:
    row = {**EMPTY, "study": "0", "status": "failed"}
    assert write_plot([row], [], SweepFolder(tmp_path)) == ()
    assert list(tmp_path.iterdir()) == []
