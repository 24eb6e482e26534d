"""What one client holds, the queries about it, and the gate that its answers pass.

What one client holds: rows of shared arrays, as it has them and as they were before a corruption.

What leaves a client: the one gate through which all its answers pass.

A query returns its numbers together with how many rows are behind each; the gate lets pass what is over at least
`min_release` rows, or what holds enough noise, and nothing else:

- `RowAggregate`: numbers over so many rows. Where the rows are divided into cells, as by class, a cell of fewer rows
  is 0. The cells that are left out together hold at least `min_release` rows, too: the sum over all rows is known, so
  the server could subtract. If they hold fewer, a cell that could be told joins them (complementary suppression: L. H.
  Cox. Suppression methodology and statistical disclosure control. Journal of the American Statistical Association 75,
  1980). It is the first one, not the smallest, as that would tell that all others hold no fewer.
- `CountAggregate`: the rows of each cell. Of the cell that joins others only as many rows are left out as make
  `min_release` together with theirs, so that less is lost. That tells no more: what is told of it is the rows of all
  cells that are left out less `min_release`, and how many these are is told anyway, by subtraction.
- `NoisyAggregate`: numbers that are differentially private. Where clients are promised privacy, nothing else passes.

What a query raises does not pass either: the server writes the message, and an error's text, such as that of an index
beyond an array, would tell of rows.

What a cell of fewer rows holds can't be worked out from all this, but in one case: cells that are left out and all hold
one row less than `min_release` hold the most that they can.

The models that clients train and the scores that they give to a model are no such numbers: a model trained on one row
gives that row away, and the score of one row its label. `small_clients` says what becomes of clients with so few.

Client queries: the fixed table of aggregates a client is willing to compute over its own data.

A query is a pure function of the client's local data and of what the message carries. The host looks it up by name;
nothing else ever runs on a client's data in answer to a query message. It says how many rows are behind each number,
and what of its answer leaves the client is decided by `fedscout.engine.data.client`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import FloatArray, IntArray

CHUNK_ROWS = 4096


class ClientTransform(Protocol):
    """What a scenario does to the data of one client. A picklable value."""

    def __call__(
        self, features: FloatArray, labels: IntArray, num_classes: int, generator: np.random.Generator
    ) -> tuple[FloatArray, IntArray]:
        """Return new `(features, labels)` of the same lengths; the arguments are not changed."""
        ...


@dataclass(frozen=True)
class Partition:
    """Rows of each client, as one index array.

    Attributes:
        rows: Row numbers of all clients, client after client, shape `(total_rows,)`.
        offsets: Client k owns `rows[offsets[k]:offsets[k + 1]]`, shape `(num_clients + 1,)`.
    """

    rows: IntArray
    offsets: IntArray

    @classmethod
    def from_lists(cls, clients: Sequence[npt.ArrayLike]) -> Partition:
        """Build a partition from one sequence of row numbers a client; a client may be empty."""
        arrays = [np.asarray(rows, dtype=np.int64).reshape(-1) for rows in clients]
        offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in arrays])]).astype(np.int64)
        rows = np.concatenate(arrays) if arrays else np.empty(0, np.int64)
        return cls(rows=rows, offsets=offsets)

    @property
    def num_clients(self) -> int:
        """Number of clients, empty ones included."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> IntArray:
        """Number of rows of each client, shape `(num_clients,)`."""
        return np.diff(self.offsets)

    def client(self, client: int) -> IntArray:
        """Return the row numbers of one client."""
        return self.rows[self.offsets[client] : self.offsets[client + 1]]


