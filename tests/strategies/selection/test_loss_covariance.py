"""FedCor's Gaussian process against dense float64 algebra and scikit-learn."""

from __future__ import annotations

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import DotProduct

from fedscout.strategies.selection.fedcor import NOISE, fitted, greedy_choice, leave_one_out, principal, without_means

RNG = np.random.default_rng(0)
EMBEDDINGS = 0.1 * RNG.normal(size=(3, 8))
CHANGES = 0.1 * RNG.normal(size=(5, 8))
WEIGHTS = 0.9 ** np.arange(5)[::-1]
COVARIANCE = EMBEDDINGS.T @ EMBEDDINGS + NOISE**2 * np.eye(8)


def predicted(changes: np.ndarray, left_out: int) -> tuple[float, float]:
    """Return mean and variance of one client's change given the others', by scikit-learn."""
    others = [client for client in range(8) if client != left_out]
    kernel = DotProduct(sigma_0=0, sigma_0_bounds="fixed")
    process = GaussianProcessRegressor(kernel, alpha=NOISE**2, optimizer=None)
    process.fit(EMBEDDINGS[:, others].T, changes[others])
    mean, deviation = process.predict(EMBEDDINGS[:, [left_out]].T, return_std=True)
    return float(mean[0]), float(deviation[0]) ** 2 + NOISE**2


def test_the_likelihood_is_that_of_each_client_left_out() -> None:
    expected = 0.0
    for weight, changes in zip(WEIGHTS, CHANGES, strict=True):
        for client in range(8):
            mean, variance = predicted(changes, client)
            expected -= weight * (np.log(variance) + (changes[client] - mean) ** 2 / variance) / 2
    value, _ = leave_one_out(EMBEDDINGS, CHANGES, WEIGHTS)
    np.testing.assert_allclose(value, expected, rtol=1e-7)


def test_its_gradient_is_its_difference() -> None:
    _, gradient = leave_one_out(EMBEDDINGS, CHANGES, WEIGHTS)
    differences = np.empty_like(EMBEDDINGS)
    for place in np.ndindex(*EMBEDDINGS.shape):
        way = np.zeros_like(EMBEDDINGS)
        way[place] = 1e-6
        up, down = (leave_one_out(EMBEDDINGS + sign * way, CHANGES, WEIGHTS)[0] for sign in (1, -1))
        differences[place] = (up - down) / 2e-6
    np.testing.assert_allclose(gradient, differences, rtol=1e-5, atol=1e-5 * np.abs(gradient).max())


def test_the_greedy_choice_is_that_of_dense_conditioning() -> None:
    shares = RNG.random(8)
    shares /= shares.sum()
    annealing = RNG.uniform(0.5, 1, 8)
    covariance, expected = COVARIANCE.copy(), []
    for _ in range(6):
        variances = np.diag(covariance)
        free = [client for client in range(8) if client not in expected]
        scores = {
            client: annealing[client] * shares @ covariance[:, client] / np.sqrt(variances[client]) for client in free
        }
        pick = max(scores, key=scores.__getitem__)
        expected.append(pick)
        column = covariance[:, pick]
        covariance = covariance - np.outer(column, column) / column[pick]
    assert greedy_choice(EMBEDDINGS, shares, annealing, 6).tolist() == expected


def test_conditioning_on_all_is_every_client_once() -> None:
    assert sorted(greedy_choice(EMBEDDINGS, np.full(8, 1 / 8), np.ones(8), 8)) == [*range(8)]


def test_a_fit_finds_who_changes_together() -> None:
    generator = np.random.default_rng(4)
    groups = np.repeat([0, 1, 2], 4)
    changes = 0.3 * generator.normal(size=(25, 3))[:, groups] + 0.01 * generator.normal(size=(25, 12))
    weights = np.ones(25)
    deviations = without_means(changes, weights)
    found, start = fitted(deviations, weights, 5, 100), principal(deviations, weights, 5)
    assert leave_one_out(found, deviations, weights)[0] > leave_one_out(start, deviations, weights)[0]
    lengths = np.linalg.norm(found, axis=0)
    correlations = found.T @ found / np.outer(lengths, lengths)
    together = groups[:, None] == groups
    assert correlations[together].min() > np.abs(correlations[~together]).max()
    chosen = greedy_choice(found, np.full(12, 1 / 12), np.ones(12), 3)
    assert {*groups[chosen]} == {0, 1, 2}  # one of each, since a group's second tells next to nothing


def test_principal_embeddings_give_back_the_covariance_of_few_changes() -> None:
    covariance = (CHANGES.T * WEIGHTS) @ CHANGES / WEIGHTS.sum()
    found = principal(CHANGES, WEIGHTS, 7)  # five changes have no more than five directions
    np.testing.assert_allclose(found.T @ found, covariance, atol=1e-15)


def test_means_are_taken_off_with_their_weights_and_silence_is_the_mean() -> None:
    changes = np.array([[1.0, np.nan, np.nan], [4.0, 2.0, np.nan]])
    found = without_means(changes, np.array([0.5, 1.0]))
    np.testing.assert_allclose(found, [[-2, 0, 0], [1, 0, 0]])
