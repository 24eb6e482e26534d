"""Table of partitions, and those by classes and sizes that are given, by natural clients, and at random.

To add a partition, write its function and add one line to `PARTITIONS`.

- `pathological`: Q. Li, Y. Diao, Q. Chen and B. He, "Federated Learning on Non-IID Data Silos: An Experimental
  Study", ICDE 2022 (arXiv:2102.02079), `#C = k`: every client has rows of a fixed number of classes. Each client's
  classes are chosen, and the clients that have a class share its rows equally. `class_assignment` defines the
  choice: `first-deterministic`, as in the paper, assigns the first class in turn and draws the others;
  `deterministic` gives client k the classes k, k + 1, …; `random` draws all, and may leave a class, and its rows,
  unused, as in flwr-datasets' `PathologicalPartitioner`. A random assignment can leave a class with more clients
  than rows, or a client with fewer than `min_size`; then another is drawn, up to twenty times.
- `shard`: B. McMahan, E. Moore, D. Ramage, S. Hampson and B. Agüera y Arcas, "Communication-Efficient Learning of
  Deep Networks from Decentralized Data", AISTATS 2017: rows are sorted by label and cut into equal shards, and
  each client gets some, two in the paper, at random. All clients have the same size; the remaining rows, fewer
  than the number of shards, are not used.
- `distribution`: T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar and V. Smith, "Federated Optimization in
  Heterogeneous Networks", MLSys 2020 (arXiv:1812.06127): label and quantity skew combined. Client k has the
  classes k, k + 1, …, `classes_per_client` of them; it first gets the same small number of rows from each, and
  the clients of a class share the rest in proportion to log-normal numbers with σ = `lognormal_sigma` (2 in the
  paper). All rows are used. The initial rows give each client `min_size` rows from all its classes together. The
  number of clients must be a multiple of the number of classes.

`natural`: each client holds its own rows according to the data. All rows are used.

`counts`: client k gets `counts[k][y]` random rows of class y. Rows beyond the counts are not used.

`linear`, `square`, `exponential`: client k = 1, …, K gets a share of the rows in proportion to k, k² or e^k, as
flwr-datasets' size partitioners do. Labels are assigned at random, and all rows are used: rounding remainders go to the
last and largest client.

`iid` shuffles the rows and assigns them in turn: sizes differ by one at most. All rows are used.

`quantity_skew`: Q. Li, Y. Diao, Q. Chen and B. He (above), section IV-C: client sizes follow Dir_K(β), here `alpha`,
and labels are assigned at random. All rows are used. Deviation: they redraw until the smallest client has ten rows,
which may not terminate. Here `min_size` rows of every client are reserved first, and the rest is shared in Dirichlet
proportions.

Published generators of label and feature skew: FDS-WGC, SFDL, and sorted blocks.

`fds_wgc`, feature distribution skew by Wasserstein-grouped columns:

1. Columns are standardised, and the pairwise 1-Wasserstein distances between their distributions are computed.
2. Agglomerative clustering groups the columns into as many clusters as there are clients.
3. Client k gets the rows whose values lie below the 25th or above the 75th percentile of their column, in any column of
cluster k (`tail_rule: all`: in all of them).

So a row may be assigned to several clients, or to none: both numbers are on record (`num_rows_repeated` counts the rows
of several clients, `num_rows_dropped` those of none). There must be at least as many columns as clients. A column with
fewer than `min_size` rows in its tails, such as a constant or an even split into two values, cannot define a client: it
is excluded from the clustering, and counted (`num_columns_without_tails`). Reconstructions: "normalised" means zero
mean and unit variance; average linkage; `any` is the default; clients are numbered by the first column of their
cluster. Beyond 1,000 rows the distance is computed from 1,000 equally spaced quantiles of each column instead of all
values.

`sfdl`, same features, different labels: rows are clustered by their features; within each cluster they are sorted by
label and cut into equal blocks, block j for client j. So every client has as many rows of each cluster, while labels
diverge as far as the clusters mix them. That block j goes to client j, so that client 0 has the lowest labels of every
cluster, is a reconstruction. Clusters are those of k-means on standardised columns. Their number, from 2 to 10, is the
one with the best sum of ranks by two indices: D. L. Davies and D. W. Bouldin, "A Cluster Separation Measure", IEEE PAMI
1(2), 1979 (small is good), and T. Caliński and J. Harabasz, "A dendrite method for cluster analysis", Communications in
Statistics 3(1), 1974 (large is good); ties go to the smaller number. The combination of the two is a reconstruction.
Clusters are fitted on at most 5,000 random rows, and every row is then assigned to the nearest centre.

Other sorted blocks: rows are sorted and cut into blocks of equal size, block j for client j:

- `lds`, label distribution skew: by label. A reconstruction of a method published by name only.
- `fds_vop`, feature distribution skew without added noise: ascending by the column with the largest variance
  before standardisation.
- `sldf`, same labels, different features: each label's rows by the column with the largest variance among them
  before standardisation. So the clients' label distributions are almost identical, while their features differ.

In all sorted blocks, all rows are used, sizes differ by one at most, and rows with equal keys are in random order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.data.client import CHUNK_ROWS, Partition
from fedscout.engine.errors import ConfigurationError, DataError, Fault
from fedscout.experiments.data.dataset import blocks, distinct_texts
from fedscout.experiments.partitions.labels import (
    BoolArray,
    FloatVector,
    PartitionKind,
    PartitionRequest,
    PartitionResult,
    PartitionSettings,
    classes_per_client,
    column_variances,
    dirichlet,
    dirichlet_shares,
    feature_columns,
    heterogeneity_index,
    inner_dirichlet,
    raw_variances,
    whole_rows,
)

MAX_QUANTILES = 1_000
CHUNK_COLUMNS = 64
TAILS = (25, 75)


def fds_wgc(request: PartitionRequest) -> PartitionResult:
    """Partition rows by the tails of clusters of columns.

    Raises:
        DataError: If there are no features, fewer columns with `min_size` rows in their tails than clients, or a client
            would have fewer.
    """
    num_clients, columns = request.require_num_clients(), feature_columns(request)
    min_size = request.require_min_size()
    quantiles, tails = _quantiles(columns)
    usable = np.array(
        [_in_tails(columns, tails, [column], False).sum() >= min_size for column in range(len(quantiles))]
    )
    if np.count_nonzero(usable) < num_clients:
        raise DataError.of(
            "federation.num_clients",
            f"be at most {np.count_nonzero(usable)}, the number of columns with "
            f"federation.partition.min_size = {min_size} rows in their tails, where "
            "federation.partition.kind=fds_wgc",
            num_clients,
        )
    usable_columns = np.flatnonzero(usable)
    clusters = _column_clusters(quantiles[usable_columns], num_clients)
    columns_by_client = [usable_columns[clusters == cluster] for cluster in range(num_clients)]
    in_all = request.settings.tail_rule == "all"
    is_assigned = np.stack([_in_tails(columns, tails, member, in_all) for member in columns_by_client])
    request.check_sizes(is_assigned.sum(axis=1))
    num_owners = is_assigned.sum(axis=0)
    partition = Partition.from_lists([request.generator.permutation(np.flatnonzero(rows)) for rows in is_assigned])
    return PartitionResult(
        partition,
        facts={
            "num_rows_repeated": int(np.count_nonzero(num_owners > 1)),
            "num_rows_dropped": int(np.count_nonzero(num_owners == 0)),
            "num_columns_without_tails": len(usable) - len(usable_columns),
        },
    )


def _quantiles(columns: FloatArray) -> tuple[FloatVector, FloatVector]:
    """Return the quantiles of standardised columns, shape `(num_columns, n)`, and their raw tail bounds, `(2, …)`."""
    num_rows, num_columns = columns.shape
    num_quantiles = min(num_rows, MAX_QUANTILES)
    levels = (np.arange(num_quantiles) + 0.5) / num_quantiles
    positions = np.minimum((levels * num_rows).astype(np.int64), num_rows - 1)
    quantiles = np.empty((num_columns, num_quantiles))
    tails = np.empty((2, num_columns))
    for part in blocks(num_columns, CHUNK_COLUMNS):
        values = np.sort(columns[:, part].astype(np.float64), axis=0)
        tails[:, part] = np.percentile(values, TAILS, axis=0)
        deviations = np.where(values[0] == values[-1], 0.0, values.std(axis=0))
        centred = values[positions] - values.mean(axis=0)
        quantiles[part] = np.where(deviations > 0, centred / np.where(deviations > 0, deviations, 1.0), 0.0).T
    return quantiles, tails


def wasserstein_distances(quantiles: FloatVector) -> FloatVector:
    """Return the pairwise 1-Wasserstein distances, shape `(n, n)`: the mean difference of quantiles.

    Args:
        quantiles: Quantiles of each distribution at the same levels, ascending, shape `(n, num_levels)`.
    """
    from scipy.spatial.distance import pdist, squareform

    return np.asarray(squareform(pdist(quantiles, "cityblock")) / quantiles.shape[1])


def _column_clusters(quantiles: FloatVector, num_clusters: int) -> IntArray:
    """Return the cluster of each column; clusters are numbered in the order of their first columns."""
    from sklearn.cluster import AgglomerativeClustering

    if num_clusters == 1:
        return np.zeros(len(quantiles), dtype=np.int64)
    labels = AgglomerativeClustering(num_clusters, metric="precomputed", linkage="average").fit_predict(
        wasserstein_distances(quantiles)
    )
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


def _in_tails(columns: FloatArray, tails: FloatVector, member: Iterable[int], in_all: bool) -> BoolArray:
    """Return which rows lie in the tails of any, or all, of the given columns."""
    combine = np.logical_and if in_all else np.logical_or
    result = np.full(len(columns), in_all)
    for column in member:
        values = columns[:, column]
        combine(result, (values < tails[0, column]) | (values > tails[1, column]), out=result)
    return result


def lds(request: PartitionRequest) -> PartitionResult:
    """Partition rows into blocks sorted by label."""
    return assign_blocks(request, [(np.arange(len(request.labels)), request.labels)])


def fds_vop(request: PartitionRequest) -> PartitionResult:
    """Partition rows into blocks sorted by one column."""
    columns = feature_columns(request)
    column = int(np.argmax(raw_variances(request, columns)))
    return assign_blocks(request, [(np.arange(len(columns)), columns[:, column])], sorted_column=column)


def sldf(request: PartitionRequest) -> PartitionResult:
    """Partition each label's rows into blocks sorted by one column."""
    columns = feature_columns(request)

    def groups() -> Iterator[tuple[IntArray, FloatArray]]:
        for label in np.unique(request.labels):
            rows = np.flatnonzero(request.labels == label)
            yield rows, columns[rows, np.argmax(raw_variances(request, columns, rows))]

    return assign_blocks(request, groups())


