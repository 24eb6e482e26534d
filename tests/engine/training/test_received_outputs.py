"""Losses, settings and reports that a client algorithm asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedscout.engine.contracts.algorithm import (
    ClientAlgorithm,
    ClientResults,
    ContrastiveLoss,
    LocalFacts,
    LocalRun,
    TrainRequest,
    Validation,
)
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Samples
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.contents import flat_record, read_array
from fedscout.engine.models.flat import new_model
from fedscout.engine.models.layout import Adjusted, ModelFactory
from fedscout.engine.training.algorithm_runs import LoopRun
from fedscout.engine.training.loop import RowsWork
from fedscout.engine.trials.record import Trial
from fedscout.engine.trials.trial import run_trial
from fedscout.strategies.methods.averaging import FedAvgSpec, MeanSpec
from tests.engine.choices import FLOWER_CHOICES, INDIVIDUAL
from tests.engine.choices import spec_of as flower_spec
from tests.engine.federations import dense, learnable_rows, linear, normalised
from tests.engine.grid.test_local_grid import messages
from tests.engine.trials.test_resume import assert_same
from tests.strategies.by_hand import SEED, SIZES, TRAINING, Hand, host_of, result_of, spec_of


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


# -- Settings of each client's own: what they are equal to, and that they are nobody else's affair ---------------------


HOST = host_of()


@dataclass(frozen=True)
class Slower(ClientAlgorithm):
    """Halves the rate of clients with at least so many rows, and fails where a client has a certain number."""

    from_rows: int = 0
    failing: int = -1

    def settings(self, facts: LocalFacts) -> LocalTraining:
        assert facts.label_counts.sum() == facts.num_examples
        if facts.num_examples == self.failing:
            raise ValueError("no settings for me")
        halved = facts.training.learning_rate / 2
        slow = facts.num_examples >= self.from_rows
        return facts.training.model_copy(update={"learning_rate": halved}) if slow else facts.training


def trial_of(algorithm: ClientAlgorithm, backend: Literal["auto", "loop"] = "auto") -> Trial:
    spec = spec_of(FedAvgSpec(), backend=backend)
    return run_trial(spec, LocalGrid(HOST, session=replace(spec.session, algorithm=algorithm)))


@pytest.mark.parametrize("backend", ["auto", "loop"])
def test_half_the_rate_of_all_is_fedavg_at_half_the_rate(backend: Literal["auto", "loop"]) -> None:
    halved = TRAINING.model_copy(update={"learning_rate": TRAINING.learning_rate / 2})
    assert_same(trial_of(Slower(), backend), result_of(HOST, FedAvgSpec(), training=halved, backend=backend))


def test_who_has_no_settings_fails_alone() -> None:
    hand = Hand(HOST._federation)
    trial = trial_of(Slower(failing=hand.num_rows(0)))
    assert trial.status == "completed"
    assert {place.partition(":")[2] for place in trial.dropped_clients} == {"0"}
    assert "no settings for me" in next(iter(trial.dropped_clients.values()))


# -- What clients measure of what they send: the scores that evaluation gives, in any block, and failures of their own


EVERYBODY = range(len(SIZES))


@dataclass(frozen=True)
class Validating(ClientAlgorithm):
    """FedAvg's client, which tells what it measures, and fails where it trains on so many rows."""

    validates: ClassVar[bool] = True

    failing: int = -1

    def validated(self, facts: LocalFacts, validation: Validation) -> Mapping[str, float]:
        if facts.num_examples == self.failing:
            raise ValueError("nothing to report")
        return {
            "validated-rows": float(validation.num_examples),
            "validated-correct": float(validation.num_correct),
            "validated-loss": validation.loss_sum,
        }


@dataclass(frozen=True)
class Drawing(Validating):
    """Trains by a step size that it draws, and reports it."""

    def settings(self, facts: LocalFacts) -> LocalTraining:
        return facts.training.model_copy(update={"learning_rate": 0.1 + 0.1 * facts.generator.random()})

    def validated(self, facts: LocalFacts, validation: Validation) -> Mapping[str, float]:
        return {"rate": self.settings(facts).learning_rate, "again": 0.1 + 0.1 * facts.generator.random()}


def replies_of(algorithm: ClientAlgorithm, backend: str = "auto", clients: Any = EVERYBODY) -> dict[int, Any]:
    """Return what each client answers in one round from the initial model."""
    choice = replace(FLOWER_CHOICES["fedavg"], wants=INDIVIDUAL, algorithm=algorithm)
    session = replace(flower_spec(choice).session, seed=SEED, validation_fraction=0.3, backend=backend)
    grid = LocalGrid(HOST, session=session)
    start = flat_record(grid.initial_vector(SEED))
    replies = grid.send_and_receive(messages(grid, clients=clients, arrays=start))
    return {reply.metadata.src_node_id: reply for reply in replies}


@pytest.mark.parametrize("backend", ["auto", "loop"])
def test_a_client_reports_the_scores_of_what_it_sends(backend: Any) -> None:
    """Each trained model, evaluated by the engine on the client's validation rows, has the same sums."""
    session = replace(
        flower_spec(FLOWER_CHOICES["fedavg"]).session, seed=SEED, validation_fraction=0.3, evaluate_on="validation"
    )
    for client, reply in zip(EVERYBODY, replies_of(Validating(), backend).values(), strict=True):
        grid = LocalGrid(HOST, session=session)
        evaluation = grid.evaluate_all(flat_record(read_array(reply.content["arrays"]["flat"])))
        place = evaluation.clients.index(client)
        metrics, rows = reply.content["metrics"], evaluation.num_examples[place]
        assert metrics["validated-rows"] == rows
        assert metrics["validated-correct"] == round(evaluation.accuracies[place] * rows)
        assert metrics["validated-loss"] == pytest.approx(evaluation.losses[place] * rows, rel=1e-5)


def test_a_client_alone_has_the_bits_of_one_in_a_block() -> None:
    together = [reply.content["metrics"] for reply in replies_of(Validating()).values()]
    alone = [reply.content["metrics"] for c in EVERYBODY for reply in replies_of(Validating(), clients=[c]).values()]
    assert together == alone


def test_a_client_that_can_t_report_fails_alone() -> None:
    whole = [reply.content["metrics"]["num-examples"] for reply in replies_of(Validating()).values()]
    failing = replies_of(Validating(failing=whole[3]))
    assert [reply.has_error() for reply in failing.values()] == [client == 3 for client in EVERYBODY]
    (fault,) = (reply.error.reason for reply in failing.values() if reply.has_error())
    assert fault.startswith("ValueError")
    assert fault.endswith("nothing to report")


def test_facts_draw_the_same_whenever_they_are_told() -> None:
    rates = [reply.content["metrics"]["rate"] for reply in replies_of(Drawing()).values()]
    assert len(set(rates)) == len(rates)
    reported = [reply.content["metrics"]["again"] for reply in replies_of(Drawing()).values()]
    assert not np.isclose(rates, reported).any()
    assert rates == [reply.content["metrics"]["rate"] for reply in replies_of(Drawing(), "loop").values()]
