"""Cumulative regret on a planted problem: rewards are linear in contexts that are drawn anew each round."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from fedscout.strategies.selection.contextual_selection import ContextualBandit, highest
from fedscout.strategies.selection.discounted_regression import DiscountedRegression
from fedscout.strategies.selection.linear_posterior import LinearPosterior
from fedscout.strategies.selection.neural_bandit import NeuralBandit

NUM_CLIENTS, NUM_CHOSEN, NUM_ROUNDS, SIZE = 30, 6, 120, 4
SEEDS = range(8)

BANDITS: dict[str, Callable[[], ContextualBandit]] = {
    "linear": lambda: LinearPosterior(SIZE, NUM_CLIENTS),
    "restless": lambda: DiscountedRegression(SIZE),
    "restless-never-forgets": lambda: DiscountedRegression(SIZE, discount=1.0),
    "neural": lambda: NeuralBandit(SIZE),
}


class Nobody:
    """Scores at random."""

    def scores(self, contexts: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        return generator.random(len(contexts))

    def update(self, contexts: np.ndarray, rewards: np.ndarray) -> None:
        del contexts, rewards


def regrets(bandit: ContextualBandit, seed: int) -> np.ndarray:
    """Return each round's expected reward of the best choice, less that of the bandit's."""
    planted = np.random.default_rng([seed, 0])
    direction = planted.normal(size=SIZE)
    direction /= np.linalg.norm(direction)
    found = np.empty(NUM_ROUNDS)
    for number in range(NUM_ROUNDS):
        contexts = planted.normal(size=(NUM_CLIENTS, SIZE))
        means = contexts @ direction
        generator = np.random.default_rng([seed, 1, number])
        chosen = highest(bandit.scores(contexts, generator), NUM_CHOSEN, generator)
        found[number] = np.sort(means)[-NUM_CHOSEN:].sum() - means[chosen].sum()
        bandit.update(contexts[chosen], means[chosen] + 0.3 * planted.normal(size=NUM_CHOSEN))
    return found


@pytest.mark.parametrize("name", BANDITS)
def test_regret_is_below_randoms_and_falls(name: str) -> None:
    of_bandit = np.stack([regrets(BANDITS[name](), seed) for seed in SEEDS])
    of_nobody = np.stack([regrets(Nobody(), seed) for seed in SEEDS])
    below = (of_nobody - of_bandit).sum(axis=1)
    halves = of_bandit.reshape(len(SEEDS), 2, -1).sum(axis=2)
    falls = halves[:, 0] - halves[:, 1]
    for differences in (below, falls):  # 99 % intervals over seeds lie above 0
        low, _ = stats.t.interval(0.99, len(SEEDS) - 1, differences.mean(), stats.sem(differences))
        assert low > 0
