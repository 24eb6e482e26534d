"""Calibrated feature skew: closed forms, the false-alarm rate without training, power, and label skew left aside."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import chi2, t as student

from fedscout.detectors import calibrated_feature_skew as calibrated
from fedscout.detectors.feature_skew import ClassMoments, ClientTotals, PooledMoments, excess_variance, row_norms
from fedscout.detectors.report import CalibratedFinding
from fedscout.detectors.statistics import holm, moment_matched_tail
from fedscout.engine.data.federation import Names
from tests.detectors.federations import fewest_alarms, inputs, most_alarms, samples
from tests.detectors.test_feature_skew import moments_of, pool

RATE = 0.05
NUM_FEATURES = 8
MIXING = np.random.default_rng(9).normal(size=(NUM_FEATURES, NUM_FEATURES)) / 2 + np.eye(NUM_FEATURES)
CLASS_MEANS = np.random.default_rng(8).normal(size=(3, NUM_FEATURES)) * 4
CLASS_SPREADS = (0.3, 1.0, 3.0)

Client = tuple[np.ndarray, np.ndarray]


def draw(generator: np.random.Generator, counts: Sequence[int]) -> Client:
    """Return rows of one distribution given the class: correlated features, classes far apart and unlike in spread."""
    labels = np.repeat(np.arange(len(counts)), counts)
    spreads = np.array(CLASS_SPREADS)[labels, None]
    features = CLASS_MEANS[labels] + spreads * (generator.normal(size=(len(labels), NUM_FEATURES)) @ MIXING)
    return features.astype(np.float32), labels


def measure(clients: Sequence[Client], num_classes: int = 3) -> tuple[PooledMoments, ClassMoments]:
    return pool([x for x, _ in clients]), moments_of(list(clients), num_classes)


def shifts_of(clients: Sequence[Client], num_classes: int = 3) -> calibrated.Shifts | str:
    """Return shifts, or why there are none."""
    pooled, classes = measure(clients, num_classes)
    return calibrated.label_adjusted_shifts(classes, calibrated.within_covariance(pooled, classes))


def decide(clients: Sequence[Client], min_effect: float = 0.25) -> CalibratedFinding:
    return calibrated.decide_feature_skew_calibrated(shifts_of(clients), RATE, min_effect)


def unlike_labels(generator: np.random.Generator, clients: int, rows: int) -> np.ndarray:
    """Return label counts of strongly skewed clients."""
    return np.stack([generator.multinomial(rows, p) for p in generator.dirichlet(np.full(3, 0.5), size=clients)])


def test_the_covariance_within_classes_is_that_of_the_residuals() -> None:
    generator = np.random.default_rng(0)
    clients = [draw(generator, counts) for counts in ([30, 40, 0], [20, 20, 60])]
    pooled, classes = measure(clients)
    rows, labels = (np.concatenate(parts) for parts in zip(*clients, strict=True))
    residuals = rows.astype(np.float64) - np.stack([rows[labels == c].mean(axis=0) for c in range(3)])[labels]
    expected = residuals.T @ residuals / (len(rows) - 3)
    np.testing.assert_allclose(calibrated.within_covariance(pooled, classes), expected, rtol=1e-4, atol=1e-4)


def test_a_shift_in_closed_form() -> None:
    """One class, one feature: rows 0 and 2 in turn at one client, 0.5 and 2.5 at the other, 100 each.

    Means 1 and 1.5 about 1.25; squares about it are 50 (1.25² + 0.75² + 0.75² + 1.25²) = 212.5 over 199. The surplus
    is 100 (1 − 1.25) = −25 at weight 100 (1 − 100/200) = 50, so Q = 625 / (50 · 212.5/199) = 11.7.
    """
    shifts = two_clients(apart=0.5)
    np.testing.assert_allclose(shifts.statistics, 625 * 199 / (50 * 212.5))
    np.testing.assert_allclose([*shifts.variance, *shifts.third], [2, 2, 8, 8])
    np.testing.assert_allclose(shifts.offsets, np.array([[-0.25], [0.25]]) / np.sqrt(212.5 / 199))
    np.testing.assert_allclose(shifts.p_values(), chi2.sf(625 * 199 / (50 * 212.5), 1))


def test_unequal_lengths_of_rows_widen_the_distribution() -> None:
    """Of 100 rows: variance 2 · 0.99 + 5 · 1² / 100 = 2.03, the third moment by its square; less spread is not used."""
    shifts = two_clients(apart=0.5)
    expected = moment_matched_tail(shifts.statistics, 1.0, 2.03, 8 * (2.03 / 2) ** 2)
    np.testing.assert_allclose(shifts.p_values(excess=5.0), expected)
    np.testing.assert_allclose(shifts.p_values(excess=1.0), shifts.p_values())


def test_one_feature_adds_no_more_than_its_cap() -> None:
    """The square that one of two clients' normal shifts exceeds once in 10,000 federations: χ²₁ at 5e-5, above 16."""
    np.testing.assert_allclose(two_clients(apart=9.0).statistics, chi2.isf(5e-5, 1))


