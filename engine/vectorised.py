"""Many clients at once: the fast path of local training for small dense nets, held to the per-client loop by tests.

Clients of a block are trained in lockstep, those with most steps first, so that step s works on the first clients of
the block and nobody waits. A batch is padded with rows of weight zero to a number of rows that depends on that client's
batch alone, and every operation works client by client (see `dense_stack`) on memory that is aligned alike for all of
them, since the last bits of a matrix product depend on alignment. Hence a client's result has the same bits in any
block, and so with any number of hosts. Against the loop it differs in the order of float32 sums; the tests state the
tolerance.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.client_rule import ClientRule, ClientState, RuleInputs
from engine.dense_stack import DenseStack
from engine.federation import FloatArray, IntArray, Samples
from engine.local_training import ClientUpdate, ClientWork, batch_bounds, epoch_orders
from engine.optimizers import new_optimizer
from engine.training_config import LocalTraining

PADDING = 32
ALIGNED = 16
"""float32 numbers in 64 bytes, the alignment of torch's own memory."""


def aligned(size: int, step: int = ALIGNED) -> int:
    """Return `size` rounded up to a multiple of `step`."""
    return -(-size // step) * step


def padded_rows(num_rows: int, batch_size: int, row_step: int) -> int:
    """Return to how many rows a batch is padded: a full batch's, fewer for a small client, more for a joined batch.

    Args:
        num_rows: Rows of the batch, at most `batch_size + 1`.
        batch_size: Rows of a full batch.
        row_step: Of which the result is a multiple; divides 32.
    """
    return max(aligned(num_rows, row_step), min(aligned(batch_size, row_step), aligned(num_rows, PADDING)))


def aligned_row_step(stack: DenseStack) -> int:
    """Return the smallest number of rows whose activations fill multiples of 64 bytes in every layer."""
    widths = [stack.num_inputs, *(layer.num_outputs for layer in stack.layers)]
    return ALIGNED // math.gcd(ALIGNED, *widths)


def aligned_matrix(num_rows: int, num_columns: int) -> Tensor:
    """Return an uninitialised matrix each of whose rows begins at a multiple of 64 bytes."""
    return torch.empty(num_rows, aligned(num_columns))[:, :num_columns]


@dataclass(frozen=True)
class _Batches:
    """The batches of one client over all epochs.

    Attributes:
        rows: Source rows, batch after batch, padding included.
        labels: Their labels.
        shares: Their weights in their batch's mean, 0 for padding.
        starts: Where each batch begins in `rows`; one more than batches.
        sizes: Rows that count, of each batch.
    """

    rows: IntArray
    labels: IntArray
    shares: FloatArray
    starts: IntArray
    sizes: IntArray

    def __len__(self) -> int:
        return len(self.sizes)


def _draw_batches(client: ClientWork, training: LocalTraining, row_step: int) -> _Batches:
    """Draw exactly the batches that the loop would."""
    bounds = batch_bounds(len(client.data), training.batch_size)
    pieces: list[IntArray] = []
    shares: list[FloatArray] = []
    for order in epoch_orders(len(client.data), training.local_epochs, client.generator):
        for start, stop in bounds:
            batch = client.data.rows[order[start:stop]]
            num_padded = padded_rows(len(batch), training.batch_size, row_step)
            pieces.append(np.resize(batch, num_padded) if num_padded > len(batch) else batch)
            shares.append(np.zeros(num_padded, np.float32))
            shares[-1][: len(batch)] = 1 / len(batch)
    rows = np.concatenate(pieces)
    return _Batches(
        rows=rows,
        labels=client.data.labels[rows],
        shares=np.concatenate(shares),
        starts=np.cumsum([0, *(len(piece) for piece in pieces)]).astype(np.int64),
        sizes=np.array([stop - start for start, stop in bounds] * training.local_epochs, dtype=np.int64),
    )


def _tensor(array: npt.NDArray[Any]) -> Tensor:
    """Wrap an array that may be read-only shared memory; nothing here writes to it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def _by_source(clients: Sequence[Samples]) -> list[tuple[list[int], Tensor]]:
    """Group positions by the array that they read: most clients share one, corrupted ones have their own."""
    groups: dict[int, list[int]] = {}
    for position, data in enumerate(clients):
        groups.setdefault(id(data.features), []).append(position)
    return [(members, _tensor(clients[members[0]].features).flatten(1)) for members in groups.values()]


class _Block:
    """Clients in lockstep, the one with most steps first."""

    def __init__(self, stack: DenseStack, clients: Sequence[ClientWork], training: LocalTraining) -> None:
        self._stack = stack
        self._one_hot = torch.eye(stack.layers[-1].num_outputs)
        drawn = [_draw_batches(client, training, aligned_row_step(stack)) for client in clients]
        self.order = sorted(range(len(clients)), key=lambda position: -len(drawn[position]))
        self.clients = [clients[position] for position in self.order]
        self.batches = [drawn[position] for position in self.order]
        self._sources = _by_source([client.data for client in self.clients])

    def steps(self) -> Iterator[list[tuple[int, list[int]]]]:
        """Yield, for each step, the active clients grouped by padded rows: `(padded rows, positions)`."""
        for step in range(len(self.batches[0])):
            groups: dict[int, list[int]] = {}
            for position, batches in enumerate(self.batches):
                if len(batches) <= step:
                    break
                groups.setdefault(int(batches.starts[step + 1] - batches.starts[step]), []).append(position)
            yield sorted(groups.items())

    def gather(self, step: int, num_rows: int, positions: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows `(clients, rows, inputs)`, targets `(…, classes)` and shares `(…, 1)` of one step."""
        slices = [slice(*self.batches[position].starts[step : step + 2]) for position in positions]
        batches = [self.batches[position] for position in positions]
        index = torch.from_numpy(np.stack([one.rows[part] for one, part in zip(batches, slices, strict=True)]))
        labels = torch.from_numpy(np.stack([one.labels[part] for one, part in zip(batches, slices, strict=True)]))
        shares = torch.from_numpy(np.stack([one.shares[part] for one, part in zip(batches, slices, strict=True)]))
        shares = shares.unsqueeze(2)
        targets = self._one_hot.index_select(0, labels.view(-1)).view(len(positions), num_rows, -1).mul_(shares)
        return self._rows(index, positions), targets, shares

    def _rows(self, index: Tensor, positions: list[int]) -> Tensor:
        """Gather source rows, each client's from its own source; `index` is `(clients, rows)`."""
        shape = (*index.shape, self._stack.num_inputs)
        if len(self._sources) == 1:
            return self._sources[0][1].index_select(0, index.view(-1)).view(shape)
        rows = torch.empty(shape)
        place = {position: number for number, position in enumerate(positions)}
        for members, features in self._sources:
            here = torch.tensor([place[position] for position in members if position in place], dtype=torch.int64)
            if len(here):
                rows[here] = features.index_select(0, index[here].view(-1)).view(len(here), *shape[1:])
        return rows


def train_block(
    stack: DenseStack,
    received: Tensor,
    clients: Sequence[ClientWork],
    training: LocalTraining,
    rule: ClientRule | None = None,
    config: Mapping[str, Any] | None = None,
) -> list[ClientUpdate]:
    """Train clients from the received parameters; the same as `local_training.train_client` for each.

    Args:
        stack: The model.
        received: The global vector, shape `(params,)`.
        clients: At least one, each with at least one training row.
        training: Epochs, batches, optimiser.
        rule: What the strategy changes, or None; applied client by client.
        config: The train message's configuration, for the rule.

    Returns:
        One update a client, in the order of `clients`.
    """
    block = _Block(stack, clients, training)
    weights, gradient = (aligned_matrix(len(clients), len(received)) for _ in range(2))
    weights.copy_(received)
    optimizer = new_optimizer(training)
    prepared = [_prepare(rule, received, client.state, training, config) for client in block.clients]
    loss_sums = np.zeros(len(clients))
    for step, groups in enumerate(block.steps()):
        num_active = sum(len(positions) for _, positions in groups)
        for num_rows, positions in groups:
            rows, targets, shares = block.gather(step, num_rows, positions)
            if len(groups) == 1:
                losses = stack.loss_and_gradient(weights[:num_active], rows, targets, shares, gradient[:num_active])
            else:
                places = torch.tensor(positions)
                part, change = (aligned_matrix(len(positions), len(received)) for _ in range(2))
                part.copy_(weights[places])
                losses = stack.loss_and_gradient(part, rows, targets, shares, change)
                gradient[places] = change
            sizes = np.array([block.batches[position].sizes[step] for position in positions])
            loss_sums[positions] += losses.numpy().astype(np.float64) * sizes
        if rule is not None:
            for position in range(num_active):
                rule.correct_gradient(prepared[position], weights[position], gradient[position])
        optimizer.step(weights[:num_active], gradient[:num_active])
    updates: dict[int, ClientUpdate] = {}
    for position, original in enumerate(block.order):
        batches, data = block.batches[position], block.clients[position].data
        kept = rule.finish(prepared[position], weights[position], len(batches)) if rule is not None else {}
        updates[original] = ClientUpdate(
            vector=weights[position].numpy().copy(),
            num_steps=len(batches),
            loss=float(loss_sums[position]) / (len(data) * training.local_epochs),
            initial_loss=None,
            state={name: tensor.numpy().copy() for name, tensor in kept.items()},
        )
    return [updates[position] for position in range(len(clients))]


def _prepare(
    rule: ClientRule | None,
    received: Tensor,
    state: ClientState,
    training: LocalTraining,
    config: Mapping[str, Any] | None,
) -> Any:
    if rule is None:
        return None
    kept = {name: torch.from_numpy(np.array(array)) for name, array in state.items()}
    return rule.prepare(RuleInputs(received, config or {}, kept, training.learning_rate))
