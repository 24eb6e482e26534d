"""Contextual-bandit client selection: FLASH, a restless linear bandit and NeuralUCB.

After each round every reachable client reports its context x_t(i), those of the clients that trained are credited
with the rewards r_t(i), and the M clients whose contexts the bandit then scores highest train in the next round. These
policies may starve clients: a client whose contexts keep scoring low is never selected.

**Contexts and rewards.** With L_t(i) a loss of the model sent out in round t, V_t(i) its cross-entropy on the
client's validation rows and τ a duration (X. Chang et al.: FLASH: Federated Learning Across Simultaneous
Heterogeneities, arXiv:2402.08769, 2024):

    x_t(i) = [L_t(i)/L_1(i), V_t(i)/V_1(i), τ(i), r_{t−1}(i)],      r_t(i) = |L_t(i) − L_{t−1}(i)| / τ_{t−1}.

So the loss in a context is the one from which its reward is computed. `credited="chosen"` credits the contexts by
which the clients were chosen instead, which hold L_{t−1}, and `"previous"` those of the clients of the round before,
whose training caused the change. The absolute value rewards an increase of the loss as much as a decrease. Where the
paper is not specific:

- L_1 is the first loss that a client reports; until then the ratio is 1. The reward starts at 0. After rounds
  without a report, the reward is the change since the last report. A loss that is NaN or beyond a million
  counts as missing.
- τ of the context is the client's expected duration, since the duration of the round is the same for all
  clients; τ of the reward is the duration of the last round. Without a simulated clock, and for a duration of
  0, τ = 1.
- Contexts are standardised over the clients of the table, otherwise τ dominates; a constant context becomes
  0.

**FLASH** (`FlashSpec`) is a linear Thompson-sampling bandit. Its losses default to the robust loss CE +
α·pseudo + β·RCE on training rows. `bandit` selects another bandit and `contexts` omits contexts, as in the
paper's ablations. With `start_with_all_clients` all reachable clients train in the first round (S₀ in the
paper), so the first round has more clients than requested. The paper gives neither its (α, β) nor its share
of validation rows; (α, β) default to the first values that it studied, the share to 0.1. Clients train with
the robust loss only if their strategy does. Every client receives and evaluates the model in every round.

**Linear Thompson sampling** (`LinearPosterior`). From V₀ = λI and b₀ = 0, each round adds V += Σ x_i x_iᵀ and
b += Σ r_i x_i over the credited clients; then

    θ̂ = V⁻¹ b,   γ_t = √λ + √(d ln((1 + tK)/δ)),   θ̃ ~ N(θ̂, γ_t² V⁻¹),   score_i = θ̃ᵀ x_i

(FLASH; the posterior is that of Agrawal, Goyal: Thompson sampling for contextual bandits with linear payoffs,
ICML 2013, arXiv:1209.3352). t counts the observed rounds from 0. Addition to the paper: γ_t can be scaled; with 0
the draw is θ̂.

**Restless linear bandit** (`RestlessSpec`, `DiscountedRegression`): a reconstruction of the baseline of that
name in the FLASH paper, for arms that change while they are not selected. It uses FLASH's contexts and
rewards with plain cross-entropy, without a first round of all clients. Past rounds are discounted by η per
round (Russac, Vernade, Cappé: Weighted linear bandits for non-stationary environments, NeurIPS 2019,
arXiv:1909.09146, Algorithm 1, D-LinUCB):

    V ← ηV + Σ x_i x_iᵀ + (1 − η)λI,   Ṽ ← η²Ṽ + Σ x_i x_iᵀ + (1 − η²)λI,   b ← ηb + Σ r_i x_i,
    score_i = θ̂ᵀx_i + β_t √(x_iᵀ V⁻¹ Ṽ V⁻¹ x_i),   θ̂ = V⁻¹ b,
    β_t = √λ + √(2 ln(1/δ) + d ln(1 + (1 − η^{2t}) / (λd(1 − η²)))).

Deviations: a round credits several clients and discounts once; t counts rounds; the bounds on θ, x and the
noise in β_t are 1; β_t can be scaled. With η = 1 it is LinUCB without forgetting.

**NeuralUCB** (`NeuralSpec`, `NeuralBandit`): a reconstruction of the neural baseline in the FLASH paper, with
the same contexts and rewards as the restless bandit. A small network predicts rewards from contexts and its
gradients give the uncertainty. With m hidden units, f(x; θ) = √m · aᵀ relu(Wx) and g = ∇_θ f (Zhou, Li, Gu:
Neural contextual bandits with UCB-based exploration, ICML 2020, arXiv:1911.04462, Algorithm 1, two layers):

    score_i = f(x_i; θ) + γ √(gᵢᵀ Z⁻¹ gᵢ / m),   Z ← Z + Σ gᵢ gᵢᵀ / m from λI,
    θ ← gradient descent on Σ (f(x; θ) − r)² / 2 + mλ‖θ − θ₀‖² / 2.

Deviations: the two halves of the network have opposite signs at θ₀, so that f = 0 there without the paper's
duplicated contexts; γ is constant; a round credits several clients; gradient descent continues from the last
θ. Only the most recent contexts are stored, and rewards are divided by the largest of them (the paper's lie
in [0, 1]). The loss is divided by their number, and a step is a fraction of 1 / mean ‖g‖², so descent can't
diverge where f is linear in θ.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Protocol

import numpy as np
from numpy.random import Generator
from pydantic import AfterValidator, Field

from fedscout.engine.arrays import IntArray
from fedscout.engine.messages.calls import ClientTable, Cohort, DoubleArray, ReportRequest, RoundReport, SelectionPolicy
from fedscout.strategies.selection.policies import SelectionSpec, robust_loss

Context = Literal["training", "validation", "duration", "reward"]
LossName = Literal["robust", "cross_entropy"]
Rows = Literal["training", "validation"]
Credited = Literal["measured", "chosen", "previous"]

VALIDATION_SHARE = 0.1
"""Share of the training rows that validation losses are measured on; the source does not say its own."""


class _FirstAndLast:
    """First and last reported value of each client; NaN before the first report."""

    def __init__(self, num_clients: int) -> None:
        self.first = np.full(num_clients, np.nan)
        self.last = np.full(num_clients, np.nan)

    def take(self, clients: IntArray, values: DoubleArray) -> None:
        reported = ~np.isnan(values)
        clients, values = clients[reported], values[reported]
        self.first[clients] = np.where(np.isnan(self.first[clients]), values, self.first[clients])
        self.last[clients] = values

    def ratio(self, clients: IntArray) -> DoubleArray:
        positive = self.first[clients] > 0
        ratios = np.ones(len(clients))
        ratios[positive] = self.last[clients][positive] / self.first[clients][positive]
        return ratios


@dataclass(eq=False)
class ClientContexts:
    """Contexts of all clients, updated from the round reports.

    Attributes:
        num_clients: K, clients of the federation, numbered from 0.
        names: Names of the contexts, distinct.
        context_loss: (α, β) of the first context's L; (0, 0) is the cross-entropy.
        reward_loss: (α, β) of the reward's L.
        reward_rows: Rows on which the reward's L is measured.
        standardised: Whether each context has mean 0 and variance 1 over the clients of the table.
    """

    num_clients: int
    names: Sequence[Context] = ("training", "validation", "duration", "reward")
    context_loss: tuple[float, float] = (0.0, 0.0)
    reward_loss: tuple[float, float] = (0.0, 0.0)
    reward_rows: Rows = "training"
    standardised: bool = True

    def __post_init__(self) -> None:
        self._training = _FirstAndLast(self.num_clients)
        self._validation = _FirstAndLast(self.num_clients)
        self._rewarded = _FirstAndLast(self.num_clients)
        self._rewards = self._earlier_rewards = np.zeros(self.num_clients)
        self._own_seconds = np.ones(self.num_clients)
        self._round_seconds = 1.0

    @property
    def observes(self) -> ReportRequest:
        """Requested reports; of all clients, as contexts describe the current model on every client."""
        return ReportRequest(
            training_losses="training" in (*self.names, self.reward_rows),
            validation_losses="validation" in (*self.names, self.reward_rows),
            include_idle_clients=True,
        )

    def show(self, table: ClientTable) -> DoubleArray:
        """Return the contexts of a table's clients, `(clients, d)`."""
        self._own_seconds[table.clients] = np.where(table.seconds > 0, table.seconds, 1.0)
        return self.of(table.clients)

    def of(self, clients: IntArray) -> DoubleArray:
        """Return the contexts of clients by their last reports and expected durations, `(clients, d)`."""
        contexts = np.stack([self._context(name, clients) for name in self.names], axis=1)
        return standardised(contexts) if self.standardised else contexts.clip(-LARGEST_CONTEXT, LARGEST_CONTEXT)

    def _context(self, name: Context, clients: IntArray) -> DoubleArray:
        if name == "training":
            return self._training.ratio(clients)
        if name == "validation":
            return self._validation.ratio(clients)
        if name == "reward":
            return self._earlier_rewards[clients]
        return self._own_seconds[clients]

    def take(self, report: RoundReport) -> DoubleArray:
        """Update contexts and rewards from a round report.

        Returns:
            The reward of each client, `(num_clients,)`; NaN where the change of the loss is unknown.
        """
        num_clients = len(report.clients)
        measured = report.training if self.reward_rows == "training" else report.validation
        losses = robust_loss(measured, num_clients, *self.reward_loss)
        changes = np.abs(losses - self._rewarded.last[report.clients])
        rewards = np.full(self.num_clients, np.nan)
        rewards[report.clients] = changes / self._round_seconds
        self._earlier_rewards = self._rewards
        self._rewards = np.where(np.isnan(rewards), self._rewards, rewards)
        self._rewarded.take(report.clients, losses)
        self._training.take(report.clients, robust_loss(report.training, num_clients, *self.context_loss))
        self._validation.take(report.clients, robust_loss(report.validation, num_clients))
        self._round_seconds = report.round_seconds if report.round_seconds > 0 else 1.0
        return rewards


