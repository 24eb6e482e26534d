"""Cumulative regret on a planted problem: below that of random choice, and ever slower."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from fedscout.engine.messages.calls import DoubleArray
from fedscout.strategies.selection.bandits import (
    ContextualBandit,
    DiscountedRegression,
    LinearPosterior,
    NeuralBandit,
    highest,
)

SEEDS = range(8)
NUM_ROUNDS, NUM_CLIENTS, NUM_CHOSEN, SIZE, NOISE = 120, 30, 6, 4, 0.3


class Nobody:
    """A bandit that scores at random."""

    def scores(self, contexts: DoubleArray, generator: np.random.Generator) -> DoubleArray:
        return generator.random(len(contexts))

    def update(self, contexts: DoubleArray, rewards: DoubleArray) -> None:
        del contexts, rewards


BANDITS: Mapping[str, Callable[[], ContextualBandit]] = {
    "linear, as FLASH's": lambda: LinearPosterior(SIZE, num_clients=NUM_CLIENTS),
    "restless": lambda: DiscountedRegression(SIZE),
    "restless that never forgets": lambda: DiscountedRegression(SIZE, discount=1.0),
    "neural": lambda: NeuralBandit(SIZE),
}


def regrets(bandit: ContextualBandit, seed: int) -> npt.NDArray[np.float64]:
    """Return the regret of each round: what the best clients are expected to give, less what the chosen ones are.

    Contexts x are drawn anew in each round, expected rewards are θᵀx with |θ| = 1, the same for all bandits of a seed.
    """
    problem = np.random.default_rng([seed, 0])
    direction = problem.normal(size=SIZE)
    direction /= np.linalg.norm(direction)
    regret_by_round = np.empty(NUM_ROUNDS)
    for number in range(NUM_ROUNDS):
        contexts = problem.normal(size=(NUM_CLIENTS, SIZE))
        means = contexts @ direction
        generator = np.random.default_rng([seed, 1, number])
        chosen = highest(bandit.scores(contexts, generator), NUM_CHOSEN, generator)
        regret_by_round[number] = np.sort(means)[-NUM_CHOSEN:].sum() - means[chosen].sum()
        bandit.update(contexts[chosen], means[chosen] + NOISE * problem.normal(size=NUM_CHOSEN))
    return regret_by_round


@pytest.mark.parametrize("name", BANDITS)
def test_regret_is_below_randoms_and_falls(name: str) -> None:
    of_bandit = np.stack([regrets(BANDITS[name](), seed) for seed in SEEDS])
    empty_moments = np.stack([regrets(Nobody(), seed) for seed in SEEDS])
    below = (empty_moments - of_bandit).sum(axis=1)
    halves = of_bandit.reshape(len(SEEDS), 2, -1).sum(axis=2)
    falls = halves[:, 0] - halves[:, 1]
    for differences in (below, falls):  # 99 % intervals over seeds lie above 0
        low, _ = stats.t.interval(0.99, len(SEEDS) - 1, differences.mean(), stats.sem(differences))
        assert low > 0
