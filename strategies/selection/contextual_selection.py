"""Choice by a contextual bandit: what four contexts promise of each client, and the M that promise most.

In round t the bandit scores x_t(i) of every reachable client and the M best train; when the round has told what the
received model's losses are, those clients are credited with (x_t(i), r_t(i)). FLASH (`flash.py`) and the two bandits
that it is compared with are this policy with another bandit or other contexts.

No client is promised a turn: one whose contexts score low is passed over for as long as they do.
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.client_selection import (
    ClientTable,
    DoubleArray,
    RoundReport,
    SelectionPolicy,
)
from fedscout.strategies.selection.client_context import ClientContexts

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
