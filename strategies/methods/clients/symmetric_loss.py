"""The symmetric cross-entropy: clients whose labels may be wrong believe their model, too.

With p the model's probabilities and q the label's, a client minimises α H(q, p) + β H(p, q) over a batch (Wang, Ma,
Chen, Luo, Yi, Bailey: Symmetric cross entropy for robust learning with noisy labels, ICCV 2019, arXiv:1908.06112, eq. 5
and 7). q is 1 at the label and 1e-4 elsewhere in the second, reverse term, as the authors' program has it, which makes
that term −log(1e-4) (1 − p_y): bounded, so a wrong label pulls only so much. It is the local loss of RHFL
(`rhfl.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedscout.engine.contracts.client_algorithm import ClientAlgorithm, Finished, LocalRun
from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.engine.model.row_loss import RowLoss
from fedscout.strategies.methods.averaging import FedAvgSpec, MeanSpec
from fedscout.strategies.ranges import RealRange
from fedscout.strategies.specification import Searched, StrategySpec, without_classes

LOG_OF_NOTHING = math.log(1e-4)


class SymmetricLossSpec(MeanSpec):
    """FedAvg with the symmetric cross-entropy: clients whose labels may be wrong believe their model, too."""

    paper: ClassVar[str] = "Wang et al. 2019, arXiv:1908.06112"

    kind: Literal["symmetric_loss"] = "symmetric_loss"
    cross_entropy_weight: Annotated[
        float,
        Field(ge=0, le=1000, description="α, weight of the cross-entropy; 1 without the reverse term is FedAvg"),
        Searched(RealRange(0.01, 1.0, log=True)),
    ] = 0.1
    reverse_weight: Annotated[float, Field(ge=0, le=1000, description="β, weight of the reverse cross-entropy")] = 1.0

    @classmethod
    def unavailable(cls, cohort: Cohort) -> str | None:
        """Return that there are no classes, where a quantity is predicted."""
        return without_classes(cohort, cls.model_fields["kind"].default)

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client's half."""
        return SymmetricDescent(self.cross_entropy_weight, self.reverse_weight)

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification: the cross-entropy alone is FedAvg's."""
        if (self.cross_entropy_weight, self.reverse_weight) == (1, 0):
            return FedAvgSpec(sample_scaling=self.sample_scaling)
        return super().equivalent(cohort)


@dataclass(frozen=True)
class SymmetricDescent(ClientAlgorithm):
    """The client's half.

    Attributes:
        cross_entropy_weight: α.
        reverse_weight: β.
    """

    cross_entropy_weight: float
    reverse_weight: float

    def train(self, run: LocalRun) -> Finished:
        """Descend on the symmetric loss (eq. 7)."""
        miss = -LOG_OF_NOTHING * self.reverse_weight  # eq. 5
        trained = run.descend(run.received, row_loss=RowLoss(self.cross_entropy_weight, miss=miss))
        return Finished(trained, trained.vectors)
