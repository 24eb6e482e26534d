"""NeuralUCB: a small network tells rewards from contexts, and its gradients how unsure it is.

With m hidden units, f(x; θ) = √m · aᵀ relu(Wx) and g = ∇_θ f (Zhou, Li, Gu: Neural contextual bandits with UCB-based
exploration, ICML 2020, arXiv:1911.04462, Algorithm 1, two layers):

    score_i = f(x_i; θ) + γ √(gᵢᵀ Z⁻¹ gᵢ / m),   Z ← Z + Σ gᵢ gᵢᵀ / m from λI,
    θ ← gradient descent on Σ (f(x; θ) − r)² / 2 + mλ‖θ − θ₀‖² / 2.

Deviations: the network has two halves that are each other's negative at θ₀, so that f = 0 there, without the source's
doubled contexts; γ is constant; a round credits several clients; descent goes on from the last θ. Only the last
contexts are remembered, and rewards are divided by the largest of them (the source's lie in [0, 1]). The loss is
divided by their number, and a step is a part of 1 / mean ‖g‖²: so descent can't diverge where f is linear in θ.
"""

from __future__ import annotations

import numpy as np

from fedscout.engine.contracts.client_selection import DoubleArray


class NeuralBandit:
    """The neural bandit; its network is drawn when it is first asked.

    Args:
        num_contexts: d.
        num_hidden: m, even.
        exploration: γ >= 0.
        regularisation: λ > 0.
        num_steps: Of gradient descent, a round.
        step: Its steps, as a part of the longest that is safe, in (0, 1].
        num_remembered: How many of the last contexts and rewards descent goes over.

    Attributes:
        parameters: θ, `((d + 1) m,)`: W by hidden unit, then a. Nothing before the first call.
        start: θ₀.
        inverse: Z⁻¹, `((d + 1) m, (d + 1) m)`.
        contexts: Those remembered, `(n, d)`.
        rewards: Theirs, `(n,)`.
    """

    def __init__(
        self,
        num_contexts: int,
        num_hidden: int = 16,
        exploration: float = 0.1,
        regularisation: float = 1.0,
        num_steps: int = 5,
        step: float = 1.0,
        num_remembered: int = 1000,
    ) -> None:
        size = (num_contexts + 1) * num_hidden
        self._num_hidden = num_hidden
        self._exploration = exploration
        self._regularisation = regularisation
        self._num_steps = num_steps
        self._step = step
        self._num_remembered = num_remembered
        self.parameters = np.zeros(0)
        self.start = np.zeros(0)
        self.inverse = np.eye(size) / regularisation
        self.contexts = np.zeros((0, num_contexts))
        self.rewards = np.zeros(0)

    def scores(self, contexts: DoubleArray, generator: np.random.Generator) -> DoubleArray:
        """Return the upper confidence bound of each context."""
        if not len(self.parameters):
            self.start = self._drawn(generator)
            self.parameters = self.start
        rewards, gradients = outputs_and_gradients(self.parameters, contexts, self._num_hidden)
        variances = (gradients @ self.inverse * gradients).sum(axis=1) / self._num_hidden
        return np.asarray(rewards + self._exploration * np.sqrt(np.maximum(variances, 0)))

    def _drawn(self, generator: np.random.Generator) -> DoubleArray:
        """Return θ₀: He's variances, and both halves alike but for the sign of what they say."""
        half = self._num_hidden // 2
        inner = generator.normal(0, np.sqrt(4 / self._num_hidden), (half, self.contexts.shape[1]))
        outer = generator.normal(0, np.sqrt(2 / self._num_hidden), half)
        return np.concatenate([inner.ravel(), inner.ravel(), outer, -outer])

    def update(self, contexts: DoubleArray, rewards: DoubleArray) -> None:
        """Take in a round, and descend."""
        if not len(rewards):
            return
        _, gradients = outputs_and_gradients(self.parameters, contexts, self._num_hidden)
        for first in range(0, len(gradients), gradients.shape[1]):
            self.inverse = updated(self.inverse, gradients[first : first + gradients.shape[1]] / self._num_hidden**0.5)
        self.contexts = np.concatenate([self.contexts, contexts])[-self._num_remembered :]
        self.rewards = np.concatenate([self.rewards, rewards])[-self._num_remembered :]
        self._descend()

    def _descend(self) -> None:
        targets = self.rewards / (np.abs(self.rewards).max() or 1.0)
        pull = self._num_hidden * self._regularisation / len(targets)
        length = self._step / (mean_squared_gradient(self.parameters, self.contexts, self._num_hidden) + pull)
        for _ in range(self._num_steps):
            gradient = loss_gradient(self.parameters, self.contexts, targets, self._num_hidden)
            gradient += pull * (self.parameters - self.start)
            self.parameters = self.parameters - length * gradient


