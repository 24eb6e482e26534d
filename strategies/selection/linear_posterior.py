"""Linear regression of rewards on contexts, and draws of its coefficients (Thompson sampling).

With V₀ = λI and b₀ = 0, after each round V += Σ x_i x_iᵀ and b += Σ r_i x_i over the credited clients; then

    θ̂ = V⁻¹ b,   γ_t = √λ + √(d ln((1 + tK)/δ)),   θ̃ ~ N(θ̂, γ_t² V⁻¹),   score_i = θ̃ᵀ x_i

(X. Chang et al.: FLASH, arXiv:2402.08769, 2024; the posterior is that of Agrawal, Goyal: Thompson sampling for
contextual bandits with linear payoffs, ICML 2013, arXiv:1209.3352). t counts the rounds that were taken in. Beyond the
source, γ_t can be scaled: at 0 the draw is θ̂ itself.
"""

from __future__ import annotations

import math

import numpy as np

from fedscout.engine.contracts.client_selection import DoubleArray


class LinearPosterior:
    """The linear bandit.

    Args:
        num_contexts: d.
        num_clients: K, by which the draws widen.
        regularisation: λ > 0.
        delta: δ in (0, 1); the smaller, the wider the draws.
        exploration: What γ_t is multiplied by, >= 0.

    Attributes:
        precision: V, `(d, d)`.
        target: b, `(d,)`.
        num_rounds: t.
    """

    def __init__(
        self,
        num_contexts: int,
        num_clients: int,
        regularisation: float = 1.0,
        delta: float = 0.05,
        exploration: float = 1.0,
    ) -> None:
        self._num_clients = num_clients
        self._regularisation = regularisation
        self._delta = delta
        self._exploration = exploration
        self.precision = regularisation * np.eye(num_contexts)
        self.target = np.zeros(num_contexts)
        self.num_rounds = 0

    def mean(self) -> DoubleArray:
        """Return θ̂, `(d,)`."""
        return np.asarray(np.linalg.solve(self.precision, self.target), np.float64)

    def width(self) -> float:
        """Return γ_t, scaled."""
        logarithm = math.log((1 + self.num_rounds * self._num_clients) / self._delta)
        return self._exploration * (math.sqrt(self._regularisation) + math.sqrt(len(self.target) * logarithm))

    def draw(self, generator: np.random.Generator) -> DoubleArray:
        """Return θ̃, `(d,)`."""
        upper = np.linalg.cholesky(self.precision).T  # V = UᵀU, so U⁻¹z has covariance V⁻¹
        return self.mean() + self.width() * np.linalg.solve(upper, generator.standard_normal(len(self.target)))

    def scores(self, contexts: DoubleArray, generator: np.random.Generator) -> DoubleArray:
        """Return θ̃ᵀx of each context, one draw for all."""
        return contexts @ self.draw(generator)

    def update(self, contexts: DoubleArray, rewards: DoubleArray) -> None:
        """Take in a round."""
        self.precision = self.precision + contexts.T @ contexts
        self.target = self.target + contexts.T @ rewards
        self.num_rounds += 1
