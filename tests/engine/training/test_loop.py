"""Local training is the loop that one would write by hand; what a client algorithm may ask of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import nn, optim

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.algorithm import (
    ClientAlgorithm,
    ClientScore,
    ClientUpdate,
    ContrastiveLoss,
    LocalFacts,
    TrainRequest,
)
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Samples
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.contents import flat_record, read_array
from fedscout.engine.models.flat import new_model
from fedscout.engine.models.layout import Adjusted, ModelFactory
from fedscout.engine.training.algorithm_runs import LoopRun, train_client
from fedscout.engine.training.backends import LoopTrainer
from fedscout.engine.training.loop import RowsWork, model_outputs, new_optimizer, score_client
from fedscout.engine.trials.record import Trial
from fedscout.engine.trials.trial import run_trial
from fedscout.strategies.methods.averaging import FedAvgSpec
from tests.engine.choices import FLOWER_CHOICES, INDIVIDUAL, spec_of as flower_spec
from tests.engine.federations import dense, learnable_rows, linear, plain_model, plain_vector
from tests.engine.grid.test_local_grid import messages
from tests.engine.models.test_flat_model import Viewing
from tests.engine.training.test_device_training import convolving, images
from tests.engine.trials.test_resume import assert_same
from tests.strategies.by_hand import SEED, SIZES, TRAINING, Hand, host_of, result_of, spec_of

CONVOLUTION_ATOL = 1e-6
"""Sums of the order of 1 in another order; float32 resolves 1.2e-7."""


def stacked() -> nn.Module:
    """Convolutions that are trained as one stack."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))


def pictures(num_rows: int) -> Samples:
    source = images()
    rows = np.random.default_rng(0).permutation(len(source.labels))[:num_rows]
    return Samples(source.features, source.labels, rows)


def samples(num_rows: int) -> Samples:
    """Rows of a larger source, in no particular order."""
    features, labels = learnable_rows(num_rows + 30)
    rows = np.random.default_rng(3).permutation(num_rows + 30)[:num_rows]
    return Samples(features, labels, rows)


def start_vector(factory: ModelFactory) -> FloatArray:
    return new_model(factory, 11).vector.numpy().copy()


def by_engine(factory: ModelFactory, data: Samples, training: LocalTraining) -> ClientUpdate:
    received = torch.from_numpy(start_vector(factory))
    return train_client(new_model(factory, 0), TrainRequest(received, training), work(data))


def work(data: Samples, seed: int = 5) -> RowsWork:
    return RowsWork(0, np.random.default_rng(seed), {}, data)


def by_hand(
    factory: ModelFactory, data: Samples, training: LocalTraining, batches: list[slice]
) -> tuple[FloatArray, list[tuple[float, int]]]:
    """Train an ordinary module with `torch.optim.SGD`; return its vector, and loss and rows of every batch."""
    module = plain_model(factory, start_vector(factory)).train()
    optimizer = optim.SGD(
        module.parameters(), training.learning_rate, momentum=training.momentum, weight_decay=training.weight_decay
    )
    generator = np.random.default_rng(5)
    losses = []
    for _ in range(training.local_epochs):
        rows = data.rows[generator.permutation(len(data))]
        epoch_features, epoch_labels = torch.tensor(data.features[rows]), torch.tensor(data.labels[rows])
        for batch in batches:
            features, labels = epoch_features[batch], epoch_labels[batch]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(features), labels)
            losses.append((loss.item(), len(labels)))
            loss.backward()
            optimizer.step()
    return plain_vector(module), losses


CASES = [
    pytest.param(12, 4, [slice(0, 4), slice(4, 8), slice(8, 12)], id="even"),
    pytest.param(11, 4, [slice(0, 4), slice(4, 8), slice(8, 11)], id="last batch of three"),
    pytest.param(13, 4, [slice(0, 4), slice(4, 8), slice(8, 13)], id="last row joins its predecessor"),
    pytest.param(5, 4, [slice(0, 5)], id="one batch and a row"),
    pytest.param(9, 100, [slice(0, 9)], id="batch larger than the data"),
    pytest.param(1, 4, [slice(0, 1)], id="one row"),
    pytest.param(3, 1, [slice(0, 1), slice(1, 2), slice(2, 3)], id="batches of one are asked for"),
]


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize(("num_rows", "batch_size", "batches"), CASES)
def test_training_has_the_bits_of_torch_s(num_rows: int, batch_size: int, batches: list[slice], epochs: int) -> None:
    data = samples(num_rows)
    training = LocalTraining(local_epochs=epochs, batch_size=batch_size, learning_rate=0.3)

    update = by_engine(dense, data, training)
    vector, losses = by_hand(dense, data, training, batches)

    assert np.array_equal(update.vector, vector)
    assert not np.array_equal(update.vector, start_vector(dense))
    assert update.num_steps == epochs * len(batches)
    assert update.loss == pytest.approx(sum(loss * rows for loss, rows in losses) / (epochs * num_rows), rel=1e-12)
    assert update.initial_loss is None