def two_clients(apart: float) -> calibrated.Shifts:
    low = np.tile([0.0, 2.0], 50)[:, None]
    labels = np.zeros(100, np.int64)
    return shifts_of([(low, labels), (low + apart, labels)], num_classes=1)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(("clients", "rows", "federations"), [(4, 30, 400), (4, 400, 200), (30, 60, 50)])
@pytest.mark.parametrize("skewed", [False, True])
def test_false_alarms_keep_to_the_rate(clients: int, rows: int, federations: int, skewed: bool) -> None:
    """Without a minimum effect, with like labels and with skewed ones."""
    generator = np.random.default_rng(rows + skewed)
    alarms = 0
    for _ in range(federations):
        counts = unlike_labels(generator, clients, rows) if skewed else [[rows // 3] * 3] * clients
        shifts = shifts_of([draw(generator, own) for own in counts])  # none if no class is shared
        alarms += calibrated.decide_feature_skew_calibrated(shifts, RATE, 0.0).detected
    assert fewest_alarms(federations, 0.5 * RATE) <= alarms <= most_alarms(federations, RATE)


def test_who_is_at_both_limits_is_flagged_and_its_largest_five_shifts_are_named() -> None:
    """Of seven shifts above the smallest that has a name the largest five have one."""
    own = np.array([0.1, -0.3, 0.5, -0.7, 0.9, 0.4, 0.8, 0.25])
    effect, clients = float(np.sqrt((own**2).mean())), (2, 4, 9)
    offsets = np.stack([np.zeros(8), own, np.zeros(8)])
    measured = (clients, np.array([1.0, RATE / 3, 1.0]), offsets, np.zeros(3), np.arange(10, 18))
    found = calibrated.decide_shifts(*measured, RATE, effect, "a test", "of any class").clients[
        4
    ]  # p-value by Holm: three times
    assert found.flagged
    shifts = {14: 0.9, 16: 0.8, 13: -0.7, 12: 0.5, 15: 0.4}
    assert [(each.feature, each.shift) for each in found.features] == list(shifts.items())
    for rate, min_effect in ((RATE * 0.99, effect), (RATE, effect + 0.01)):
        spared = calibrated.decide_shifts(*measured, rate, min_effect, "a test", "of any class").clients[4]
        assert not spared.flagged
        assert spared.features == ()
    names = Names(clients=tuple("abcde"), features=tuple(f"column {number}" for number in range(18)))
    told = calibrated.describe_shift(4, found, names, "of any class")
    assert "client e" in told
    assert [int(number) for number in re.findall(r"column (\d+)", told)] == list(shifts)
    assert "column" not in calibrated.describe_shift(4, spared, names, "of any class")


def normal_members(seed: int, rows: int, num_features: int, shift: float, shifted: int) -> list[Client]:
    """Return six clients of two classes, the second of which is shifted in its first features."""
    generator = np.random.default_rng(seed)
    members = []
    for client in range(6):
        labels = generator.integers(0, 2, rows)
        features = generator.normal(size=(rows, num_features)) + 0.7 * labels[:, None]
        features[:, :shifted] += shift * (client == 1)
        members.append((features.astype(np.float32), labels))
    return members


def test_the_p_value_of_one_feature_in_closed_form() -> None:
    """z² = 11.7 of the closed form above, Student's t with 100 rows less a class; of one feature, without a factor."""
    shifts = two_clients(apart=0.5)
    np.testing.assert_allclose(shifts.freedom, 99)
    expected = 2 * student.sf(np.sqrt(625 * 199 / (50 * 212.5)), 99)
    np.testing.assert_allclose(shifts.one_feature_p_values(), expected)


@pytest.mark.parametrize("num_features", [50, 90])
@pytest.mark.parametrize("rows", [60, 1000])
def test_a_shift_of_one_feature_of_many_is_found(rows: int, num_features: int) -> None:
    """By two standard deviations; the root mean square is 0.28 of 50 features, 0.21 of 90. One of 0.4 is not told."""
    shifts = shifts_of(normal_members(0, rows, num_features, shift=2.0, shifted=1))
    finding = calibrated.decide_feature_skew_calibrated(shifts, 0.05 / 3, 0.25)
    assert finding.flagged_clients == (1,)
    found = finding.clients[1]
    assert found.p_value == pytest.approx(min(1.0, holm(shifts.one_feature_p_values())[1] / 0.1))
    assert finding.clients[0].p_value == pytest.approx(min(1.0, holm(shifts.p_values())[0] / 0.9))
    assert (found.source, found.features[0].feature) == ("one feature", 0)
    assert found.effect == pytest.approx(2.0, abs=0.6)
    small = shifts_of(normal_members(0, 1000, 50, shift=0.4, shifted=1))
    assert small.one_feature_p_values()[1] < 1e-6
    assert not calibrated.decide_feature_skew_calibrated(small, 0.05 / 3, 0.25).detected


@pytest.mark.stress
@pytest.mark.parametrize("kind", ["log-normal", "rare", "heavy"])
@pytest.mark.parametrize(("clients", "rows", "num_features"), [(4, 30, 20), (20, 20, 20), (10, 100, 50)])
def test_the_second_test_keeps_to_its_part_of_the_rate(kind: str, clients: int, rows: int, num_features: int) -> None:
    """At the detector's whole rate of 1/60, ten times what it is given."""
    generator = np.random.default_rng(0)
    alarms = 0
    for _ in range(300):
        members = []
        for _ in range(clients):
            features = {
                "log-normal": lambda shape: np.exp(generator.normal(size=shape)),
                "rare": lambda shape: (generator.random(shape) < 0.01) * 1.0,
                "heavy": lambda shape: generator.standard_t(3, shape),
            }[kind]((rows, num_features))
            members.append((features.astype(np.float32), generator.integers(0, 2, rows)))
        alarms += bool((holm(shifts_of(members, 2).one_feature_p_values()) <= 0.05 / 3).any())
    assert alarms <= most_alarms(300, 0.05 / 3)


def test_nothing_told_is_nothing_released_and_constant_features_do_not_vary() -> None:
    pooled = pool([draw(np.random.default_rng(0), [10, 10, 10])[0]])
    nobody = ClassMoments.empty_moments(0, NUM_FEATURES)
    np.testing.assert_allclose(calibrated.within_covariance(pooled, nobody), pooled.covariance, rtol=1e-9)
    assert calibrated.varying(np.zeros((0, 0))).tolist() == calibrated.varying(np.zeros((3, 3))).tolist() == []
    assert calibrated.varying(np.diag([1.0, 1e-13, 4.0])).tolist() == [0, 2]
    assert excess_variance([]) == 0


def test_a_class_of_one_client_alone_says_nothing() -> None:
    """Who holds classes that nobody else does can't be compared with anyone, and such rows of others do not count."""
    generator = np.random.default_rng(7)
    shifts = shifts_of([draw(generator, counts) for counts in ([30, 20, 0], [40, 0, 0], [0, 0, 80], [25, 0, 0])])
    assert (shifts.clients, shifts.rows.tolist()) == ((0, 1, 3), [30, 40, 25])
    why = shifts_of([draw(generator, counts) for counts in ([50, 0, 0], [0, 50, 0])])
    assert why in calibrated.decide_feature_skew_calibrated(why, RATE, 0.25).sentence
    assert not calibrated.decide_feature_skew_calibrated(why, RATE, 0.25).measured


def test_classes_as_one_is_the_comparison_without_labels() -> None:
    """The same numbers as if all rows had the same label to begin with."""
    generator = np.random.default_rng(8)
    members = [draw(generator, [40, 30, 30]) for _ in range(5)]
    unlabelled = [(features, np.zeros(len(features), np.int64)) for features, _ in members]
    pooled = pool([x for x, _ in members])
    rows = [x.astype(np.float64) for x, _ in members]
    totals = {k: ClientTotals(len(x), x.sum(axis=0), len(x) * x.var(axis=0)) for k, x in enumerate(rows)}
    merged = calibrated.label_adjusted_shifts(calibrated.classes_as_one(totals, pooled), pooled.covariance)
    expected = shifts_of(unlabelled)
    np.testing.assert_allclose(merged.statistics, expected.statistics, rtol=1e-6)
    np.testing.assert_allclose(merged.offsets, expected.offsets, rtol=1e-6, atol=1e-9)


def test_lengths_are_about_the_class_and_of_released_classes_alone() -> None:
    """Classes far apart add nothing; three rows of a third class, and the first of the others with them, are out."""
    features = np.array([[100.0], [102.0]] * 5 + [[0.0], [2.0]] * 10 + [[7.0]] * 3)
    labels = np.array([0] * 10 + [1] * 20 + [2] * 3)
    asked = inputs(samples(features, labels), 4, {"per_deviation": np.array([0.5])}, {"by_class": True})  # one absent
    np.testing.assert_allclose(row_norms(asked)["norms"].values, [20, 20 * 0.25, 20 * 0.0625])
    assert row_norms(asked)["norms"].rows == 20


def test_lengths_of_rows_of_any_class_are_about_the_mean_of_all() -> None:
    """Values 0 and 4 of one class, 2 and 6 of the other, about 3: squares 9, 1, 1 and 9 times a quarter."""
    features, labels = np.array([[0.0], [4.0], [2.0], [6.0]] * 5), np.array([0, 0, 1, 1] * 5)
    asked = inputs(samples(features, labels), 2, {"per_deviation": np.array([0.5])}, {"by_class": False})
    np.testing.assert_allclose(row_norms(asked)["norms"].values, [20, 20 * 5 / 4, 10 * (81 + 1) / 16])
