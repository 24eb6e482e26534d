"""Robust rules: RFA, centered clipping and Krum's choice, by closed forms and as Flower's."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy.optimize import minimize

from fedscout.engine.messages.calls import Cohort
from fedscout.strategies import FedAvgSpec
from fedscout.strategies.methods.robust import CenteredClippingSpec, RfaSpec, clipped_mean, geometric_median
from tests.strategies.rounds import models, played

Vector = npt.NDArray[np.float64]
NU = 1e-6


def total_distance(point: Vector, models: Vector, weights: Vector) -> float:
    return float(weights @ np.linalg.norm(models - point, axis=1))


@pytest.mark.parametrize("seed", range(5))
def test_it_converges_to_the_minimiser_of_the_weighted_distances(seed: int) -> None:
    """As SciPy finds it; at no client's model, the sum of distances is smooth and BFGS applies."""
    generator = np.random.default_rng(seed)
    models = generator.normal(size=(7, 4))
    weights = generator.dirichlet(np.full(7, 5.0))
    found = minimize(total_distance, weights @ models, (models, weights), method="BFGS", options={"gtol": 1e-10})
    assert np.linalg.norm(models - found.x, axis=1).min() > 0.1
    median = geometric_median(list(models), weights, np.zeros(4), num_iterations=400, smoothing=NU)
    np.testing.assert_allclose(median, found.x, atol=1e-6)


@pytest.mark.parametrize(
    ("weights", "median"),
    [((0.2, 0.2, 0.2, 0.2, 0.2), 1.0), ((0.1, 0.1, 0.1, 0.1, 0.6), 9.0), ((0.1, 0.45, 0.15, 0.2, 0.1), 0.0)],
)
def test_of_collinear_models_it_is_the_weighted_median(weights: tuple[float, ...], median: float) -> None:
    """Models at −3, 0, 1, 4 and 9 along a line.

    Up to and with the median the weights first sum to a half: to 0.6 at 1; to 1.0 at 9; to 0.55 at 0.
    """
    direction = np.array([0.6, -0.8])
    models = [np.array([5.0, 5.0]) + place * direction for place in (-3.0, 0.0, 1.0, 4.0, 9.0)]
    found = geometric_median(models, np.array(weights), np.array([7.0, 1.0]), num_iterations=2000, smoothing=NU)
    np.testing.assert_allclose(found, np.array([5.0, 5.0]) + median * direction, atol=1e-5)


def test_one_of_three_clients_at_infinity_leaves_a_bounded_result() -> None:
    """Two honest clients lie within D = 1 of x; the bound holds wherever the third is.

    A step goes from v by Σ β_k (y_k − v)/Σ β_k. As ‖β_k (y_k − v)‖ = p_k, that is at most 1/(β_1 + β_2), which is
    1.5 r where the honest clients are within r of v; then they are within 2.5 r. So after three steps v is within
    2.5³ D = 15.625 of them. As the third goes away, its direction alone stays: the results converge.
    """
    honest = [np.array([1.0, 0.0]), np.array([0.0, 0.8])]
    built = RfaSpec(sample_scaling="uniform").build(Cohort(3, 3, 0.1))
    results = []
    for distance in (1e3, 1e6, 1e12, 1e30, np.inf):
        far = np.array([distance, 0.0])
        ((_, model),) = played(built, np.zeros(2), lambda _, far=far: [*honest, far], 1)
        assert max(np.linalg.norm(model - one) for one in honest) <= 2.5**3
        results.append(model)
    np.testing.assert_allclose(results[0], results[3], atol=0.05)
    np.testing.assert_allclose(results[2], results[3], rtol=1e-6)


def test_an_infinite_reply_counts_as_one_that_is_not_there() -> None:
    """Its coordinates give no direction in which it could pull."""
    start = np.zeros(2)
    models = [np.array([1.0, 0.0]), np.array([0.0, 3.0])]
    with np.errstate(invalid="ignore"):
        with_it = geometric_median([*models, np.array([np.inf, 0.0])], np.full(3, 1 / 3), start, 3, NU)
    np.testing.assert_allclose(with_it, geometric_median(models, np.full(2, 0.5), start, 3, NU), rtol=1e-14)


