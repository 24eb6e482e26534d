"""What clients tell of their rows in feature space: sums and covariances of classes, of groups, and how rows lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from fedscout.detectors import DetectionConfig
from fedscout.detectors import feature_skew as calculated
from fedscout.detectors.feature_skew import (
    ClassCovariances,
    ClassMoments,
    FeatureGroups,
    MomentSums,
    class_sums,
    feature_moments,
    group_norms,
)
from fedscout.detectors.report import HeterogeneityReport
from fedscout.engine.data.client import CHUNK_ROWS
from tests.detectors.federations import federation, gaussian_clients, inputs, let_out, report_of, samples
from tests.detectors.rates import most_alarms

CONFIG = {"max_features": 100}


def moments_of(clients: list[tuple[np.ndarray, np.ndarray]], num_classes: int, min_release: int = 5) -> ClassMoments:
    """Return the pooled per-class sums of (features, labels) pairs, through the client half."""
    moments = ClassMoments.empty_moments(num_classes, clients[0][0].shape[1])
    for client, (features, labels) in enumerate(clients):
        asked = inputs(samples(features, labels), num_classes, config=CONFIG, min_release=min_release)
        answer = let_out(class_sums(asked), min_release)
        moments.add(client, answer["counts"], answer["sums"], answer["squares"])
    return moments


def test_pooled_sums_are_those_of_the_pooled_rows() -> None:
    """Clients of several chunks, of a class that others lack, and of one that none holds."""
    generator = np.random.default_rng(0)
    clients = []
    for size, classes in ((CHUNK_ROWS + 40, [0, 1]), (60, [1, 2]), (50, [0, 1, 2])):
        labels = generator.choice(classes, size)
        features = (generator.normal(size=(size, 3)) + 1e3 * labels[:, None]).astype(np.float32)
        clients.append((features, labels))
    moments = moments_of(clients, num_classes=4)
    rows = np.concatenate([features for features, _ in clients]).astype(np.float64)
    labels = np.concatenate([own for _, own in clients])
    np.testing.assert_array_equal(moments.pooled_counts, [*np.bincount(labels), 0])
    for label in range(3):
        np.testing.assert_allclose(moments.means[label], rows[labels == label].mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(moments.variances[label], rows[labels == label].var(axis=0, ddof=1), rtol=1e-9)
    np.testing.assert_allclose(moments.totals[1], rows[len(clients[0][1]) :][:60].sum(axis=0), rtol=1e-12)
    assert (moments.means[3] == 0).all()


def test_withheld_classes_are_zero() -> None:
    labels = np.array([0] * 8 + [1] * 3 + [2] * 10 + [3] * 20)
    features = np.ones((len(labels), 2))
    answer = let_out(class_sums(inputs(samples(features, labels), 4, config=CONFIG)))
    np.testing.assert_array_equal(answer["counts"], [0, 0, 10, 20])
    np.testing.assert_array_equal(answer["sums"], [[0, 0], [0, 0], [10, 10], [20, 20]])
    assert (answer["squares"] == 0).all()


def test_too_many_features_leave_the_counts_alone() -> None:
    for most, told in ((2, {"counts"}), (3, {"counts", "sums", "squares"})):
        answer = class_sums(inputs(samples(np.ones((10, 3))), 2, config={"max_features": most}))
        assert set(answer) == told


def test_without_some_clients_the_sums_are_those_of_the_others() -> None:
    generator = np.random.default_rng(0)
    clients = [(generator.normal(size=(30, 3)), generator.integers(0, 2, 30)) for _ in range(4)]
    found = moments_of(clients, num_classes=2).without({1, 2})
    others = moments_of([clients[0], clients[3]], num_classes=2)
    np.testing.assert_array_equal(found[0], others.pooled_counts)
    np.testing.assert_allclose(found[1], others.sums, rtol=1e-12)


def test_a_client_of_wider_rows_has_its_ratio_of_variances_by_hand() -> None:
    """Spreads within classes against what as many rows would have at everyone's variances, n_c - 1 a class."""
    generator = np.random.default_rng(0)
    labels = np.repeat([0, 1], [6, 9])
    clients = [(generator.normal(scale=scale, size=(15, 2)), labels) for scale in (1.0, 3.0)]
    moments = moments_of(clients, num_classes=3)
    own = np.array([clients[1][0][labels == label].astype(np.float32).var(axis=0, ddof=1) for label in (0, 1)])
    everyone = np.array(
        [np.concatenate([rows[labels == label] for rows, _ in clients]).var(axis=0, ddof=1) for label in (0, 1)]
    )
    expected = (5 * own[0] + 8 * own[1]) / (5 * everyone[0] + 8 * everyone[1])
    np.testing.assert_allclose(moments.widening(1), expected, rtol=1e-5)
    assert (expected > 1.2).all()
    assert (moments.widening(0) == 1).all()


