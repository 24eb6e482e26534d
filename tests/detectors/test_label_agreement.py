"""How labels agree: closed forms, exact tails, false-alarm rates and power, rows in groups, laws of the decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import hypergeom, t as student

from fedscout.detectors import CLIENT_QUERIES, CalibratedFinding, DetectionConfig
from fedscout.detectors.calibrated_feature_skew import within_covariance
from fedscout.detectors.conversation import hold
from fedscout.detectors.detect import clients_with_similar_labels, measure_labels
from fedscout.detectors.feature_exchanges import FeatureMeasurement, measure_features
from fedscout.detectors.label_agreement import (
    Agreement,
    Discriminant,
    count_test,
    design_effects,
    disagreement_tail,
    discriminant,
    label_agreement,
    label_tests,
    score_test,
)
from fedscout.detectors.outliers import decide_outliers_calibrated
from fedscout.detectors.statistics import ClientTest
from fedscout.engine.data.federation import Federation
from fedscout.engine.grid.local_grid import LocalGrid
from tests.detectors.federations import federation, inputs, let_out, most_alarms, samples
from tests.detectors.test_calibrated_feature_skew import draw, measure

RATE = 0.05


def agreements(rows: np.ndarray, right: np.ndarray) -> dict[int, Agreement]:
    """Return answers that tell of counts alone."""
    none = np.zeros(rows.shape[1])
    return {client: Agreement(rows[client], rows[client], right[client], none, 0.0) for client in range(len(rows))}


def flagged(test: ClientTest) -> list[int]:
    """Return who has a sufficient p-value and misses anything at all."""
    return [client for client in test.p_values if test.p_values[client] <= RATE and test.effects[client] > 0]


def test_classes_add_up() -> None:
    """Every pair of counts that adds up to at least five, by enumeration."""
    own, rows, errors = np.array([8, 12]), np.array([30, 50]), np.array([9, 6])
    expected = sum(
        hypergeom.pmf(a, 30, 9, 8) * hypergeom.pmf(b, 50, 6, 12) for a, b in product(range(9), range(13)) if a + b >= 5
    )
    assert disagreement_tail(own, np.array([3, 2]), rows, errors) == pytest.approx(expected)


def test_many_disagreements_are_normal() -> None:
    """At variance 95.6 the sum is exact, at twice that nearly normal, and so it is of 1,500 that are expected."""
    own, rows, errors = np.array([1000]), np.array([4000]), np.array([600])
    for observed in (140, 150, 165):
        exact = hypergeom.sf(observed - 1, 4000, 600, 1000)
        assert disagreement_tail(own, np.array([observed]), rows, errors) == pytest.approx(exact)
        doubled = disagreement_tail(2 * own, np.array([2 * observed]), 2 * rows, 2 * errors)
        assert doubled == pytest.approx(hypergeom.sf(2 * observed - 1, 8000, 1200, 2000), rel=0.15)
    for observed in (1480, 1520, 1550):
        tail = disagreement_tail(np.array([5000]), np.array([observed]), np.array([20_000]), np.array([6000]))
        assert tail == pytest.approx(hypergeom.sf(observed - 1, 20_000, 6000, 5000), rel=0.02)


def test_nothing_to_compare_is_no_evidence() -> None:
    """Nobody who agrees, or no disagreement at the client, or nobody else of the class."""
    for numbers in (
        [[9], [9], [30], [30]],
        [[9], [0], [30], [5]],
        [[9], [9], [9], [9]],
        [[9, 5], [9, 0], [9, 40], [9, 3]],
    ):
        assert disagreement_tail(*map(np.array, numbers)) == 1


def test_what_one_client_lacks_the_others_do_not() -> None:
    """A poisoned client lowers what all are expected to agree; the others are above it, and above is no alarm."""
    rows, right = np.full((4, 2), 100), np.array([[95, 95], [0, 0], [95, 95], [95, 95]])
    found = count_test(agreements(rows, right))
    assert flagged(found) == [1]
    assert (found.effects[1], found.effects[0]) == (1, pytest.approx(1 - 95 / (190 / 3)))
    assert found.classes[1] == (0, 1)


def test_few_rows_have_no_score_and_none_no_test() -> None:
    known = of_one_axis([-40.0, 44.0], [40, 44])
    rows, right = np.tile([10, 11], (4, 1)), np.full((4, 2), 9)
    assert score_test(agreements(rows, right), known) is None
    several = (agreements(rows, right), agreements(rows[:2], right), agreements(0 * rows, 0 * right))
    assert [len(label_tests(answers, known)) for answers in several] == [1, 0, 0]


def test_a_class_of_one_client_alone_says_nothing() -> None:
    """Nobody else says how often its labels should agree, so its misses there do not count, nor its hits."""
    for right_there in (0, 30):
        rows = np.array([[50, 30], [50, 0], [50, 0], [50, 0]])
        found = count_test(agreements(rows, np.array([[40, right_there], [40, 0], [40, 0], [40, 0]])))
        assert found.effects == dict.fromkeys(range(4), 0.0)
        assert found.classes[0] == ()


def test_agreement_that_is_missing_counts_no_more_than_information() -> None:
    """Rows scattered by noise agree less, while their classes' means are where the others' are.

    Four clients hold 200 of 800 rows of each class, and |g_c|² = 1, so that J = 400 · 3/4. T = −120 is 0.4 of J; as the
    client's own quarter of all rows draws the means after them, 0.4 / (1 + 0.4 / 4) of the information is missing.
    """
    known = of_one_axis([-800.0, 800.0], [800, 800])
    rows, right = np.full((4, 2), 200), np.array([[190, 190], [120, 120], [190, 190], [190, 190]])
    honest = {c: Agreement(rows[c], rows[c], right[c], np.zeros(2), 1.0) for c in range(4)}
    counts, scores = label_tests(honest, known)
    assert counts.p_values[1] < 1e-6
    assert counts.effects[1] == scores.effects[1] == 0
    said = {**honest, 1: Agreement(rows[1], rows[1], right[1], np.array([-70.0, -50.0]), 1.0)}
    counts, scores = label_tests(said, known)
    assert counts.effects[1] == pytest.approx(min(1 - 120 / 190, 0.4 / 1.1))
    assert scores.effects[1] == pytest.approx(0.4 / 1.1)


def test_clients_that_are_left_out_are_compared_and_not_compared_with() -> None:
    """T of the one has the variance φ Σ n_c (1 + n_c / N_c) |g_c|², and the effect −T / Σ n_c |g_c|².

    It is the only one with disagreements, so that the others have the p-value 1 and it has the hypergeometric one.
    """
    known = replace(of_one_axis([-600.0, 600.0], [600, 600]), shifted=frozenset([1]), left_out=frozenset([1]))
    rows = np.full(2, 200)
    answers = {c: Agreement(rows, rows, rows - 5 * (c == 1), np.full(2, -10.0) * (c == 1), 1.0) for c in range(4)}
    counts, scores = label_tests(answers, known)
    assert [counts.p_values[client] for client in (0, 2, 3)] == [1, 1, 1]
    assert counts.p_values[1] == pytest.approx(4 * hypergeom.pmf(5, 800, 5, 200) ** 2)
    assert scores.effects[1] == pytest.approx(20 / 400)
    assert scores.p_values[1] == pytest.approx(min(1.0, 4 * student.cdf(-20 / np.sqrt(400 * 4 / 3), 398)))


# -- Label agreement: the discriminant in closed form, and what a client counts ----------------------------------------


def of_one_axis(sums: list[float], counts: list[int]) -> Discriminant:
    """Return a discriminant of one feature, which is its axis."""
    return Discriminant(np.array([[1.0]]), np.array(sums)[:, None], np.array(counts))


OTHERS = of_one_axis([0.0, 400.0], [100, 100])
"""The other clients' classes have the means 0 and 4."""


