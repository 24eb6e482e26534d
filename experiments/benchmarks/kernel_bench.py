"""How close a core comes to its matrix products: one client's training and scoring of the larger models of the table.

Operations are those of the model's layers as they stand in the table, a multiplication and an addition counted as two,
forward and backward without the gradient by the rows. A step holds all that a client does: gathering rows, forward,
backward, update. Of some turns the shortest counts, as other work on a machine only lengthens them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from pydantic import BaseModel
from torch import nn

from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.data.client_data import Samples
from fedscout.engine.model.flat_model import new_model
from fedscout.engine.model.parameter_layout import ModelFactory
from fedscout.engine.runtime.kept_memory import keep_freed_memory
from fedscout.engine.training.local_training import descend, score_client
from fedscout.experiments.federations.models.model_request import ModelRequest
from fedscout.experiments.federations.models.model_settings import ModelSettings
from fedscout.experiments.federations.models.model_table import MODELS
from fedscout.experiments.reports.markdown_table import markdown_table

BATCH_ROWS = 32
NUM_CLASSES = 10
VOCABULARY_SIZE = 5000
PRODUCT_SIDE = 512
CONVOLVED_CHANNELS = 128

REQUESTS = (
    ModelRequest((3, 32, 32), NUM_CLASSES, ModelSettings(kind="lenet"), "image"),
    ModelRequest((1, 28, 28), NUM_CLASSES, ModelSettings(kind="cnn2"), "image"),
    ModelRequest((3, 32, 32), NUM_CLASSES, ModelSettings(kind="cnn4"), "image"),
    ModelRequest((3, 32, 32), NUM_CLASSES, ModelSettings(kind="resnet18"), "image"),
    ModelRequest((40,), NUM_CLASSES, ModelSettings(kind="textcnn"), "tokens", VOCABULARY_SIZE),
)


class KernelTiming(BaseModel, frozen=True):
    """One model on one core.

    Attributes:
        step_seconds: Of a batch of 32 rows.
        scored_row_seconds: Of one row.
        step_operations: Of the layers, forward and backward.
    """

    model: str
    step_seconds: float
    scored_row_seconds: float
    step_operations: int

    @property
    def operations_per_second(self) -> float:
        """Reached in a step."""
        return self.step_operations / self.step_seconds


def product_rates(turns: int) -> dict[str, float]:
    """Return operations a second of what is largest in models: a matrix product and a convolution, by two libraries."""
    torch.set_num_threads(1)
    side, channels = PRODUCT_SIDE, CONVOLVED_CHANNELS
    left, right, product = torch.ones(side, side), torch.ones(side, side), torch.empty(side, side)
    images = torch.ones(BATCH_ROWS, channels, 16, 16).contiguous(memory_format=torch.channels_last)
    kernel = torch.ones(channels, channels, 3, 3)
    multiplied = shortest(lambda: torch.mm(left, right, out=product), 10 * turns)
    convolved = shortest(lambda: nn.functional.conv2d(images, kernel, padding=1), 10 * turns)
    return {
        f"matrix product of side {side}": 2 * side**3 / multiplied,
        f"3 x 3 convolution of {channels} channels": 2 * images.numel() * kernel[0].numel() / convolved,
    }


def kernel_timings(turns: int) -> Iterator[KernelTiming]:
    """Yield the timing of each model, of so many turns the shortest."""
    torch.set_num_threads(1)
    keep_freed_memory()
    for request in REQUESTS:
        factory = MODELS[request.settings.kind](request)
        model, data = new_model(factory, seed=0), rows_of(request)
        yield KernelTiming(
            model=str(factory),
            step_seconds=step_seconds(factory, data, turns),
            scored_row_seconds=shortest(lambda: score_client(model, data), turns) / len(data),  # noqa: B023
            step_operations=_operations(factory(), data),
        )


def step_seconds(factory: ModelFactory, data: Samples, turns: int) -> float:
    """Return what a step of a client takes, of so many turns the shortest."""
    model, training = new_model(factory, seed=0), LocalTraining(batch_size=BATCH_ROWS, learning_rate=1e-3)
    epoch = shortest(lambda: descend(model, data, training, np.random.default_rng(0)), turns)
    return epoch / (len(data) // BATCH_ROWS)


def rows_of(request: ModelRequest) -> Samples:
    """Return four batches of a model's rows."""
    generator, num_rows = np.random.default_rng(0), 4 * BATCH_ROWS
    size = (num_rows, *request.feature_shape)
    drawn = generator.integers(1, VOCABULARY_SIZE, size) if request.vocabulary_size else generator.normal(size=size)
    labels = generator.integers(0, NUM_CLASSES, num_rows)
    return Samples(drawn.astype(np.float32), labels, np.arange(num_rows))


def _operations(module: nn.Module, data: Samples) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        module(torch.from_numpy(data.features[:BATCH_ROWS])).sum().backward()
    return int(counter.get_total_flops())


def shortest(work: Callable[[], object], turns: int) -> float:
    """Return the seconds of the shortest of some turns, after one to warm up."""
    seconds = []
    for _ in range(turns + 1):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def table_lines(rates: dict[str, float], timings: list[KernelTiming]) -> list[str]:
    """Return both for people."""
    header = ("model", f"a step of {BATCH_ROWS} rows, ms", "GFLOP", "GFLOP/s", "scoring, µs a row")
    rows = [
        (
            each.model,
            f"{1e3 * each.step_seconds:.2f}",
            f"{each.step_operations / 1e9:.3f}",
            f"{each.operations_per_second / 1e9:.0f}",
            f"{1e6 * each.scored_row_seconds:.1f}",
        )
        for each in timings
    ]
    return [*(f"{name}: {rate / 1e9:.0f} GFLOP/s" for name, rate in rates.items()), "", *markdown_table(header, rows)]