def test_sums_of_each_client_are_kept_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients' sums of three features and two classes are 96 bytes; without them all else is as it was."""
    clients = [(np.full((10, 3), float(client)), np.repeat([0, 1], 5)) for client in range(2)]
    found = {}
    for size in (96, 95):
        monkeypatch.setattr(calculated, "KEPT_BYTES", size)
        found[size] = moments_of(clients, num_classes=2)
    assert found[95].own is None
    assert {client: sums.tolist() for client, sums in found[96].own.items()} == {0: [[0] * 3] * 2, 1: [[5] * 3] * 2}
    np.testing.assert_array_equal(found[96].sums, found[95].sums)


# -- Covariances by a client's own mix of classes: what the regression gives, and the rate where classes differ --------


Client = tuple[np.ndarray, np.ndarray]


def alike(num_features: int, correlation: float) -> np.ndarray:
    """Return the matrix of which every two features have the same correlation."""
    return np.asarray(correlation + (1 - correlation) * np.eye(num_features))


def drawn(
    generator: np.random.Generator, counts: Sequence[Sequence[int]], num_features: int, correlations: Sequence[float]
) -> list[Client]:
    """Return clients whose rows of each class have that correlation."""
    roots = [np.linalg.cholesky(alike(num_features, correlation)) for correlation in correlations]
    clients = []
    for own in counts:
        labels = np.repeat(np.arange(len(own)), own)
        noise = generator.normal(size=(len(labels), num_features))
        features = np.concatenate([noise[labels == c] @ root.T + c for c, root in enumerate(roots)])
        clients.append((features.astype(np.float32), labels))
    return clients


def measured(clients: Sequence[Client], num_classes: int, min_release: int = 5) -> tuple[ClassCovariances, MomentSums]:
    found, sums = ClassCovariances(num_classes, clients[0][0].shape[1]), MomentSums()
    for client, (features, labels) in enumerate(clients):
        asked = inputs(samples(features, labels), num_classes, config={"max_features": 99}, min_release=min_release)
        moments, own = let_out(feature_moments(asked)), let_out(class_sums(asked), min_release)
        total, scatter = moments["sum"].astype(float), moments["scatter"].astype(float)
        found.add(len(labels), total, scatter, own["counts"], own["sums"].astype(float))
        sums.add(client, len(labels), total, scatter)
    return found, sums


def test_a_class_s_covariance_is_that_of_its_rows() -> None:
    """Two clients of one class each: N_w follows from the 59 degrees of freedom of 60 rows."""
    clients = drawn(np.random.default_rng(0), [[60, 0], [0, 60]], 4, (0.0, 0.8))
    found, _ = measured(clients, 2)
    for label in range(2):
        correlation, rows = found.correlation(np.eye(2)[label], np.arange(4)) or (np.zeros(0), 0.0)
        np.testing.assert_allclose(correlation, np.corrcoef(clients[label][0].T.astype(np.float64)), atol=1e-4)
        assert rows == pytest.approx(59**2 / 60)


def test_the_mix_decides() -> None:
    """Equal variances: of a half of each class the correlation is the mean of both; of five features three count."""
    counts = [[300, 100], [100, 300], [200, 200], [250, 50]]
    found, _ = measured(drawn(np.random.default_rng(1), counts, 5, (0.0, 0.8)), 2)
    for weights, expected in (((1, 0), 0.0), ((1, 1), 0.4), ((0, 5), 0.8)):
        correlation, _ = found.correlation(np.array(weights, float), np.array([0, 2, 4])) or (np.zeros(0), 0.0)
        np.testing.assert_allclose(correlation, alike(3, expected), atol=0.15)


