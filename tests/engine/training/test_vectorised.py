"""The fast path equals the per-client loop, and a client's bits do not depend on who shares its block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientResults, ClientUpdate, LocalRun, TrainRequest
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Samples
from fedscout.engine.models.dense import ACTIVATIONS, DenseStack, loss_and_gradient
from fedscout.engine.models.flat import FlatModel, new_model
from fedscout.engine.models.layout import ModelFactory
from fedscout.engine.training.backends import (
    MOST_CLIENTS,
    BlockTrainer,
    LoopTrainer,
    Trainer,
    fastest_trainer,
)
from fedscout.engine.training.loop import RowsWork
from fedscout.engine.training.vectorised import LayerDraws, seed_layers
from fedscout.strategies.methods.averaging import pull_towards
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
    stack = DenseStack.of(model.module, model.layout)
    assert stack is not None
    return stack


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
    trainer: Callable[[FlatModel], Trainer],
    chosen: Sequence[int],
    training: LocalTraining,
    algorithm: ClientAlgorithm | None = None,
    factory: ModelFactory = dense,
    states: Mapping[int, dict[str, FloatArray]] | None = None,
    **asked: Any,
) -> list[ClientUpdate]:
    every, request = works(states=states), TrainRequest(new_model(factory, 0).vector, training, algorithm, **asked)
    blocks = trainer(new_model(factory, 1)).train(request, [every[client] for client in chosen])
    found = {work.client: update for block in blocks for work, update in block}
    return [found[client] for client in chosen]  # type: ignore[misc]


in_block, in_loop = partial(updates, fastest_trainer), partial(updates, LoopTrainer)


CASES = {
    **{name: (dense, training, None) for name, training in TRAININGS.items()},
    **{name: (net, TRAININGS["masked"], None) for name, net in NETS.items()},
    **{f"{name}, twice": (net, TRAININGS["masked"], Twice()) for name, net in NETS.items()},
}


@pytest.mark.parametrize("name", CASES)
def test_block_equals_loop(name: str) -> None:
    net, training, algorithm = CASES[name]
    assert isinstance(fastest_trainer(new_model(net, 1)), BlockTrainer)
    blocks, loops = (
        made(range(len(SIZES)), training, algorithm, net, seed=4, server_round=3) for made in (in_block, in_loop)
    )
    for block, loop in zip(blocks, loops, strict=True):
        np.testing.assert_allclose(block.vector, loop.vector, rtol=0, atol=TOLERANCE)
        assert block.loss == pytest.approx(loop.loss, abs=TOLERANCE)
        assert block.num_steps == loop.num_steps


@settings(deadline=None, max_examples=50)
@given(chosen=st.lists(st.integers(0, len(SIZES) - 1), min_size=1, unique=True), name=st.sampled_from(list(CASES)))
def test_bits_do_not_depend_on_the_block(chosen: list[int], name: str) -> None:
    net, training, algorithm = CASES[name]
    together = in_block(range(len(SIZES)), training, algorithm, net)
    for client, update in zip(chosen, in_block(chosen, training, algorithm, net), strict=True):
        assert np.array_equal(update.vector, together[client].vector)
        assert update.loss == together[client].loss


@dataclass(frozen=True)
class Pull(ClientAlgorithm):
    """Has a state: adds strength · (w − w_global) and counts the client's steps over rounds."""

    strength: float = 0.3

    def train(self, run: LocalRun) -> ClientResults:
        steps = run.kept("steps", torch.zeros(1))
        trained = run.descend(run.received, partial(pull_towards, self.strength), [run.received])
        return ClientResults(trained, trained.vectors, {"steps": steps + trained.num_steps[:, None]})


def test_algorithms_and_states_are_those_of_the_loop() -> None:
    training = TRAININGS["epochs"]
    states = {1: {"steps": np.array([10.0], np.float32)}}
    blocks = in_block(range(len(SIZES)), training, algorithm=Pull(), states=states)
    loops = in_loop(range(len(SIZES)), training, algorithm=Pull(), states=states)
    free = in_block(range(len(SIZES)), training)
    for client, (block, loop) in enumerate(zip(blocks, loops, strict=True)):
        np.testing.assert_allclose(block.vector, loop.vector, rtol=0, atol=TOLERANCE)
        assert block.state["steps"] == loop.state["steps"] == block.num_steps + (10 if client == 1 else 0)
    assert max(np.abs(ruled.vector - plain.vector).max() for ruled, plain in zip(blocks, free, strict=True)) > 1e-3


class OwnReLU(nn.ReLU):
    """Could do anything."""


@pytest.mark.parametrize(
    ("module", "recognised"),
    [
        (nn.Sequential(nn.Linear(6, 3)), True),
        (nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), True),
        (dense(), True),
        (linear(), False),
        (normalised(), False),
        (dropping(), True),
        (nn.Sequential(nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, 3)), False),
        (nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), True),
        (nn.Sequential(nn.Linear(6, 5), nn.ELU(0.5), nn.Linear(5, 3)), False),
        (nn.Sequential(nn.Linear(6, 5), nn.GELU("tanh"), nn.Linear(5, 3)), False),
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


