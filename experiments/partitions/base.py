"""What a partitioner is given and returns, and helpers that partitioners share.

What a partitioner is given and what it returns.

What a user may set about how rows are dealt.

Shares of a whole: drawn from a Dirichlet distribution, and turned into whole rows.

Repair of clients that a draw left with too few rows: the largest clients give some of theirs.

Features as a table of numbers, and how much its columns vary in the data's own unit.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, field_validator

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.data.client import CHUNK_ROWS, Partition
from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.data.dataset import DataKind, TextArray

Level = Annotated[float, Field(ge=0, le=1)]
Quantity = Annotated[int, Field(ge=1)]


class PartitionSettings(BaseModel):
    """How rows are dealt to clients. A kind reads the fields that the table of partitions lists for it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str | None = None
    alpha: float = Field(
        default=0.1, gt=0, le=1e6, description="of dirichlet, inner_dirichlet, quantity_skew: small is strong skew"
    )
    min_size: int = Field(
        default=5, ge=1, description="fewest rows of a client, of all kinds whose sizes follow from a draw or the data"
    )
    self_balancing: bool = Field(
        default=False,
        description="of dirichlet: a client with more rows than the average gets none of the classes that follow",
    )
    classes_per_client: int = Field(default=2, ge=1, description="of pathological, distribution: classes of a client")
    class_assignment: Literal["first-deterministic", "deterministic", "random"] = Field(
        default="first-deterministic", description="of pathological: which classes are drawn, which dealt in turn"
    )
    class_share: float = Field(
        default=0.5, gt=0, le=1, description="of classes_per_client: share of the classes that a client has"
    )
    shards_per_client: int = Field(default=2, ge=1, description="of shard: runs of sorted rows a client")
    lognormal_sigma: float = Field(
        default=2.0, ge=0, le=10, description="of distribution: spread of a class's rows over its clients; 0 is none"
    )
    class_sigma: float = Field(
        default=1.0, ge=1e-3, le=1e4, description="of gaussian: standard deviation in classes; small is strong skew"
    )
    class_rate: float = Field(
        default=1.0, ge=1e-6, le=1e4, description="of poisson: mean distance in classes; small is strong skew"
    )
    levels: tuple[Level, ...] = Field(
        default=(0.2, 0.4, 0.6, 0.8),
        min_length=1,
        description="of heterogeneity_index: indices of the clients, in turn; 0 is all classes, 1 is one",
    )
    quantities: tuple[Quantity, ...] = Field(
        default=(), description="of heterogeneity_index: rows of the clients, in turn; nothing means all rows, equally"
    )
    dominant_share: float = Field(
        default=0.8, gt=0, le=1, description="of dominant_class: the dominant class's share of a client's rows"
    )
    dominant_fraction: float = Field(
        default=0.5, ge=0, le=1, description="of dominant_class: share of the clients that have one"
    )
    tail_rule: Literal["any", "all"] = Field(
        default="any",
        description="of fds_wgc: how many columns of its cluster must be in a tail to make a row a client's",
    )
    num_clusters: int | None = Field(
        default=None, ge=1, le=100, description="of sfdl: clusters of rows; nothing means what two indices choose"
    )
    counts: tuple[tuple[int, ...], ...] | Path | None = Field(
        default=None, description="of counts: rows of each client by class, or a CSV file of them"
    )

    @field_validator("counts", mode="before")
    @classmethod
    def _is_matrix(cls, given: Any) -> Any:
        if given is None or (isinstance(given, str | Path) and str(given)):
            return given
        rows = given if isinstance(given, list | tuple) else []
        lengths = {len(row) if isinstance(row, list | tuple) else 0 for row in rows}
        if len(lengths) != 1 or lengths == {0} or not all(_is_count(cell) for row in rows for cell in row):
            raise ValueError(
                "must be a list of equally long rows of whole numbers >= 0, one row a client and one number a class, "
                f"or the path of a CSV file of them, got {str(given)[:80]}"
            )
        return given


def _is_count(cell: Any) -> bool:
    return isinstance(cell, int) and not isinstance(cell, bool) and 0 <= cell < 2**31


