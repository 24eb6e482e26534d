"""Calibrated detection through a grid: who is flagged, and what can't be told."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from fedscout.detectors import CalibratedFinding, DetectionConfig, HeterogeneityReport
from fedscout.detectors.detect import detect
from fedscout.detectors.report import Verdict, verdicts
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.federation import Federation
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from tests.detectors.federations import AddNoise, FlipLabels, RecordingGrid, federation, gaussian_clients, report_of
from tests.detectors.federations import report_of as detected
from tests.detectors.rates import most_alarms


def calibrated(report: HeterogeneityReport) -> dict[str, CalibratedFinding]:
    return {finding.name: finding for finding in report.calibrated}


def test_shifted_features_are_a_skew_and_no_outlier() -> None:
    found = calibrated(report_of(federation(gaussian_clients([150] * 5), transforms={3: (AddNoise(1.5, 0.1),)})))
    assert found["feature_skew"].flagged_clients == (3,)
    assert all(shift.shift > 0.2 for shift in found["feature_skew"].clients[3].features)
    assert not found["outliers"].detected
    assert "feature skew" in found["outliers"].sentence


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


def test_classes_too_small_to_tell_of_are_compared_as_one_where_labels_are_known_to_be_alike() -> None:
    """Of 27 rows and 3 no class is told of by itself, and 25 labels are; of ten classes of 3 rows no label is known."""
    generator = np.random.default_rng(1)
    labels = np.repeat([0, 1], [27, 3])
    rare = [(generator.normal(size=(30, 5)) + 2.0 * (client == 4), labels) for client in range(6)]
    found = calibrated(report_of(federation(rare)))["feature_skew"]
    assert found.flagged_clients == (4,)
    assert "of any class" in found.method
    assert not calibrated(report_of(federation(many_classes(6, shifted=4), num_classes=10)))["feature_skew"].measured


@pytest.mark.parametrize(("told", "compared"), [(16, ""), (20, "of the same class"), (24, "of the same class")])
def test_half_of_the_rows_told_of_class_by_class_suffice(told: int, compared: str) -> None:
    """Clients of 40 rows: so many of class 0, the others four to a class, too few to tell of."""
    generator = np.random.default_rng(2)
    labels = np.concatenate([np.zeros(told, np.int64), 1 + np.arange(40 - told) // 4])
    clients = [(generator.normal(size=(40, 3)), labels) for _ in range(4)]
    found = calibrated(report_of(federation(clients, num_classes=7)))["feature_skew"]
    assert found.measured == bool(compared)
    assert compared in found.method


def test_classes_as_one_are_not_compared_where_labels_are_skewed() -> None:
    clients = many_classes(6)
    clients[2] = (clients[2][0], np.repeat(np.arange(8), [9] + [3] * 7))
    clients[3] = (clients[3][0], np.repeat(np.arange(8), [4] * 7 + [2]))
    clients[4] = (clients[4][0], np.repeat([8, 9], [4, 26]))
    found = calibrated(report_of(federation(clients, num_classes=10)))
    assert found["label_skew"].detected
    assert not found["feature_skew"].measured


def test_clients_without_rows_are_compared_by_models_alone() -> None:
    """The grid's clients do hold rows, but are not asked about them."""
    grid = RecordingGrid(federation(gaussian_clients([60] * 8), transforms={5: (FlipLabels(),)}))
    report = detect(grid, grid.initial_vectors, LocalTraining(), DetectionConfig(), 0, holds_rows=False)
    assert all(kind == "train" for kind, _, _ in grid.sent)
    (finding,) = report.calibrated
    assert (finding.name, finding.measured) == ("outliers", True)
    assert {evidence.source for evidence in finding.clients.values()} == {"models"}


def pure_label_skew(seed: int, concentration: float, num_classes: int, rows: int, num_clients: int) -> Federation:
    """Return clients whose labels are drawn by a Dirichlet, and whose features depend on the class alone."""
    generator = np.random.default_rng(seed)
    means = 2.0 * generator.normal(size=(num_classes, 6))
    clients = []
    for _ in range(num_clients):
        labels = generator.choice(num_classes, rows, p=generator.dirichlet(np.full(num_classes, concentration)))
        clients.append((means[labels] + generator.normal(size=(rows, 6)), labels))
    return federation(clients, num_classes)


def opposite_labels(seed: int) -> Federation:
    """Return six clients of 27 rows of one class and 3 of the other, which of them in turn."""
    generator = np.random.default_rng(seed)
    labels = [(np.arange(30) >= (27 if client % 2 else 3)).astype(np.int64) for client in range(6)]
    return federation([(generator.normal(size=(30, 4)) + 2.0 * own[:, None], own) for own in labels])


def skew_verdicts(source: Federation, seed: int) -> dict[str, Verdict]:
    report = report_of(source, seed, outlier_repetitions=1, outlier_min_flags=1)
    return {found.name: found for found in verdicts(report)}


