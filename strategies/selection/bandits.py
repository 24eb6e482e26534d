"""Contextual bandits that select clients: FLASH, restless and neural bandits, their contexts and rewards.

What a bandit is shown of each client, and the reward that it learns from.

With L_t(i) a loss of the model that round t sent out, V_t(i) its cross-entropy on the client's validation rows and τ a
duration, the contexts of the choice for round t and the reward of round t are (X. Chang et al.: FLASH: Federated
Learning Across Simultaneous Heterogeneities, arXiv:2402.08769, 2024)

    x_t(i) = [L_{t−1}(i)/L_1(i), V_{t−1}(i)/V_1(i), τ(i), r_{t−1}(i)],      r_t(i) = |L_t(i) − L_{t−1}(i)| / τ_{t−1}.

A choice is made before the round measures, so contexts hold what round t − 1 told. The absolute value rewards a loss
that rises as much as one that falls. Where the source leaves it open:

- L_1 is the first loss that a client told, and until then the ratio is 1; the reward starts at 0. A client that was
  silent for a while is rewarded with the change since it last told. A loss that is no number, or beyond a million, is
  none.
- τ of a context is the client's own expected duration, since the round's is the same for all and tells none apart; τ of
  the reward is the last round's. Both can be otherwise. Without a clock, and where a duration is 0, τ = 1.
- Contexts are standardised over the clients of the table, else τ dominates; what is the same for all becomes 0.

Choice by a contextual bandit: what four contexts promise of each client, and the M that promise most.

In round t the bandit scores x_t(i) of every reachable client and the M best train; when the round has told what the
received model's losses are, those clients are credited with (x_t(i), r_t(i)). FLASH (`bandits.py`) and the two bandits
that it is compared with are this policy with another bandit or other contexts.

No client is promised a turn: one whose contexts score low is passed over for as long as they do.

What the bandits have in common with which FLASH is compared: its contexts and rewards, with plain cross-entropy.

Linear regression that forgets, and its upper confidence bound: a bandit whose arms change while nobody plays them.

Every round the past counts η less (Russac, Vernade, Cappé: Weighted linear bandits for non-stationary environments,
NeurIPS 2019, arXiv:1909.09146, Algorithm 1, D-LinUCB):

    V ← ηV + Σ x_i x_iᵀ + (1 − η)λI,   Ṽ ← η²Ṽ + Σ x_i x_iᵀ + (1 − η²)λI,   b ← ηb + Σ r_i x_i,
    score_i = θ̂ᵀx_i + β_t √(x_iᵀ V⁻¹ Ṽ V⁻¹ x_i),   θ̂ = V⁻¹ b,
    β_t = √λ + √(2 ln(1/δ) + d ln(1 + (1 − η^{2t}) / (λd(1 − η²)))).

Deviations: a round credits several clients, and forgets once a round; t counts rounds; the bounds on θ, x and the noise
that β_t asks for are 1; β_t can be scaled. With η = 1 it is LinUCB, which never forgets.

FLASH: a bandit over contexts of noisy, skewed and slow clients chooses those from which most is still learnt.

Reference:
    X. Chang et al.: FLASH: Federated Learning Across Simultaneous Heterogeneities. arXiv:2402.08769, 2024

Contexts and rewards are those of `bandits.py`, with the source's choices as defaults where it makes one: the
robust loss CE + α·pseudo + β·RCE on training rows. The source's own bandit is a linear one that draws its coefficients
(`bandits.py`); `bandit` puts another in its place, and `contexts` leaves some out, as its ablations do.
`start_from_everyone`: in the first round every reachable client trains, S₀ of the source, so that the first choice has
more clients than are asked for. The source prints neither its (α, β) nor its share of validation rows, so these are the
first that it studied, and 0.1. Clients train with the robust loss only if their strategy says so. Every client receives
the model and measures it, every round. No client is promised a turn.

Linear regression of rewards on contexts, and draws of its coefficients (Thompson sampling).

With V₀ = λI and b₀ = 0, after each round V += Σ x_i x_iᵀ and b += Σ r_i x_i over the credited clients; then

    θ̂ = V⁻¹ b,   γ_t = √λ + √(d ln((1 + tK)/δ)),   θ̃ ~ N(θ̂, γ_t² V⁻¹),   score_i = θ̃ᵀ x_i

(X. Chang et al.: FLASH, arXiv:2402.08769, 2024; the posterior is that of Agrawal, Goyal: Thompson sampling for
contextual bandits with linear payoffs, ICML 2013, arXiv:1209.3352). t counts the rounds that were taken in. Beyond the
source, γ_t can be scaled: at 0 the draw is θ̂ itself.

A restless linear bandit: rewards are linear in contexts, by coefficients that change while a client is not chosen.

A reconstruction of the baseline of that name in X. Chang et al.: FLASH, arXiv:2402.08769, 2024: the discounted
regression of Russac, Vernade, Cappé: Weighted linear bandits for non-stationary environments, NeurIPS 2019,
arXiv:1909.09146 (`bandits.py`), over the contexts and rewards of FLASH (`bandits.py`) with plain
cross-entropy. It does not start from everyone. No client is promised a turn.

A neural bandit: a small network tells rewards from contexts.

A reconstruction of the baseline of that name in X. Chang et al.: FLASH, arXiv:2402.08769, 2024: NeuralUCB (Zhou, Li,
Gu: Neural contextual bandits with UCB-based exploration, ICML 2020, arXiv:1911.04462; `bandits.py`) over the
contexts and rewards of FLASH (`bandits.py`) with plain cross-entropy. It does not start from everyone. No
client is promised a turn.

NeuralUCB: a small network tells rewards from contexts, and its gradients how unsure it is.

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

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Protocol

import numpy as np
from pydantic import AfterValidator, Field

from fedscout.engine.arrays import IntArray
from fedscout.engine.messages.calls import (
    ClientTable,
    Cohort,
    DoubleArray,
    Losses,
    ReportRequest,
    RoundReport,
    SelectionPolicy,
)
from fedscout.strategies.selection.base import SelectionSpec

Context = Literal["training", "validation", "duration", "reward"]
LossName = Literal["robust", "cross_entropy", "pseudo"]
Rows = Literal["training", "validation"]
Duration = Literal["own", "round"]

VALIDATION_SHARE = 0.1
"""Share of the training rows that validation losses are measured on; the source does not say its own."""

LOG_OF_ZERO = -4.0
"""A, in place of log 0: the reverse cross-entropy of a one-hot label is −A(1 − p_y)."""

LARGEST_LOSS = 1e6
"""A larger loss tells only that the model has diverged."""


@dataclass(frozen=True)
class MeasuredLoss:
    """A loss of the received model.

    Attributes:
        name: `"cross_entropy"`; `"pseudo"`, the cross-entropy with the received model's own soft outputs as labels,
            which at the received model is its entropy; `"robust"`, CE + α pseudo + β RCE.
        rows: Whether it is measured on training or on validation rows.
        alpha: α >= 0.
        beta: β >= 0.
    """

    name: LossName = "cross_entropy"
    rows: Rows = "training"
    alpha: float = 0.0
    beta: float = 0.0

    def of(self, report: RoundReport) -> DoubleArray:
        """Return the loss of each client of a report; NaN of who told none, or one beyond `LARGEST_LOSS`."""
        losses = report.training if self.rows == "training" else report.validation
        if losses is None:
            return np.full(len(report.clients), np.nan)
        combined = self._combined(losses)
        return np.where(np.abs(combined) <= LARGEST_LOSS, combined, np.nan)

    def _combined(self, losses: Losses) -> DoubleArray:
        if self.name == "cross_entropy":
            return losses.cross_entropy
        if self.name == "pseudo":
            return losses.entropy
        return losses.cross_entropy + self.alpha * losses.entropy - self.beta * LOG_OF_ZERO * losses.miss


class _FirstAndLast:
    """What each client told first, and last; NaN before."""

    def __init__(self, num_clients: int) -> None:
        self.first = np.full(num_clients, np.nan)
        self.last = np.full(num_clients, np.nan)

    def take(self, clients: IntArray, values: DoubleArray) -> None:
        told = ~np.isnan(values)
        clients, values = clients[told], values[told]
        self.first[clients] = np.where(np.isnan(self.first[clients]), values, self.first[clients])
        self.last[clients] = values

    def ratio(self, clients: IntArray) -> DoubleArray:
        known = self.first[clients] > 0
        ratios = np.ones(len(clients))
        ratios[known] = self.last[clients][known] / self.first[clients][known]
        return ratios


class ClientContexts:
    """The contexts of all clients, kept up to date by the rounds' reports.

    Args:
        num_clients: K, clients of the federation, numbered from 0.
        names: Which contexts there are, each once.
        context_loss: L of the first context.
        reward_loss: L of the reward.
        context_duration: τ of the context: `"own"`, what the client is expected to take, or `"round"`, the last round.
        reward_duration: τ of the reward, likewise.
        standardised: Whether each context has mean 0 and variance 1 over the clients of the table.
    """

    def __init__(
        self,
        num_clients: int,
        names: Sequence[Context] = ("training", "validation", "duration", "reward"),
        context_loss: MeasuredLoss = MeasuredLoss(),
        reward_loss: MeasuredLoss = MeasuredLoss(),
        context_duration: Duration = "own",
        reward_duration: Duration = "round",
        standardised: bool = True,
    ) -> None:
        self.num_clients = num_clients
        self._names = list(names)
        self._context_loss, self._reward_loss = context_loss, reward_loss
        self._context_duration, self._reward_duration = context_duration, reward_duration
        self._standardised = standardised
        self._training = _FirstAndLast(num_clients)
        self._validation = _FirstAndLast(num_clients)
        self._rewarded = _FirstAndLast(num_clients)
        self._rewards = np.zeros(num_clients)
        self._own_seconds = np.ones(num_clients)
        self._round_seconds = np.nan

    @property
    def num_contexts(self) -> int:
        """d, the length of a context."""
        return len(self._names)

    @property
    def observes(self) -> ReportRequest:
        """What reports must hold, of everybody: a client's contexts are those of now, whether or not it trained."""
        return ReportRequest(
            training_losses="training" in self._names or self._reward_loss.rows == "training",
            validation_losses="validation" in self._names or self._reward_loss.rows == "validation",
            everybody=True,
        )

    def show(self, table: ClientTable) -> DoubleArray:
        """Return the contexts of a table's clients, `(clients, d)`."""
        self._own_seconds[table.clients] = np.where(table.seconds > 0, table.seconds, 1.0)
        shown = np.stack([self._context(name, table.clients) for name in self._names], axis=1)
        return standardised(shown) if self._standardised else shown

    def _context(self, name: Context, clients: IntArray) -> DoubleArray:
        if name == "training":
            return self._training.ratio(clients)
        if name == "validation":
            return self._validation.ratio(clients)
        if name == "reward":
            return self._rewards[clients]
        return self._seconds(self._context_duration)[clients]

    def _seconds(self, duration: Duration) -> DoubleArray:
        """Return τ by client; before a round has lasted, what is expected of each."""
        if duration == "own" or np.isnan(self._round_seconds):
            return self._own_seconds
        return np.full(self.num_clients, self._round_seconds)

    def take(self, report: RoundReport) -> DoubleArray:
        """Take in a round.

        Returns:
            The reward of each client, `(num_clients,)`; NaN of those whose change is not known.
        """
        losses = self._reward_loss.of(report)
        changes = np.abs(losses - self._rewarded.last[report.clients])
        rewards = np.full(self.num_clients, np.nan)
        rewards[report.clients] = changes / self._seconds(self._reward_duration)[report.clients]
        self._rewards = np.where(np.isnan(rewards), self._rewards, rewards)
        self._rewarded.take(report.clients, losses)
        self._training.take(report.clients, self._context_loss.of(report))
        self._validation.take(report.clients, MeasuredLoss(rows="validation").of(report))
        self._round_seconds = report.round_seconds if report.round_seconds > 0 else 1.0
        return rewards