def test_clients_of_one_mix_are_pooled() -> None:
    """Their rows count as all rows less the classes' means: the same as one covariance of all."""
    found, sums = measured(drawn(np.random.default_rng(2), [[50, 50]] * 6, 3, (0.3, 0.3)), 2)
    _, rows = found.correlation(np.array([25.0, 25.0]), np.arange(3)) or (np.zeros(0), 0.0)
    assert rows == pytest.approx(6 * 98**2 / 100)
    assert sums.pooled() is not None


def test_a_class_of_which_nobody_knows_a_covariance_has_that_of_all() -> None:
    """One row of it at each client: it has no degree of freedom."""
    clients = drawn(np.random.default_rng(3), [[20, 1], [30, 1]], 3, (0.0, 0.0))
    found, _ = measured(clients, 2, min_release=1)
    assert found.correlation(np.array([1.0, 1.0]), np.arange(3)) is None
    assert found.traces(np.array([1.0, 1.0]), np.arange(3), (4.0, 6.0)) == (4.0, 6.0)


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_traces_are_about_unbiased_out_of_few_rows(correlation: float) -> None:
    """tr R² = d + d (d − 1) ρ²; what 60 rows of 20 features add to it by chance, 6 on average, is taken off."""
    traces = []
    for seed in range(40):
        found, _ = measured(drawn(np.random.default_rng(seed), [[60]], 20, (correlation,)), 1)
        traces.append(found.traces(np.array([60.0]), np.arange(20), (0.0, 0.0))[0] * 80 / 60)
    assert np.mean(traces) == pytest.approx(20 + 20 * 19 * correlation**2, rel=0.1)


def test_too_many_numbers_are_not_kept() -> None:
    assert ClassCovariances.fit(10, 300)
    assert not ClassCovariances.fit(10, 4096)


# -- Feature skew of rows that belong together: design effects, and few false alarms -----------------------------------


def told(rows: np.ndarray, groups: np.ndarray) -> dict[str, np.ndarray]:
    arrays = {"per_deviation": np.ones(rows.shape[1]), "means": np.zeros((1, rows.shape[1]))}
    asked = inputs(samples(rows), arrays=arrays, config={"by_class": False}, min_release=1)
    return dict(let_out(group_norms(replace(asked, groups=groups)), 1))


def test_sums_over_groups_and_their_spread_by_hand() -> None:
    """Groups of rows 1, 2 and -1: sums 3 and -1; squares 9 + 1, fourth powers 81 + 1, sizes 4 + 1.

    |y|² of the groups are 9 and 1: mean 5, mean of squares 41, so the squared coefficient is 41/25 - 1.
    """
    answer = told(np.array([[1.0], [2.0], [-1.0]]), np.array([4, 4, 9]))
    assert answer["squares"].tolist() == [10]
    assert answer["norms"].tolist() == [3, 2, 5, 10, 82]
    found = FeatureGroups.read({0: answer})
    assert found.excess == pytest.approx(0.64)
    assert found.num_groups == {0: 2.0}


def test_the_design_effect_by_hand() -> None:
    """Three groups of two rows sum to 2, 1 and 0: their variance about a mean that they share is 5/6 · 3/2 of a row's.

    The correlation is 5/4 - 1 over 2 - 1, and groups of two make it an effect of 1 + 1/4.
    """
    rows = np.array([[1.0], [1.0], [2.0], [-1.0], [3.0], [-3.0]])
    found = FeatureGroups.read({0: told(rows, np.repeat([0, 1, 2], 2))})
    assert found.effects[0].tolist() == [1.25]


QUICK = {"outlier_repetitions": 1, "outlier_min_flags": 1}


def of_subjects(seed: int, grouped: bool, shift: float = 0.0, rows_each: int = 5) -> HeterogeneityReport:
    """Return the report on ten clients of 20 subjects, whose rows scatter half as much as they do."""
    generator = np.random.default_rng(seed)
    clients = []
    for client in range(10):
        subject = np.repeat(np.arange(20), rows_each)
        labels = generator.integers(0, 2, 20)[subject]
        centres = generator.normal(size=(20, 6)) + (shift if client == 3 else 0.0)
        clients.append((centres[subject] + 0.5 * generator.normal(size=(len(subject), 6)) + labels[:, None], labels))
    source = federation(clients)
    groups = np.arange(len(source.labels)) // rows_each
    return report_of(replace(source, groups=groups) if grouped else source, seed, **QUICK)