LARGEST_CONTEXT = 1e6
"""Of contexts that are not standardised: beyond, a bandit's precision matrix would be singular by rounding."""


def standardised(contexts: DoubleArray) -> DoubleArray:
    """Return each column scaled to mean 0 and variance 1; a constant column becomes 0."""
    if not len(contexts):
        return contexts
    centred = contexts - contexts.mean(axis=0)
    spread = contexts.std(axis=0)
    varies = spread > 1e-12 * np.abs(contexts).max(axis=0, initial=0)
    return np.asarray(np.where(varies, centred / np.where(varies, spread, 1.0), 0.0))


class ContextualBandit(Protocol):
    """Predicts a score from contexts and learns from observed rewards."""

    def scores(self, contexts: DoubleArray, generator: Generator) -> DoubleArray:
        """Return the score of each context, `(clients,)` for `(clients, d)`; called once a round."""

    def update(self, contexts: DoubleArray, rewards: DoubleArray) -> None:
        """Update from a round: contexts `(chosen, d)` and finite rewards `(chosen,)`, possibly empty."""


@dataclass(eq=False)
class ContextualSelection(SelectionPolicy):
    """Selects the M clients whose contexts a bandit scores highest.

    In the first round all contexts are equal and ties are broken at random. With `start_with_all_clients` all
    reachable clients train in that round, more than `num_chosen`.

    Attributes:
        contexts: Contexts of the clients.
        bandit: A bandit with as many dimensions as there are contexts.
        start_with_all_clients: Whether all reachable clients train in the first round.
        credited: Which contexts receive a round's rewards, see the module: `"measured"` in it, as in the paper, those
            by which its clients were `"chosen"`, or those of the `"previous"` round's clients.
    """

    contexts: ClientContexts
    bandit: ContextualBandit
    start_with_all_clients: bool = False
    credited: Credited = "measured"

    def __post_init__(self) -> None:
        self.observes = self.contexts.observes
        self._shown = np.zeros((self.contexts.num_clients, len(self.contexts.names)))
        self._round_before: tuple[IntArray, DoubleArray] = np.zeros(0, np.int64), self._shown

    def choose(self, server_round: int, table: ClientTable, num_chosen: int, generator: Generator) -> IntArray:
        """Return the highest-scoring clients; with `start_with_all_clients`, all of the table in round 1."""
        contexts = self.contexts.show(table)
        scores = self.bandit.scores(contexts, generator) if len(contexts) else np.zeros(0)
        self._shown = self._of_all(table.clients, contexts)
        if self.start_with_all_clients and server_round == 1:
            return table.clients
        return table.clients[highest(scores, num_chosen, generator)]

    def observe(self, report: RoundReport) -> None:
        """Credit contexts with the rewards of the round."""
        rewards, trained = self.contexts.take(report), report.clients[report.trained]
        measured = self._of_all(report.clients, self.contexts.of(report.clients))
        rounds = {"measured": (trained, measured), "chosen": (trained, self._shown), "previous": self._round_before}
        clients, contexts = rounds[self.credited]
        self._round_before = rounds["chosen"]
        credited = clients[np.isfinite(rewards[clients])]
        self.bandit.update(contexts[credited], rewards[credited])

    def _of_all(self, clients: IntArray, contexts: DoubleArray) -> DoubleArray:
        """Return the contexts by the clients' numbers, 0 of the others, `(num_clients, d)`."""
        by_number = np.zeros((self.contexts.num_clients, len(self.contexts.names)))
        by_number[clients] = contexts
        return by_number


