"""FedCor: selects clients whose losses are most informative about all clients' losses, by a Gaussian process.

During the warm-up clients are drawn uniformly while all clients report the loss on their training rows. Then
the covariance Σ = XᵀX + σ²I of the loss changes between rounds is fitted, and again every `refit_every`
rounds; in between it is fixed, and clients are selected greedily by conditioning (Tang et al. 2022, Algorithm
1). Each selection of a client decreases its factor α_k, until the next fit resets all to 1; so the policy may
starve clients.

Each client has an embedding, a column of X `(dimension, clients)`. Σ is never formed: by Woodbury's identity
Σ⁻¹ = (I − XᵀCX) / σ² with C = (σ²I + XXᵀ)⁻¹. X maximises the leave-one-out likelihood of past changes y_t
(Rasmussen, Williams: Gaussian processes for machine learning, 2006, eqs. 5.10 to 5.12): with P = Σ⁻¹ and α_t
= P y_t,

    Σ_t w_t Σ_i [ln P_ii − α_ti² / P_ii] / 2.

It has many local maxima. Random starts find lower ones, in which clients that always change together have
embeddings of opposite signs; so a fit starts from the principal components of the changes.

Conditioning on the change of client k leaves Σ − Σ_k Σ_kᵀ / Σ_kk, which for clients not yet conditioned on is
XᵀAX + σ²I with A ← A − A x_k x_kᵀ A / (σ² + x_kᵀ A x_k) starting from I, and 0 for k itself.

Deviations: the changes of all rounds are fitted, where the paper has one round of random clients before a
fit; the loss is therefore measured in all rounds, at a cost to every client. The mean of the changes is
subtracted per client, and a missing change counts as that mean. The shares p_i are those of the reachable
clients. L-BFGS from the principal components replaces Adam from a random start. Until there are changes of
two rounds, selection is uniform.

Reference:
    Tang, Ning, Wang, Sun, Wang, Li, Chen: FedCor: Correlation-based active client selection strategy for
        heterogeneous federated learning. CVPR 2022. arXiv:2103.13822
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedscout.engine.arrays import IntArray
from fedscout.engine.errors import Fault
from fedscout.engine.messages.calls import ClientTable, Cohort, DoubleArray, ReportRequest, RoundReport, SelectionPolicy
from fedscout.strategies.selection.bandits import robust_loss
from fedscout.strategies.selection.policies import SelectionSpec

NOISE = 0.01
"""σ, what of a loss change is the client's own."""


def leave_one_out(embeddings: DoubleArray, changes: DoubleArray, weights: DoubleArray) -> tuple[float, DoubleArray]:
    """Return the leave-one-out log likelihood, up to a constant, and its gradient.

    Args:
        embeddings: X, `(dimension, clients)`.
        changes: y, `(rounds, clients)`, of mean 0.
        weights: w, `(rounds,)`.

    Returns:
        The value; the gradient in X, of its shape.
    """
    variance = NOISE**2
    core = np.linalg.inv(variance * np.eye(len(embeddings)) + embeddings @ embeddings.T)
    projected = core @ embeddings  # X Σ⁻¹
    own_share = 1 - np.einsum("dk,dk->k", embeddings, projected)
    diagonal = np.maximum(own_share, 1e-12) / variance  # rounding, where an embedding is huge
    explained = (changes - (changes @ embeddings.T) @ projected) / variance  # α_t
    total = weights.sum()
    squares = weights @ explained**2
    value = float(total * np.log(diagonal).sum() - (squares / diagonal).sum()) / 2
    # ∂value/∂P = diag(own) − Σ_t w_t u_t y_tᵀ, and ∂P = −P ∂Σ P
    own = (total / diagonal + squares / diagonal**2) / 2
    scaled = weights[:, None] * explained / diagonal  # w_t u_t
    inner = 2 * projected * own - (projected @ scaled.T) @ changes - (projected @ changes.T) @ scaled
    gradient = -(inner - (inner @ embeddings.T) @ projected) / variance
    return value, gradient


def principal(changes: DoubleArray, weights: DoubleArray, dimension: int) -> DoubleArray:
    """Return embeddings `(dimension, clients)` whose XᵀX best approximates the weighted covariance of changes."""
    scaled_changes = np.sqrt(weights / weights.sum())[:, None] * changes
    _, singular_values, directions = np.linalg.svd(scaled_changes, full_matrices=False)
    rank = min(dimension, len(singular_values))
    embeddings = np.zeros((dimension, changes.shape[1]))
    embeddings[:rank] = singular_values[:rank, None] * directions[:rank]
    return embeddings


