"""How unlike clients are in speed."""

from __future__ import annotations

import pytest

from fedscout.detectors.statistics import speed_skew
from tests.search.recommenders.reports import report_of


def test_the_slowest_against_the_median() -> None:
    found = speed_skew({0: 10.0, 1: 2.0, 2: 4.0, 3: 30.0, 4: 3.0})
    assert (found.slowest, found.slowest_seconds, found.median_seconds, found.ratio) == (3, 30.0, 4.0, 7.5)
    assert [value for value in ("client 3", "30 simulated seconds", "7.5 times") if value not in found.sentence] == []


def test_clients_that_take_no_time() -> None:
    assert speed_skew({}) is None
    assert speed_skew({0: 0.0, 1: 0.0}) is None
    found = speed_skew({0: 0.0, 1: 0.0, 2: 5.0})
    assert found.ratio is None
    assert "client 2 takes 5 simulated seconds" in found.sentence


def test_of_equals_the_first() -> None:
    found = speed_skew({4: 1.0, 2: 1.0})
    assert (found.slowest, found.ratio) == (2, 1.0)


@pytest.mark.parametrize(("slowest", "is_told"), [(1.0, False), (1.04, False), (1.06, True), (7.5, True)], ids=str)
def test_that_all_are_about_as_quick_is_not_worth_a_line(slowest: float, is_told: bool) -> None:
    found = speed_skew({0: 10.0, 1: 10.0, 2: 10.0 * slowest})
    assert found.is_notable == is_told
    report = report_of().model_copy(update={"speed_skew": found})
    assert (found.sentence in report.beside) == is_told
    assert report.speed_skew == found