def standardised(contexts: DoubleArray) -> DoubleArray:
    """Return each column with mean 0 and variance 1; a column of one value becomes 0."""
    centred = contexts - contexts.mean(axis=0)
    spread = contexts.std(axis=0)
    varies = spread > 1e-12 * np.abs(contexts).max(axis=0, initial=0)
    return np.asarray(np.where(varies, centred / np.where(varies, spread, 1.0), 0.0))


Credited = Literal["current", "previous"]


class ContextualBandit(Protocol):
    """Tells from contexts what reward to hope for, and learns from the rewards that came."""

    def scores(self, contexts: DoubleArray, generator: np.random.Generator) -> DoubleArray:
        """Return the score of each context, `(clients,)` of `(clients, d)`; asked once a round."""
        ...

    def update(self, contexts: DoubleArray, rewards: DoubleArray) -> None:
        """Take in a round: contexts `(chosen, d)` and their finite rewards `(chosen,)`; there may be none."""
        ...


class ContextualSelection(SelectionPolicy):
    """The M clients whose contexts a bandit scores highest.

    In the first round all clients look alike, and equals are told apart at random. With `start_from_everyone` every
    reachable client trains then, so the first choice has more than `num_chosen` clients.

    Args:
        contexts: Of the clients, with what measures them.
        bandit: Of as many dimensions as there are contexts.
        start_from_everyone: Whether all reachable clients train in the first round.
        credited: Whose contexts a round's rewards go to: of those that trained in it (`"current"`, as printed), or in
            the round before (`"previous"`), whose training made the difference.
    """

    def __init__(
        self,
        contexts: ClientContexts,
        bandit: ContextualBandit,
        start_from_everyone: bool = False,
        credited: Credited = "current",
    ) -> None:
        self.contexts = contexts
        self.bandit = bandit
        self.start_from_everyone = start_from_everyone
        self.credited = credited
        self.observes = contexts.observes
        self._shown = np.zeros((contexts.num_clients, contexts.num_contexts))
        self._shown_before = self._shown
        self._trained_before = np.zeros(contexts.num_clients, bool)

    def choose(
        self, server_round: int, table: ClientTable, num_chosen: int, generator: np.random.Generator
    ) -> IntArray:
        """Return the clients that score highest; all of the table in round 1 of a policy that starts so."""
        shown = self.contexts.show(table)
        scores = self.bandit.scores(shown, generator)
        self._shown_before = self._shown
        self._shown = np.zeros_like(self._shown)
        self._shown[table.clients] = shown
        if self.start_from_everyone and server_round == 1:
            return table.clients
        return table.clients[highest(scores, num_chosen, generator)]

    def observe(self, report: RoundReport) -> None:
        """Credit the contexts with what came of them."""
        rewards = self.contexts.take(report)
        trained = np.zeros_like(self._trained_before)
        trained[report.clients[report.trained]] = True
        now = self.credited == "current"
        credited = (trained if now else self._trained_before) & np.isfinite(rewards)
        self.bandit.update((self._shown if now else self._shown_before)[credited], rewards[credited])
        self._trained_before = trained


