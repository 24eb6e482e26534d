"""Per-class sums: what is released, and that pooling them is what pooled rows would give."""

from __future__ import annotations

import numpy as np
import pytest

from fedscout.detectors import feature_skew as calculated
from fedscout.detectors.feature_skew import ClassMoments, class_sums
from fedscout.engine.data.client import CHUNK_ROWS
from tests.detectors.federations import inputs, let_out, samples

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