@dataclass(frozen=True)
class TargetScale:
    """By which a target is standardised: the mean and standard deviation of the clients' training rows."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, targets: npt.NDArray[np.float64]) -> TargetScale:
        """Return that of some targets, at least one; of equal ones the deviation is 1."""
        return cls(float(targets.mean()), float(targets.std()) or 1.0)


@dataclass(frozen=True)
class Samples:
    """Rows of a source array: what a client reads, without a copy until it is used.

    Attributes:
        features: Source features, shape `(source_rows, *feature_shape)`.
        labels: Source labels in `[0, num_classes)`, shape `(source_rows,)`.
        rows: The rows of the source that belong to the client, shape `(num_rows,)`.
        targets: Where a quantity is predicted, float64, shape `(source_rows,)`; labels are then classes of it.
        scale: By which it is standardised.
    """

    features: FloatArray
    labels: IntArray
    rows: IntArray
    targets: npt.NDArray[np.float64] | None = None
    scale: TargetScale | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, positions: IntArray, scale: TargetScale | None = None) -> Samples:
        """Return the rows at `positions` in `[0, len(self))`, as a view; `scale`, if given, in place of their own."""
        return Samples(self.features, self.labels, self.rows[positions], self.targets, scale or self.scale)

    def answers(self, rows: IntArray) -> IntArray | FloatArray:
        """Return what a model is to say of rows of the source: their labels, or standardised targets as float32."""
        if self.targets is None or self.scale is None:
            return self.labels[rows]
        return ((self.targets[rows] - self.scale.mean) / self.scale.deviation).astype(np.float32)

    def take(self, positions: IntArray) -> tuple[FloatArray, IntArray]:
        """Return copies of the features and labels at `positions` in `[0, len(self))`."""
        rows = self.rows[positions]
        return self.features[rows], self.labels[rows]

    def label_counts(self, num_classes: int) -> IntArray:
        """Return the rows of each class, shape `(num_classes,)`."""
        return np.bincount(self.labels[self.rows], minlength=num_classes)

    def chunks(self, num_rows: int = CHUNK_ROWS) -> Iterator[tuple[FloatArray, IntArray]]:
        """Yield all rows in order, at most `num_rows` at a time, features as they are stored."""
        for start in range(0, len(self.rows), num_rows):
            rows = self.rows[start : start + num_rows]
            yield self.features[rows], self.labels[rows]


def by_source(parts: Mapping[int, Samples]) -> list[list[int]]:
    """Return the keys of those that read each array: most clients share one, corrupted ones have their own."""
    sources: dict[int, list[int]] = {}
    for key, data in parts.items():
        sources.setdefault(id(data.features), []).append(key)
    return [*sources.values()]


@dataclass(frozen=True)
class ClientData:
    """One client's local data: as it has them, and as they were before any corruption."""

    own: Samples
    clean: Samples

    @property
    def corrupted(self) -> bool:
        """Whether the two views differ."""
        return self.own is not self.clean


Arrays = Mapping[str, npt.NDArray[Any]]
RowCounts = npt.NDArray[np.integer]
SmallClients = Literal["train", "abstain"]

logger = logging.getLogger("fedscout")


NOT_PRIVATE = "answers only with noise, as detection.epsilon is set"


class WithheldError(Exception):
    """A client keeps an answer to itself. The text holds no number that depends on its rows."""


@dataclass(frozen=True)
class RowAggregate:
    """Numbers over rows.

    Attributes:
        values: If `rows` is an array, of each cell along the leading axes.
        rows: How many rows, 0 if the values depend on none; or of each cell, shape `(..., cells)`, the cells of the
            last axis dividing the rows among them.
    """

    values: npt.NDArray[Any]
    rows: int | RowCounts


@dataclass(frozen=True)
class CountAggregate:
    """How many of the client's rows are in each cell, shape `(..., cells)`; every row is in one."""

    values: RowCounts


@dataclass(frozen=True)
class Privacy:
    """Differential privacy for one row exchanged for another.

    Attributes:
        epsilon: ε of all that is asked on the same terms, together.
        delta: δ, in `[0, 1)`.
        secure: Whether nobody can take the noise off again, as who knows its seed can.
    """

    epsilon: float
    delta: float = 0.0
    secure: bool = False

    def keeps(self, promised: Privacy) -> bool:
        """Return whether it gives away no more than another."""
        return self.epsilon <= promised.epsilon and self.delta <= promised.delta and self.secure >= promised.secure


@dataclass(frozen=True)
class NoisyAggregate:
    """Differentially private numbers.

    Attributes:
        values: Of any shape.
        privacy: What their noise gives.
    """

    values: npt.NDArray[Any]
    privacy: Privacy


Answer = Mapping[str, RowAggregate | CountAggregate | NoisyAggregate]


def told_cells(rows: RowCounts, min_release: int) -> npt.NDArray[np.bool_]:
    """Return which cells a client tells of, shape `(..., cells)`.

    Args:
        rows: Its rows in each cell, likewise.
        min_release: Fewest rows behind anything that it tells, and behind all that it does not tell together.
    """
    enough = _enough(rows, min_release)
    left_out = np.where(enough, 0, rows).sum(axis=-1, keepdims=True)
    first = enough.argmax(axis=-1, keepdims=True)
    joins = (left_out > 0) & (left_out < min_release) & (np.arange(rows.shape[-1]) == first)
    return np.asarray(enough & ~joins)


def told_counts(rows: RowCounts, min_release: int) -> RowCounts:
    """Return the rows of each cell as far as a client tells them: 0, or at least `min_release` and no more than it has.

    Args:
        rows: Its rows in each cell, shape `(..., cells)`.
        min_release: As for `told_cells`.
    """
    enough = _enough(rows, min_release)
    lacking = min_release - np.where(enough, 0, rows).sum(axis=-1, keepdims=True)
    rest = np.where(enough & (rows - lacking >= min_release), rows - lacking, 0)
    return np.where(told_cells(rows, min_release), rows, rest)


def _enough(rows: RowCounts, min_release: int) -> npt.NDArray[np.bool_]:
    return np.asarray(rows >= max(min_release, 1))


