"""Centroids and the density of one feature, which a report holds beside the findings they are part of."""

from __future__ import annotations

import numpy as np
import pytest

from fedscout.detectors import HeterogeneityReport
from tests.detectors.federations import AddNoise, federation, gaussian_clients, report_of

SIZES = [60, 80, 100]


@pytest.fixture(scope="module")
def shifted() -> HeterogeneityReport:
    return report_of(federation(gaussian_clients(SIZES), transforms={1: (AddNoise(1.5, 0.1),)}))


def test_centroids_have_everyones_mean_at_the_origin_and_the_finding_as_their_largest_distance(
    shifted: HeterogeneityReport,
) -> None:
    places = np.array([shifted.centroids[client] for client in range(3)])
    assert np.array(SIZES) @ places == pytest.approx([0.0, 0.0], abs=1e-6 * sum(SIZES))
    distances = np.linalg.norm(places[:, None] - places[None], axis=-1)
    assert distances.max() == pytest.approx(shifted.feature_skew.value)


def test_the_density_is_of_the_feature_of_largest_variance_and_of_groups_that_may_be_told() -> None:
    clients = [
        (features * np.array([1, 3] + [1] * (features.shape[1] - 2)), labels)
        for features, labels in gaussian_clients(SIZES)
    ]
    built = federation(clients)
    density = report_of(built).density
    assert density.feature == 1
    assert [sum(density.counts[client]) for client in range(3)] == SIZES
    told = {count for counts in density.counts.values() for count in counts} - {0}
    assert min(told) >= built.release.min_release


def test_reports_of_earlier_versions_have_neither(shifted: HeterogeneityReport) -> None:
    document = shifted.model_dump(mode="json")
    del document["centroids"], document["density"]
    read = HeterogeneityReport.model_validate(document)
    assert (read.centroids, read.density) == ({}, None)
    assert {"centroids", "density"}.isdisjoint(read.model_dump())
