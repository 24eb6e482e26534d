"""How the clients' losses change together: Σ = XᵀX + σ²I, its fit to past changes, and choice by conditioning.

Each client has an embedding, a column of X `(dimension, clients)` (Tang, Ning, Wang, Sun, Wang, Li, Chen: FedCor:
Correlation-based active client selection strategy for heterogeneous federated learning, CVPR 2022, arXiv:2103.13822).
Σ is never formed: by Woodbury's identity Σ⁻¹ = (I − XᵀCX) / σ² with C = (σ²I + XXᵀ)⁻¹.

X maximises the leave-one-out likelihood of past changes y_t (Rasmussen, Williams: Gaussian processes for machine
learning, 2006, eqs. 5.10 to 5.12): with P = Σ⁻¹ and α_t = P y_t,

    Σ_t w_t Σ_i [ln P_ii − α_ti² / P_ii] / 2.

It has many maxima, of which random starts find lower ones, where clients that always change together have embeddings of
opposite signs; so a fit starts from the principal components of the changes.

Conditioning on the change of client k leaves Σ − Σ_k Σ_kᵀ / Σ_kk, which for those not yet conditioned on is
XᵀAX + σ²I with A ← A − A x_k x_kᵀ A / (σ² + x_kᵀ A x_k) from I, and 0 for k itself.
"""

from __future__ import annotations

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.client_selection import DoubleArray

NOISE = 0.01
"""σ, what of a loss change is the client's own."""


def leave_one_out(embeddings: DoubleArray, changes: DoubleArray, weights: DoubleArray) -> tuple[float, DoubleArray]:
    """Return the leave-one-out log likelihood, but for a constant, and its gradient.

    Args:
        embeddings: X, `(dimension, clients)`.
        changes: y, `(rounds, clients)`, of mean 0.
        weights: w, `(rounds,)`.

    Returns:
        The value; the gradient by X, of its shape.
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
    """Return the embeddings `(dimension, clients)` whose XᵀX is nearest to the weighted covariance of changes."""
    rooted = np.sqrt(weights / weights.sum())[:, None] * changes
    _, lengths, directions = np.linalg.svd(rooted, full_matrices=False)
    kept = min(dimension, len(lengths))
    embeddings = np.zeros((dimension, changes.shape[1]))
    embeddings[:kept] = lengths[:kept, None] * directions[:kept]
    return embeddings


def fitted(changes: DoubleArray, weights: DoubleArray, dimension: int, num_steps: int) -> DoubleArray:
    """Return embeddings of high likelihood, found from the principal ones in at most so many steps of L-BFGS."""
    from scipy.optimize import minimize

    start = principal(changes, weights, dimension)
    scale = 1 / (weights.sum() * changes.shape[1])

    def loss(flat: DoubleArray) -> tuple[float, DoubleArray]:
        value, gradient = leave_one_out(flat.reshape(start.shape), changes, weights)
        return -scale * value, -scale * gradient.ravel()

    found = minimize(loss, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": num_steps})
    return np.asarray(found.x).reshape(start.shape)


def greedy_choice(embeddings: DoubleArray, shares: DoubleArray, annealing: DoubleArray, num_chosen: int) -> IntArray:
    """Return the places of clients, each the one that tells most of the sum of all changes, given those before.

    The next is argmax_k α_k Σ_i p_i Σ_ik / √Σ_kk; then Σ is conditioned on k.

    Args:
        embeddings: X of the clients to choose from, `(dimension, clients)`.
        shares: p_i, `(clients,)`.
        annealing: α_k, `(clients,)`.
        num_chosen: How many.
    """
    variance = NOISE**2
    rest = np.eye(len(embeddings))  # A
    uncovered = embeddings @ shares  # Σ p_i x_i over those not chosen
    covariances = uncovered @ embeddings + variance * shares  # Σ_i p_i Σ_ik
    variances = np.square(embeddings).sum(axis=0) + variance
    closed = np.zeros(len(shares))  # −∞ for those chosen
    chosen = np.empty(num_chosen, np.int64)
    for place in range(num_chosen):
        pick = int(np.argmax(annealing * covariances / np.sqrt(variances) + closed))
        chosen[place], closed[pick] = pick, -np.inf
        deviation = np.sqrt(variances[pick])
        direction = rest @ embeddings[:, pick] / deviation
        rest = rest - np.outer(direction, direction)
        uncovered = uncovered - shares[pick] * embeddings[:, pick]
        along = direction @ embeddings
        covariances = covariances - (direction @ uncovered + shares[pick] * deviation) * along
        variances = np.maximum(variances - along**2, variance)
    return chosen
