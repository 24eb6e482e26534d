"""Partitioner interface: settings, request and result, and helpers shared by partitioners.

The helpers draw shares and round them to whole rows, move rows to clients below the minimum size, and return features
as columns with their variances in the data's original unit.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, field_validator

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.data.client import CHUNK_ROWS, Partition
from fedscout.engine.errors import DataError
from fedscout.experiments.data.dataset import DataKind, TextArray

Level = Annotated[float, Field(ge=0, le=1)]
Quantity = Annotated[int, Field(ge=1)]
Counts = Annotated[tuple[Annotated[int, Field(strict=True, ge=0, lt=2**31)], ...], Field(min_length=1)]


class PartitionSettings(BaseModel):
    """Settings of a partition. A kind reads the fields listed for it in the table of partitions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str | None = None
    alpha: float = Field(
        default=0.1,
        gt=0,
        le=1e6,
        description="dirichlet, inner_dirichlet, quantity_skew: concentration; smaller means more skew",
    )
    min_size: int = Field(
        default=5,
        ge=1,
        description="smallest number of rows per client, for kinds whose sizes are random or follow from the data",
    )
    classes_per_client: int = Field(default=2, ge=1, description="pathological, distribution: classes per client")
    class_assignment: Literal["first-deterministic", "deterministic", "random"] = Field(
        default="first-deterministic", description="pathological: whether classes are drawn or assigned in turn"
    )
    class_share: float = Field(
        default=0.5, gt=0, le=1, description="classes_per_client: fraction of the classes that each client has"
    )
    shards_per_client: int = Field(default=2, ge=1, description="shard: shards of sorted rows per client")
    lognormal_sigma: float = Field(
        default=2.0,
        ge=0,
        le=10,
        description="distribution: spread of a class's rows over its clients; 0 is equal shares",
    )
    levels: tuple[Level, ...] = Field(
        default=(0.2, 0.4, 0.6, 0.8),
        min_length=1,
        description="heterogeneity_index: indices assigned to clients in turn; 0 means all classes, 1 one class",
    )
    quantities: tuple[Quantity, ...] = Field(
        default=(),
        description="heterogeneity_index: numbers of rows assigned to clients in turn; by default all rows, equally",
    )
    counts: Annotated[tuple[Counts, ...], Field(min_length=1)] | None = Field(
        default=None, description="counts: rows of each client by class"
    )

    @field_validator("counts")
    @classmethod
    def _is_matrix(cls, given: tuple[tuple[int, ...], ...] | None) -> tuple[tuple[int, ...], ...] | None:
        if given is not None and len({len(row) for row in given}) > 1:
            raise ValueError(f"must hold a row per client with a number per class, got {str(given)[:80]}")
        return given


@dataclass(frozen=True)
class PartitionResult:
    """A partition, with facts to record.

    Attributes:
        partition: Rows of each client.
        facts: Facts to record about how it was created.
        affected_clients: For published scenarios, the clients that differ from the others, ascending.
    """

    partition: Partition
    facts: Mapping[str, Any] = field(default_factory=dict)
    affected_clients: tuple[int, ...] = ()