def assign_blocks(
    request: PartitionRequest, groups: Iterable[tuple[IntArray, FloatArray | IntArray]], **facts: Any
) -> PartitionResult:
    """Assign a block of each group, given as rows and their keys in order of which they are cut, to each client.

    Each row is in one group.
    """
    ordered = (sorted_rows(rows, keys, request.generator) for rows, keys in groups)
    return request.by_owners(owners_by_blocks(ordered, len(request.labels), request.require_num_clients()), **facts)


def owners_by_blocks(groups: Iterable[IntArray], num_rows: int, num_clients: int) -> IntArray:
    """Return the client of each row, shape `(num_rows,)`: each group is cut into one block per client.

    Blocks of a group differ by one row at most. The remainders of groups go to clients in turn across groups, so that
    client sizes differ by one row at most, too.
    """
    owners = np.empty(num_rows, dtype=np.int64)
    turn = 0
    for rows in groups:
        size, num_more = divmod(len(rows), num_clients)
        sizes = np.full(num_clients, size)
        sizes[(turn + np.arange(num_more)) % num_clients] += 1
        turn = (turn + num_more) % num_clients
        owners[rows] = np.repeat(np.arange(num_clients), sizes)
    return owners


def sorted_rows(rows: IntArray, keys: FloatArray | IntArray, generator: np.random.Generator) -> IntArray:
    """Return row numbers in ascending order of their keys, given one per row; ties in random order."""
    order = generator.permutation(len(rows))
    return rows[order[np.argsort(keys[order], kind="stable")]]


