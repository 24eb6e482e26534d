"""Base class of selection-policy specifications, and the policies random, power of choice, FEEL and FedCor.

Like a strategy's, a policy's specification is a frozen pydantic model with its name, its parameters and its
construction for a cohort; schema, help and validation are derived from it.

`draw_by_weight` draws one item after another with probability proportional to the weights of the remaining
items.

**Random** draws clients uniformly without replacement (McMahan et al. 2017, Algorithm 1), as every strategy
does by default; it is the baseline.

**Power of choice** (Cho et al. 2020): d candidates are drawn without replacement ∝ rows, and the M of them
with the largest loss train. With d = M only the rows decide, with d = all clients only the losses.

It is the paper's rpow-d: the loss is the mean over all rows of a client's last training, infinite for clients
that never trained. It has no cost for the clients.

Deviations: candidates of equal loss train in the order in which they were drawn. A non-finite loss counts as
0. If fewer than d clients are reachable, all are candidates.

**FEEL** (Ren et al. 2020) draws clients with large updates and short rounds with higher probability. It is a
reconstruction: no code was published, and the constants of the paper's radio-link model have no counterpart
here. With one client per round, the variance of the unbiased aggregate is traded off against the expected
time,

    min over p:  ρ Σ a_i² / p_i + (1 − ρ) Σ p_i T_i,   Σ p_i = 1,

a_i = (n_i / n) ‖g_i‖ being the importance of client i and T_i its upload time. At the minimum the derivatives
−ρ a_i² / p_i² + (1 − ρ) T_i all equal −λ:

    p_i = a_i √(ρ / ((1 − ρ) T_i + λ)), λ such that they sum to 1.

Reconstructed parts and deviations:

- The gradient norm is that of the client's last update ‖y − x‖ over its whole local training; in the paper
  every device computes its gradient before the selection. Clients without a report have the mean norm of the
  others.
- T_i is the expected duration of the whole round, so slow computation counts as a bad channel.
- Importances sum to 1 and durations have mean 1, so that ρ has no unit: with equal durations, p_i is the
  importance.
- An importance is at least a tenth of the mean, so that clients with an old small update are still selected.
- M clients are drawn one after another ∝ p without replacement.
- The paper divides each update by n p_i / n_i in the aggregation, which makes the sum unbiased. A policy does
  not change aggregation weights, so the selection is biased towards large updates and fast clients.

**FedCor** selects clients whose losses are most informative about all clients' losses, by a Gaussian process.

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

References:
    Efraimidis, Spirakis: Weighted random sampling with a reservoir. Information Processing Letters 97(5),
        2006: the smallest of exponential variables with the weights as rates.
    McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-efficient learning of deep networks from
        decentralized data. AISTATS 2017. arXiv:1602.05629
    Cho, Wang, Joshi: Client selection in federated learning: Convergence analysis and power-of-choice
        selection strategies. 2020 (AISTATS 2022: Towards understanding biased client selection in federated
        learning). arXiv:2010.01243
    Ren, He, Wen, Yu, Huang, Guo: Scheduling for cellular federated edge learning with importance and channel
        awareness. IEEE Transactions on Wireless Communications 19(11), 2020. arXiv:2004.00490
    Tang, Ning, Wang, Sun, Wang, Li, Chen: FedCor: Correlation-based active client selection strategy for
        heterogeneous federated learning. CVPR 2022. arXiv:2103.13822
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.random import Generator
from pydantic import BaseModel, ConfigDict, Field

from fedscout.engine.arrays import IntArray
from fedscout.engine.errors import Fault, StrategyError
from fedscout.engine.messages import calls
from fedscout.engine.messages.calls import ClientTable, Cohort, DoubleArray, RoundReport, SelectionPolicy


class SelectionSpec(BaseModel, ABC):
    """A selection policy and its parameters: a validated, picklable value that satisfies `SelectionChoice`.

    Attributes:
        kind: Name of the policy; a literal in each subclass that discriminates documents.
        paper: Reference of the policy.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    paper: ClassVar[str] = ""

    kind: str

    @property
    def label(self) -> str:
        """Name in the log."""
        return self.kind

    @property
    def without_labels(self) -> Fault:
        """Error message if the policy measures losses but clients have no class labels."""
        must = "be used for classification, as it measures losses on class labels"
        return Fault(f"selection.kind={self.label}", must)

    @property
    def validation_share(self) -> float:
        """Share of the training rows on which validation losses are measured, unless the study sets one."""
        return 0.0

    def parameters(self) -> Mapping[str, Any]:
        """Return all fields but the kind as JSON-able values; with the kind they reproduce the specification."""
        return self.model_dump(mode="json", exclude={"kind"})

    def code(self) -> Mapping[str, str]:
        """Return the SHA-256 of each user code file of the policy; empty for built-in policies."""
        return {}

    def faults(self, cohort: Cohort) -> list[str]:
        """Return the faults that prevent selection in a cohort, as sentences; empty if none."""
        if cohort.num_sampled < cohort.num_clients:
            return []
        must = "have fewer clients per round than clients to choose from"
        given = f"training.fraction_train that selects {cohort.num_sampled} of {cohort.num_clients}"
        return [Fault(f"selection.kind={self.kind}", must, given)]

    def build(self, cohort: Cohort) -> SelectionPolicy:
        """Construct the policy.

        Raises:
            StrategyError: If the parameters do not fit the cohort; contains all faults.
        """
        if faults := self.faults(cohort):
            raise StrategyError(faults)
        policy = self._construct(cohort)
        if policy.observes.losses and not cohort.classifies:
            raise StrategyError(self.without_labels)
        return policy

    @abstractmethod
    def _construct(self, cohort: Cohort) -> SelectionPolicy:
        """Construct the policy from valid parameters."""

    def __str__(self) -> str:
        fields = type(self).model_fields
        shown = [
            f"{name}={value}"
            for name, value in self.parameters().items()
            if fields[name].default != getattr(self, name)
        ]
        return f"{self.label}({', '.join(shown)})" if shown else self.label