def highest(scores: DoubleArray, num_chosen: int, generator: Generator) -> IntArray:
    """Return the indices of the highest scores, ties in random order; NaN is lowest."""
    order = generator.permutation(len(scores))
    return order[np.argsort(-scores[order], kind="stable")[:num_chosen]]


class ContextualSpec(SelectionSpec):
    """A bandit over FLASH's contexts, without a first round of all clients."""

    @property
    def validation_share(self) -> float:
        """Share of the training rows on which validation losses are measured."""
        return VALIDATION_SHARE

    @abstractmethod
    def _bandit(self, num_contexts: int) -> ContextualBandit:
        """Construct the bandit for `num_contexts` contexts."""

    def _construct(self, cohort: Cohort) -> SelectionPolicy:
        contexts = ClientContexts(cohort.num_clients)
        return ContextualSelection(contexts, self._bandit(len(contexts.names)))


@dataclass(eq=False)
class DiscountedRegression:
    """Discounted linear bandit (D-LinUCB).

    Attributes:
        num_contexts: d.
        discount: η in (0, 1], factor of a round's weight per later round.
        regularisation: λ > 0.
        delta: δ in (0, 1); the smaller, the wider the bound.
        exploration: Factor of β_t, or of γ_t, >= 0.
        precision: V, `(d, d)`.
        squared: Ṽ, `(d, d)`.
        target: b, `(d,)`.
        num_rounds: t.
    """

    num_contexts: int
    discount: float = 0.98
    regularisation: float = 1.0
    delta: float = 0.05
    exploration: float = 1.0

    def __post_init__(self) -> None:
        self.precision = self.regularisation * np.eye(self.num_contexts)
        self.squared = self.regularisation * np.eye(self.num_contexts)
        self.target = np.zeros(self.num_contexts)
        self.num_rounds = 0

    def width(self) -> float:
        """Return β_t times the exploration factor."""
        decay = self.discount**2
        rounds = self.num_rounds if decay == 1 else (1 - decay**self.num_rounds) / (1 - decay)
        size = len(self.target)
        information = 2 * math.log(1 / self.delta) + size * math.log1p(rounds / (self.regularisation * size))
        return self.exploration * (math.sqrt(self.regularisation) + math.sqrt(information))

    def scores(self, contexts: DoubleArray, generator: Generator) -> DoubleArray:
        """Return the upper confidence bound of each context; the generator is unused."""
        inner = np.linalg.solve(self.precision, contexts.T)
        variances = np.einsum("ci,ij,cj->c", inner.T, self.squared, inner.T, optimize=True)
        return np.asarray(self.target @ inner + self.width() * np.sqrt(variances))

    def update(self, contexts: DoubleArray, rewards: DoubleArray) -> None:
        """Discount earlier rounds and add a round."""
        gram = contexts.T @ contexts
        self.precision = self._discounted(self.precision, self.discount) + gram
        self.squared = self._discounted(self.squared, self.discount**2) + gram
        self.target = self.discount * self.target + contexts.T @ rewards
        self.num_rounds += 1

    def _discounted(self, matrix: DoubleArray, share: float) -> DoubleArray:
        return share * matrix + (1 - share) * self.regularisation * np.eye(len(matrix))


