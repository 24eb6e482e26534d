"""Calibrated detection through a grid: who is flagged, what it falls back to, and that old reports are read."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedscout.detectors import CalibratedFinding, DetectionConfig, HeterogeneityReport
from fedscout.detectors.detection.detect import detect
from fedscout.engine.contracts.local_training_config import LocalTraining
from tests.detectors.detection.test_detect import report_of
from tests.detectors.federations import (
    AddNoise,
    FlipLabels,
    RecordingGrid,
    SpreadGrid,
    federation,
    gaussian_clients,
)


def calibrated(report: HeterogeneityReport) -> dict[str, CalibratedFinding]:
    return {finding.name: finding for finding in report.calibrated}


def test_like_clients_are_called_nothing() -> None:
    found = calibrated(report_of(federation(gaussian_clients([150] * 5))))
    assert list(found) == ["label_skew", "feature_skew", "outliers"]
    assert all(finding.measured and not finding.detected for finding in found.values())
    assert sum(finding.rate for finding in found.values()) == pytest.approx(0.05)


def test_flipped_labels_are_an_outlier_and_no_skew() -> None:
    """As many rows of each class before as after, so counts and features as a whole are as they were."""
    found = calibrated(report_of(federation(gaussian_clients([150] * 4), transforms={2: (FlipLabels(),)})))
    assert found["outliers"].flagged_clients == (2,)
    assert found["outliers"].clients[2].source == "labels"
    assert not found["label_skew"].detected
    assert not found["feature_skew"].detected


def test_shifted_features_are_a_skew_and_no_outlier() -> None:
    found = calibrated(report_of(federation(gaussian_clients([150] * 5), transforms={3: (AddNoise(1.5, 0.1),)})))
    assert found["feature_skew"].flagged_clients == (3,)
    assert all(shift.shift > 0.2 for shift in found["feature_skew"].clients[3].features)
    assert not found["outliers"].detected
    assert "Distances of models did not decide, as there is feature skew" in found["outliers"].sentence


def test_skewed_labels_are_no_feature_skew() -> None:
    """The published rule finds feature skew, since the classes' means differ; the calibrated one compares classes."""
    generator = np.random.default_rng(0)
    clients = []
    for share in (0.9, 0.7, 0.5, 0.1):
        labels = (np.arange(300) >= 300 * share).astype(np.int64)
        clients.append((generator.normal(size=(300, 4)) + 3 * labels[:, None], labels))
    report = report_of(federation(clients))
    found = calibrated(report)
    assert report.feature_skew.detected
    assert not found["feature_skew"].detected
    assert {0, 3} <= set(found["label_skew"].flagged_clients)
    assert not found["outliers"].detected


def many_classes(num_clients: int, shifted: int | None = None) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return clients of 30 rows of ten classes: three of each, too few to tell of."""
    generator = np.random.default_rng(1)
    labels = np.repeat(np.arange(10), 3)
    clients = [(generator.normal(size=(30, 5)), labels) for _ in range(num_clients)]
    return [(features + 2.0 * (client == shifted), own) for client, (features, own) in enumerate(clients)]


def test_classes_too_small_to_tell_of_are_compared_as_one() -> None:
    found = calibrated(report_of(federation(many_classes(6, shifted=4), num_classes=10)))
    assert found["feature_skew"].flagged_clients == (4,)
    assert "of any class" in found["feature_skew"].sentence


@pytest.mark.parametrize(
    ("told", "compared"), [(16, "of any class"), (20, "of the same class"), (24, "of the same class")]
)
def test_half_of_the_rows_told_of_class_by_class_suffice(told: int, compared: str) -> None:
    """Clients of 40 rows: so many of class 0, the others four to a class, too few to tell of."""
    generator = np.random.default_rng(2)
    labels = np.concatenate([np.zeros(told, np.int64), 1 + np.arange(40 - told) // 4])
    clients = [(generator.normal(size=(40, 3)), labels) for _ in range(4)]
    found = calibrated(report_of(federation(clients, num_classes=7)))["feature_skew"]
    assert found.measured
    assert found.method == f"sum of squared shifts, rows {compared} compared"


def test_classes_as_one_are_not_compared_where_labels_are_skewed() -> None:
    clients = many_classes(6)
    clients[2] = (clients[2][0], np.repeat([0, 1, 2, 3, 4, 5, 6, 7], [9, 3, 3, 3, 3, 3, 3, 3]))
    clients[3] = (
        clients[3][0],
        np.array([0] * 4 + [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4 + [5] * 4 + [6] * 4 + [7] * 2),
    )
    clients[4] = (clients[4][0], np.array([8] * 4 + [9] * 26))
    found = calibrated(report_of(federation(clients, num_classes=10)))
    assert found["label_skew"].detected
    assert not found["feature_skew"].measured
    assert "labels are skewed" in found["feature_skew"].sentence


@pytest.mark.slow
def test_the_same_findings_on_any_number_of_hosts() -> None:
    source = federation(gaussian_clients([40, 41, 40, 45, 50]), transforms={2: (FlipLabels(),)})
    expected = report_of(source, seed=4).calibrated
    for num_hosts in (2, 3):
        assert report_of(SpreadGrid(source, num_hosts), seed=4).calibrated == expected


def test_clients_without_rows_are_compared_by_models_alone() -> None:
    """The grid's clients do hold rows, but are not asked about them."""
    grid = RecordingGrid(federation(gaussian_clients([60] * 8), transforms={5: (FlipLabels(),)}))
    report = detect(grid, grid.initial_vectors, LocalTraining(), DetectionConfig(), 0, holds_rows=False)
    assert all(kind == "train" for kind, _, _ in grid.sent)
    (finding,) = report.calibrated
    assert (finding.name, finding.measured) == ("outliers", True)
    assert {evidence.source for evidence in finding.clients.values()} == {"models"}


def test_reports_of_earlier_versions_are_read() -> None:
    document = json.loads(report_of(federation(gaussian_clients([20] * 4))).model_dump_json())
    assert document.pop("calibrated")
    for key in ("false_alarm_rate", "label_effect", "feature_effect", "disagreement_effect", "distance_effect"):
        del document["settings"][key]
    report = HeterogeneityReport.model_validate(document)
    assert report.calibrated == ()
    assert report.calibrated_finding("outliers") is None


def test_the_rate_and_the_effects_are_settings() -> None:
    source = federation(gaussian_clients([150] * 4), transforms={2: (FlipLabels(),)})
    found = calibrated(report_of(source, false_alarm_rate=0.3))
    assert found["outliers"].rate == pytest.approx(0.1)
    assert found["outliers"].clients[2].source == "labels"
    shifted = federation(gaussian_clients([150] * 5), transforms={3: (AddNoise(1.5, 0.1),)})
    assert calibrated(report_of(shifted, feature_effect=1.0))["feature_skew"].detected
    assert not calibrated(report_of(shifted, feature_effect=2.0))["feature_skew"].detected