def trained(trainer: Trainer, every: Sequence[RowsWork], **arguments: Any) -> dict[int, ClientUpdate | Exception]:
    blocks = trainer.train(TrainRequest(new_model(dense, 0).vector, TRAININGS["plain"], **arguments), every)
    return {work.client: update for block in blocks for work, update in block}


def vector_of(update: ClientUpdate | Exception) -> FloatArray:
    assert isinstance(update, ClientUpdate)
    return update.vector


def test_more_clients_than_a_block_holds() -> None:
    sizes = tuple(5 + client % 40 for client in range(MOST_CLIENTS * 2 + 3))
    together = trained(fastest_trainer(new_model(dense, 9)), works(sizes))
    last = trained(fastest_trainer(new_model(dense, 9)), works(sizes)[-1:])
    assert sorted(together) == list(range(len(sizes)))
    assert np.array_equal(vector_of(together[len(sizes) - 1]), vector_of(last[len(sizes) - 1]))


def test_initial_loss_is_that_of_the_loop() -> None:
    block = trained(fastest_trainer(new_model(dense, 9)), works(), initial_loss=True)
    loop = trained(LoopTrainer(new_model(dense, 9)), works(), initial_loss=True)
    for client in block:
        ours, theirs = block[client], loop[client]
        assert ours.initial_loss == pytest.approx(theirs.initial_loss, abs=TOLERANCE)
        assert ours.initial_loss is not None


@dataclass(frozen=True)
class PullButNotOne(Pull):
    """Raises for the client whose state says so."""

    def train(self, run: LocalRun) -> ClientResults:
        if any("unwilling" in state for state in run.states):
            raise ArithmeticError("unwilling")
        return super().train(run)


def test_a_client_whose_algorithm_raises_fails_alone_and_the_others_keep_their_bits() -> None:
    """Who shares its block depends on the number of hosts; nobody else may fail with it."""
    unwilling = {3: {"unwilling": np.ones(1, np.float32)}}
    found = trained(fastest_trainer(new_model(dense, 9)), works(states=unwilling), algorithm=PullButNotOne())
    willing = trained(fastest_trainer(new_model(dense, 9)), works(), algorithm=Pull())
    assert isinstance(found.pop(3), ArithmeticError)
    assert sorted(found) == [client for client in range(len(SIZES)) if client != 3]
    for client, update in found.items():
        assert np.array_equal(vector_of(update), vector_of(willing[client]))


@pytest.mark.parametrize("name", NETS)
def test_a_score_does_not_depend_on_who_is_scored_with_it_and_leaves_nothing_out(name: str) -> None:
    net, every = NETS[name], works()
    vector = new_model(net, 0).vector
    together = fastest_trainer(new_model(net, 1)).scores(vector, {work.client: work.data for work in every}, 0)
    loops = LoopTrainer(new_model(net, 1)).scores(vector, {work.client: work.data for work in every}, 0)
    undropped = fastest_trainer(new_model(Net(net.activation), 1)).scores(
        vector, {work.client: work.data for work in every}, 0
    )
    for work in every:
        alone = fastest_trainer(new_model(net, 1)).scores(vector, {work.client: work.data}, 0)[work.client]
        ours, loop = together[work.client], loops[work.client]
        assert alone == ours == undropped[work.client]
        assert ours.loss_sum == pytest.approx(loop.loss_sum, rel=1e-5)


@pytest.mark.parametrize("changed", [{"seed": 1}, {"server_round": 2}], ids=str)
def test_masks_are_new_with_each_seed_and_round(changed: dict[str, int]) -> None:
    for net in (Net("relu", DROPOUT), Net("relu")):
        first, second = (in_block([3], TRAININGS["masked"], None, net, **asked)[0] for asked in ({}, changed))
        assert np.array_equal(first.vector, second.vector) == (not net.dropout)


def test_masks_are_those_of_torch_s_layer() -> None:
    """Zero or 1 / (1 − dropout), padding zero, in the order in which a loop would draw."""
    net, every = Net("relu", DROPOUT), works()
    asked = TrainRequest(new_model(net, 0).vector, TRAININGS["masked"], seed=9)
    first, second = LayerDraws(stack_of(new_model(net, 0)), asked, every[:2]).masks(0, np.array([10, 1]), 16)
    layer = nn.Dropout(DROPOUT)
    with torch.random.fork_rng(devices=[]):
        for place, size in enumerate([10, 1]):
            seed_layers(asked, every[place].client, torch.device("cpu"))
            for mask, width in ((first, 7), (second, 5)):
                assert torch.equal(mask[place, :size], layer(torch.ones(size, width)))
                assert not mask[place, size:].any()
    assert first.unique().tolist() == pytest.approx([0, 1 / (1 - DROPOUT)])


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
