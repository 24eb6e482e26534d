"""The picture: one line for each colour and chooser, and something sensible for every kind of axes."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fedscout.experiments.sweeps.results import TABLE_COLUMNS, PlotLayout, layout_of, plot_of
from fedscout.search.objective import ACCURACY, MEASURES, Measure

ALPHA, CLIENTS, SCENARIO = "federation.partition.alpha", "federation.num_clients", "federation.scenario"
EMPTY: dict[str, Any] = dict.fromkeys(TABLE_COLUMNS)


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


def drawn(rows: list[dict[str, Any]], axes: list[str], measure: Measure = ACCURACY) -> dict[str, Any]:
    """Return the chart of a table as Vega-Lite."""
    plot = plot_of(rows, axes, measure)
    (panel,) = plot.panels
    found: dict[str, Any] = plot.chart(panel).to_dict()
    return found


def points_of(chart: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the points that a chart shows."""
    if "values" in chart["data"]:
        found: list[dict[str, Any]] = chart["data"]["values"]
        return found
    (found,) = chart["datasets"].values()
    return found


def encoded(chart: dict[str, Any], channel: str) -> dict[str, Any]:
    """Return how the layers of a chart, which agree, show a channel."""
    layers = chart["layer"]
    (found,) = {str(layer["encoding"][channel]): layer["encoding"][channel] for layer in layers}.values()
    return dict(found)


def test_there_is_a_line_for_each_colour_and_chooser() -> None:
    rows, axes = rows_over(**{ALPHA: [5.0, 0.05, 0.5], CLIENTS: [4, 10], "seed": [0, 1]})
    chart = drawn(rows, axes)
    lines: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for point in points_of(chart):
        lines.setdefault((point["colour"], point["chooser"]), []).append((point["x"], point["score"]))
    assert lines == {
        (clients, chooser): [(x, score) for x in (0.05, 0.5, 5.0)]
        for clients in ("4", "10")
        for chooser, score in (("FedAvg", 0.5), ("chosen by the search", 0.6))
    }
    assert encoded(chart, "color")["scale"]["domain"] == ["4", "10"]
    assert encoded(chart, "x")["scale"]["type"] == "log"
    assert encoded(chart, "x")["axis"]["values"] == [0.05, 0.5, 5.0]
    dashes = chart["layer"][0]["encoding"]["strokeDash"]["scale"]
    assert dashes["domain"] == ["FedAvg", "chosen by the search"]
    assert len({tuple(dash) for dash in dashes["range"]}) == 2


def test_points_have_bars_and_are_hollow_where_no_difference_is_shown() -> None:
    """Of three values of alpha the challenger is better at one; a single study's own interval is its bar."""
    rows, axes = rows_over(**{ALPHA: [0.05, 0.5, 5.0]})
    for row in rows:
        row |= {"accuracy_low": row["accuracy"] - 0.2, "accuracy_high": row["accuracy"] + 0.6}
        if row["chooser"] == "challenger":
            row["verdict"] = "better" if row[ALPHA] == 0.5 else "no difference"
    chart = drawn(rows, axes)
    found = points_of(chart)
    bars = {(point["chooser"], point["low"], point["high"]) for point in found}
    assert bars == {("FedAvg", 0.3, 1.0), ("chosen by the search", 0.4, 1.0)}
    hollow = [(point["chooser"], point["x"]) for point in found if not point["shown"]]
    assert hollow == [("chosen by the search", 0.05), ("chosen by the search", 5.0)]
    marks = {
        layer["transform"][0]["filter"]: layer["mark"]["filled"] for layer in chart["layer"] if "transform" in layer
    }
    assert marks == {"datum.shown": True, "!datum.shown": False}


@pytest.mark.parametrize(
    ("name", "ends"), [("accuracy", (0.0, 1.0)), ("macro_f1", (0.0, 1.0)), ("r2", (-2.0, 1.0)), ("mae", (-2.0, 8.0))]
)
def test_bars_end_where_scores_do(name: str, ends: tuple[float, float]) -> None:
    """A model can be worse than a constant answer, whose R² and whose reduction of the error are 0."""
    rows, axes = rows_over(**{ALPHA: [0.05, 0.5]})
    for row in rows:
        row |= {"accuracy_low": -2.0, "accuracy_high": 8.0}
    chart = drawn(rows, axes, MEASURES[name])
    assert {(point["low"], point["high"]) for point in points_of(chart)} == {ends}
    assert MEASURES[name].name in chart["layer"][0]["encoding"]["y"]["title"]


def test_a_narrow_axis_is_linear() -> None:
    rows, axes = rows_over(**{CLIENTS: [4, 10]})
    assert encoded(drawn(rows, axes), "x")["scale"]["type"] == "linear"


def test_further_axes_get_panels() -> None:
    rows, axes = rows_over(**{ALPHA: [0.1, 1.0], CLIENTS: [4, 10], SCENARIO: ["b", "a", "c"], "x.y": [1, 2]})
    plot = plot_of(rows, axes)
    assert plot.panels == [{SCENARIO: one, "x.y": two} for one in "bac" for two in (1, 2)]
    assert [len(points_of(plot.chart(panel).to_dict())) for panel in plot.panels] == [2 * 2 * 2] * 6


@pytest.mark.parametrize(
    "axes", [{}, {"seed": [0, 1, 2]}, {SCENARIO: ["a", None]}, {"flag": [True, False], SCENARIO: ["a", "b"]}]
)
def test_without_numbers_x_has_names(axes: dict[str, list[Any]]) -> None:
    chart = drawn(*rows_over(**axes))
    assert encoded(chart, "x")["type"] == "nominal"
    assert all(isinstance(point["x"], str) for point in points_of(chart))
    varying = [len(values) for name, values in axes.items() if name != "seed"]
    assert len(points_of(chart)) == 2 * math.prod(varying)
