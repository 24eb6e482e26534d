"""Feature skew of rows that belong together: design effects, and few false alarms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedscout.detectors import DetectionConfig
from fedscout.detectors.feature_skew import FeatureGroups, group_norms
from fedscout.detectors.report import HeterogeneityReport
from tests.detectors.federations import federation, inputs, let_out, report_of, samples
from tests.detectors.rates import most_alarms


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


@pytest.mark.parametrize(("alike", "effect"), [(0.0, 1.0), (0.5, 3.0), (1.0, 5.0)])
def test_the_design_effect_is_kish(alike: float, effect: float) -> None:
    """Groups of 5 with correlation ρ: 1 + 4 ρ."""
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(4000), 5)
    common, own = generator.normal(size=(4000, 1)), generator.normal(size=(20_000, 1))
    found = FeatureGroups.read({0: told(np.sqrt(alike) * common[groups] + np.sqrt(1 - alike) * own, groups)})
    assert found.of([0], [0]).item() == pytest.approx(effect, abs=0.15)


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


@pytest.mark.stress
def test_ten_clients_of_subjects_have_neither_skew() -> None:
    rate = DetectionConfig().detector_rate
    reports = [of_subjects(seed, grouped=True) for seed in range(60)]
    assert alarms(reports, "label_skew") <= most_alarms(60, rate)
    assert alarms(reports, "feature_skew") <= most_alarms(60, rate)


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
