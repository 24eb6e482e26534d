"""FedCor: who trains is whose loss tells most of all clients' losses, by a Gaussian process over their changes.

Reference:
    Tang, Ning, Wang, Sun, Wang, Li, Chen: FedCor: Correlation-based active client selection strategy for heterogeneous
        federated learning. CVPR 2022, Algorithm 1. arXiv:2103.13822

In the warm-up clients are drawn uniformly while everybody tells its loss on its training rows. Then the covariance of
the changes from round to round is fitted (`loss_covariance.py`), and again every few rounds; in between it stays, and
clients are chosen greedily by conditioning. Each time that a client is chosen its factor α_k shrinks, until the next
fit makes all 1 again: so no client is promised a turn.

Deviations: every round's changes are fitted, where the source has one round of random clients before a fit; the loss is
therefore measured in all rounds, and every client pays for that. The changes' mean is taken off, client by client, and
the change of a client that was silent counts as that mean. Shares p_i are those of the clients in reach. L-BFGS from
the principal components takes the place of Adam from a random start. While there are no two rounds' changes to fit,
choice stays uniform.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

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
from fedscout.engine.errors import Fault
from fedscout.strategies.selection.client_context import MeasuredLoss
from fedscout.strategies.selection.loss_covariance import fitted, greedy_choice
from fedscout.strategies.selection.selection_specification import SelectionSpec


class FedCorSpec(SelectionSpec):
    """FedCor: clients whose loss changes tell most of all others', by a Gaussian process."""

    paper: ClassVar[str] = "Tang et al. 2022, arXiv:2103.13822"

    kind: Literal["fedcor"] = "fedcor"
    warm_up: Annotated[int, Field(ge=3, description="rounds of random choice before the first fit")] = 15
    refit_every: Annotated[int, Field(ge=1, description="rounds from one fit of the covariance to the next")] = 10
    dimension: Annotated[int, Field(ge=1, description="numbers in a client's embedding")] = 15
    annealing: Annotated[
        float, Field(gt=0, le=1, description="what α of a client is multiplied by when it is chosen")
    ] = 0.95
    num_remembered: Annotated[int, Field(ge=2, description="rounds whose changes a fit looks at")] = 50
    discount: Annotated[float, Field(gt=0, le=1, description="what a round counts less than the next in a fit")] = 0.99
    num_steps: Annotated[int, Field(ge=1, description="steps of a fit, at most")] = 50

    def faults(self, cohort: Cohort) -> list[str]:
        """Return why the policy can't choose in a cohort: too few rounds, or too few clients."""
        faults = super().faults(cohort)
        if cohort.num_rounds is not None and cohort.num_rounds <= self.warm_up:
            faults.append(
                Fault(
                    "warm_up of selection.kind=fedcor",
                    (f"be less than the rounds of a training, {cohort.num_rounds}, or it only draws clients at random"),
                    self.warm_up,
                )
            )
        if cohort.num_clients <= self.dimension:
            faults.append(
                Fault(
                    "dimension of selection.kind=fedcor",
                    (
                        f"be less than the number of clients, {cohort.num_clients}, or embeddings can't "
                        "tell what clients have in common"
                    ),
                    self.dimension,
                )
            )
        return faults

    def _construct(self, cohort: Cohort) -> SelectionPolicy:
        return FedCor(cohort.num_clients, self)


class FedCor(SelectionPolicy):
    """Random clients at first, then greedy ones.

    Args:
        num_clients: K, clients of the federation, numbered from 0.
        spec: The parameters.

    Attributes:
        embeddings: X, `(dimension, num_clients)`; 0 before the first fit.
        annealing: α, `(num_clients,)`.
    """

    observes = Observed(training_losses=True, everybody=True)

    def __init__(self, num_clients: int, spec: FedCorSpec) -> None:
        self._warm_up, self._refit_every = spec.warm_up, spec.refit_every
        self._num_remembered, self._discount, self._num_steps = spec.num_remembered, spec.discount, spec.num_steps
        self._shrinks_by = spec.annealing
        self._losses = np.full(num_clients, np.nan)
        self._changes = np.zeros((0, num_clients))
        self._next_fit = spec.warm_up + 1
        self.embeddings = np.zeros((spec.dimension, num_clients))
        self.annealing = np.ones(num_clients)

    def choose(
        self, server_round: int, table: ClientTable, num_chosen: int, generator: np.random.Generator
    ) -> IntArray:
        """Return clients drawn uniformly in the warm-up, those that tell most afterwards."""
        if server_round >= self._next_fit and len(self._changes) >= 2:
            self._fit()
            self._next_fit = server_round + self._refit_every
        if not self.embeddings.any():
            return generator.choice(table.clients, num_chosen, replace=False)
        shares = table.num_examples / table.num_examples.sum()
        places = greedy_choice(self.embeddings[:, table.clients], shares, self.annealing[table.clients], num_chosen)
        chosen = table.clients[places]
        self.annealing[chosen] *= self._shrinks_by
        return chosen

    def observe(self, report: RoundReport) -> None:
        """Note how the losses changed since the round before."""
        losses = np.full(len(self._losses), np.nan)
        losses[report.clients] = MeasuredLoss().of(report)
        changes = losses - self._losses
        self._losses = losses
        if np.isfinite(changes).any():
            self._changes = np.concatenate([self._changes, changes[None]])[-self._num_remembered :]

    def _fit(self) -> None:
        weights = np.power(self._discount, np.arange(len(self._changes))[::-1], dtype=np.float64)
        deviations = without_means(self._changes, weights)
        self.embeddings = fitted(deviations, weights, len(self.embeddings), self._num_steps)
        self.annealing = np.ones_like(self.annealing)


def without_means(changes: DoubleArray, weights: DoubleArray) -> DoubleArray:
    """Return each client's changes `(rounds, clients)` less their weighted mean; 0 in place of NaN."""
    known = np.isfinite(changes)
    total = weights @ known
    means = np.divide(weights @ np.where(known, changes, 0.0), total, out=np.zeros_like(total), where=total > 0)
    return np.where(known, changes - means, 0.0)