@dataclass(frozen=True)
class PartitionResult:
    """Dealt rows.

    Attributes:
        partition: The rows of each client.
        facts: What is worth recording about how it came about.
        affected_clients: Clients that a published deal makes different from the others, ascending.
    """

    partition: Partition
    facts: Mapping[str, Any] = field(default_factory=dict)
    affected_clients: tuple[int, ...] = ()


@dataclass(frozen=True)
class PartitionRequest:
    """The rows to deal and the user's choices.

    Attributes:
        labels: int64 in `[0, num_classes)`, shape `(num_rows,)`.
        num_clients: Clients wanted, >= 1; None where the data fix it.
        generator: The only source of randomness.
        settings: The user's choices.
        features: float32, shape `(num_rows, *feature_shape)`; None where the data have none.
        deviations: Each column's standard deviation before standardisation, shape `(num_columns,)`, or None.
        client_ids: The natural client of each row, or None.
        data_kind: What a row is.
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
            DataError: If some client would have to stay without a row, or no number was given.
        """
        if self.num_clients is None:
            raise DataError(Fault("federation.num_clients", "be given for this partition", "nothing"))
        if not 1 <= self.num_clients <= len(self.labels):
            raise DataError(
                Fault(
                    "federation.num_clients",
                    f"be between 1 and the number of rows, {len(self.labels)}",
                    self.num_clients,
                )
            )
        return self.num_clients

    def require_min_size(self) -> int:
        """Return the fewest rows that a client may have, checked against the number of rows.

        Raises:
            DataError: If there are too few rows to give every client as many.
        """
        num_clients, num_rows, min_size = self.require_num_clients(), len(self.labels), self.settings.min_size
        if num_clients * min_size > num_rows:
            raise DataError(
                Fault(
                    "federation.num_clients times federation.partition.min_size",
                    f"not exceed the number of rows, {num_rows}",
                    f"{num_clients} times {min_size}",
                    (f"the largest minimum that {num_clients} clients allow is {num_rows // num_clients}"),
                )
            )
        return min_size

    def deal_owners(self, owners: IntArray, num_clients: int | None = None, **facts: Any) -> PartitionResult:
        """Return the deal in which each row goes to its owner, the rows of a client in random order.

        Args:
            owners: The client of each row, shape `(num_rows,)`; -1 for a row that nobody gets.
            num_clients: Number of clients, of whom one may own nothing; None for as many as are wanted.
            facts: For the record.
        """
        num_clients = num_clients or self.require_num_clients()
        shuffled = self.generator.permutation(len(owners))
        shuffled = shuffled[owners[shuffled] >= 0]
        rows = shuffled[np.argsort(owners[shuffled], kind="stable")]
        sizes = np.bincount(owners[owners >= 0], minlength=num_clients)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return PartitionResult(Partition(rows=rows.astype(np.int64), offsets=offsets), facts)

    def deal_counts(self, counts: IntArray, **facts: Any) -> PartitionResult:
        """Return the deal in which client k has `counts[k, y]` rows of class y, drawn at random.

        Args:
            counts: Shape `(num_clients, num_classes)`; no class is dealt more often than it has rows.
            facts: For the record.
        """
        owners = np.full(len(self.labels), -1, dtype=np.int64)
        clients = np.arange(len(counts))
        for label in range(counts.shape[1]):
            rows = self.generator.permutation(np.flatnonzero(self.labels == label))
            dealt = np.repeat(clients, counts[:, label])
            assert len(dealt) <= len(rows)
            owners[rows[: len(dealt)]] = dealt
        return self.deal_owners(owners, len(counts), **facts)


Partitioner = Callable[[PartitionRequest], PartitionResult]
"""Raises a `DataError` if some client would get too few rows, or the data lack what it needs."""


@dataclass(frozen=True)
class PartitionKind:
    """A member of the table of partitions.

    Attributes:
        deal: Deals the rows.
        reads: The fields of `PartitionSettings` that it reads; any other must keep its default.
        fixes_num_clients: Whether the number of clients follows from data or settings and may be left out.
        repeats_rows: Whether a row may go to several clients.
    """

    deal: Partitioner
    reads: tuple[str, ...] = ()
    fixes_num_clients: bool = False
    repeats_rows: bool = False