@dataclass(frozen=True)
class PartitionRequest:
    """Rows to partition and the user's settings.

    Attributes:
        labels: int64 in `[0, num_classes)`, shape `(num_rows,)`.
        num_clients: Number of clients, >= 1; None if the data determine it.
        generator: The only source of randomness.
        settings: User settings.
        features: float32, shape `(num_rows, *feature_shape)`; None if the data have none.
        deviations: Each column's standard deviation before standardisation, shape `(num_columns,)`, or None.
        client_ids: Natural client of each row, or None.
        data_kind: Type of a row.
    """

    labels: IntArray
    num_clients: int | None
    generator: np.random.Generator
    settings: PartitionSettings = field(default_factory=PartitionSettings)
    features: FloatArray | None = None
    deviations: npt.NDArray[np.float64] | None = None
    client_ids: TextArray | None = None
    data_kind: DataKind = "table"

    @property
    def class_counts(self) -> IntArray:
        """Rows of each class, shape `(num_classes,)`."""
        return np.bincount(self.labels)

    def require_num_clients(self) -> int:
        """Return the number of clients, checked against the number of rows.

        Raises:
            DataError: If some client would have no row, or the number is not set.
        """
        if self.num_clients is None:
            raise DataError.of("federation.num_clients", "be given for this partition", "nothing")
        if not 1 <= self.num_clients <= len(self.labels):
            raise DataError.of(
                "federation.num_clients", f"be between 1 and the number of rows, {len(self.labels)}", self.num_clients
            )
        return self.num_clients

    def require_min_size(self) -> int:
        """Return the minimum number of rows per client, checked against the number of rows.

        Raises:
            DataError: If there are too few rows for every client.
        """
        num_clients, num_rows, min_size = self.require_num_clients(), len(self.labels), self.settings.min_size
        if num_clients * min_size > num_rows:
            raise DataError.of(
                "federation.num_clients times federation.partition.min_size",
                f"not exceed the number of rows, {num_rows}",
                f"{num_clients} times {min_size}",
                f"the largest minimum that {num_clients} clients allow is {num_rows // num_clients}",
            )
        return min_size

    def check_sizes(self, sizes: IntArray) -> None:
        """Check the numbers of rows of clients.

        Raises:
            DataError: If one is below `min_size`.
        """
        if sizes.min() < self.settings.min_size:
            must = f"be at most {sizes.min()}, the rows of client {sizes.argmin()}"
            raise DataError.of("federation.partition.min_size", must, self.settings.min_size, "use fewer clients")

    def by_owners(self, owners: IntArray, num_clients: int | None = None, **facts: Any) -> PartitionResult:
        """Return the partition that assigns each row to its owner, with each client's rows in random order.

        Args:
            owners: Client of each row, shape `(num_rows,)`; -1 for an unused row.
            num_clients: Number of clients, some of which may have no rows; None for the requested number.
            facts: Facts to record.
        """
        num_clients = num_clients or self.require_num_clients()
        shuffled = self.generator.permutation(len(owners))
        shuffled = shuffled[owners[shuffled] >= 0]
        rows = shuffled[np.argsort(owners[shuffled], kind="stable")]
        sizes = np.bincount(owners[owners >= 0], minlength=num_clients)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return PartitionResult(Partition(rows=rows.astype(np.int64), offsets=offsets), facts)

    def by_class_counts(self, counts: IntArray, **facts: Any) -> PartitionResult:
        """Return the partition in which client k has `counts[k, y]` random rows of class y.

        Args:
            counts: Shape `(num_clients, num_classes)`; no class exceeds its number of rows.
            facts: Facts to record.
        """
        owners = np.full(len(self.labels), -1, dtype=np.int64)
        clients = np.arange(len(counts))
        for label in range(counts.shape[1]):
            rows = self.generator.permutation(np.flatnonzero(self.labels == label))
            row_owners = np.repeat(clients, counts[:, label])
            assert len(row_owners) <= len(rows)
            owners[rows[: len(row_owners)]] = row_owners
        return self.by_owners(owners, len(counts), **facts)


Partitioner = Callable[[PartitionRequest], PartitionResult]
"""Raises a `DataError` if some client would get too few rows, or the data lack what it needs."""


@dataclass(frozen=True)
class PartitionKind:
    """Entry of the table of partitions.

    Attributes:
        deal: Partitions the rows.
        reads: Fields of `PartitionSettings` that it reads; all others must keep their defaults.
        fixes_num_clients: Whether data or settings determine the number of clients, which may then be omitted.
        repeats_rows: Whether a row may be assigned to several clients.
    """

    deal: Partitioner
    reads: tuple[str, ...] = ()
    fixes_num_clients: bool = False
    repeats_rows: bool = False


BoolArray = npt.NDArray[np.bool_]
FloatVector = npt.NDArray[np.float64]


def dirichlet_shares(alpha: float, num_parts: int, generator: np.random.Generator) -> FloatVector:
    """Draw shares from a symmetric Dirichlet(α), shape `(num_parts,)`.

    If α is too small for floating point, the result is its limit: a single part, drawn uniformly, has the whole share.
    """
    shares: FloatVector = generator.dirichlet(np.full(num_parts, alpha))
    if np.isfinite(shares).all() and shares.sum() > 0.5:
        return shares
    shares = np.zeros(num_parts)
    shares[generator.integers(num_parts)] = 1.0
    return shares


