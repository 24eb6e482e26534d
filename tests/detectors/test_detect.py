"""Detection end to end through a grid: facts, refusals, determinism and the closed case of each detector."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from fedscout.detectors import CalibratedFinding, DetectionConfig, HeterogeneityReport
from fedscout.detectors.detect import detect
from fedscout.detectors.report import Verdict, verdicts
from fedscout.detectors.statistics import paired_clients
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import DataError
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from fedscout.experiments.scenarios.effects import FeatureNoise
from fedscout.experiments.scenarios.labels import ShiftLabels
from tests.detectors.federations import RecordingGrid, SpreadGrid, federation, gaussian_clients, most_alarms, report_of
from tests.kits.refusals import refused


def test_facts_of_the_federation() -> None:
    report = report_of(federation(gaussian_clients([20, 3, 40, 60]), num_classes=3))
    assert (report.num_clients, report.num_classes, report.num_features) == (4, 3, 6)
    assert [(c.client, c.num_rows, c.label_counts) for c in report.clients] == [
        (0, 20, (10, 10, 0)),
        (2, 40, (20, 20, 0)),
        (3, 60, (30, 30, 0)),
    ]
    assert report.clients[0].heterogeneity_index == pytest.approx(1 - 1 / 2)
    assert report.metrics.quantity_ratio == 3
    assert report.metrics.quantity_gini == pytest.approx(160 / (2 * 9 * 40))
    assert {client: "federation.min_release" in reason for client, reason in report.withheld.items()} == {1: True}


def test_a_client_that_withholds_its_counts_is_asked_for_nothing_else() -> None:
    """And one that joins later, client 4, for nothing at all."""
    grid = RecordingGrid(replace(federation(gaussian_clients([20, 3, 40, 60, 9])), unseen=frozenset([4])))
    report = report_of(grid)
    assert (report.num_clients, [facts.client for facts in report.clients]) == (4, [0, 2, 3])
    (first, everyone, _), *others = grid.sent
    assert (first, everyone) == ("query", (0, 1, 2, 3))
    num_parts = 4  # of 20 rows, 5 each
    rounds = (5 + num_parts) * 2
    assert len(others) == 3 + rounds + 5 + 1  # sums, curvature, outlier rounds, centroids to agreement, outputs
    assert {clients for _, clients, _ in others} == {(0, 2, 3)}


def test_iid_clients_have_neither_label_nor_feature_skew() -> None:
    report = report_of(federation(gaussian_clients([300] * 4)))
    assert not report.label_skew.detected
    assert not report.feature_skew.detected
    assert [finding.name for finding in report.calibrated] == ["label_skew", "feature_skew", "outliers"]
    assert all(finding.measured and not finding.detected for finding in report.calibrated)
    assert sum(finding.rate for finding in report.calibrated) == pytest.approx(0.05)
    assert report.metrics.feature_wasserstein < 0.25


def test_a_poisoned_client_is_the_only_flag_of_any_detector() -> None:
    """Tests find as many rows of each class before as after, so counts and features as a whole are as they were."""
    report = report_of(federation(gaussian_clients([150] * 4), transforms={2: (ShiftLabels(),)}))
    assert [finding.flagged_clients for finding in report.findings] == [(), (), (2,)]
    assert max(report.metrics.model_distances, key=report.metrics.model_distances.__getitem__) == 2
    labels, features, outliers = report.calibrated
    assert (outliers.flagged_clients, outliers.clients[2].source) == ((2,), "labels")
    assert (labels.detected, features.detected) == (False, False)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_report_on_any_number_of_hosts() -> None:
    source = federation(gaussian_clients([20, 31, 40, 55, 60]), transforms={2: (ShiftLabels(),)})
    report = report_of(source, seed=4).without_timings()
    assert report_of(source, seed=4).without_timings() == report
    for num_hosts in (2, 3):
        assert report_of(SpreadGrid(source, num_hosts), seed=4).without_timings() == report
    assert report_of(source, seed=5).metrics.model_distances != report.metrics.model_distances


def test_pairs_are_of_all_clients_or_of_as_many_as_the_limit_says() -> None:
    clients = (2, 3, 5, 7, 11, 13, 17, 19, 23)
    assert paired_clients(clients, 9, seed=0) == paired_clients(clients, 40, seed=0) == clients
    drawn = [paired_clients(clients, 8, seed) for seed in range(20)]
    for own in drawn:
        assert len(set(own)) == 8
        assert set(own) < set(clients)
        assert list(own) == sorted(own)
    assert len(set(drawn)) > 1
    assert drawn == [paired_clients(clients, 8, seed) for seed in range(20)]


def test_label_distances_are_over_the_clients_that_were_drawn() -> None:
    """Two of nine: the Hellinger and Wasserstein distances of that one pair."""
    generator = np.random.default_rng(0)
    tables = generator.integers(5, 40, size=(9, 4))
    clients = [(generator.normal(size=(own.sum(), 3)), np.repeat(np.arange(4), own)) for own in tables]
    report = report_of(federation(clients, num_classes=4), seed=1, max_pairwise_clients=2)
    first, second = (tables[client] / tables[client].sum() for client in paired_clients(range(9), 2, 1))
    assert report.metrics.label_hellinger == pytest.approx(np.sqrt(1 - np.sqrt(first * second).sum()))
    assert report.metrics.label_wasserstein == pytest.approx(np.abs(np.cumsum(first - second)).sum())


def test_whose_features_are_strange_is_compared_with_sums_that_leave_it_out() -> None:
    grid = RecordingGrid(federation(gaussian_clients([150] * 5), transforms={3: (FeatureNoise(3.0, 0.5),)}))
    report_of(grid)
    asked = [
        (clients, config["shifted"])
        for kind, clients, config in grid.sent
        if kind == "query" and config["function"] == "label_agreement"
    ]
    assert asked == [((0, 1, 2, 4), False), ((3,), True)]


# -- What a detection costs, in exchanges: one is a round trip to every host, whatever it holds ------------------------


def detection(num_clients: int, **settings: int) -> tuple[HeterogeneityReport, RecordingGrid]:
    grid = RecordingGrid(federation(gaussian_clients([12] * num_clients)))
    return report_of(grid, **settings), grid


@pytest.mark.parametrize("num_clients", [3, 9, 40])
@pytest.mark.parametrize("repetitions", [1, 5])
def test_four_exchanges_for_any_number_of_clients_and_repetitions(num_clients: int, repetitions: int) -> None:
    """The repetitions of a round go together, and features are asked about meanwhile."""
    _, grid = detection(num_clients, outlier_repetitions=repetitions, outlier_min_flags=1)
    assert len(grid.exchanges) == 4
    trained = [sum(kind == "train" for kind, _, _ in contents) for contents in grid.exchanges]
    assert trained == [0, repetitions, repetitions, 0]


def test_nobody_is_asked_the_same_thing_twice() -> None:
    _, grid = detection(20)
    asked = [
        (client, kind, config.get("function"), config.get("seed"), config.get("server-round"))
        for kind, clients, config in grid.sent
        for client in clients
    ]
    assert len(asked) == len(set(asked)) == 20 * (10 + 5 * 2)  # ten queries, ten trainings


def test_limits_on_what_the_server_holds_cost_exchanges_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for the triangles of three clients and the models of one repetition."""
    whole, _ = detection(20)
    triangle_bytes, class_bytes = 8 * 6 * 7 // 2, 2 * 8 * 6 * 2  # of two classes, sums and squares
    monkeypatch.setattr("fedscout.detectors.feature_exchanges.BLOCK_BYTES", 3 * (triangle_bytes + class_bytes))
    monkeypatch.setattr("fedscout.detectors.outliers.GROUP_BYTES", 1)
    parts, grid = detection(20)
    assert parts.without_timings() == whole.without_timings()
    assert list(parts.feature_skew.client_values) == list(range(20))
    moments = [len(clients) for _, clients, config in grid.sent if config.get("function") == "feature_moments"]
    assert moments == [8, 3, 3, 3, 3]
    trained = [sum(kind == "train" for kind, _, _ in contents) for contents in grid.exchanges]
    assert trained == [0, 5, 1, 1, 1, 1, 1, 0]