def test_the_initial_loss_is_that_of_the_received_model() -> None:
    data = samples(23)
    received = start_vector(dense)
    module = plain_model(dense, received).eval()
    rows, labels = torch.from_numpy(data.features[data.rows]), torch.from_numpy(data.labels[data.rows])
    training = LocalTraining(batch_size=4, learning_rate=0.5)

    asked = TrainRequest(torch.from_numpy(received), training, initial_loss=True)
    (((_, update),),) = LoopTrainer(new_model(dense, 0)).train(asked, [work(data)])

    assert update.initial_loss == pytest.approx(nn.functional.cross_entropy(module(rows), labels).item(), rel=1e-6)
    assert np.array_equal(update.vector, by_engine(dense, data, training).vector)


@pytest.mark.parametrize("factory", [convolving, Viewing, stacked])
@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9, "weight_decay": 0.05}], ids=str)
def test_convolutions_are_trained_as_by_hand(factory: ModelFactory, settings: dict[str, float]) -> None:
    """Images are arranged in memory as convolutions like them; by hand they are as they came."""
    data = pictures(21)
    training = LocalTraining(local_epochs=2, batch_size=8, learning_rate=0.05, **settings)

    update = by_engine(factory, data, training)
    vector, losses = by_hand(factory, data, training, [slice(0, 8), slice(8, 16), slice(16, 21)])

    np.testing.assert_allclose(update.vector, vector, rtol=0, atol=CONVOLUTION_ATOL)
    assert update.loss == pytest.approx(sum(loss * rows for loss, rows in losses) / 42, rel=1e-5)
    assert np.abs(update.vector - start_vector(factory)).max() > 1e-2