BoolArray = npt.NDArray[np.bool_]
FloatVector = npt.NDArray[np.float64]


def dirichlet_shares(alpha: float, num_parts: int, generator: np.random.Generator) -> FloatVector:
    """Draw shares from a symmetric Dirichlet(α), shape `(num_parts,)`.

    Where α is too small for floating point, the result is its limit: one part, drawn uniformly, is the whole.
    """
    shares: FloatVector = generator.dirichlet(np.full(num_parts, alpha))
    if np.isfinite(shares).all() and shares.sum() > 0.5:
        return shares
    shares = np.zeros(num_parts)
    shares[generator.integers(num_parts)] = 1.0
    return shares


def whole_rows(shares: FloatVector, num_rows: int, generator: np.random.Generator) -> IntArray:
    """Round `shares * num_rows` to whole numbers that add up to `num_rows`, by the largest remainder.

    Args:
        shares: At least 0, with the sum 1, shape `(num_parts,)`.
        num_rows: What is shared.
        generator: Decides between equal remainders.
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
    """Change `owners` in place until every client has `min_size` rows; return how many rows moved.

    No more rows move than are missing. Each is drawn at random from whichever client is then the largest.

    Args:
        owners: The client of each row, shape `(num_rows,)`; every row has one.
        num_clients: Number of clients; `num_clients * min_size <= num_rows`.
        min_size: Fewest rows of a client.
        generator: Draws the rows that move.
    """
    sizes = np.bincount(owners, minlength=num_clients)
    short = np.flatnonzero(sizes < min_size)
    if not len(short):
        return 0
    held: list[list[int]] = [[] for _ in range(num_clients)]
    for row in generator.permutation(len(owners)):
        held[owners[row]].append(int(row))
    largest = [(-int(size), client) for client, size in enumerate(sizes) if size > min_size]
    heapq.heapify(largest)
    num_moved = 0
    for client in short:
        for _ in range(min_size - int(sizes[client])):
            size, donor = heapq.heappop(largest)
            owners[held[donor].pop()] = client
            num_moved += 1
            if -size - 1 > min_size:
                heapq.heappush(largest, (size + 1, donor))
    return num_moved


def feature_columns(request: PartitionRequest) -> FloatArray:
    """Return the features, shape `(num_rows, num_columns)`; an image's pixels are its columns.

    Raises:
        DataError: If the rows have no features, or tokens, whose numbers mean nothing as quantities.
    """
    if request.features is None or request.data_kind == "tokens":
        given = "tokens" if request.data_kind == "tokens" else "no features"
        raise DataError(
            Fault(
                f"federation.partition.kind={request.settings.kind}",
                "have features that are quantities",
                given,
                "partitions by label or at random are possible",
            )
        )
    return request.features.reshape(len(request.labels), -1)


def raw_variances(request: PartitionRequest, columns: FloatArray, rows: IntArray | None = None) -> FloatVector:
    """Return each column's variance before standardisation, shape `(num_columns,)`.

    Standardisation divides by a column's standard deviation; where that is on record it is multiplied back.

    Args:
        request: Gives the deviations.
        columns: The features as a table.
        rows: Over these rows; None for all.
    """
    variances = column_variances(columns, rows)
    if request.deviations is None:
        return variances
    stored = variances if rows is None else column_variances(columns)
    squared: FloatVector = request.deviations.reshape(-1) ** 2
    return np.where(stored > 0, variances / np.where(stored > 0, stored, 1.0), 0.0) * squared


def column_variances(columns: FloatArray, rows: IntArray | None = None) -> FloatVector:
    """Return each column's variance, in chunks that need no second copy of the table in double precision."""
    rows = np.arange(len(columns)) if rows is None else rows
    parts = [rows[start : start + CHUNK_ROWS] for start in range(0, len(rows), CHUNK_ROWS)]
    means = sum(columns[part].sum(axis=0, dtype=np.float64) for part in parts) / len(rows)
    squares = sum(((columns[part] - means) ** 2).sum(axis=0) for part in parts)
    return np.asarray(squares / len(rows), dtype=np.float64)