MAX_CLUSTERS = 10
MAX_ROWS_CLUSTERED = 5_000


def sfdl(request: PartitionRequest) -> PartitionResult:
    """Partition each cluster's rows into blocks sorted by label.

    Raises:
        DataError: If there are more clients than rows, or no features.
    """
    from threadpoolctl import threadpool_limits

    columns = feature_columns(request)
    with threadpool_limits(limits=1):  # sums over several threads differ in their last bits
        clusters = _row_clusters(request, columns)
    members = [np.flatnonzero(clusters == cluster) for cluster in np.unique(clusters)]
    return assign_blocks(request, [(rows, request.labels[rows]) for rows in members], num_clusters=len(members))


def _row_clusters(request: PartitionRequest, columns: FloatArray) -> IntArray:
    """Return the cluster of each row, shape `(num_rows,)`."""
    generator = request.generator
    deviations = np.sqrt(column_variances(columns))
    scale = (1 / np.where(deviations > 0, deviations, 1.0)).astype(np.float32)
    sample = columns[np.sort(generator.permutation(len(columns))[:MAX_ROWS_CLUSTERED])] * scale
    num_distinct = len(np.unique(sample, axis=0))
    seed = int(generator.integers(2**31))
    centres = _best_centres(sample, min(MAX_CLUSTERS, num_distinct, len(sample) - 1), seed)
    clusters = np.empty(len(columns), dtype=np.int64)
    for block in blocks(len(columns), CHUNK_ROWS):
        rows = columns[block] * scale
        clusters[block] = np.argmin((centres**2).sum(axis=1) - 2 * rows @ centres.T, axis=1)
    return clusters


