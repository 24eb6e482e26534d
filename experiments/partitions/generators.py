"""Published generators of label and feature skew: FDS-WGC, SFDL, and sorted blocks.

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

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.data.client import CHUNK_ROWS, Partition
from fedscout.engine.errors import DataError
from fedscout.experiments.partitions.labels import (
    BoolArray,
    FloatVector,
    PartitionRequest,
    PartitionResult,
    column_variances,
    feature_columns,
    raw_variances,
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
    for start in range(0, num_columns, CHUNK_COLUMNS):
        part = slice(start, start + CHUNK_COLUMNS)
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
    request.require_num_clients()
    rows = sorted_rows(np.arange(len(request.labels)), request.labels, request.generator)
    return assign_blocks(request, [rows])


def fds_vop(request: PartitionRequest) -> PartitionResult:
    """Partition rows into blocks sorted by one column."""
    request.require_num_clients()
    columns = feature_columns(request)
    column = int(np.argmax(raw_variances(request, columns)))
    rows = sorted_rows(np.arange(len(columns)), columns[:, column], request.generator)
    return assign_blocks(request, [rows], sorted_column=column)


def sldf(request: PartitionRequest) -> PartitionResult:
    """Partition each label's rows into blocks sorted by one column."""
    request.require_num_clients()
    columns = feature_columns(request)

    def groups() -> Iterator[IntArray]:
        for label in np.unique(request.labels):
            rows = np.flatnonzero(request.labels == label)
            column = int(np.argmax(raw_variances(request, columns, rows)))
            yield sorted_rows(rows, columns[rows, column], request.generator)

    return assign_blocks(request, groups())


def assign_blocks(request: PartitionRequest, groups: Iterable[IntArray], **facts: Any) -> PartitionResult:
    """Assign a block of each group, given as ordered row numbers, to each client; each row is in one group."""
    owners = owners_by_blocks(groups, len(request.labels), request.require_num_clients())
    return request.by_owners(owners, **facts)


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

    request.require_num_clients()
    columns = feature_columns(request)
    with threadpool_limits(limits=1):  # sums over several threads differ in their last bits
        clusters = _row_clusters(request, columns)
    groups = (
        sorted_rows(rows, request.labels[rows], request.generator)
        for rows in (np.flatnonzero(clusters == cluster) for cluster in np.unique(clusters))
    )
    return assign_blocks(request, groups, num_clusters=len(np.unique(clusters)))


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
    for start in range(0, len(columns), CHUNK_ROWS):
        rows = columns[start : start + CHUNK_ROWS] * scale
        clusters[start : start + CHUNK_ROWS] = np.argmin((centres**2).sum(axis=1) - 2 * rows @ centres.T, axis=1)
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
