"""What a bandit is shown of each client, and the reward that it learns from.

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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.client_selection import ClientTable, DoubleArray, Losses, Observed, RoundReport

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
    def observes(self) -> Observed:
        """What reports must hold, of everybody: a client's contexts are those of now, whether or not it trained."""
        return Observed(
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