def _best_centres(drawn: FloatArray, largest: int, seed: int) -> FloatArray:
    """Return the centres for the number of clusters, from 2 to `largest`, that the two indices rank best."""
    from scipy.stats import rankdata
    from sklearn.metrics import calinski_harabasz_score, davies_bouldin_score

    if largest < 2:
        return _k_means(drawn, 1, seed)[0]
    candidates = [_k_means(drawn, number, seed) for number in range(2, largest + 1)]
    by_davies_bouldin = rankdata([davies_bouldin_score(drawn, clusters) for _, clusters in candidates])
    by_calinski_harabasz = rankdata([-calinski_harabasz_score(drawn, clusters) for _, clusters in candidates])
    return candidates[int(np.argmin(by_davies_bouldin + by_calinski_harabasz))][0]


def _k_means(drawn: FloatArray, number: int, seed: int) -> tuple[FloatArray, IntArray]:
    """Return the centres, shape `(number, num_columns)`, and the cluster of each sampled row."""
    from sklearn.cluster import KMeans

    model = KMeans(number, n_init=1, random_state=seed).fit(drawn)
    return model.cluster_centers_, model.labels_


MAX_DRAWS = 20


def _require_at_most(request: PartitionRequest, key: str, most: int) -> None:
    """Check a number per client against what there is for each."""
    if (number := getattr(request.settings, key)) > most:
        must = f"be at most {most} with {request.num_clients} clients of {len(request.labels)} rows"
        raise DataError.of(f"federation.partition.{key}", must, number)


def pathological(request: PartitionRequest) -> PartitionResult:
    """Partition rows so that each client has a fixed number of classes, whose clients share its rows equally.

    Raises:
        DataError: If no assignment gives every client enough rows of each of its classes.
    """
    num_clients, settings = request.require_num_clients(), request.settings
    min_size, counts = request.require_min_size(), request.class_counts
    present = np.flatnonzero(counts)
    _require_at_most(request, "classes_per_client", len(present))
    num_draws = 1 if settings.class_assignment == "deterministic" else MAX_DRAWS
    for draw in range(1, num_draws + 1):
        matrix = np.zeros((num_clients, len(counts)), np.int64)
        matrix[np.arange(num_clients)[:, None], present[_classes_in_turn(request, len(present))]] = 1
        num_holders = matrix.sum(axis=0)
        ranks = np.cumsum(matrix, axis=0) - 1
        quotient, num_more = np.divmod(counts, np.maximum(num_holders, 1))
        matrix *= quotient + (ranks < num_more)
        smallest = int(matrix.sum(axis=1).min())
        if (num_holders <= counts).all() and smallest >= min_size:
            return request.by_class_counts(matrix, pathological_draws=draw)
    hint = f"{num_draws} assignments were tried; use fewer clients or fewer classes per client"
    if smallest < min_size:
        must = f"be at most {smallest}, the rows of the smallest client"
        raise DataError.of("federation.partition.min_size", must, min_size, hint)
    few = int(np.argmax(num_holders - counts))
    given = f"{counts[few]} of class {few} for {num_holders[few]} clients"
    raise DataError.of("federation.partition.kind=pathological", "have a row of a class for each client", given, hint)


def _classes_in_turn(request: PartitionRequest, num_classes: int) -> IntArray:
    """Return the classes of each client, numbered among those that have rows, shape `(num_clients, classes_each)`."""
    num_clients, num_each = request.require_num_clients(), request.settings.classes_per_client
    first = np.arange(num_clients) % num_classes
    if request.settings.class_assignment == "deterministic":
        return (first[:, None] + np.arange(num_each)) % num_classes
    ranks = request.generator.random((num_clients, num_classes))
    if request.settings.class_assignment == "first-deterministic":
        ranks[np.arange(num_clients), first] = -1
    return np.argsort(ranks, axis=1)[:, :num_each]


