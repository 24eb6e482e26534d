"""Tables and pictures for notebooks: escaped, well formed, and drawn where the numbers are."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from fedscout.engine.text import CURVE_HEIGHT, INTERVAL_WIDTH, Markup, curve, interval, paragraph, shaded_cell, table

HOSTILE = "<script>alert('x')</script>\"&"


def points(picture: Markup) -> list[tuple[float, float]]:
    (line,) = ElementTree.fromstring(picture).iter("polyline")
    return [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]  # type: ignore[misc]


def test_nothing_of_others_becomes_markup() -> None:
    written = [
        paragraph(HOSTILE),
        table((HOSTILE,), [(HOSTILE,), (shaded_cell(0.5, HOSTILE),)]),
        interval(0, 1, 2, HOSTILE),
    ]
    for part in written:
        tree = ElementTree.fromstring(part)
        assert "script" not in {element.tag for element in tree.iter()}
        texts = [*tree.itertext(), *(element.get("title", "") for element in tree.iter())]
        assert HOSTILE in texts


def test_a_curve_rises_where_its_values_do() -> None:
    heights = [height for _, height in points(curve([0.1, 0.5, 0.3]))]
    assert heights[1] < heights[2] < heights[0]  # down is large in a picture
    assert heights[1] == pytest.approx(2)
    assert heights[0] == pytest.approx(CURVE_HEIGHT - 2)


@pytest.mark.parametrize("values", [[], [None], [float("nan"), None]])
def test_no_values_make_no_curve(values: list[float | None]) -> None:
    assert curve(values) == ""


def test_gaps_of_a_curve_are_passed_over() -> None:
    assert [across for across, _ in points(curve([1.0, None, 3.0]))] == [
        across for across, _ in points(curve([1.0, 3.0]))
    ]


@pytest.mark.parametrize(("low", "high", "zero_inside"), [(-1, 2, True), (1, 2, False), (-2, -1, False)])
def test_an_interval_shows_whether_it_holds_zero(low: float, high: float, zero_inside: bool) -> None:
    zero, line = ElementTree.fromstring(interval(low, (low + high) / 2, high, "")).iter("line")
    left, right, at_zero = (float(where) for where in (line.get("x1"), line.get("x2"), zero.get("x1")))  # type: ignore[arg-type]
    assert 0 < left < right < INTERVAL_WIDTH
    assert (left < at_zero < right) == zero_inside