def test_the_order_of_exchanges_hides_no_dependence() -> None:
    """A client whose features are unusable is left out of what follows on features, and of nothing else."""
    clients = gaussian_clients([12] * 10)
    clients[9][0][0, 0] = np.inf
    grid = RecordingGrid(federation(clients))
    report = report_of(grid)
    asked = {config["function"]: clients for kind, clients, config in grid.sent if kind == "query"}
    assert asked["feature_centroid"] == asked["feature_histogram"] == asked["label_agreement"] == tuple(range(9))
    assert asked["mean_output"] == tuple(range(10))
    assert set(report.feature_skew.client_values) == set(range(9))


# -- What is measured, and what is said where it is not ----------------------------------------------------------------


def test_shifted_features_are_a_skew_and_no_outlier() -> None:
    """Centroids have everyone's mean at the origin, and the finding's value as their largest distance."""
    sizes = [150, 140, 160, 150, 155]
    report = report_of(federation(gaussian_clients(sizes), transforms={3: (FeatureNoise(1.5, 0.1),)}))
    found = calibrated(report)
    assert found["feature_skew"].flagged_clients == (3,)
    assert all(shift.shift > 0.2 for shift in found["feature_skew"].clients[3].features)
    assert not found["outliers"].detected
    places = np.array([report.centroids[client] for client in range(5)])
    assert np.array(sizes) @ places == pytest.approx([0.0, 0.0], abs=1e-6 * sum(sizes))
    assert pdist(places).max() == pytest.approx(report.feature_skew.value)


