"""Whether every calibrated p-value is uniform where clients are alike: Kolmogorov-Smirnov over simulated federations.

Of each federation counts the smallest p-value of its clients, corrected over them, which is what raises an alarm. Rows
are independent draws of one distribution, dealt to clients. Clients' answers are those of their own halves on such
rows; what is simulated is training, by a gradient of softmax regression from a random start on each part of the rows.

A p-value may be too large, as Holm's is with few clients and tests of counts are with few rows. It must not be too
small: anywhere (the one-sided statistic of Kolmogorov and Smirnov), nor at the rate of one detector.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import kstest

from fedscout.detectors import DetectionConfig, outliers
from fedscout.detectors.calibrated_feature_skew import Shifts, label_adjusted_shifts, per_deviation, within_covariance
from fedscout.detectors.feature_skew import (
    ROW_NORMS,
    ClassMoments,
    MomentSums,
    class_sums,
    excess_variance,
    feature_moments,
)
from fedscout.detectors.label_agreement import LABEL_AGREEMENT, Agreement, count_test, discriminant, score_test
from fedscout.detectors.label_skew import label_p_values
from fedscout.detectors.outliers import Comparison, mean_distances, model_test
from fedscout.detectors.queries import CLIENT_QUERIES
from fedscout.detectors.statistics import holm
from tests.detectors.federations import inputs, let_out, samples
from tests.detectors.rates import most_alarms

RATE = DetectionConfig().detector_rate
UNSURE = 0.001
NUM_CLASSES, NUM_FEATURES = 3, 4
CLASS_MEANS = np.random.default_rng(8).normal(size=(NUM_CLASSES, NUM_FEATURES))
MIN_RELEASE = 5

Rows = tuple[np.ndarray, np.ndarray]


def dealt(generator: np.random.Generator, clients: int, rows: int, skewed: bool) -> list[Rows]:
    """Return each client's rows: of each class normal, or log-normal and thus far from normal."""
    federation = []
    for _ in range(clients):
        labels = generator.integers(0, NUM_CLASSES, rows)
        noise = generator.normal(size=(rows, NUM_FEATURES))
        features = CLASS_MEANS[labels] + (np.exp(noise) if skewed else noise)
        federation.append((features.astype(np.float32), labels))
    return federation


def smallest_label_p(federation: list[Rows], generator: np.random.Generator) -> float:
    """Label skew."""
    counts = np.stack([np.bincount(labels, minlength=NUM_CLASSES) for _, labels in federation])
    return float(label_p_values(counts, RATE, generator)[0].min())


def smallest_row_ps(federation: list[Rows], min_release: int = MIN_RELEASE) -> tuple[float, float, float]:
    """Feature skew, and the two tests of how labels agree; 1 where a test can't be made."""
    sums, classes = MomentSums(), ClassMoments.empty_moments(NUM_CLASSES, NUM_FEATURES)
    asked = [
        inputs(samples(*own), NUM_CLASSES, config={"max_features": 9}, min_release=min_release) for own in federation
    ]
    for client, own in enumerate(asked):
        moments, by_class = (let_out(query(own), min_release) for query in (feature_moments, class_sums))
        sums.add(client, len(own.data), moments["sum"].astype(float), moments["scatter"].astype(float))
        classes.add(client, by_class["counts"], by_class["sums"], by_class["squares"])
    pooled = sums.pooled()
    within = within_covariance(pooled, classes)
    shifts = label_adjusted_shifts(classes, within)
    comparison = discriminant(classes, within, pooled.num_rows)
    assert isinstance(shifts, Shifts)
    norms, answers = [], {}
    for client, (features, labels) in enumerate(federation):
        data = samples(features, labels)
        terms = inputs(data, NUM_CLASSES, {"per_deviation": per_deviation(within)}, {"by_class": True}, min_release)
        norms.append(let_out(CLIENT_QUERIES[ROW_NORMS](terms), min_release)["norms"].astype(float))
        own = inputs(data, NUM_CLASSES, comparison.arrays(), {"shifted": False}, min_release)
        answers[client] = Agreement.read(let_out(CLIENT_QUERIES[LABEL_AGREEMENT](own), min_release))
    features_p = float(holm(shifts.p_values(excess_variance(norms))).min())
    tests = (count_test(answers), score_test(answers, comparison))
    counts_p, scores_p = (1.0 if test is None else min(test.p_values.values()) for test in tests)
    return features_p, counts_p, scores_p


