"""Interface and helpers of partitioners, and partitions by label: sets of classes, and Dirichlet proportions.

The helpers draw shares and round them to whole rows, move rows to clients below the minimum size, and return features
as columns with their variances in the data's original unit.

`classes_per_client` and `heterogeneity_index` give each client a set of classes and no row of any other class. Sets are
assigned greedily: clients with the largest demand per class choose first, and each draws at random among the classes
with the most supply left, so that demand follows supply as far as the set sizes allow.

`classes_per_client`: a client has `class_share` of the classes, rounded, at least one. The clients of a class share its
rows equally. All rows are used, unless the clients' sets together are fewer than the classes. This is what the
severities "20", "50" and "90" mean in the code of FedPilot: the percentage of classes per client (20 is the most
severe). Its documentation defines them as Dirichlet parameters of 1.0, 0.5 and 0.1 (90 is the most severe), which is
`dirichlet` here.

`heterogeneity_index`: the FedCust method characterizes a client by HI = 1 − (c − 1)/(c_max − 1), with c the number of
classes that it holds and c_max the number of all classes, and by its number of rows; its experiments use equally large
groups of clients, one per combination. Here client k has level k mod L and quantity ⌊k/L⌋ mod Q: with 4 levels and 6
quantities, 24 clients cover all combinations. As c is an integer, a client's index is the one nearest to its level that
the number of classes allows; the realised ones are on record. With `quantities`, each client has that many rows, in
equal parts from each of its classes, and the remaining rows are not used; without, all rows are used and clients are as
equal in size as the class counts allow.

`dirichlet` and `inner_dirichlet`: label skew of adjustable strength by Dirichlet(α): small α is strong skew, large α
tends to IID. All rows are used.

`dirichlet`: for each class, clients share its rows in Dirichlet proportions. M. Yurochkin, M. Agarwal, S. Ghosh, K.
Greenewald, N. Hoang and Y. Khazaeni, "Bayesian Nonparametric Federated Learning of Neural Networks", ICML 2019: p_c ~
Dir_K(α) for each class c, and client k gets the share p_c,k of its rows. Both sizes and labels are skewed. T.-M. H.
Hsu, H. Qi and M. Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
arXiv:1909.06335, 2019, instead draw a mixture of classes per client and keep sizes equal. This is flwr-datasets'
`DirichletPartitioner` with `self_balancing=False`, its default.

Deviation for clients below `min_size` rows: others, including flwr-datasets, redraw until there are none, which may not
terminate (many clients, small α). Here at most 20 draws are made; if all fail, the draw with the fewest missing rows is
repaired: randomly drawn rows move from the currently largest client to the clients below the minimum. The numbers of
draws and of moved rows are on record.

`inner_dirichlet`: sizes are equal up to one row; each client draws its rows from its own mixture of classes,
Dirichlet(α) over classes. D. A. E. Acar, Y. Zhao, R. M. Navarro, M. Mattina, P. N. Whatmough and V. Saligrama,
"Federated Learning Based on Dynamic Regularization", ICLR 2021 (arXiv:2111.04263), as in flwr-datasets'
`InnerDirichletPartitioner`: rows are assigned one by one, to clients in random order; the class is drawn from the
client's mixture, and an exhausted class is removed from all mixtures.

Deviations from flwr-datasets, which draws row by row: rows are assigned in passes. In each, every open slot draws a
class, and as many slots as the class has rows are filled, in random order; a pass that leaves a slot open exhausts a
class, so there are no more passes than classes. A client whose mixture has only exhausted classes left, where the
original divides zero by zero, draws from the remaining rows; the number of such draws is on record. As all rows are
used, the last ones do not follow the mixtures closely.
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
from fedscout.experiments.data.dataset import DataKind, TextArray, blocks

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
    tail_rule: Literal["any", "all"] = Field(
        default="any", description="fds_wgc: whether a row must be in the tail of any column of a cluster, or of all"
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
            DataError: If some client would have no row.
        """
        assert self.num_clients is not None, "the configuration has one unless the data determine it"
        if self.num_clients > len(self.labels):
            must = f"be at most the number of rows, {len(self.labels)}"
            raise DataError.of("federation.num_clients", must, self.num_clients)
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
        partition: Partitions the rows.
        reads: Fields of `PartitionSettings` that it reads; all others must keep their defaults.
        fixes_num_clients: Whether data or settings determine the number of clients, which may then be omitted.
        repeats_rows: Whether a row may be assigned to several clients.
    """

    partition: Partitioner
    reads: tuple[str, ...] = ()
    fixes_num_clients: bool = False
    repeats_rows: bool = False


BoolArray = npt.NDArray[np.bool_]
FloatVector = npt.NDArray[np.float64]


def dirichlet_shares(alpha: float, num_draws: int, num_parts: int, generator: np.random.Generator) -> FloatVector:
    """Draw shares from a symmetric Dirichlet(α), shape `(num_draws, num_parts)`.

    If α is too small for floating point, a draw is its limit: a single part, drawn uniformly, has the whole share.
    """
    shares: FloatVector = generator.dirichlet(np.full(num_parts, alpha), size=num_draws)
    broken = ~(np.isfinite(shares).all(axis=1) & (shares.sum(axis=1) > 0.5))
    shares[broken] = np.eye(num_parts)[generator.integers(num_parts, size=int(broken.sum()))]
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
    parts = [rows[block] for block in blocks(len(rows), CHUNK_ROWS)]
    means = sum(columns[part].sum(axis=0, dtype=np.float64) for part in parts) / len(rows)
    squares = sum(((columns[part] - means) ** 2).sum(axis=0) for part in parts)
    return np.asarray(squares / len(rows), dtype=np.float64)


def classes_per_client(request: PartitionRequest) -> PartitionResult:
    """Partition rows so that each client holds a share of the classes.

    Raises:
        DataError: If some client would have fewer than `min_size` rows, or a class fewer rows than clients.
    """
    num_clients = request.require_num_clients()
    request.require_min_size()
    num_classes = max(1, round(request.settings.class_share * np.count_nonzero(request.class_counts)))
    return _partition_sets(request, np.full(num_clients, num_classes), classes_per_client=num_classes)


def heterogeneity_index(request: PartitionRequest) -> PartitionResult:
    """Partition rows by sets of classes whose sizes yield the requested heterogeneity levels.

    Raises:
        DataError: If the classes have too few rows, or there is one class only.
    """
    num_clients, settings = request.require_num_clients(), request.settings
    request.require_min_size()
    max_extra_classes = int(np.count_nonzero(request.class_counts)) - 1
    if max_extra_classes < 1:
        raise DataError.of("federation.partition.kind=heterogeneity_index", "have two classes or more", "one")
    clients, levels = np.arange(num_clients), np.array(settings.levels)
    set_sizes = 1 + np.rint((1 - levels) * max_extra_classes).astype(np.int64)
    realised = tuple((1 - (set_sizes - 1) / max_extra_classes).tolist())
    set_sizes = set_sizes[clients % len(levels)]
    if settings.quantities:
        sizes = np.array(settings.quantities)[clients // len(levels) % len(settings.quantities)]
        least = max(settings.min_size, int(set_sizes.max()))
        if sizes.min() < least:
            raise DataError.of(
                "federation.partition.quantities",
                f"be at least {least}, federation.partition.min_size and a row of each class that a client holds",
                sizes.min(),
            )
        return _partition_sized_sets(request, set_sizes, sizes, realised_levels=realised)
    return _partition_sets(request, set_sizes, realised_levels=realised)


def _partition_sets(request: PartitionRequest, set_sizes: IntArray, **facts: Any) -> PartitionResult:
    """Partition all rows so that client k holds `set_sizes[k]` classes and client sizes are as equal as possible.

    A client's weight in each of its classes is one over their number; it gets at least one row of each. A class that no
    client holds is not used, which only happens if the sets together are smaller than the number of classes.

    Args:
        request: Provides the labels and the random generator.
        set_sizes: Number of classes of each client, in `[1, classes that have rows]`, shape `(num_clients,)`.
        facts: Facts to record.

    Raises:
        DataError: If the classes have too few rows for their clients.
    """
    num_clients, available = len(set_sizes), request.class_counts
    supply = available * (num_clients / available.sum())
    is_held = _choose_class_sets(supply, 1 / set_sizes, set_sizes, available, request.generator)
    matrix = np.zeros(is_held.shape, dtype=np.int64)
    for label in np.flatnonzero(is_held.any(axis=0)):
        holders = np.flatnonzero(is_held[:, label])
        weights = 1 / set_sizes[holders]
        spare = np.maximum(weights / weights.sum() * available[label] - 1, 0)
        shares = spare / spare.sum() if spare.sum() > 0 else weights / weights.sum()
        matrix[holders, label] = 1 + whole_rows(shares, int(available[label]) - len(holders), request.generator)
    request.check_sizes(matrix.sum(axis=1))
    return request.by_class_counts(matrix, **facts)


def _partition_sized_sets(
    request: PartitionRequest, set_sizes: IntArray, sizes: IntArray, **facts: Any
) -> PartitionResult:
    """Assign `sizes[k]` rows to client k, in equal parts from each of `set_sizes[k]` classes.

    Args:
        request: Provides the labels and the random generator.
        set_sizes: Number of classes of each client, in `[1, classes that have rows]`, shape `(num_clients,)`.
        sizes: Rows of each client, shape `(num_clients,)`, at least its number of classes.
        facts: Facts to record.

    Raises:
        DataError: If the classes have too few rows.
    """
    available = request.class_counts
    parts = -(-sizes // set_sizes)
    is_held = _choose_class_sets(
        available.astype(np.float64), parts.astype(np.float64), set_sizes, available, request.generator
    )
    matrix = np.zeros(is_held.shape, dtype=np.int64)
    for client, (size, num_classes) in enumerate(zip(sizes, set_sizes, strict=True)):
        classes = request.generator.permutation(np.flatnonzero(is_held[client]))
        matrix[client, classes] = size // num_classes
        matrix[client, classes[: size % num_classes]] += 1
    requested = matrix.sum(axis=0)
    for label in np.flatnonzero(requested > available):
        raise DataError.of(
            "federation.partition.quantities",
            f"not request more rows of a class than exist, {available[label]} of class {label}",
            requested[label],
            "use smaller quantities, fewer clients or lower levels",
        )
    return request.by_class_counts(matrix, **facts)


def _choose_class_sets(
    supply: FloatVector, demand: FloatVector, set_sizes: IntArray, available: IntArray, generator: np.random.Generator
) -> BoolArray:
    """Return which classes each client holds, shape `(num_clients, num_classes)`.

    Args:
        supply: Amount available of each class.
        demand: Amount that each client takes of each of its classes.
        set_sizes: Number of classes of each client.
        available: Rows of each class, the maximum number of its clients.
        generator: Breaks ties.
    """
    remaining_supply = supply.copy()
    num_rows_free = available.copy()
    is_held = np.zeros((len(set_sizes), len(supply)), dtype=np.bool_)
    unheld = available > 0
    num_slots = int(set_sizes.sum())
    order = generator.permutation(len(set_sizes))
    for client in order[np.argsort(-demand[order], kind="stable")]:
        num_classes = int(set_sizes[client])
        num_slots -= num_classes
        # Classes that nobody holds come first as soon as the clients after this one have too few places for them.
        last_chance = unheld if num_slots < np.count_nonzero(unheld) else np.zeros_like(unheld)
        classes = generator.permutation(len(supply))
        ranks = np.lexsort(
            (-np.round(remaining_supply[classes], 9), ~last_chance[classes], num_rows_free[classes] == 0)
        )
        chosen = classes[ranks[:num_classes]]
        if (num_rows_free[chosen] == 0).any():
            raise DataError.of(
                "every client",
                f"get a row of each of its classes, {num_classes} at client {client}, but only "
                f"{np.count_nonzero(num_rows_free)} classes have a row left",
                hint=f"use fewer classes per client, or fewer than {len(set_sizes)} clients",
            )
        is_held[client, chosen] = True
        remaining_supply[chosen] -= demand[client]
        num_rows_free[chosen] -= 1
        unheld[chosen] = False
    return is_held


MAX_DRAWS = 20
CHUNK_PLACES = 65_536


def dirichlet(request: PartitionRequest) -> PartitionResult:
    """Partition the rows of each class in Dirichlet proportions."""
    num_clients, min_size = request.require_num_clients(), request.require_min_size()
    owners, num_draws = _draw_owners(request, num_clients)
    num_moved = fill_up(owners, num_clients, min_size, request.generator)
    return request.by_owners(owners, dirichlet_draws=num_draws, dirichlet_moved_rows=num_moved)


def _draw_owners(request: PartitionRequest, num_clients: int) -> tuple[IntArray, int]:
    """Return the first draw without a client below `min_size`, else the least short one, and the draw count."""
    best: IntArray | None = None
    least_short = 0
    for draw in range(1, MAX_DRAWS + 1):
        owners = _owners(request, num_clients)
        sizes = np.bincount(owners, minlength=num_clients)
        short = int(np.maximum(request.settings.min_size - sizes, 0).sum())
        if short == 0:
            return owners, draw
        if best is None or short < least_short:
            best, least_short = owners, short
    assert best is not None
    return best, MAX_DRAWS


def _owners(request: PartitionRequest, num_clients: int) -> IntArray:
    """Return the client of each row, shape `(num_rows,)`."""
    owners = np.empty(len(request.labels), dtype=np.int64)
    for label in np.unique(request.labels):
        rows = request.generator.permutation(np.flatnonzero(request.labels == label))
        # In an order of their own for each class, or rounding would favour the same clients in all of them.
        (shares,) = dirichlet_shares(request.settings.alpha, 1, num_clients, request.generator)
        order = request.generator.permutation(num_clients)
        cuts = np.floor(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
        counts = np.diff(np.concatenate([[0], np.minimum(cuts, len(rows)), [len(rows)]]))
        owners[rows] = np.repeat(order, counts)
    return owners


def inner_dirichlet(request: PartitionRequest) -> PartitionResult:
    """Partition rows by each client's own Dirichlet mixture of classes."""
    num_clients, generator = request.require_num_clients(), request.generator
    num_left = request.class_counts
    mixtures = dirichlet_shares(request.settings.alpha, num_clients, len(num_left), generator)
    slots = generator.permutation(np.arange(len(request.labels)) % num_clients)
    matrix = np.zeros((num_clients, len(num_left)), dtype=np.int64)
    num_off_mixture = 0
    while len(slots):
        cumulated, is_off = _cumulated(mixtures, num_left)
        drawn_classes = _draw_classes(cumulated, slots, generator)
        is_served = _served(drawn_classes, num_left)
        num_off_mixture += int(np.count_nonzero(is_off[slots[is_served]]))
        np.add.at(matrix, (slots[is_served], drawn_classes[is_served]), 1)
        num_left = num_left - np.bincount(drawn_classes[is_served], minlength=len(num_left))
        slots = slots[~is_served]
    return request.by_class_counts(matrix, num_rows_off_mixture=num_off_mixture)


