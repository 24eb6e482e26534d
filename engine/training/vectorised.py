"""Vectorised local training of many clients of a small dense net; tests compare it with the per-client loop.

Clients of a block are trained in lockstep, ordered by decreasing number of steps, so that step s works on the first
clients of the block and no client waits. A batch is padded with rows of weight zero to a number of rows that depends on
that batch alone, and every operation works client by client (see `fedscout.engine.models.dense`) on memory that is
aligned alike for all of them, since the last bits of a matrix product depend on alignment. Hence a client's result has
the same bits in any block, and for any number of hosts. It differs from the loop in the order of float32 sums; the
tests state the tolerance.

The random draws of layers in local training, such as dropout masks, derive from (seed, round, client) in every backend.
The loop draws from torch's global generator, which is seeded for each client. Clients that are trained together have
one generator each, with the same seed, and draw in the same order: batch after batch, layer after layer, only for rows
without padding. So masks equal the loop's in any block.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.algorithm import ClientWork, Descent, Steps, TrainRequest
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Samples, by_source
from fedscout.engine.models import dense
from fedscout.engine.seeds import integer
from fedscout.engine.training.loop import NO_ROWS, RowsWork, batch_bounds, epoch_orders, new_optimizer


def layer_seed(request: TrainRequest, client: int) -> int:
    """Return the seed of a client's layers in a round."""
    return integer(request.seed, "layers", request.server_round, client)


def seed_layers(request: TrainRequest, client: int, device: torch.device) -> None:
    """Seed torch's global generators, from which layers such as dropout draw."""
    seed = layer_seed(request, client)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def layer_generators(request: TrainRequest, works: Sequence[ClientWork]) -> list[torch.Generator]:
    """Return one generator per client for its layers, where several clients are trained at once."""
    return [torch.Generator().manual_seed(layer_seed(request, work.client)) for work in works]


def dropout_masks(
    layers: Sequence[tuple[tuple[int, ...], float]],
    generators: Sequence[torch.Generator],
    sizes: IntArray,
    num_rows: int,
) -> list[Tensor]:
    """Return the factors of each layer's outputs, 0 or 1 / (1 − p), and 0 for padding; shape `(clients, rows, ...)`.

    Args:
        layers: Shape of a row's outputs and p of each layer.
        generators: One for each client that draws, of which there may be fewer than sizes.
        sizes: Rows without padding of each client's batch.
        num_rows: Rows of a batch with padding.
    """
    masks = []
    for shape, share in layers:
        mask = torch.zeros(len(sizes), num_rows, *shape)
        for place, generator in enumerate(generators):
            mask[place, : sizes[place]].bernoulli_(1 - share, generator=generator)
        masks.append(mask.div_(1 - share))
    return masks


class LayerDraws:
    """Dropout masks for the clients of a block; the generators continue from one training to the next.

    Args:
        stack: The model.
        request: The request of the train message.
        works: The clients, in the order of the block.
    """

    def __init__(self, stack: dense.DenseStack, request: TrainRequest, works: Sequence[ClientWork]) -> None:
        self._layers = [((layer.num_outputs,), stack.dropout) for layer in stack.layers[:-1]] if stack.dropout else []
        self._generators = layer_generators(request, works if self._layers else ())

    def masks(self, start: int, sizes: IntArray, num_rows: int) -> list[Tensor]:
        """Return the factors of each hidden layer's outputs, 0 or 1 / (1 − dropout); an empty list without dropout.

        Args:
            start: First of some adjacent clients in the block.
            sizes: Rows without padding of each one's batch.
            num_rows: Rows of a batch with padding, whose factors are 0.
        """
        return dropout_masks(self._layers, self._generators[start : start + len(sizes)], sizes, num_rows)


PADDING = 8
"""A batch is padded to a multiple of so many rows, so that clients of similar sizes share a product."""

GATHERED_BYTES = 2**20
"""Rows of several steps are gathered together while they stay in a core's cache."""

KEPT_PLANS, KEPT_ROWS = 32, 2**15
"""Plans of blocks that are kept, as their clients come again every round, and the most rows of one: 20 MiB in all."""


def padded_rows(num_rows: int, row_step: int) -> int:
    """Return the padded number of rows of a batch.

    Args:
        num_rows: Rows of the batch.
        row_step: The result is a multiple of it; a power of two.
    """
    return dense.aligned(num_rows, max(PADDING, row_step))


