"""FEEL: clients of large updates and short rounds are likelier, in the proportion that trades one for the other best.

Reference:
    Ren, He, Wen, Yu, Huang, Guo: Scheduling for cellular federated edge learning with importance and channel
        awareness. IEEE Transactions on Wireless Communications 19(11), 2020. arXiv:2004.00490

A reconstruction: no code was published, and the constants of the paper's model of the radio link have no counterpart
here. With one client a round, the variance of the unbiased aggregate is weighed against the expected time,

    min over p:  ρ Σ a_i² / p_i + (1 − ρ) Σ p_i T_i,   Σ p_i = 1,

a_i = (n_i / n) ‖g_i‖ the importance of client i and T_i the time of its upload. The minimum is where the derivatives
−ρ a_i² / p_i² + (1 − ρ) T_i are all the same −λ:

    p_i = a_i √(ρ / ((1 − ρ) T_i + λ)), λ such that they sum to 1.

Reconstructed, or other than in the paper:
- The gradient norm is that of the client's last update ‖y − x‖, of the whole of its local training: in the paper every
  device computes its gradient before the choice. Who told none has the mean norm of those that did.
- T_i is the expected duration of the whole round, in which slow computing counts as a bad channel.
- Importance sums to 1 and durations have mean 1, so that ρ has no unit: with equal durations, p_i is the importance.
- An importance is at least a tenth of the mean, so that nobody with an old small update is forgotten.
- M clients are drawn one after another ∝ p without replacement.
- The paper divides each update by n p_i / n_i when it aggregates, which makes the sum unbiased. A policy changes no
  weights of the aggregation: here the choice is biased towards large updates and quick clients.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.client_selection import (
    ClientTable,
    DoubleArray,
    Observed,
    RoundReport,
    SelectionPolicy,
)
from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.strategies.selection.selection_specification import SelectionSpec
from fedscout.strategies.selection.weighted_draw import draw_by_weight

_LEAST_IMPORTANCE = 0.1
"""Of the mean."""
_NUM_HALVINGS = 60
"""More than float64 has bits."""


class Feel(SelectionPolicy):
    """Draws clients by importance and duration; every client is chosen again and again.

    Args:
        importance_weight: ρ, in (0, 1].

    Attributes:
        update_norm: The last one that each client told.
    """

    observes = Observed(update_norms=True)

    def __init__(self, importance_weight: float) -> None:
        self._importance_weight = importance_weight
        self.update_norm: dict[int, float] = {}

    def choose(
        self, server_round: int, table: ClientTable, num_chosen: int, generator: np.random.Generator
    ) -> IntArray:
        """Return clients drawn ∝ p."""
        del server_round
        if not len(table.clients):
            return table.clients
        probabilities = scheduling_probabilities(self._importance(table), table.seconds, self._importance_weight)
        return table.clients[draw_by_weight(probabilities, num_chosen, generator)]

    def observe(self, report: RoundReport) -> None:
        """Take in the update norms."""
        told = report.trained & np.isfinite(report.update_norm)
        norms = zip(report.clients[told].tolist(), report.update_norm[told].tolist(), strict=True)
        self.update_norm.update(norms)

    def _importance(self, table: ClientTable) -> DoubleArray:
        """Return rows times update norm, each above 0."""
        known = [norm for client in table.clients.tolist() if (norm := self.update_norm.get(client)) is not None]
        typical = float(np.mean(known)) if known else 1.0
        norms = np.array([self.update_norm.get(client, typical) for client in table.clients.tolist()])
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
    typical = seconds.mean()
    delays = (1 - importance_weight) * (seconds - seconds.min()) / (typical if typical > 0 else 1.0)

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
    """Clients of large updates and short rounds are likelier; a reconstruction."""

    paper: ClassVar[str] = "Ren et al. 2020, arXiv:2004.00490"

    kind: Literal["feel"] = "feel"
    importance_weight: float = Field(
        0.5, gt=0, le=1, description="ρ, weight of update importance against time; 1 leaves time out"
    )

    def _construct(self, cohort: Cohort) -> SelectionPolicy:
        del cohort
        return Feel(self.importance_weight)
