"""Which way clients are trained: the per-client loop, or many at once.

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
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from torch import Tensor

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.client_update import ClientScore, ClientUpdate
from fedscout.engine.contracts.train_request import TrainRequest
from fedscout.engine.data.client_data import Samples
from fedscout.engine.metrics.metric import Metric
from fedscout.engine.model.dense_stack import DenseStack
from fedscout.engine.model.flat_model import FlatModel
from fedscout.engine.training.algorithm_runs import train_block_by, train_client_by
from fedscout.engine.training.client_settings import by_settings
from fedscout.engine.training.layer_draws import seed_layers
from fedscout.engine.training.local_training import Outcome, RowsWork, model_outputs, train_client
from fedscout.engine.training.scoring import score_clients
from fedscout.engine.training.validated_updates import with_validation
from fedscout.engine.training.vectorised_training import aligned_row_step, padded_rows, train_block

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