def updated(inverse: DoubleArray, rows: DoubleArray) -> DoubleArray:
    """Return (Z + AᵀA)⁻¹ of Z⁻¹ and A, which should have fewer rows than Z: Z⁻¹ − Z⁻¹Aᵀ (I + A Z⁻¹ Aᵀ)⁻¹ A Z⁻¹."""
    known = rows @ inverse
    return np.asarray(inverse - known.T @ np.linalg.solve(np.eye(len(rows)) + known @ rows.T, known))


def _layers(parameters: DoubleArray, contexts: DoubleArray, num_hidden: int) -> tuple[DoubleArray, DoubleArray]:
    """Return the hidden units' values `(clients, m)`, and a."""
    inner = parameters[:-num_hidden].reshape(num_hidden, contexts.shape[1])
    return np.maximum(contexts @ inner.T, 0), parameters[-num_hidden:]


def outputs_and_gradients(
    parameters: DoubleArray, contexts: DoubleArray, num_hidden: int
) -> tuple[DoubleArray, DoubleArray]:
    """Return f of each context `(clients,)`, and its gradient by θ `(clients, (d + 1) m)`."""
    hidden, outer = _layers(parameters, contexts, num_hidden)
    root = num_hidden**0.5
    gradients = np.empty((len(contexts), parameters.size))
    of_inner = gradients[:, :-num_hidden].reshape(len(contexts), num_hidden, -1)
    np.multiply(((hidden > 0) * (root * outer))[:, :, None], contexts[:, None, :], out=of_inner)
    np.multiply(root, hidden, out=gradients[:, -num_hidden:])
    return root * (hidden @ outer), gradients


def mean_squared_gradient(parameters: DoubleArray, contexts: DoubleArray, num_hidden: int) -> float:
    """Return the mean over contexts of ‖∇_θ f‖² = m (Σ_j a_j² [h_j > 0] ‖x‖² + ‖h‖²)."""
    inner, outer = parameters[:-num_hidden].reshape(num_hidden, -1), parameters[-num_hidden:]
    hidden = inner @ contexts.T
    active = (hidden > 0).astype(np.float64)
    lengths = np.einsum("cd,cd->c", contexts, contexts)
    hidden *= active
    return float(num_hidden / len(contexts) * (outer**2 @ (active @ lengths) + np.vdot(hidden, hidden)))


def loss_gradient(parameters: DoubleArray, contexts: DoubleArray, targets: DoubleArray, num_hidden: int) -> DoubleArray:
    """Return the gradient by θ of the mean of (f − r)² / 2."""
    inner, outer = parameters[:-num_hidden].reshape(num_hidden, -1), parameters[-num_hidden:]
    hidden = inner @ contexts.T  # `(m, clients)`, whose rows are long
    active = hidden > 0
    np.maximum(hidden, 0, out=hidden)
    errors = num_hidden**0.5 * (outer @ hidden)
    errors -= targets
    errors *= num_hidden**0.5 / len(targets)
    of_inner = outer[:, None] * ((active * errors) @ contexts)
    return np.concatenate([of_inner.ravel(), hidden @ errors])