def highest(scores: DoubleArray, num_chosen: int, generator: np.random.Generator) -> IntArray:
    """Return the places of the highest scores, equals in random order; NaN is the lowest."""
    order = generator.permutation(len(scores))
    return order[np.argsort(-scores[order], kind="stable")[:num_chosen]]


class ContextualSpec(SelectionSpec):
    """A bandit over the contexts of FLASH that does not start from everyone."""

    @property
    def validation_share(self) -> float:
        """Share of the training rows on which validation losses are measured."""
        return VALIDATION_SHARE

    @abstractmethod
    def _bandit(self, num_contexts: int) -> ContextualBandit:
        """Construct the bandit, of so many contexts."""

    def _construct(self, cohort: Cohort) -> SelectionPolicy:
        contexts = ClientContexts(cohort.num_clients)
        return ContextualSelection(contexts, self._bandit(contexts.num_contexts))


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


def _distinct(names: tuple[Context, ...]) -> tuple[Context, ...]:
    if len({*names}) < len(names):
        raise ValueError("must name each context once")
    return names


class FlashSpec(SelectionSpec):
    """FLASH: a contextual bandit; clients whose losses change most in the time that they take."""

    paper: ClassVar[str] = "Chang et al. 2024, arXiv:2402.08769"

    kind: Literal["flash"] = "flash"
    bandit: Annotated[
        Literal["linear", "neural", "restless"], Field(description="what scores contexts; the source's is linear")
    ] = "linear"
    contexts: Annotated[
        tuple[Context, ...], Field(min_length=1, description="what is told of a client"), AfterValidator(_distinct)
    ] = ("training", "validation", "duration", "reward")
    context_loss: Annotated[LossName, Field(description="loss of the context of training rows")] = "robust"
    reward_loss: Annotated[LossName, Field(description="loss whose change is the reward")] = "robust"
    reward_rows: Annotated[Rows, Field(description="rows on which that loss is measured")] = "training"
    alpha: Annotated[float, Field(ge=0, description="α, weight of the pseudo-label loss in the robust one")] = 0.1
    beta: Annotated[float, Field(ge=0, description="β, weight of the reverse cross-entropy in the robust loss")] = 4.0
    context_duration: Annotated[
        Duration, Field(description="duration in the context: the client's expected one, or the last round's")
    ] = "own"
    reward_duration: Annotated[Duration, Field(description="duration that divides the reward, likewise")] = "round"
    credited: Annotated[
        Credited, Field(description="whose contexts get a round's rewards: of those that train in it, or before it")
    ] = "current"
    standardised: Annotated[bool, Field(description="whether contexts have mean 0 and variance 1")] = True
    start_from_everyone: Annotated[
        bool, Field(description="whether all reachable clients train in the first round")
    ] = True
    exploration: Annotated[float, Field(ge=0, description="what the bandit's own width is multiplied by")] = 1.0
    delta: Annotated[float, Field(gt=0, lt=1, description="δ; the smaller, the more a bandit explores")] = 0.05
    regularisation: Annotated[float, Field(gt=0, description="λ, evidence for no reward at all")] = 1.0

    @property
    def validation_share(self) -> float:
        """Share of the training rows on which validation losses are measured; 0 where no context or reward is."""
        return VALIDATION_SHARE if "validation" in (*self.contexts, self.reward_rows) else 0.0

    def _construct(self, cohort: Cohort) -> SelectionPolicy:
        contexts = ClientContexts(
            cohort.num_clients,
            self.contexts,
            context_loss=MeasuredLoss(self.context_loss, "training", self.alpha, self.beta),
            reward_loss=MeasuredLoss(self.reward_loss, self.reward_rows, self.alpha, self.beta),
            context_duration=self.context_duration,
            reward_duration=self.reward_duration,
            standardised=self.standardised,
        )
        return ContextualSelection(contexts, self._bandit(cohort), self.start_from_everyone, self.credited)

    def _bandit(self, cohort: Cohort) -> ContextualBandit:
        size, width, ridge = len(self.contexts), self.exploration, self.regularisation
        if self.bandit == "neural":
            return NeuralBandit(size, exploration=0.1 * width, regularisation=ridge)
        if self.bandit == "restless":
            return DiscountedRegression(size, regularisation=ridge, delta=self.delta, exploration=width)
        return LinearPosterior(size, cohort.num_clients, ridge, self.delta, width)


