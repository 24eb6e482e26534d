"""Training backends: the per-client loop, blocks of small dense nets, and reinforcement-learning tasks.

`fastest_trainer` chooses between loop and blocks by the model alone, never by the distribution of clients over hosts,
as the two differ in their last bits. Measured on one core on 2026-11-21 (250 rows per client, batches of 32): for a
dense 254-64-32-2 net the blocks were 1.9 times as fast as the loop at 4 clients and 3.1 times at 100; at 99,000
parameters 1.4 and 1.25 times (4 and 20 clients); at 264,000 no faster, as single products are then large enough to fill
a core.

Scoring: the rows of small dense nets' clients are scored together. Each client's rows are cut into blocks of 128, the
last one padded, and blocks of equal size pass through the stack as one batched product. Such a product processes each
block separately on memory that is aligned alike for all blocks (see `fedscout.engine.models.dense`), losses and correct
rows are summed per block, and a client's blocks are added in their own order. So a client's score has the same bits for
any set of clients and any number of hosts. Other modules score one client after the other, by `score_client`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.algorithm import (
    ClientScore,
    ClientTask,
    ClientUpdate,
    ClientWork,
    Descent,
    LocalRun,
    Steps,
    TrainRequest,
)
from fedscout.engine.data.client import Samples
from fedscout.engine.metrics import Metric
from fedscout.engine.models.dense import DenseStack, aligned
from fedscout.engine.models.flat import FlatModel
from fedscout.engine.seeds import stream
from fedscout.engine.training import algorithm_runs, loop
from fedscout.engine.training.vectorised import aligned_row_step, seed_layers

BLOCK_ROWS = 128
SLAB_ROWS = 1024
"""Rows in one batched product: a layer's outputs stay in cache, and calls cost little a row."""

TAIL_STEP = 8
"""Of which the rows of a padded block are a multiple: few sizes, and so few products."""


