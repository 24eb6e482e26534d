"""What is seen of a statement, by hand: beyond noise, the other way round, neither, or not measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedscout.experiments.grids import comparison
from fedscout.experiments.grids.cells import CellValues, Measured, Values
from fedscout.experiments.grids.experiment import Cell, Experiment
from fedscout.experiments.reports import sweep_console
from fedscout.search.confirmation.intervals import seeds_to_decide

HIGH, LOW, NEAR = (0.91, 0.92, 0.90), (0.71, 0.70, 0.72), (0.80, 0.99, 0.93)
VALUES = {("high", "x"): HIGH, ("low", "x"): LOW, ("near", "x"): NEAR}


def numbers(values: Mapping[Cell, Values], missing: Mapping[str, str] | None = None, **facts: float) -> Measured:
    return Measured({cell: CellValues(values=own, **facts) for cell, own in values.items()}, missing or {})


def experiment(*statements: str, reference: str | None = None) -> Experiment:
    return Experiment.model_validate(
        {
            "title": "four rows",
            "columns": {"x": {}},
            "rows": {"high": {}, "low": {}, "near": {}, "gone": {}},
            "statements": dict.fromkeys(statements, "said"),
            "published": {"high": [[0.9, 0.1]]},
            "reference": reference,
        }
    )


@pytest.mark.parametrize(
    ("statement", "verdict"),
    [
        ("high > low", "seen"),
        ("low > high", "contradicted"),
        ("near > high", "within noise"),
        ("near = high", "not contradicted"),
        ("high = low", "contradicted"),
        ("high > gone", "not measured"),
        ("gone = high", "not measured"),
    ],
)
def test_verdicts(statement: str, verdict: comparison.Verdict) -> None:
    (found,) = comparison.statement_results(experiment(f"{statement} @ x"), numbers(VALUES))
    assert found.verdict == verdict
    assert found.seeds_to_decide is None  # the mean difference of "near" and "high" is close to zero


def test_seeds_decide_the_published_difference_or_the_measured_one() -> None:
    document = experiment("near > low @ x", "high > near @ x").model_dump()
    printed = Experiment.model_validate({**document, "published": {"high": [0.9], "near": [0.85]}})
    values = {("high", "x"): (0.8, 0.9), ("near", "x"): (0.7, 0.85), ("low", "x"): (0.4, 0.7)}
    unpublished, published = comparison.statement_results(printed, numbers(values))
    assert unpublished.seeds_to_decide == seeds_to_decide(0.225, 0.15 / 2 / math.sqrt(0.5))
    assert published.seeds_to_decide == seeds_to_decide(0.05, 0.05 / 2 / math.sqrt(0.5))
    (coarse, _) = comparison.statement_results(printed, numbers(values, resolution=1.0, test_to_train=0.25))
    assert coarse.seeds_to_decide is None


def test_a_cell_has_the_interval_of_nadeau_and_bengio() -> None:
    measured = numbers(VALUES, test_to_train=0.25)
    cell = next(one for one in comparison.cell_results(experiment(), measured) if one.row == "high")
    half = stats.t.ppf(0.975, 2) * stdev(HIGH) * math.sqrt(1 / 3 + 0.25)
    assert (cell.low, cell.mean, cell.high) == pytest.approx((fmean(HIGH) - half, fmean(HIGH), fmean(HIGH) + half))
    assert (cell.published, cell.deviation) == (0.9, 0.1)
    assert cell.gain is None


def test_the_gain_over_the_reference_is_taken_seed_by_seed() -> None:
    gains = {one.row: one.gain for one in comparison.cell_results(experiment(reference="low"), numbers(VALUES))}
    assert gains["low"] is None
    assert gains["gone"] is None
    assert gains["high"].differences == pytest.approx((0.2, 0.22, 0.18))


def test_only_seeds_that_both_have_are_compared() -> None:
    some = {("high", "x"): (0.9, None, 0.8), ("low", "x"): (0.5, 0.1, None)}
    (found,) = comparison.statement_results(experiment("high > low @ x"), numbers(some))
    assert found.difference.differences == pytest.approx((0.4,))
    assert found.verdict == "not measured"  # a single pair says nothing of noise


def test_a_mean_is_taken_seed_by_seed_and_needs_every_part_and_statements_compare_both() -> None:
    document: dict[str, Any] = {"title": "means", "columns": {"x": {}}, "rows": {"whole": {}, "half": {}, "none": {}}}
    document["mean_over"] = {"strategy.kind": ["fedavg", "scaffold"]}
    parts = {
        ("whole", "x, fedavg"): (0.5, 0.7, None),
        ("whole", "x, scaffold"): (0.75, 0.5, 0.5),
        ("half", "x, fedavg"): (0.1, 0.2, 0.3),
    }
    measured = numbers(parts, {"half × x, scaffold": "why"}, test_to_train=0.25)
    document["statements"] = {"whole > half @ x, fedavg": "of a part", "whole @ x > half @ x, fedavg": "of a mean"}
    of_means = Experiment.model_validate(document)
    found = comparison.means(of_means, measured)
    assert found.values == {("whole", "x"): (0.625, pytest.approx(0.6), None), **parts}
    of_part, of_mean = (one.difference for one in comparison.statement_results(of_means, found))
    assert of_part.differences == pytest.approx((0.4, 0.5))
    assert of_mean.differences == pytest.approx((0.525, 0.4))
    assert (found.test_to_train, found.absent) == (0.25, {"half × x, scaffold": "why"})


def test_the_agreement_with_the_published_order_is_kendall_s_over_columns() -> None:
    def agreement(published: Mapping[str, list[float]], values: Mapping[Cell, Values]) -> float | None:
        document = {"title": "t", "rows": {row: {} for row in published}, "columns": {"x": {}, "y": {}, "z": {}}}
        found = Experiment.model_validate({**document, "published": published})
        return comparison.rank_correlation(comparison.cell_results(found, numbers(values)))

    orders = {"x": (1.0, 3.0, 2.0), "y": (5.0, 6.0, 7.0), "z": (1.0, 1.0, 1.0)}  # τ 1/3, 1 and none
    values = {(row, column): (means[at],) for column, means in orders.items() for at, row in enumerate("abc")}
    published = {row: [at, at, at] for at, row in enumerate("abc")}
    assert agreement(published, values) == pytest.approx(2 / 3)
    assert agreement({"a": [1, 2, 3]}, values) is None
    assert agreement({"a": [1, 2, 3]}, {}) is None


def test_the_mean_is_over_columns_however_many_seeds_each_has() -> None:
    # Of two columns both are the first, or both the second, with probability 1/4 each: all of 95 %.
    assert comparison.bootstrap_mean({"a": [0.0, 0.0, 0.0, 0.0], "b": [1.0]}) == (0.5, 0.0, 1.0)


def test_the_bootstrap_has_the_variance_of_both_levels() -> None:
    """Drawing columns and seeds: Var = (between + within/seeds)/columns, with the plug-in variances.

    Given the draws of columns, the means of different slots are independent, each of variance between columns (divisor
    F) plus the mean over columns of the variance within (divisor n) over n.
    """
    generator = np.random.default_rng(5)
    values = generator.normal(generator.normal(size=(12, 1)), 2.0, size=(12, 4))
    found = comparison.bootstrap_mean({str(place): row.tolist() for place, row in enumerate(values)})
    mean, low, high = found
    deviation = np.sqrt((values.mean(axis=1).var() + (values.var(axis=1) / 4).mean()) / 12)
    assert mean == pytest.approx(values.mean())
    assert (high - low) / 2 == pytest.approx(stats.norm.ppf(0.975) * deviation, rel=0.08)


def test_groups_average_values_and_figures_over_their_columns() -> None:
    document = {"title": "t", "columns": {"x": {}, "y": {}, "z": {}}, "rows": {"a": {}}, "groups": {"both": ["x", "y"]}}
    values = {("a", "x"): (0.2, 0.4), ("a", "y"): (0.9,), ("a", "z"): (0.0,)}
    costs: dict[str, Values] = {"x": (3.0,), "y": (None,), "z": ()}
    cells = {cell: CellValues(values=own, figures={"cost": costs[cell[1]]}) for cell, own in values.items()}
    measured = Measured(cells)
    found = {one.figure: one for one in comparison.group_means(Experiment.model_validate(document), measured)}
    assert (found[""].mean, found[""].columns) == (pytest.approx(0.6), 2)
    assert (found["cost"].mean, found["cost"].columns) == (3.0, 1)


def test_a_share_has_wilson_s_interval() -> None:
    """Its ends are the shares p from which the count lies z deviations away."""
    quantile = stats.norm.ppf(0.975)
    for ones, count in ((0, 20), (3, 20), (10, 20), (20, 20), (1, 1)):
        found, *ends = comparison.share([1.0] * ones + [0.0] * (count - ones))
        assert found == ones / count
        for end in ends:
            assert abs(found - end) == pytest.approx(quantile * np.sqrt(end * (1 - end) / count), abs=1e-9)


# What is drawn of a study: panels of intervals, or curves over what is a quantity.


@pytest.mark.parametrize(("steps", "along"), [("columns", 3), ("rows", 2), (None, None)])
def test_curves_go_over_the_steps_and_what_is_no_quantity_is_in_panels(steps: str | None, along: int | None) -> None:
    rows, columns = ("one", "other"), ("round 1", "round 2", "round 10")
    document = {"title": "t", "rows": {row: {} for row in rows}, "columns": {column: {} for column in columns}}
    plain = Experiment.model_validate({**document, "published": {"one": {"round 2": 0.5}}})
    values = {(row, column): (0.1 * place, 0.2) for row in rows for place, column in enumerate(columns)}
    facts = {"title": "t", "rows": rows, "columns": columns, "unit": "accuracy", "steps": steps}
    result = comparison.ExperimentResult.model_construct(**facts, cells=comparison.cell_results(plain, numbers(values)))  # type: ignore[arg-type]
    chart: dict[str, Any] = comparison.experiment_picture(result).to_dict()
    if along is None:
        assert chart["facet"]["sort"] == [*rows]
        return
    assert len(chart["layer"][0]["encoding"]["x"]["sort"]) == along
    (points,) = chart["datasets"].values()
    assert len({point["curve"] for point in points}) == 6 / along
    assert [point["published"] for point in points].count(None) == 5


def test_a_page_has_the_counts_of_verdicts_each_shared_note_once_and_what_was_measured() -> None:
    claims = ("high > low @ x", "low > high @ x", "near > high @ x", "high > gone @ x")
    found = experiment(*claims).model_copy(update={"notes": ("shared",)})
    results = [comparison.result_of(found, numbers(VALUES), name, "", 1.0) for name in ("source/one", "source/two")]
    lines = sweep_console.page_lines(results)
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("|")]
    counts = {row[0]: row[2:] for row in rows if len(row) == 8}
    assert counts["[source/one](#sourceone)"] == ["1", "1 (1 not)", "1", "", "1", ""]
    assert counts["all"] == ["2", "2", "2", "", "2", ""]
    assert "\n".join(lines).count("shared") == 1
    assert [row[0] for row in rows if len(row) == 2] == ["", "---", "high", "low", "near"] * 2
    assert all(len(line) <= 120 for line in lines if not line.startswith("|"))