def shard(request: PartitionRequest) -> PartitionResult:
    """Partition rows into shards sorted by label.

    Raises:
        DataError: If there are fewer rows than shards, or clients would have fewer than `min_size` rows.
    """
    num_clients, num_each = request.require_num_clients(), request.settings.shards_per_client
    num_rows = len(request.labels)
    request.require_min_size()
    _require_at_most(request, "shards_per_client", num_rows // num_clients)
    size = num_rows // (num_clients * num_each)
    owners = np.full(num_rows, -1)
    rows = sorted_rows(np.arange(num_rows), request.labels, request.generator)
    clients = request.generator.permutation(np.repeat(np.arange(num_clients), num_each))
    owners[rows[: size * len(clients)]] = np.repeat(clients, size)
    partitioned = request.by_owners(owners, shard_size=size)
    request.check_sizes(partitioned.partition.sizes)
    return partitioned


def distribution(request: PartitionRequest) -> PartitionResult:
    """Partition rows by log-normal shares of each class.

    Raises:
        DataError: If the number of clients is not a multiple of the number of classes, there are fewer classes than a
            client needs, or a class has too few rows.
    """
    num_clients, num_each = request.require_num_clients(), request.settings.classes_per_client
    present = np.flatnonzero(request.class_counts)
    num_classes = len(present)
    _require_at_most(request, "classes_per_client", num_classes)
    if num_clients % num_classes:
        raise DataError.of(
            "federation.num_clients",
            f"be a multiple of the number of classes, {num_classes}, where federation.partition.kind=distribution",
            num_clients,
        )
    num_holders = num_each * num_clients // num_classes
    num_first = -(-request.settings.min_size // num_each)
    if request.class_counts[present].min() < (num_first + 1) * num_holders:
        raise DataError.of(
            "every class",
            f"have {num_first + 1} rows for each of its {num_holders} clients, {(num_first + 1) * num_holders} in all",
            request.class_counts[present].min(),
            f"use fewer clients, or a federation.partition.min_size below {request.settings.min_size}",
        )
    matrix = np.zeros((num_clients, len(request.class_counts)), np.int64)
    first = np.arange(num_clients) % num_classes
    for place, label in enumerate(present):
        holders = np.flatnonzero((place - first) % num_classes < num_each)
        weights = request.generator.lognormal(0.0, request.settings.lognormal_sigma, num_holders)
        num_shared = int(request.class_counts[label]) - num_first * num_holders
        matrix[holders, label] = num_first + whole_rows(weights / weights.sum(), num_shared, request.generator)
    return request.by_class_counts(matrix, num_rows_first=num_first)


def by_weights(weight: Callable[[FloatVector], FloatVector], request: PartitionRequest) -> PartitionResult:
    """Partition rows at random into sizes proportional to the weights of 1 to K, rounded down except the last.

    Args:
        weight: Ascending weights of the numbers 1 to K.
        request: The rows.

    Raises:
        DataError: If the first client would get fewer than `min_size` rows.
    """
    num_clients, num_rows, min_size = request.require_num_clients(), len(request.labels), request.settings.min_size
    weights = weight(np.arange(1.0, num_clients + 1))
    sizes = np.floor(weights / weights.sum() * num_rows).astype(np.int64)
    sizes[-1] += num_rows - sizes.sum()
    if sizes[0] < min_size:
        raise DataError.of(
            f"federation.partition.kind={request.settings.kind}",
            f"leave the smallest client federation.partition.min_size = {min_size} of {num_rows} rows",
            f"{sizes[0]} for {num_clients} clients",
            "use fewer clients",
        )
    return request.by_owners(request.generator.permutation(np.repeat(np.arange(num_clients), sizes)))


KEY = "federation.partition.counts"


def natural(request: PartitionRequest) -> PartitionResult:
    """Assign each natural client its rows; clients are numbered in alphabetical order of their names.

    Raises:
        DataError: If the data have no or one natural client, or their number differs from `num_clients`.
    """
    if request.client_ids is None:
        raise DataError.of(
            "federation.partition.kind=natural needs data with natural clients: federation.client_column",
            "name the column that holds them",
            "nothing",
        )
    names, owners = distinct_texts(request.client_ids)
    if len(names) < 2:
        raise DataError.of("the column of clients", "hold at least two clients", f"one: {', '.join(names)}")
    if request.num_clients not in {None, len(names)}:
        raise DataError.of(
            "federation.num_clients",
            f"be left out or be {len(names)}, the number of natural clients",
            request.num_clients,
        )
    return request.by_owners(owners, len(names), client_names=tuple(names.tolist()))


def counts(request: PartitionRequest) -> PartitionResult:
    """Partition rows by a client × class matrix of counts.

    Raises:
        ConfigurationError: If there is no matrix.
        DataError: If it is inconsistent with the data: too many rows of a class, an empty client, another number of
            clients.
    """
    if request.settings.counts is None:
        must = "hold a row of class counts per client where federation.partition.kind=counts"
        raise ConfigurationError.of(KEY, must, "nothing")
    matrix = np.array(request.settings.counts, dtype=np.int64)
    faults = _faults(request, matrix)
    if faults:
        raise DataError(faults)
    return request.by_class_counts(matrix)


def _faults(request: PartitionRequest, matrix: IntArray) -> list[str]:
    available = request.class_counts
    if request.num_clients not in {None, len(matrix)}:
        return [
            Fault(
                "federation.num_clients",
                f"be left out or be {len(matrix)}, the number of rows of {KEY}",
                request.num_clients,
            )
        ]
    if matrix.shape[1] != len(available):
        return [Fault(KEY, f"have {len(available)} columns, one per class", matrix.shape[1])]
    requested = matrix.sum(axis=0)
    faults: list[str] = [
        Fault(KEY, f"not request more rows of class {label} than exist, {available[label]}", requested[label])
        for label in np.flatnonzero(requested > available)
    ]
    empty = np.flatnonzero(matrix.sum(axis=1) == 0)
    if len(empty):
        faults.append(Fault(KEY, "give every client a row", f"none for client {empty[0]}"))
    return faults


def iid(request: PartitionRequest) -> PartitionResult:
    """Partition rows at random, regardless of their labels."""
    num_clients = request.require_num_clients()
    return request.by_owners(request.generator.permutation(np.arange(len(request.labels)) % num_clients))


def quantity_skew(request: PartitionRequest) -> PartitionResult:
    """Partition rows at random among clients of Dirichlet sizes."""
    num_clients, min_size, generator = request.require_num_clients(), request.require_min_size(), request.generator
    (shares,) = dirichlet_shares(request.settings.alpha, 1, num_clients, generator)
    sizes = min_size + whole_rows(shares, len(request.labels) - num_clients * min_size, generator)
    return request.by_owners(generator.permutation(np.repeat(np.arange(num_clients), sizes)))


PARTITIONS: Mapping[str, PartitionKind] = {
    "iid": PartitionKind(iid),
    "natural": PartitionKind(natural, fixes_num_clients=True),
    "dirichlet": PartitionKind(dirichlet, reads=("alpha", "min_size")),
    "inner_dirichlet": PartitionKind(inner_dirichlet, reads=("alpha",)),
    "pathological": PartitionKind(pathological, reads=("classes_per_client", "class_assignment", "min_size")),
    "classes_per_client": PartitionKind(classes_per_client, reads=("class_share", "min_size")),
    "heterogeneity_index": PartitionKind(heterogeneity_index, reads=("levels", "quantities", "min_size")),
    "shard": PartitionKind(shard, reads=("shards_per_client", "min_size")),
    "distribution": PartitionKind(distribution, reads=("classes_per_client", "lognormal_sigma", "min_size")),
    "counts": PartitionKind(counts, reads=("counts",), fixes_num_clients=True),
    "quantity_skew": PartitionKind(quantity_skew, reads=("alpha", "min_size")),
    "linear": PartitionKind(partial(by_weights, lambda numbers: numbers), reads=("min_size",)),
    "square": PartitionKind(partial(by_weights, np.square), reads=("min_size",)),
    "exponential": PartitionKind(
        partial(by_weights, lambda numbers: np.exp(numbers - len(numbers))), reads=("min_size",)
    ),
    "lds": PartitionKind(lds),
    "fds_vop": PartitionKind(fds_vop),
    "fds_wgc": PartitionKind(fds_wgc, reads=("tail_rule", "min_size"), repeats_rows=True),
    "sfdl": PartitionKind(sfdl),
    "sldf": PartitionKind(sldf),
}


def settings_not_read(settings: PartitionSettings) -> dict[str, object]:
    """Return the settings that differ from their defaults although the kind does not read them."""
    assert settings.kind is not None
    default = PartitionSettings()
    return {
        name: value
        for name, value in settings
        if name not in {"kind", *PARTITIONS[settings.kind].reads} and value != getattr(default, name)
    }