def answer(
    features: npt.ArrayLike,
    labels: npt.ArrayLike,
    known: Discriminant = OTHERS,
    shifted: bool = False,
    min_release: int = 5,
) -> Agreement:
    data = samples(np.array(features)[:, None], np.array(labels))
    asked = inputs(data, len(known.counts), known.arrays(), {"shifted": shifted}, min_release)
    return Agreement.read(let_out(label_agreement(asked), min_release))


def count(features: list[float], labels: list[int], **asked: Any) -> tuple[list[int], list[int]]:
    """Return groups, and those that agree."""
    own = answer(features, labels, **asked)
    return own.groups.tolist(), own.agreeing.tolist()


def test_groups_of_rows_agree_on_their_side_of_the_middle() -> None:
    """The five rows of class 0 that lie farthest have the mean 1.3, although one is beyond 2; those of class 1 1.5.

    Where rows may be told of one by one, one of each class lies beyond 2, on the other side.
    """
    features = [2.5] + [1.0] * 4 + [0.0] * 6 + [1.5] * 5 + [5.0] * 5
    assert count(features, [0] * 11 + [1] * 10) == ([2, 2], [2, 1])
    features = [-1.5, -1, 0, 0, 0, 2.5, 1.5, 4, 4, 4, 4.5, 6]
    assert count(features, [0] * 6 + [1] * 6, min_release=1) == ([6, 6], [5, 5])


