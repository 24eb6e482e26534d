"""What is seen of a statement, by hand: beyond noise, the other way round, neither, or not measured."""

from __future__ import annotations

import math
from dataclasses import replace
from math import inf
from statistics import fmean, stdev

import pytest
from scipy import stats

from fedscout.experiments.reproduction.published_study import Measured, Number, Ordering, PublishedStudy
from fedscout.experiments.reproduction.reproduced import Verdict, cells_of, orderings_of

HIGH, LOW, NEAR = (0.91, 0.92, 0.90), (0.71, 0.70, 0.72), (0.80, 0.99, 0.93)


def study(*orderings: Ordering) -> PublishedStudy:
    return PublishedStudy(
        "table1", "two rows", ("high", "low", "near", "gone"), ("x",), {}, {("high", "x"): Number(0.9, 0.1)}, orderings
    )


VALUES = {("high", "x"): HIGH, ("low", "x"): LOW, ("near", "x"): NEAR}


@pytest.mark.parametrize(
    ("first", "second", "relation", "verdict"),
    [
        ("high", "low", "above", "seen"),
        ("low", "high", "above", "contradicted"),
        ("near", "high", "above", "within noise"),
        ("near", "high", "level", "not contradicted"),
        ("high", "low", "level", "contradicted"),
        ("high", "gone", "above", "not measured"),
        ("gone", "high", "level", "not measured"),
    ],
)
def test_verdicts(first: str, second: str, relation: str, verdict: Verdict) -> None:
    ordering = Ordering((first, "x"), (second, "x"), "said", relation)  # type: ignore[arg-type]
    (found,) = orderings_of(study(ordering), Measured(VALUES))
    assert found.verdict == verdict


def test_a_cell_has_the_interval_of_nadeau_and_bengio() -> None:
    measured = Measured(VALUES, test_to_train=0.25)
    cell = next(one for one in cells_of(study(), measured) if one.row == "high")
    half = stats.t.ppf(0.975, 2) * stdev(HIGH) * math.sqrt(1 / 3 + 0.25)
    assert (cell.low, cell.mean, cell.high) == pytest.approx((fmean(HIGH) - half, fmean(HIGH), fmean(HIGH) + half))
    assert (cell.published, cell.deviation) == (0.9, 0.1)


def test_only_seeds_that_both_have_are_compared() -> None:
    some = {("high", "x"): (0.9, None, 0.8), ("low", "x"): (0.5, 0.1, None)}
    (found,) = orderings_of(study(Ordering(("high", "x"), ("low", "x"), "said")), Measured(some))
    assert found.difference is not None
    assert found.difference.differences == pytest.approx((0.4,))
    assert found.verdict == "not measured"  # a single pair says nothing of noise


def test_a_cell_that_was_not_measured_is_empty() -> None:
    gone = next(one for one in cells_of(study(), Measured(VALUES)) if one.row == "gone")
    assert (gone.values, gone.mean, gone.low) == ((), None, None)


@pytest.mark.parametrize(("unit", "most"), [("accuracy", 1.0), ("reward over 500", 1.0), ("seconds, or rounds", inf)])
@pytest.mark.parametrize("values", [(0.99, 0.99), (1.0, 1.0), (0.2, 1.0, 0.9), (0.0, 0.0, 0.0)])
def test_an_interval_has_a_width_and_holds_no_number_that_there_cannot_be(
    unit: str, most: float, values: tuple[float, ...]
) -> None:
    ordering = Ordering(("high", "x"), ("low", "x"), "said")
    asked = replace(study(ordering), unit=unit)
    measured = Measured({("high", "x"): values, ("low", "x"): (0.0,) * len(values)}, 0.25, resolution=0.01)
    cell, (found,) = cells_of(asked, measured)[0], orderings_of(asked, measured)
    assert cell.low is not None
    assert cell.high is not None
    assert 0 <= cell.low < cell.high <= most
    assert found.difference is not None
    assert found.difference.low is not None
    assert found.difference.high is not None
    assert -most <= found.difference.low < found.difference.high <= most