@dataclass(eq=False)
class LinearPosterior(DiscountedRegression):
    """Linear bandit with Thompson sampling, which by default discounts nothing.

    Attributes:
        num_clients: K; more clients widen the draws.
    """

    discount: float = 1.0
    num_clients: int = 1

    def mean(self) -> DoubleArray:
        """Return θ̂, `(d,)`."""
        return np.asarray(np.linalg.solve(self.precision, self.target), np.float64)

    def width(self) -> float:
        """Return γ_t times the exploration factor."""
        logarithm = math.log((1 + max(self.num_rounds - 1, 0) * self.num_clients) / self.delta)
        return self.exploration * (math.sqrt(self.regularisation) + math.sqrt(len(self.target) * logarithm))

    def draw(self, generator: Generator) -> DoubleArray:
        """Draw θ̃, `(d,)`."""
        upper = np.linalg.cholesky(self.precision).T  # V = UᵀU, so U⁻¹z has covariance V⁻¹
        return self.mean() + self.width() * np.linalg.solve(upper, generator.standard_normal(len(self.target)))

    def scores(self, contexts: DoubleArray, generator: Generator) -> DoubleArray:
        """Return θ̃ᵀx of each context, with one draw for all."""
        return contexts @ self.draw(generator)


@dataclass(eq=False)
class NeuralBandit:
    """NeuralUCB bandit; its network is initialised at the first call of `scores`.

    Attributes:
        num_contexts: d.
        num_hidden: m, even.
        exploration: γ >= 0.
        regularisation: λ > 0.
        num_steps: Steps of gradient descent per round.
        step: Step size as a fraction of the largest safe one, in (0, 1].
        num_remembered: Number of most recent contexts and rewards that gradient descent uses.
        parameters: θ, `((d + 1) m,)`: W by hidden unit, then a. Empty before the first call.
        start: θ₀.
        inverse: Z⁻¹, `((d + 1) m, (d + 1) m)`.
        contexts: Stored contexts, `(n, d)`.
        rewards: Their rewards, `(n,)`.
    """

    num_contexts: int
    num_hidden: int = 16
    exploration: float = 0.1
    regularisation: float = 1.0
    num_steps: int = 5
    step: float = 1.0
    num_remembered: int = 1000

    def __post_init__(self) -> None:
        size = (self.num_contexts + 1) * self.num_hidden
        self.parameters = np.zeros(0)
        self.start = np.zeros(0)
        self.inverse = np.eye(size) / self.regularisation
        self.contexts = np.zeros((0, self.num_contexts))
        self.rewards = np.zeros(0)

    def scores(self, contexts: DoubleArray, generator: Generator) -> DoubleArray:
        """Return the upper confidence bound of each context."""
        if not len(self.parameters):
            self.start = self._drawn(generator)
            self.parameters = self.start
        rewards, gradients = outputs_and_gradients(self.parameters, contexts, self.num_hidden)
        variances = (gradients @ self.inverse * gradients).sum(axis=1) / self.num_hidden
        return np.asarray(rewards + self.exploration * np.sqrt(np.maximum(variances, 0)))

    def _drawn(self, generator: Generator) -> DoubleArray:
        """Return θ₀: He initialisation, two equal halves with output weights of opposite sign."""
        half = self.num_hidden // 2
        inner = generator.normal(0, np.sqrt(4 / self.num_hidden), (half, self.contexts.shape[1]))
        outer = generator.normal(0, np.sqrt(2 / self.num_hidden), half)
        return np.concatenate([inner.ravel(), inner.ravel(), outer, -outer])

    def update(self, contexts: DoubleArray, rewards: DoubleArray) -> None:
        """Add a round and run gradient descent."""
        if not len(rewards):
            return
        _, gradients = outputs_and_gradients(self.parameters, contexts, self.num_hidden)
        for start in range(0, len(gradients), gradients.shape[1]):
            self.inverse = updated(self.inverse, gradients[start : start + gradients.shape[1]] / self.num_hidden**0.5)
        self.contexts = np.concatenate([self.contexts, contexts])[-self.num_remembered :]
        self.rewards = np.concatenate([self.rewards, rewards])[-self.num_remembered :]
        self._descend()

    def _descend(self) -> None:
        targets = self.rewards / (np.abs(self.rewards).max() or 1.0)
        decay = self.num_hidden * self.regularisation / len(targets)
        _, gradients = outputs_and_gradients(self.parameters, self.contexts, self.num_hidden)
        step_size = self.step / (np.square(gradients).sum(axis=1).mean() + decay)
        for _ in range(self.num_steps):
            outputs, gradients = outputs_and_gradients(self.parameters, self.contexts, self.num_hidden)
            gradient = (outputs - targets) @ gradients / len(targets) + decay * (self.parameters - self.start)
            self.parameters = self.parameters - step_size * gradient


