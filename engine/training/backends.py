"""Ways to train clients, scoring, and the training of tasks other than classification.

Which way clients are trained: the per-client loop, or many at once.

The choice depends on the model alone, never on how clients are spread over hosts, as the two ways differ in their
last bits. Measured on one core on 2026-11-21 (250 rows a client, batches of 32): for a dense 254-64-32-2 net the
vectorised way was 1.9 times as fast as the loop at 4 clients and 3.1 times at 100; at 99,000 parameters 1.4 and 1.25
times (4 and 20 clients), at 264,000 no faster, as the products are then large enough to fill a core one by one.

Clients with rates, batches and epochs of their own are trained together where their batches are padded to as many rows.
Beside one setting for all of as many steps and rows (rates of 1e-4 to 0.8 and batches of 4 to 64, drawn evenly in their
logarithms, 1 to 30 epochs; two draws, processor time, alternating, on 2026-11-22) that takes 100 clients of 250 rows
1.06 to 1.27 times as long, with the net above. 48 clients of some 30 rows take 1.7 to 1.8 times (64-64-32-10): three
times as many products of a third of the clients, which alone take 1.34 to 1.42 times as long. A client's bits are those
that it has alone, so its batches can't be padded to share another's product. `fedscout bench engine --mixed` measures
it.

The scores of many clients under one model.

The rows of small dense nets' clients are scored together: each client's rows are cut into blocks of 128, the last one
padded, and blocks of equal size go through the stack as one batched product. Such a product works block by block on
memory that is aligned alike for all of them (see `dense_stack`), losses and correct rows are summed block by block, and
a client's blocks are added in their own order. So a client's score has the same bits whoever is scored with it, and so
with any number of hosts. Other modules score one client after the other, as `local_training.score_client`.

Trains and scores clients of a task, one after the other: the third way, beside the loop and blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.algorithm import (
    ClientAlgorithm,
    ClientScore,
    ClientUpdate,
    ClientWork,
    Descent,
    LocalRun,
    Steps,
    TrainRequest,
)
from fedscout.engine.contracts.client_task import ClientTask
from fedscout.engine.data.client import Samples
from fedscout.engine.metrics import Metric
from fedscout.engine.models.dense import DenseStack, aligned
from fedscout.engine.models.flat import FlatModel
from fedscout.engine.seeds import stream
from fedscout.engine.training.algorithm_runs import (
    by_settings,
    correct_alone,
    known_of,
    train_block_by,
    train_client_by,
    updates_by,
    with_validation,
)
from fedscout.engine.training.loop import (
    Outcome,
    RowsWork,
    mean_loss,
    measured,
    metric_statistics,
    model_outputs,
    score_client,
    train_client,
)
from fedscout.engine.training.vectorised import aligned_row_step, padded_rows, seed_layers, train_block

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


BLOCK_BYTES = 3 * 2**20
"""Parameters and gradients of a block stay in a core's caches (254-64-32-2: 1.9 µs a row at 21 clients, 2.3 at 50)."""

FEWEST_CLIENTS, MOST_CLIENTS = 8, 100

MAX_VECTORISED_PARAMETERS = 150_000


