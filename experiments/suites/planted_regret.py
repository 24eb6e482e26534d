"""Cumulative regret of the bandits on a planted problem: rewards linear in contexts that are drawn anew each round.

A round has the contexts x_i of 30 clients, standard normal in four dimensions, and expected rewards θᵀx_i, |θ| = 1. A
bandit chooses six and is told rewards with noise of deviation 0.3. Its regret in a round is the expected reward of the
best six, less that of its own. The source of FLASH prints a bound of another algorithm for its own, so this is measured
in place of it: a bandit that learns has regret that grows ever slower, random choice has not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedscout.engine.contracts.client_selection import DoubleArray
from fedscout.experiments.grids.cells import CellContext, Measured, Values
from fedscout.experiments.grids.experiment import Cell, Experiment
from fedscout.strategies.selection.contextual_selection import ContextualBandit, highest
from fedscout.strategies.selection.discounted_regression import DiscountedRegression
from fedscout.strategies.selection.linear_posterior import LinearPosterior
from fedscout.strategies.selection.neural_bandit import NeuralBandit

NUM_CLIENTS, NUM_CHOSEN, SIZE, NOISE = 30, 6, 4, 0.3
ROUNDS = (30, 60, 120)


class Nobody:
    """Scores at random."""

    def scores(self, contexts: DoubleArray, generator: np.random.Generator) -> DoubleArray:
        """Return uniform scores, shape `(clients,)`."""
        return generator.random(len(contexts))

    def update(self, contexts: DoubleArray, rewards: DoubleArray) -> None:
        """Learn nothing."""
        del contexts, rewards


BANDITS: Mapping[str, Callable[[], ContextualBandit]] = {
    "random": Nobody,
    "linear, as FLASH's": lambda: LinearPosterior(SIZE, NUM_CLIENTS),
    "restless": lambda: DiscountedRegression(SIZE),
    "restless that never forgets": lambda: DiscountedRegression(SIZE, discount=1.0),
    "neural": lambda: NeuralBandit(SIZE),
}


def regrets(bandit: ContextualBandit, seed: int, num_rounds: int = ROUNDS[-1]) -> npt.NDArray[np.float64]:
    """Return the regret of each round, shape `(num_rounds,)`; the problem is the same for all bandits of a seed."""
    planted = np.random.default_rng([seed, 0])
    direction = planted.normal(size=SIZE)
    direction /= np.linalg.norm(direction)
    found = np.empty(num_rounds)
    for number in range(num_rounds):
        contexts = planted.normal(size=(NUM_CLIENTS, SIZE))
        means = contexts @ direction
        generator = np.random.default_rng([seed, 1, number])
        chosen = highest(bandit.scores(contexts, generator), NUM_CHOSEN, generator)
        found[number] = np.sort(means)[-NUM_CHOSEN:].sum() - means[chosen].sum()
        bandit.update(contexts[chosen], means[chosen] + NOISE * planted.normal(size=NUM_CHOSEN))
    return found


@dataclass(frozen=True)
class Regrets:
    """Cumulative regret of each bandit (row) after some rounds (column)."""

    def measure(self, experiment: Experiment, context: CellContext) -> Measured:
        """Play every bandit on as many problems as there are seeds."""
        values: dict[Cell, Values] = {}
        for name, make in BANDITS.items():
            total = np.cumsum([regrets(make(), seed) for seed in range(context.num_seeds)], axis=1)
            values |= {(name, f"{rounds} rounds"): tuple(total[:, rounds - 1].tolist()) for rounds in ROUNDS}
        return Measured(values)
