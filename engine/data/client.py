"""Local data of a client, client queries, and the release rules for their answers.

A query is a pure function of the client's local data and of the contents of the message. The host looks it up by name
in a fixed table; no other code runs on a client's data in answer to a query message. A query returns its numbers with
the number of rows behind each. `Release` lets through what covers at least `min_release` rows, or has enough noise:

- `RowAggregate`: numbers over rows. If the rows are divided into cells, for example by class, a cell of fewer rows is
  set to 0. The suppressed cells together hold at least `min_release` rows, too: the sum over all rows is known, so the
  server could subtract. If they hold fewer, a cell that could be released is suppressed as well (complementary
  suppression: L. H. Cox. Suppression methodology and statistical disclosure control. Journal of the American
  Statistical Association 75, 1980). It is the first such cell, not the smallest, as that would reveal that all others
  hold no fewer.
- `CountAggregate`: the number of rows in each cell. Of the additionally suppressed cell only as many rows are left out
  as give `min_release` together with the other suppressed rows, so that less is lost. This reveals no more: the value
  released for it is the number of rows in all suppressed cells minus `min_release`, and the number of these rows is
  known anyway, by subtraction.
- `NoisyAggregate`: differentially private numbers. If clients are promised privacy, nothing else is released.

Exceptions raised by a query are not released either: the server writes the message, and an error's text, such as that
of an index out of bounds, would reveal information about rows.

The content of a suppressed cell can't be inferred from all this, except in one case: suppressed cells that all hold one
row less than `min_release` hold the maximum.

Trained models and scores of a model are not covered by these rules: a model trained on one row reveals that row, and
the score of one row its label. `small_clients` determines what happens to clients with so few rows.
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
    """Corruption of one client's data by a scenario. A picklable value."""

    def __call__(
        self, features: FloatArray, labels: IntArray, num_classes: int, generator: np.random.Generator
    ) -> tuple[FloatArray, IntArray]:
        """Return new `(features, labels)` of the same lengths; the arguments are not modified."""


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
        """Build a partition from one sequence of row numbers per client; a client may be empty."""
        arrays = [np.asarray(rows, dtype=np.int64).reshape(-1) for rows in clients]
        offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in arrays])]).astype(np.int64)
        rows = np.concatenate(arrays) if arrays else np.empty(0, np.int64)
        return cls(rows=rows, offsets=offsets)

    @property
    def num_clients(self) -> int:
        """Number of clients, including empty ones."""
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
    """Standardisation of a regression target: mean and standard deviation over the clients' training rows."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, targets: npt.NDArray[np.float64]) -> TargetScale:
        """Return the scale of at least one target; the deviation is 1 if all targets are equal."""
        return cls(float(targets.mean()), float(targets.std()) or 1.0)


@dataclass(frozen=True)
class Samples:
    """Rows of a source array as a client reads them; not copied before they are used.

    Attributes:
        features: Source features, shape `(source_rows, *feature_shape)`.
        labels: Source labels in `[0, num_classes)`, shape `(source_rows,)`.
        rows: The rows of the source that belong to the client, shape `(num_rows,)`.
        targets: Regression targets, float64, shape `(source_rows,)`; labels are then classes of targets. None for
            classification.
        scale: Standardisation of the targets.
    """

    features: FloatArray
    labels: IntArray
    rows: IntArray
    targets: npt.NDArray[np.float64] | None = None
    scale: TargetScale | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, positions: IntArray, scale: TargetScale | None = None) -> Samples:
        """Return the rows at `positions` in `[0, len(self))`, as a view; `scale` replaces the current one if given."""
        return Samples(self.features, self.labels, self.rows[positions], self.targets, scale or self.scale)

    def answers(self, rows: IntArray) -> IntArray | FloatArray:
        """Return the expected model outputs of source rows: labels, or standardised targets as float32."""
        if self.targets is None or self.scale is None:
            return self.labels[rows]
        return ((self.targets[rows] - self.scale.mean) / self.scale.deviation).astype(np.float32)

    def take(self, positions: IntArray) -> tuple[FloatArray, IntArray]:
        """Return copies of the features and labels at `positions` in `[0, len(self))`."""
        rows = self.rows[positions]
        return self.features[rows], self.labels[rows]

    def label_counts(self, num_classes: int) -> IntArray:
        """Return the number of rows of each class, shape `(num_classes,)`."""
        return np.bincount(self.labels[self.rows], minlength=num_classes)

    def chunks(self, num_rows: int = CHUNK_ROWS) -> Iterator[tuple[FloatArray, IntArray]]:
        """Yield all rows in order, at most `num_rows` at a time, with features as stored."""
        for start in range(0, len(self.rows), num_rows):
            rows = self.rows[start : start + num_rows]
            yield self.features[rows], self.labels[rows]


def by_source(parts: Mapping[int, Samples]) -> list[list[int]]:
    """Group keys by the features array that their samples read; corrupted clients have arrays of their own."""
    sources: dict[int, list[int]] = {}
    for key, data in parts.items():
        sources.setdefault(id(data.features), []).append(key)
    return [*sources.values()]


@dataclass(frozen=True)
class ClientData:
    """One client's local data: observed (`own`), and uncorrupted (`clean`)."""

    own: Samples
    clean: Samples

    @property
    def corrupted(self) -> bool:
        """Whether observed and uncorrupted data differ."""
        return self.own is not self.clean