def aligned_row_step(stack: dense.DenseStack) -> int:
    """Return the smallest number of rows whose activations fill multiples of 64 bytes in every layer.

    Multiples of 128 bytes where a layer's activation has other bits in the remainder of torch's vector loop, which is
    less than two registers.
    """
    widths = [stack.num_inputs, *(layer.num_outputs for layer in stack.layers)]
    looped = [each.num_outputs for each in stack.layers if each.activation is not None and not each.activation.exact]
    once, twice = dense.ALIGNED, 2 * dense.ALIGNED
    return max(once // math.gcd(once, *widths), twice // math.gcd(twice, *looped))


@dataclass(frozen=True, eq=False)
class Schedule:
    """The padded batches of a number of rows over all epochs; the same for all clients of that size.

    Attributes:
        places: Positions in the concatenated orders of all epochs, batch after batch, including padding.
        shares: Weights of these rows in their batch's mean, 0 for padding; shape `(padded rows, 1)`.
        starts: Start of each batch in `places`, and the end of the last one.
        sizes: Rows without padding of each batch.
    """

    places: IntArray
    shares: FloatArray
    starts: IntArray
    sizes: IntArray

    def __len__(self) -> int:
        return len(self.sizes)


@lru_cache(maxsize=4096)
def schedule(num_rows: int, batch_size: int, local_epochs: int, row_step: int) -> Schedule:
    """Return the schedule of a client; its batches are those of the loop."""
    bounds = batch_bounds(num_rows, batch_size)
    places: list[IntArray] = []
    shares: list[FloatArray] = []
    for epoch in range(local_epochs):
        for start, stop in bounds:
            batch = np.arange(start, stop) + epoch * num_rows
            places.append(np.resize(batch, padded_rows(len(batch), row_step)))
            shares.append(np.zeros(len(places[-1]), np.float32))
            shares[-1][: len(batch)] = 1 / len(batch)
    return Schedule(
        places=np.concatenate(places),
        shares=np.concatenate(shares)[:, None],
        starts=np.cumsum([0, *(len(piece) for piece in places)]).astype(np.int64),
        sizes=np.array([stop - start for start, stop in bounds] * local_epochs, dtype=np.int64),
    )


class Run(NamedTuple):
    """Adjacent clients `start` to `stop` of a block whose next batches have equally many rows, including padding."""

    start: int
    stop: int
    sizes: IntArray
    """Valid rows of each client's batch."""


with warnings.catch_warnings():  # torch warns once of read-only arrays, which are never written to here
    warnings.simplefilter("ignore", UserWarning)
    torch.from_numpy(np.frombuffer(bytes(4), np.float32))


class _Source(NamedTuple):
    """Arrays that some clients read, with the clients' positions in the block."""

    positions: list[int]
    features: Tensor
    data: Samples

    def take(self, places: IntArray) -> tuple[Tensor, Tensor]:
        """Return copies of the features and targets of rows; `places` is `(rows,)`."""
        return self.features.index_select(0, torch.from_numpy(places)), torch.from_numpy(self.data.answers(places))


def _sources(clients: Sequence[Samples]) -> list[_Source]:
    """Group clients by the arrays that they read."""
    firsts = [(members, clients[members[0]]) for members in by_source(dict(enumerate(clients)))]
    return [_Source(members, torch.from_numpy(data.features).flatten(1), data) for members, data in firsts]


class _Batch(NamedTuple):
    """The data of steps of some clients, row after row.

    Attributes:
        rows: Features.
        targets: One-hot labels times shares, or regression targets.
        shares: Weights in a batch's mean.
    """

    rows: Tensor
    targets: Tensor
    shares: Tensor

    def parts(self, shapes: Sequence[tuple[int, int]]) -> Iterator[_Batch]:
        """Yield the data of consecutive runs, given (clients, rows) of each."""
        counts = [num_clients * num_rows for num_clients, num_rows in shapes]
        for shape, *pieces in zip(shapes, *(tensor.split_with_sizes(counts) for tensor in self), strict=True):
            yield _Batch(*(piece.view(*shape, -1) for piece in pieces))


def _schedules(stack: dense.DenseStack, works: Sequence[RowsWork], training: LocalTraining) -> list[Schedule]:
    row_step = aligned_row_step(stack)
    return [schedule(len(work.data), training.batch_size, training.local_epochs, row_step) for work in works]


def lockstep_order(stack: dense.DenseStack, works: Sequence[RowsWork], training: LocalTraining) -> list[int]:
    """Return the positions of clients in a block, by decreasing number of steps.

    Raises:
        ValueError: If a client has no training rows.
    """
    if not all(len(work.data) for work in works):
        raise ValueError(NO_ROWS)
    plans = _schedules(stack, works, training)
    return sorted(range(len(works)), key=lambda position: -len(plans[position]))


class Block:
    """Clients in lockstep, ordered by decreasing number of steps.

    Args:
        stack: The model.
        works: In that order; clients with batches of equal sizes should be adjacent.
        training: Epochs, batches, optimiser.

    Attributes:
        works: As given.
        schedules: The schedule of each.
    """

    def __init__(self, stack: dense.DenseStack, works: Sequence[RowsWork], training: LocalTraining) -> None:
        self._stack = stack
        self._one_hot = torch.eye(stack.layers[-1].num_outputs)
        self.works = works
        self.schedules = _schedules(stack, works, training)
        self._sources = _sources([work.data for work in self.works])
        rows = []
        for work, plan in zip(self.works, self.schedules, strict=True):
            orders = list(epoch_orders(len(work.data), training.local_epochs, work.generator))
            rows.append(work.data.rows[np.concatenate(orders)[plan.places]])
        self._rows = np.concatenate(rows)

    @property
    def together(self) -> bool:
        """Whether all clients make the same number of steps."""
        return len(self.schedules[0]) == len(self.schedules[-1])

    def steps(self) -> Iterator[tuple[int, list[tuple[Run, _Batch]]]]:
        """Yield, for each step, the number of active clients, and their runs with the data of each."""
        for plan in _plans(tuple(self.schedules), self._stack.num_inputs):
            batches = self._gather(plan).parts(plan.shapes)
            for runs in plan.steps:
                yield runs[-1].stop, [(run, next(batches)) for run in runs]

    def _gather(self, plan: _GatherPlan) -> _Batch:
        """Return copies of the rows of some steps."""
        rows, answers = self._take(self._rows[plan.places], plan.clients)
        if answers.is_floating_point():
            return _Batch(rows, answers[:, None], plan.shares)
        return _Batch(rows, self._one_hot.index_select(0, answers).mul_(plan.shares), plan.shares)

    def _take(self, places: IntArray, of_clients: IntArray) -> tuple[Tensor, Tensor]:
        """Return copies of features and answers, each client's from its own source."""
        if len(self._sources) == 1:
            return self._sources[0].take(places)
        num_rows, classifies = len(places), self._sources[0].data.scale is None
        rows = torch.empty((num_rows, self._stack.num_inputs))
        answers = torch.empty(num_rows, dtype=torch.int64 if classifies else torch.float32)
        for source in self._sources:
            of_source = np.flatnonzero(np.isin(of_clients, source.positions))
            rows[of_source], answers[of_source] = source.take(places[of_source])
        return rows, answers


@dataclass(frozen=True)
class _GatherPlan:
    """Rows that are gathered at once for some steps.

    They are ordered by step and then client, so that the rows of a run are adjacent.

    Attributes:
        places: Positions of these rows among all rows that the block's clients see, one client after the other.
        clients: The client of each row.
        shares: The weight of each row in its batch's mean, shape `(rows, 1)`.
        steps: The runs of each step.
        shapes: Clients and rows of each run.
    """

    places: IntArray
    clients: IntArray
    shares: Tensor
    steps: list[list[Run]]
    shapes: list[tuple[int, int]]

    @classmethod
    def of(cls, schedules: Sequence[Schedule], first: int, last: int) -> _GatherPlan:
        """Plan the steps from `first` to before `last`, for the clients that are active in the first of them."""
        starts = np.zeros((last - first, len(schedules)), np.int64)
        padded, counted = np.zeros_like(starts), np.zeros_like(starts)
        offset = 0
        for client, schedule in enumerate(schedules):
            bounds = schedule.starts[first : last + 1]
            starts[: len(bounds) - 1, client] = bounds[:-1] + offset
            padded[: len(bounds) - 1, client] = np.diff(bounds)
            counted[: len(bounds) - 1, client] = schedule.sizes[first:last]
            offset += schedule.starts[-1]
        sizes = padded.ravel()
        places = np.repeat(starts.ravel() - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
        shares = np.concatenate([schedule.shares for schedule in schedules])[places]
        steps, shapes = _runs(padded, counted)
        clients = np.repeat(np.resize(np.arange(len(schedules)), len(sizes)), sizes)
        return cls(places, clients, torch.from_numpy(shares), steps, shapes)


def _plans(schedules: tuple[Schedule, ...], num_inputs: int) -> Iterable[_GatherPlan]:
    """Return the successive gather plans of a block, whose clients are ordered by decreasing number of steps."""
    small = sum(int(schedule.starts[-1]) for schedule in schedules) <= KEPT_ROWS
    return _cached_plans(schedules, num_inputs) if small else _new_plans(schedules, num_inputs)


@lru_cache(maxsize=KEPT_PLANS)
def _cached_plans(schedules: tuple[Schedule, ...], num_inputs: int) -> Sequence[_GatherPlan]:
    return [*_new_plans(schedules, num_inputs)]


def _new_plans(schedules: tuple[Schedule, ...], num_inputs: int) -> Iterator[_GatherPlan]:
    num_steps, first = len(schedules[0]), 0
    widest = [int(np.diff(schedule.starts).max()) for schedule in schedules]
    while first < num_steps:
        active = [schedule for schedule in schedules if len(schedule) > first]
        row_bytes = 4 * num_inputs * sum(widest[: len(active)])
        last = min(first + max(1, GATHERED_BYTES // row_bytes), num_steps)
        yield _GatherPlan.of(active, first, last)
        first = last


def _runs(padded: IntArray, counted: IntArray) -> tuple[list[list[Run]], list[tuple[int, int]]]:
    """Return the runs of each step, and the clients and rows of each run.

    Args:
        padded: Rows of each batch including padding, shape `(steps, clients)`; 0 for clients that have finished.
        counted: Rows without padding, same shape.
    """
    steps, clients = np.nonzero(padded)
    rows = padded[steps, clients]
    begins = np.flatnonzero((np.diff(steps, prepend=-1) != 0) | (np.diff(rows, prepend=0) != 0))
    lengths = np.diff(begins, append=len(rows))
    sizes = np.split(counted[steps, clients], begins[1:])
    firsts = clients[begins]
    by_step: list[list[Run]] = [[] for _ in padded]
    for step, *each in zip(steps[begins].tolist(), firsts.tolist(), (firsts + lengths).tolist(), sizes, strict=True):
        by_step[step].append(Run(*each))
    return by_step, list(zip(lengths.tolist(), rows[begins].tolist(), strict=True))


def descend_block(
    stack: dense.DenseStack, start: Tensor, works: Sequence[RowsWork], how: Steps, received: Tensor, draws: LayerDraws
) -> Descent:
    """Run all local steps of some clients in lockstep.

    Args:
        stack: The model.
        start: Initial parameters, shape `(size,)` or `(clients, size)`.
        works: By decreasing number of steps, see `lockstep_order`.
        how: Without a custom loss and without look-ahead.
        received: The model that gives pseudo-labels, shape `(size,)`.
        draws: Random draws of the layers.
    """
    correct, row_loss = how.correct, None if how.weighed.is_plain else how.weighed
    block = Block(stack, works, how.training)
    optimizer = new_optimizer(how.training)
    parameters = dense.BlockParameters(stack, start, len(works), block.together)
    auxiliary = [parameters.arranged(vectors) for vectors in how.extra]

    def without_gradients(vectors: Tensor) -> dense.BlockParameters:
        return dense.BlockParameters(stack, vectors, len(works), block.together)

    others = [] if how.compared is None else [without_gradients(vectors) for vectors in how.compared.others]
    teacher = without_gradients(received) if how.weighed.pseudo_label else None
    sums = np.zeros(len(works))  # of each client's losses over the rows that it saw
    for num_active, runs in block.steps():
        for run, batch in runs:
            adjusted = None if how.adjusted is None else how.adjusted.of(slice(run.start, run.stop))
            layers = parameters.layers(run.start, run.stop)
            taught = None if teacher is None else dense.says(teacher.layers(run.start, run.stop), batch.rows, adjusted)
            beyond = _additional_loss(how, run, others)
            masks = draws.masks(run.start, run.sizes, batch.rows.shape[1])
            means = dense.loss_and_gradient(layers, *batch, adjusted, beyond, row_loss, taught, masks)
            sums[run.start : run.stop] += means.numpy().astype(np.float64) * run.sizes
        regions = parameters.regions(num_active)
        if correct is not None:
            extra = [parameters.regions_of(vectors, num_active) for vectors in auxiliary]
            for parts in zip(*regions, *extra, strict=True):
                correct(*parts)
        optimizer.step_all(*regions)
    num_rows = np.array([plan.sizes.sum() for plan in block.schedules])
    num_steps = torch.tensor([len(plan) for plan in block.schedules])
    return Descent(parameters.vectors(), num_steps, torch.from_numpy(sums / num_rows))


def _additional_loss(
    how: Steps, run: Run, others: Sequence[dense.BlockParameters]
) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Return the additional loss of the clients of a run."""
    compared = how.compared
    if compared is None:
        return None
    layers = [other.layers(run.start, run.stop) for other in others]
    return lambda own, rows: compared.measure(own, *(dense.representation(each, rows) for each in layers))