@dataclass(frozen=True)
class Release:
    """What clients let out.

    Attributes:
        min_release: Fewest rows behind a number that answers a query.
        small_clients: What becomes of clients with fewer rows in training, or in evaluation: `train` and be scored, or
            `abstain` from it.
        privacy: What clients are promised: queries are answered with noise for as much, or more of it, or not at all.
            None promises none.
    """

    min_release: int = 5
    small_clients: SmallClients = "train"
    privacy: Privacy | None = None

    def check_answers(self, num_rows: int) -> None:
        """Return if a client of so many rows answers queries.

        Raises:
            WithheldError: If it has fewer than `min_release`.
        """
        if num_rows < self.min_release:
            raise WithheldError("holds fewer rows than federation.min_release")

    @property
    def least_rows(self) -> int:
        """From how many rows a client trains on them, or is scored on them."""
        return 0 if self.small_clients == "train" else self.min_release

    def takes_part(self, num_rows: int) -> bool:
        """Return whether a client trains on so many rows, or is scored on them."""
        return num_rows >= self.least_rows

    def answer(self, query: Callable[[], Answer]) -> Arrays:
        """Return what leaves the client in answer to a query.

        Raises:
            WithheldError: If part of it may not, and can't be left out by itself; or if the query fails.
        """
        try:
            found = query()
        except WithheldError:
            raise
        except Exception as error:
            logger.debug("a query failed", exc_info=True)  # stays with the client
            told = "can't answer the query as it is asked" if self.privacy is None else NOT_PRIVATE
            raise WithheldError(told) from error
        return self.let_pass(found)

    def let_pass(self, answer: Answer) -> Arrays:
        """Return what leaves the client of the answer to a query.

        Raises:
            WithheldError: If part of it may not, and can't be left out by itself.
        """
        return {name: self._pass(part) for name, part in answer.items()}

    def _pass(self, part: RowAggregate | CountAggregate | NoisyAggregate) -> npt.NDArray[Any]:
        if isinstance(part, NoisyAggregate):
            if self.privacy is not None and not part.privacy.keeps(self.privacy):
                raise WithheldError("answers only with the noise of detection.epsilon, delta and noise, or more")
            return part.values
        if self.privacy is not None:
            raise WithheldError(NOT_PRIVATE)
        if isinstance(part, CountAggregate):
            return told_counts(part.values, self.min_release)
        if not isinstance(part, RowAggregate):
            raise TypeError(
                f"a query must return RowAggregate, CountAggregate or NoisyAggregate, got {type(part).__name__}"
            )
        if isinstance(part.rows, int):
            if part.rows:
                self.check_answers(part.rows)
            return part.values
        told = told_cells(part.rows, self.min_release)
        if told.all():
            return part.values
        return np.where(told.reshape(told.shape + (1,) * (part.values.ndim - told.ndim)), part.values, 0)


LABEL_COUNTS = "label_counts"
"""The query that strategies may ask as detectors do: its answer `counts` is the client's rows of each class, shape
`(num_classes,)`, as far as they may leave it."""

Outputs = Callable[[FloatArray], Iterator[FloatArray]]
"""From a model's flat vector to its softmax outputs on the client's rows, chunk by chunk, `(rows, num_classes)`."""


DoubleArray = npt.NDArray[np.float64]
RowProducts = Callable[[DoubleArray], DoubleArray]


def products_on_a_core(rows: DoubleArray) -> DoubleArray:
    """Return XᵀX, shape `(d, d)` from rows of shape `(rows, d)`."""
    return rows.T @ rows


def _no_model(vector: FloatArray) -> Iterator[FloatArray]:
    raise ValueError(f"no model here takes a vector of {len(vector)} parameters")


@dataclass(frozen=True)
class QueryInputs:
    """What a query may read.

    Attributes:
        data: The client's local rows as it has them; read it with `chunks()` to bound memory.
        num_classes: Classes of the federation.
        arrays: The arrays of the message.
        config: The scalars of the message.
        outputs: Runs the federation's model over the client's rows, for queries about outputs.
        min_release: Fewest rows behind a number that leaves the client; for queries about parts of its rows.
        groups: The group of each row, shape `(num_rows,)`; None where rows are independent.
        cross_products: XᵀX of rows X, wherever the host has the most room for it.
    """

    data: Samples
    num_classes: int
    arrays: Mapping[str, npt.NDArray[np.generic]]
    config: Mapping[str, Any]
    outputs: Outputs = _no_model
    min_release: int = 1
    groups: IntArray | None = None
    cross_products: RowProducts = products_on_a_core

    def by_class(self, name: str, num_classes: int) -> npt.NDArray[np.float64]:
        """Return an array of the message that holds something of each class, as float64.

        Args:
            name: Of the array.
            num_classes: Its length. With fewer, whether the query fails would tell which classes the client holds.

        Raises:
            ValueError: If it has another length.
        """
        values = self.arrays[name].astype(np.float64)
        if values.ndim == 0 or len(values) != num_classes:
            raise ValueError(f"{name} must hold something of {num_classes} classes, got shape {values.shape}")
        return values


ClientQuery = Callable[[QueryInputs], Answer]
QueryTable = Mapping[str, ClientQuery]
