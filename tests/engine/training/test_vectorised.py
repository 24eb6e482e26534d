"""Clients trained or scored together are as in the loop; a client's bits do not depend on who shares its block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isnan
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.algorithm import (
    ClientAlgorithm,
    ClientResults,
    ClientScore,
    ClientUpdate,
    LocalRun,
    TrainRequest,
)
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Samples, TargetScale
from fedscout.engine.grid.replies import fold_evaluation
from fedscout.engine.messages.calls import EvaluateResults
from fedscout.engine.metrics import OF_CLASSES, OF_QUANTITIES
from fedscout.engine.models.dense import ACTIVATIONS, DenseStack, loss_and_gradient
from fedscout.engine.models.flat import FlatModel, new_model
from fedscout.engine.models.layout import ModelFactory
from fedscout.engine.training import backends
from fedscout.engine.training.loop import RowsWork
from tests.engine.federations import NUM_CLASSES, NUM_FEATURES, dense, dropping, learnable_rows, linear, normalised

TOLERANCE = 2e-5
"""Largest difference of a parameter from the loop's after the few dozen steps below; parameters are below 2."""

SIZES = (40, 1, 17, 64, 33, 2, 65, 96, 7, 31, 32, 10)
TRAININGS = {
    "plain": LocalTraining(learning_rate=0.1),
    "epochs": LocalTraining(local_epochs=3, batch_size=10, learning_rate=0.05),
    "momentum": LocalTraining(local_epochs=2, batch_size=16, learning_rate=0.02, momentum=0.9, weight_decay=0.01),
    "adam": LocalTraining(local_epochs=2, batch_size=8, learning_rate=0.005, optimizer="adam", weight_decay=0.1),
    "rmsprop": LocalTraining(local_epochs=2, batch_size=8, learning_rate=0.002, optimizer="rmsprop", weight_decay=0.1),
    "adadelta": LocalTraining(local_epochs=2, batch_size=8, learning_rate=0.5, optimizer="adadelta", weight_decay=0.1),
    "single rows": LocalTraining(batch_size=1, learning_rate=0.02),
    "masked": LocalTraining(local_epochs=2, batch_size=10, learning_rate=0.1),
    "whole": LocalTraining(local_epochs=4, batch_size=1000, learning_rate=0.1),
}


def stack_of(model: FlatModel) -> DenseStack:
    return DenseStack.of(model.module, model.layout)  # type: ignore[return-value]


def works(sizes: Sequence[int] = SIZES, states: Mapping[int, dict[str, FloatArray]] | None = None) -> list[RowsWork]:
    """Clients that share one source; the third has arrays of its own."""
    features, labels = learnable_rows(sum(sizes))
    stops = np.cumsum(sizes)
    found = []
    for client, (stop, size) in enumerate(zip(stops, sizes, strict=True)):
        rows: IntArray = np.arange(stop - size, stop)
        data = Samples(features, labels, rows)
        if client == 2:
            data = Samples(features[rows] + 0.5, labels[rows].copy(), np.arange(size))
        generator = np.random.default_rng([5, client])
        found.append(RowsWork(client, generator, (states or {}).get(client, {}), data))
    return found


DROPOUT = 0.3


@dataclass(frozen=True)
class Net:
    """Two hidden layers of odd widths, so that rows fill vector registers in part alone."""

    activation: str = "relu"
    dropout: float = 0.0

    def __call__(self) -> nn.Module:
        def hidden(inputs: int, outputs: int) -> list[nn.Module]:
            between = [nn.Linear(inputs, outputs), ACTIVATIONS[self.activation].layer()]
            return [*between, *([nn.Dropout(self.dropout)] if self.dropout else [])]

        return nn.Sequential(*hidden(NUM_FEATURES, 7), *hidden(7, 5), nn.Linear(5, NUM_CLASSES))


NETS = {
    **{name: Net(name) for name in ACTIVATIONS},
    "relu with dropout": Net("relu", DROPOUT),
    "gelu with dropout": Net("gelu", DROPOUT),
}


@dataclass(frozen=True)
class Twice(ClientAlgorithm):
    """Trains again from where it ended: layers draw on."""

    def train(self, run: LocalRun) -> ClientResults:
        trained = run.descend(run.descend(run.received).vectors)
        return ClientResults(trained, trained.vectors)


def updates(
    trainer: Callable[[FlatModel], backends.Trainer],
    chosen: Sequence[int],
    training: LocalTraining,
    algorithm: ClientAlgorithm | None = None,
    factory: ModelFactory = dense,
    states: Mapping[int, dict[str, FloatArray]] | None = None,
    sizes: Sequence[int] = SIZES,
    **asked: Any,
) -> list[ClientUpdate]:
    every, request = works(sizes, states), TrainRequest(new_model(factory, 0).vector, training, algorithm, **asked)
    blocks = trainer(new_model(factory, 1)).train(request, [every[client] for client in chosen])
    found = {work.client: update for block in blocks for work, update in block}
    return [found[client] for client in chosen]  # type: ignore[misc]


