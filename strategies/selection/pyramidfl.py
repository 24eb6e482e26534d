"""PyramidFL: Oort's choice, and every chosen client has its own share to send and its own amount of work.

Reference:
    Li, Zeng, Zhang, Cao: PyramidFL: A fine-grained client selection framework for efficient federated learning.
        MobiCom 2022. Its public code decides where the text is silent.

Of M chosen clients, rank k = 0 … M − 1 has the k-th largest update norm. It withholds a share .1 + .5 k / M of the
model's tensors, so that the most important updates come whole, and trains 1 + min(10, ⌊slack⌋) times as many epochs,
slack being the time by which it is quicker than the slowest, in units of its own duration.

Deviations:
- The update norm ranks clients; the code multiplies it by the rows.
- A client without a known update norm ranks first, as in the code, where the rows of those that never trained compete
  with norms. Equal norms share a rank.
- The code counts slack in units of local computing, and what a client withholds counts as saved time. Here the units
  are whole rounds, for nothing else is known of a client: nobody takes longer than the slowest at one share of work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.client_selection import (
    Assignment,
    ClientTable,
    DoubleArray,
    Observed,
    RoundReport,
    SelectionPolicy,
)
from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.engine.errors import Fault
from fedscout.strategies.selection.oort import Oort, OortParameters


class PyramidFLSpec(OortParameters):
    """Oort's choice; large updates are sent whole, quick clients train longer."""

    paper: ClassVar[str] = "Li et al. 2022, doi:10.1145/3495243.3517017"

    kind: Literal["pyramidfl"] = "pyramidfl"
    withheld_first: float = Field(0.1, ge=0, lt=1, description="Share of tensors that the largest update withholds")
    withheld_last: float = Field(0.6, ge=0, lt=1, description="The same of one after the smallest")
    extra_epochs: int = Field(10, ge=0, description="How many times its epochs a quick client trains more, at most")

    def faults(self, cohort: Cohort) -> list[str]:
        """Return why the policy can't choose in a cohort; large updates must withhold less than small ones."""
        faults = super().faults(cohort)
        if self.withheld_first > self.withheld_last:
            faults.append(
                Fault(
                    "withheld_first of selection.kind=pyramidfl",
                    f"be at most withheld_last, {self.withheld_last:g}",
                    f"{self.withheld_first:g}",
                )
            )
        return faults

    def _construct(self, cohort: Cohort) -> SelectionPolicy:
        del cohort
        return PyramidFL(self)


class PyramidFL(Oort):
    """Oort with an assignment for each chosen client; may starve clients as Oort may.

    Args:
        parameters: Of the policy.

    Attributes:
        update_norm: The last one that each client told.
    """

    observes = Observed(training_losses=True, update_norms=True)

    def __init__(self, parameters: PyramidFLSpec) -> None:
        super().__init__(parameters)
        self._withheld = (parameters.withheld_first, parameters.withheld_last)
        self._extra_epochs = parameters.extra_epochs
        self.update_norm: dict[int, float] = {}

    def assign(self, table: ClientTable, chosen: Sequence[int]) -> Mapping[int, Assignment]:
        """Return what each chosen client withholds, and how many times the epochs of a round it trains."""
        clients = np.asarray(chosen, np.int64)
        norms = np.array([self.update_norm.get(client, np.inf) for client in clients.tolist()])
        first, last = self._withheld
        withheld = first + (last - first) * ranks(norms) / max(len(clients), 1)
        seconds = table.seconds[np.searchsorted(table.clients, clients)]
        epochs = 1 + whole_slack(seconds, self._extra_epochs)
        told = zip(clients.tolist(), epochs.tolist(), withheld.tolist(), strict=True)
        return {client: Assignment(each, share) for client, each, share in told}

    def observe(self, report: RoundReport) -> None:
        """Take in the update norms, and what Oort takes in."""
        super().observe(report)
        told = report.trained & np.isfinite(report.update_norm)
        norms = zip(report.clients[told].tolist(), report.update_norm[told].tolist(), strict=True)
        self.update_norm.update(norms)


def ranks(norms: DoubleArray) -> IntArray:
    """Return how many are larger, for each of shape (clients,): 0 for the largest."""
    return len(norms) - np.searchsorted(np.sort(norms), norms, side="right")


def whole_slack(seconds: DoubleArray, most: int) -> IntArray:
    """Return how many more rounds each would finish while the slowest does one, in [0, `most`].

    Args:
        seconds: Durations, shape (clients,), at least 0; without a clock all are 0, and there is no slack.
        most: The largest answer.
    """
    slack = seconds.max(initial=0.0) - seconds
    fits = slack >= most * seconds  # no division where a client takes no time
    quotient = np.divide(slack, seconds, out=np.zeros(len(seconds)), where=~fits)
    return np.where(fits & (slack > 0), most, np.floor(quotient)).astype(np.int64)
