"""FedRS: a client does not push down the classes that it does not hold.

In a client's loss the outputs of classes of which it has no rows are multiplied by α, those of the others by 1 (Li,
Zhan: FedRS: Federated learning with restricted softmax for label distribution non-IID data, KDD 2021, eq. 5). Scores
are those of the plain outputs. Deviation: the paper's last layer has no bias; here α scales it as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedscout.engine.contracts.client_algorithm import ClientAlgorithm, Finished, LocalRun
from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.engine.model.adjusted_outputs import Adjusted
from fedscout.strategies.methods.averaging import FedAvgSpec, MeanSpec
from fedscout.strategies.ranges import RealRange
from fedscout.strategies.specification import Searched, StrategySpec, without_classes


class FedRSSpec(MeanSpec):
    """FedRS: FedAvg whose clients hardly move the outputs of classes that they do not hold."""

    paper: ClassVar[str] = "Li and Zhan 2021, doi:10.1145/3447548.3467254"

    kind: Literal["fedrs"] = "fedrs"
    missing_scale: Annotated[
        float,
        Field(ge=0, le=1, description="α, scale of the outputs of classes that a client does not hold; 1 is FedAvg"),
        Searched(RealRange(0.0, 0.9)),
    ] = 0.5

    @classmethod
    def unavailable(cls, cohort: Cohort) -> str | None:
        """Return that there are no classes, where a quantity is predicted."""
        return without_classes(cohort, cls.model_fields["kind"].default)

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client's half."""
        return RestrictedSoftmax(self.missing_scale)

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification: with a scale of 1 it is FedAvg."""
        if self.missing_scale == 1:
            return FedAvgSpec(sample_scaling=self.sample_scaling)
        return super().equivalent(cohort)


@dataclass(frozen=True)
class RestrictedSoftmax(ClientAlgorithm):
    """The client's half.

    Attributes:
        scale: α.
    """

    scale: float

    def train(self, run: LocalRun) -> Finished:
        """Descend on the restricted loss."""
        scales = run.label_counts().clamp(max=1) * (1 - self.scale) + self.scale
        trained = run.descend(run.received, adjusted=Adjusted(scale=scales))
        return Finished(trained, trained.vectors)
