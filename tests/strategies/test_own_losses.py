"""MOON, FedLC, FedRS, the symmetric loss and FedRoD: clients with a loss of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from fedscout.engine.contracts.algorithm import Descent
from fedscout.engine.errors import StrategyError
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.models.layout import MASKED_LOGIT, Adjusted
from fedscout.strategies import FedAvgSpec, FedLCSpec, MoonSpec
from fedscout.strategies.methods.losses import CalibratedDescent
from tests.kits.refusals import refused


def test_a_model_without_a_linear_layer_is_refused() -> None:
    with refused(StrategyError, key="moon", given="layers Conv2d, PReLU"):
        MoonSpec().build(Cohort(8, 5, 0.1, layers=frozenset({"PReLU", "Conv2d"})))


def test_equal_counts_shift_nothing() -> None:
    """One constant off all outputs is no change: with as many rows of each class FedLC is FedAvg."""
    run, outputs, labels = CountedRun(torch.full((1, 3), 7.0)), torch.eye(3), torch.tensor([0, 2, 2])
    CalibratedDescent(1.5).train(run)  # type: ignore[arg-type]
    shifted = run.adjusted(outputs[None])[0]
    assert not torch.equal(shifted, outputs)
    losses = [nn.functional.cross_entropy(one, labels).item() for one in (shifted, outputs)]
    assert losses[0] == pytest.approx(losses[1])


class CountedRun:
    """As much of a run as FedLC looks at."""

    received = torch.zeros(2)

    def __init__(self, counts: Tensor) -> None:
        self.counts = counts
        self.adjusted: Adjusted | None = None

    def label_counts(self) -> Tensor:
        return self.counts

    def descend(self, start: Tensor, adjusted: Adjusted) -> Descent:
        self.adjusted = adjusted
        return Descent(start[None], torch.ones(1), torch.ones(1))


def test_a_class_without_rows_is_left_out_by_a_finite_shift() -> None:
    """As infinity would be no number where a class has no weight."""
    run = CountedRun(torch.tensor([[16.0, 0.0]]))
    CalibratedDescent(2.0).train(run)  # type: ignore[arg-type]
    assert run.adjusted.shift.tolist() == [[-1.0, MASKED_LOGIT]]


def test_fedlc_is_fedavg_without_calibration_alone_and_asks_for_classes() -> None:
    cohort = Cohort(8, 5, 0.1)
    uniform = FedLCSpec(calibration=0, sample_scaling="uniform")
    assert uniform.simplest(cohort) == FedAvgSpec(sample_scaling="uniform")
    assert FedLCSpec(calibration=1).simplest(cohort) == FedLCSpec(calibration=1)
    with pytest.raises(ValidationError, match="calibration"):
        FedLCSpec(calibration=-0.1)
    with refused(StrategyError, key="fedlc"):
        FedLCSpec().build(replace(cohort, classifies=False))
