"""Inner Dirichlet: equal sizes, mixtures with the moments of the distribution, and an end whatever α is."""

from __future__ import annotations

import numpy as np
import pytest
from datasets import Dataset
from flwr_datasets.partitioner import DirichletPartitioner
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedscout.engine.arrays import IntArray
from fedscout.engine.data.client import Partition
from fedscout.engine.errors import DataError
from fedscout.experiments.partitions.base import PartitionRequest, PartitionResult, PartitionSettings
from fedscout.experiments.partitions.labels import (
    MAX_DRAWS,
    _mixtures,
    owners_by_log_weights,
    wrapped_normal,
    wrapped_poisson,
)
from fedscout.experiments.partitions.table import PARTITIONS
from tests.experiments.partitions.requests import class_counts, deal
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
    mixtures = _mixtures(alpha, 4000, 5, np.random.default_rng(0))
    second = (mixtures**2).sum(axis=1)
    assert second.mean() == pytest.approx((alpha + 1) / (5 * alpha + 1), abs=5 * second.std() / np.sqrt(4000))


def test_counts_follow_the_mixtures_as_long_as_no_class_is_exhausted(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two clients with opposite mixtures whose sum is the class distribution: of 1,000 draws with p = 0.8, a count is
    # within five standard deviations √(1000 · 0.16) of 800.
    mixtures = np.array([[0.8, 0.2], [0.2, 0.8]])
    monkeypatch.setattr("fedscout.experiments.partitions.labels._mixtures", lambda *_: mixtures)
    labels = np.arange(2000) % 2
    counts = class_counts(labels, deal("inner_dirichlet", labels, 2).partition)
    assert np.abs(counts - 1000 * mixtures).max() < 5 * np.sqrt(1000 * 0.16)


def test_a_client_whose_classes_are_exhausted_gets_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    # Both want class 0 only, 60 rows of 100: 40 places of the two must be served from class 1.
    monkeypatch.setattr("fedscout.experiments.partitions.labels._mixtures", lambda *_: np.array([[1.0, 0.0]] * 2))
    labels = np.array([0] * 60 + [1] * 40)
    dealt = deal("inner_dirichlet", labels, 2)
    assert dealt.partition.sizes.tolist() == [50, 50]
    assert dealt.facts == {"num_rows_off_mixture": 40}


def test_vanishing_alpha_is_one_class_a_client() -> None:
    mixtures = _mixtures(1e-300, 500, 4, np.random.default_rng(0))
    assert (mixtures.max(axis=1) == 1).all()
    # Each class is drawn with p = 1/4: within five standard deviations √(500 · 3/16).
    assert np.abs(mixtures.sum(axis=0) - 125).max() < 5 * np.sqrt(500 * 3 / 16)


# Dirichlet: shares with the moments of the distribution, and a minimum size that is always reached or refused.


def dirichlet_deal(
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
    shares = class_counts(labels, dirichlet_deal(labels, num_clients, alpha).partition) / num_rows
    second = (shares**2).sum(axis=0)

    sampling_error = second.std() / np.sqrt(num_classes)
    rounding = 2 / num_rows  # whole rows change a share by less than 1/1000, and Σ p² by at most twice as much
    assert second.mean() == pytest.approx((alpha + 1) / (num_clients * alpha + 1), abs=5 * sampling_error + rounding)


def test_smaller_alpha_is_stronger_skew() -> None:
    labels = np.repeat(np.arange(10), 500)
    divergences = [
        np.mean([mean_divergence(labels, dirichlet_deal(labels, 10, alpha, seed=seed).partition) for seed in range(5)])
        for alpha in (0.01, 0.1, 1.0, 10.0, 1000.0)
    ]
    assert divergences == sorted(divergences, reverse=True)
    # In the limit all clients are alike: shares vary by 1/√(Kα), 1 % here, and the divergence is of the second order.
    assert divergences[-1] < 0.01


def test_rounding_favours_no_client() -> None:
    # 40 classes of 25 rows for 50 clients with equal shares, half a row each: every client is in luck about 20 times.
    sizes = dirichlet_deal(np.repeat(np.arange(40), 25), 50, alpha=1e6).partition.sizes
    assert np.abs(sizes - 20).max() <= 5 * np.sqrt(40 / 4)


@pytest.mark.parametrize("alpha", [1e-300, 1e-12, 1e-6])
def test_vanishing_alpha_gives_each_class_to_one_client(alpha: float) -> None:
    # With as good as one client per class nobody can be served but by repair; what was not moved stays together.
    labels = np.repeat(np.arange(4), 1000)
    result = dirichlet_deal(labels, 3, alpha)
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
        [float(np.std(dirichlet_deal(labels, 8, 0.3, 1, seed, mode).partition.sizes)) for seed in range(60)]
        for mode in (self_balancing, not self_balancing)
    )
    assert stats.ks_2samp(ours, theirs).pvalue > 0.01
    assert stats.ks_2samp(others, theirs).pvalue < 1e-6


@pytest.mark.parametrize("alpha", [1e-300, 0.1, 100.0])
def test_balanced_clients_exceed_the_average_by_one_class_at_most(alpha: float) -> None:
    labels = np.repeat(np.arange(10), 100)
    sizes = dirichlet_deal(labels, 5, alpha, self_balancing=True).partition.sizes
    assert sizes.sum() == 1000
    assert sizes.max() <= 1000 / 5 + 100


@given(st.integers(1, 12), st.integers(1, 8), st.floats(1e-6, 10), st.integers(0, 1000))
def test_minimum_size_is_reached_whatever_alpha(num_clients: int, min_size: int, alpha: float, seed: int) -> None:
    labels = np.arange(num_clients * min_size) % 3  # exactly enough rows
    result = dirichlet_deal(labels, num_clients, alpha, min_size, seed)
    assert (result.partition.sizes == min_size).all()
    assert 1 <= result.facts["dirichlet_draws"] <= MAX_DRAWS


def test_no_repair_where_a_draw_will_do() -> None:
    labels = np.repeat(np.arange(10), 100)
    assert dirichlet_deal(labels, 5, alpha=100.0, min_size=5).facts == {
        "dirichlet_draws": 1,
        "dirichlet_moved_rows": 0,
    }


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


def test_too_few_rows_for_the_minimum_names_the_largest_possible() -> None:
    with refused(DataError, key="federation.num_clients", given="11 times 10"):
        dirichlet_deal(np.zeros(100, np.int64), 11, alpha=0.5, min_size=10)


# Gaussian and Poisson classes: kernels with the moments of their distributions, and shares in proportion to them.


def test_kernels_are_the_distributions_where_the_ring_is_long() -> None:
    steps = np.arange(60)
    poisson = np.exp(wrapped_poisson(60, 3.0))
    np.testing.assert_allclose(poisson, stats.poisson.pmf(steps, 3.0), atol=1e-12)
    normal = np.exp(wrapped_normal(60, 2.0))
    around = np.minimum(steps, 60 - steps)
    np.testing.assert_allclose(normal, np.exp(-(around**2) / 8), atol=1e-12)


@pytest.mark.parametrize("rate", [0.2, 3.0, 40.0])
def test_wrapped_poisson_by_its_characteristic_function(rate: float) -> None:
    # The discrete Fourier transform of a wrapped Poisson(λ) over C classes is exp(λ(e^(−2πij/C) − 1)).
    num_classes = 7
    transform = np.fft.fft(np.exp(wrapped_poisson(num_classes, rate)))
    roots = np.exp(-2j * np.pi * np.arange(num_classes) / num_classes)
    np.testing.assert_allclose(transform, np.exp(rate * (roots - 1)), atol=1e-9)


@pytest.mark.parametrize("kind", ["gaussian", "poisson"])
@pytest.mark.parametrize("num_classes", [2, 10])
def test_mixtures_are_the_kernel_around_each_own_class(kind: str, num_classes: int) -> None:
    rows_of_class = 1000
    labels = np.arange(num_classes * rows_of_class) % num_classes
    knob = {"gaussian": {"class_sigma": 0.7}, "poisson": {"class_rate": 0.7}}[kind]
    kernel = np.exp(wrapped_normal(num_classes, 0.7) if kind == "gaussian" else wrapped_poisson(num_classes, 0.7))
    counts = class_counts(labels, deal(kind, labels, 2 * num_classes, **knob).partition)
    # Each class is the own one of two clients, so a client has half the kernel's share of it, rounded up or down.
    expected = {tuple(np.roll(kernel / kernel.sum(), own) * rows_of_class / 2) for own in range(num_classes)}
    for row in counts:
        assert sum(np.abs(row - np.array(shares)).max() < 1 + 1e-9 for shares in expected) == 1


def test_weights_too_small_for_floating_point_still_say_who_wants_a_class_most() -> None:
    labels = np.repeat(np.arange(2), 50)
    log_weights = np.array([[0.0, -2000.0], [-1000.0, -5000.0]])
    owners = owners_by_log_weights(labels, log_weights, np.random.default_rng(0))
    assert (owners == 0).all()


def test_a_client_without_weight_gets_nothing() -> None:
    labels = np.zeros(1000, np.int64)
    log_weights = np.log(
        np.array([[3.0], [0.0], [1.0]]), where=np.array([[True], [False], [True]]), out=np.full((3, 1), -np.inf)
    )
    sizes = np.bincount(owners_by_log_weights(labels, log_weights, np.random.default_rng(0)), minlength=3)
    assert sizes[1] == 0
    assert abs(sizes[0] - 750) <= 1


@pytest.mark.parametrize("kind", ["gaussian", "poisson"])
def test_clients_that_rounding_leaves_short_are_filled_up(kind: str) -> None:
    # Forty clients for three classes of 70 rows: about five each, and five asked.
    labels = np.arange(210) % 3
    dealt = deal(kind, labels, 40, min_size=5)
    assert dealt.partition.sizes.min() == 5
    assert dealt.facts["num_rows_moved"] >= 0


# Dominant class: equal sizes, the dominant share to the row, and the overall mixture for everyone else.


@pytest.mark.slow
@given(
    st.lists(st.integers(60, 400), min_size=2, max_size=6),
    st.integers(2, 12),
    st.floats(0.5, 1),
    st.floats(0, 1),
    st.integers(0, 999),
)
def test_shares_and_sizes_are_as_asked(
    rows_of_class: list[int], num_clients: int, share: float, fraction: float, seed: int
) -> None:
    labels = np.repeat(np.arange(len(rows_of_class)), rows_of_class)
    settings = {"dominant_share": share, "dominant_fraction": fraction, "min_size": 1}
    dealt = deal("dominant_class", labels, num_clients, seed, **settings)
    counts = class_counts(labels, dealt.partition)
    sizes = counts.sum(axis=1)
    assert len(set(sizes)) == 1
    num_dominated = round(fraction * num_clients)
    assert dealt.facts["num_dominated_clients"] == num_dominated
    num_dominant = round(share * sizes[0])
    # No other class of the client reaches the dominant one unless half the rows are its own and one class has the rest.
    assert (counts[:num_dominated].max(axis=1) >= num_dominant).all()
    assert ((counts[:num_dominated] == num_dominant).sum(axis=1) >= 1).all()


def test_balanced_classes_lose_no_rows_when_all_are_dominated() -> None:
    # Ten clients, ten classes of 100 rows: 80 of one class, and 20/9 of each other one, 80 + 9 · 20/9 = 100 of a class.
    labels = np.arange(1000) % 10
    counts = class_counts(labels, deal("dominant_class", labels, 10, dominant_fraction=1.0).partition)
    assert (counts.sum(axis=1) == 100).all()
    assert (counts.max(axis=1) == 80).all()
    assert len(set(counts.argmax(axis=1))) == 10
    assert np.sort(counts, axis=1)[:, :-1].max() <= 4  # 20/9 rounded up or down, or once more where a class ran out


def test_clients_without_a_dominant_class_have_the_overall_mixture() -> None:
    labels = np.repeat(np.arange(3), [600, 300, 100])
    counts = class_counts(labels, deal("dominant_class", labels, 10, dominant_fraction=0.0).partition)
    assert counts.sum() == 1000
    assert np.abs(counts - [60, 30, 10]).max() <= 1


def test_classes_dominate_in_proportion_to_their_frequency() -> None:
    labels = np.repeat(np.arange(3), [600, 300, 100])
    partition = deal("dominant_class", labels, 10, dominant_fraction=1.0).partition
    assert np.bincount(class_counts(labels, partition).argmax(axis=1)).tolist() == [6, 3, 1]


def test_too_few_rows() -> None:
    labels = np.array([0] * 500 + [1] * 3)
    with refused(DataError, key="federation.partition.min_size"):
        deal("dominant_class", labels, 2, dominant_fraction=0.5, dominant_share=0.5, min_size=200)
