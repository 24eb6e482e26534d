"""Means over seeds, with the numbers worked out by hand."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedscout.experiments.reports.page_sweep import PlotLayout, axis_values, layout_of, points_of
from fedscout.experiments.sweeps.run import (
    LABELS,
    TABLE_COLUMNS,
    Mean,
    compared_choosers,
    groups_of,
    mean_of,
    measure_of,
)
from fedscout.search.objective import ACCURACY, MEASURES, Measure

EMPTY: dict[str, Any] = dict.fromkeys(TABLE_COLUMNS)


def row(alpha: float, seed: int, chooser: str | None, **values: Any) -> dict[str, Any]:
    study = f"{alpha}-{seed}"
    return {**EMPTY, "alpha": alpha, "seed": seed, "study": study, "status": "completed", "chooser": chooser, **values}


def test_a_mean_of_two_has_student_s_interval_with_one_degree_of_freedom() -> None:
    # t(0.975; 1) = tan(0.475 pi): the quantile of the Cauchy distribution; s / sqrt(2) of 0.4 and 0.6 is 0.1.
    mean = mean_of([0.4, 0.6])
    half = math.tan(0.475 * math.pi) * 0.1
    assert (mean.mean, mean.count) == (pytest.approx(0.5), 2)
    assert (mean.low, mean.high) == (pytest.approx(0.5 - half), pytest.approx(0.5 + half))


def test_studies_of_one_data_set_share_their_rows() -> None:
    """Two studies of three seeds each, a fifth of the rows tested: half widths √(1/2 + 3/4) in place of √(1/2) of S."""
    split = {"test_to_train": 0.25, "num_confirmation_seeds": 3}
    rows = [row(0.1, seed, "fedavg", accuracy=0.4 + 0.2 * seed, **split) for seed in (0, 1)]
    rows += [row(0.1, seed, "challenger", accuracy=0.6 + 0.3 * seed, **split) for seed in (0, 1)]
    (group,) = groups_of(rows, ["alpha", "seed"])
    quantile = math.tan(0.475 * math.pi)
    for mean, spread in ((group.accuracy["fedavg"], 0.2), (group.difference, 0.1)):
        assert mean is not None
        assert mean.high is not None
        assert mean.high - mean.mean == pytest.approx(quantile * spread / math.sqrt(2) * math.sqrt(1 / 2 + 0.75))


@pytest.mark.parametrize(("least", "most"), [(0.0, 1.0), (None, 1.0), (0.0, None), (None, None)])
def test_an_interval_ends_at_the_bounds_of_the_measure(least: float | None, most: float | None) -> None:
    bounds = {"smallest_score": least, "largest_score": most}
    rows = [row(0.1, seed, "fedavg", accuracy=0.1 * seed, **bounds) for seed in (0, 1)]
    rows += [row(0.1, seed, "challenger", accuracy=1 - 0.2 * seed, **bounds) for seed in (0, 1)]
    (group,) = groups_of(rows, ["alpha", "seed"])
    quantile = math.tan(0.475 * math.pi)
    span = most - least if most is not None and least is not None else math.inf
    ends = (math.nan if least is None else least, math.nan if most is None else most)
    for mean, centre, half, (low, high) in (
        (group.accuracy["fedavg"], 0.05, 0.05 * quantile, ends),
        (group.accuracy["challenger"], 0.9, 0.1 * quantile, ends),
        (group.difference, 0.85, 0.15 * quantile, (-span, span)),
    ):
        assert mean is not None
        assert (mean.low, mean.high) == (
            pytest.approx(np.fmax(low, centre - half)),
            pytest.approx(np.fmin(high, centre + half)),
        )


@pytest.mark.parametrize(("verdict", "apart"), [("better", True), ("worse", True), ("no difference", False)])
def test_a_single_study_tells_its_own_interval_and_verdict(verdict: str, apart: bool) -> None:
    own = {"difference": 0.05, "difference_low": -0.01, "difference_high": 0.11, "verdict": verdict}
    rows = [
        row(0.1, 0, "fedavg", accuracy=0.5, accuracy_low=0.4, accuracy_high=0.6),
        row(0.1, 0, "challenger", accuracy=0.55, accuracy_low=0.45, accuracy_high=0.65, **own),
    ]
    (group,) = groups_of(rows, ["alpha", "seed"])
    assert group.difference == Mean(0.05, -0.01, 0.11, 1)
    assert group.accuracy["fedavg"] == Mean(0.5, 0.4, 0.6, 1)
    assert group.is_distinguished == apart


def test_several_studies_are_told_apart_by_their_difference() -> None:
    gains = {"clear": (0.20, 0.21, 0.19), "unclear": (0.2, -0.2, 0.1)}
    found = {}
    for name, own in gains.items():
        rows = [row(0.1, seed, "fedavg", accuracy=0.5) for seed in range(3)]
        rows += [row(0.1, seed, "challenger", accuracy=0.5 + gain, verdict="better") for seed, gain in enumerate(own)]
        found[name] = groups_of(rows, ["alpha", "seed"])[0].is_distinguished
    assert found == {"clear": True, "unclear": False}


def test_the_gain_is_on_the_stronger_of_both_baselines_in_each_study() -> None:
    """Tuning gains 10 points in one study and loses 10 in the other: 65 - 60 and 65 - 50, not 65 - 50 twice."""
    rows = [row(0.1, seed, "fedavg", accuracy=0.5) for seed in (0, 1)]
    rows += [row(0.1, seed, "tuned fedavg", accuracy=(0.6, 0.4)[seed]) for seed in (0, 1)]
    rows += [row(0.1, seed, "challenger", accuracy=0.65, verdict="better") for seed in (0, 1)]
    (group,) = groups_of(rows, ["alpha", "seed"])
    assert group.gain is not None
    assert group.difference is not None
    assert (group.gain.mean, group.gain.count) == (pytest.approx((0.05 + 0.15) / 2), 2)
    assert group.difference.mean == pytest.approx(0.15)
    (alone,) = groups_of(rows[::2], ["alpha", "seed"])
    assert alone.gain == Mean(pytest.approx(0.05), None, None, 1)


def test_without_a_tuned_baseline_the_gain_is_the_difference() -> None:
    assert [group.gain == group.difference for group in groups_of(ROWS, ["alpha", "seed"])] == [True, True]


ROWS = [
    row(0.1, 0, "fedavg", accuracy=0.50, label_skew_detected=True),
    row(0.1, 0, "challenger", accuracy=0.75, verdict="better", label_skew_detected=True),
    row(0.1, 1, "fedavg", accuracy=0.70, label_skew_detected=False),
    row(0.1, 1, "challenger", accuracy=0.65, verdict="no difference", label_skew_detected=False),
    row(1.0, 0, "fedavg", accuracy=0.90),
    row(1.0, 1, None, status="failed", error="no"),
]


def test_studies_that_differ_in_a_seed_alone_make_a_group() -> None:
    first, second = groups_of(ROWS, ["alpha", "seed"])
    assert first.values == {"alpha": 0.1}
    assert (first.num_studies, first.num_completed, first.num_better) == (2, 2, 1)
    assert first.accuracy["fedavg"].mean == pytest.approx(0.60)
    assert first.accuracy["challenger"].mean == pytest.approx(0.70)
    assert first.difference is not None
    assert first.difference.mean == pytest.approx((0.25 - 0.05) / 2)
    assert first.detected == {"label_skew": 1, "feature_skew": 0, "outliers": 0}
    assert (second.values, second.num_studies, second.num_completed) == ({"alpha": 1.0}, 2, 1)
    assert (second.accuracy["fedavg"].mean, second.difference) == (0.90, None)


def test_the_difference_is_over_pairs_alone() -> None:
    rows = [*ROWS[:4], row(0.1, 2, "fedavg", accuracy=0.0)]
    (group,) = groups_of(rows, ["alpha", "seed"])
    assert group.difference is not None
    assert (group.difference.mean, group.difference.count) == (pytest.approx(0.10), 2)


def test_fresh_seeds_decide_where_there_are_any() -> None:
    assert measure_of(ROWS) == "accuracy"
    assert compared_choosers(ROWS) == ("fedavg", "challenger")
    unconfirmed = [row(0.1, 0, chooser, fitness=0.5) for chooser in ("fedavg", "search best", "challenger")]
    assert measure_of(unconfirmed) == "fitness"
    assert compared_choosers(unconfirmed) == ("fedavg", "search best")
    tuned = [*ROWS, row(0.1, 0, "tuned fedavg", accuracy=0.6)]
    assert compared_choosers(tuned) == ("fedavg", "tuned fedavg", "challenger")


def test_without_a_completed_study_there_is_nothing_to_compare() -> None:
    (group,) = groups_of([ROWS[-1]], ["alpha", "seed"])
    assert (group.accuracy, group.difference, group.num_completed) == ({}, None, 0)


# The chart: a curve for each chooser and value of a second axis, and something sensible for every kind of axes.


ALPHA, CLIENTS, SCENARIO = "federation.partition.alpha", "federation.num_clients", "federation.scenario"


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


def points(axes: dict[str, list[Any]], measure: Measure = ACCURACY, **values: Any) -> list[dict[str, Any]]:
    """Return the points of the chart over these axes; `values` are of every row."""
    rows, names = rows_over(**axes)
    groups = groups_of([{**row, **values} for row in rows], names)
    return points_of(groups, layout_of(axis_values(groups)), measure)


def test_there_is_a_curve_for_each_chooser_and_value_of_a_second_axis() -> None:
    found: dict[str, list[tuple[str, float]]] = {}
    for point in points({CLIENTS: [10, 4], ALPHA: [5.0, 0.05, 0.5], "seed": [0, 1]}):
        found.setdefault(point["curve"], []).append((point["step"], point["mean"]))
    assert found == {
        f"{chooser}, num_clients {clients}": [(x, score) for x in ("0.05", "0.5", "5")]
        for clients in (4, 10)
        for chooser, score in ((LABELS["fedavg"], 0.5), (LABELS["challenger"], 0.6))
    }


@pytest.mark.parametrize(
    "axes", [{}, {"seed": [0, 1, 2]}, {SCENARIO: ["a", None]}, {"flag": [True, False], SCENARIO: ["a", "b"]}]
)
def test_any_kind_of_axis_has_points(axes: dict[str, list[Any]]) -> None:
    varying = [len(values) for name, values in axes.items() if name != "seed"]
    assert len(points(axes)) == 2 * math.prod(varying)


@pytest.mark.parametrize(
    ("name", "ends"), [("accuracy", (0.0, 1.0)), ("macro_f1", (0.0, 1.0)), ("r2", (-2.0, 1.0)), ("mae", (-2.0, 8.0))]
)
def test_bars_end_where_scores_do(name: str, ends: tuple[float, float]) -> None:
    """A model can be worse than a constant answer, whose R² and whose reduction of the error are 0."""
    found = points({ALPHA: [0.05, 0.5]}, MEASURES[name], accuracy_low=-2.0, accuracy_high=8.0)
    assert {(point["low"], point["high"]) for point in found} == {ends}


# docs/sweep.md says what the table holds, and its examples are valid.


DOCUMENT = (Path(__file__).resolve().parents[3] / "docs" / "sweep.md").read_text()


def test_every_column_is_explained() -> None:
    columns = DOCUMENT[DOCUMENT.index("| `study`, ") :]
    lines = [line.split("|")[1] for line in columns.splitlines() if line.startswith("| `")]
    explained = [name for line in lines for name in re.findall(r"`(\w+)`", line)]
    assert sorted(explained) == sorted(TABLE_COLUMNS)
