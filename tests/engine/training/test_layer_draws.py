"""Dense nets of any activation, with dropout, many at once: the loop's results, masks included, in any block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedscout.engine.contracts.algorithm import (
    ClientAlgorithm,
    ClientResults,
    ClientUpdate,
    LocalRun,
    TrainRequest,
)
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.models.dense import ACTIVATIONS, loss_and_gradient
from fedscout.engine.models.flat import new_model
from fedscout.engine.training.backends import BlockTrainer, LoopTrainer, Trainer, fastest_trainer
from fedscout.engine.training.vectorised import LayerDraws, seed_layers
from tests.engine.federations import NUM_CLASSES, NUM_FEATURES
from tests.engine.training.test_vectorised import SIZES, TOLERANCE, stack_of, works

TRAINING = LocalTraining(local_epochs=2, batch_size=10, learning_rate=0.1)
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


def trained(trainer: Trainer, net: Net, chosen: Sequence[int], **arguments: object) -> list[ClientUpdate]:
    every = works()
    asked = TrainRequest(new_model(net, 0).vector, TRAINING, **arguments)
    found = {
        work.client: update for block in trainer.train(asked, [every[k] for k in chosen]) for work, update in block
    }
    updates = [found[client] for client in chosen]
    assert all(isinstance(update, ClientUpdate) for update in updates), updates
    return [update for update in updates if isinstance(update, ClientUpdate)]


def block_trainer(net: Net) -> Trainer:
    trainer = fastest_trainer(new_model(net, 1))
    assert isinstance(trainer, BlockTrainer)
    return trainer


@pytest.mark.parametrize("algorithm", [None, Twice()], ids=["plain", "twice"])
@pytest.mark.parametrize("name", NETS)
def test_block_equals_loop(name: str, algorithm: ClientAlgorithm | None) -> None:
    net, clients = NETS[name], range(len(SIZES))
    blocks = trained(block_trainer(net), net, clients, algorithm=algorithm, seed=4, server_round=3)
    loops = trained(LoopTrainer(new_model(net, 1)), net, clients, algorithm=algorithm, seed=4, server_round=3)
    for block, loop in zip(blocks, loops, strict=True):
        np.testing.assert_allclose(block.vector, loop.vector, rtol=0, atol=TOLERANCE)
        assert block.loss == pytest.approx(loop.loss, abs=TOLERANCE)


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(chosen=st.lists(st.integers(0, len(SIZES) - 1), min_size=1, unique=True), name=st.sampled_from(list(NETS)))
def test_bits_do_not_depend_on_the_block(chosen: list[int], name: str) -> None:
    net = NETS[name]
    together = trained(block_trainer(net), net, range(len(SIZES)))
    for client, update in zip(chosen, trained(block_trainer(net), net, chosen), strict=True):
        assert np.array_equal(update.vector, together[client].vector)
        assert update.loss == together[client].loss


@pytest.mark.parametrize("name", NETS)
def test_a_score_does_not_depend_on_who_is_scored_with_it_and_leaves_nothing_out(name: str) -> None:
    net, every = NETS[name], works()
    vector = new_model(net, 0).vector
    together = block_trainer(net).scores(vector, {work.client: work.data for work in every}, 0)
    loops = LoopTrainer(new_model(net, 1)).scores(vector, {work.client: work.data for work in every}, 0)
    undropped = block_trainer(Net(net.activation)).scores(vector, {work.client: work.data for work in every}, 0)
    for work in every:
        alone = block_trainer(net).scores(vector, {work.client: work.data}, 0)[work.client]
        ours, loop = together[work.client], loops[work.client]
        assert alone == ours == undropped[work.client]
        assert ours.loss_sum == pytest.approx(loop.loss_sum, rel=1e-5)


@pytest.mark.parametrize("changed", [{"seed": 1}, {"server_round": 2}], ids=str)
def test_masks_are_new_with_each_seed_and_round(changed: dict[str, int]) -> None:
    net = NETS["relu with dropout"]
    first = trained(block_trainer(net), net, [3])[0]
    assert np.array_equal(first.vector, trained(block_trainer(net), net, [3])[0].vector)
    assert not np.array_equal(first.vector, trained(block_trainer(net), net, [3], **changed)[0].vector)
    without = Net("relu")
    plain = trained(block_trainer(without), without, [3])[0]
    assert np.array_equal(plain.vector, trained(block_trainer(without), without, [3], **changed)[0].vector)


def test_masks_are_those_of_torch_s_layer() -> None:
    """Zero or 1 / (1 − dropout), padding zero, in the order in which a loop would draw."""
    net, every = Net("relu", DROPOUT), works()
    asked = TrainRequest(new_model(net, 0).vector, TRAINING, seed=9)
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
def test_gradient_with_masks_is_autograd_s(name: str) -> None:
    """In float64, one client, against a chain of torch's own operations."""
    model = new_model(Net(name), 3)
    stack, draw = stack_of(model), torch.Generator().manual_seed(0)
    vectors = torch.randn(1, model.layout.size, generator=draw, dtype=torch.float64)
    rows = torch.randn(1, 8, NUM_FEATURES, generator=draw, dtype=torch.float64)
    labels = torch.randint(0, NUM_CLASSES, (8,), generator=draw)
    masks = [torch.randint(0, 2, (1, 8, width), generator=draw).double() / 0.5 for width in (7, 5)]
    targets, gradient = nn.functional.one_hot(labels, NUM_CLASSES)[None] / 8, torch.empty_like(vectors)

    losses = loss_and_gradient(stack.views(vectors, gradient), rows, targets, torch.full((1, 8, 1), 1 / 8), masks=masks)

    own = vectors.clone().requires_grad_()
    outputs = rows
    for number, layer in enumerate(stack.layers):
        outputs = outputs @ layer.weight(own).mT + layer.bias(own)[:, None]
        if number < 2:
            outputs = ACTIVATIONS[name].layer()(outputs) * masks[number]
    loss = nn.functional.cross_entropy(outputs[0], labels)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(gradient, own.grad, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(losses[0], loss.detach(), rtol=1e-12, atol=1e-12)