_LEAST = 1e-12
"""Of the largest weight; a weight of 0 is drawn after all others, and needs no case of its own."""


def draw_by_weight(weights: DoubleArray, num_drawn: int, generator: Generator) -> IntArray:
    """Return the indices of the drawn items, in the order of the draws.

    Args:
        weights: Shape (items,), any scale. Negative and non-finite weights count as 0; if all are 0, all are
            equal.
        num_drawn: At most the number of items.
        generator: Draws one number per item, whatever the weights.
    """
    arrival_times = generator.exponential(size=len(weights))
    rates = np.where(np.isfinite(weights), weights, 0.0)
    rates = rates / largest if (largest := rates.max(initial=0.0)) > 0 else np.ones(len(weights))
    return np.argsort(arrival_times / np.maximum(rates, _LEAST), kind="stable")[:num_drawn]


def reported_norms(report: RoundReport) -> dict[int, float]:
    """Return the update norm of each client that reports one."""
    reported = report.trained & np.isfinite(report.update_norm)
    return dict(zip(report.clients[reported].tolist(), report.update_norm[reported].tolist(), strict=True))


LOG_OF_ZERO = -4.0
"""A, in place of log 0: the reverse cross-entropy of a one-hot label is −A(1 − p_y)."""

LARGEST_LOSS = 1e6
"""A larger loss tells only that the model has diverged."""


@np.errstate(invalid="ignore")
def robust_loss(losses: calls.Losses | None, num_clients: int, alpha: float = 0.0, beta: float = 0.0) -> DoubleArray:
    """Return CE + α pseudo + β RCE of each client; NaN if it is missing or beyond `LARGEST_LOSS`.

    Args:
        losses: Of the received model; None if they were not measured. The pseudo loss, the cross-entropy with
            the model's own soft outputs as labels, is there its entropy.
        num_clients: Number of clients.
        alpha: α >= 0.
        beta: β >= 0.
    """
    if losses is None:
        return np.full(num_clients, np.nan)
    combined = losses.cross_entropy + alpha * losses.entropy - beta * LOG_OF_ZERO * losses.miss
    return np.where(np.abs(combined) <= LARGEST_LOSS, combined, np.nan)


class RandomSelection(SelectionPolicy):
    """Selects clients uniformly at random."""

    def choose(self, server_round: int, table: ClientTable, num_chosen: int, generator: Generator) -> IntArray:
        """Return clients drawn uniformly."""
        return generator.choice(table.clients, num_chosen, replace=False)


class RandomSpec(SelectionSpec):
    """Uniform selection: all clients have the same probability."""

    paper: ClassVar[str] = "McMahan et al. 2017, arXiv:1602.05629"

    kind: Literal["random"] = "random"

    def _construct(self, cohort: Cohort) -> SelectionPolicy:
        return RandomSelection()


class PowerOfChoice(SelectionPolicy):
    """Ranks candidates by the loss of their last training.

    A failed client keeps its state. Every client trains once; after that the d − M clients of the lowest known
    loss never train while those of all others stay above.

    Args:
        num_candidates: d.

    Attributes:
        loss: Last reported loss of each client.
    """

    def __init__(self, num_candidates: int) -> None:
        self._num_candidates = num_candidates
        self.loss: dict[int, float] = {}

    def choose(self, server_round: int, table: ClientTable, num_chosen: int, generator: Generator) -> IntArray:
        """Return the candidates of the largest loss, largest first."""
        num_candidates = max(self._num_candidates, num_chosen)  # a round may ask for more than usual
        drawn = draw_by_weight(table.num_examples.astype(np.float64), num_candidates, generator)
        candidates = table.clients[drawn]
        losses = np.array([self.loss.get(client, np.inf) for client in candidates.tolist()])
        return candidates[np.argsort(-losses, kind="stable")[:num_chosen]]

    def observe(self, report: RoundReport) -> None:
        """Store the losses of local training."""
        losses = report.loss[report.trained]
        finite_losses = np.where(np.isfinite(losses), losses, 0.0)
        self.loss.update(zip(report.clients[report.trained].tolist(), finite_losses.tolist(), strict=True))


