"""RFA goes to the geometric median, and one client can't take it away."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from scipy.optimize import minimize

from fedscout.engine.messages.calls import Cohort
from fedscout.strategies import FedAvgSpec, RfaSpec
from fedscout.strategies.methods.robust import geometric_median
from tests.strategies.rounds import final_model, played

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


def test_every_step_comes_nearer() -> None:
    """Weiszfeld's algorithm is a descent method."""
    generator = np.random.default_rng(1)
    models, weights = generator.normal(size=(9, 3)), generator.dirichlet(np.ones(9))
    start = np.full(3, 4.0)
    distances = [total_distance(start, models, weights)] + [
        total_distance(geometric_median(list(models), weights, start, steps, NU), models, weights)
        for steps in range(1, 8)
    ]
    assert all(later < earlier for earlier, later in pairwise(distances))


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


def test_from_the_mean_three_steps_would_not_do() -> None:
    """Two clients at 0, one at R: v = R/3, R/5, R/9, R/17, as far away as one likes.

    From cR the weights are 1/c twice and 1/(1 − c) once, so the next v is R (1/(1 − c)) / (2/c + 1/(1 − c)), which is
    R c/(2 − c).
    """
    far = 1e6
    models = [np.array([0.0]), np.array([0.0]), np.array([far])]
    found = geometric_median(models, np.full(3, 1 / 3), np.array([far / 3]), 3, NU)
    np.testing.assert_allclose(found, far / 17, rtol=1e-9)


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


def test_of_one_client_it_is_fedavg() -> None:
    cohort = Cohort(4, 1, 0.1)
    assert RfaSpec().digest(cohort) == FedAvgSpec().digest(cohort)
    np.testing.assert_allclose(final_model(RfaSpec(), cohort), final_model(FedAvgSpec(), cohort), rtol=1e-6)
    assert RfaSpec().digest(Cohort(4, 2, 0.1)) != FedAvgSpec().digest(Cohort(4, 2, 0.1))