def fitted(changes: DoubleArray, weights: DoubleArray, dimension: int, num_steps: int) -> DoubleArray:
    """Return embeddings of high likelihood, from the principal ones by at most `num_steps` steps of L-BFGS."""
    from scipy.optimize import minimize

    start = principal(changes, weights, dimension)
    scale = 1 / (weights.sum() * changes.shape[1])

    def loss(flat: DoubleArray) -> tuple[float, DoubleArray]:
        value, gradient = leave_one_out(flat.reshape(start.shape), changes, weights)
        return -scale * value, -scale * gradient.ravel()

    result = minimize(loss, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": num_steps})
    return np.asarray(result.x).reshape(start.shape)


def greedy_choice(embeddings: DoubleArray, shares: DoubleArray, annealing: DoubleArray, num_chosen: int) -> IntArray:
    """Return client indices, each the most informative about the sum of all changes given those before it.

    The next is argmax_k α_k Σ_i p_i Σ_ik / √Σ_kk; then Σ is conditioned on k.

    Args:
        embeddings: X of the candidate clients, `(dimension, clients)`.
        shares: p_i, `(clients,)`.
        annealing: α_k, `(clients,)`.
        num_chosen: Number of clients to select.
    """
    variance = NOISE**2
    conditional = np.eye(len(embeddings))  # A
    uncovered = embeddings @ shares  # Σ p_i x_i over those not chosen
    covariances = uncovered @ embeddings + variance * shares  # Σ_i p_i Σ_ik
    variances = np.square(embeddings).sum(axis=0) + variance
    penalties = np.zeros(len(shares))  # −∞ for those chosen
    chosen = np.empty(num_chosen, np.int64)
    for index in range(num_chosen):
        best = int(np.argmax(annealing * covariances / np.sqrt(variances) + penalties))
        chosen[index], penalties[best] = best, -np.inf
        deviation = np.sqrt(variances[best])
        direction = conditional @ embeddings[:, best] / deviation
        conditional = conditional - np.outer(direction, direction)
        uncovered = uncovered - shares[best] * embeddings[:, best]
        along = direction @ embeddings
        covariances = covariances - (direction @ uncovered + shares[best] * deviation) * along
        variances = np.maximum(variances - along**2, variance)
    return chosen


class FedCorSpec(SelectionSpec):
    """FedCor: clients whose loss changes are most informative about all others', by a Gaussian process."""

    paper: ClassVar[str] = "Tang et al. 2022, arXiv:2103.13822"

    kind: Literal["fedcor"] = "fedcor"
    warm_up: int = Field(15, ge=3, description="number of rounds of random selection before the first fit")
    refit_every: int = Field(10, ge=1, description="number of rounds between fits of the covariance")
    dimension: int = Field(15, ge=1, description="dimension of a client's embedding")
    annealing: float = Field(0.95, gt=0, le=1, description="factor of a client's α each time it is selected")
    num_remembered: int = Field(50, ge=2, description="number of latest rounds used by a fit")
    discount: float = Field(0.99, gt=0, le=1, description="discount of earlier rounds in a fit")
    num_steps: int = Field(50, ge=1, description="largest number of steps of a fit")

    def faults(self, cohort: Cohort) -> list[str]:
        """Return the faults in a cohort: too few rounds, or too few clients."""
        faults = super().faults(cohort)
        if cohort.num_rounds is not None and cohort.num_rounds <= self.warm_up:
            must = f"be less than the rounds of a training, {cohort.num_rounds}: until then it draws at random"
            faults.append(Fault("warm_up of selection.kind=fedcor", must, self.warm_up))
        if cohort.num_clients <= self.dimension:
            must = f"be less than the number of clients, {cohort.num_clients}: embeddings tell what they have in common"
            faults.append(Fault("dimension of selection.kind=fedcor", must, self.dimension))
        return faults

    def _construct(self, cohort: Cohort) -> SelectionPolicy:
        return FedCor(cohort.num_clients, self)


class FedCor(SelectionPolicy):
    """Selects clients uniformly in the warm-up, then greedily.

    Args:
        num_clients: K, clients of the federation, numbered from 0.
        spec: The parameters.

    Attributes:
        embeddings: X, `(dimension, num_clients)`; 0 before the first fit.
        annealing: α, `(num_clients,)`.
    """

    observes = ReportRequest(training_losses=True, include_idle_clients=True)

    def __init__(self, num_clients: int, spec: FedCorSpec) -> None:
        self._parameters = spec
        self._losses = np.full(num_clients, np.nan)
        self._changes = np.zeros((0, num_clients))
        self._next_fit = spec.warm_up + 1
        self.embeddings = np.zeros((spec.dimension, num_clients))
        self.annealing = np.ones(num_clients)

    def choose(
        self, server_round: int, table: ClientTable, num_chosen: int, generator: np.random.Generator
    ) -> IntArray:
        """Return clients drawn uniformly in the warm-up, and the most informative ones afterwards."""
        if server_round >= self._next_fit and len(self._changes) >= 2:
            self._fit()
            self._next_fit = server_round + self._parameters.refit_every
        if not self.embeddings.any():
            return generator.choice(table.clients, num_chosen, replace=False)
        shares = table.num_examples / table.num_examples.sum()
        places = greedy_choice(self.embeddings[:, table.clients], shares, self.annealing[table.clients], num_chosen)
        chosen = table.clients[places]
        self.annealing[chosen] *= self._parameters.annealing
        return chosen

    def observe(self, report: RoundReport) -> None:
        """Store the changes of the losses since the round before."""
        losses = np.full(len(self._losses), np.nan)
        losses[report.clients] = robust_loss(report.training, len(report.clients))
        changes = losses - self._losses
        self._losses = losses
        if np.isfinite(changes).any():
            self._changes = np.concatenate([self._changes, changes[None]])[-self._parameters.num_remembered :]

    def _fit(self) -> None:
        weights = np.power(self._parameters.discount, np.arange(len(self._changes))[::-1], dtype=np.float64)
        deviations = without_means(self._changes, weights)
        self.embeddings = fitted(deviations, weights, len(self.embeddings), self._parameters.num_steps)
        self.annealing = np.ones_like(self.annealing)


def without_means(changes: DoubleArray, weights: DoubleArray) -> DoubleArray:
    """Return each client's changes `(rounds, clients)` minus their weighted mean; 0 in place of NaN."""
    is_known = np.isfinite(changes)
    total = weights @ is_known
    means = np.divide(weights @ np.where(is_known, changes, 0.0), total, out=np.zeros_like(total), where=total > 0)
    return np.where(is_known, changes - means, 0.0)