def updated(inverse: DoubleArray, rows: DoubleArray) -> DoubleArray:
    """Return (Z + AᵀA)⁻¹ = Z⁻¹ − Z⁻¹Aᵀ (I + A Z⁻¹ Aᵀ)⁻¹ A Z⁻¹; A should have fewer rows than Z."""
    projected = rows @ inverse
    return np.asarray(inverse - projected.T @ np.linalg.solve(np.eye(len(rows)) + projected @ rows.T, projected))


def outputs_and_gradients(
    parameters: DoubleArray, contexts: DoubleArray, num_hidden: int
) -> tuple[DoubleArray, DoubleArray]:
    """Return f of each context `(clients,)` and its gradient in θ `(clients, (d + 1) m)`."""
    inner, outer = parameters[:-num_hidden].reshape(num_hidden, -1), parameters[-num_hidden:]
    hidden, root = np.maximum(contexts @ inner.T, 0), num_hidden**0.5
    gradients = np.empty((len(contexts), parameters.size))
    inner_gradients = gradients[:, :-num_hidden].reshape(len(contexts), num_hidden, -1)
    np.multiply(((hidden > 0) * (root * outer))[:, :, None], contexts[:, None, :], out=inner_gradients)
    np.multiply(root, hidden, out=gradients[:, -num_hidden:])
    return root * (hidden @ outer), gradients


