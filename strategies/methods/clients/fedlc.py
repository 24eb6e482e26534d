"""FedLC: a client's logits are calibrated by how many rows of each class it holds.

With f_c the outputs and n_c the client's training rows of class c, a client minimises the cross-entropy of
f_c − τ n_c^(−1/4) (Zhang, Li, Li, Xu, Wu, Ding, Wu: Federated learning with label distribution skew via logits
calibration, ICML 2022, arXiv:2209.00189, eq. 5), so that classes that it hardly holds are not pushed down. Scores are
those of the plain outputs.

Deviation: the sum of the cross-entropy is over all classes, where eq. 5 leaves out the row's own; so τ = 0 is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedscout.engine.contracts.client_algorithm import ClientAlgorithm, Finished, LocalRun
from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.engine.model.adjusted_outputs import OUT_OF_IT, Adjusted
from fedscout.strategies.methods.averaging import FedAvgSpec, MeanSpec
from fedscout.strategies.ranges import RealRange
from fedscout.strategies.specification import Searched, StrategySpec, without_classes


class FedLCSpec(MeanSpec):
    """FedLC: FedAvg whose clients calibrate their outputs by how many rows of each class they hold."""

    paper: ClassVar[str] = "Zhang et al. 2022, arXiv:2209.00189"

    kind: Literal["fedlc"] = "fedlc"
    calibration: Annotated[
        float,
        Field(ge=0, description="τ, weight of the calibration; 0 is FedAvg"),
        Searched(RealRange(0.1, 2.0, log=True)),
    ] = 1.0

    @classmethod
    def unavailable(cls, cohort: Cohort) -> str | None:
        """Return that there are no classes, where a quantity is predicted."""
        return without_classes(cohort, cls.model_fields["kind"].default)

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client's half."""
        return CalibratedDescent(self.calibration)

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification: without calibration it is FedAvg."""
        if self.calibration == 0:
            return FedAvgSpec(sample_scaling=self.sample_scaling)
        return super().equivalent(cohort)


@dataclass(frozen=True)
class CalibratedDescent(ClientAlgorithm):
    """The client's half.

    Attributes:
        calibration: τ.
    """

    calibration: float

    def train(self, run: LocalRun) -> Finished:
        """Descend on the calibrated loss; classes of which the client holds no rows are left out of it."""
        if not self.calibration:
            return super().train(run)
        counts = run.label_counts()
        shift = (-self.calibration * counts ** (-1 / 4)).clamp(min=OUT_OF_IT)
        trained = run.descend(run.received, adjusted=Adjusted(shift=shift))
        return Finished(trained, trained.vectors)
