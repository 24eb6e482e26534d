"""Laws of the decision by labels: who is flagged where clients are alike, where one is not, and where nobody agrees."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from fedscout.detectors import CLIENT_QUERIES, CalibratedFinding, DetectionConfig
from fedscout.detectors.conversation import hold
from fedscout.detectors.feature_exchanges import FeatureMeasurement, measure_features
from fedscout.detectors.outliers import decide_outliers_calibrated
from fedscout.engine.grid.local_grid import LocalGrid
from tests.detectors.federations import federation
from tests.detectors.rates import most_alarms

RATE = DetectionConfig().detector_rate

Rows = tuple[np.ndarray, np.ndarray]
Draw = Callable[[np.random.Generator, int], Rows]
"""From a generator and the number of a client to its features and labels."""


def measured(draw: Draw, clients: int, seed: int, min_release: int = 5, num_classes: int = 2) -> FeatureMeasurement:
    generator = np.random.default_rng(seed)
    rows = [draw(generator, client) for client in range(clients)]
    grid = LocalGrid(federation(rows, num_classes, min_release=min_release), CLIENT_QUERIES)
    return hold(grid, measure_features(range(clients), (), DetectionConfig(), range(clients)))


def decided(draw: Draw, clients: int, seed: int, min_release: int = 5, num_classes: int = 2) -> CalibratedFinding:
    found = measured(draw, clients, seed, min_release, num_classes)
    return decide_outliers_calibrated(found.agreement, None, None, DetectionConfig(), found.concepts)


def labelled(generator: np.random.Generator, rows: int, num_classes: int = 2) -> np.ndarray:
    return generator.integers(0, num_classes, rows)


def one_row(generator: np.random.Generator, client: int) -> Rows:
    """One feature that is constant but for one row of client 2."""
    features = np.zeros((100, 1))
    features[0] = client == 2
    return features, labelled(generator, 100)


def rare_binary(generator: np.random.Generator, client: int) -> Rows:
    return (generator.random((100, 1)) < 0.005).astype(float), labelled(generator, 100)


def nearly_constant(generator: np.random.Generator, client: int) -> Rows:
    """Four features, two of which are 0 but in one row of a hundred, and of fifty."""
    labels = labelled(generator, 60)
    features = generator.normal(size=(60, 4)) + 0.5 * labels[:, None]
    features[:, :2] = generator.random((60, 2)) < [0.01, 0.02]
    return features, labels


def log_normal(generator: np.random.Generator, client: int) -> Rows:
    labels = labelled(generator, 60)
    return np.exp(generator.normal(size=(60, 4))) + 0.5 * labels[:, None], labels


def binary(generator: np.random.Generator, client: int) -> Rows:
    """One feature that is the label in seven rows of ten: all rows are equal to many others."""
    labels = labelled(generator, 60)
    return np.where(generator.random(60) < 0.7, labels, 1 - labels)[:, None].astype(float), labels


@pytest.mark.parametrize("min_release", [1, 5])
def test_the_client_of_the_one_row_that_differs_is_not_flagged(min_release: int) -> None:
    for seed in range(5):
        assert decided(one_row, 6, seed, min_release).flagged_clients == ()


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("min_release", [1, 5])
@pytest.mark.parametrize("draw", [rare_binary, nearly_constant, log_normal, binary])
def test_alarms_keep_to_the_rate_whatever_features_are(draw: Draw, min_release: int) -> None:
    """Of either test by its p-value alone, whatever the effect is."""
    smallest: dict[str, list[float]] = {}
    for seed in range(100):
        for test in measured(draw, 8, seed, min_release).agreement:
            smallest.setdefault(test.words, []).append(min(test.p_values.values()))
    for p_values in smallest.values():
        assert sum(p <= RATE for p in p_values) <= most_alarms(100, RATE)


# -- clients whose labels rest on different features ------------------------------------------------------------------


def separable(flipped: Sequence[int], rate: float = 1.0) -> Draw:
    """Two classes three deviations apart; labels of some clients are exchanged in part of the rows."""

    def draw(generator: np.random.Generator, client: int) -> Rows:
        labels = labelled(generator, 100)
        features = generator.normal(size=(100, 6))
        features[:, 0] += 3 * labels
        wrong = generator.random(100) < rate * (client in flipped)
        return features, np.where(wrong, 1 - labels, labels)

    return draw


def by_rules(rules: int) -> Draw:
    """Labels are the side of a plane on which a row lies; client k has the plane k modulo the number of rules."""

    def draw(generator: np.random.Generator, client: int) -> Rows:
        features = generator.normal(size=(100, 6))
        return features, (features[:, client % rules] > 0).astype(np.int64)

    return draw


def in_languages(generator: np.random.Generator, client: int) -> Rows:
    """Rows lie elsewhere for each client, and its classes differ in a direction of its own."""
    labels = labelled(generator, 200)
    features = generator.normal(size=(200, 12)) + 3 * generator.normal(size=12)
    return features + labels[:, None] * generator.normal(size=12), labels


@pytest.mark.parametrize("draw", [by_rules(6), by_rules(2), separable((0, 2, 4)), in_languages])
def test_nobody_is_out_of_a_majority_that_there_is_not(draw: Draw) -> None:
    for seed in range(5):
        found = decided(draw, 6, seed)
        assert not found.measured
        assert found.flagged_clients == ()


def test_clients_that_agree_among_themselves_are_named() -> None:
    for draw in (by_rules(2), separable((1, 3, 5))):
        assert decided(draw, 6, 0).groups == ((0, 2, 4), (1, 3, 5))
    assert decided(by_rules(6), 6, 0).groups == ()


@pytest.mark.parametrize("wrong", [(0,), (0, 1)])
def test_a_minority_of_at_most_a_third_is_flagged(wrong: tuple[int, ...]) -> None:
    for seed in range(5):
        assert decided(separable(wrong), 6, seed).flagged_clients == wrong


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize(("rate", "fewest"), [(1.0, 96), (0.3, 90)])
def test_one_client_of_wrong_labels_is_found_among_six(rate: float, fewest: int) -> None:
    found = [decided(separable((0,), rate), 6, seed).flagged_clients for seed in range(100)]
    assert found.count((0,)) >= fewest


def skewed(alpha: float, num_classes: int) -> Draw:
    """Classes in shares by Dirichlet, and features whose mean moves with the client."""

    def draw(generator: np.random.Generator, client: int) -> Rows:
        labels = generator.choice(num_classes, 80, p=generator.dirichlet(np.full(num_classes, alpha)))
        features = np.exp(0.5 * generator.normal(size=(80, 8))) + generator.normal(size=8)
        return features + 2 * np.eye(num_classes, 8)[labels], labels

    return draw


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.3, 100.0])
def test_skews_are_no_different_concepts(alpha: float) -> None:
    """Labels skewed or not, features shifted and skewed: labels rest on the same features."""
    for seed in range(60):
        found = measured(skewed(alpha, 5), 8, seed, num_classes=5)
        assert found.concepts is None or found.concepts.has_majority
