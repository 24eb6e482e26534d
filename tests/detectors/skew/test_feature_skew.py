"""Feature skew by the published rule: pooled PCA, closed forms, and the distances of histograms on shared bins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.linalg import eigsh

from fedscout.detectors.feature_skew import (
    DIRECT_SOLVER_FEATURES,
    MAX_BINS,
    Bins,
    MomentSums,
    PooledMoments,
    decide_feature_skew,
    feature_centroid,
    feature_distances,
    feature_histogram,
    feature_moments,
    principal_axes,
)
from fedscout.detectors.report import Finding
from fedscout.detectors.statistics import NotFiniteError
from fedscout.engine.data.client import CHUNK_ROWS, WithheldError
from tests.detectors.federations import inputs, samples


def pool(clients: Sequence[np.ndarray]) -> PooledMoments:
    sums = MomentSums()
    for client, x in enumerate(clients):
        answer = feature_moments(inputs(samples(x), config={"max_features": 4096}))
        sums.add(client, len(x), answer["sum"].values, answer["scatter"].values)
    pooled = sums.pooled()
    assert pooled is not None
    return pooled


def find(clients: Sequence[np.ndarray], scale: str = "standardised", threshold: float = 0.25) -> Finding:
    pooled = pool(clients)
    axes, total_variance = principal_axes(pooled, scale)
    arrays = {"mean": pooled.mean, "axes": axes}
    centroids = {
        k: feature_centroid(inputs(samples(x), arrays=arrays))["centroid"].values for k, x in enumerate(clients)
    }
    return decide_feature_skew(centroids, total_variance, threshold, scale)


def uneven_clients(num_features: int = 7) -> list[np.ndarray]:
    """Correlated features of different scales and means, as float32; the last client spans several chunks."""
    generator = np.random.default_rng(1)
    mixing = generator.normal(size=(num_features, num_features)) * np.logspace(-2, 2, num_features)
    shape = (1, num_features)
    return [
        (generator.normal(size=(size, num_features)) @ mixing + generator.normal(size=shape)).astype(np.float32)
        for size in (5, 60, 1, CHUNK_ROWS + 17)
    ]


def test_pooled_moments_are_those_of_the_pooled_rows() -> None:
    clients = uneven_clients()
    rows = np.concatenate(clients).astype(np.float64)
    pooled = pool(clients)
    assert pooled.num_rows == len(rows)
    np.testing.assert_allclose(pooled.mean, rows.mean(axis=0), rtol=1e-12)
    expected = np.cov(rows, rowvar=False)
    deviations = np.sqrt(np.diag(expected))
    np.testing.assert_allclose(pooled.covariance, expected, atol=1e-12 * np.outer(deviations, deviations).max())
    np.testing.assert_allclose(np.diag(pooled.covariance), np.diag(expected), rtol=1e-12)


def test_large_means_do_not_cancel() -> None:
    """With mean 10⁶ and deviation 1 the literal ΣXᵀX − Nμμᵀ loses twelve digits of its sixteen; this must not."""
    generator = np.random.default_rng(2)
    clients = [(1e6 + generator.normal(size=(50, 3)) * 1.0).astype(np.float32) for _ in range(3)]
    rows = np.concatenate(clients).astype(np.float64)
    literal = (rows.T @ rows - len(rows) * np.outer(rows.mean(0), rows.mean(0))) / (len(rows) - 1)
    expected = np.cov(rows, rowvar=False)
    covariance = pool(clients).covariance
    np.testing.assert_allclose(covariance, expected, atol=1e-12)
    assert np.abs(literal - expected).max() > 1e-6


@pytest.mark.parametrize("scale", ["standardised", "raw"])
def test_centroids_are_those_of_pooled_pca(scale: str) -> None:
    clients = uneven_clients()
    rows = np.concatenate(clients).astype(np.float64)
    deviations = rows.std(axis=0, ddof=1) if scale == "standardised" else np.ones(rows.shape[1])
    scaled = (rows - rows.mean(axis=0)) / deviations
    axes = np.linalg.svd(scaled, full_matrices=False)[2][:2].T
    bounds = np.cumsum([len(x) for x in clients])[:-1]
    centroids = [part.mean(axis=0) for part in np.split(scaled @ axes, bounds)]
    largest = max(float(np.linalg.norm(a - b)) for a in centroids for b in centroids)
    assert find(clients, scale).value == pytest.approx(largest, rel=1e-9)


@pytest.mark.parametrize(
    ("num_features", "is_iterative"),
    [(300, False), (DIRECT_SOLVER_FEATURES, False), (DIRECT_SOLVER_FEATURES + 1, True)],
)
def test_either_solver_finds_the_leading_axes(
    num_features: int, is_iterative: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three well separated eigenvalues leave no choice, to the direct solver nor, for many features, the iterative."""
    solved = []
    monkeypatch.setattr("scipy.sparse.linalg.eigsh", lambda *a, **k: solved.append(1) or eigsh(*a, **k))
    generator = np.random.default_rng(3)
    basis = np.linalg.qr(generator.normal(size=(num_features, 3)))[0]
    covariance = basis @ np.diag([50.0, 20.0, 5.0]) @ basis.T + np.eye(num_features)
    axes = principal_axes(PooledMoments(1000, np.zeros(num_features), covariance), "raw")[0]
    np.testing.assert_allclose(np.abs(axes.T @ basis), np.eye(2, 3), atol=1e-10)
    assert bool(solved) == is_iterative
    again = principal_axes(PooledMoments(1000, np.zeros(num_features), covariance), "raw")[0]
    assert again.tobytes() == axes.tobytes()


