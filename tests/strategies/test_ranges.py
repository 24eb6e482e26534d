"""Laws of the ranges."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fedscout.engine.errors import StrategyError
from fedscout.strategies import ChoiceRange, IntegerRange, RealRange
from tests.kits.refusals import refused

REALS = [
    RealRange(0.0, 0.99),
    RealRange(0.1, 1.5),
    RealRange(-2.0, 3.0),
    RealRange(0.9, 0.999),
    RealRange(1e-9, 1e-1, log=True),
    RealRange(1e-4, 1.0, log=True),
    RealRange(0.3, 0.3),
]


@pytest.mark.parametrize("real", REALS)
def test_draws_lie_inside(real: RealRange) -> None:
    generator = np.random.default_rng(0)
    assert all(real.contains(real.draw(generator)) for _ in range(500))


@pytest.mark.parametrize("real", REALS)
def test_the_ends_are_reached_and_never_passed(real: RealRange) -> None:
    assert (real.from_unit(0.0), real.from_unit(1.0)) == (real.low, real.high)
    for beyond in (0.5, 1e6):
        assert (real.from_unit(-beyond), real.from_unit(1 + beyond)) == (real.low, real.high)
    assert (real.to_unit(real.low - 1), real.to_unit(real.high + 1)) == (0.0, float(real.low < real.high))


def test_linear_values_have_four_decimals() -> None:
    generator = np.random.default_rng(0)
    values = [RealRange(0.0, 0.99).draw(generator) for _ in range(100)]
    assert all(value == round(value, 4) for value in values)
    assert RealRange(0.0, 1.0).from_unit(0.123456) == 0.1235
    assert RealRange(-2.0, 3.0).from_unit(0.6469) == 1.2345


def test_log_values_have_four_significant_digits() -> None:
    generator = np.random.default_rng(0)
    values = [RealRange(1e-9, 1e-1, log=True).draw(generator) for _ in range(100)]
    assert all(value == float(f"{value:.3e}") for value in values)
    assert RealRange(1e-4, 1.0, log=True).from_unit(0.5) == 0.01  # the geometric middle
    assert RealRange(1.0, 10.0, log=True).from_unit(0.1234) == 1.329  # 1.32861…


@pytest.mark.parametrize("found", [*REALS[:-1], IntegerRange(-3, 40), IntegerRange(1, 1000, log=True)])
def test_a_value_has_its_place(found: RealRange | IntegerRange) -> None:
    """Linear or logarithmic, and back: a place and the value there belong together."""
    places = np.linspace(0, 1, 9)
    if found.log:
        expected = np.log(found.low) + places * np.log(found.high / found.low)
        values = np.exp(expected)
    else:
        values = found.low + places * (found.high - found.low)
    assert [found.to_unit(value) for value in values] == pytest.approx(places, abs=1e-12)
    for place, value in zip(places, values, strict=True):
        assert found.from_unit(place) == pytest.approx(value, rel=1e-3, abs=0.5 if isinstance(found.low, int) else 1e-4)


def test_rounding_is_followed_by_clamping() -> None:
    third = RealRange(1 / 3, 2 / 3)
    assert third.from_unit(0.0) == 1 / 3  # 0.3333 would lie outside
    assert third.from_unit(1.0) == 2 / 3  # so would 0.6667


def test_a_narrow_linear_range_is_not_rounded_to_its_end() -> None:
    narrow = RealRange(1e-6, 1e-5)
    assert len({narrow.from_unit(place) for place in np.linspace(0, 1, 2001)}) >= 100


def test_log_draws_are_uniform_in_log_space() -> None:
    """Half of the draws lie below the geometric middle; 4 standard deviations of 4,000 coin tosses are 0.032."""
    eta = RealRange(1e-3, 1.0, log=True)
    generator = np.random.default_rng(1)
    below = np.mean([eta.draw(generator) < math.sqrt(1e-3) for _ in range(4000)])
    assert abs(below - 0.5) < 0.032


def test_integers_are_all_drawn_and_only_those() -> None:
    generator = np.random.default_rng(0)
    assert {IntegerRange(2, 5).draw(generator) for _ in range(200)} == {2, 3, 4, 5}
    assert {IntegerRange(1, 9, log=True).draw(generator) for _ in range(500)} == set(range(1, 10))
    assert IntegerRange(1, 9).clamp(12) == 9
    assert IntegerRange(1, 9, log=True).from_unit(1e6) == 9
    assert IntegerRange(2, 5).num_values == 4


def test_integers_are_drawn_alike_or_by_their_share_of_the_logarithms() -> None:
    """Four standard deviations of the number of 4,000 draws; a logarithmic 1 takes what is nearer to it than to 2."""
    generator = np.random.default_rng(2)
    for found, share in ((IntegerRange(2, 5), 0.25), (IntegerRange(1, 9, log=True), math.log(1.5) / math.log(9))):
        lowest = sum(found.draw(generator) == found.low for _ in range(4000))
        assert abs(lowest - 4000 * share) < 4 * math.sqrt(4000 * share * (1 - share))


def test_ranges_for_people_and_programs() -> None:
    assert [RealRange(0.0, 0.5).text(), RealRange(0.01, 1.0, log=True).text()] == ["[0, 0.5]", "[0.01, 1] (log)"]
    assert [IntegerRange(0, 7).text(), IntegerRange(1, 7, log=True).text()] == ["0 … 7", "1 … 7 (log)"]
    for found, kind in ((RealRange(0.5, 1.0), "number"), (IntegerRange(1, 7), "integer")):
        assert found.json_schema() == {"type": kind, "minimum": found.low, "maximum": found.high}
        assert replace(found, log=True).json_schema() == {**found.json_schema(), "x-scale": "log"}


def test_choices_are_told_apart_by_type() -> None:
    choices = ChoiceRange((1, "a"))
    assert choices.contains(1)
    assert not choices.contains(True)
    assert not choices.contains(1.0)
    generator = np.random.default_rng(0)
    assert {choices.draw(generator) for _ in range(50)} == {1, "a"}


@pytest.mark.parametrize(
    ("make", "key", "given"),
    [
        (lambda: RealRange(1.0, 0.0), "a range", "[1.0, 0.0]"),
        (lambda: RealRange(0.0, 1.0, log=True), "a log-scaled range", "0.0"),
        (lambda: RealRange(0.0, math.inf), "a range", "[0.0, inf]"),
        (lambda: IntegerRange(3, 2), "a range", "[3, 2]"),
        (lambda: ChoiceRange(()), "a range of choices", "none"),
        (lambda: ChoiceRange((1, 1)), "the choices of a range", "[1, 1]"),
    ],
)
def test_impossible_ranges_are_refused(make, key, given) -> None:
    with refused(StrategyError, key=key, given=given):
        make()
