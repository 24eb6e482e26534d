"""Partitions by class and by feature: moments, sizes and classes as asked, structure that is known, refusals."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from flwr_datasets.partitioner import DirichletPartitioner, PathologicalPartitioner
from hypothesis import given, strategies as st
from scipy import stats
from scipy.stats import wasserstein_distance

from fedscout.engine.arrays import IntArray
from fedscout.engine.errors import DataError
from fedscout.experiments.partitions.labels import MAX_DRAWS, PartitionResult, dirichlet_shares, raw_variances
from fedscout.experiments.partitions.table import PARTITIONS, _quantiles, owners_by_blocks, wasserstein_distances
from tests.experiments.partitions.requests import asked, class_counts, deal, label_distance, noise
from tests.kits.refusals import refused


@given(st.integers(1, 30), st.floats(1e-3, 100), st.integers(0, 999))
def test_sizes_differ_by_one_at_most(num_clients: int, alpha: float, seed: int) -> None:
    labels = np.array([0] * 100 + [1] * 20 + [2])
    partition = deal("inner_dirichlet", labels, num_clients, seed, alpha=alpha).partition
    assert partition.sizes.max() - partition.sizes.min() <= 1
    assert sorted(partition.rows.tolist()) == list(range(121))


@pytest.mark.parametrize("alpha", [0.2, 1.0, 20.0])
def test_mixtures_have_the_second_moment_of_the_distribution(alpha: float) -> None:
    # A symmetric Dirichlet(α) over C has E Σ p² = (α + 1)/(Cα + 1).
    mixtures = dirichlet_shares(alpha, 4000, 5, np.random.default_rng(0))
    second = (mixtures**2).sum(axis=1)
    assert second.mean() == pytest.approx((alpha + 1) / (5 * alpha + 1), abs=5 * second.std() / np.sqrt(4000))


def test_counts_follow_the_mixtures_as_long_as_no_class_is_exhausted(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two clients with opposite mixtures whose sum is the class distribution: of 1,000 draws with p = 0.8, a count is
    # within five standard deviations √(1000 · 0.16) of 800.
    mixtures = np.array([[0.8, 0.2], [0.2, 0.8]])
    monkeypatch.setattr("fedscout.experiments.partitions.labels.dirichlet_shares", lambda *_: mixtures)
    labels = np.arange(2000) % 2
    counts = class_counts(labels, deal("inner_dirichlet", labels, 2).partition)
    assert np.abs(counts - 1000 * mixtures).max() < 5 * np.sqrt(1000 * 0.16)


def test_a_client_whose_classes_are_exhausted_gets_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    # Both want class 0 only, 60 rows of 100: 40 places of the two must be served from class 1.
    mixtures = np.array([[1.0, 0.0]] * 2)
    monkeypatch.setattr("fedscout.experiments.partitions.labels.dirichlet_shares", lambda *_: mixtures)
    dealt = deal("inner_dirichlet", np.array([0] * 60 + [1] * 40), 2)
    assert dealt.partition.sizes.tolist() == [50, 50]
    assert dealt.facts == {"num_rows_off_mixture": 40}


# Dirichlet: shares with the moments of the distribution, and a minimum size that is always reached or refused.


def dirichlet_deal(
    labels: IntArray, num_clients: int, alpha: float, min_size: int = 1, seed: int = 0
) -> PartitionResult:
    return deal("dirichlet", labels, num_clients, seed, alpha=alpha, min_size=min_size)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_shares_have_the_second_moment_of_the_distribution(alpha: float) -> None:
    # A symmetric Dirichlet(α) over K has E Σ p² = (α + 1)/(Kα + 1). One draw per class, so 400 classes give 400 draws.
    num_clients, num_classes, num_rows = 10, 400, 1000
    labels = np.repeat(np.arange(num_classes), num_rows)
    shares = class_counts(labels, dirichlet_deal(labels, num_clients, alpha).partition) / num_rows
    second = (shares**2).sum(axis=0)

    sampling_error = second.std() / np.sqrt(num_classes)
    rounding = 2 / num_rows  # whole rows change a share by less than 1/1000, and Σ p² by at most twice as much
    assert second.mean() == pytest.approx((alpha + 1) / (num_clients * alpha + 1), abs=5 * sampling_error + rounding)


def test_rounding_favours_no_client() -> None:
    # 40 classes of 25 rows for 50 clients with equal shares, half a row each: every client is in luck about 20 times.
    sizes = dirichlet_deal(np.repeat(np.arange(40), 25), 50, alpha=1e6).partition.sizes
    assert np.abs(sizes - 20).max() <= 5 * np.sqrt(40 / 4)


@pytest.mark.parametrize("alpha", [1e-300, 1e-6])
def test_vanishing_alpha_gives_each_class_to_one_client(alpha: float) -> None:
    # With as good as one client per class nobody can be served but by repair; what was not moved stays together.
    labels = np.repeat(np.arange(4), 1000)
    result = dirichlet_deal(labels, 3, alpha)
    counts = class_counts(labels, result.partition)
    assert counts.sum() == 4000
    assert (counts.max(axis=0) >= 1000 - result.facts["dirichlet_moved_rows"] - 1).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The specified min_partition_size")
def test_sizes_are_distributed_as_flower_s_partitioner_has_them() -> None:
    """The spread of the sizes over 60 seeds, by the two-sample test of Kolmogorov and Smirnov; its other mode fails."""
    labels = np.repeat(np.arange(10), 60)
    table = Dataset.from_dict({"label": labels})

    def flowers(seed: int, self_balancing: bool) -> float:
        partitioner = DirichletPartitioner(8, "label", 0.3, 1, self_balancing, shuffle=False, seed=seed)
        partitioner.dataset = table
        return float(np.std([len(partitioner.load_partition(k)) for k in range(8)]))

    ours = [float(np.std(dirichlet_deal(labels, 8, 0.3, 1, seed).partition.sizes)) for seed in range(60)]
    theirs, others = ([flowers(seed, self_balancing) for seed in range(60)] for self_balancing in (False, True))
    assert stats.ks_2samp(ours, theirs).pvalue > 0.01
    assert stats.ks_2samp(ours, others).pvalue < 1e-6


@given(st.integers(1, 12), st.integers(1, 8), st.floats(1e-6, 10), st.integers(0, 1000))
def test_minimum_size_is_reached_whatever_alpha(num_clients: int, min_size: int, alpha: float, seed: int) -> None:
    labels = np.arange(num_clients * min_size) % 3  # exactly enough rows
    result = dirichlet_deal(labels, num_clients, alpha, min_size, seed)
    assert (result.partition.sizes == min_size).all()
    assert 1 <= result.facts["dirichlet_draws"] <= MAX_DRAWS


def test_no_repair_where_a_draw_will_do() -> None:
    labels = np.repeat(np.arange(10), 100)
    assert dirichlet_deal(labels, 5, alpha=100.0, min_size=5).facts == {"dirichlet_draws": 1, "dirichlet_moved_rows": 0}


def test_repair_moves_no_more_rows_than_are_short() -> None:
    # One class, α → 0: one client has all 100 rows in every draw, the other four lack 10 each.
    result = dirichlet_deal(np.zeros(100, np.int64), 5, alpha=1e-12, min_size=10)
    assert result.facts == {"dirichlet_draws": MAX_DRAWS, "dirichlet_moved_rows": 40}
    assert sorted(result.partition.sizes.tolist()) == [10, 10, 10, 10, 60]


def test_repair_starts_from_the_draw_that_is_least_short(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.repeat(np.arange(3), 60)
    moved = [dirichlet_deal(labels, 20, 0.1, 5, seed).facts["dirichlet_moved_rows"] for seed in range(20)]
    monkeypatch.setattr("fedscout.experiments.partitions.labels.MAX_DRAWS", 1)
    moved_at_once = [dirichlet_deal(labels, 20, 0.1, 5, seed).facts["dirichlet_moved_rows"] for seed in range(20)]

    # The one draw is the first of the twenty; the best of twenty is no worse, and is the first only one time in twenty.
    assert all(best <= first for best, first in zip(moved, moved_at_once, strict=True))
    assert sum(moved) < sum(moved_at_once)


# Clients of given classes: as many as asked, each one held, and sizes as equal as class counts allow.


@given(
    st.lists(st.integers(20, 200), min_size=2, max_size=8), st.floats(0.05, 1), st.integers(1, 20), st.integers(0, 999)
)
def test_every_client_has_its_share_of_classes(
    rows_of_class: list[int], share: float, num_clients: int, seed: int
) -> None:
    """Every class has a row for each client, and all of it is dealt as soon as clients have places for all classes."""
    labels, num_classes = np.repeat(np.arange(len(rows_of_class)), rows_of_class), len(rows_of_class)
    counts = class_counts(
        labels, deal("classes_per_client", labels, num_clients, seed, class_share=share, min_size=1).partition
    )
    expected = max(1, round(share * num_classes))
    assert (np.count_nonzero(counts, axis=1) == expected).all()
    dealt = counts.sum(axis=0)
    assert np.count_nonzero(dealt) == min(num_classes, num_clients * expected)
    assert ((dealt == 0) | (dealt == rows_of_class)).all()


def test_a_rare_class_goes_to_no_more_clients_than_it_has_rows() -> None:
    labels = np.array([0] * 500 + [1] * 500 + [2] * 3)
    counts = class_counts(labels, deal("classes_per_client", labels, 10, class_share=0.6).partition)
    assert (np.count_nonzero(counts, axis=1) == 2).all()
    assert 1 <= np.count_nonzero(counts[:, 2]) <= 3
    assert counts.sum() == 1003


@pytest.mark.parametrize(("num_classes", "level", "expected"), [(11, 0.2, 9), (11, 0.8, 3), (3, 0.6, 2), (2, 0.4, 2)])
def test_index_is_the_nearest_that_whole_classes_allow(num_classes: int, level: float, expected: int) -> None:
    labels = np.arange(num_classes * 100) % num_classes
    dealt = deal("heterogeneity_index", labels, 5, levels=(level,))
    held = np.count_nonzero(class_counts(labels, dealt.partition), axis=1)
    assert (held == expected).all()
    assert dealt.facts["realised_levels"] == (pytest.approx(1 - (expected - 1) / (num_classes - 1)),)


def test_levels_in_turn_at_equal_sizes() -> None:
    labels = np.arange(2200) % 11
    counts = class_counts(labels, deal("heterogeneity_index", labels, 20).partition)
    assert np.count_nonzero(counts, axis=1).tolist() == [9, 7, 5, 3] * 5
    assert counts.sum() == 2200
    # 110 rows a client, from classes of 200 rows that the clients of different sets share: within a fifth of it.
    assert np.abs(counts.sum(axis=1) - 110).max() <= 22


def test_all_combinations_of_levels_and_quantities() -> None:
    labels = np.arange(6000) % 10
    quantities = (100, 200, 300)
    partition = deal("heterogeneity_index", labels, 12, levels=(0, 1 / 3, 2 / 3, 1), quantities=quantities).partition
    assert partition.sizes.tolist() == [100] * 4 + [200] * 4 + [300] * 4
    counts = class_counts(labels, partition)
    groups = {(int(size), int(held)) for size, held in zip(partition.sizes, (counts > 0).sum(axis=1), strict=True)}
    assert groups == {(size, held) for size in quantities for held in (10, 7, 4, 1)}
    for row in counts:  # equal parts of each class
        assert row[row > 0].max() - row[row > 0].min() <= 1


# Pathological classes, shards and log-normal shares: those of flwr-datasets where it draws none.


def test_deterministic_classes_are_flower_s() -> None:
    labels = np.repeat(np.arange(4), [90, 61, 37, 120])
    ours = deal("pathological", labels, 7, class_assignment="deterministic", classes_per_client=3).partition
    theirs = PathologicalPartitioner(7, "label", 3, "deterministic")
    theirs.dataset = Dataset.from_dict({"label": labels})
    expected = [np.bincount(theirs.load_partition(client)["label"], minlength=4) for client in range(7)]
    np.testing.assert_array_equal(class_counts(labels, ours), expected)


@pytest.mark.parametrize("assignment", ["first-deterministic", "deterministic", "random"])
@pytest.mark.parametrize("num_classes", [1, 2, 4])
def test_pathological_clients_have_so_many_classes(assignment: str, num_classes: int) -> None:
    labels = np.arange(2000) % 5
    settings = {"class_assignment": assignment, "classes_per_client": num_classes}
    counts = class_counts(labels, deal("pathological", labels, 10, **settings).partition)
    assert (np.count_nonzero(counts, axis=1) == num_classes).all()
    for label in range(5):  # and share each class equally
        held = counts[counts[:, label] > 0, label]
        assert len(held) == 0 or held.max() - held.min() <= 1
    if assignment != "random":
        assert counts.sum() == 2000
        assert (counts[np.arange(10), np.arange(10) % 5] > 0).all()


def test_shards_are_runs_of_the_sorted_rows() -> None:
    labels = np.arange(3000) % 10
    counts = class_counts(labels, deal("shard", labels, 15).partition)
    # 30 shards of 100 rows, 300 rows a class: no shard spans two classes.
    assert set(counts[counts > 0].tolist()) <= {100, 200}
    assert (counts.sum(axis=1) == 200).all()
    assert deal("shard", labels, 7).partition.sizes.tolist() == [2 * (3000 // 14)] * 7


def test_distribution_deals_adjacent_classes_and_some_rows_of_each() -> None:
    labels = np.arange(3000) % 5
    counts = class_counts(labels, deal("distribution", labels, 10, classes_per_client=3, min_size=9).partition)
    for client in range(10):
        assert set(np.flatnonzero(counts[client])) == {client % 5, (client + 1) % 5, (client + 2) % 5}
    assert counts[counts > 0].min() >= 3
    assert counts.sum() == 3000


RANDOM_ONE = {"classes_per_client": 1, "class_assignment": "random"}
BELOW, QUANTITIES = "federation.partition.min_size", "federation.partition.quantities"
KIND, CLIENTS, SHARDS = "federation.partition.kind", "federation.num_clients", "federation.partition.shards_per_client"
REFUSALS: list[tuple[str, list[int], int, dict[str, Any], str, object]] = [
    ("dirichlet", [100], 11, {"alpha": 0.5, "min_size": 10}, CLIENTS, "11 times 10"),
    ("classes_per_client", [500, 500, 3], 10, {"class_share": 1.0}, "every client", None),
    ("classes_per_client", [500, 3], 4, {"class_share": 0.5}, BELOW, None),
    ("heterogeneity_index", [100] * 10, 10, {"levels": (0.5,), "quantities": (400,)}, QUANTITIES, None),
    ("heterogeneity_index", [100] * 10, 10, {"levels": (0.5,), "quantities": (3,)}, QUANTITIES, 3),
    # Four clients of one class and 60 rows each, but of three classes of 80 rows: one class would have to serve two.
    ("heterogeneity_index", [80] * 3, 4, {"levels": (1.0,), "quantities": (60,)}, QUANTITIES, 120),
    ("heterogeneity_index", [100], 4, {}, KIND, "one"),
    ("pathological", [20] * 5, 60, {"min_size": 1}, BELOW, None),  # more parts than rows
    ("pathological", [300, 300, 1], 10, {"classes_per_client": 1}, BELOW, None),
    # Both classes at every client: class 1 has nine rows for ten of them, whatever is drawn.
    ("pathological", [300, 9], 10, {"class_assignment": "random"}, KIND, None),
    # With one class a client, 30 rows each take eight clients of class 0 at most, and one of class 1: nine, not ten.
    ("pathological", [250, 50], 10, {**RANDOM_ONE, "min_size": 30}, BELOW, 30),
    ("shard", [50, 50], 20, {"shards_per_client": 6}, SHARDS, 6),
    ("shard", [50, 50], 20, {"shards_per_client": 1, "min_size": 6}, CLIENTS, None),
    ("distribution", [200] * 5, 7, {}, CLIENTS, None),
    ("distribution", [200] * 5, 10, {"classes_per_client": 6}, "federation.partition.classes_per_client", None),
    ("distribution", [200] * 5, 10, {"min_size": 400}, "every class", None),
]


@pytest.mark.parametrize(("kind", "counts", "num_clients", "chosen", "key", "given_value"), REFUSALS)
def test_classes_that_have_too_few_rows_are_refused(
    kind: str, counts: list[int], num_clients: int, chosen: dict[str, Any], key: str, given_value: object
) -> None:
    with refused(DataError, key=key, given=given_value):
        deal(kind, np.repeat(np.arange(len(counts)), counts), num_clients, **chosen)


@pytest.mark.parametrize(("kind", "most"), [("linear", 16), ("square", 7), ("exponential", 5)])
def test_most_clients_of_growing_sizes(kind: str, most: int) -> None:
    """Of 1000 rows the first of K clients gets 2/K(K + 1), 6/K(K + 1)(2K + 1) and 1/Σ eᵏ: at least seven."""
    labels = np.zeros(1000, np.int64)
    assert deal(kind, labels, most, min_size=7).partition.sizes.min() >= 7
    with refused(DataError, key="federation.partition.kind"):
        deal(kind, labels, most + 1, min_size=7)


# FDS-VOP, LDS, SFDL and SLDF, on features whose structure is known.


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
    dealt = PARTITIONS["fds_vop"].partition(replace(request, deviations=np.array([1.0, 2.0, 9.0, 0.5, 3.0])))
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


@pytest.mark.parametrize("num_blobs", [2, 3, 5])
def test_sfdl_finds_the_clusters_keeps_them_and_splits_labels(num_blobs: int) -> None:
    """Points around far apart centres."""
    blob = np.repeat(np.arange(num_blobs), 120)
    features = (20 * np.eye(num_blobs, 6)[blob] + noise(len(blob), 6)).astype(np.float32)
    labels = np.random.default_rng(2).permutation(np.arange(len(blob)) % 4)
    dealt = deal("sfdl", labels, 4, features=features)
    assert dealt.facts == {"num_clusters": num_blobs}
    assert np.ptp(class_counts(blob, dealt.partition), axis=0).max() <= 1
    # Labels sorted within each cluster: client j has about the j-th quarter of them, one class of four.
    assert label_distance(labels, dealt.partition) > 0.6


@pytest.mark.parametrize("num_rows", [2, 3, 50])
def test_sfdl_on_rows_that_are_all_alike(num_rows: int) -> None:
    features = np.zeros((num_rows, 3), np.float32)
    assert deal("sfdl", np.arange(num_rows) % 2, 2, features=features).facts == {"num_clusters": 1}
    features[0] = 1
    sizes = deal("sfdl", np.arange(num_rows) % 2, 2, features=features).partition.sizes
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("kind", ["fds_vop", "fds_wgc", "sfdl", "sldf"])
def test_images_are_columns_and_tokens_or_no_features_are_refused(kind: str) -> None:
    labels = np.arange(60) % 2
    images = noise(60, 16).reshape(60, 1, 4, 4)
    flat = deal(kind, labels, 2, features=images.reshape(60, 16)).partition
    np.testing.assert_array_equal(deal(kind, labels, 2, features=images).partition.rows, flat.rows)
    with refused(DataError, key="federation.partition.kind", given="no features"):
        deal(kind, labels, 2)
    with refused(DataError, key="federation.partition.kind", given="tokens"):
        PARTITIONS[kind].partition(replace(asked(kind, labels, 2, features=noise(60)), data_kind="tokens"))


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


def test_columns_without_tails_make_nobody_s_data() -> None:
    # A constant and an even split have no value beyond their quartiles; of the rare flag four rows are.
    columns = noise(100, 5)
    columns[:, 1], columns[:, 2], columns[:, 3] = 0, np.arange(100) % 2, np.arange(100) < 4
    labels = np.arange(100) % 2
    dealt = deal("fds_wgc", labels, 2, features=columns)
    assert dealt.facts["num_columns_without_tails"] == 3
    assert dealt.partition.sizes.tolist() == [50, 50]
    assert deal("fds_wgc", labels, 3, features=columns, min_size=4).partition.sizes.tolist() == [50, 4, 50]
    for features in (columns, noise(100, 2)):  # or there are fewer columns than clients
        with refused(DataError, key="federation.num_clients"):
            deal("fds_wgc", labels, 3, features=features)