Arrays = Mapping[str, npt.NDArray[Any]]
RowCounts = npt.NDArray[np.integer]
SmallClients = Literal["train", "abstain"]

logger = logging.getLogger("fedscout")


NOT_PRIVATE = "answers only with noise, as detection.epsilon is set"


class WithheldError(Exception):
    """Raised when a client withholds an answer. The text holds no number that depends on its rows."""


@dataclass(frozen=True)
class RowAggregate:
    """Numbers aggregated over rows.

    Attributes:
        values: The numbers; if `rows` is an array, one value per cell along the leading axes.
        rows: Number of rows, 0 if the values depend on none; or rows of each cell, shape `(..., cells)`, where the
            cells of the last axis partition the rows.
    """

    values: npt.NDArray[Any]
    rows: int | RowCounts


@dataclass(frozen=True)
class CountAggregate:
    """Number of the client's rows in each cell, shape `(..., cells)`; every row is in one cell."""

    values: RowCounts


@dataclass(frozen=True)
class Privacy:
    """Differential privacy with respect to the replacement of one row.

    Attributes:
        epsilon: ε of all queries on the same terms, together.
        delta: δ, in `[0, 1)`.
        secure: Whether the noise can't be removed, as it could be with knowledge of its seed.
    """

    epsilon: float
    delta: float = 0.0
    secure: bool = False

    def keeps(self, promised: Privacy) -> bool:
        """Return whether this guarantee is at least as strong as the promised one."""
        return self.epsilon <= promised.epsilon and self.delta <= promised.delta and self.secure >= promised.secure


@dataclass(frozen=True)
class NoisyAggregate:
    """Differentially private numbers.

    Attributes:
        values: Of any shape.
        privacy: The guarantee that their noise provides.
    """

    values: npt.NDArray[Any]
    privacy: Privacy


Answer = Mapping[str, RowAggregate | CountAggregate | NoisyAggregate]


def released_cells(rows: RowCounts, min_release: int) -> npt.NDArray[np.bool_]:
    """Return which cells a client releases, shape `(..., cells)`.

    Args:
        rows: The client's rows in each cell, shape `(..., cells)`.
        min_release: Minimum number of rows behind each released number, and in all suppressed cells together.
    """
    enough = _enough(rows, min_release)
    left_out = np.where(enough, 0, rows).sum(axis=-1, keepdims=True)
    first = enough.argmax(axis=-1, keepdims=True)
    joins = (left_out > 0) & (left_out < min_release) & (np.arange(rows.shape[-1]) == first)
    return np.asarray(enough & ~joins)


def release_counts(rows: RowCounts, min_release: int) -> RowCounts:
    """Return the released row count of each cell: 0, or at least `min_release` and at most the actual count.

    Args:
        rows: The client's rows in each cell, shape `(..., cells)`.
        min_release: As for `released_cells`.
    """
    enough = _enough(rows, min_release)
    lacking = min_release - np.where(enough, 0, rows).sum(axis=-1, keepdims=True)
    rest = np.where(enough & (rows - lacking >= min_release), rows - lacking, 0)
    return np.where(released_cells(rows, min_release), rows, rest)


def _enough(rows: RowCounts, min_release: int) -> npt.NDArray[np.bool_]:
    return np.asarray(rows >= max(min_release, 1))