@pytest.mark.parametrize(
    ("sizes", "counts", "rows"),
    [
        ([6, 6, 0], [100] * 3, [6, 6, 0]),  # a client may lack the last class
        ([9, 3, 20], [100] * 3, [0, 0, 20]),  # three rows are too few, and alone among those left out
        ([9, 0, 0], [0, 100, 100], [0, 0, 0]),  # nobody else told of its class
    ],
)
def test_what_is_told_of_classes(sizes: list[int], counts: list[int], rows: list[int]) -> None:
    labels = np.repeat([0, 1, 2], sizes)
    own = answer(4.0 * labels, labels, of_one_axis([0.0, 400.0, 800.0], counts))
    assert own.rows.tolist() == rows
    assert not own.groups[own.rows == 0].any()
    assert not own.scores[own.rows == 0].any()
    assert own.agreeing.tolist() == own.groups.tolist()
    assert (own.spread, own.freedom_of(1)) == (0, sum(rows) - np.count_nonzero(rows))


def test_a_shift_of_skewed_features_is_no_disagreement() -> None:
    """All rows lie ten higher, so far that all would be of class 1; only who is told to takes that off."""
    features, labels = [10, 10.1, 9.9, 10, 10.2, 14, 14.1, 13.9, 14, 14], [0] * 5 + [1] * 5
    assert count(features, labels, shifted=True) == ([1, 1], [1, 1])
    assert count(features, labels) == ([1, 1], [0, 1])


def test_ties_count_for_nobody() -> None:
    """All rows lie in the middle between two means, or the two means are one."""
    assert count([2.0] * 5 + [4.0] * 5, [0] * 5 + [1] * 5) == ([0, 1], [0, 1])
    alike = of_one_axis([400.0, 400.0, 0.0], [100, 100, 100])
    assert count([0.0] * 5 + [4.0] * 5, [0] * 5 + [1] * 5, known=alike) == ([1, 0, 0], [0, 0, 0])


def test_other_shares_of_the_classes_are_no_shift() -> None:
    """Rows one higher, four of five of class 1: as a whole they lie 2.2 higher, of which labels explain all but 1."""
    own = answer([1.0] * 5 + [5.0] * 20, [0] * 5 + [1] * 20, shifted=True)
    assert own.scores == pytest.approx([0, 0], abs=1e-9)
    assert own.agreeing.tolist() == own.groups.tolist() == [1, 4]  # of five rows each


def test_the_score_of_honest_and_of_swapped_labels() -> None:
    """Means 0 and 4 about 2: g = −2 and 2.

    Rows at −1, 1, 3 and 5 in turn: own means 0 and 4, deviations of ±1 along g of length 2, hence squares of 4 each,
    20 of them, over 18 degrees of freedom times |g|² = 4. Swapped, each of 20 rows is 4 off against its g: T = −160.
    """
    features, labels = [-1.0, 1.0] * 5 + [3.0, 5.0] * 5, [0] * 10 + [1] * 10
    honest, swapped = answer(features, labels), answer(features, [1 - label for label in labels])
    for own in (honest, swapped):
        assert own.spread == pytest.approx(20 * 4 / (18 * 4))
        assert own.freedom_of(1) == 18
    assert honest.scores.sum() == pytest.approx(0, abs=1e-9)
    assert swapped.scores.sum() == pytest.approx(-160)