in_block, in_loop = partial(updates, backends.fastest_trainer), partial(updates, backends.LoopTrainer)


CASES = {
    **{name: (dense, training, None) for name, training in TRAININGS.items()},
    **{name: (net, TRAININGS["masked"], None) for name, net in NETS.items()},
    **{f"{name}, twice": (net, TRAININGS["masked"], Twice()) for name, net in NETS.items()},
}


@pytest.mark.parametrize("name", CASES)
def test_block_equals_loop(name: str) -> None:
    net, training, algorithm = CASES[name]
    assert isinstance(backends.fastest_trainer(new_model(net, 1)), backends.BlockTrainer)
    asked = {"seed": 4, "server_round": 3, "initial_loss": True}
    blocks, loops = (made(range(len(SIZES)), training, algorithm, net, **asked) for made in (in_block, in_loop))
    for block, loop in zip(blocks, loops, strict=True):
        np.testing.assert_allclose(block.vector, loop.vector, rtol=0, atol=TOLERANCE)
        assert block.loss == pytest.approx(loop.loss, abs=TOLERANCE)
        assert block.initial_loss == pytest.approx(loop.initial_loss, abs=TOLERANCE)
        assert block.num_steps == loop.num_steps


@settings(deadline=None, max_examples=50)
@given(chosen=st.lists(st.integers(0, len(SIZES) - 1), min_size=1, unique=True), name=st.sampled_from(list(CASES)))
def test_bits_do_not_depend_on_the_block(chosen: list[int], name: str) -> None:
    net, training, algorithm = CASES[name]
    together = in_block(range(len(SIZES)), training, algorithm, net)
    for client, update in zip(chosen, in_block(chosen, training, algorithm, net), strict=True):
        assert np.array_equal(update.vector, together[client].vector)
        assert update.loss == together[client].loss


class OwnReLU(nn.ReLU):
    """Could do anything."""


@pytest.mark.parametrize(
    ("module", "recognised"),
    [
        (nn.Sequential(nn.Linear(6, 3)), True),
        (nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), True),
        (linear(), False),
        (normalised(), False),
        (nn.Sequential(nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, 3)), False),
        (nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), False),
        (nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.ReLU(), nn.Linear(5, 3)), False),
        (nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3), nn.Dropout(0.5)), False),
        (nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Dropout(1.0), nn.Linear(5, 3)), False),
        (nn.Sequential(*dropping()[:3], nn.Linear(5, 5), nn.ReLU(), nn.Dropout(0.2), nn.Linear(5, 3)), False),
        (nn.Sequential(*dropping()[:3], nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 3)), False),
        (nn.Sequential(nn.Linear(6, 5), OwnReLU(), nn.Linear(5, 3)), False),
        (nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)), False),
        (nn.Sequential(nn.Linear(6, 5), nn.ReLU()), False),
        (nn.Sequential(nn.Flatten(0), nn.Linear(6, 3)), False),
        (nn.Sequential(nn.Conv2d(1, 2, 3)), False),
    ],
)
def test_only_dense_stacks_are_recognised(module: nn.Module, recognised: bool) -> None:
    model = FlatModel(module)
    assert (DenseStack.of(module, model.layout) is not None) is recognised


def test_more_clients_than_a_block_holds() -> None:
    sizes = tuple(5 + client % 40 for client in range(backends.MOST_CLIENTS * 2 + 3))
    *_, together = in_block(range(len(sizes)), TRAININGS["plain"], sizes=sizes)
    (alone,) = in_block([len(sizes) - 1], TRAININGS["plain"], sizes=sizes)
    assert np.array_equal(together.vector, alone.vector)


@dataclass(frozen=True)
class Unwilling(ClientAlgorithm):
    """Raises for the client whose state says so."""

    def train(self, run: LocalRun) -> ClientResults:
        if any(run.states):
            raise ArithmeticError("unwilling")
        trained = run.descend(run.received)
        return ClientResults(trained, trained.vectors)


def test_a_client_whose_algorithm_raises_fails_alone_and_the_others_keep_their_bits() -> None:
    """Who shares its block depends on the number of hosts; nobody else may fail with it."""
    unwilling = {3: {"unwilling": np.ones(1, np.float32)}}
    found = in_block(range(len(SIZES)), TRAININGS["plain"], Unwilling(), states=unwilling)
    willing = in_block(range(len(SIZES)), TRAININGS["plain"], Unwilling())
    assert isinstance(found[3], ArithmeticError)
    others = [client for client in range(len(SIZES)) if client != 3]
    assert all(np.array_equal(found[client].vector, willing[client].vector) for client in others)