class _Blocks:
    """All clients' rows, cut into blocks; each array has one element per block.

    Args:
        clients: Each client's rows.
        row_step: Padded rows of a block are a multiple of it.

    Attributes:
        answers: Targets of all clients' rows.
        clients: The client, as a position in the list of clients.
        starts: The first row, as a position among all clients' rows.
        sizes: Rows without padding.
        widths: Rows with padding.
        sources: Number of the array that holds the rows.
    """

    def __init__(self, clients: Sequence[Samples], row_step: int) -> None:
        number_of: dict[int, int] = {}
        sources = np.array([number_of.setdefault(id(data.features), len(number_of)) for data in clients])
        self._features = [clients[first].features for first in np.unique(sources, return_index=True)[1]]
        self._rows = np.concatenate([data.rows for data in clients])
        self.answers = np.concatenate([data.answers(data.rows) for data in clients])
        num_rows = np.array([len(data) for data in clients])
        counts = -(-num_rows // BLOCK_ROWS)
        self.clients = np.repeat(np.arange(len(clients)), counts)
        offsets = (np.arange(len(self.clients)) - np.repeat(np.cumsum(counts) - counts, counts)) * BLOCK_ROWS
        self.starts = np.repeat(np.cumsum(num_rows) - num_rows, counts) + offsets
        self.sizes = np.minimum(num_rows[self.clients] - offsets, BLOCK_ROWS)
        self.widths = -(-self.sizes // row_step) * row_step
        self.sources = sources[self.clients]
        self._memory = torch.empty(min(SLAB_ROWS, int(self.widths.sum())), *self._features[0].shape[1:])

    def slabs(self) -> Iterator[IntArray]:
        """Yield the blocks that pass through the model together: of one width, sorted by source."""
        order = np.lexsort((self.sources, self.widths))
        firsts = np.flatnonzero(np.diff(self.widths[order], prepend=-1))
        for same in np.split(order, firsts[1:]):
            num_together = max(1, SLAB_ROWS // int(self.widths[same[0]])) if len(same) else 1
            for first in range(0, len(same), num_together):
                yield same[first : first + num_together]

    def read(self, slab: IntArray) -> tuple[Tensor, Tensor]:
        """Return features `(blocks, rows, inputs)` and targets `(blocks * rows,)`; padding repeats a block's last row.

        The features are overwritten by the next call.
        """
        within = np.minimum(np.arange(self.widths[slab[0]]), self.sizes[slab, None] - 1)
        positions = self.starts[slab, None] + within
        features = self._memory[: positions.size].view(*positions.shape, *self._memory.shape[1:])
        filled = features.numpy()
        sources = self.sources[slab]
        bounds = np.flatnonzero(np.diff(sources, prepend=-1, append=-1))
        for start, stop in pairwise(bounds):
            source = self._features[sources[start]]
            np.take(source, self._rows[positions[start:stop]], axis=0, out=filled[start:stop], mode="clip")
        return features.flatten(2), torch.from_numpy(self.answers[positions.reshape(-1)])


@torch.no_grad()
def _score_together(
    stack: DenseStack, vectors: Tensor, clients: Sequence[Samples], metric: Metric | None
) -> list[ClientScore]:
    blocks = _Blocks(clients, max(TAIL_STEP, aligned_row_step(stack)))
    losses, correct = (np.zeros(len(blocks.sizes)) for _ in range(2))
    size = vectors.shape[1]
    models = torch.nn.functional.pad(vectors, (0, aligned(size) - size))  # each aligned to 64 bytes
    num_kept = 0 if metric is None else len(blocks.answers)
    outputs = np.empty((num_kept, stack.layers[-1].num_outputs), np.float32)
    for slab in blocks.slabs():
        features, answers = blocks.read(slab)
        own = models.expand(len(slab), -1) if len(models) == 1 else models[torch.from_numpy(blocks.clients[slab])]
        logits = stack.activations(own[:, :size], features)[-1].flatten(0, 1)
        is_valid = np.arange(features.shape[1]) < blocks.sizes[slab, None]
        row_losses = loop.mean_loss(logits, answers, reduction="none").double().numpy()
        losses[slab] = np.where(is_valid, row_losses.reshape(is_valid.shape), 0).sum(axis=1)
        if clients[0].scale is None:
            hits = (logits.argmax(dim=1) == answers).numpy().reshape(is_valid.shape)
            correct[slab] = (hits & is_valid).sum(axis=1)
        if metric is not None:
            for block, rows in zip(slab, logits.view(*is_valid.shape, -1).numpy(), strict=True):
                start, num_rows = blocks.starts[block], blocks.sizes[block]
                outputs[start : start + num_rows] = rows[:num_rows]
    loss_sums = np.bincount(blocks.clients, losses, len(clients)).tolist()
    num_correct = np.bincount(blocks.clients, correct, len(clients)).astype(int).tolist()
    bounds = pairwise([0, *np.cumsum([len(data) for data in clients])])
    statistics = [
        loop.metric_statistics(metric, data, torch.from_numpy(outputs[a:b]), torch.from_numpy(blocks.answers[a:b]))
        if metric is not None and len(data)
        else None
        for data, (a, b) in zip(clients, bounds, strict=True)
    ]
    found = zip(clients, num_correct, loss_sums, statistics, strict=True)
    return [loop.measured(data, hits, loss, metric, sums) for data, hits, loss, sums in found]


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
        stack: The model as a dense stack, or None for any other module.
        vectors: The model for all clients, shape `(1, size)`, or one per client, shape `(clients, size)`.
        clients: Each client's rows; several may read the same arrays.
        metric: Measured in addition to accuracy and loss.

    Returns:
        One score per client, or the exception raised for it.
    """
    if stack is not None and clients:
        try:
            return [*_score_together(stack, vectors, clients, metric)]
        except Exception as error:  # one client's data may not fit; who shares its slab depends on the host
            if len(clients) == 1:
                return [error]
        pairs = zip(vectors.expand(len(clients), -1), clients, strict=True)
        return [score for vector, data in pairs for score in score_clients(model, stack, vector[None], [data], metric)]
    if len(vectors) == 1:
        model.load(vectors[0])

    def score(vector: Tensor, data: Samples) -> ClientScore:
        if len(vectors) > 1:
            model.load(vector)
        return loop.score_client(model, data, metric)

    return [_attempt(score, *pair) for pair in zip(vectors.expand(len(clients), -1), clients, strict=True)]


def _attempt(score: Callable[..., ClientScore], *arguments: Any) -> ClientScore | Exception:
    """Return a score, or what was raised: a client's failure is an answer, not the host's end."""
    try:
        return score(*arguments)
    except Exception as error:
        return error


BLOCK_BYTES = 3 * 2**20
"""Parameters and gradients of a block stay in a core's caches (254-64-32-2: 1.9 µs a row at 21 clients, 2.3 at 50)."""

FEWEST_CLIENTS, MOST_CLIENTS = 8, 100

MAX_VECTORISED_PARAMETERS = 150_000


class Trainer(ABC):
    """Trains and scores clients; those of a block together.

    Args:
        model: Scratch model, overwritten.
        stack: The model as a dense stack, if many clients are to pass through it at once.

    Attributes:
        has_labels: Whether clients hold labelled rows.
    """

    has_labels: ClassVar[bool] = True

    def __init__(self, model: FlatModel, stack: DenseStack | None = None) -> None:
        self._model = model
        self._stack = stack

    def description(self) -> str:
        """Return a description of the training backend."""
        return "one client at a time"

    def memory_note(self) -> str:
        """Return a note on the response to an exhausted device memory; empty if that did not happen."""
        return ""

    def train(self, request: TrainRequest, works: Sequence[loop.RowsWork]) -> Iterator[list[loop.Outcome]]:
        """Yield each client's update, or the exception raised for it, a few clients at a time."""
        losses = self._initial_losses(request, works) if request.initial_loss else {}
        groups, failed = algorithm_runs.by_settings(request, works, self.has_labels)
        if failed:
            yield failed
        for alike, members in groups:
            for block in self._blocks(alike, members):
                trained = algorithm_runs.with_validation(
                    self.scores, alike, block, self._train_isolating_failures(alike, block), self.has_labels
                )
                updates = zip(block, trained, strict=True)
                yield [(work, _with_initial_loss(losses.get(work.client), update)) for work, update in updates]

    def scores(
        self, vectors: Tensor, clients: Mapping[int, Samples], seed: int, metric: Metric | None = None
    ) -> dict[int, ClientScore | Exception]:
        """Score a model on each client's rows; an exception replaces the score of a client that fails.

        Args:
            vectors: The model, shape `(layout.size,)`, or one per client, shape `(clients, layout.size)`.
            clients: The rows of each.
            seed: The trial's seed, used by tasks.
            metric: Measured in addition to accuracy and loss.
        """
        together = vectors.reshape(-1, vectors.shape[-1])
        scores = score_clients(self._model, self._stack, together, list(clients.values()), metric)
        return dict(zip(clients, scores, strict=True))

    def outputs(self, data: Samples, vector: FloatArray) -> Iterator[FloatArray]:
        """Yield the softmax outputs of a model on all of a client's rows, chunk by chunk, `(rows, num_classes)`."""
        return loop.model_outputs(self._model, data, vector)

    def _blocks(self, request: TrainRequest, works: Sequence[loop.RowsWork]) -> Iterator[Sequence[loop.RowsWork]]:
        """Yield the clients that are trained together: each one alone."""
        yield from ([work] for work in works)

    @abstractmethod
    def _train_block(self, request: TrainRequest, works: Sequence[loop.RowsWork]) -> Sequence[ClientUpdate]:
        """Train the clients of one block."""

    def _train_isolating_failures(
        self, request: TrainRequest, block: Sequence[loop.RowsWork]
    ) -> Sequence[ClientUpdate | Exception]:
        """Train a block; if that raises, train each client alone, so that only the failing clients fail.

        Which clients share a block depends on the number of hosts; which clients fail must not. A client trained alone
        gets the same bits.
        """
        generator_states = [work.generator.bit_generator.state for work in block]
        try:
            return self._train_block(request, block)
        except Exception as error:  # user code may raise; a client's failure is an answer, not the host's end
            if len(block) == 1:
                return [error]
        for work, state in zip(block, generator_states, strict=True):
            work.generator.bit_generator.state = state
        return [self._train_isolating_failures(request, [work])[0] for work in block]

    def _initial_losses(self, request: TrainRequest, works: Sequence[loop.RowsWork]) -> dict[int, float | Exception]:
        scores = self.scores(
            request.received, {work.client: work.data for work in works if len(work.data)}, request.seed
        )
        return {
            client: score if isinstance(score, Exception) else score.loss_sum / score.num_examples
            for client, score in scores.items()
        }


def _with_initial_loss(loss: float | Exception | None, update: ClientUpdate | Exception) -> ClientUpdate | Exception:
    """Return the update with the client's initial loss, if it was measured."""
    if isinstance(update, Exception) or loss is None:
        return update
    return loss if isinstance(loss, Exception) else replace(update, initial_loss=loss)


class LoopTrainer(Trainer):
    """Trains one client after the other."""

    def _train_block(self, request: TrainRequest, works: Sequence[loop.RowsWork]) -> Sequence[ClientUpdate]:
        (work,) = works
        seed_layers(request, work.client, self._model.device)
        return [algorithm_runs.train_client(self._model, request, work)]


class BlockTrainer(Trainer):
    """Trains many clients of a small dense net at once."""

    def __init__(self, model: FlatModel, stack: DenseStack) -> None:
        super().__init__(model, stack)
        self._dense = stack

    def description(self) -> str:
        """Return a description of the training backend."""
        return "clients with small dense networks in blocks"

    def _blocks(self, request: TrainRequest, works: Sequence[loop.RowsWork]) -> Iterator[Sequence[loop.RowsWork]]:
        """Yield blocks of nearly equal size, clients sorted by decreasing rows."""
        yield from ([work] for work in works if not len(work.data))
        filled = sorted((work for work in works if len(work.data)), key=lambda work: -len(work.data))
        max_clients = min(MOST_CLIENTS, max(FEWEST_CLIENTS, BLOCK_BYTES // (2 * request.received.nbytes)))
        num_blocks = -(-len(filled) // max_clients)
        stops = [len(filled) * (block + 1) // num_blocks for block in range(num_blocks)]
        for start, stop in zip([0, *stops], stops, strict=False):
            yield filled[start:stop]

    def _train_block(self, request: TrainRequest, works: Sequence[loop.RowsWork]) -> Sequence[ClientUpdate]:
        return algorithm_runs.train_block(self._dense, self._model.layout, request, works)


def fastest_trainer(model: FlatModel) -> Trainer:
    """Return the backend that suits a model."""
    small = model.layout.size <= MAX_VECTORISED_PARAMETERS
    stack = DenseStack.of(model.module, model.layout) if small else None
    return LoopTrainer(model) if stack is None else BlockTrainer(model, stack)


@dataclass(frozen=True)
class TaskRun(LocalRun):
    """Run of one client at its task.

    Attributes:
        model: Scratch, overwritten.
        task: The clients' task.
        request: The request of the train message.
        work: The client's part of the round.
        own_state: State that the task keeps for the client, set by training.
    """

    model: FlatModel
    task: ClientTask
    request: TrainRequest
    work: ClientWork
    own_state: dict[str, npt.NDArray[np.float32]]

    def _descend(self, start: Tensor, steps: Steps) -> Descent:
        """Run all local steps of the client.

        Raises:
            TypeError: If the steps change the loss or the point at which gradients are taken, as a task defines its
                own.
        """
        if any(term is not None for term in (steps.loss, steps.ahead, steps.adjusted, steps.compared)):
            raise TypeError("a client algorithm can't change the loss or look ahead where clients have a task")
        if not steps.weighed.is_plain:
            raise TypeError("no term can be added to the rows' loss where clients have a task")
        self.model.load(start.view(-1))
        work = replace(self.work, state={**self.work.state, **self.own_state})
        request = replace(self.request, training=steps.training)
        result = self.task.train(self.model, request, work, algorithm_runs.correct_alone(steps, self.model))
        self.own_state.update(result.state)
        vectors = self.model.vector.clone()[None]
        return Descent(vectors, torch.tensor([result.num_steps]), torch.tensor([result.loss], dtype=torch.float64))


class TaskTrainer(Trainer):
    """Trains reinforcement-learning clients; their rows only serve as weights.

    Args:
        model: Scratch model, overwritten.
        task: The clients' task.
    """

    has_labels: ClassVar[bool] = False

    def __init__(self, model: FlatModel, task: ClientTask) -> None:
        super().__init__(model)
        self._task = task

    def scores(
        self, vectors: Tensor, clients: Mapping[int, Samples], seed: int, metric: Metric | None = None
    ) -> dict[int, ClientScore | Exception]:
        """Score a model on each client; the task's own score replaces any metric.

        Every model of a trial is scored with the same random draws, in every round.
        """
        pairs = zip(clients, vectors.expand(len(clients), -1), strict=True)
        return {client: _attempt(self._score, vector, client, seed) for client, vector in pairs}

    def _train_block(self, request: TrainRequest, works: Sequence[loop.RowsWork]) -> Sequence[ClientUpdate]:
        (work,) = works
        seed_layers(request, work.client, self._model.device)
        common = algorithm_runs.known_of(request, self._model.layout, [work])
        run = TaskRun(**common, model=self._model, task=self._task, request=request, work=work, own_state={})
        (update,) = algorithm_runs.updates_by(request.algorithm, run)
        return [replace(update, state={**update.state, **run.own_state})]

    def _score(self, vector: Tensor, client: int, seed: int) -> ClientScore:
        self._model.load(vector)
        self._model.module.eval()
        repeats = self._task.score(self._model, client, stream(seed, "task-score", client))
        mean = float(np.mean(repeats))
        return ClientScore(1, mean, 1 - mean, tuple(repeats.tolist()))