def smallest_model_p(federation: list[Rows], generator: np.random.Generator, num_parts: int = 6) -> float:
    """Outliers by models: a step of softmax regression on each part, as a network's last layer makes it."""
    size = len(federation[0][1]) // num_parts
    features = np.stack([x for x, _ in federation])
    labels = np.stack([y for _, y in federation])
    parts = []
    for part in range(num_parts):
        x, y = (values[:, part * size : (part + 1) * size] for values in (features, labels))
        wrong = softmax(x @ generator.normal(size=(NUM_FEATURES, NUM_CLASSES)), axis=-1) - np.eye(NUM_CLASSES)[y]
        vectors = np.einsum("krf,krc->kfc", x, wrong).reshape(len(federation), -1) / size
        distances = dict(enumerate(mean_distances(vectors).tolist()))
        parts.append(Comparison(distances, (), np.zeros(1, np.float32)))
    found = model_test(parts, parts, RATE)
    return min(found.p_values.values())


def is_not_too_small(p_values: list[float]) -> None:
    """Fail if p-values are smaller than uniform ones hardly ever are, throughout or at the detector's rate."""
    assert kstest(p_values, "uniform", alternative="greater").pvalue > UNSURE
    assert sum(p <= RATE for p in p_values) <= most_alarms(len(p_values), RATE)


SIZES = [
    pytest.param(4, 60, 300),
    pytest.param(10, 60, 300, marks=pytest.mark.slow),
    pytest.param(100, 60, 200, marks=pytest.mark.slow),
    pytest.param(1000, 60, 200, marks=pytest.mark.stress),
]
"""Clients, rows of each, federations."""

ROWS = [
    pytest.param(4, 60, 200, marks=pytest.mark.slow),
    pytest.param(10, 60, 200, marks=pytest.mark.slow),
    pytest.param(100, 60, 40, marks=pytest.mark.slow),
    pytest.param(100, 60, 200, marks=pytest.mark.stress),
    pytest.param(1000, 60, 200, marks=pytest.mark.stress),
]


@pytest.mark.parametrize(("clients", "rows", "federations"), SIZES)
def test_label_skew(clients: int, rows: int, federations: int) -> None:
    generator = np.random.default_rng(clients)
    is_not_too_small([smallest_label_p(dealt(generator, clients, rows, False), generator) for _ in range(federations)])


@pytest.mark.sampled(2)
@pytest.mark.timeout(1800)  # a federation of a thousand clients takes a second, three on a busy machine
@pytest.mark.parametrize(("skewed", "min_release"), [(False, 5), (True, 5), (True, 1)])
@pytest.mark.parametrize(("clients", "rows", "federations"), ROWS)
def test_feature_skew_and_agreement(clients: int, rows: int, federations: int, skewed: bool, min_release: int) -> None:
    generator = np.random.default_rng(clients)
    found = [smallest_row_ps(dealt(generator, clients, rows, skewed), min_release) for _ in range(federations)]
    for p_values in zip(*found, strict=True):
        is_not_too_small(list(p_values))


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize(("clients", "rows", "federations"), SIZES)
def test_distances_of_models(monkeypatch: pytest.MonkeyPatch, clients: int, rows: int, federations: int) -> None:
    """Exact, so that they must not be too large either; rows are log-normal.

    A p-value that counts permutations is uniform however many are drawn; its own scatter, 0.016 at most with the fewest
    that the test draws, is lost in the steps of 0.003 to 0.005 and the bounds above 0.1 of so many federations.
    """
    monkeypatch.setattr(outliers, "DRAWN_CELLS", outliers.DRAWN_CELLS // 10)
    generator = np.random.default_rng(clients)
    found = [smallest_model_p(dealt(generator, clients, rows, True), generator) for _ in range(federations)]
    is_not_too_small(found)
    assert kstest(found, "uniform").pvalue > UNSURE
