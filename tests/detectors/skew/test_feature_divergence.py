"""The rejected measure of feature skew: closed forms, bounds, and what columns that say nothing do to it."""

from __future__ import annotations

import numpy as np
import pytest

from fedscout.detectors.feature_skew import Bins, feature_divergence
from fedscout.detectors.statistics import js_divergence
from tests.detectors.federations import AddNoise, federation, gaussian_clients, report_of


def bins_of(num_features: int, bins: int = 4) -> Bins:
    return Bins.around(np.zeros(num_features), np.ones(num_features), bins, reach=4.0)


def test_of_one_feature_it_is_the_largest_divergence_from_all_rows() -> None:
    counts = [np.array([[8, 2, 0, 0]]), np.array([[1, 1, 1, 1]]), np.array([[0, 0, 0, 3]])]
    everyone = np.array([9, 3, 1, 4]) / 17
    expected = max(float(js_divergence(own[0] / own.sum(), everyone)) for own in counts)
    assert feature_divergence(counts, bins_of(1)) == pytest.approx(expected, rel=1e-14)


def test_two_disjoint_clients_of_one_size_are_as_far_from_both_as_can_be() -> None:
    """JS of (1, 0) and (½, ½): half of log2(4/3) and half of ½ log2(2/3) + ½ log2(2), by hand 0.3113 bits."""
    counts = [np.array([[6, 0, 0, 0]]), np.array([[0, 6, 0, 0]])]
    expected = np.log2(4 / 3) / 2 + (np.log2(2 / 3) + 1) / 4
    assert feature_divergence(counts, bins_of(1)) == pytest.approx(expected, rel=1e-14)
    assert expected == pytest.approx(0.3113, abs=5e-5)


def test_like_clients_of_any_sizes_have_none() -> None:
    counts = [size * np.array([[3, 1, 0, 2], [1, 1, 1, 3]]) for size in (1, 4, 10)]
    assert feature_divergence(counts, bins_of(2)) == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("noise", [1, 9])
def test_features_in_which_nobody_differs_dilute_it_in_proportion(noise: int) -> None:
    different = [np.array([[8, 2, 0, 0]]), np.array([[1, 1, 4, 4]])]
    padded = [np.concatenate([own, np.tile([5, 3, 1, 1], (noise, 1))]) for own in different]
    alone = feature_divergence(different, bins_of(1))
    assert feature_divergence(padded, bins_of(1 + noise)) == pytest.approx(alone / (1 + noise), rel=1e-14)


def test_constant_features_do_not_count() -> None:
    counts = [np.array([[8, 2, 0, 0], [10, 0, 0, 0]]), np.array([[1, 1, 4, 4], [10, 0, 0, 0]])]
    bins = Bins.around(np.zeros(2), np.array([1.0, 0.0]), 4, reach=4.0)
    assert feature_divergence(counts, bins) == feature_divergence([own[:1] for own in counts], bins_of(1))
    assert feature_divergence(counts, Bins.around(np.zeros(2), np.zeros(2), 4, reach=4.0)) is None
    assert feature_divergence(counts[:1], bins) is None


def test_detection_reports_it_beside_the_finding() -> None:
    clean = report_of(federation(gaussian_clients([150] * 5))).metrics.feature_divergence
    noisy = report_of(federation(gaussian_clients([150] * 5), transforms={3: (AddNoise(3.0, 0.5),)}))
    assert clean is not None
    assert noisy.metrics.feature_divergence is not None
    assert 0 < clean < noisy.metrics.feature_divergence <= 1
