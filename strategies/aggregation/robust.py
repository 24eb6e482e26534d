"""Fast versions of Flower's robust strategies: FedMedian, FedTrimmedAvg, Krum, MultiKrum, Bulyan and QFedAvg.

**Krum scores** (Blanchard et al. 2017) follow Flower's formula in the precision of the models. With ‖x − y‖²
= ‖x‖² + ‖y‖² − 2xy in float32, near ties are decided by rounding, so every operation is Flower's, in the same
order; rows are sorted and summed together instead of one by one. Doubling is exact, so products are doubled
instead of models.

**Coordinatewise statistics**: median, trimmed mean and mean around the median. NumPy computes statistics
along the first axis column by column, with strided access. Here blocks of coordinates are transposed first,
so that the values of a coordinate are contiguous and stay in the cache. Blocks are independent and run in a
few threads, since NumPy sorts and partitions outside the GIL. float32 sums depend on the order of their
terms, and Flower's means sum in the order in which a partition leaves the values; so the same partitions and
sums are computed. Replies of other types than float32 are left to Flower's classes. NaN and infinite
values are treated as by NumPy, without its warnings.

**QFedAvg** uses Flower's formula without a garbage collection per reply.

Reference:
    Blanchard, El Mhamdi, Guerraoui, Stainer: Machine learning with adversaries: Byzantine tolerant gradient
        descent. NeurIPS 2017. arXiv:1703.02757
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy.multikrum import select_multikrum as flowers_selection
from flwr.serverapp.strategy.qfedavg import compute_delta_and_h, get_train_loss
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

from fedscout.engine.messages.contents import view_record
from fedscout.strategies.aggregation.rules import Aggregate, QuickMessages, array_record, arrays_by_name, flat_vectors


def squared_distances(models: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the squared distances between models `(clients, params)`, shape `(clients, clients)`."""
    from scipy.linalg import get_blas_funcs  # not where no trial compares models

    norms = np.array([np.square(model).sum() for model in models])  # of large models no second matrix is made
    twice_products = get_blas_funcs("gemm", (models,))(2, models.T, models.T, trans_a=True)  # nor for 2x
    distances: npt.NDArray[Any] = norms[:, None] + norms[None, :] - twice_products.T
    return distances


def krum_scores(distances: npt.NDArray[Any], num_malicious: int) -> npt.NDArray[Any]:
    """Return each model's sum of squared distances to its n − f − 2 nearest, at least one, shape `(clients,)`."""
    num_closest = max(1, len(distances) - num_malicious - 2)
    closest = np.argsort(distances, axis=1)[:, 1 : num_closest + 1]
    scores: npt.NDArray[Any] = np.take_along_axis(distances, closest, axis=1).sum(axis=1)
    return scores


def select_multikrum(
    contents: list[RecordDict], num_malicious_nodes: int, num_nodes_to_select: int
) -> list[RecordDict]:
    """Return the replies with the lowest scores, best first.

    Args:
        contents: Contents of the replies.
        num_malicious_nodes: f.
        num_nodes_to_select: Number of replies to return.
    """
    scores = krum_scores(squared_distances(np.stack([*flat_vectors(contents)])), num_malicious_nodes)
    return [contents[index] for index in np.argsort(scores)[:num_nodes_to_select]]


BLOCK = 1024
"""Coordinates in a block: with a hundred clients 400 KB, which a core's own cache holds."""

SLAB = 64 * BLOCK
"""Coordinates that are gathered from all clients at a time: of a hundred clients 26 MB."""

NUM_THREADS = min(4, os.cpu_count() or 1)

ALL_BUT_SIGN = np.int32(0x7FFFFFFF)

OfBlock = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]
"""From a copy of some coordinates' values, shape `(coordinates, clients)`, to one value each."""

Values = Sequence[npt.NDArray[Any]] | npt.NDArray[Any]
"""One array a client, all of a shape."""


@np.errstate(over="ignore", invalid="ignore")
def median(values: Values) -> npt.NDArray[Any]:
    """Return `np.median(values, axis=0)`; a coordinate with a NaN gives NaN."""
    return _in_blocks(values, _medians)


