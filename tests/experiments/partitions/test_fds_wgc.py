"""FDS-WGC: distances, clusters, tails and the two counts of rows."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import wasserstein_distance

from fedscout.engine.errors import DataError
from fedscout.experiments.partitions.generators import _quantiles, wasserstein_distances
from tests.experiments.partitions.requests import deal, noise
from tests.kits.refusals import refused


def skewed(num_rows: int = 800) -> np.ndarray:
    """Two normal columns, two exponential ones, two with two values: three groups of shapes, in mixed order."""
    rng = np.random.default_rng(0)
    normal, exponential = rng.normal(size=(num_rows, 2)), rng.exponential(size=(num_rows, 2))
    binary = (rng.random((num_rows, 2)) < 0.1).astype(float)
    return np.column_stack([normal[:, 0], exponential[:, 0], binary, normal[:, 1], exponential[:, 1]]).astype(
        np.float32
    )


@pytest.mark.parametrize(("num_rows", "tolerance"), [(500, 1e-6), (7000, 0.01)])
def test_distances_are_wasserstein_s(num_rows: int, tolerance: float) -> None:
    # Exact with as many quantiles as rows; with 1,000 of 7,000 each stands for seven values of the standardised column.
    columns = skewed(num_rows).astype(np.float64)
    standard = (columns - columns.mean(axis=0)) / columns.std(axis=0)
    distances = wasserstein_distances(_quantiles(columns.astype(np.float32))[0])
    for first in range(6):
        for second in range(6):
            exact = wasserstein_distance(standard[:, first], standard[:, second])
            assert distances[first, second] == pytest.approx(exact, abs=tolerance)


def test_rows_are_those_in_the_tails_of_columns_of_like_shape() -> None:
    columns = skewed()
    dealt = deal("fds_wgc", np.arange(800) % 2, 3, features=columns)
    low, high = np.percentile(columns.astype(np.float64), [25, 75], axis=0)
    in_tail = (columns < low) | (columns > high)
    # Clients are numbered by the first column of their cluster. Both quartiles of the columns with two values are 0.
    for client, group in enumerate([(0, 4), (1, 5), (2, 3)]):
        expected = np.flatnonzero(in_tail[:, group].any(axis=1))
        assert sorted(dealt.partition.client(client).tolist()) == expected.tolist()


def test_all_columns_of_a_cluster_is_the_stricter_rule() -> None:
    columns = noise(1000, 4)
    columns[:, 2:] = np.exp(columns[:, 2:])
    sizes_any = deal("fds_wgc", np.arange(1000) % 2, 2, features=columns).partition.sizes
    sizes_all = deal("fds_wgc", np.arange(1000) % 2, 2, features=columns, tail_rule="all").partition.sizes
    # Half of each column's rows are in a tail; of two independent columns' three quarters in any, one quarter in all.
    margin = 5 * np.sqrt(1000 * 3 / 16)
    assert np.abs(sizes_any - 750).max() < margin
    assert np.abs(sizes_all - 250).max() < margin


def test_both_counts_are_reported() -> None:
    columns = skewed()
    dealt = deal("fds_wgc", np.arange(800) % 2, 3, features=columns, tail_rule="all", min_size=1)
    num_owners = np.bincount(dealt.partition.rows, minlength=800)
    assert dealt.facts == {
        "num_columns_without_tails": 0,
        "num_rows_repeated": int((num_owners > 1).sum()),
        "num_rows_dropped": int((num_owners == 0).sum()),
    }
    assert dealt.facts["num_rows_repeated"] > 0
    assert dealt.facts["num_rows_dropped"] > 0


def test_fewer_columns_than_clients() -> None:
    with refused(DataError, key="federation.num_clients", given="4"):
        deal("fds_wgc", np.arange(100) % 2, 4, features=noise(100, 3))


def test_columns_without_tails_make_nobody_s_data() -> None:
    # A constant and an even split have no value beyond their quartiles; of the rare flag four rows are.
    columns = noise(100, 5)
    columns[:, 1], columns[:, 2], columns[:, 3] = 0, np.arange(100) % 2, np.arange(100) < 4
    labels = np.arange(100) % 2
    dealt = deal("fds_wgc", labels, 2, features=columns)
    assert dealt.facts["num_columns_without_tails"] == 3
    assert dealt.partition.sizes.tolist() == [50, 50]
    assert deal("fds_wgc", labels, 3, features=columns, min_size=4).partition.sizes.tolist() == [50, 4, 50]
    with refused(DataError, key="federation.num_clients"):
        deal("fds_wgc", labels, 3, features=columns)


def test_a_cluster_without_common_tails() -> None:
    # The second column's tails are the first one's middle half.
    ranks = np.argsort(np.argsort(noise(100, 1)[:, 0]))
    columns = np.column_stack([ranks, (ranks + 50) % 100]).astype(np.float32)
    with refused(DataError, key="federation.partition.min_size"):
        deal("fds_wgc", np.arange(100) % 2, 1, features=columns, tail_rule="all")
