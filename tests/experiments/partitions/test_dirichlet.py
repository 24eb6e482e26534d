"""Dirichlet: shares with the moments of the distribution, and a minimum size that is always reached or refused."""

from __future__ import annotations

import numpy as np
import pytest
from datasets import Dataset
from flwr_datasets.partitioner import DirichletPartitioner
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats

from fedscout.engine.arrays import IntArray
from fedscout.engine.data.client import Partition
from fedscout.engine.errors import DataError
from fedscout.experiments.partitions.base import PartitionRequest, PartitionResult, PartitionSettings
from fedscout.experiments.partitions.labels import MAX_DRAWS
from fedscout.experiments.partitions.table import PARTITIONS
from tests.experiments.partitions.requests import class_counts
from tests.kits.refusals import refused


def deal(
    labels: IntArray, num_clients: int, alpha: float, min_size: int = 1, seed: int = 0, self_balancing: bool = False
) -> PartitionResult:
    settings = PartitionSettings(alpha=alpha, min_size=min_size, self_balancing=self_balancing)
    return PARTITIONS["dirichlet"].deal(
        PartitionRequest(labels, num_clients, np.random.default_rng(seed), settings=settings)
    )


def mean_divergence(labels: IntArray, partition: Partition) -> float:
    """Mean Jensen-Shannon divergence, base 2, of the clients' label distributions from the overall one."""
    counts = class_counts(labels, partition)
    client, overall = counts / counts.sum(axis=1, keepdims=True), counts.sum(axis=0) / counts.sum()
    middle = (client + overall) / 2

    def relative(p: np.ndarray) -> np.ndarray:
        return np.where(p > 0, p * np.log2(np.where(p > 0, p, 1) / middle), 0).sum(axis=1)

    return float((relative(client) + relative(np.broadcast_to(overall, client.shape))).mean() / 2)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_shares_have_the_second_moment_of_the_distribution(alpha: float) -> None:
    # A symmetric Dirichlet(α) over K has E Σ p² = (α + 1)/(Kα + 1). One draw per class, so 400 classes give 400 draws.
    num_clients, num_classes, num_rows = 10, 400, 1000
    labels = np.repeat(np.arange(num_classes), num_rows)
    shares = class_counts(labels, deal(labels, num_clients, alpha).partition) / num_rows
    second = (shares**2).sum(axis=0)

    sampling_error = second.std() / np.sqrt(num_classes)
    rounding = 2 / num_rows  # whole rows change a share by less than 1/1000, and Σ p² by at most twice as much
    assert second.mean() == pytest.approx((alpha + 1) / (num_clients * alpha + 1), abs=5 * sampling_error + rounding)


def test_smaller_alpha_is_stronger_skew() -> None:
    labels = np.repeat(np.arange(10), 500)
    divergences = [
        np.mean([mean_divergence(labels, deal(labels, 10, alpha, seed=seed).partition) for seed in range(5)])
        for alpha in (0.01, 0.1, 1.0, 10.0, 1000.0)
    ]
    assert divergences == sorted(divergences, reverse=True)
    # In the limit all clients are alike: shares vary by 1/√(Kα), 1 % here, and the divergence is of the second order.
    assert divergences[-1] < 0.01


def test_rounding_favours_no_client() -> None:
    # 40 classes of 25 rows for 50 clients with equal shares, half a row each: every client is in luck about 20 times.
    sizes = deal(np.repeat(np.arange(40), 25), 50, alpha=1e6).partition.sizes
    assert np.abs(sizes - 20).max() <= 5 * np.sqrt(40 / 4)


@pytest.mark.parametrize("alpha", [1e-300, 1e-12, 1e-6])
def test_vanishing_alpha_gives_each_class_to_one_client(alpha: float) -> None:
    # With as good as one client per class nobody can be served but by repair; what was not moved stays together.
    labels = np.repeat(np.arange(4), 1000)
    result = deal(labels, 3, alpha)
    counts = class_counts(labels, result.partition)
    assert counts.sum() == 4000
    assert (counts.max(axis=0) >= 1000 - result.facts["dirichlet_moved_rows"] - 1).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The specified min_partition_size")
