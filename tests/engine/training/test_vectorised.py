"""The fast path equals the per-client loop, and a client's bits do not depend on who shares its block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
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
from fedscout.engine.models.dense import DenseStack, loss_and_gradient
from fedscout.engine.models.flat import FlatModel, new_model
from fedscout.engine.training.algorithm_runs import train_block, train_client
from fedscout.engine.training.backends import (
    MAX_VECTORISED_PARAMETERS,
    MOST_CLIENTS,
    LoopTrainer,
    Trainer,
    fastest_trainer,
)
from fedscout.engine.training.loop import RowsWork
from fedscout.engine.training.vectorised import aligned_row_step, padded_rows
from fedscout.strategies.methods.averaging import pull_towards
from tests.engine.federations import NUM_FEATURES, dense, dropping, learnable_rows, linear, normalised

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


def in_block(
    chosen: Sequence[int], training: LocalTraining, algorithm: ClientAlgorithm | None = None, **arguments: Any
) -> list[ClientUpdate]:
    every = works(**arguments)
    model = new_model(dense, 0)
    asked, members = TrainRequest(model.vector, training, algorithm), [every[client] for client in chosen]
    return train_block(stack_of(model), model.layout, asked, members)


def in_loop(training: LocalTraining, algorithm: ClientAlgorithm | None = None, **arguments: Any) -> list[ClientUpdate]:
    asked = TrainRequest(new_model(dense, 0).vector, training, algorithm)
    return [train_client(new_model(dense, 1), asked, work) for work in works(**arguments)]


@pytest.mark.parametrize("name", TRAININGS)
def test_block_equals_loop(name: str) -> None:
    training = TRAININGS[name]
    for block, loop in zip(in_block(range(len(SIZES)), training), in_loop(training), strict=True):
        np.testing.assert_allclose(block.vector, loop.vector, rtol=0, atol=TOLERANCE)
        assert block.loss == pytest.approx(loop.loss, abs=TOLERANCE)
        assert block.num_steps == loop.num_steps


@pytest.mark.parametrize("name", TRAININGS)
def test_training_changes_the_model(name: str) -> None:
    """Guards the test above against two paths that both do nothing."""
    received = new_model(dense, 0).vector.numpy()
    assert all(np.abs(update.vector - received).max() > 1e-3 for update in in_block(range(len(SIZES)), TRAININGS[name]))


@settings(deadline=None, max_examples=25)
@given(chosen=st.lists(st.integers(0, len(SIZES) - 1), min_size=1, unique=True), name=st.sampled_from(list(TRAININGS)))
def test_bits_do_not_depend_on_the_block(chosen: list[int], name: str) -> None:
    training = TRAININGS[name]
    together = in_block(range(len(SIZES)), training)
    for client, update in zip(chosen, in_block(chosen, training), strict=True):
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
    loops = in_loop(training, algorithm=Pull(), states=states)
    free = in_block(range(len(SIZES)), training)
    for client, (block, loop) in enumerate(zip(blocks, loops, strict=True)):
        np.testing.assert_allclose(block.vector, loop.vector, rtol=0, atol=TOLERANCE)
        assert block.state["steps"] == loop.state["steps"] == block.num_steps + (10 if client == 1 else 0)
    assert max(np.abs(ruled.vector - plain.vector).max() for ruled, plain in zip(blocks, free, strict=True)) > 1e-3


def test_gradient_is_autograd_s_and_padding_weighs_nothing() -> None:
    """Two clients of 5 and 8 rows, padded to 8, in float64 against autograd on the rows that count."""
    model = new_model(dense, 3)
    stack = stack_of(model)
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(2, model.layout.size, generator=generator, dtype=torch.float64)
    rows = torch.randn(2, 8, NUM_FEATURES, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (2, 8), generator=generator)
    sizes = [5, 8]
    shares = torch.stack([(torch.arange(8) < size).double() / size for size in sizes])
    gradient = torch.empty_like(vectors)
    targets = nn.functional.one_hot(labels, 3) * shares.unsqueeze(2)
    losses = loss_and_gradient(stack.views(vectors, gradient), rows, targets, shares.unsqueeze(2))
    for client, size in enumerate(sizes):
        module = dense().double()
        start = 0
        for parameter in module.parameters():
            parameter.data = vectors[client, start : start + parameter.numel()].view(parameter.shape).clone()
            start += parameter.numel()
        loss = nn.functional.cross_entropy(module(rows[client, :size]), labels[client, :size])
        loss.backward()
        expected = torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])
        torch.testing.assert_close(gradient[client], expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(losses[client], loss.detach(), rtol=1e-12, atol=1e-12)


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


def test_a_tied_layer_is_no_stack() -> None:
    """One linear layer used twice has one set of parameters: the flat vector does not hold two."""
    shared = nn.Linear(6, 6)
    module = nn.Sequential(shared, nn.ReLU(), shared)
    assert DenseStack.of(module, FlatModel(module).layout) is None


@given(num_rows=st.integers(1, 2000), step=st.sampled_from([1, 2, 4, 8, 16]))
def test_padding_holds_the_batch_and_wastes_little(num_rows: int, step: int) -> None:
    padded = padded_rows(num_rows, step)
    assert 0 <= padded - num_rows < max(step, 8)
    assert padded % step == 0


@pytest.mark.parametrize(("widths", "step"), [((64, 32, 16), 1), ((254, 64, 32, 2), 8), ((11, 64, 32, 7), 16)])
def test_rows_of_every_layer_fill_whole_cache_lines(widths: tuple[int, ...], step: int) -> None:
    pairs = list(pairwise(widths))
    parts: list[nn.Module] = []
    for inputs, outputs in pairs:
        parts += [nn.Linear(inputs, outputs), nn.ReLU()]
    assert aligned_row_step(stack_of(FlatModel(nn.Sequential(*parts[:-1])))) == step
    assert all(step * width % 16 == 0 for width in widths)


def trained(trainer: Trainer, every: Sequence[RowsWork], **arguments: Any) -> dict[int, ClientUpdate | Exception]:
    blocks = trainer.train(TrainRequest(new_model(dense, 0).vector, TRAININGS["plain"], **arguments), every)
    return {work.client: update for block in blocks for work, update in block}


def vector_of(update: ClientUpdate | Exception) -> FloatArray:
    assert isinstance(update, ClientUpdate)
    return update.vector


def test_trainer_takes_blocks_for_small_stacks_and_the_loop_on_request_or_for_others() -> None:
    received = new_model(dense, 0).vector
    block, loop = in_block(range(len(SIZES)), TRAININGS["plain"]), in_loop(TRAININGS["plain"])
    assert not np.array_equal(block[0].vector, loop[0].vector)
    chosen = trained(fastest_trainer(new_model(dense, 9)), works())
    asked = trained(LoopTrainer(new_model(dense, 9)), works())
    for client in range(len(SIZES)):
        assert np.array_equal(vector_of(chosen[client]), block[client].vector)
        assert np.array_equal(vector_of(asked[client]), loop[client].vector)
    assert len(received) <= MAX_VECTORISED_PARAMETERS


def test_more_clients_than_a_block_holds() -> None:
    sizes = tuple(5 + client % 40 for client in range(MOST_CLIENTS * 2 + 3))
    together = trained(fastest_trainer(new_model(dense, 9)), works(sizes))
    last = trained(fastest_trainer(new_model(dense, 9)), works(sizes)[-1:])
    assert sorted(together) == list(range(len(sizes)))
    assert np.array_equal(vector_of(together[len(sizes) - 1]), vector_of(last[len(sizes) - 1]))


def test_a_client_without_rows_fails_alone() -> None:
    found = trained(fastest_trainer(new_model(dense, 9)), works((8, 0, 9)))
    assert isinstance(found[1], ValueError)
    assert isinstance(found[0], ClientUpdate)
    assert isinstance(found[2], ClientUpdate)


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