@pytest.mark.parametrize(("labels", "shifted"), [([0] * 10 + [1] * 10, False), ([1] * 20, True)])
def test_labels_that_say_nothing_lose_all(labels: list[int], shifted: bool) -> None:
    """Both classes lie at the centre: T = −Σ n_c |g_c|² = −20 · 4; and so where all labels are the one class above.

    There the label-adjusted shift is 2 − 4, the rows' own 0, so labels are what is wrong, and nothing is taken off.
    """
    own = answer([1.0, 3.0] * 10, labels, shifted=shifted)
    assert own.scores.sum() == pytest.approx(-80)
    assert OTHERS.information.tolist() == [4, 4]


def test_two_classes_give_fisher_s_direction() -> None:
    """Proportional to S⁻¹ (m₁ − m₀), S being the correlation within classes, pulled to the identity by d / (d + N)."""
    generator = np.random.default_rng(0)
    members = [draw(generator, [60, 80, 0]) for _ in range(4)]
    pooled, classes = measure(members)
    within = within_covariance(pooled, classes)
    found = discriminant(classes, within, pooled.num_rows)
    scale = np.sqrt(np.diag(within))
    pull = 8 / (8 + pooled.num_rows)
    correlation = (1 - pull) * within / np.outer(scale, scale) + pull * np.eye(8)
    direction = np.linalg.solve(correlation, (classes.means[1] - classes.means[0]) / scale) / scale
    assert found.axes.shape == (8, 1)
    cosine = found.axes[:, 0] @ direction / np.linalg.norm(found.axes) / np.linalg.norm(direction)
    assert abs(cosine) == pytest.approx(1, abs=1e-9)
    np.testing.assert_allclose(found.sums, classes.sums @ found.axes)


def discriminant_of(members: list[tuple[np.ndarray, np.ndarray]], num_classes: int = 3) -> Discriminant | None:
    pooled, classes = measure(members, num_classes)
    return discriminant(classes, within_covariance(pooled, classes), pooled.num_rows)


def test_there_are_as_many_axes_as_classes_less_one_and_a_constant_feature_has_no_part_in_them() -> None:
    generator = np.random.default_rng(1)
    members = [draw(generator, [60, 80, 70]) for _ in range(3)]
    for features, _ in members:
        features[:, 3] = 7.0
    assert discriminant_of(members).axes.shape == (8, 2)
    assert discriminant_of(members).axes[3].tolist() == [0, 0]
    assert discriminant_of([draw(generator, [60, 0, 0]) for _ in range(3)]) is None


@pytest.mark.parametrize(("apart", "is_compared"), [(0.01, False), (1.0, True)])
def test_classes_are_compared_if_their_means_differ_beyond_chance(apart: float, is_compared: bool) -> None:
    """A hundredth of a deviation is a seventh of the standard error of their distance; one is seven of them."""
    low = np.tile([0.0, 2.0], 50)[:, None]
    labels = np.repeat([0, 1], 50)
    features = (low + apart * labels[:, None]).astype(np.float32)
    assert (discriminant_of([(features, labels)] * 2, num_classes=2) is not None) == is_compared


def test_strange_clients_are_left_out_of_the_means() -> None:
    """While they are fewer than half; then the sums are those of the others."""
    generator = np.random.default_rng(2)
    members = [draw(generator, [60, 80, 70]) for _ in range(5)]
    members[3] = (members[3][0] + 50, members[3][1])
    pooled, classes = measure(members)
    within = within_covariance(pooled, classes)
    found = discriminant(classes, within, pooled.num_rows, strange=[3])
    assert found.left_out == found.shifted == {3}
    _, others = measure([member for client, member in enumerate(members) if client != 3])
    np.testing.assert_array_equal(found.counts, others.pooled_counts)
    np.testing.assert_allclose(found.sums, others.sums @ found.axes, rtol=1e-9)
    everyone = discriminant(classes, within, pooled.num_rows, strange=[1, 2, 3])
    assert (everyone.left_out, everyone.shifted) == (frozenset(), {1, 2, 3})


# -- How labels agree where rows belong together: laws of the design effect, false alarms and power --------------------