@pytest.mark.parametrize("name", NETS)
def test_a_score_does_not_depend_on_who_is_scored_with_it_and_leaves_nothing_out(name: str) -> None:
    net, every = NETS[name], works()
    vector = new_model(net, 0).vector
    data = {work.client: work.data for work in every}
    together = backends.fastest_trainer(new_model(net, 1)).scores(vector, data, 0)
    loops = backends.LoopTrainer(new_model(net, 1)).scores(vector, data, 0)
    undropped = backends.fastest_trainer(new_model(Net(net.activation), 1)).scores(vector, data, 0)
    for work in every:
        alone = backends.fastest_trainer(new_model(net, 1)).scores(vector, {work.client: work.data}, 0)[work.client]
        ours, loop = together[work.client], loops[work.client]
        assert alone == ours == undropped[work.client]
        assert ours.loss_sum == pytest.approx(loop.loss_sum, rel=1e-5)


@pytest.mark.parametrize("changed", [{"seed": 1}, {"server_round": 2}], ids=str)
def test_masks_are_new_with_each_seed_and_round(changed: dict[str, int]) -> None:
    for net in (Net("relu", DROPOUT), Net("relu")):
        first, second = (in_block([3], TRAININGS["masked"], None, net, **asked)[0] for asked in ({}, changed))
        assert np.array_equal(first.vector, second.vector) == (not net.dropout)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradient_is_autograd_s_and_padding_weighs_nothing(name: str) -> None:
    """Two clients of 5 and 8 rows, padded to 8, in float64 against a chain of torch's own operations."""
    model = new_model(Net(name), 3)
    stack, draw = stack_of(model), torch.Generator().manual_seed(0)
    vectors = torch.randn(2, model.layout.size, generator=draw, dtype=torch.float64)
    rows = torch.randn(2, 8, NUM_FEATURES, generator=draw, dtype=torch.float64)
    labels = torch.randint(0, NUM_CLASSES, (2, 8), generator=draw)
    masks = [torch.randint(0, 2, (2, 8, width), generator=draw).double() / 0.5 for width in (7, 5)]
    shares = torch.stack([(torch.arange(8) < size).double() / size for size in (5, 8)]).unsqueeze(2)
    targets, gradient = nn.functional.one_hot(labels, NUM_CLASSES) * shares, torch.empty_like(vectors)

    losses = loss_and_gradient(stack.views(vectors, gradient), rows, targets, shares, masks=masks)

    for client, size in enumerate((5, 8)):
        own = vectors[client : client + 1].clone().requires_grad_()
        outputs = rows[client : client + 1, :size]
        for number, layer in enumerate(stack.layers):
            outputs = outputs @ layer.weight(own).mT + layer.bias(own)[:, None]
            if number < 2:
                outputs = ACTIVATIONS[name].layer()(outputs) * masks[number][client, :size]
        loss = nn.functional.cross_entropy(outputs[0], labels[client, :size])
        loss.backward()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(gradient[client : client + 1], own.grad, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(losses[client], loss.detach(), rtol=1e-12, atol=1e-12)


# -- Scoring clients together is scoring each alone --------------------------------------------------------------------


SHAPE, SCORED_CLASSES = (2, 9), 4
SCORED_SIZES = (40, 0, 1, 300, 128, 17, 129, 127, 2, 1500, 256, 8, 9, 33, 0, 135)
OWN_SOURCE = {3, 5, 9}
"""Clients that read arrays of their own, as corrupted ones do."""


def images() -> nn.Module:
    """Takes rows of shape (2, 9)."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(18, 70), nn.ReLU(), nn.Linear(70, 33), nn.ReLU(), nn.Linear(33, SCORED_CLASSES)
    )


def shallow() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(18, SCORED_CLASSES))


def wide() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(18, 256), nn.ReLU(), nn.Linear(256, SCORED_CLASSES))


def clients(sizes: Sequence[int] = SCORED_SIZES) -> list[Samples]:
    """Clients whose rows are spread over one source, but for those with a source of their own."""
    generator = np.random.default_rng(1)
    features: FloatArray = generator.normal(size=(sum(sizes), *SHAPE)).astype(np.float32)
    labels: IntArray = generator.integers(0, SCORED_CLASSES, sum(sizes))
    rows = np.split(generator.permutation(sum(sizes)), np.cumsum(sizes)[:-1])
    every = [Samples(features, labels, part) for part in rows]
    for client in OWN_SOURCE & set(range(len(sizes))):
        part = rows[client]
        every[client] = Samples(features[part] + 1, (labels[part] + 1) % SCORED_CLASSES, np.arange(len(part)))
    return every


def model_and_stack(factory: ModelFactory) -> tuple[FlatModel, DenseStack]:
    model = new_model(factory, 3)
    return model, stack_of(model)


def scored(model: FlatModel, stack: DenseStack | None, data: Sequence[Samples]) -> list[Any]:
    """Return the scores of clients that all have the model."""
    return backends.score_clients(model, stack, model.vector[None], data)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, len(SCORED_SIZES) - 1), min_size=1, max_size=32), st.sampled_from([images, shallow, wide])
)
def test_bits_do_not_depend_on_the_company(chosen: list[int], factory: ModelFactory) -> None:
    """Whoever is scored along, in whatever order, how often ever."""
    model, stack = model_and_stack(factory)
    every = clients()
    alone = scored(model, stack, every)

    assert scored(model, stack, [every[client] for client in chosen]) == [alone[client] for client in chosen]


@pytest.mark.parametrize("factory", [images, shallow, wide])
def test_own_models_keep_the_bits_of_clients_scored_alone_and_are_the_loop_s(factory: ModelFactory) -> None:
    """A model a client; equal ones are one model for all."""
    model, stack = model_and_stack(factory)
    every, one = clients(), model.vector.clone()
    own = one + torch.randn(len(every), len(one), generator=torch.Generator().manual_seed(0)) / 10

    together = backends.score_clients(model, stack, own, every)

    pairs = [*zip(own, every, strict=True)]
    assert together == [backends.score_clients(model, stack, vector[None], [data])[0] for vector, data in pairs]
    assert len({score.loss_sum for score in together if isinstance(score, ClientScore)}) > 5
    repeated = backends.score_clients(model, stack, one.repeat(len(every), 1), every)
    assert repeated == backends.score_clients(model, stack, one[None], every)
    loops = [backends.score_clients(model, None, vector[None], [data])[0] for vector, data in pairs]
    assert backends.score_clients(model, None, own, every) == loops
    for score, loop in zip(together, loops, strict=True):
        assert (score.num_examples, score.num_correct) == (loop.num_examples, loop.num_correct)
        assert score.loss_sum == pytest.approx(loop.loss_sum, rel=1e-5)


@pytest.mark.parametrize("together", [True, False])
def test_a_client_whose_data_do_not_fit_fails_alone(together: bool) -> None:
    model, stack = model_and_stack(images)
    every = clients()
    wrong_label = Samples(every[0].features, np.full_like(every[0].labels, SCORED_CLASSES), every[0].rows)
    wrong_shape = Samples(np.ones((5, 3), np.float32), np.zeros(5, np.int64), np.arange(5))
    used = stack if together else None

    scores = scored(model, used, [*every[:2], wrong_label, every[3], wrong_shape, every[4]])

    assert isinstance(scores[2], IndexError)
    assert isinstance(scores[4], RuntimeError | ValueError)
    assert [scores[0], scores[1], scores[3], scores[5]] == scored(model, used, [every[0], every[1], *every[3:5]])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("metric", [None, *OF_CLASSES, *OF_QUANTITIES])
@pytest.mark.parametrize("together", [False, True])
def test_outputs_that_are_not_numbers_have_no_score(metric: str | None, bad: float, together: bool) -> None:
    """Whatever is measured: no row counts as being of the first class, and the federation has no measure."""
    quantity = metric in OF_QUANTITIES
    measure = None if metric is None else {**OF_CLASSES, **OF_QUANTITIES}[metric]()
    num_outputs = 1 if quantity else SCORED_CLASSES
    model, stack = model_and_stack(lambda: nn.Sequential(nn.Flatten(), nn.Linear(18, num_outputs)))
    data = clients([20, 30])
    if quantity:
        targets = np.random.default_rng(2).normal(size=50)
        data = [replace(part, targets=targets, scale=TargetScale(0.0, 1.0)) for part in data]
    vectors = torch.stack([model.vector, torch.full_like(model.vector, bad)])

    good, missing = backends.score_clients(model, stack if together else None, vectors, data, measure)

    assert not good.is_missing
    assert missing.is_missing
    assert missing.metric is None or isnan(missing.metric)
    sums = {} if measure is None else {"own": good.statistics + missing.statistics}
    both = fold_evaluation([EvaluateResults({0: good, 1: missing}, sums=sums)], metric=measure)
    assert both.is_missing
    assert isnan(both.accuracy)
    assert isnan(both.worst_clients())
    assert measure is None or isnan(both.metric)