class Trainer(ABC):
    """Trains and scores clients, those of a block together.

    Args:
        model: Scratch model, overwritten.
        stack: The layers that it is, if many clients are to go through it at once.

    Attributes:
        has_labels: Whether clients hold labelled rows.
    """

    has_labels: ClassVar[bool] = True

    def __init__(self, model: FlatModel, stack: DenseStack | None = None) -> None:
        self._model = model
        self._stack = stack

    def told(self) -> str:
        """Return how clients are trained, in some words."""
        return "one client after the other"

    def memory_note(self) -> str:
        """Return what was done as a device's memory ran out; nothing if it did not."""
        return ""

    def train(self, asked: TrainRequest, works: Sequence[RowsWork]) -> Iterator[list[Outcome]]:
        """Yield each client's update, or the exception that it ended with, some clients at a time."""
        losses = self._initial_losses(asked, works) if asked.initial_loss else {}
        groups, failed = by_settings(asked, works, self.has_labels, self._mixes(asked))
        if failed:
            yield failed
        for alike, members in groups:
            for block in self._blocks(alike, members):
                trained = with_validation(
                    self.scores, alike, block, self._train_or_blame(alike, block), self.has_labels
                )
                updates = zip(block, trained, strict=True)
                yield [(work, _with(losses.get(work.client), update)) for work, update in updates]

    def scores(
        self, vectors: Tensor, clients: Mapping[int, Samples], seed: int, metric: Metric | None = None
    ) -> dict[int, ClientScore | Exception]:
        """Score a model on each client's rows; the exception stands where there is no score.

        Args:
            vectors: The model, shape `(layout.size,)`, or one a client, shape `(clients, layout.size)`.
            clients: The rows of each.
            seed: The trial's, for a task.
            metric: What is measured beside accuracy and loss.
        """
        del seed
        together = vectors.reshape(-1, vectors.shape[-1])
        found = score_clients(self._model, self._stack, together, list(clients.values()), metric)
        return dict(zip(clients, found, strict=True))

    def outputs(self, data: Samples, vector: FloatArray) -> Iterator[FloatArray]:
        """Yield the softmax outputs of a model on all of a client's rows, chunk by chunk, `(rows, num_classes)`."""
        return model_outputs(self._model, data, vector)

    def _mixes(self, asked: TrainRequest) -> bool:
        """Return whether clients of different rates, batches and epochs are trained together."""
        del asked
        return False

    def _blocks(self, asked: TrainRequest, works: Sequence[RowsWork]) -> Iterator[Sequence[RowsWork]]:
        """Yield the clients that are trained together: each alone."""
        del asked
        yield from ([work] for work in works)

    @abstractmethod
    def _train_block(self, asked: TrainRequest, works: Sequence[RowsWork]) -> Sequence[ClientUpdate]:
        """Train the clients of one block."""

    def _train_or_blame(self, asked: TrainRequest, block: Sequence[RowsWork]) -> Sequence[ClientUpdate | Exception]:
        """Train a block; if a client raises, each alone, so that only those fail that must.

        Who shares a block depends on the number of hosts, who fails may not. A client alone has the same bits.
        """
        drawn_from = [work.generator.bit_generator.state for work in block]
        try:
            return self._train_block(asked, block)
        except Exception as error:  # user code may raise; a client's failure is an answer, not the host's end
            if len(block) == 1:
                return [error]
        for work, state in zip(block, drawn_from, strict=True):
            work.generator.bit_generator.state = state
        return [self._train_or_blame(asked, [work])[0] for work in block]

    def _initial_losses(self, asked: TrainRequest, works: Sequence[RowsWork]) -> dict[int, float | Exception]:
        scores = self.scores(asked.received, {work.client: work.data for work in works if len(work.data)}, asked.seed)
        return {
            client: score if isinstance(score, Exception) else score.loss_sum / score.num_examples
            for client, score in scores.items()
        }


def _with(loss: float | Exception | None, update: ClientUpdate | Exception) -> ClientUpdate | Exception:
    """Return the update with the client's initial loss, where that was measured."""
    if isinstance(update, Exception) or loss is None:
        return update
    return loss if isinstance(loss, Exception) else replace(update, initial_loss=loss)


class LoopTrainer(Trainer):
    """One client after the other."""

    def _train_block(self, asked: TrainRequest, works: Sequence[RowsWork]) -> Sequence[ClientUpdate]:
        (work,) = works
        seed_layers(asked, work.client, self._model.device)
        if asked.algorithm is None:
            return [train_client(self._model, asked, work)]
        return [train_client_by(asked.algorithm, self._model, asked, work)]


