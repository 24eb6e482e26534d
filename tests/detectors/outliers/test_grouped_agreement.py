"""How labels agree where rows belong together: laws of the design effect, false alarms and power."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from fedscout.detectors import CLIENT_QUERIES, CalibratedFinding, DetectionConfig
from fedscout.detectors.conversation import hold
from fedscout.detectors.detect import clients_with_similar_labels, measure_labels
from fedscout.detectors.feature_exchanges import measure_features
from fedscout.detectors.label_agreement import (
    Agreement,
    Discriminant,
    design_effects,
    disagreement_tail,
    label_agreement,
    score_test,
)
from fedscout.detectors.outliers import decide_outliers_calibrated
from fedscout.engine.data.federation import Federation
from fedscout.engine.grid.local_grid import LocalGrid
from tests.detectors.federations import federation, inputs, let_out, samples
from tests.detectors.rates import most_alarms

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Features, labels and groups."""


def rows_of_subjects(generator: np.random.Generator, sizes: np.ndarray, label_alike: float, icc: float) -> Rows:
    """Return a client's rows: labels that are the subject's with a probability, features that scatter by subject."""
    groups = np.repeat(np.arange(len(sizes)), sizes)
    subjects, own = generator.integers(0, 2, len(sizes)), generator.integers(0, 2, len(groups))
    labels = np.where(generator.random(len(groups)) < label_alike, subjects[groups], own)
    scatter = np.sqrt(icc) * generator.normal(size=(len(sizes), 6))[groups]
    scatter += np.sqrt(1 - icc) * generator.normal(size=(len(groups), 6))
    return 1.5 * np.eye(2, 6)[labels] + scatter, labels, groups


def subjects(seed: int, sizes: np.ndarray, label_alike: float = 1.0, icc: float = 0.9) -> list[Rows]:
    generator = np.random.default_rng(seed)
    return [rows_of_subjects(generator, sizes, label_alike, icc) for _ in range(10)]


def federation_of(clients: list[Rows], grouped: bool) -> Federation:
    source = federation([(features, labels) for features, labels, _ in clients])
    apart = np.concatenate([1000 * client + groups for client, (_, _, groups) in enumerate(clients)])
    return replace(source, groups=apart) if grouped else source


def decide(clients: list[Rows], grouped: bool) -> CalibratedFinding:
    """Return the decision by labels alone."""
    grid, settings = LocalGrid(federation_of(clients, grouped), CLIENT_QUERIES), DetectionConfig()
    labels = hold(grid, measure_labels(settings, 0, grouped))
    features = hold(
        grid, measure_features(tuple(labels.counts), (), settings, clients_with_similar_labels(labels), grouped)
    )
    return decide_outliers_calibrated(features.agreement, None, None, settings, features.concepts)


def answers_of(clients: list[Rows], grouped: bool = True) -> tuple[Mapping[int, Agreement], Discriminant]:
    """Return what clients tell on plain axes, their own rows among the sums."""
    sums = np.zeros((2, 6))
    counts = np.zeros(2, np.int64)
    for features, labels, _ in clients:
        np.add.at(sums, labels, features.astype(np.float32).astype(np.float64))
        counts += np.bincount(labels, minlength=2)
    known = Discriminant(np.eye(6), sums, counts)
    asked = [
        replace(
            inputs(samples(features, labels), 2, known.arrays(), {"shifted": False}), groups=groups if grouped else None
        )
        for features, labels, groups in clients
    ]
    return dict(enumerate(Agreement.read(let_out(label_agreement(each))) for each in asked)), known


def test_groups_of_one_row_change_no_bit() -> None:
    clients = [(features, labels, np.arange(len(labels))) for features, labels, _ in subjects(0, np.full(30, 3))]
    plain, grouped = (score_test(*answers_of(clients, known)) for known in (False, True))
    assert grouped.p_values == plain.p_values


def test_copies_of_rows_change_no_p_value() -> None:
    """Each row four times over, its copies a group: δ = 4, and T is tested as that of the rows.

    Classes are equally large, as φ weighs the degrees of freedom that each of them costs by |g_c|².
    """
    generator, labels, groups = np.random.default_rng(1), np.arange(60) % 2, np.arange(60)
    says = np.linspace(0.0, 1.5, 10)
    once = [(own * np.eye(2, 6)[labels] + generator.normal(size=(60, 6)), labels, groups) for own in says]
    copied = [(np.repeat(features, 4, axis=0), np.repeat(labels, 4), np.repeat(groups, 4)) for features, _, _ in once]
    expected, found = (score_test(*answers_of(clients)) for clients in (once, copied))
    assert min(expected.p_values.values()) < 1
    np.testing.assert_allclose(list(found.p_values.values()), list(expected.p_values.values()), rtol=1e-6)


@pytest.mark.parametrize("icc", [0.0, 0.5, 1.0])
def test_the_design_effect_is_found(icc: float) -> None:
    """40 subjects of 5 rows of one label: δ = 1 + 4 ICC, estimated from 400 subjects."""
    found = design_effects(answers_of(subjects(2, np.full(40, 5), 1.0, icc))[0])
    np.testing.assert_allclose(list(found.values()), 1 + 4 * icc, atol=0.5)


def test_counts_that_know_less_say_less() -> None:
    """Ten times the groups of which ten count as one: the tail of a tenth of them."""
    counts = [np.array(values) for values in ([20, 10], [7, 3], [100, 60], [10, 9])]
    tenfold = [10 * values for values in counts]
    assert disagreement_tail(*tenfold, counted_as_one=10) == disagreement_tail(*counts)
    assert disagreement_tail(*tenfold, counted_as_one=3) > disagreement_tail(*tenfold)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("sizes", [np.full(20, 5), np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10] * 2), np.full(4, 25)])
@pytest.mark.parametrize("label_alike", [0.5, 1.0])
def test_subjects_raise_few_false_alarms(sizes: np.ndarray, label_alike: float) -> None:
    alarms = sum(decide(subjects(seed, sizes, label_alike), grouped=True).detected for seed in range(60))
    assert alarms <= most_alarms(60, DetectionConfig().detector_rate)


def test_without_the_column_they_raise_many() -> None:
    assert sum(decide(subjects(seed, np.full(20, 5)), grouped=False).detected for seed in range(20)) >= 6


def test_a_client_of_wrong_labels_is_found_by_its_subjects() -> None:
    for seed in range(10):
        clients = subjects(seed, np.full(20, 5))
        features, labels, groups = clients[2]
        clients[2] = (features, 1 - labels, groups)
        assert decide(clients, grouped=True).flagged_clients == (2,)