def _cumulated(mixtures: FloatVector, left: IntArray) -> tuple[FloatVector, BoolArray]:
    """Return the clients' cumulative probabilities over classes with rows left, and whose mixture has none of these."""
    weights = np.where(left > 0, mixtures, 0.0)
    is_off = weights.sum(axis=1) == 0
    weights[is_off] = left
    cumulated = np.cumsum(weights, axis=1)
    return cumulated / cumulated[:, -1:], is_off


def _draw_classes(cumulated: FloatVector, places: IntArray, generator: np.random.Generator) -> IntArray:
    """Draw a class for each open slot; `places` holds the client of each."""
    points = generator.random(len(places))
    drawn = np.empty(len(places), dtype=np.int64)
    for part in blocks(len(places), CHUNK_PLACES):
        drawn[part] = (cumulated[places[part]] <= points[part, None]).sum(axis=1)
    return drawn


def _served(drawn: IntArray, left: IntArray) -> BoolArray:
    """Return which slots get a row of the class that they drew: for each class the first ones, while rows last."""
    order = np.argsort(drawn, kind="stable")
    counts = np.bincount(drawn, minlength=len(left))
    ranks = np.empty(len(drawn), dtype=np.int64)
    ranks[order] = np.arange(len(drawn)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(ranks < left[drawn])