class BlockTrainer(Trainer):
    """Many clients of a small dense net at once."""

    def __init__(self, model: FlatModel, stack: DenseStack) -> None:
        super().__init__(model, stack)
        self._dense = stack

    def told(self) -> str:
        """Return how clients are trained, in some words."""
        return "small dense nets in blocks"

    def _mixes(self, asked: TrainRequest) -> bool:
        """Return whether clients train plainly, or by an algorithm that says so."""
        return asked.algorithm is None or asked.algorithm.mixes

    def _blocks(self, asked: TrainRequest, works: Sequence[RowsWork]) -> Iterator[Sequence[RowsWork]]:
        """Yield the clients that are trained together: those whose batches are padded to the same; see `_cut`."""
        yield from ([work] for work in works if not len(work.data))
        filled: dict[int, list[RowsWork]] = {}
        for work in works:
            if len(work.data):
                filled.setdefault(self._padded_batch(work), []).append(work)
        for alike in filled.values():
            yield from self._cut(asked, alike)

    def _padded_batch(self, work: RowsWork) -> int:
        """Return the rows of a batch with settings of the client's own, padding included; 0 without."""
        if work.training is None:
            return 0
        return padded_rows(min(work.training.batch_size, len(work.data)), aligned_row_step(self._dense))

    def _cut(self, asked: TrainRequest, works: Sequence[RowsWork]) -> Iterator[Sequence[RowsWork]]:
        """Yield blocks of nearly equal numbers, clients with most steps first, then those with most rows."""
        filled = sorted(works, key=lambda work: (-num_own_steps(work), -len(work.data)))
        most = min(MOST_CLIENTS, max(FEWEST_CLIENTS, BLOCK_BYTES // (2 * asked.received.nbytes)))
        num_blocks = -(-len(filled) // most)
        stops = [len(filled) * (block + 1) // num_blocks for block in range(num_blocks)]
        for start, stop in zip([0, *stops], stops, strict=False):
            yield filled[start:stop]

    def _train_block(self, asked: TrainRequest, works: Sequence[RowsWork]) -> Sequence[ClientUpdate]:
        if asked.algorithm is None:
            return train_block(self._dense, asked, works)
        return train_block_by(asked.algorithm, self._dense, self._model.layout, asked, works)


def num_own_steps(work: RowsWork) -> int:
    """Return the steps of a client with settings of its own; 0 of others, whose rows tell who has most."""
    return 0 if work.training is None else int(work.training.num_steps(np.array([len(work.data)]))[0])


def fastest_trainer(model: FlatModel) -> Trainer:
    """Return the way that suits a model."""
    small = model.layout.size <= MAX_VECTORISED_PARAMETERS
    stack = DenseStack.of(model.module, model.layout) if small else None
    return LoopTrainer(model) if stack is None else BlockTrainer(model, stack)


@dataclass(frozen=True)
class TaskRun(LocalRun):
    """One client at its task.

    Attributes:
        model: Scratch, overwritten.
        task: What the client does.
        asked: By the train message.
        work: The client's part of the round.
        own_state: What the task keeps of it, once it has played.
    """

    model: FlatModel
    task: ClientTask
    asked: TrainRequest
    work: ClientWork
    own_state: dict[str, npt.NDArray[np.float32]]

    def _descend(self, start: Tensor, steps: Steps) -> Descent:
        """Make all local steps of the client.

        Raises:
            TypeError: If the loss is changed, or where gradients are taken; a task has its own.
        """
        if any(one is not None for one in (steps.loss, steps.ahead, steps.adjusted, steps.compared)):
            raise TypeError("a client algorithm can't change the loss or look ahead where clients have a task")
        if not steps.weighed.is_plain:
            raise TypeError("nothing can be added to the loss of rows where clients have a task")
        self.model.load(start.view(-1))
        work = replace(self.work, state={**self.work.state, **self.own_state})
        asked = replace(self.asked, training=steps.training)
        played = self.task.train(self.model, asked, work, correct_alone(steps, self.model))
        self.own_state.update(played.state)
        vectors = self.model.vector.clone()[None]
        return Descent(vectors, torch.tensor([played.num_steps]), torch.tensor([played.loss], dtype=torch.float64))


class TaskTrainer(Trainer):
    """Has clients play; their rows only count.

    Args:
        model: Scratch model, overwritten.
        task: What the clients do.
    """

    has_labels: ClassVar[bool] = False

    def __init__(self, model: FlatModel, task: ClientTask) -> None:
        super().__init__(model)
        self._task = task

    def scores(
        self, vectors: Tensor, clients: Mapping[int, Samples], seed: int, metric: Metric | None = None
    ) -> dict[int, ClientScore | Exception]:
        """Score a model on each client; there is no metric but the task's own.

        Every model of a trial meets the same draws, whatever its round.
        """
        del metric
        found: dict[int, ClientScore | Exception] = {}
        for client, vector in zip(clients, vectors.expand(len(clients), -1), strict=True):
            try:
                found[client] = self._score(vector, client, seed)
            except Exception as error:  # a client's failure is an answer, not the host's end
                found[client] = error
        return found

    def _train_block(self, asked: TrainRequest, works: Sequence[RowsWork]) -> Sequence[ClientUpdate]:
        (work,) = works
        seed_layers(asked, work.client, self._model.device)
        known = known_of(asked, self._model.layout, [work], [len(work.data)])
        run = TaskRun(**known, model=self._model, task=self._task, asked=asked, work=work, own_state={})
        (update,) = updates_by(asked.algorithm or ClientAlgorithm(), run)
        return [replace(update, state={**update.state, **run.own_state})]

    def _score(self, vector: Tensor, client: int, seed: int) -> ClientScore:
        self._model.load(vector)
        self._model.module.eval()
        repeats = self._task.score(self._model, client, stream(seed, "task-score", client))
        mean = float(np.mean(repeats))
        return ClientScore(1, mean, 1 - mean, tuple(repeats.tolist()))
