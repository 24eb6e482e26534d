"""The neural bandit's gradients against finite differences, its bound against the formula."""

from __future__ import annotations

import numpy as np
import pytest

from fedscout.strategies.selection.bandits import (
    NeuralBandit,
    loss_gradient,
    mean_squared_gradient,
    outputs_and_gradients,
)

HIDDEN, SIZE = 6, 3
RNG = np.random.default_rng(3)
CONTEXTS = RNG.normal(size=(5, SIZE))
TARGETS = RNG.normal(size=5)
PARAMETERS = RNG.normal(size=(SIZE + 1) * HIDDEN)
STEP = 1e-6


def directions() -> np.ndarray:
    return STEP * np.eye(PARAMETERS.size)


def test_the_network_is_the_one_written() -> None:
    inner, outer = PARAMETERS[: SIZE * HIDDEN].reshape(HIDDEN, SIZE), PARAMETERS[SIZE * HIDDEN :]
    expected = [HIDDEN**0.5 * sum(outer[j] * max(inner[j] @ x, 0) for j in range(HIDDEN)) for x in CONTEXTS]
    np.testing.assert_allclose(outputs_and_gradients(PARAMETERS, CONTEXTS, HIDDEN)[0], expected, rtol=1e-12)


def test_gradients_of_outputs_are_their_differences() -> None:
    _, gradients = outputs_and_gradients(PARAMETERS, CONTEXTS, HIDDEN)
    differences = [
        (
            outputs_and_gradients(PARAMETERS + way, CONTEXTS, HIDDEN)[0]
            - outputs_and_gradients(PARAMETERS - way, CONTEXTS, HIDDEN)[0]
        )
        / (2 * STEP)
        for way in directions()
    ]
    np.testing.assert_allclose(gradients, np.stack(differences, axis=1), atol=1e-7)


def test_the_gradient_of_the_loss_is_its_difference() -> None:
    def loss(parameters: np.ndarray) -> float:
        outputs, _ = outputs_and_gradients(parameters, CONTEXTS, HIDDEN)
        return float(np.mean((outputs - TARGETS) ** 2) / 2)

    differences = [(loss(PARAMETERS + way) - loss(PARAMETERS - way)) / (2 * STEP) for way in directions()]
    np.testing.assert_allclose(loss_gradient(PARAMETERS, CONTEXTS, TARGETS, HIDDEN), differences, atol=1e-6)


def test_it_starts_at_nothing_with_the_bound_alone() -> None:
    bandit = NeuralBandit(SIZE, HIDDEN, exploration=0.5, regularisation=2.0)
    scores = bandit.scores(CONTEXTS, np.random.default_rng(0))
    outputs, gradients = outputs_and_gradients(bandit.parameters, CONTEXTS, HIDDEN)
    np.testing.assert_allclose(outputs, 0, atol=1e-12)
    np.testing.assert_allclose(scores, 0.5 * np.linalg.norm(gradients, axis=1) / np.sqrt(2 * HIDDEN), rtol=1e-9)


def test_the_bound_is_the_one_printed() -> None:
    bandit = NeuralBandit(SIZE, HIDDEN, exploration=0.5)
    bandit.scores(CONTEXTS, np.random.default_rng(0))
    _, before = outputs_and_gradients(bandit.start, CONTEXTS, HIDDEN)
    bandit.update(CONTEXTS, TARGETS)
    information = np.eye(before.shape[1]) + sum(np.outer(g, g) for g in before) / HIDDEN
    outputs, gradients = outputs_and_gradients(bandit.parameters, CONTEXTS, HIDDEN)
    bounds = [np.sqrt(g @ np.linalg.inv(information) @ g / HIDDEN) for g in gradients]
    expected = outputs + 0.5 * np.array(bounds)
    np.testing.assert_allclose(bandit.scores(CONTEXTS, np.random.default_rng(1)), expected, rtol=1e-9)


@pytest.mark.parametrize("num_rows", [1, 9, SIZE + 40])
def test_the_inverse_is_that_of_all_gradients_so_far(num_rows: int) -> None:
    """Also of more gradients at once than the network has parameters, and after several rounds."""
    bandit = NeuralBandit(SIZE, HIDDEN, regularisation=0.5)
    bandit.scores(CONTEXTS, np.random.default_rng(0))
    information = 0.5 * np.eye(PARAMETERS.size)
    for _ in range(4):
        contexts = RNG.normal(size=(num_rows, SIZE))
        _, gradients = outputs_and_gradients(bandit.parameters, contexts, HIDDEN)
        information += gradients.T @ gradients / HIDDEN
        bandit.update(contexts, RNG.normal(size=num_rows))
    np.testing.assert_allclose(bandit.inverse @ information, np.eye(PARAMETERS.size), atol=1e-9)


def test_the_mean_square_is_that_of_the_gradients() -> None:
    _, gradients = outputs_and_gradients(PARAMETERS, CONTEXTS, HIDDEN)
    expected = np.square(gradients).sum(axis=1).mean()
    assert mean_squared_gradient(PARAMETERS, CONTEXTS, HIDDEN) == pytest.approx(expected, rel=1e-12)


def test_it_learns_what_is_not_linear() -> None:
    bandit = NeuralBandit(2, 16, regularisation=1e-3, num_steps=20)
    generator = np.random.default_rng(5)
    bandit.scores(np.zeros((1, 2)), generator)
    for _ in range(100):
        contexts = generator.normal(size=(20, 2))
        bandit.update(contexts, np.abs(contexts[:, 0]))
    contexts = generator.normal(size=(500, 2))
    outputs, _ = outputs_and_gradients(bandit.parameters, contexts, 16)
    assert np.corrcoef(outputs, np.abs(contexts[:, 0]))[0, 1] > 0.95  # a linear rule has 0


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e5])
def test_descent_does_not_diverge(scale: float) -> None:
    bandit = NeuralBandit(4, 16, num_steps=50)
    generator = np.random.default_rng(6)
    bandit.scores(np.zeros((1, 4)), generator)
    for _ in range(20):
        bandit.update(scale * generator.standard_t(2, size=(10, 4)), scale * generator.exponential(size=10))
    assert np.isfinite(bandit.parameters).all()


def test_only_the_last_are_remembered() -> None:
    bandit = NeuralBandit(SIZE, HIDDEN, num_remembered=7)
    bandit.scores(CONTEXTS, np.random.default_rng(0))
    bandit.update(CONTEXTS, TARGETS)
    bandit.update(CONTEXTS, TARGETS)
    np.testing.assert_array_equal(bandit.contexts, np.concatenate([CONTEXTS[-2:], CONTEXTS]))