@dataclass(frozen=True)
class Release:
    """Release rules of clients' answers.

    Attributes:
        min_release: Minimum number of rows behind a number that answers a query.
        small_clients: What clients with fewer rows in training, or in evaluation, do: `train` and be scored, or
            `abstain` from it.
        privacy: Promised differential privacy: queries are answered with at least this much noise, or not at all. None
            promises none.
    """

    min_release: int = 5
    small_clients: SmallClients = "train"
    privacy: Privacy | None = None

    def check_answers(self, num_rows: int) -> None:
        """Check that a client with the given number of rows answers queries.

        Raises:
            WithheldError: If it has fewer than `min_release`.
        """
        if num_rows < self.min_release:
            raise WithheldError("holds fewer rows than federation.min_release")

    @property
    def least_rows(self) -> int:
        """Minimum number of rows from which a client trains on them, or is scored on them."""
        return 0 if self.small_clients == "train" else self.min_release

    def participates(self, num_rows: int) -> bool:
        """Return whether a client with the given number of rows trains on them, or is scored on them."""
        return num_rows >= self.least_rows

    def answer(self, query: Callable[[], Answer]) -> Arrays:
        """Run a query and return the part of its answer that is released.

        Raises:
            WithheldError: If a part must not be released and can't be suppressed by itself; or if the query fails.
        """
        try:
            answer = query()
        except WithheldError:
            raise
        except Exception as error:
            logger.debug("a query failed", exc_info=True)  # stays with the client
            reason = "can't answer this query" if self.privacy is None else NOT_PRIVATE
            raise WithheldError(reason) from error
        return self.released_part(answer)

    def released_part(self, answer: Answer) -> Arrays:
        """Return the part of a query's answer that is released.

        Raises:
            WithheldError: If a part must not be released and can't be suppressed by itself.
        """
        return {name: self._pass(part) for name, part in answer.items()}

    def _pass(self, part: RowAggregate | CountAggregate | NoisyAggregate) -> npt.NDArray[Any]:
        if isinstance(part, NoisyAggregate):
            if self.privacy is not None and not part.privacy.keeps(self.privacy):
                raise WithheldError("answers only with at least the noise of detection.epsilon, delta and noise")
            return part.values
        if self.privacy is not None:
            raise WithheldError(NOT_PRIVATE)
        if isinstance(part, CountAggregate):
            return release_counts(part.values, self.min_release)
        if not isinstance(part, RowAggregate):
            raise TypeError(
                f"a query must return RowAggregate, CountAggregate or NoisyAggregate, got {type(part).__name__}"
            )
        if isinstance(part.rows, int):
            if part.rows:
                self.check_answers(part.rows)
            return part.values
        released = released_cells(part.rows, self.min_release)
        if released.all():
            return part.values
        return np.where(released.reshape(released.shape + (1,) * (part.values.ndim - released.ndim)), part.values, 0)


LABEL_COUNTS = "label_counts"
"""The query that strategies may ask as detectors do: its answer `counts` is the client's rows of each class, shape
`(num_classes,)`, as far as they may leave it."""

Outputs = Callable[[FloatArray], Iterator[FloatArray]]
"""From a model's flat vector to its softmax outputs on the client's rows, chunk by chunk, `(rows, num_classes)`."""


DoubleArray = npt.NDArray[np.float64]
RowProducts = Callable[[DoubleArray], DoubleArray]


def products_on_a_core(rows: DoubleArray) -> DoubleArray:
    """Return XᵀX computed on the CPU, shape `(d, d)` from rows of shape `(rows, d)`."""
    return rows.T @ rows


def _no_model(vector: FloatArray) -> Iterator[FloatArray]:
    raise ValueError(f"no model here has {len(vector)} parameters")


@dataclass(frozen=True)
class QueryInputs:
    """Inputs of a query.

    Attributes:
        data: The client's observed local rows; read it with `chunks()` to bound memory.
        num_classes: Classes of the federation.
        arrays: The arrays of the message.
        config: The scalars of the message.
        outputs: Runs the federation's model over the client's rows, for queries about outputs.
        min_release: Minimum number of rows behind a released number; for queries about parts of the client's rows.
        groups: The group of each row, shape `(num_rows,)`; None if rows are independent.
        cross_products: Computes XᵀX of rows X, on the host's training device.
        model_inputs: The rows as the model reads them, where `data` holds embeddings; None: `data`.
    """

    data: Samples
    num_classes: int
    arrays: Mapping[str, npt.NDArray[np.generic]]
    config: Mapping[str, Any]
    outputs: Outputs = _no_model
    min_release: int = 1
    groups: IntArray | None = None
    cross_products: RowProducts = products_on_a_core
    model_inputs: Samples | None = None

    def by_class(self, name: str, num_classes: int) -> npt.NDArray[np.float64]:
        """Return an array of the message with one entry per class, as float64.

        Args:
            name: Name of the array.
            num_classes: Its length. If it were shorter, a failure of the query would reveal which classes the client
                holds.

        Raises:
            ValueError: If it has another length.
        """
        values = self.arrays[name].astype(np.float64)
        if values.ndim == 0 or len(values) != num_classes:
            raise ValueError(f"{name} must have an entry for each of {num_classes} classes, got shape {values.shape}")
        return values


ClientQuery = Callable[[QueryInputs], Answer]
QueryTable = Mapping[str, ClientQuery]
