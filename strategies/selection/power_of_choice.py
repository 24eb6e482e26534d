"""Power of choice: of d candidates, those of the highest loss.

Reference:
    Cho, Wang, Joshi: Client selection in federated learning: Convergence analysis and power-of-choice selection
        strategies. 2020 (AISTATS 2022: Towards understanding biased client selection in federated learning).
        arXiv:2010.01243

d candidates are drawn without replacement ∝ rows, and of these the M of the largest loss train. d = M is the draw by
rows alone; d = all clients are the largest losses alone.

- `losses="latest"` is rpow-d: the loss that counts is the mean over all rows seen when a client last trained, and a
  client that never trained has an infinite one. It costs the clients nothing.
- `losses="probed"` is pow-d, but for the time: the loss is that of the model received in the last round, on all
  training rows of each client, where the paper's candidates measure the one that is about to be sent. Every client
  receives the model for that.

Deviations: candidates of equal loss train in the order in which they were drawn. A client whose loss is no finite
number counts as one of no loss. If fewer than d clients can be reached, all are candidates.
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
from fedscout.engine.errors import Fault
from fedscout.strategies.selection.selection_specification import SelectionSpec
from fedscout.strategies.selection.weighted_draw import draw_by_weight


class PowerOfChoice(SelectionPolicy):
    """Ranks candidates by the loss of their last training.

    A client that fails stays as it was. Every client trains once; after that the d − M clients of the lowest known
    loss never train while those of all others stay above.

    Args:
        num_candidates: d.

    Attributes:
        loss: The last one of each client that told any.
    """

    def __init__(self, num_candidates: int) -> None:
        self._num_candidates = num_candidates
        self.loss: dict[int, float] = {}

    def choose(
        self, server_round: int, table: ClientTable, num_chosen: int, generator: np.random.Generator
    ) -> IntArray:
        """Return the candidates of the largest loss, largest first."""
        del server_round
        num_candidates = max(self._num_candidates, num_chosen)  # a round may ask for more than usual
        drawn = draw_by_weight(table.num_examples.astype(np.float64), num_candidates, generator)
        candidates = table.clients[drawn]
        losses = np.array([self.loss.get(client, np.inf) for client in candidates.tolist()])
        return candidates[np.argsort(-losses, kind="stable")[:num_chosen]]

    def observe(self, report: RoundReport) -> None:
        """Take in the losses of local training."""
        self._take(report.clients[report.trained], report.loss[report.trained])

    def _take(self, clients: IntArray, losses: DoubleArray) -> None:
        told = np.where(np.isfinite(losses), losses, 0.0)
        self.loss.update(zip(clients.tolist(), told.tolist(), strict=True))


class ProbedPowerOfChoice(PowerOfChoice):
    """Ranks candidates by the loss of the last round's model on their rows.

    May starve clients: the d − M of the lowest loss never train while they are the lowest.
    """

    observes = Observed(training_losses=True, everybody=True)

    def observe(self, report: RoundReport) -> None:
        """Take in the losses of everybody."""
        if not len(report.clients):
            return
        assert report.training is not None, "the policy asks for the losses on training rows"
        self._take(report.clients, report.training.cross_entropy)


class PowerOfChoiceSpec(SelectionSpec):
    """Of a few candidates drawn by rows, those of the highest loss."""

    paper: ClassVar[str] = "Cho et al. 2020, arXiv:2010.01243"

    kind: Literal["power_of_choice"] = "power_of_choice"
    candidates: int | None = Field(None, ge=1, description="d, clients to choose among; by default 2 M, or all")
    losses: Literal["latest", "probed"] = Field(
        "latest", description="Of a client's own last training, or of the last round's model, measured by every client"
    )

    def faults(self, cohort: Cohort) -> list[str]:
        """Return why the policy can't choose in a cohort; d must lie between M and all clients."""
        faults = super().faults(cohort)
        if self.candidates is not None and not cohort.num_sampled <= self.candidates <= cohort.num_clients:
            faults.append(
                Fault(
                    "candidates of selection.kind=power_of_choice",
                    (
                        f"be from {cohort.num_sampled}, the clients that train in a round, to "
                        f"{cohort.num_clients}, all clients"
                    ),
                    self.candidates,
                )
            )
        return faults

    def _construct(self, cohort: Cohort) -> SelectionPolicy:
        policy = PowerOfChoice if self.losses == "latest" else ProbedPowerOfChoice
        return policy(self.candidates or min(2 * cohort.num_sampled, cohort.num_clients))
