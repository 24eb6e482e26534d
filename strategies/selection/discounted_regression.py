"""Linear regression that forgets, and its upper confidence bound: a bandit whose arms change while nobody plays them.

Every round the past counts η less (Russac, Vernade, Cappé: Weighted linear bandits for non-stationary environments,
NeurIPS 2019, arXiv:1909.09146, Algorithm 1, D-LinUCB):

    V ← ηV + Σ x_i x_iᵀ + (1 − η)λI,   Ṽ ← η²Ṽ + Σ x_i x_iᵀ + (1 − η²)λI,   b ← ηb + Σ r_i x_i,
    score_i = θ̂ᵀx_i + β_t √(x_iᵀ V⁻¹ Ṽ V⁻¹ x_i),   θ̂ = V⁻¹ b,
    β_t = √λ + √(2 ln(1/δ) + d ln(1 + (1 − η^{2t}) / (λd(1 − η²)))).

Deviations: a round credits several clients, and forgets once a round; t counts rounds; the bounds on θ, x and the noise
that β_t asks for are 1; β_t can be scaled. With η = 1 it is LinUCB, which never forgets.
"""

from __future__ import annotations

import math

import numpy as np

from fedscout.engine.contracts.client_selection import DoubleArray


class DiscountedRegression:
    """The restless linear bandit.

    Args:
        num_contexts: d.
        discount: η in (0, 1], what a round's evidence is worth a round later.
        regularisation: λ > 0.
        delta: δ in (0, 1); the smaller, the wider the bound.
        exploration: What β_t is multiplied by, >= 0.

    Attributes:
        precision: V, `(d, d)`.
        squared: Ṽ, `(d, d)`.
        target: b, `(d,)`.
        num_rounds: t.
    """

    def __init__(
        self,
        num_contexts: int,
        discount: float = 0.98,
        regularisation: float = 1.0,
        delta: float = 0.05,
        exploration: float = 1.0,
    ) -> None:
        self._discount = discount
        self._regularisation = regularisation
        self._delta = delta
        self._exploration = exploration
        self.precision = regularisation * np.eye(num_contexts)
        self.squared = regularisation * np.eye(num_contexts)
        self.target = np.zeros(num_contexts)
        self.num_rounds = 0

    def width(self) -> float:
        """Return β_t, scaled."""
        share = self._discount**2
        rounds = self.num_rounds if share == 1 else (1 - share**self.num_rounds) / (1 - share)
        size = len(self.target)
        information = 2 * math.log(1 / self._delta) + size * math.log1p(rounds / (self._regularisation * size))
        return self._exploration * (math.sqrt(self._regularisation) + math.sqrt(information))

    def scores(self, contexts: DoubleArray, generator: np.random.Generator) -> DoubleArray:
        """Return the upper confidence bound of each context; nothing is drawn."""
        del generator
        inner = np.linalg.solve(self.precision, contexts.T)
        variances = np.einsum("ci,ij,cj->c", inner.T, self.squared, inner.T, optimize=True)
        return np.asarray(self.target @ inner + self.width() * np.sqrt(variances))

    def update(self, contexts: DoubleArray, rewards: DoubleArray) -> None:
        """Forget a little, and take in a round."""
        new = contexts.T @ contexts
        self.precision = self._faded(self.precision, self._discount) + new
        self.squared = self._faded(self.squared, self._discount**2) + new
        self.target = self._discount * self.target + contexts.T @ rewards
        self.num_rounds += 1

    def _faded(self, matrix: DoubleArray, share: float) -> DoubleArray:
        return share * matrix + (1 - share) * self._regularisation * np.eye(len(matrix))