@np.errstate(over="ignore", invalid="ignore")
def trimmed_mean(values: Values, num_trimmed: int) -> npt.NDArray[Any]:
    """Return the coordinatewise mean over clients without the smallest and the largest values.

    Args:
        values: One array per client.
        num_trimmed: Values trimmed at either end, less than half of the clients.
    """
    first, last = num_trimmed, len(values) - num_trimmed - 1
    return _in_blocks(values, lambda block: _means(_partitioned(block, first, last)[:, first : last + 1]))


@np.errstate(over="ignore", invalid="ignore")
def mean_around_median(values: Values, num_kept: int) -> npt.NDArray[Any]:
    """Return the coordinatewise mean over clients of the values nearest to the median.

    Args:
        values: One array per client.
        num_kept: Values in the mean, in `[1, clients]`.
    """

    def of_block(block: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        distances = np.abs(block - _medians(block.copy())[:, None])
        nearest = np.argpartition(distances, num_kept - 1, axis=1)[:, :num_kept]
        nearest += (np.arange(len(block)) * block.shape[1])[:, None]  # places in the block as one vector
        return _means(block.reshape(-1).take(nearest))

    return _in_blocks(values, of_block)


def _are_single(contents: list[RecordDict]) -> bool:
    return all(array.dtype == "float32" for content in contents for array in array_record(content).values())


def _in_blocks(values: Values, of_block: OfBlock) -> npt.NDArray[np.float32]:
    """Return a coordinatewise statistic, with one slab of values in memory at a time."""
    rows = [value.reshape(-1) for value in values]
    result = np.empty(rows[0].size, np.float32)

    @np.errstate(over="ignore", invalid="ignore")  # each thread has its own
    def one(slab: npt.NDArray[np.float32], into: npt.NDArray[np.float32], part: slice) -> None:
        into[part] = of_block(np.array(slab[:, part].T, order="C"))

    with ThreadPoolExecutor(max(1, min(NUM_THREADS, -(-result.size // BLOCK)))) as pool:
        for part in _parts(result.size, SLAB):
            slab = np.stack([row[part] for row in rows])
            list(pool.map(partial(one, slab, result[part]), _parts(slab.shape[1], BLOCK)))
    return result.reshape(values[0].shape)


def _parts(size: int, width: int) -> Iterator[slice]:
    """Yield slices of `width` coordinates, at least two each, which preserves NumPy's order of summation."""
    for start in range(0, size, width):
        yield slice(min(start, max(0, size - 2)), min(start + width, size))


def _means(chosen: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the mean of every row, summed sequentially as NumPy does along the first axis."""
    means: npt.NDArray[np.float32] = np.mean(np.ascontiguousarray(chosen.T), axis=0)
    return means


def _medians(block: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the median of every row, and sort the rows in place."""
    num_values = block.shape[1]
    block.sort(axis=1)
    lower, upper, largest = block[:, (num_values - 1) // 2], block[:, num_values // 2], block[:, -1]
    medians: npt.NDArray[np.float32] = upper.copy() if num_values % 2 else (lower + upper) / np.float32(2)
    np.copyto(medians, largest, where=np.isnan(largest))  # NaN sorts last
    return medians


def _partitioned(block: npt.NDArray[np.float32], first: int, last: int) -> npt.NDArray[np.float32]:
    """Return `np.partition(block, (first, last), axis=1)`; the block may be overwritten.

    The integers with the bits of floats, mirrored for negative numbers, have the order of the floats, and NumPy
    compares them faster. They can't represent NaN, and NumPy uses another algorithm for the largest float.
    """
    if first == 0 or np.isnan(block).any():
        return np.partition(block, (first, last), axis=1)
    block += np.float32(0)  # −0 becomes 0: they are equal as floats
    keys = block.view(np.int32)
    keys ^= (keys >> 31) & ALL_BUT_SIGN
    keys.partition((first, last), axis=1)
    keys ^= (keys >> 31) & ALL_BUT_SIGN
    return block


def _aggregated(contents: list[RecordDict], statistic: Callable[[Values], npt.NDArray[Any]]) -> ArrayRecord:
    return view_record({name: statistic(values) for name, values in arrays_by_name(contents).items()})


class ComparedReplies(QuickMessages):
    """Base class of strategies whose new model is a function of all replies."""

    @abstractmethod
    def _model(self, contents: list[RecordDict]) -> tuple[ArrayRecord, list[RecordDict]]:
        """Return the new model, and the replies whose metrics are averaged, given at least one reply."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        """Return the new model and the mean metrics; nothing without a reply."""
        valid_replies, _ = self._check_and_log_replies(replies, is_train=True)
        contents = [reply.content for reply in valid_replies]
        if not contents or not _are_single(contents):
            return super().aggregate_train(server_round, valid_replies)  # Flower's own
        arrays, selected = self._model(contents)
        return arrays, self._train_metrics(selected)


class FedMedian(ComparedReplies, flower.FedMedian):
    """Flower's FedMedian: the median of every parameter."""

    def _model(self, contents: list[RecordDict]) -> tuple[ArrayRecord, list[RecordDict]]:
        return _aggregated(contents, median), contents


class FedTrimmedAvg(ComparedReplies, flower.FedTrimmedAvg):
    """Flower's FedTrimmedAvg: the trimmed mean of every parameter."""

    def _model(self, contents: list[RecordDict]) -> tuple[ArrayRecord, list[RecordDict]]:
        num_trimmed = int(self.beta * len(contents))
        return _aggregated(contents, lambda values: trimmed_mean(values, num_trimmed)), contents


class MultiKrum(ComparedReplies, flower.MultiKrum):
    """Flower's MultiKrum: the weighted mean of the replies with the best scores."""

    def _model(self, contents: list[RecordDict]) -> tuple[ArrayRecord, list[RecordDict]]:
        selected = select_multikrum(contents, self.num_malicious_nodes, self.num_nodes_to_select)
        return aggregate_arrayrecords(selected, self.weighted_by_key), selected


class Krum(MultiKrum, flower.Krum):
    """Flower's Krum."""


class Bulyan(QuickMessages, flower.Bulyan):
    """Flower's Bulyan."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        """Return the mean around the median of the replies with the best scores, and their mean metrics."""
        valid_replies, _ = self._check_and_log_replies(replies, is_train=True)
        malicious, contents = self.num_malicious_nodes, [reply.content for reply in valid_replies]
        if len(contents) < 4 * malicious + 3 or not _are_single(contents):
            return super().aggregate_train(server_round, valid_replies)  # Flower's own, or a warning and no model
        select = select_multikrum if self.selection_rule is flowers_selection else self.selection_rule
        selected = select(contents, malicious, len(contents) - 2 * malicious)
        num_kept = len(contents) - 4 * malicious
        arrays = _aggregated(selected, lambda values: mean_around_median(values, num_kept))
        return arrays, self._train_metrics(selected)


class QFedAvg(QuickMessages, flower.QFedAvg):
    """Flower's QFedAvg."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        """Return the q-fair aggregate, float64, and the mean metrics."""
        valid_replies, _ = self._check_and_log_replies(replies, is_train=True)
        if not valid_replies or self.current_arrays is None:
            return super().aggregate_train(server_round, valid_replies)  # nothing, or an error that says why
        received = {name: array.numpy() for name, array in self.current_arrays.items()}
        self.current_arrays.clear()
        vectors = list(received.values())
        sum_delta: list[npt.NDArray[np.floating]] = []
        sum_h = 0.0
        for reply in valid_replies:
            local = [array.numpy() for array in array_record(reply.content).values()]
            loss = get_train_loss(reply, self.train_loss_key)
            delta, h = compute_delta_and_h(vectors, local, self.q, 1.0 / self.client_learning_rate, loss)
            sum_delta = [total + part for total, part in zip(sum_delta, delta, strict=True)] if sum_delta else delta
            sum_h += h
        new = (vector - total / sum_h for vector, total in zip(vectors, sum_delta, strict=True))
        arrays = view_record(dict(zip(received, new, strict=True)))
        metrics = self._train_metrics([reply.content for reply in valid_replies])
        return arrays, metrics
