"""Power of choice, FEEL, and the draw by weight of both: limits, closed forms, and what is refused."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest

from fedscout.engine.errors import StrategyError
from fedscout.engine.messages.calls import ReportRequest
from fedscout.strategies.selection.policies import (
    Feel,
    PowerOfChoice,
    ProbedPowerOfChoice,
    draw_by_weight,
    scheduling_probabilities,
)
from fedscout.strategies.selection.table import parse_selection
from tests.kits.refusals import refused
from tests.strategies.selection.reports import cohort, report, table


def test_as_many_candidates_as_train_is_the_draw_by_rows() -> None:
    """d = M = 1: p ∝ rows, whatever the losses."""
    policy, generator, num_draws = PowerOfChoice(1), np.random.default_rng(0), 5000
    policy.observe(report(1, [0, 1, 2], [9.0, 1.0, 5.0]))
    seen = Counter(int(policy.choose(2, table(3, rows=[1, 3, 6]), 1, generator)[0]) for _ in range(num_draws))
    for client, expected in enumerate([0.1, 0.3, 0.6]):
        assert abs(seen[client] / num_draws - expected) < 4 * np.sqrt(expected * (1 - expected) / num_draws)


def test_all_candidates_are_the_largest_losses() -> None:
    policy = PowerOfChoice(6)
    policy.observe(report(1, range(6), [3.0, 1.0, 6.0, 2.0, 5.0, 4.0]))
    for seed in range(20):
        assert policy.choose(2, table(6), 3, np.random.default_rng(seed)).tolist() == [2, 4, 5]


def test_who_never_trained_comes_first_in_the_order_of_the_draw() -> None:
    policy, first = PowerOfChoice(4), Counter[int]()
    policy.observe(report(1, [0, 3], [1e9, 1.0]))
    generator, num_draws = np.random.default_rng(0), 4000
    for _ in range(num_draws):
        chosen = policy.choose(2, table(4, rows=[1, 1, 3, 1]), 3, generator).tolist()
        assert (set(chosen[:2]), chosen[2]) == ({1, 2}, 0)
        first[chosen[0]] += 1
    assert abs(first[2] / num_draws - 3 / 4) < 4 * np.sqrt(3 / 16 / num_draws)


def test_the_latest_loss_is_that_of_training() -> None:
    policy = PowerOfChoice(4)
    policy.observe(report(1, [0, 1], [2.0, np.nan]))
    policy.observe(report(2, [0, 2], [3.0, 9.0], trained=[True, False]))
    assert policy.loss == {0: 3.0, 1: 0.0}


def test_probed_losses_are_those_of_everybody() -> None:
    policy = ProbedPowerOfChoice(3)
    policy.observe(report(1, [0, 1, 2], [2.0, 1.0, 3.0], trained=[True, False, False]))
    assert policy.loss == {0: 2.0, 1: 1.0, 2: 3.0}
    assert ProbedPowerOfChoice.observes == ReportRequest(training_losses=True, include_idle_clients=True)
    assert PowerOfChoice.observes == ReportRequest()


@pytest.mark.parametrize("candidates", [4, 21])
def test_candidates_lie_between_those_that_train_and_all(candidates: int) -> None:
    with refused(
        StrategyError, key="candidates of selection.kind=power_of_choice", names="selection.kind=power_of_choice"
    ):
        parse_selection({"kind": "power_of_choice", "candidates": candidates}, cohort(20, 5))


@pytest.mark.parametrize(("num_clients", "losses"), [(20, 10), (8, 8)])
def test_by_default_twice_as_many_are_candidates(num_clients: int, losses: int) -> None:
    """With all losses known, the d − M lowest never train: 5 of 20 for d = 10, 3 of 8 for d = 8."""
    policy = parse_selection("power_of_choice").build(cohort(num_clients, 5))
    policy.observe(report(1, range(num_clients), [float(client) for client in range(num_clients)]))
    generator = np.random.default_rng(0)
    chosen = {c for _ in range(2000) for c in np.asarray(policy.choose(2, table(num_clients), 5, generator)).tolist()}
    assert chosen == set(range(losses - 5, num_clients))


# -- FEEL's probabilities: their limits, and that no others are better -------------------------------------------------


IMPORTANCE = np.array([1.0, 2.0, 3.0, 4.0])
SECONDS = np.array([3.0, 1.0, 4.0, 2.0])


@pytest.mark.parametrize("seconds", [np.zeros(4), np.full(4, 7.0)])
def test_with_equal_durations_importance_decides(seconds: np.ndarray) -> None:
    np.testing.assert_allclose(scheduling_probabilities(IMPORTANCE, seconds, 0.3), IMPORTANCE / 10, rtol=1e-12)


def test_with_hardly_any_weight_the_quickest_is_chosen() -> None:
    assert scheduling_probabilities(IMPORTANCE, SECONDS, 1e-12)[1] > 0.999


@pytest.mark.parametrize("weight", [0.01, 0.3, 0.5, 1.0])
def test_the_derivatives_are_equal(weight: float) -> None:
    """At the minimum ρ a² / p² − (1 − ρ) T is λ for every client."""
    found = scheduling_probabilities(IMPORTANCE, SECONDS, weight)
    multipliers = weight * (IMPORTANCE / 10 / found) ** 2 - (1 - weight) * SECONDS / SECONDS.mean()
    assert found.sum() == pytest.approx(1, rel=1e-14)
    np.testing.assert_allclose(multipliers, multipliers[0], rtol=0, atol=1e-9)


def test_units_do_not_count() -> None:
    first = scheduling_probabilities(IMPORTANCE, SECONDS, 0.4)
    np.testing.assert_allclose(scheduling_probabilities(IMPORTANCE * 1e6, SECONDS * 1e-3, 0.4), first, rtol=1e-9)


def test_importance_is_rows_times_norm_and_the_mean_norm_of_others() -> None:
    """Norms 2, 4 and 0, so 2 for client 2: with rows 3, 1, 1, 9 the importance is 6, 4, 2 and 0, which counts as 0.3.

    A tenth of the mean of 6, 4, 2 and 0 is 0.3.
    """
    policy, generator, num_draws = Feel(0.5), np.random.default_rng(0), 4000
    policy.observe(report(1, [0, 1, 2, 3], update_norm=[2.0, 4.0, np.nan, 0.0]))
    seen = Counter(int(policy.choose(2, table(4, rows=[3, 1, 1, 9]), 1, generator)[0]) for _ in range(num_draws))
    for client, expected in enumerate(np.array([6, 4, 2, 0.3]) / 12.3):
        assert abs(seen[client] / num_draws - expected) < 4 * np.sqrt(expected * (1 - expected) / num_draws)


# -- Draws by weight without replacement, against the product of their conditional probabilities -----------------------


NUM_DRAWS = 20_000


def test_each_draw_is_by_the_weights_of_those_left() -> None:
    """P(i, j) = w_i / 6 · w_j / (6 − w_i) for weights 1, 2, 3."""
    weights, generator = np.array([1.0, 2.0, 3.0]), np.random.default_rng(0)
    seen = Counter(tuple(draw_by_weight(weights, 2, generator).tolist()) for _ in range(NUM_DRAWS))
    for first, second in permutations(range(3), 2):
        expected = weights[first] / 6 * weights[second] / (6 - weights[first])
        deviation = np.sqrt(expected * (1 - expected) / NUM_DRAWS)
        assert abs(seen[first, second] / NUM_DRAWS - expected) < 4 * deviation


@pytest.mark.parametrize("nothing", [0.0, -1.0, np.nan, np.inf])
def test_what_weighs_nothing_comes_last(nothing: float) -> None:
    generator = np.random.default_rng(0)
    assert all(draw_by_weight(np.array([nothing, 1.0, 2.0]), 3, generator)[-1] == 0 for _ in range(100))


def test_if_nothing_weighs_anything_all_weigh_the_same() -> None:
    zero, one = (draw_by_weight(np.full(9, weight), 9, np.random.default_rng(3)) for weight in (0.0, 1.0))
    assert zero.tolist() == one.tolist()


def test_the_scale_does_not_count() -> None:
    weights = np.array([1.0, 5.0, 2.0, 8.0])
    small, large = (draw_by_weight(weights * scale, 4, np.random.default_rng(1)) for scale in (2.0**-900, 2.0**900))
    assert small.tolist() == large.tolist()