def alarms(reports: list[HeterogeneityReport], name: str) -> int:
    return sum(finding.detected for report in reports for finding in report.calibrated if finding.name == name)


@pytest.mark.slow
def test_groups_make_the_difference() -> None:
    without, with_groups = ([of_subjects(seed, grouped) for seed in range(6)] for grouped in (False, True))
    for name in ("label_skew", "feature_skew"):
        assert alarms(without, name) >= 2
        assert alarms(with_groups, name) <= most_alarms(6, DetectionConfig().detector_rate)


def test_a_shifted_client_is_found_in_groups() -> None:
    finding = of_subjects(0, grouped=True, shift=2.0).calibrated_finding("feature_skew")
    assert finding.flagged_clients == (3,)


def test_groups_of_one_row_are_rows() -> None:
    plain, grouped = (of_subjects(5, grouped, rows_each=1) for grouped in (False, True))
    for name in ("label_skew", "feature_skew"):
        one, other = plain.calibrated_finding(name), grouped.calibrated_finding(name)
        assert other.flagged_clients == one.flagged_clients
        assert other.p_value == pytest.approx(one.p_value, rel=0.3)


def test_who_knows_nothing_of_groups_is_warned_where_rows_are_alike() -> None:
    generator = np.random.default_rng(9)
    clients = []
    for _ in range(4):
        rows = np.repeat(generator.normal(size=(20, 6)), 5, axis=0)
        clients.append((rows + 0.05 * generator.normal(size=rows.shape), np.repeat(generator.integers(0, 2, 20), 5)))
    source = federation(clients)
    known = (source, replace(source, groups=np.arange(400) // 5))
    notes = [" ".join(report_of(each, **QUICK).notes) for each in known]
    assert ["federation.group_column" in told for told in notes] == [True, False]


def test_a_client_that_told_nothing_has_the_largest_effects_and_the_fewest_groups() -> None:
    known = FeatureGroups({0: np.array([1.0, 3.0]), 1: np.array([2.0, 1.0])}, {0: 4.0, 1: 9.0}, 0.0)
    np.testing.assert_array_equal(known.of([2, 1], [0, 1]), [[2, 3], [2, 1]])
    np.testing.assert_array_equal(known.groups_of([2, 1]), [4, 9])


# -- How clients' rows lie in feature space ----------------------------------------------------------------------------


Rows = list[tuple[np.ndarray, np.ndarray]]


def detected(clients: Rows, min_release: int = 5) -> HeterogeneityReport:
    source = federation(clients, min_release=min_release)
    return report_of(source, 1, outlier_repetitions=1, outlier_min_flags=1, outlier_rounds=1)


def test_a_shift_is_as_long_as_the_calibrated_effect_and_points_the_same_way_for_clients_that_shift_together() -> None:
    by = {1: 1, 2: 1, 3: -1}
    clients = [
        (rows + by.get(index, 0) * np.array([1.0, -1, 0, 0, 0, 0]), y)
        for index, (rows, y) in enumerate(gaussian_clients([300] * 7))
    ]
    report = detected(clients)
    finding = report.calibrated_finding("feature_skew")
    shifts = {client: np.array(shift) for client, shift in report.feature_shifts.items()}
    for client, shift in shifts.items():
        assert_allclose(np.linalg.norm(shift), finding.clients[client].effect, atol=1e-12)
    assert_allclose(
        np.linalg.norm(shifts[1]), np.sqrt(2 / 6), atol=0.1, err_msg="two of six features, by one deviation"
    )
    together = {client: shifts[1] @ shift / np.linalg.norm(shifts[1]) for client, shift in shifts.items()}
    assert together[2] > 0.4
    assert together[3] < -0.4


def test_nothing_is_told_of_a_client_that_withholds() -> None:
    assert set(detected(gaussian_clients([60, 3, 50, 40])).feature_shifts) == {0, 2, 3}