@pytest.mark.parametrize("chunk", [512, 7])
def test_convolutions_are_scored_as_by_hand(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one piece or in chunks."""
    monkeypatch.setattr("fedscout.engine.training.loop.CHUNK_ROWS", chunk)
    data, received = pictures(40), start_vector(convolving)
    outputs = plain_model(convolving, received).eval()(torch.from_numpy(data.features[data.rows])).detach()
    labels = torch.from_numpy(data.labels[data.rows])
    model = new_model(convolving, 0)
    model.load(torch.from_numpy(received))

    score = score_client(model, data)
    softmax = np.concatenate(list(model_outputs(model, data, received)))

    assert score.num_examples == 40
    assert score.num_correct == int((outputs.argmax(1) == labels).sum())
    loss = nn.functional.cross_entropy(outputs, labels, reduction="sum").item()
    assert score.loss_sum == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(softmax, outputs.softmax(1).numpy(), rtol=0, atol=CONVOLUTION_ATOL)


# -- The client optimisers are torch's, step for step ------------------------------------------------------------------


NUM_STEPS, NUM_PARAMETERS = 12, 53
TORCH_S = {"sgd": optim.SGD, "adam": optim.Adam, "rmsprop": optim.RMSprop, "adadelta": optim.Adadelta}
SETTINGS: list[dict[str, Any]] = [
    *({"optimizer": name, **more} for name in TORCH_S for more in ({}, {"weight_decay": 0.05})),
    *({"optimizer": "sgd", "momentum": 0.9}, {"optimizer": "sgd", "momentum": 0.5, "weight_decay": 0.01}),
]


def gradients(*shape: int) -> torch.Tensor:
    return torch.randn(NUM_STEPS, *shape, generator=torch.Generator().manual_seed(1))


def start(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def reference(training: LocalTraining, weights: torch.Tensor, steps: torch.Tensor) -> list[torch.Tensor]:
    """Return the weights after each step of torch's own optimiser."""
    parameter = torch.nn.Parameter(weights.clone())
    momentum = {"momentum": training.momentum} if training.optimizer == "sgd" else {}
    optimizer = TORCH_S[training.optimizer](
        [parameter], lr=training.learning_rate, weight_decay=training.weight_decay, **momentum
    )
    path = []
    for gradient in steps:
        parameter.grad = gradient.clone()
        optimizer.step()
        path.append(parameter.detach().clone())
    return path


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_one_client_takes_torch_s_steps_bit_for_bit(settings: dict[str, object]) -> None:
    training = LocalTraining(learning_rate=0.1, **settings)
    weights, steps = start(NUM_PARAMETERS), gradients(NUM_PARAMETERS)
    expected = reference(training, weights, steps)
    optimizer = new_optimizer(training)

    for gradient, after in zip(steps, expected, strict=True):
        optimizer.step(weights, gradient.clone())
        assert torch.equal(weights, after)


# -- Losses, settings and reports that a client algorithm asks for -----------------------------------------------------


def run_of(training: LocalTraining) -> LoopRun:
    """A client with a linear model and twenty rows."""
    model = new_model(linear, 3)
    features, labels = learnable_rows(20)
    asked = TrainRequest(model.vector.clone(), training, num_classes=3)
    work = RowsWork(0, np.random.default_rng(1), {}, Samples(features, labels, np.arange(20)))
    return LoopRun.of(model, asked, work)


def test_two_steps_by_hand() -> None:
    """Of the loss ½ mean ‖z − 2‖² of a linear model z = W x + b the gradient is mean (z − 2) xᵀ."""
    run = run_of(LocalTraining(batch_size=20, learning_rate=0.1, local_epochs=2))
    found = run.descend(run.received, loss=lambda outputs, *_: (outputs - 2).square().sum(dim=1).mean() / 2)
    rows, start = run.work.data.features.astype(np.float64), run.received.double().numpy()
    weights, bias = start[:-3].reshape(3, -1), start[-3:]
    for _ in range(2):
        error = rows @ weights.T + bias - 2
        weights, bias = weights - 0.1 * error.T @ rows / len(rows), bias - 0.1 * error.mean(axis=0)
    np.testing.assert_allclose(found.vectors[0], np.concatenate([weights.ravel(), bias]), rtol=0, atol=1e-6)


def test_what_belongs_to_another_loss_is_refused() -> None:
    run = run_of(LocalTraining())
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

    def validated(self, facts: LocalFacts, score: ClientScore, sums: Mapping[str, float]) -> Mapping[str, float]:
        if facts.num_examples == self.failing:
            raise ValueError("nothing to report")
        return {
            "validated-rows": float(score.num_examples),
            "validated-correct": float(score.num_correct),
            "validated-loss": score.loss_sum,
        }


@dataclass(frozen=True)
class Drawing(Validating):
    """Trains by a step size that it draws, and reports it."""

    def settings(self, facts: LocalFacts) -> LocalTraining:
        return facts.training.model_copy(update={"learning_rate": 0.1 + 0.1 * facts.generator.random()})

    def validated(self, facts: LocalFacts, score: ClientScore, sums: Mapping[str, float]) -> Mapping[str, float]:
        return {"rate": self.settings(facts).learning_rate, "again": 0.1 + 0.1 * facts.generator.random()}


def replies_of(algorithm: ClientAlgorithm, backend: str = "auto") -> dict[int, Any]:
    """Return what each client answers in one round from the initial model."""
    choice = replace(FLOWER_CHOICES["fedavg"], wants=INDIVIDUAL, algorithm=algorithm)
    session = replace(flower_spec(choice).session, seed=SEED, validation_fraction=0.3, backend=backend)
    grid = LocalGrid(HOST, session=session)
    start = flat_record(grid.initial_vector(SEED))
    replies = grid.send_and_receive(messages(grid, clients=EVERYBODY, arrays=start))
    return {reply.metadata.src_node_id: reply for reply in replies}


@pytest.mark.parametrize("backend", ["auto", "loop"])
def test_a_client_reports_the_scores_of_what_it_sends(backend: Any) -> None:
    """Each trained model, evaluated by the engine on the client's validation rows, has the same sums."""
    asked = {"seed": SEED, "validation_fraction": 0.3, "evaluate_on": "validation"}
    session = flower_spec(FLOWER_CHOICES["fedavg"], **asked).session
    for client, reply in zip(EVERYBODY, replies_of(Validating(), backend).values(), strict=True):
        grid = LocalGrid(HOST, session=session)
        evaluation = grid.evaluate_all(flat_record(read_array(reply.content["arrays"]["flat"])))
        place = evaluation.clients.index(client)
        metrics, rows = reply.content["metrics"], evaluation.num_examples[place]
        assert metrics["validated-rows"] == rows
        assert metrics["validated-correct"] == round(evaluation.accuracies[place] * rows)
        assert metrics["validated-loss"] == pytest.approx(evaluation.losses[place] * rows, rel=1e-5)


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