def _distinct(names: tuple[Context, ...]) -> tuple[Context, ...]:
    if len({*names}) < len(names):
        raise ValueError("must name each context once")
    return names


class FlashSpec(SelectionSpec):
    """FLASH: a contextual bandit that prefers clients with a large change of loss per unit of time."""

    paper: ClassVar[str] = "Chang et al. 2024, arXiv:2402.08769"

    kind: Literal["flash"] = "flash"
    bandit: Literal["linear", "neural", "restless"] = Field(
        "linear", description="bandit that scores contexts; linear as in the source"
    )
    contexts: Annotated[tuple[Context, ...], AfterValidator(_distinct)] = Field(
        ("training", "validation", "duration", "reward"), min_length=1, description="context of a client"
    )
    context_loss: LossName = Field("robust", description="loss of the training rows in the context")
    reward_loss: LossName = Field("robust", description="loss whose decrease is the reward")
    reward_rows: Rows = Field("training", description="rows on which that loss is measured")
    alpha: float = Field(0.1, ge=0, description="α, weight of the pseudo-label loss in the robust one")
    beta: float = Field(4.0, ge=0, description="β, weight of the reverse cross-entropy in the robust loss")
    credited: Credited = Field(
        "measured",
        description="contexts that are credited with a round's rewards: measured in it, as in the source, those by "
        "which its clients were chosen, or those of the previous round's clients",
    )
    standardised: bool = Field(True, description="whether contexts are standardised to mean 0 and variance 1")
    start_with_all_clients: bool = Field(True, description="whether all reachable clients train in the first round")
    exploration: float = Field(1.0, ge=0, description="factor of the bandit's confidence width")
    delta: float = Field(0.05, gt=0, lt=1, description="δ; smaller values explore more")
    regularisation: float = Field(1.0, gt=0, description="λ, L2 regularisation towards no reward")

    @property
    def validation_share(self) -> float:
        """Share of the training rows on which validation losses are measured; 0 if none are used."""
        return VALIDATION_SHARE if "validation" in (*self.contexts, self.reward_rows) else 0.0

    def _construct(self, cohort: Cohort) -> SelectionPolicy:
        weights: dict[LossName, tuple[float, float]] = {"robust": (self.alpha, self.beta), "cross_entropy": (0.0, 0.0)}
        contexts = ClientContexts(
            cohort.num_clients,
            self.contexts,
            weights[self.context_loss],
            weights[self.reward_loss],
            self.reward_rows,
            self.standardised,
        )
        return ContextualSelection(contexts, self._bandit(cohort), self.start_with_all_clients, self.credited)

    def _bandit(self, cohort: Cohort) -> ContextualBandit:
        size, width, ridge = len(self.contexts), self.exploration, self.regularisation
        if self.bandit == "neural":
            return NeuralBandit(size, exploration=0.1 * width, regularisation=ridge)
        if self.bandit == "restless":
            return DiscountedRegression(size, regularisation=ridge, delta=self.delta, exploration=width)
        return LinearPosterior(
            size, regularisation=ridge, delta=self.delta, exploration=width, num_clients=cohort.num_clients
        )