@pytest.mark.parametrize(
    ("num_clients", "unusable", "settings", "measured"),
    [
        (3, False, {}, {"label_skew", "feature_skew", "outliers"}),
        (2, False, {}, {"label_skew", "feature_skew"}),
        (1, False, {}, set()),
        (3, True, {}, {"label_skew"}),
        (3, False, {"max_features": 5}, {"label_skew", "outliers"}),
    ],
)
def test_what_can_be_measured(num_clients: int, unusable: bool, settings: dict[str, int], measured: set[str]) -> None:
    clients = gaussian_clients([20] * num_clients)
    for features, _ in clients:
        features[0, 0] = np.nan if unusable else features[0, 0]
    report = report_of(federation(clients), **settings)
    assert {finding.name for finding in report.findings if finding.measured} == measured
    assert (report.metrics.label_hellinger is None) == (num_clients == 1)
    assert (report.metrics.feature_wasserstein is None) == ("feature_skew" not in measured)
    assert report.num_features == (None if unusable else 6)
    with refused(DataError, key="at least one client"):
        report_of(federation(gaussian_clients([3, 3])))


def test_samples_and_projections_are_stated() -> None:
    source = federation(gaussian_clients([20] * 8))
    report = report_of(source, max_pairwise_clients=5, projection_size=16)
    assert len(report.notes) == 2
    assert set(report.metrics.model_distances) == set(range(8))
    assert report_of(source).notes == ()


# -- Calibrated detection: who is flagged, and what can't be told ------------------------------------------------------


def calibrated(report: HeterogeneityReport) -> dict[str, CalibratedFinding]:
    return {finding.name: finding for finding in report.calibrated}


