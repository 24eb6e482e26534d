"""Regrets by their formulas, and the intervals of their means."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedscout.experiments.benchmarks.choice.choice_regret import Level, TunedGain, bootstrap_mean

BEYOND_TUNED = TunedGain.of((0.93, 0.87), (0.82, 0.78))
"""0.11 and 0.09: mean 0.1, deviation 0.01 · √2, standard error 0.01."""
LEVEL = Level(oracle=0.9, worst=0.4, fedavg=(0.68, 0.72), beyond_tuned=BEYOND_TUNED, resolution=0.01)


@pytest.mark.parametrize(
    ("accuracy", "of_range", "of_gain"),
    [(0.9, 0.0, 0.0), (0.7, 0.4, 1.0), (0.4, 1.0, 2.5), (0.95, -0.1, -0.25)],
)
def test_regrets(accuracy: float, of_range: float, of_gain: float) -> None:
    assert LEVEL.regret_worst(accuracy) == pytest.approx(of_range)
    assert LEVEL.regret_fedavg(accuracy) == pytest.approx(of_gain)


@pytest.mark.parametrize(("accuracy", "lost"), [(0.9, 0.0), (0.8, 1.0), (0.7, 2.0), (0.95, -0.5)])
def test_the_regret_of_what_a_step_size_does_not_give(accuracy: float, lost: float) -> None:
    assert (BEYOND_TUNED.mean, BEYOND_TUNED.standard_error) == (pytest.approx(0.1), pytest.approx(0.01))
    assert LEVEL.regret_tuned(accuracy) == pytest.approx(lost)


@pytest.mark.parametrize(
    ("mean", "standard_error", "is_to_win"),
    [(0.01, 0.0, True), (0.0099, 0.0, False), (0.05, 0.0249, True), (0.05, 0.025, False), (-0.05, 0.0, False)],
)
def test_there_is_to_win_from_a_point_on_and_beyond_two_standard_errors(
    mean: float, standard_error: float, is_to_win: bool
) -> None:
    gain = TunedGain(mean=mean, standard_error=standard_error)
    assert gain.is_to_win == is_to_win
    assert gain.regret(0.5 * mean) == (pytest.approx(0.5) if is_to_win else None)


def test_where_there_is_hardly_anything_to_gain_there_is_no_regret_of_the_gain() -> None:
    level = LEVEL.model_copy(update={"fedavg": (0.89, 0.88)})
    assert level.gain == pytest.approx(0.015)
    assert level.regret_fedavg(0.5) is None
    assert level.regret_worst(0.5) == pytest.approx(0.8)


def test_where_all_is_equal_there_is_no_regret() -> None:
    assert LEVEL.model_copy(update={"worst": 0.9}).regret_worst(0.9) is None


def test_a_pick_is_paired_with_fedavg_by_seed() -> None:
    assert LEVEL.versus_fedavg([0.78, 0.82]).differences == pytest.approx((0.1, 0.1))
    # Equal differences of ten points, but only two: s = 0.01/√6, t(0.975; 1) = 12.7062, so ± 0.0367.
    assert LEVEL.versus_fedavg([0.78, 0.82]).low == pytest.approx(0.1 - 12.7062 * 0.01 / np.sqrt(12), abs=1e-6)
    # With a fifth of the rows tested √(1/2 + 1/4) takes the place of √(1/2).
    shared = LEVEL.model_copy(update={"test_to_train": 0.25}).versus_fedavg([0.78, 0.82])
    assert shared.low == pytest.approx(0.1 - 12.7062 * 0.01 / np.sqrt(8), abs=1e-6)


def test_the_mean_is_over_federations_however_many_seeds_each_has() -> None:
    found = bootstrap_mean({"a": [0.0, 0.0, 0.0, 0.0], "b": [1.0], "c": []})
    assert found is not None
    assert (found.mean, found.federations) == (0.5, 2)
    # Of two federations both are the first, or both the second, with probability 1/4 each: all of 95 %.
    assert (found.low, found.high) == (0.0, 1.0)


def test_without_any_value_there_is_no_mean() -> None:
    assert bootstrap_mean({"a": []}) is None


def test_the_bootstrap_has_the_variance_of_both_levels() -> None:
    """Drawing federations and seeds: Var = (between + within/seeds)/federations, with the plug-in variances.

    Given the draws of federations, the means of different slots are independent, each of variance between federations
    (divisor F) plus the mean over federations of the variance within (divisor n) over n.
    """
    generator = np.random.default_rng(5)
    values = generator.normal(generator.normal(size=(12, 1)), 2.0, size=(12, 4))
    found = bootstrap_mean({str(place): row.tolist() for place, row in enumerate(values)})
    assert found is not None
    deviation = np.sqrt((values.mean(axis=1).var() + (values.var(axis=1) / 4).mean()) / 12)
    assert found.mean == pytest.approx(values.mean())
    assert (found.high - found.low) / 2 == pytest.approx(stats.norm.ppf(0.975) * deviation, rel=0.08)
