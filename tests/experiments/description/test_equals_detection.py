"""A description and a detection of the same clients that tell all report the same figures under the same names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from fedscout.detectors import CLIENT_QUERIES, DetectionConfig, HeterogeneityReport
from fedscout.detectors.detect import detect
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.federation import Federation
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.experiments.description import Description, describe_federation
from tests.detectors.federations import AddNoise, FlipLabels, federation, gaussian_clients

ROUNDING = 1e-12
"""Figures are sums of the same numbers, not always in the same order."""

SHARED = (
    "quantity_ratio",
    "quantity_variation",
    "quantity_gini",
    "label_hellinger",
    "label_wasserstein",
    "feature_hellinger",
    "feature_wasserstein",
)


def report_of(source: Federation, settings: DetectionConfig, seed: int) -> HeterogeneityReport:
    grid = LocalGrid(source, CLIENT_QUERIES)
    return detect(grid, grid.initial_vectors, LocalTraining(), settings, seed)


def skewed(sizes: list[int], **others: Any) -> Federation:
    """Return clients whose sizes, labels and features differ."""
    clients = gaussian_clients(sizes)
    shifted = [
        (rows + 0.3 * number, np.minimum(labels + (np.arange(len(labels)) < 3 * number), 2))
        for number, (rows, labels) in enumerate(clients)
    ]
    return federation(shifted, num_classes=3, min_release=1, **others)


CASES: Mapping[str, tuple[Federation, dict[str, Any]]] = {
    "few clients": (skewed([30, 45, 60, 20]), {}),
    "many clients": (skewed([20 + client for client in range(24)]), {}),
    "small and corrupted ones": (
        skewed([30, 3, 60, 20, 0, 41], transforms={2: (FlipLabels(),), 5: (AddNoise(2.0, 0.5), FlipLabels())}),
        {},
    ),
    "drawn pairs": (skewed([20 + client for client in range(12)]), {"max_pairwise_clients": 5}),
    "other bins": (skewed([30, 45, 60, 20]), {"histogram_bins": 7, "histogram_reach": 1.5}),
    "two clients": (skewed([50, 40]), {}),
    "one client": (skewed([50]), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_figures_of_detection_and_description_are_equal(case: str) -> None:
    source, given = CASES[case]
    settings = DetectionConfig(outlier_repetitions=1, outlier_min_flags=1, outlier_rounds=1, **given)
    report, description = report_of(source, settings, seed=3), describe_federation(source, settings, seed=3)
    for name in SHARED:
        expected = getattr(report.metrics, name)
        assert getattr(description.realised, name) == (expected and pytest.approx(expected, rel=ROUNDING)), name
    assert description.realised.label_skew == report.label_skew.value
    _assert_same_clients(description, report)


def _assert_same_clients(description: Description, report: HeterogeneityReport) -> None:
    measured = [client for client in description.clients if client.heterogeneity_index is not None]
    assert [client.client for client in measured] == [facts.client for facts in report.clients]
    for client, facts in zip(measured, report.clients, strict=True):
        assert (client.num_rows, client.label_counts) == (facts.num_rows, facts.label_counts)
        assert client.heterogeneity_index == facts.heterogeneity_index
        assert client.label_divergence == report.label_skew.client_values.get(client.client)
    assert len(description.clients) - len(measured) == len(report.withheld)


def test_beyond_detections_features_some_are_drawn_and_detection_has_no_figure() -> None:
    settings = DetectionConfig(outlier_repetitions=1, outlier_min_flags=1, outlier_rounds=1, max_features=4)
    source = skewed([30, 40])
    assert report_of(source, settings, seed=0).metrics.feature_hellinger is None
    found = describe_federation(source, settings, seed=0).realised
    assert (found.num_features, found.num_features_compared) == (6, 4)
    assert found.feature_hellinger is not None
    assert "4 of 6 " in found.notes[0]