def test_skewed_labels_are_no_feature_skew() -> None:
    """The published rule finds feature skew, since the classes' means differ; the calibrated one compares classes."""
    generator = np.random.default_rng(0)
    labels = [(np.arange(300) >= 300 * share).astype(np.int64) for share in (0.9, 0.7, 0.5, 0.1)]
    report = report_of(federation([(generator.normal(size=(300, 4)) + 3 * own[:, None], own) for own in labels]))
    found = calibrated(report)
    assert report.feature_skew.detected
    assert not found["feature_skew"].detected
    assert {0, 3} <= set(found["label_skew"].flagged_clients)
    assert not found["outliers"].detected


def test_classes_too_small_to_tell_of_are_compared_as_one_where_labels_are_known_to_be_alike() -> None:
    """Of 27 rows and 3 no class is told of by itself, and 25 labels are; of ten classes of 3 rows no label is known."""
    generator = np.random.default_rng(1)
    labels = np.repeat([0, 1], [27, 3])
    rare = [(generator.normal(size=(30, 5)) + 2.0 * (client == 4), labels) for client in range(6)]
    found = calibrated(report_of(federation(rare)))["feature_skew"]
    assert found.flagged_clients == (4,)
    assert "of any class" in found.method
    labels = np.repeat(np.arange(10), 3)
    many = [(generator.normal(size=(30, 5)) + 2.0 * (client == 4), labels) for client in range(6)]
    assert not calibrated(report_of(federation(many, num_classes=10)))["feature_skew"].measured


@pytest.mark.parametrize(("told", "compared"), [(16, ""), (20, "of the same class"), (24, "of the same class")])
def test_half_of_the_rows_told_of_class_by_class_suffice(told: int, compared: str) -> None:
    """Clients of 40 rows: so many of class 0, the others four to a class, too few to tell of."""
    generator = np.random.default_rng(2)
    labels = np.concatenate([np.zeros(told, np.int64), 1 + np.arange(40 - told) // 4])
    clients = [(generator.normal(size=(40, 3)), labels) for _ in range(4)]
    found = calibrated(report_of(federation(clients, num_classes=7)))["feature_skew"]
    assert found.measured == bool(compared)
    assert compared in found.method


def test_clients_without_rows_are_compared_by_models_alone() -> None:
    """The grid's clients do hold rows, but are not asked about them."""
    grid = RecordingGrid(federation(gaussian_clients([60] * 8), transforms={5: (ShiftLabels(),)}))
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


def skew_verdicts(source: Federation, seed: int) -> dict[str, Verdict]:
    report = report_of(source, seed, outlier_repetitions=1, outlier_min_flags=1)
    return {found.name: found for found in verdicts(report)}


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("concentration", "num_classes", "rows", "num_clients"),
    [(0.3, 5, 20, 6), (3.0, 5, 20, 6), (3.0, 10, 30, 10), (1.0, 10, 12, 6), (3.0, 2, 25, 6), (10.0, 2, 12, 8)],
)
def test_label_skew_is_feature_skew_at_the_rate(
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
    return report_of(build_federation(config, ModelConfig()), seed)


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
def test_orderings_on_breast_cancer(seed: int) -> None:
    check_orderings("breast_cancer", seed)


@pytest.mark.slow
@pytest.mark.data
def test_orderings_and_closed_forms_on_bearings(data_folder: Path) -> None:
    """Shares 0.9/0.7/0.5/0.1 of equal clients: 0.1789.

    A unit mean shift against one of -0.1 in all of d unit-variance features bounds the distance by 1.1 √d. Noise only
    raises the variance by which features are standardised; sampling adds the distance that IID clients have.
    """
    check_orderings("bearing", 0, data_folder)
    labels = scenario_report("bearing", "label_skew", 0, data_folder)
    assert labels.label_skew.value == pytest.approx(0.1789, abs=5e-4)
    iid, features = (scenario_report("bearing", scenario, 0, data_folder) for scenario in ("iid", "feature_skew"))
    assert features.num_features == 244
    assert features.feature_skew.value < 1.1 * np.sqrt(244) + iid.feature_skew.value