class PowerOfChoiceSpec(SelectionSpec):
    """Clients with the highest loss among a few candidates drawn by rows."""

    paper: ClassVar[str] = "Cho et al. 2020, arXiv:2010.01243"

    kind: Literal["power_of_choice"] = "power_of_choice"
    candidates: int | None = Field(None, ge=1, description="d, number of candidate clients; 2 M by default, or all")

    def faults(self, cohort: Cohort) -> list[str]:
        """Return the faults in a cohort; d must lie between M and the number of clients."""
        faults = super().faults(cohort)
        if self.candidates is not None and not cohort.num_sampled <= self.candidates <= cohort.num_clients:
            must = f"be from {cohort.num_sampled}, the clients of a round, to {cohort.num_clients}, all clients"
            faults.append(Fault("candidates of selection.kind=power_of_choice", must, self.candidates))
        return faults

    def _construct(self, cohort: Cohort) -> SelectionPolicy:
        return PowerOfChoice(self.candidates or min(2 * cohort.num_sampled, cohort.num_clients))


_LEAST_IMPORTANCE = 0.1
"""Of the mean."""
_NUM_HALVINGS = 60
"""More than float64 has bits."""


class Feel(SelectionPolicy):
    """Draws clients by importance and duration; every client is selected repeatedly.

    Args:
        importance_weight: ρ, in (0, 1].

    Attributes:
        update_norm: Last reported update norm of each client.
    """

    observes = calls.ReportRequest(update_norms=True)

    def __init__(self, importance_weight: float) -> None:
        self._importance_weight = importance_weight
        self.update_norm: dict[int, float] = {}

    def choose(self, server_round: int, table: ClientTable, num_chosen: int, generator: Generator) -> IntArray:
        """Return clients drawn ∝ p."""
        if not len(table.clients):
            return table.clients
        probabilities = scheduling_probabilities(self._importance(table), table.seconds, self._importance_weight)
        return table.clients[draw_by_weight(probabilities, num_chosen, generator)]

    def observe(self, report: RoundReport) -> None:
        """Store the update norms."""
        self.update_norm |= reported_norms(report)

    def _importance(self, table: ClientTable) -> DoubleArray:
        """Return rows times update norm, each above 0."""
        reported = [norm for client in table.clients.tolist() if (norm := self.update_norm.get(client)) is not None]
        default_norm = float(np.mean(reported)) if reported else 1.0
        norms = np.array([self.update_norm.get(client, default_norm) for client in table.clients.tolist()])
        importance: DoubleArray = table.num_examples * norms
        mean = float(importance.mean())
        return np.maximum(importance, _LEAST_IMPORTANCE * mean) if mean > 0 else np.ones(len(importance))


def scheduling_probabilities(importance: DoubleArray, seconds: DoubleArray, importance_weight: float) -> DoubleArray:
    """Return p, which sums to 1.

    Args:
        importance: a_i up to scale, shape (clients,), above 0.
        seconds: T_i up to scale, shape (clients,), at least 0; all may be 0.
        importance_weight: ρ, in (0, 1]; 1 gives the importance itself.
    """
    importance = importance / importance.sum()
    mean_seconds = seconds.mean()
    delays = (1 - importance_weight) * (seconds - seconds.min()) / (mean_seconds if mean_seconds > 0 else 1.0)

    def at(level: float) -> DoubleArray:
        probabilities: DoubleArray = importance * np.sqrt(importance_weight / (delays + level))
        return probabilities

    # The sum falls with the level λ + (1 − ρ) T_min. At ρ no term exceeds the importance, so the sum is at most 1; at
    # ρ a², a the importance of all of the quickest, these alone sum to 1.
    low, high = importance_weight * importance[delays == 0].sum() ** 2, importance_weight
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle).sum() > 1 else (low, middle)
    probabilities = at(high)
    probabilities /= probabilities.sum()
    return probabilities


class FeelSpec(SelectionSpec):
    """Clients with large updates and short rounds are more probable; a reconstruction."""

    paper: ClassVar[str] = "Ren et al. 2020, arXiv:2004.00490"

    kind: Literal["feel"] = "feel"
    importance_weight: float = Field(
        0.5, gt=0, le=1, description="ρ, weight of update importance against time; 1 leaves time out"
    )

    def _construct(self, cohort: Cohort) -> SelectionPolicy:
        return Feel(self.importance_weight)


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

    observes = calls.ReportRequest(training_losses=True, include_idle_clients=True)

    def __init__(self, num_clients: int, spec: FedCorSpec) -> None:
        self._parameters = spec
        self._losses = np.full(num_clients, np.nan)
        self._changes = np.zeros((0, num_clients))
        self._next_fit = spec.warm_up + 1
        self.embeddings = np.zeros((spec.dimension, num_clients))
        self.annealing = np.ones(num_clients)

    def choose(self, server_round: int, table: ClientTable, num_chosen: int, generator: Generator) -> IntArray:
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
