"""Scoring clients together is scoring each alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isnan
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.algorithm import ClientScore
from fedscout.engine.data.client import Samples, TargetScale
from fedscout.engine.grid.replies import fold_evaluation
from fedscout.engine.messages.calls import EvaluateResults
from fedscout.engine.metrics import OF_CLASSES, OF_QUANTITIES
from fedscout.engine.models.dense import DenseStack
from fedscout.engine.models.flat import FlatModel, new_model
from fedscout.engine.models.layout import ModelFactory
from fedscout.engine.training.backends import BLOCK_ROWS, score_clients
from fedscout.engine.training.loop import score_client

SHAPE, NUM_CLASSES = (2, 9), 4
SIZES = (40, 0, 1, 300, 128, 17, 129, 127, 2, 1500, 256, 8, 9, 33, 0, 135)
OWN_SOURCE = {3, 5, 9}
"""Clients that read arrays of their own, as corrupted ones do."""


def images() -> nn.Module:
    """Takes rows of shape (2, 9)."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(18, 70), nn.ReLU(), nn.Linear(70, 33), nn.ReLU(), nn.Linear(33, NUM_CLASSES)
    )


def shallow() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(18, NUM_CLASSES))


def wide() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(18, 256), nn.ReLU(), nn.Linear(256, NUM_CLASSES))


def clients(sizes: Sequence[int] = SIZES) -> list[Samples]:
    """Clients whose rows are spread over one source, but for those with a source of their own."""
    generator = np.random.default_rng(1)
    features: FloatArray = generator.normal(size=(sum(sizes), *SHAPE)).astype(np.float32)
    labels: IntArray = generator.integers(0, NUM_CLASSES, sum(sizes))
    rows = np.split(generator.permutation(sum(sizes)), np.cumsum(sizes)[:-1])
    every = [Samples(features, labels, part) for part in rows]
    for client in OWN_SOURCE & set(range(len(sizes))):
        part = rows[client]
        every[client] = Samples(features[part] + 1, (labels[part] + 1) % NUM_CLASSES, np.arange(len(part)))
    return every


def model_and_stack(factory: ModelFactory) -> tuple[FlatModel, DenseStack]:
    model = new_model(factory, 3)
    stack = DenseStack.of(model.module, model.layout)
    assert stack is not None
    return model, stack


def scored(model: FlatModel, stack: DenseStack | None, data: Sequence[Samples]) -> list[Any]:
    """Return the scores of clients that all have the model."""
    return score_clients(model, stack, model.vector[None], data)


@pytest.mark.parametrize("factory", [images, shallow, wide])
def test_together_equals_one_by_one(factory: ModelFactory) -> None:
    model, stack = model_and_stack(factory)

    for data, score in zip(clients(), scored(model, stack, clients()), strict=True):
        expected = score_client(model, data)
        assert (score.num_examples, score.num_correct) == (expected.num_examples, expected.num_correct)
        assert score.loss_sum == pytest.approx(expected.loss_sum, rel=1e-5)


@settings(deadline=None, max_examples=40)
@given(
    chosen=st.lists(st.integers(0, len(SIZES) - 1), min_size=1, max_size=2 * len(SIZES)),
    factory=st.sampled_from([images, shallow, wide]),
)
def test_bits_do_not_depend_on_the_company(chosen: list[int], factory: ModelFactory) -> None:
    """Whoever is scored along, in whatever order, how often ever."""
    model, stack = model_and_stack(factory)
    every = clients()
    alone = scored(model, stack, every)

    assert scored(model, stack, [every[client] for client in chosen]) == [alone[client] for client in chosen]


@pytest.mark.parametrize("factory", [images, shallow, wide])
def test_models_of_their_own_keep_the_bits_of_clients_scored_alone(factory: ModelFactory) -> None:
    """A model a client; equal ones are one model for all."""
    model, stack = model_and_stack(factory)
    every, one = clients(), model.vector.clone()
    own = one + torch.randn(len(every), len(one), generator=torch.Generator().manual_seed(0)) / 10

    together = score_clients(model, stack, own, every)

    alone = zip(own, every, strict=True)
    assert together == [score_clients(model, stack, vector[None], [data])[0] for vector, data in alone]
    assert len({score.loss_sum for score in together if isinstance(score, ClientScore)}) > 5
    repeated = score_clients(model, stack, one.repeat(len(every), 1), every)
    assert repeated == score_clients(model, stack, one[None], every)
    alone = [score_clients(model, None, vector[None], [data])[0] for vector, data in zip(own, every, strict=True)]
    assert score_clients(model, None, own, every) == alone


def test_padding_counts_for_nothing() -> None:
    """Weights zero, biases (0, 0, 0, ln 3): a row of class 3 loses ln 2, any other ln 6; class 3 is always chosen."""
    model, stack = model_and_stack(shallow)
    model.load(torch.cat([torch.zeros(72), torch.tensor([0.0, 0.0, 0.0, np.log(3)])]))
    features = np.ones((BLOCK_ROWS + 3, *SHAPE), np.float32)
    labels = np.array([3] + [1] * (BLOCK_ROWS + 2))

    short, long = scored(model, stack, [Samples(features, labels, np.arange(size)) for size in (2, BLOCK_ROWS + 3)])

    assert (short.num_examples, short.num_correct) == (2, 1)
    assert (long.num_examples, long.num_correct) == (BLOCK_ROWS + 3, 1)
    assert short.loss_sum == pytest.approx(np.log(2) + np.log(6), rel=1e-6)
    assert long.loss_sum == pytest.approx(np.log(2) + (BLOCK_ROWS + 2) * np.log(6), rel=1e-6)


@pytest.mark.parametrize("together", [True, False])
def test_a_client_whose_data_do_not_fit_fails_alone(together: bool) -> None:
    model, stack = model_and_stack(images)
    every = clients()
    wrong_label = Samples(every[0].features, np.full_like(every[0].labels, NUM_CLASSES), every[0].rows)
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
    model, stack = model_and_stack(lambda: nn.Sequential(nn.Flatten(), nn.Linear(18, 1 if quantity else NUM_CLASSES)))
    data = clients([20, 30])
    if quantity:
        targets = np.random.default_rng(2).normal(size=50)
        data = [replace(part, targets=targets, scale=TargetScale(0.0, 1.0)) for part in data]
    vectors = torch.stack([model.vector, torch.full_like(model.vector, bad)])

    good, missing = score_clients(model, stack if together else None, vectors, data, measure)

    assert not good.is_missing
    assert missing.is_missing
    assert missing.metric is None or isnan(missing.metric)
    sums = {} if measure is None else {"own": good.statistics + missing.statistics}
    both = fold_evaluation([EvaluateResults({0: good, 1: missing}, sums=sums)], metric=measure)
    assert both.is_missing
    assert isnan(both.accuracy)
    assert isnan(both.worst_clients())
    assert measure is None or isnan(both.metric)
