"""Covariances by a client's own mix of classes: what the regression gives, and the rate where classes differ."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fedscout.detectors.calibrated_feature_skew import (
    Shifts,
    decide_feature_skew_calibrated,
    label_adjusted_shifts,
    within_covariance,
)
from fedscout.detectors.feature_skew import ClassCovariances, MomentSums, class_sums, feature_moments
from tests.detectors.federations import inputs, let_out, samples
from tests.detectors.rates import most_alarms
from tests.detectors.skew.test_class_sums import moments_of

RATE = 0.05 / 3
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


def decide(clients: Sequence[Client], num_classes: int) -> bool:
    """Return whether anybody is flagged, without a smallest effect."""
    covariances, sums = measured(clients, num_classes)
    pooled, classes = sums.pooled(), moments_of(list(clients), num_classes)
    assert pooled is not None
    shifts = label_adjusted_shifts(classes, within_covariance(pooled, classes), None, covariances)
    assert isinstance(shifts, Shifts)
    return decide_feature_skew_calibrated(shifts, RATE, 0.0).detected


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


@pytest.mark.stress
@pytest.mark.parametrize(("num_clients", "rows", "concentration"), [(6, 100, 0.5), (10, 60, 0.3)])
def test_false_alarms_keep_to_the_rate_where_classes_differ_in_correlation(
    num_clients: int, rows: int, concentration: float
) -> None:
    generator, alarms = np.random.default_rng(4), 0
    for _ in range(200):
        counts = [
            generator.multinomial(rows, generator.dirichlet(np.full(2, concentration))) for _ in range(num_clients)
        ]
        alarms += decide(drawn(generator, counts, 20, (0.0, 0.9)), 2)
    assert alarms <= most_alarms(200, RATE)