def test_a_client_weighs_by_its_rows_or_as_the_others() -> None:
    """Of two clients, the one with more than half of the weight is the weighted median."""
    cohort, models = Cohort(2, 2, 0.1), [np.array([1.0, 2.0]), np.array([3.0, 1.0])]
    by_rows = RfaSpec(num_iterations=1000).build(cohort)
    ((_, model),) = played(by_rows, np.array([5.0, 5.0]), lambda _: models, 1, counts=[30, 10])
    np.testing.assert_allclose(model, models[0], atol=1e-5)
    equal = RfaSpec(sample_scaling="uniform", num_iterations=1000).build(cohort)
    ((_, unweighted), (_, weighted)) = (
        played(equal, np.array([5.0, 5.0]), lambda _: models, 1, counts=counts)[0] for counts in ([10, 10], [30, 10])
    )
    np.testing.assert_array_equal(unweighted, weighted)


# -- Centered clipping is FedAvg without a bound, and with one no client goes beyond it --------------------------------


def test_without_a_bound_it_is_fedavg_with_equal_weights() -> None:
    """Whatever was kept from the rounds before: v + mean(Δ_i − v) = mean Δ_i."""
    cohort = Cohort(6, 6, 0.1)
    ours = models(CenteredClippingSpec(clipping_radius=1e9).build(cohort), 6, num_rounds=4)
    theirs = models(FedAvgSpec(sample_scaling="uniform").build(cohort), 6, num_rounds=4)
    for model, fedavg in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(model, fedavg, rtol=1e-5, atol=1e-6)


def test_the_last_change_is_kept() -> None:
    """One client goes three further each round, τ = 1: v = 1, 2, 3, 3 and x = 1, 3, 6, 9, by hand."""
    built = CenteredClippingSpec(clipping_radius=1.0).build(Cohort(1, 1, 0.1))
    rounds = played(built, np.zeros(1), lambda sent: [sent + 3], num_rounds=4)
    np.testing.assert_allclose([model for _, model in rounds], [[1], [3], [6], [9]], rtol=1e-6)


@pytest.mark.parametrize("radius", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("strength", [1e-3, 1.0, 1e3, 1e30, np.inf])
def test_an_attacker_moves_the_model_by_at_most_its_share_of_the_bound(radius: float, strength: float) -> None:
    """Against the same round with a client in its place that asks for the last change, which adds nothing."""
    generator = np.random.default_rng(3)
    honest = list(generator.normal(size=(6, 5)))
    center = generator.normal(size=5)
    attack = strength * np.array([1.0, -1.0, 1.0, 1.0, -1.0])
    with np.errstate(invalid="ignore"):
        attacked = clipped_mean([*honest, attack], center, radius)
    moved = float(np.linalg.norm(attacked - clipped_mean([*honest, center], center, radius)))
    assert moved <= radius / 7 * (1 + 1e-9)
    if 1e3 <= strength < np.inf:
        assert moved == pytest.approx(radius / 7)


def test_within_the_bound_nothing_is_clipped() -> None:
    """Whether a client's model is the center, inside, or at τ."""
    center = np.array([1.0, 2.0])
    near = [center, center + np.array([0.3, 0.4]), center - np.array([0.6, 0.8])]
    np.testing.assert_allclose(clipped_mean(near, center, 1.0), [-0.1, -0.4 / 3], rtol=1e-12)


def test_steps_by_hand() -> None:
    """From 0 models at distances 3 and 4 have β = ½/3 and ½/4: v = (½, ½)/(7/24); a second step starts from there."""
    models, weights = [np.array([3.0, 0.0]), np.array([0.0, 4.0])], np.array([0.5, 0.5])
    first = geometric_median(models, weights, np.zeros(2), num_iterations=1, smoothing=NU)
    np.testing.assert_allclose(first, [12 / 7, 12 / 7], rtol=1e-12)
    second = geometric_median(models, weights, first, num_iterations=1, smoothing=NU)
    np.testing.assert_array_equal(second, geometric_median(models, weights, np.zeros(2), 2, NU))
