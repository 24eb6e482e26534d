"""Layers in bfloat16: what they round and what they leave, in the loop and in lanes, and that nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Samples
from fedscout.engine.models.flat import new_model
from fedscout.engine.training.loop import descend
from tests.engine.federations import QUERIES
from tests.engine.training.test_device_training import CASES, IN_LANES, images, trained


def linear() -> nn.Module:
    """Two weights a class, all of which bfloat16 holds."""
    layer = nn.Linear(2, 2, bias=False)
    nn.init.constant_(layer.weight, 0.5)
    return layer


def one_step(row: list[float], precision: str) -> np.ndarray:
    model = new_model(linear, seed=0)
    data = Samples(np.array([row], np.float32), np.array([1]), np.arange(1))
    training = LocalTraining(learning_rate=1.0, precision=precision)
    descend(model, data, training, np.random.default_rng(0))
    return model.vector.numpy().copy()


def test_layers_see_rows_of_eight_bits() -> None:
    """1 + 2^-10 is 1 to them, and 3 − 2^-9 is 3; equal outputs have probabilities of a half, which bfloat16 holds."""
    narrow = one_step([1 + 2.0**-10, 3 - 2.0**-9], "bfloat16")
    assert np.array_equal(narrow, one_step([1.0, 3.0], "float32"))
    assert not np.array_equal(narrow, one_step([1 + 2.0**-10, 3 - 2.0**-9], "float32"))


def test_steps_add_up_in_float32() -> None:
    """A step of 2^-12 moves a weight of 1, which weights of bfloat16 would not."""
    model = new_model(linear, seed=0)
    model.load(torch.ones(4))
    data = Samples(np.ones((1, 2), np.float32), np.array([1]), np.arange(1))
    descend(model, data, LocalTraining(learning_rate=2.0**-11, precision="bfloat16"), np.random.default_rng(0))
    assert model.vector.tolist() == [1 - 2.0**-12, 1 - 2.0**-12, 1 + 2.0**-12, 1 + 2.0**-12]


@pytest.mark.parametrize("case", ["dense", "images"])
def test_steps_are_those_of_torch_under_autocast(case: str) -> None:
    """Two steps over all rows of the first client, written out, bit by bit; rows in the order that is drawn."""
    federation = CASES[case][0]()
    data = federation.client_data(0).own
    model = new_model(federation.model, seed=1)
    module = new_model(federation.model, seed=1).module
    images_last = torch.channels_last if data.features.ndim == 4 else torch.contiguous_format
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    orders = np.random.default_rng(2)
    for _ in range(2):
        rows = data.rows[orders.permutation(len(data))]
        features = torch.from_numpy(data.features[rows]).clone().contiguous(memory_format=images_last)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            outputs = module(features)
        nn.functional.cross_entropy(outputs.float(), torch.from_numpy(data.labels[rows])).backward()
        optimizer.step()

    training = LocalTraining(local_epochs=2, batch_size=1000, learning_rate=0.05, precision="bfloat16")
    descend(model, data, training, np.random.default_rng(2))

    expected = torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])
    assert torch.equal(model.weights, expected)


@pytest.mark.parametrize("case", ["dense", "images"])
def test_lanes_are_as_far_from_float32_as_the_loop_is(case: str) -> None:
    """Other kernels round other sums, as often and by as much."""
    make, clients = CASES[case]
    narrow = LocalTraining(learning_rate=0.05, precision="bfloat16")
    exact, loop, lanes = (
        np.stack(trained(ClientHost(make(), QUERIES, *device), clients, training).vectors or [])
        for training, device in ((LocalTraining(learning_rate=0.05), []), (narrow, []), (narrow, [IN_LANES]))
    )
    loop_apart, lanes_apart = (np.linalg.norm(vectors - exact) for vectors in (loop, lanes))
    assert loop_apart / 2 < lanes_apart < 2 * loop_apart
    assert loop_apart > 1e-4


def test_a_client_has_its_bits_alone_and_among_others() -> None:
    training = LocalTraining(learning_rate=0.05, precision="bfloat16")
    host = ClientHost(images(), QUERIES)
    together, alone = trained(host, range(6), training).vectors, trained(host, [3], training).vectors
    assert np.array_equal(together[3], alone[0])
