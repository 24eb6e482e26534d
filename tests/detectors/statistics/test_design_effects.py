"""Rows that belong together: what clients tell of them, the design effects, and the rates of the label test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from fedscout.detectors import DetectionConfig
from fedscout.detectors.label_skew import ReleasedCounts, decide_label_skew_calibrated, label_counts, label_p_values
from fedscout.detectors.report import CalibratedFinding
from fedscout.detectors.statistics import GroupSums, correlations, design_effects, group_labels, pearson_moments
from fedscout.engine.arrays import IntArray
from fedscout.engine.data.client import Arrays
from tests.detectors.federations import inputs, let_out, samples
from tests.detectors.rates import most_alarms

RATE = DetectionConfig().detector_rate
Client = tuple[IntArray, IntArray]
"""Labels and groups of its rows."""


def told(client: Client, num_classes: int, min_release: int = 1) -> tuple[IntArray, Arrays]:
    """Return what leaves a client: its label counts, and the sums over its groups."""
    labels, groups = client
    rows = samples(np.zeros((len(labels), 1)), labels)
    asked = replace(inputs(rows, num_classes, min_release=min_release), groups=groups)
    counts = let_out(label_counts(asked), min_release)["counts"]
    return counts, let_out(group_labels(asked), min_release)


def sums_of(clients: Sequence[Client], num_classes: int) -> tuple[IntArray, GroupSums]:
    answers = [told(client, num_classes) for client in clients]
    counts = np.stack([counts for counts, _ in answers])
    return counts, GroupSums.read([groups for _, groups in answers], counts)


def decide(clients: Sequence[Client], num_classes: int, seed: int, grouped: bool = True) -> CalibratedFinding:
    """Return the decision on what clients tell at the usual `min_release`."""
    answers = [told(client, num_classes, min_release=5) for client in clients]
    sizes = np.array([len(labels) for labels, _ in clients])
    counts, least = np.stack([counts for counts, _ in answers]), np.full(len(clients), 5)
    released = ReleasedCounts(tuple(range(len(clients))), counts, sizes, least)
    groups: Mapping[int, Arrays] = dict(enumerate(groups for _, groups in answers))
    return decide_label_skew_calibrated(released, RATE, 0.1, seed, groups=groups if grouped else None)


def drawn(
    generator: np.random.Generator, num_clients: int, sizes: IntArray, share: float, alike: float
) -> list[Client]:
    """Return clients whose rows have the label of their subject with probability `alike`, else one of their own."""
    groups = np.repeat(np.arange(len(sizes)), sizes)
    clients = []
    for _ in range(num_clients):
        subjects = (generator.random(len(sizes)) < share).astype(np.int64)
        own = (generator.random(len(groups)) < share).astype(np.int64)
        clients.append((np.where(generator.random(len(groups)) < alike, subjects[groups], own), groups))
    return clients


def test_what_is_told_of_groups_by_hand() -> None:
    """Groups of 3 and 2 rows with labels 0 0 1 and 1 1: Σ x² = 4 and 1 + 4, Σ n x = 6 and 3 + 4, Σ n² = 9 + 4."""
    _, groups = told((np.array([0, 0, 1, 1, 1]), np.array([7, 7, 7, 3, 3])), 2)
    assert groups["squares"].tolist() == [4, 5]
    assert groups["with_sizes"].tolist() == [6, 7]
    assert groups["groups"].tolist() == [13, 2]


def test_nothing_is_told_of_the_groups_of_a_rare_class() -> None:
    labels = np.repeat([0, 1, 2], [20, 20, 3])
    counts, groups = told((labels, np.arange(43) // 5), 3, min_release=5)
    assert (groups["squares"][counts == 0] == 0).all()
    assert (groups["with_sizes"][counts == 0] == 0).all()


def test_alike_groups_have_their_size_as_design_effect() -> None:
    """Labels that are the subject's: δ = n_g, but for what the estimate from 200 groups leaves."""
    groups = np.repeat(np.arange(100), 5)
    counts, sums = sums_of([(groups % 2, groups), (groups // 2 % 2, groups)], 2)
    np.testing.assert_allclose(correlations(counts, sums), 1.0)
    np.testing.assert_allclose(design_effects(counts, sums), 5.0)


def test_rows_with_labels_of_their_own_have_design_effects_near_one() -> None:
    generator = np.random.default_rng(0)
    counts, sums = sums_of(drawn(generator, 10, np.full(200, 5), 0.5, alike=0.0), 2)
    assert design_effects(counts, sums).max() < 1.1


@pytest.mark.parametrize("alike", [0.3, 0.7, 1.0])
def test_the_correlation_is_found(alike: float) -> None:
    """Two rows share the subject's label with probability alike², else they are independent: ρ = alike²."""
    generator = np.random.default_rng(1)
    counts, sums = sums_of(drawn(generator, 20, generator.integers(1, 9, 200), 0.3, alike), 2)
    np.testing.assert_allclose(correlations(counts, sums), alike**2, atol=0.03)


def test_moments_of_independent_rows_are_those_of_chi_square() -> None:
    """χ² of C − 1 = 3 degrees of freedom: mean 3, variance 6, third central moment 24."""
    mean, variance, third = pearson_moments(np.array([0.1, 0.2, 0.3, 0.4]), np.ones((2, 4)))
    np.testing.assert_allclose([mean, variance, third], [[3, 3], [6, 6], [24, 24]])


def test_moments_are_those_of_the_matrix() -> None:
    shares, effects = np.array([0.5, 0.3, 0.2]), np.array([[4.0, 2.0, 1.0]])
    root = np.sqrt(effects[0])
    matrix = root[:, None] * (np.eye(3) - np.sqrt(np.outer(shares, shares))) * root
    expected = [np.trace(matrix), 2 * np.trace(matrix @ matrix), 8 * np.trace(matrix @ matrix @ matrix)]
    np.testing.assert_allclose(np.ravel(pearson_moments(shares, effects)), expected)


@pytest.mark.parametrize("num_rows", [12, 400])
def test_groups_of_one_row_give_the_test_of_independent_rows(num_rows: int) -> None:
    """12 rows: drawn tables, the same draws; 400: χ²."""
    generator = np.random.default_rng(2)
    clients = [(generator.integers(0, 3, num_rows), np.arange(num_rows)) for _ in range(6)]
    counts, sums = sums_of(clients, 3)
    plain, _ = label_p_values(counts, RATE, np.random.default_rng(3))
    grouped, _ = label_p_values(counts, RATE, np.random.default_rng(3), groups=sums)
    np.testing.assert_allclose(grouped, plain, rtol=1e-9)


def test_copies_of_rows_change_no_p_value() -> None:
    """Each row four times over, its copies a group: tables of groups are those of the rows."""
    generator = np.random.default_rng(4)
    labels = [generator.integers(0, 3, 15) for _ in range(6)]
    rows = np.arange(15)
    once, _ = label_p_values(sums_of([(own, rows) for own in labels], 3)[0], RATE, np.random.default_rng(5))
    counts, sums = sums_of([(np.repeat(own, 4), np.repeat(rows, 4)) for own in labels], 3)
    copied, _ = label_p_values(counts, RATE, np.random.default_rng(5), groups=sums)
    np.testing.assert_allclose(copied, once, rtol=1e-9)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("sizes", [np.full(20, 5), np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10] * 2), np.full(4, 25)])
@pytest.mark.parametrize("alike", [0.5, 1.0])
def test_ten_clients_of_subjects_raise_few_false_alarms(sizes: IntArray, alike: float) -> None:
    """10 clients of 20 subjects × 5 rows, and of uneven and of few subjects: at most the rate of one detector."""
    generator = np.random.default_rng(6)
    alarms = sum(decide(drawn(generator, 10, sizes, 0.5, alike), 2, seed).detected for seed in range(150))
    assert alarms <= most_alarms(150, RATE)


def test_without_groups_the_same_clients_raise_many() -> None:
    generator = np.random.default_rng(7)
    clients = [drawn(generator, 10, np.full(20, 5), 0.5, 1.0) for _ in range(50)]
    assert sum(decide(own, 2, seed, grouped=False).detected for seed, own in enumerate(clients)) > 25


def test_large_skew_is_found_in_groups_too() -> None:
    """One client of nine in ten, the others of three in ten: 20 subjects suffice to tell."""
    generator = np.random.default_rng(8)
    found = 0
    for seed in range(50):
        clients = drawn(generator, 9, np.full(20, 5), 0.3, 1.0) + drawn(generator, 1, np.full(20, 5), 0.9, 1.0)
        found += decide(clients, 2, seed).flagged_clients == (9,)
    assert found >= 45
