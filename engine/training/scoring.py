"""The scores of many clients under one model.

The rows of small dense nets' clients are scored together: each client's rows are cut into blocks of 128, the last one
padded, and blocks of equal size go through the stack as one batched product. Such a product works block by block on
memory that is aligned alike for all of them (see `dense_stack`), losses and correct rows are summed block by block, and
a client's blocks are added in their own order. So a client's score has the same bits whoever is scored with it, and so
with any number of hosts. Other modules score one client after the other, as `local_training.score_client`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.client_update import ClientScore
from fedscout.engine.data.client_data import Samples
from fedscout.engine.metrics.metric import Metric
from fedscout.engine.model.dense_parameters import aligned
from fedscout.engine.model.dense_stack import DenseStack
from fedscout.engine.model.flat_model import FlatModel
from fedscout.engine.training.local_training import measured, metric_statistics, score_client
from fedscout.engine.training.mean_loss import mean_loss
from fedscout.engine.training.vectorised_training import aligned_row_step

BLOCK_ROWS = 128
SLAB_ROWS = 1024
"""Rows in one batched product: a layer's outputs stay in cache, and calls cost little a row."""

TAIL_STEP = 8
"""Of which the rows of a padded block are a multiple: few sizes, and so few products."""


@dataclass(frozen=True)
class _Blocks:
    """All clients' rows, cut into blocks; each array has one element a block.

    Attributes:
        clients: Whose rows, as a position in the list of clients.
        starts: The first row, as a position among all clients' rows.
        sizes: Rows that count.
        widths: Rows with padding.
        sources: Which array they are read from.
    """

    clients: IntArray
    starts: IntArray
    sizes: IntArray
    widths: IntArray
    sources: IntArray

    @classmethod
    def of(cls, sizes: IntArray, sources: IntArray, row_step: int) -> _Blocks:
        """Cut clients of these sizes, one element a client, that read these sources."""
        counts = -(-sizes // BLOCK_ROWS)
        clients = np.repeat(np.arange(len(sizes)), counts)
        offsets = (np.arange(len(clients)) - np.repeat(np.cumsum(counts) - counts, counts)) * BLOCK_ROWS
        rows = np.minimum(sizes[clients] - offsets, BLOCK_ROWS)
        starts = np.repeat(np.cumsum(sizes) - sizes, counts) + offsets
        return cls(clients, starts, rows, -(-rows // row_step) * row_step, sources[clients])

    def slabs(self) -> Iterator[IntArray]:
        """Yield the blocks that go through the model together: of one width, sources side by side."""
        order = np.lexsort((self.sources, self.widths))
        firsts = np.flatnonzero(np.diff(self.widths[order], prepend=-1))
        for same in np.split(order, firsts[1:]):
            num_together = max(1, SLAB_ROWS // int(self.widths[same[0]])) if len(same) else 1
            for first in range(0, len(same), num_together):
                yield same[first : first + num_together]


class _Gathered:
    """The rows of all clients and where they lie."""

    def __init__(self, clients: Sequence[Samples], row_step: int) -> None:
        found: dict[int, int] = {}
        sources = [found.setdefault(id(data.features), len(found)) for data in clients]
        by_source = dict(zip(sources, clients, strict=True))
        self._features = [by_source[number].features for number in range(len(found))]
        self._rows = np.concatenate([data.rows for data in clients])
        self._answers = np.concatenate([data.answers(data.rows) for data in clients])
        self.blocks = _Blocks.of(np.array([len(data) for data in clients]), np.array(sources), row_step)
        num_rows = min(SLAB_ROWS, int(self.blocks.widths.sum()))
        self._memory = torch.empty(num_rows, *self._features[0].shape[1:])

    def read(self, slab: IntArray) -> tuple[Tensor, Tensor]:
        """Return features `(blocks, rows, inputs)` and answers `(blocks * rows,)`; padding repeats a block's last row.

        The features are overwritten by the next call.
        """
        blocks = self.blocks
        within = np.minimum(np.arange(blocks.widths[slab[0]]), blocks.sizes[slab, None] - 1)
        positions = blocks.starts[slab, None] + within
        features = self._memory[: positions.size].view(*positions.shape, *self._memory.shape[1:])
        filled = features.numpy()
        sources = blocks.sources[slab]
        bounds = np.flatnonzero(np.diff(sources, prepend=-1, append=-1))
        for start, stop in pairwise(bounds):
            source = self._features[sources[start]]
            np.take(source, self._rows[positions[start:stop]], axis=0, out=filled[start:stop], mode="clip")
        return features.flatten(2), torch.from_numpy(self._answers[positions.reshape(-1)])

    def outputs(self) -> _Outputs:
        """Return a place for what a model says of all rows."""
        return _Outputs(self.blocks, self._answers)


class _Outputs:
    """What a model says of all clients' rows, in their order."""

    def __init__(self, blocks: _Blocks, answers: IntArray | FloatArray) -> None:
        self._blocks = blocks
        self._answers = answers
        self._rows: FloatArray | None = None

    def keep(self, slab: IntArray, outputs: FloatArray) -> None:
        """Keep those of some blocks, shape `(blocks, rows, num_outputs)`, padding left out."""
        if self._rows is None:
            self._rows = np.empty((len(self._answers), outputs.shape[-1]), np.float32)
        for block, rows in zip(slab, outputs, strict=True):
            start, size = self._blocks.starts[block], self._blocks.sizes[block]
            self._rows[start : start + size] = rows[:size]

    def by_client(self, clients: Sequence[Samples]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield outputs and answers of each client's rows."""
        rows = np.empty((0, 0), np.float32) if self._rows is None else self._rows
        stops = np.cumsum([len(data) for data in clients])
        for start, stop in pairwise([0, *stops]):
            yield torch.from_numpy(rows[start:stop]), torch.from_numpy(self._answers[start:stop])


class _Models:
    """The vectors under which blocks are scored, each beginning at a multiple of 64 bytes.

    Args:
        vectors: One for all clients, shape `(1, size)`, or one a client.
    """

    def __init__(self, vectors: Tensor) -> None:
        self._size = vectors.shape[1]
        self._vectors = torch.nn.functional.pad(vectors, (0, aligned(self._size) - self._size))

    def of(self, clients: IntArray) -> Tensor:
        """Return the vector of each block's client, shape `(blocks, size)`."""
        if len(self._vectors) == 1:
            return self._vectors[:, : self._size].expand(len(clients), -1)
        return self._vectors[torch.from_numpy(clients)][:, : self._size]


def _each(vectors: Tensor, clients: Sequence[Samples]) -> Tensor:
    return vectors.expand(len(clients), -1)


@torch.no_grad()
def _score_together(
    stack: DenseStack, models: _Models, clients: Sequence[Samples], metric: Metric | None
) -> list[ClientScore]:
    gathered = _Gathered(clients, max(TAIL_STEP, aligned_row_step(stack)))
    blocks, classifies = gathered.blocks, clients[0].scale is None
    losses, correct = (np.zeros(len(blocks.sizes)) for _ in range(2))
    outputs = None if metric is None else gathered.outputs()
    for slab in blocks.slabs():
        features, answers = gathered.read(slab)
        said = stack.activations(models.of(blocks.clients[slab]), features)[-1].flatten(0, 1)
        counts = np.arange(features.shape[1]) < blocks.sizes[slab, None]
        row_losses = mean_loss(said, answers, reduction="none").double().numpy()
        losses[slab] = np.where(counts, row_losses.reshape(counts.shape), 0).sum(axis=1)
        if classifies:
            hits = (said.argmax(dim=1) == answers).numpy().reshape(counts.shape)
            correct[slab] = (hits & counts).sum(axis=1)
        if outputs is not None:
            outputs.keep(slab, said.view(*counts.shape, -1).numpy())
    loss_sums = np.bincount(blocks.clients, losses, len(clients))
    num_correct = np.bincount(blocks.clients, correct, len(clients))
    scores = [
        ClientScore.of_rows(len(data), int(hits) if classifies else float("nan"), float(loss))
        for data, hits, loss in zip(clients, num_correct, loss_sums, strict=True)
    ]
    if metric is None or outputs is None:
        return scores
    sums = [
        metric_statistics(metric, data, *rows) if len(data) else None
        for data, rows in zip(clients, outputs.by_client(clients), strict=True)
    ]
    return [measured(score, metric, found) for score, found in zip(scores, sums, strict=True)]


def score_clients(
    model: FlatModel,
    stack: DenseStack | None,
    vectors: Tensor,
    clients: Sequence[Samples],
    metric: Metric | None = None,
) -> list[ClientScore | Exception]:
    """Evaluate a model on all rows of each client, in evaluation mode.

    Args:
        model: Scratch, overwritten.
        stack: The dense stack that it is, or None for any other module.
        vectors: The model for all clients, shape `(1, size)`, or one a client, shape `(clients, size)`.
        clients: Each client's rows; several may read the same arrays.
        metric: What is measured beside accuracy and loss.

    Returns:
        One score a client, or the exception that it ended with.
    """
    if stack is not None and clients:
        try:
            return [*_score_together(stack, _Models(vectors), clients, metric)]
        except Exception as error:  # one client's data may not fit; who shares its slab depends on the host
            if len(clients) == 1:
                return [error]
        alone = zip(_each(vectors, clients), clients, strict=True)
        return [score for vector, data in alone for score in score_clients(model, stack, vector[None], [data], metric)]
    if len(vectors) == 1:
        model.load(vectors[0])
    scores: list[ClientScore | Exception] = []
    for vector, data in zip(_each(vectors, clients), clients, strict=True):
        try:
            if len(vectors) > 1:
                model.load(vector)
            scores.append(score_client(model, data, metric))
        except Exception as error:  # a client's failure is an answer, not the host's end
            scores.append(error)
    return scores