@pytest.mark.parametrize("self_balancing", [False, True])
def test_sizes_are_distributed_as_flower_s_partitioner_has_them(self_balancing: bool) -> None:
    """The spread of the sizes over 60 seeds, by the two-sample test of Kolmogorov and Smirnov; the other mode fails."""
    labels = np.repeat(np.arange(10), 60)
    table = Dataset.from_dict({"label": labels})

    def flowers(seed: int) -> float:
        partitioner = DirichletPartitioner(8, "label", 0.3, 1, self_balancing, shuffle=False, seed=seed)
        partitioner.dataset = table
        return float(np.std([len(partitioner.load_partition(k)) for k in range(8)]))

    theirs = [flowers(seed) for seed in range(60)]
    ours, others = (
        [float(np.std(deal(labels, 8, 0.3, 1, seed, mode).partition.sizes)) for seed in range(60)]
        for mode in (self_balancing, not self_balancing)
    )
    assert stats.ks_2samp(ours, theirs).pvalue > 0.01
    assert stats.ks_2samp(others, theirs).pvalue < 1e-6


@pytest.mark.parametrize("alpha", [1e-300, 0.1, 100.0])
def test_balanced_clients_exceed_the_average_by_one_class_at_most(alpha: float) -> None:
    labels = np.repeat(np.arange(10), 100)
    sizes = deal(labels, 5, alpha, self_balancing=True).partition.sizes
    assert sizes.sum() == 1000
    assert sizes.max() <= 1000 / 5 + 100


@given(st.integers(1, 12), st.integers(1, 8), st.floats(1e-6, 10), st.integers(0, 1000))
def test_minimum_size_is_reached_whatever_alpha(num_clients: int, min_size: int, alpha: float, seed: int) -> None:
    labels = np.arange(num_clients * min_size) % 3  # exactly enough rows
    result = deal(labels, num_clients, alpha, min_size, seed)
    assert (result.partition.sizes == min_size).all()
    assert 1 <= result.facts["dirichlet_draws"] <= MAX_DRAWS


def test_no_repair_where_a_draw_will_do() -> None:
    labels = np.repeat(np.arange(10), 100)
    assert deal(labels, 5, alpha=100.0, min_size=5).facts == {"dirichlet_draws": 1, "dirichlet_moved_rows": 0}


def test_repair_moves_no_more_rows_than_are_short() -> None:
    # One class, α → 0: one client has all 100 rows in every draw, the other four lack 10 each.
    result = deal(np.zeros(100, np.int64), 5, alpha=1e-12, min_size=10)
    assert result.facts == {"dirichlet_draws": MAX_DRAWS, "dirichlet_moved_rows": 40}
    assert sorted(result.partition.sizes.tolist()) == [10, 10, 10, 10, 60]


def test_repair_starts_from_the_draw_that_is_least_short(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.repeat(np.arange(3), 60)
    moved = [deal(labels, 20, 0.1, 5, seed).facts["dirichlet_moved_rows"] for seed in range(20)]
    monkeypatch.setattr("fedscout.experiments.partitions.labels.MAX_DRAWS", 1)
    moved_at_once = [deal(labels, 20, 0.1, 5, seed).facts["dirichlet_moved_rows"] for seed in range(20)]

    # The one draw is the first of the twenty; the best of twenty is no worse, and is the first only one time in twenty.
    assert all(best <= first for best, first in zip(moved, moved_at_once, strict=True))
    assert sum(moved) < sum(moved_at_once)


def test_too_few_rows_for_the_minimum_names_the_largest_possible() -> None:
    with refused(DataError, key="federation.num_clients", given="11 times 10"):
        deal(np.zeros(100, np.int64), 11, alpha=0.5, min_size=10)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_alpha_must_be_positive(alpha: float) -> None:
    with pytest.raises(ValidationError, match="alpha"):
        PartitionSettings(alpha=alpha)
