"""Histograms on shared bins: counting, and the distances computed from them."""

from __future__ import annotations

import numpy as np
import pytest

from fedscout.detectors.feature_skew import MAX_BINS, Bins, feature_distances, feature_histogram
from fedscout.engine.data.client import WithheldError
from tests.detectors.federations import inputs, samples


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
    assert distances.wasserstein == pytest.approx(1)
    assert distances.hellinger == pytest.approx(1)


def test_a_shift_of_whole_bins_is_measured_exactly_and_averaged() -> None:
    """One of two features shifts by two bins of a quarter deviation each: W1 = 0.5, mean over features 0.25."""
    generator = np.random.default_rng(1)
    middles = (np.floor(generator.uniform(-8, 8, size=(300, 2))) + 0.5) * 0.25
    bins = Bins.around(np.zeros(2), np.ones(2), bins=32, reach=4.0)
    distances = feature_distances([count(middles, bins), count(middles + np.array([0.5, 0]), bins)], bins)
    assert distances.wasserstein == pytest.approx(0.25)


@pytest.mark.parametrize("min_release", [1, 5])
def test_error_is_at_most_one_bin_width(min_release: int) -> None:
    from scipy.stats import wasserstein_distance

    generator = np.random.default_rng(2)
    bins = Bins.around(np.zeros(1), np.ones(1), bins=32, reach=4.0)
    for shift in (0.0, 0.07, 0.3, 1.1):
        first, second = (np.clip(generator.normal(m, 0.8, size=(400, 1)), -4, 4) for m in (0, shift))
        distances = feature_distances([count(own, bins, min_release) for own in (first, second)], bins)
        assert distances.wasserstein == pytest.approx(wasserstein_distance(first[:, 0], second[:, 0]), abs=0.25)


def test_nothing_to_compare() -> None:
    bins = Bins.around(np.zeros(1), np.ones(1), bins=4, reach=2.0)
    constant = Bins.around(np.zeros(1), np.zeros(1), bins=4, reach=2.0)
    counts = count(np.zeros((5, 1)), bins)
    assert feature_distances([counts], bins) is None
    assert feature_distances([counts, counts], constant) is None
