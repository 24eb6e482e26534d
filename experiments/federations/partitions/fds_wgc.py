"""FDS-WGC: feature distribution skew by Wasserstein-grouped columns.

1. Columns are standardised, and the 1-Wasserstein distances between the distributions of every two are measured.
2. Agglomerative clustering groups the columns into as many clusters as there are clients.
3. Client k gets the rows whose values lie below the 25th or above the 75th percentile of their column, in any column of
   cluster k (`tail_rule: all`: in all of them).

So a row may go to several clients, or to none: both numbers are on record (`num_rows_repeated` counts the rows that
several clients have, `num_rows_dropped` those that nobody has). There must be at least as many columns as clients.

A column of which fewer than `min_size` rows lie in its tails, such as a constant or an even split into two values, can
make nobody's data: it is left out of the clustering, and counted (`num_columns_without_tails`).

Reconstructions: zero mean and unit variance as what "normalised" means; average linkage; any as the default; clients
numbered by the first column of their cluster. Beyond 1,000 rows the distance is computed from 1,000 equally spaced
quantiles of each column instead of all values.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.data.client_data import Partition
from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.partitions.feature_columns import feature_columns
from fedscout.experiments.federations.partitions.partition_request import Deal, PartitionRequest
from fedscout.experiments.federations.partitions.shares import BoolArray, FloatVector

MAX_QUANTILES = 1_000
CHUNK_COLUMNS = 64
TAILS = (25, 75)


def fds_wgc(request: PartitionRequest) -> Deal:
    """Deal the tails of clusters of columns.

    Raises:
        DataError: If there are fewer columns than clients, no features, or a cluster gives a client fewer than
            `min_size` rows.
    """
    num_clients, columns = request.require_num_clients(), feature_columns(request)
    min_size = request.require_min_size()
    quantiles, tails = _quantiles(columns)
    usable = np.array(
        [_in_tails(columns, tails, [column], False).sum() >= min_size for column in range(len(quantiles))]
    )
    if np.count_nonzero(usable) < num_clients:
        raise DataError(
            Fault(
                "federation.num_clients",
                (
                    f"be at most {np.count_nonzero(usable)}, the number of columns with "
                    f"federation.partition.min_size = {min_size} rows in their tails, where "
                    "federation.partition.kind=fds_wgc"
                ),
                num_clients,
            )
        )
    numbers = np.flatnonzero(usable)
    clusters = _clusters(quantiles[numbers], num_clients)
    members = [numbers[clusters == cluster] for cluster in range(num_clients)]
    chosen = np.stack([_in_tails(columns, tails, member, request.settings.tail_rule == "all") for member in members])
    sizes = chosen.sum(axis=1)
    if sizes.min() < min_size:
        client = int(sizes.argmin())
        raise DataError(
            Fault(
                "federation.partition.min_size",
                (
                    f"be at most {sizes[client]}, the rows in the tails of all columns of client "
                    f"{client}, {_named(members[client])}"
                ),
                min_size,
                "federation.partition.tail_rule=any is possible",
            )
        )
    num_owners = chosen.sum(axis=0)
    partition = Partition.from_lists([request.generator.permutation(np.flatnonzero(rows)) for rows in chosen])
    return Deal(
        partition,
        facts={
            "num_rows_repeated": int(np.count_nonzero(num_owners > 1)),
            "num_rows_dropped": int(np.count_nonzero(num_owners == 0)),
            "num_columns_without_tails": len(usable) - len(numbers),
        },
    )


def _quantiles(columns: FloatArray) -> tuple[FloatVector, FloatVector]:
    """Return each standardised column's quantiles, shape `(num_columns, n)`, and its two tails' raw ends, `(2, …)`."""
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
    """Return the 1-Wasserstein distance of every two distributions, shape `(n, n)`: the mean difference of quantiles.

    Args:
        quantiles: Of each distribution at the same levels, ascending, shape `(n, num_levels)`.
    """
    from scipy.spatial.distance import pdist, squareform

    return np.asarray(squareform(pdist(quantiles, "cityblock")) / quantiles.shape[1])


def _clusters(quantiles: FloatVector, num_clusters: int) -> IntArray:
    """Return the cluster of each column; clusters are numbered in the order of their first columns."""
    from sklearn.cluster import AgglomerativeClustering

    if num_clusters == 1:
        return np.zeros(len(quantiles), dtype=np.int64)
    found = AgglomerativeClustering(num_clusters, metric="precomputed", linkage="average").fit_predict(
        wasserstein_distances(quantiles)
    )
    _, first, inverse = np.unique(found, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


def _in_tails(columns: FloatArray, tails: FloatVector, member: Iterable[int], in_all: bool) -> BoolArray:
    """Return which rows lie in the tails of any, or all, of some columns."""
    result = np.full(len(columns), in_all)
    for column in member:
        values = columns[:, column]
        in_tail = (values < tails[0, column]) | (values > tails[1, column])
        result = result & in_tail if in_all else result | in_tail
    return result


def _named(member: IntArray) -> str:
    shown = ", ".join(str(column) for column in member[:5])
    return f"numbers {shown}" + (f" and {len(member) - 5} more" if len(member) > 5 else "")
