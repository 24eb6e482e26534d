"""Efficiency of training and scoring on one core, relative to matrix products alone.

For the larger models of the model table, operations are those of the model's layers, with a multiplication and an
addition counted as two, forward and backward without the gradient with respect to the rows. A step includes everything
a client does: gathering rows, forward, backward, update.

For a block of small dense networks, operations are those of the matrix products: every weight once forward, once for
its gradient, and once for the gradient with respect to the rows except in the first layer.

Times are the minimum over repetitions, as other load only lengthens them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import nn

from fedscout.engine.contracts.algorithm import TrainRequest
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Samples
from fedscout.engine.models.dense import DenseStack
from fedscout.engine.models.flat import new_model
from fedscout.engine.runtime.processes import keep_freed_memory
from fedscout.engine.training.algorithm_runs import train_block
from fedscout.engine.training.backends import score_clients
from fedscout.engine.training.loop import RowsWork, descend, score_client
from fedscout.experiments.models.request import ModelRequest, ModelSettings
from fedscout.experiments.models.table import MODELS
from fedscout.experiments.timings.engine import TRAINING, work_federation

BATCH_ROWS = 32
NUM_CLASSES = 10
VOCABULARY_SIZE = 5000

NUM_BATCHES = 4
STEPS = LocalTraining(batch_size=BATCH_ROWS, learning_rate=1e-3)

Row = dict[str, str | float]
"""A row of a printed table, by heading."""

REQUESTS = (
    ModelRequest((3, 32, 32), NUM_CLASSES, ModelSettings(kind="lenet"), "image"),
    ModelRequest((1, 28, 28), NUM_CLASSES, ModelSettings(kind="cnn2"), "image"),
    ModelRequest((3, 32, 32), NUM_CLASSES, ModelSettings(kind="cnn4"), "image"),
    ModelRequest((3, 32, 32), NUM_CLASSES, ModelSettings(kind="resnet18"), "image"),
    ModelRequest((40,), NUM_CLASSES, ModelSettings(kind="textcnn"), "tokens", VOCABULARY_SIZE),
)


def product_rates(turns: int) -> list[Row]:
    """Return the rate of a large matrix product and a large convolution."""
    torch.set_num_threads(1)
    side, channels = 512, 128
    left, right, product = torch.ones(side, side), torch.ones(side, side), torch.empty(side, side)
    images = torch.ones(BATCH_ROWS, channels, 16, 16).contiguous(memory_format=torch.channels_last)
    kernel = torch.ones(channels, channels, 3, 3)
    multiplied = shortest(lambda: torch.mm(left, right, out=product), 10 * turns)
    convolved = shortest(lambda: nn.functional.conv2d(images, kernel, padding=1), 10 * turns)
    operations = 2 * images.numel() * kernel[0].numel()
    return [
        {"library": f"matrix product of side {side}", "GFLOP/s": 2 * side**3 / multiplied / 1e9},
        {"library": f"3 x 3 convolution of {channels} channels", "GFLOP/s": operations / convolved / 1e9},
    ]


def kernel_timings(turns: int) -> Iterator[Row]:
    """Yield the times of each model on one core, and the operations of its layers in a step, forward and backward."""
    torch.set_num_threads(1)
    keep_freed_memory()
    for request in REQUESTS:
        factory = MODELS[request.settings.kind](request)
        model, data = new_model(factory, seed=0), rows_of(request)
        scored = shortest(partial(score_client, model, data), turns)
        epoch = shortest(partial(descend, new_model(factory, seed=0), data, STEPS, np.random.default_rng(0)), turns)
        step_seconds, operations = epoch / NUM_BATCHES, _operations(factory(), data)
        yield {
            "model": str(factory),
            "step of 32 rows, ms": 1e3 * step_seconds,
            "GFLOP": operations / 1e9,
            "GFLOP/s": operations / step_seconds / 1e9,
            "scoring, µs per row": 1e6 * scored / len(data),
        }


def rows_of(request: ModelRequest) -> Samples:
    """Return some batches of random rows for a model."""
    generator, num_rows = np.random.default_rng(0), NUM_BATCHES * BATCH_ROWS
    size = (num_rows, *request.feature_shape)
    features = generator.integers(1, VOCABULARY_SIZE, size) if request.vocabulary_size else generator.normal(size=size)
    labels = generator.integers(0, NUM_CLASSES, num_rows)
    return Samples(features.astype(np.float32), labels, np.arange(num_rows))


def _operations(module: nn.Module, data: Samples) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        module(torch.from_numpy(data.features[:BATCH_ROWS])).sum().backward()
    return int(counter.get_total_flops())


def shortest(work: Callable[[], object], turns: int) -> float:
    """Return the minimum seconds over `turns` repetitions, after a warm-up."""
    seconds = []
    for _ in range(turns + 1):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


CLIENTS, ROWS = 20, 256


def block_timings(turns: int) -> list[Row]:
    """Return the times of an epoch and of a scoring of 20 dense clients of 256 rows."""
    torch.set_num_threads(1)
    keep_freed_memory()
    federation = work_federation("dense", CLIENTS, ROWS)
    model = new_model(federation.model, seed=0)
    stack = DenseStack.of(model.module, model.layout)
    assert stack is not None
    rows = [federation.client_data(client).own for client in range(CLIENTS)]
    request = TrainRequest(model.vector.clone(), TRAINING)

    def train() -> None:
        works = [RowsWork(client, np.random.default_rng(client), {}, data) for client, data in enumerate(rows)]
        train_block(stack, model.layout, request, works)

    def score() -> None:
        score_clients(model, stack, request.received[None], rows)

    weights = [layer.num_inputs * layer.num_outputs for layer in stack.layers]
    products = {"training": 3 * sum(weights) - weights[0], "scoring": sum(weights)}
    rows_of_table: list[Row] = []
    for name, work in (("training", train), ("scoring", score)):
        seconds, operations = shortest(work, turns), 2 * CLIENTS * ROWS * products[name]
        figures = {"ms": 1e3 * seconds, "GFLOP": operations / 1e9, "GFLOP/s": operations / seconds / 1e9}
        rows_of_table.append({"20 dense clients of 256 rows": name, **figures})
    return rows_of_table
