"""A client algorithm's own loss reads the received model's outputs: distillation from what a client was sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientResults, ContrastiveLoss, LocalRun, TrainRequest
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Samples
from fedscout.engine.models.flat import new_model
from fedscout.engine.models.layout import Adjusted, ModelFactory
from fedscout.engine.training.algorithm_runs import LoopRun
from fedscout.engine.training.loop import RowsWork
from fedscout.strategies.methods.averaging import FedAvgSpec, MeanSpec
from tests.engine.federations import dense, learnable_rows, linear, normalised
from tests.strategies.by_hand import host_of, result_of


@dataclass(frozen=True)
class Distilled(ClientAlgorithm):
    """Adds λ KL(received ‖ own) to the cross-entropy."""

    weight: float
    one_by_one: ClassVar[bool] = True

    def train(self, run: LocalRun) -> ClientResults:
        def loss(outputs: Tensor, labels: Tensor, features: Tensor, received: Tensor) -> Tensor:
            logs, told = outputs.log_softmax(dim=1), received.log_softmax(dim=1)
            apart = nn.functional.kl_div(logs, told, reduction="batchmean", log_target=True)
            return nn.functional.cross_entropy(outputs, labels) + self.weight * apart

        trained = run.descend(run.received, loss=loss, reads_received=True)
        return ClientResults(trained, trained.vectors)


class DistilledSpec(MeanSpec):
    """FedAvg of such clients."""

    kind: str = "distilled"
    weight: float = 0.0

    def client_algorithm(self) -> ClientAlgorithm:
        return Distilled(self.weight)


@pytest.mark.parametrize("model", [dense, normalised])
def test_without_weight_it_is_fedavg_and_with_it_another(model: ModelFactory) -> None:
    host = host_of(model)
    fedavg = result_of(host, FedAvgSpec(), backend="loop").vector
    nothing, something = (result_of(host, DistilledSpec(weight=weight)).vector for weight in (0.0, 5.0))
    assert np.array_equal(nothing, fedavg)
    assert np.abs(something - fedavg).max() > 1e-3


def run_of(training: LocalTraining) -> LoopRun:
    """A client with a linear model and twenty rows."""
    model = new_model(linear, 3)
    features, labels = learnable_rows(20)
    asked = TrainRequest(model.vector.clone(), training, num_classes=3)
    work = RowsWork(0, np.random.default_rng(1), {}, Samples(features, labels, np.arange(20)))
    return LoopRun.of(model, asked, work)


def test_two_steps_by_hand() -> None:
    """Of the loss ½ mean ‖z − 2 z_received‖² of a linear model z = W x + b the gradient is mean (z − 2 z_received) xᵀ.

    In the first step z is what was received, so it is −mean z xᵀ; in the second what was received is the same still.
    """
    run = run_of(LocalTraining(batch_size=20, learning_rate=0.1, local_epochs=2))

    def towards_twice(outputs: Tensor, labels: Tensor, features: Tensor, received: Tensor) -> Tensor:
        assert not received.requires_grad
        return (outputs - 2 * received).square().sum(dim=1).mean() / 2

    found = run.descend(run.received, loss=towards_twice, reads_received=True).vectors[0].numpy()

    rows = run.work.data.features.astype(np.float64)
    start = run.received.double().numpy()
    weights, bias = start[:-3].reshape(3, -1).copy(), start[-3:].copy()
    received = rows @ weights.T + bias
    for _ in range(2):
        error = (rows @ weights.T + bias) - 2 * received
        weights, bias = weights - 0.1 * error.T @ rows / len(rows), bias - 0.1 * error.mean(axis=0)
    np.testing.assert_allclose(found, np.concatenate([weights.ravel(), bias]), rtol=0, atol=1e-6)


def test_each_row_meets_its_own_outputs_whatever_the_order() -> None:
    """A model that stands still says what it said when it was received."""
    run = run_of(LocalTraining(batch_size=6, learning_rate=1e-12, local_epochs=3))

    def apart(outputs: Tensor, labels: Tensor, features: Tensor, received: Tensor) -> Tensor:
        torch.testing.assert_close(outputs.detach(), received, rtol=0, atol=1e-6)
        return (outputs - received).square().mean()

    assert run.descend(run.received, loss=apart, reads_received=True).losses[0] == pytest.approx(0, abs=1e-9)


def test_what_belongs_to_another_loss_is_refused() -> None:
    run = run_of(LocalTraining())
    with pytest.raises(TypeError, match="reads_received"):
        run.descend(run.received, reads_received=True)
    for other in ({"adjusted": Adjusted()}, {"compared": ContrastiveLoss(lambda own: own, [])}):
        with pytest.raises(TypeError, match="loss"):
            run.descend(run.received, loss=lambda outputs, labels, features: outputs.mean(), **other)  # type: ignore[arg-type]
