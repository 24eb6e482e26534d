"""FEEL's probabilities: their limits, and that no others are better."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from fedscout.strategies.selection.policies import Feel, scheduling_probabilities
from tests.strategies.selection.reports import report, table

IMPORTANCE = np.array([1.0, 2.0, 3.0, 4.0])
SECONDS = np.array([3.0, 1.0, 4.0, 2.0])


@pytest.mark.parametrize("seconds", [np.zeros(4), np.full(4, 7.0)])
def test_with_equal_durations_importance_decides(seconds: np.ndarray) -> None:
    np.testing.assert_allclose(scheduling_probabilities(IMPORTANCE, seconds, 0.3), IMPORTANCE / 10, rtol=1e-12)


def test_with_all_the_weight_importance_decides() -> None:
    np.testing.assert_allclose(scheduling_probabilities(IMPORTANCE, SECONDS, 1.0), IMPORTANCE / 10, rtol=1e-12)


def test_with_hardly_any_weight_the_quickest_is_chosen() -> None:
    assert scheduling_probabilities(IMPORTANCE, SECONDS, 1e-12)[1] > 0.999


@pytest.mark.parametrize("weight", [0.01, 0.3, 0.5, 0.99])
def test_the_derivatives_are_equal(weight: float) -> None:
    """At the minimum ρ a² / p² − (1 − ρ) T is λ for every client."""
    found = scheduling_probabilities(IMPORTANCE, SECONDS, weight)
    multipliers = weight * (IMPORTANCE / 10 / found) ** 2 - (1 - weight) * SECONDS / SECONDS.mean()
    assert found.sum() == pytest.approx(1, rel=1e-14)
    np.testing.assert_allclose(multipliers, multipliers[0], rtol=0, atol=1e-9)


def test_no_other_probabilities_are_better() -> None:
    def cost(probabilities: np.ndarray) -> np.ndarray:
        spread = ((IMPORTANCE / 10) ** 2 / probabilities).sum(-1)
        return np.asarray(0.4 * spread + 0.6 * (probabilities * SECONDS / SECONDS.mean()).sum(-1))

    others = np.random.default_rng(0).dirichlet(np.ones(4), 5000)
    assert (cost(others) >= cost(scheduling_probabilities(IMPORTANCE, SECONDS, 0.4))).all()


def test_units_do_not_count() -> None:
    first = scheduling_probabilities(IMPORTANCE, SECONDS, 0.4)
    np.testing.assert_allclose(scheduling_probabilities(IMPORTANCE * 1e6, SECONDS * 1e-3, 0.4), first, rtol=1e-9)


def test_importance_is_rows_times_norm_and_the_mean_norm_of_others() -> None:
    """Norms 2 and 6, so 4 for client 2: with rows 3, 1, 2 the importance is 6, 6, 8."""
    policy, generator, num_draws = Feel(0.5), np.random.default_rng(0), 2000
    policy.observe(report(1, [0, 1, 2], update_norm=[2.0, 6.0, np.nan]))
    seen = Counter(int(policy.choose(2, table(3, rows=[3, 1, 2]), 1, generator)[0]) for _ in range(num_draws))
    for client, expected in enumerate([0.3, 0.3, 0.4]):
        assert abs(seen[client] / num_draws - expected) < 4 * np.sqrt(expected * (1 - expected) / num_draws)


def test_everybody_is_chosen_again_and_again() -> None:
    """One client's update is as good as nothing, another is slow: over halves of 1200 rounds both are chosen."""
    policy, generator = Feel(0.5), np.random.default_rng(0)
    reachable = table(10, seconds=[1.0] * 9 + [50.0])
    for _ in range(2):
        seen = Counter[int]()
        for server_round in range(1, 601):
            chosen = sorted(policy.choose(server_round, reachable, 2, generator).tolist())
            policy.observe(report(server_round, chosen, update_norm=[1e-9 if each == 0 else 1.0 for each in chosen]))
            seen.update(chosen)
        assert set(seen) == set(range(10))
        assert max(seen[0], seen[9]) < min(seen[client] for client in range(1, 9))