def whole_rows(shares: FloatVector, num_rows: int, generator: np.random.Generator) -> IntArray:
    """Round `shares * num_rows` to integers that sum to `num_rows`, by the largest-remainder method.

    Args:
        shares: Non-negative, summing to 1, shape `(num_parts,)`.
        num_rows: Total to distribute.
        generator: Breaks ties between equal remainders.
    """
    expected = shares * num_rows
    # The tolerance keeps a product such as 0.7 * 10 = 6.999… from losing a row.
    counts = np.floor(expected + 1e-9).astype(np.int64)
    missing = num_rows - int(counts.sum())
    order = generator.permutation(len(shares))
    remainders = np.where(shares > 0, np.round(expected - counts, 9), -1.0)
    counts[order[np.argsort(-remainders[order], kind="stable")][:missing]] += 1
    return counts


def fill_up(owners: IntArray, num_clients: int, min_size: int, generator: np.random.Generator) -> int:
    """Change `owners` in place until every client has `min_size` rows; return the number of moved rows.

    Only as many rows move as are missing. Each is drawn at random from the client that is largest at that point.

    Args:
        owners: Client of each row, shape `(num_rows,)`; every row has one.
        num_clients: Number of clients; `num_clients * min_size <= num_rows`.
        min_size: Minimum number of rows per client.
        generator: Draws the rows that move.
    """
    sizes = np.bincount(owners, minlength=num_clients)
    small_clients = np.flatnonzero(sizes < min_size)
    if not len(small_clients):
        return 0
    rows_by_client: list[list[int]] = [[] for _ in range(num_clients)]
    for row in generator.permutation(len(owners)):
        rows_by_client[owners[row]].append(int(row))
    largest = [(-int(size), client) for client, size in enumerate(sizes) if size > min_size]
    heapq.heapify(largest)
    num_moved = 0
    for client in small_clients:
        for _ in range(min_size - int(sizes[client])):
            size, donor = heapq.heappop(largest)
            owners[rows_by_client[donor].pop()] = client
            num_moved += 1
            if -size - 1 > min_size:
                heapq.heappush(largest, (size + 1, donor))
    return num_moved


def feature_columns(request: PartitionRequest) -> FloatArray:
    """Return the features, shape `(num_rows, num_columns)`; each pixel of an image is a column.

    Raises:
        DataError: If the rows have no features, or hold tokens, which are not quantities.
    """
    if request.features is None or request.data_kind == "tokens":
        received = "tokens" if request.data_kind == "tokens" else "no features"
        raise DataError.of(
            f"federation.partition.kind={request.settings.kind}",
            "have numeric features",
            received,
            "use a partition by label or at random",
        )
    return request.features.reshape(len(request.labels), -1)


def raw_variances(request: PartitionRequest, columns: FloatArray, rows: IntArray | None = None) -> FloatVector:
    """Return each column's variance before standardisation, shape `(num_columns,)`.

    Standardisation divides by a column's standard deviation; it is multiplied back if recorded.

    Args:
        request: Provides the deviations.
        columns: Features as a table.
        rows: Rows over which to compute it; None for all.
    """
    variances = column_variances(columns, rows)
    if request.deviations is None:
        return variances
    stored = variances if rows is None else column_variances(columns)
    squared: FloatVector = request.deviations.reshape(-1) ** 2
    return np.where(stored > 0, variances / np.where(stored > 0, stored, 1.0), 0.0) * squared


def column_variances(columns: FloatArray, rows: IntArray | None = None) -> FloatVector:
    """Return each column's variance, computed in chunks to avoid a double-precision copy of the table."""
    rows = np.arange(len(columns)) if rows is None else rows
    parts = [rows[start : start + CHUNK_ROWS] for start in range(0, len(rows), CHUNK_ROWS)]
    means = sum(columns[part].sum(axis=0, dtype=np.float64) for part in parts) / len(rows)
    squares = sum(((columns[part] - means) ** 2).sum(axis=0) for part in parts)
    return np.asarray(squares / len(rows), dtype=np.float64)