class RestlessSpec(ContextualSpec):
    """Linear bandit with discounting over FLASH's contexts."""

    paper: ClassVar[str] = "Russac et al. 2019, arXiv:1909.09146"

    kind: Literal["restless"] = "restless"
    discount: float = Field(0.98, gt=0, le=1, description="η, discount of a round per later round")
    exploration: float = Field(1.0, ge=0, description="factor of the confidence width")
    delta: float = Field(0.05, gt=0, lt=1, description="δ; smaller values widen the bound")
    regularisation: float = Field(1.0, gt=0, description="λ, L2 regularisation towards no reward")

    def _bandit(self, num_contexts: int) -> ContextualBandit:
        return DiscountedRegression(num_contexts, self.discount, self.regularisation, self.delta, self.exploration)


class NeuralSpec(ContextualSpec):
    """NeuralUCB over the contexts of FLASH."""

    paper: ClassVar[str] = "Zhou et al. 2020, arXiv:1911.04462"

    kind: Literal["neural"] = "neural"
    num_hidden: int = Field(16, ge=2, le=64, multiple_of=2, description="number of hidden units of the network, even")
    exploration: float = Field(0.1, ge=0, description="γ, weight of the network's uncertainty")
    regularisation: float = Field(1.0, gt=0, description="λ, L2 regularisation towards the initial weights")
    num_steps: int = Field(5, ge=1, description="gradient descent steps per round")
    step: float = Field(1.0, gt=0, le=1, description="step size as a fraction of the largest stable one")
    num_remembered: int = Field(1000, ge=1, description="number of latest contexts and rewards used")

    def _bandit(self, num_contexts: int) -> ContextualBandit:
        return NeuralBandit(num_contexts, **self.model_dump(exclude={"kind"}))
