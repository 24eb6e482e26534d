"""How close a block of small dense nets comes to its matrix products alone, on one core.

The products are those of the block's own shapes, a batch of 32 rows a client and step, and 128 rows of scoring: much
smaller than those at which a library reaches its best rate. Of some turns the shortest counts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from pydantic import BaseModel

from fedscout.engine.contracts.train_request import TrainRequest
from fedscout.engine.model.dense_stack import DenseStack
from fedscout.engine.model.flat_model import new_model
from fedscout.engine.runtime.kept_memory import keep_freed_memory
from fedscout.engine.training.local_training import RowsWork
from fedscout.engine.training.scoring import BLOCK_ROWS, SLAB_ROWS, score_clients
from fedscout.engine.training.vectorised_training import train_block
from fedscout.experiments.benchmarks.engine_work import TRAINING, work_federation
from fedscout.experiments.benchmarks.kernel_bench import shortest
from fedscout.experiments.reports.markdown_table import markdown_table

CLIENTS, ROWS = 20, 256


class BlockTiming(BaseModel, frozen=True):
    """One epoch of a block's clients, or one scoring of them, and what of it their products take.

    Attributes:
        what: Training or scoring.
        seconds: Of all of it.
        products_seconds: Of its matrix products alone.
        operations: Of these.
    """

    what: str
    seconds: float
    products_seconds: float
    operations: int


def block_timings(turns: int) -> list[BlockTiming]:
    """Return the timings of 20 clients of 256 rows of the dense work, of so many turns the shortest."""
    torch.set_num_threads(1)
    keep_freed_memory()
    federation = work_federation("dense", CLIENTS, ROWS)
    model = new_model(federation.model, seed=0)
    stack = DenseStack.of(model.module, model.layout)
    assert stack is not None
    rows = [federation.client_data(client).own for client in range(CLIENTS)]
    asked = TrainRequest(model.vector.clone(), TRAINING)

    def train() -> None:
        works = [RowsWork(client, np.random.default_rng(client), {}, data) for client, data in enumerate(rows)]
        train_block(stack, asked, works)

    def score() -> None:
        score_clients(model, stack, asked.received[None], rows)

    num_steps, num_slabs = ROWS // TRAINING.batch_size, CLIENTS * ROWS // SLAB_ROWS
    steps = _Products(stack, CLIENTS, TRAINING.batch_size)
    slabs = _Products(stack, SLAB_ROWS // BLOCK_ROWS, BLOCK_ROWS)
    parts = (
        ("training", train, partial(steps.run, num_steps, backward=True), num_steps * steps.operations(backward=True)),
        ("scoring", score, partial(slabs.run, num_slabs, backward=False), num_slabs * slabs.operations(backward=False)),
    )
    return [_timing(*part, turns) for part in parts]


def _timing(
    what: str, whole: Callable[[], object], products: Callable[[], object], operations: int, turns: int
) -> BlockTiming:
    return BlockTiming(
        what=what,
        seconds=shortest(whole, turns),
        products_seconds=shortest(products, turns),
        operations=operations,
    )


class _Products:
    """The matrix products of some clients' layers.

    Args:
        stack: The layers.
        num_clients: Products at once.
        num_rows: Of each.
    """

    def __init__(self, stack: DenseStack, num_clients: int, num_rows: int) -> None:
        shapes = [
            ((num_rows, layer.num_inputs), (num_rows, layer.num_outputs), (layer.num_outputs, layer.num_inputs))
            for layer in stack.layers
        ]
        self._layers = [[torch.ones(num_clients, *shape) for shape in of_layer] for of_layer in shapes]
        self._results = [[torch.empty(num_clients, *shape) for shape in of_layer] for of_layer in shapes]

    def run(self, times: int, backward: bool) -> None:
        """Take those of a pass; of a backward one, all but that by the rows."""
        for _ in range(times):
            for number, (layer, results) in enumerate(zip(self._layers, self._results, strict=True)):
                below, above, weights = layer
                torch.bmm(below, weights.mT, out=results[1])
                if backward:
                    torch.bmm(above.mT, below, out=results[2])
                if backward and number:
                    torch.bmm(above, weights, out=results[0])

    def operations(self, backward: bool) -> int:
        """Return those of a pass, a multiplication and an addition counted as two."""
        return sum(
            2 * weights.numel() * below.shape[1] * (1 + backward * (1 + bool(number)))
            for number, (below, _, weights) in enumerate(self._layers)
        )


def table_lines(timings: list[BlockTiming]) -> list[str]:
    """Return them for people."""
    header = ("dense, 20 clients of 256 rows", "ms", "its products alone, ms", "times", "GFLOP/s of these")
    rows = [
        (
            each.what,
            f"{1e3 * each.seconds:.2f}",
            f"{1e3 * each.products_seconds:.2f}",
            f"{each.seconds / each.products_seconds:.2f}",
            f"{each.operations / each.products_seconds / 1e9:.0f}",
        )
        for each in timings
    ]
    return markdown_table(header, rows)