GroupedRows = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Features, labels and groups."""


def rows_of_subjects(generator: np.random.Generator, sizes: np.ndarray, label_alike: float, icc: float) -> GroupedRows:
    """Return a client's rows: labels that are the subject's with a probability, features that scatter by subject."""
    groups = np.repeat(np.arange(len(sizes)), sizes)
    subjects, own = generator.integers(0, 2, len(sizes)), generator.integers(0, 2, len(groups))
    labels = np.where(generator.random(len(groups)) < label_alike, subjects[groups], own)
    scatter = np.sqrt(icc) * generator.normal(size=(len(sizes), 6))[groups]
    scatter += np.sqrt(1 - icc) * generator.normal(size=(len(groups), 6))
    return 1.5 * np.eye(2, 6)[labels] + scatter, labels, groups


def subjects(seed: int, sizes: np.ndarray, label_alike: float = 1.0, icc: float = 0.9) -> list[GroupedRows]:
    generator = np.random.default_rng(seed)
    return [rows_of_subjects(generator, sizes, label_alike, icc) for _ in range(10)]


def federation_of(clients: list[GroupedRows]) -> Federation:
    source = federation([(features, labels) for features, labels, _ in clients])
    return replace(source, groups=np.concatenate([1000 * client + own for client, (_, _, own) in enumerate(clients)]))


def decide(clients: list[GroupedRows]) -> CalibratedFinding:
    """Return the decision by labels alone."""
    grid, settings = LocalGrid(federation_of(clients), CLIENT_QUERIES), DetectionConfig()
    labels = hold(grid, measure_labels(settings, 0, True))
    alike = clients_with_similar_labels(labels)
    features = hold(grid, measure_features(tuple(labels.counts), (), settings, alike, True))
    return decide_outliers_calibrated(features.agreement, None, None, settings, features.concepts)


def answers_of(
    clients: list[GroupedRows], grouped: bool = True, min_release: int = 5
) -> tuple[Mapping[int, Agreement], Discriminant]:
    """Return what clients tell on plain axes, their own rows among the sums."""
    num_features, num_classes = clients[0][0].shape[1], 1 + max(labels.max() for _, labels, _ in clients)
    sums, counts = np.zeros((num_classes, num_features)), np.zeros(num_classes, np.int64)
    for features, labels, _ in clients:
        np.add.at(sums, labels, features.astype(np.float32).astype(np.float64))
        counts += np.bincount(labels, minlength=num_classes)
    known, answers = Discriminant(np.eye(num_features), sums, counts), {}
    for client, (features, labels, groups) in enumerate(clients):
        asked = inputs(samples(features, labels), num_classes, known.arrays(), {"shifted": False}, min_release)
        answer = label_agreement(replace(asked, groups=groups if grouped else None))
        answers[client] = Agreement.read(let_out(answer, min_release))
    return answers, known


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
    alarms = sum(decide(subjects(seed, sizes, label_alike)).detected for seed in range(60))
    assert alarms <= most_alarms(60, DetectionConfig().detector_rate)


# -- The decision by labels: where clients are alike, where one is not, and where nobody agrees ------------------------


DETECTOR_RATE = DetectionConfig().detector_rate

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
        assert sum(p <= DETECTOR_RATE for p in p_values) <= most_alarms(100, DETECTOR_RATE)


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


HALVES = ((0, 2, 4), (1, 3, 5))


@pytest.mark.parametrize(
    ("draw", "groups"), [(by_rules(6), ()), (by_rules(2), HALVES), (separable((0, 2, 4)), HALVES), (in_languages, ())]
)
def test_without_a_majority_nobody_is_out_and_who_agree_are_named(
    draw: Draw, groups: tuple[tuple[int, ...], ...]
) -> None:
    for seed in range(5):
        found = decided(draw, 6, seed)
        assert (found.measured, found.flagged_clients) == (False, ())
        assert found.groups == groups


@pytest.mark.parametrize("wrong", [(0,), (0, 1)])
def test_a_minority_of_at_most_a_third_is_flagged(wrong: tuple[int, ...]) -> None:
    for seed in range(5):
        assert decided(separable(wrong), 6, seed).flagged_clients == wrong


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