class RestlessSpec(ContextualSpec):
    """A linear bandit that forgets, over the contexts of FLASH."""

    paper: ClassVar[str] = "Russac et al. 2019, arXiv:1909.09146"

    kind: Literal["restless"] = "restless"
    discount: Annotated[float, Field(gt=0, le=1, description="η, what a round is worth a round later")] = 0.98
    exploration: Annotated[float, Field(ge=0, description="what the width of the bound is multiplied by")] = 1.0
    delta: Annotated[float, Field(gt=0, lt=1, description="δ; the smaller, the wider the bound")] = 0.05
    regularisation: Annotated[float, Field(gt=0, description="λ, evidence for no reward at all")] = 1.0

    def _bandit(self, num_contexts: int) -> ContextualBandit:
        return DiscountedRegression(num_contexts, self.discount, self.regularisation, self.delta, self.exploration)


class NeuralSpec(ContextualSpec):
    """NeuralUCB over the contexts of FLASH."""

    paper: ClassVar[str] = "Zhou et al. 2020, arXiv:1911.04462"

    kind: Literal["neural"] = "neural"
    num_hidden: Annotated[int, Field(ge=2, le=64, multiple_of=2, description="hidden units of the network, even")] = 16
    exploration: Annotated[float, Field(ge=0, description="γ, weight of what the network is unsure of")] = 0.1
    regularisation: Annotated[float, Field(gt=0, description="λ, pull towards the network's start")] = 1.0
    num_steps: Annotated[int, Field(ge=1, description="steps of gradient descent a round")] = 5
    step: Annotated[float, Field(gt=0, le=1, description="their length, as a part of the longest that is safe")] = 1.0
    num_remembered: Annotated[int, Field(ge=1, description="contexts and rewards that they go over, the last")] = 1000

    def _bandit(self, num_contexts: int) -> ContextualBandit:
        return NeuralBandit(num_contexts, **self.model_dump(exclude={"kind"}))