def test_opposite_labels_are_no_feature_skew() -> None:
    for seed in range(2):
        found = skew_verdicts(opposite_labels(seed), seed)
        assert found["label_skew"].detected
        assert not found["feature_skew"].measured


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("concentration", "num_classes", "rows", "num_clients"),
    [(0.3, 5, 20, 6), (3.0, 5, 20, 6), (3.0, 10, 30, 10), (1.0, 10, 12, 6), (3.0, 2, 25, 6), (10.0, 2, 12, 8)],
)
def test_pure_label_skew_is_feature_skew_at_most_at_the_rate(
    concentration: float, num_classes: int, rows: int, num_clients: int
) -> None:
    sources = [pure_label_skew(seed, concentration, num_classes, rows, num_clients) for seed in range(40)]
    alarms = sum(skew_verdicts(source, seed)["feature_skew"].detected for seed, source in enumerate(sources))
    assert alarms <= most_alarms(40, DetectionConfig().detector_rate)


def copied(seed: int, times: int, shift: float = 0.0) -> Federation:
    """Return six clients of one distribution, each of whose rows stands several times; the second may be shifted."""
    generator = np.random.default_rng(seed)
    clients = []
    for client in range(6):
        labels = generator.integers(0, 2, 200 // times)
        features = generator.normal(size=(len(labels), 6)) + labels[:, None] + shift * (client == 1)
        clients.append((np.repeat(features, times, axis=0), np.repeat(labels, times)))
    return federation(clients)


@pytest.mark.parametrize("times", [4, 10])
def test_of_copied_rows_no_difference_is_told(times: int) -> None:
    """Whether clients differ, which copies hide, or do not, where tests take copies for certainty."""
    for shift in (0.0, 1.0):
        found = skew_verdicts(copied(0, times, shift), 0)
        assert not any(verdict.detected for verdict in found.values())
    assert not found["feature_skew"].measured
    assert skew_verdicts(copied(0, 1, 1.0), 0)["feature_skew"].detected


# -- The six scenarios on real data: who is flagged, and the orderings of the published rows ---------------------------


SEEDS = (0, 1, 2)
AFFECTED = 2


@cache
def scenario_report(dataset: str, scenario: str, seed: int, folder: Path | None = None) -> HeterogeneityReport:
    config = FederationConfig(dataset=dataset, num_clients=4, scenario=scenario, seed=seed, folder=folder)
    return detected(build_federation(config, ModelConfig()), seed)


def check_orderings(dataset: str, seed: int, folder: Path | None = None) -> None:
    """The published rows, from the least to the most skewed, and who is affected."""
    iid, labels, features, poisoned, corrupted = (
        scenario_report(dataset, scenario, seed, folder)
        for scenario in ("iid", "label_skew", "feature_skew", "label_poisoning", "corrupted_client")
    )
    assert all(r.label_skew.value < labels.label_skew.value for r in (iid, features, poisoned, corrupted))
    assert labels.label_skew.detected
    assert not any(r.label_skew.detected for r in (iid, features, poisoned, corrupted))

    assert iid.feature_skew.value < corrupted.feature_skew.value < features.feature_skew.value
    assert not iid.feature_skew.detected
    assert corrupted.feature_skew.flagged_clients == (AFFECTED,)
    assert AFFECTED in features.feature_skew.flagged_clients
    assert iid.metrics.feature_wasserstein < corrupted.metrics.feature_wasserstein
    assert iid.metrics.feature_hellinger < corrupted.metrics.feature_hellinger

    assert poisoned.outliers.flagged_clients == corrupted.outliers.flagged_clients == (AFFECTED,)


@pytest.mark.parametrize("seed", SEEDS)
def test_poisoned_client_of_breast_cancer_and_no_other(seed: int) -> None:
    report = scenario_report("breast_cancer", "label_poisoning", seed)
    assert report.outliers.flagged_clients == (AFFECTED,)
    assert report.label_skew.flagged_clients == ()
    assert report.feature_skew.flagged_clients == ()
    assert not report.label_skew.detected
    assert not report.feature_skew.detected


@pytest.mark.parametrize("seed", SEEDS)
def test_orderings_on_breast_cancer(seed: int) -> None:
    check_orderings("breast_cancer", seed)


def test_poisoning_leaves_the_features_as_they_are() -> None:
    """The scenarios differ in labels alone, so the feature detector must give the very same finding."""
    iid, poisoned = (scenario_report("breast_cancer", scenario, 0) for scenario in ("iid", "label_poisoning"))
    assert poisoned.feature_skew == iid.feature_skew
    assert poisoned.metrics.feature_wasserstein == iid.metrics.feature_wasserstein


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("seed", SEEDS)
def test_orderings_on_bearings(data_folder: Path, seed: int) -> None:
    check_orderings("bearing", seed, data_folder)


@pytest.mark.data
def test_closed_forms_on_bearings(data_folder: Path) -> None:
    """Shares 0.9/0.7/0.5/0.1 of equal clients: 0.1789.

    A unit mean shift against one of -0.1 in all of d unit-variance features bounds the distance by 1.1 √d. Noise only
    raises the variance by which features are standardised; sampling adds the distance that IID clients have.
    """
    labels = scenario_report("bearing", "label_skew", 0, data_folder)
    assert labels.label_skew.value == pytest.approx(0.1789, abs=5e-4)
    iid, features = (scenario_report("bearing", scenario, 0, data_folder) for scenario in ("iid", "feature_skew"))
    assert features.num_features == 244
    assert features.feature_skew.value < 1.1 * np.sqrt(244) + iid.feature_skew.value
