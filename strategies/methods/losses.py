"""Strategies that change the clients' loss: FedLC, FedRS, and symmetric cross-entropy.

FedLC: a client's logits are calibrated by how many rows of each class it holds.

With f_c the outputs and n_c the client's training rows of class c, a client minimises the cross-entropy of
f_c − τ n_c^(−1/4) (Zhang, Li, Li, Xu, Wu, Ding, Wu: Federated learning with label distribution skew via logits
calibration, ICML 2022, arXiv:2209.00189, eq. 5), so that classes that it hardly holds are not pushed down. Scores are
those of the plain outputs.

Deviation: the sum of the cross-entropy is over all classes, where eq. 5 leaves out the row's own; so τ = 0 is FedAvg.

FedRS: a client does not push down the classes that it does not hold.

In a client's loss the outputs of classes of which it has no rows are multiplied by α, those of the others by 1 (Li,
Zhan: FedRS: Federated learning with restricted softmax for label distribution non-IID data, KDD 2021, eq. 5). Scores
are those of the plain outputs. Deviation: the paper's last layer has no bias; here α scales it as well.

The symmetric cross-entropy: clients whose labels may be wrong believe their model, too.

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

from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientResults, LocalRun
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.models.layout import OUT_OF_IT, Adjusted, RowLoss
from fedscout.strategies.methods.averaging import FedAvgSpec, MeanSpec
from fedscout.strategies.specification import RealRange, SearchRange, StrategySpec, without_classes


class FedLCSpec(MeanSpec):
    """FedLC: FedAvg whose clients calibrate their outputs by how many rows of each class they hold."""

    paper: ClassVar[str] = "Zhang et al. 2022, arXiv:2209.00189"

    kind: Literal["fedlc"] = "fedlc"
    calibration: Annotated[
        float,
        Field(ge=0, description="τ, weight of the calibration; 0 is FedAvg"),
        SearchRange(RealRange(0.1, 2.0, log=True)),
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

    def train(self, run: LocalRun) -> ClientResults:
        """Descend on the calibrated loss; classes of which the client holds no rows are left out of it."""
        if not self.calibration:
            return super().train(run)
        counts = run.label_counts()
        shift = (-self.calibration * counts ** (-1 / 4)).clamp(min=OUT_OF_IT)
        trained = run.descend(run.received, adjusted=Adjusted(shift=shift))
        return ClientResults(trained, trained.vectors)


class FedRSSpec(MeanSpec):
    """FedRS: FedAvg whose clients hardly move the outputs of classes that they do not hold."""

    paper: ClassVar[str] = "Li and Zhan 2021, doi:10.1145/3447548.3467254"

    kind: Literal["fedrs"] = "fedrs"
    missing_scale: Annotated[
        float,
        Field(ge=0, le=1, description="α, scale of the outputs of classes that a client does not hold; 1 is FedAvg"),
        SearchRange(RealRange(0.0, 0.9)),
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

    def train(self, run: LocalRun) -> ClientResults:
        """Descend on the restricted loss."""
        scales = run.label_counts().clamp(max=1) * (1 - self.scale) + self.scale
        trained = run.descend(run.received, adjusted=Adjusted(scale=scales))
        return ClientResults(trained, trained.vectors)


LOG_OF_NOTHING = math.log(1e-4)


class SymmetricLossSpec(MeanSpec):
    """FedAvg with the symmetric cross-entropy: clients whose labels may be wrong believe their model, too."""

    paper: ClassVar[str] = "Wang et al. 2019, arXiv:1908.06112"

    kind: Literal["symmetric_loss"] = "symmetric_loss"
    cross_entropy_weight: Annotated[
        float,
        Field(ge=0, le=1000, description="α, weight of the cross-entropy; 1 without the reverse term is FedAvg"),
        SearchRange(RealRange(0.01, 1.0, log=True)),
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

    def train(self, run: LocalRun) -> ClientResults:
        """Descend on the symmetric loss (eq. 7)."""
        miss = -LOG_OF_NOTHING * self.reverse_weight  # eq. 5
        trained = run.descend(run.received, row_loss=RowLoss(self.cross_entropy_weight, miss=miss))
        return ClientResults(trained, trained.vectors)