def test_axes_have_a_fixed_sign_and_do_not_depend_on_the_order_of_clients() -> None:
    clients = uneven_clients()
    axes = principal_axes(pool(clients), "raw")[0]
    assert np.all(axes[np.abs(axes).argmax(axis=0), [0, 1]] > 0)
    np.testing.assert_allclose(principal_axes(pool(clients[::-1]), "raw")[0], axes, atol=1e-9)


def test_two_points_in_closed_form() -> None:
    """Two equal clients without spread, apart in every feature: σ = δ/2 · √(N/(N−1)), so δ/σ · √d remains."""
    num_rows, num_features = 20, 9
    clients = [np.zeros((num_rows // 2, num_features)), np.ones((num_rows // 2, num_features)) * 3]
    finding = find(clients)
    expected = 2 * np.sqrt(num_features) * np.sqrt((num_rows - 1) / num_rows)
    assert finding.value == pytest.approx(expected)
    assert finding.threshold == pytest.approx(0.25 * np.sqrt(num_features))
    assert finding.flagged_clients == (0, 1)


def test_constant_features_and_a_single_feature() -> None:
    constant = [np.full((6, 3), 0.1), np.full((7, 3), 0.1)]
    assert find(constant).value == 0
    assert not find(constant).detected
    unround = [np.full((CHUNK_ROWS + 1, 3), 1e5 / 3), np.full((37, 3), 1e5 / 3)]
    assert find(unround).value == find(unround).threshold == 0
    one_varies = [np.column_stack([np.full(10, 0.1), np.arange(10)]) for _ in range(2)]
    assert find(one_varies).threshold == pytest.approx(0.25)
    single = [np.arange(10).reshape(10, 1), np.arange(10).reshape(10, 1) + 100]
    deviation = np.concatenate(single).std(ddof=1)
    assert find(single).value == pytest.approx(100 / deviation)


@pytest.mark.slow
@settings(derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=2, max_size=12))
def test_someone_is_flagged_exactly_if_there_is_skew(points: list[tuple[float, float]]) -> None:
    finding = decide_feature_skew({k: np.array(p) for k, p in enumerate(points)}, 4.0, 0.5, "raw")
    largest = max(np.hypot(a - c, b - d) for a, b in points for c, d in points)
    assert finding.value == pytest.approx(largest)
    assert finding.detected == (finding.value > 1.0)
    assert bool(finding.flagged_clients) == finding.detected


def test_two_groups_have_their_median_between_them() -> None:
    """Nobody is farther than the threshold of 1 from the median at 0, but the farthest are told."""
    groups = {0: (-0.7, 0), 1: (-0.7, 0), 2: (0.7, 0), 3: (0.7, 0)}
    finding = decide_feature_skew({k: np.array(p) for k, p in groups.items()}, 4.0, 0.5, "raw")
    assert finding.value == pytest.approx(1.4)
    assert finding.client_values == pytest.approx(dict.fromkeys(range(4), 0.7))
    assert finding.flagged_clients == (0, 1, 2, 3)


def test_too_many_features_send_no_triangle() -> None:
    answer = feature_moments(inputs(samples(np.ones((6, 5))), config={"max_features": 4}))
    assert set(answer) == {"sum"}


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_features_must_be_finite(value: float) -> None:
    features = np.zeros((6, 2))
    features[3, 1] = value
    with pytest.raises(NotFiniteError, match="features") as caught:
        feature_moments(inputs(samples(features), config={"max_features": 4}))
    assert not any(character.isdigit() for character in str(caught.value))  # it leaves the client


def test_no_client_no_moments_and_one_client_no_comparison() -> None:
    assert MomentSums().pooled() is None
    finding = decide_feature_skew({0: np.zeros(2)}, 4.0, 0.25, "raw")
    assert (finding.measured, finding.detected) == (False, False)


# -- Histograms on shared bins: counting, and the distances computed from them -----------------------------------------


def count(features: np.ndarray, bins: Bins, min_release: int = 1) -> np.ndarray:
    arrays = {"start": bins.start, "width": bins.width}
    asked = inputs(samples(features), arrays=arrays, config={"bins": bins.bins}, min_release=min_release)
    return feature_histogram(asked)["counts"].values


def test_counts_equal_numpys() -> None:
    features = np.random.default_rng(0).normal(size=(5000, 3)).astype(np.float32)
    bins = Bins.around(np.zeros(3), np.ones(3), bins=16, reach=8.0)
    edges = np.linspace(-8, 8, 17)
    expected = [np.histogram(features[:, f].astype(np.float64), edges)[0] for f in range(3)]
    np.testing.assert_array_equal(count(features, bins), expected)


@pytest.mark.parametrize(("rows", "sizes"), [(5, [5]), (9, [9]), (23, [5, 6, 6, 6])])
def test_values_count_as_the_means_of_groups(rows: int, sizes: list[int]) -> None:
    """Ordered values in groups as even as they can be: the count below any edge is of whole groups."""
    values = np.random.default_rng(rows).normal(size=(rows, 2)).astype(np.float32)
    for feature in range(2):
        groups = np.split(np.sort(values[:, feature].astype(np.float64)), np.cumsum(sizes)[:-1])
        for edge in np.linspace(-3, 3, 101):
            bins = Bins(np.full(2, edge - 10), np.full(2, 10.0), bins=2, reach=1.0)
            below = count(values, bins, min_release=5)[feature, 0]
            assert below == sum(len(group) for group in groups if group.mean() < edge)


def test_means_of_groups_are_float64() -> None:
    """(1 − 2²⁵) / 5; in float32 1 − 2²⁵ is −2²⁵."""
    values = np.array([[0], [1], [-(2.0**25)], [0], [0]], np.float32)
    for edge, below in (((0.5 - 2**25) / 5, 0), ((1.5 - 2**25) / 5, 5)):
        bins = Bins(np.array([edge - 1e9]), np.array([1e9]), bins=2, reach=1.0)
        assert count(values, bins, min_release=5)[0, 0] == below


@pytest.mark.parametrize("bins", [0, MAX_BINS + 1])
def test_too_many_bins_or_none_are_refused(bins: int) -> None:
    with pytest.raises(WithheldError, match="bins"):
        count(np.zeros((5, 1)), Bins(np.zeros(1), np.ones(1), bins, reach=1.0))
    for allowed in (1, MAX_BINS):
        assert count(np.zeros((5, 1)), Bins(np.zeros(1), np.ones(1), allowed, reach=1.0))[0, 0] == 5


def test_values_beyond_the_bins_count_in_the_outermost() -> None:
    bins = Bins.around(np.zeros(1), np.ones(1), bins=4, reach=2.0)
    counts = count(np.array([[-100], [-2], [-0.5], [0], [2], [1e30]]), bins)
    assert counts.tolist() == [[2, 1, 1, 2]]


def test_constant_features_are_left_out() -> None:
    bins = Bins.around(np.array([5.0, 0.0]), np.array([0.0, 1.0]), bins=4, reach=2.0)
    first = count(np.array([[5, 0.5], [5, 0.5]]), bins)
    second = count(np.array([[5, -0.5], [5, -0.5]]), bins)
    assert first[0].tolist() == [2, 0, 0, 0]
    distances = feature_distances([first, second], bins)
    assert distances == pytest.approx({"feature_wasserstein": 1, "feature_hellinger": 1})


def test_a_shift_of_whole_bins_is_measured_exactly_and_averaged() -> None:
    """One of two features shifts by two bins of a quarter deviation each: W1 = 0.5, mean over features 0.25."""
    generator = np.random.default_rng(1)
    middles = (np.floor(generator.uniform(-8, 8, size=(300, 2))) + 0.5) * 0.25
    bins = Bins.around(np.zeros(2), np.ones(2), bins=32, reach=4.0)
    distances = feature_distances([count(middles, bins), count(middles + np.array([0.5, 0]), bins)], bins)
    assert distances["feature_wasserstein"] == pytest.approx(0.25)


@pytest.mark.parametrize("min_release", [1, 5])
def test_error_is_at_most_one_bin_width(min_release: int) -> None:
    from scipy.stats import wasserstein_distance

    generator = np.random.default_rng(2)
    bins = Bins.around(np.zeros(1), np.ones(1), bins=32, reach=4.0)
    for shift in (0.0, 0.07, 0.3, 1.1):
        first, second = (np.clip(generator.normal(m, 0.8, size=(400, 1)), -4, 4) for m in (0, shift))
        distances = feature_distances([count(own, bins, min_release) for own in (first, second)], bins)
        expected = wasserstein_distance(first[:, 0], second[:, 0])
        assert distances["feature_wasserstein"] == pytest.approx(expected, abs=0.25)


def test_nothing_to_compare() -> None:
    bins = Bins.around(np.zeros(1), np.ones(1), bins=4, reach=2.0)
    constant = Bins.around(np.zeros(1), np.zeros(1), bins=4, reach=2.0)
    counts = count(np.zeros((5, 1)), bins)
    assert feature_distances([counts], bins) == feature_distances([counts, counts], constant) == {}
