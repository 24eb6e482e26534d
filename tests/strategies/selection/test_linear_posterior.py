"""The linear bandits against least squares written out in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedscout.strategies.selection.bandits import DiscountedRegression, LinearPosterior

RNG = np.random.default_rng(0)
ROUNDS = [(RNG.normal(size=(5, 3)), RNG.normal(size=5)) for _ in range(6)]
CONTEXTS, REWARDS = (np.concatenate(parts) for parts in zip(*ROUNDS, strict=True))


def told(bandit: LinearPosterior | DiscountedRegression) -> None:
    for contexts, rewards in ROUNDS:
        bandit.update(contexts, rewards)


def test_the_mean_is_ridge_regression_on_all_that_was_told() -> None:
    bandit = LinearPosterior(3, num_clients=20, regularisation=0.7)
    told(bandit)
    precision = 0.7 * np.eye(3) + CONTEXTS.T @ CONTEXTS
    np.testing.assert_allclose(bandit.precision, precision, rtol=1e-12)
    np.testing.assert_allclose(bandit.mean(), np.linalg.inv(precision) @ CONTEXTS.T @ REWARDS, rtol=1e-12)


def test_the_width_is_the_one_printed() -> None:
    bandit = LinearPosterior(3, num_clients=20, regularisation=0.7, delta=0.1, exploration=2.0)
    told(bandit)
    printed = math.sqrt(0.7) + math.sqrt(3 * math.log((1 + 6 * 20) / 0.1))
    assert bandit.width() == pytest.approx(2 * printed, rel=1e-12)


def test_draws_have_the_posteriors_mean_and_covariance() -> None:
    bandit = LinearPosterior(3, num_clients=20)
    told(bandit)
    generator = np.random.default_rng(1)
    draws = np.stack([bandit.draw(generator) for _ in range(20_000)])
    covariance = bandit.width() ** 2 * np.linalg.inv(bandit.precision)
    whitened = np.linalg.solve(np.linalg.cholesky(covariance), (draws - bandit.mean()).T)
    # of 20,000 standard normals: means have a standard error of 0.007, products at most one of 0.01
    np.testing.assert_allclose(whitened.mean(axis=1), 0, atol=0.035)
    np.testing.assert_allclose(np.cov(whitened), np.eye(3), atol=0.05)


def test_without_exploration_scores_are_the_means() -> None:
    bandit = LinearPosterior(3, num_clients=20, exploration=0)
    told(bandit)
    scores = bandit.scores(CONTEXTS, np.random.default_rng(2))
    np.testing.assert_allclose(scores, CONTEXTS @ bandit.mean(), rtol=1e-12)


def test_what_is_forgotten_counts_less_by_its_age() -> None:
    bandit = DiscountedRegression(3, discount=0.8, regularisation=0.7)
    told(bandit)
    weights = np.repeat(0.8 ** np.arange(6)[::-1], 5)
    np.testing.assert_allclose(bandit.precision, (CONTEXTS.T * weights) @ CONTEXTS + 0.7 * np.eye(3), rtol=1e-12)
    np.testing.assert_allclose(bandit.squared, (CONTEXTS.T * weights**2) @ CONTEXTS + 0.7 * np.eye(3), rtol=1e-12)
    np.testing.assert_allclose(bandit.target, (CONTEXTS.T * weights) @ REWARDS, rtol=1e-12)


def test_its_bound_is_the_one_printed() -> None:
    bandit = DiscountedRegression(3, discount=0.8, regularisation=0.7, delta=0.1)
    told(bandit)
    inverse = np.linalg.inv(bandit.precision)
    logarithms = 2 * math.log(10) + 3 * math.log(1 + (1 - 0.8**12) / (0.7 * 3 * (1 - 0.64)))
    width = math.sqrt(0.7) + math.sqrt(logarithms)
    expected = [
        x @ inverse @ bandit.target + width * math.sqrt(x @ inverse @ bandit.squared @ inverse @ x) for x in CONTEXTS
    ]
    np.testing.assert_allclose(bandit.scores(CONTEXTS, np.random.default_rng(0)), expected, rtol=1e-12)


def test_who_never_forgets_is_linucb() -> None:
    bandit = DiscountedRegression(3, discount=1.0)
    told(bandit)
    posterior = LinearPosterior(3, num_clients=20)
    told(posterior)
    inverse = np.linalg.inv(posterior.precision)
    width = 1 + math.sqrt(2 * math.log(20) + 3 * math.log(1 + 6 / 3))
    expected = CONTEXTS @ posterior.mean() + width * np.sqrt(np.einsum("ci,ij,cj->c", CONTEXTS, inverse, CONTEXTS))
    np.testing.assert_allclose(bandit.scores(CONTEXTS, np.random.default_rng(0)), expected, rtol=1e-12)
