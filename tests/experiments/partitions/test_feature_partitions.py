"""Partitions by sorting: FDS-VOP, LDS, SFDL and SLDF, on features whose structure is known."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance

from fedscout.engine.errors import DataError
from fedscout.experiments.partitions.generators import _quantiles, owners_by_blocks, wasserstein_distances
from fedscout.experiments.partitions.labels import raw_variances
from fedscout.experiments.partitions.table import PARTITIONS
from tests.experiments.partitions.requests import asked, class_counts, deal, label_distance, noise
from tests.kits.refusals import refused


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(1, 8))
def test_blocks_are_in_order_and_equal(sizes: list[int], num_clients: int) -> None:
    starts = np.concatenate([[0], np.cumsum(sizes)])
    groups = [np.arange(start, end) for start, end in pairwise(starts)]
    owners = owners_by_blocks(groups, int(starts[-1]), num_clients)
    for group in groups:
        assert (np.diff(owners[group]) >= 0).all()
        of_clients = np.bincount(owners[group], minlength=num_clients)
        assert of_clients.max() - of_clients.min() <= 1
    total = np.bincount(owners, minlength=num_clients)
    assert total.max() - total.min() <= 1


def test_fds_vop_sorts_by_the_column_of_largest_raw_variance() -> None:
    features = noise(600, 5)
    labels = np.arange(600) % 3
    request = asked("fds_vop", labels, 6, features=features)
    dealt = PARTITIONS["fds_vop"].deal(replace(request, deviations=np.array([1.0, 2.0, 9.0, 0.5, 3.0])))
    assert dealt.facts == {"sorted_column": 2}
    ranges = [features[dealt.partition.client(client), 2] for client in range(6)]
    for lower, higher in pairwise(ranges):
        assert lower.max() <= higher.min()


def test_equal_values_are_dealt_at_random() -> None:
    # A column of zeros only, rows sorted by label: taken in order, each client would have one class.
    labels = np.repeat(np.arange(4), 250)
    partition = deal("fds_vop", labels, 4, features=np.zeros((1000, 1), np.float32)).partition
    # Of 250 rows of p = 1/4 a count is within five standard deviations √(250 · 3/16).
    assert np.abs(class_counts(labels, partition) - 62.5).max() < 5 * np.sqrt(250 * 3 / 16)


def test_raw_variances_undo_standardisation() -> None:
    rng = np.random.default_rng(0)
    raw = rng.normal(size=(5000, 3)) * [1.0, 100.0, 1e-3] + [0.0, 1e4, 5.0]
    raw[:, 2] = 7.0
    deviations = raw.std(axis=0)
    stored = ((raw - raw.mean(axis=0)) / np.where(deviations > 0, deviations, 1)).astype(np.float32)
    request = replace(asked("fds_vop", np.zeros(5000, np.int64), 2, features=stored), deviations=deviations)
    np.testing.assert_allclose(raw_variances(request, stored), raw.var(axis=0), rtol=1e-4)
    rows = np.arange(0, 5000, 7)
    np.testing.assert_allclose(raw_variances(request, stored, rows), raw[rows].var(axis=0), rtol=1e-4)


def test_lds_gives_clients_runs_of_labels() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(4), 100))
    partition = deal("lds", labels, 8).partition
    assert [set(labels[partition.client(client)]) for client in range(8)] == [{k // 2} for k in range(8)]
    assert (partition.sizes == 50).all()


def test_sldf_keeps_labels_and_splits_features() -> None:
    # Label y varies most in column y, so its segments are sorted by that column.
    rng = np.random.default_rng(0)
    labels = np.arange(900) % 3
    features = rng.normal(size=(900, 3)).astype(np.float32)
    features[np.arange(900), labels] *= 10
    partition = deal("sldf", labels, 5, features=features).partition
    assert np.ptp(class_counts(labels, partition), axis=0).max() <= 1
    for label in range(3):
        segments = [features[rows[labels[rows] == label], label] for rows in map(partition.client, range(5))]
        for lower, higher in pairwise(segments):
            assert lower.max() <= higher.min()


def blobs(num_blobs: int, rows_of_each: int = 120) -> tuple[np.ndarray, np.ndarray]:
    """Return points around far apart centres, and which centre each belongs to."""
    rng = np.random.default_rng(1)
    centres = 20 * np.eye(num_blobs, 6)
    blob = np.repeat(np.arange(num_blobs), rows_of_each)
    return (centres[blob] + rng.normal(size=(len(blob), 6))).astype(np.float32), blob


@pytest.mark.parametrize("num_blobs", [2, 3, 5])
def test_sfdl_finds_the_clusters_keeps_them_and_splits_labels(num_blobs: int) -> None:
    features, blob = blobs(num_blobs)
    labels = np.random.default_rng(2).permutation(np.arange(len(blob)) % 4)
    dealt = deal("sfdl", labels, 4, features=features)
    assert dealt.facts == {"num_clusters": num_blobs}
    assert np.ptp(class_counts(blob, dealt.partition), axis=0).max() <= 1
    # Labels sorted within each cluster: client j has about the j-th quarter of them, one class of four.
    assert label_distance(labels, dealt.partition) > 0.6
    iid = deal("iid", labels, 4).partition
    assert label_distance(labels, iid) < 0.2


@pytest.mark.parametrize("num_rows", [2, 3, 50])
def test_sfdl_on_rows_that_are_all_alike(num_rows: int) -> None:
    features = np.zeros((num_rows, 3), np.float32)
    assert deal("sfdl", np.arange(num_rows) % 2, 2, features=features).facts == {"num_clusters": 1}
    features[0] = 1
    sizes = deal("sfdl", np.arange(num_rows) % 2, 2, features=features).partition.sizes
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("kind", ["fds_vop", "fds_wgc", "sfdl", "sldf"])
def test_images_are_columns_and_tokens_are_refused(kind: str) -> None:
    labels = np.arange(60) % 2
    images = noise(60, 16).reshape(60, 1, 4, 4)
    flat = deal(kind, labels, 2, features=images.reshape(60, 16)).partition
    np.testing.assert_array_equal(deal(kind, labels, 2, features=images).partition.rows, flat.rows)
    with refused(DataError, key="federation.partition.kind", given="tokens"):
        PARTITIONS[kind].deal(replace(asked(kind, labels, 2, features=noise(60)), data_kind="tokens"))


# FDS-WGC: distances, clusters, tails and the two counts of rows.


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
    """Half of each column's rows are in a tail; of two independent ones' 3/4 in any, 1/4 in all."""
    columns = noise(1000, 4)
    columns[:, 2:] = np.exp(columns[:, 2:])
    for tail_rule, expected in (("any", 750), ("all", 250)):
        dealt = deal("fds_wgc", np.arange(1000) % 2, 2, features=columns, tail_rule=tail_rule)
        assert np.abs(dealt.partition.sizes - expected).max() < 5 * np.sqrt(1000 * 3 / 16)
    with refused(DataError, key="federation.partition.min_size"):
        deal("fds_wgc", np.arange(1000) % 2, 2, features=columns, tail_rule="all", min_size=400)


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
