"""Rows that belong together or are nearly copies, and whether p-values are uniform where clients are alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kstest

from fedscout.detectors import DetectionConfig, near_copies as calculated, outliers
from fedscout.detectors.calibrated_feature_skew import label_adjusted_shifts, per_deviation, within_covariance
from fedscout.detectors.feature_skew import ClassMoments, MomentSums, class_sums, excess_variance, feature_moments
from fedscout.detectors.label_agreement import Agreement, count_test, discriminant, score_test
from fedscout.detectors.label_skew import ReleasedCounts, decide_label_skew_calibrated, label_counts, label_p_values
from fedscout.detectors.near_copies import LEAPS, NearCopies, columns_together, count_near_copies, near_copies
from fedscout.detectors.queries import CLIENT_QUERIES
from fedscout.detectors.report import CalibratedFinding
from fedscout.detectors.statistics import GroupSums, correlations, design_effects, group_labels, holm, pearson_moments
from fedscout.engine.arrays import IntArray
from fedscout.engine.data.client import Arrays
from fedscout.experiments.data.dataset import DatasetRequest
from fedscout.experiments.data.loaders.table import load_dataset
from tests.detectors.federations import inputs, let_out, most_alarms, samples

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
    assert [groups[name].tolist() for name in ("squares", "with_sizes", "groups")] == [[4, 5], [6, 7], [13, 2]]
    counts, groups = told((np.repeat([0, 1, 2], [20, 20, 3]), np.arange(43) // 5), 3, min_release=5)
    assert (groups["squares"][counts == 0] == 0).all()
    assert (groups["with_sizes"][counts == 0] == 0).all()


def test_groups_that_count_as_few_rows_are_compared_by_drawn_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred rows in groups of five with one label each count as 40, half of them of a class; 1,000 as 200."""
    generator = np.random.default_rng(0)
    for num_groups, method in ((40, "tables of effective counts"), (200, "χ²")):
        groups = np.repeat(np.arange(num_groups), 5)
        counts, sums = sums_of([(groups % 2, groups), (groups // 2 % 2, groups)], 2)
        assert method in label_p_values(counts, RATE, generator, groups=sums)[1]
        np.testing.assert_allclose(correlations(counts, sums), 1.0)
        np.testing.assert_allclose(design_effects(counts, sums), 5.0)
    counts, sums = sums_of([(np.zeros(20, int), np.arange(20)), (np.ones(20, int), np.arange(20))], 2)
    for cells, p_value in ((4 * 999, 0.001), (4 * 999 - 1, 1)):  # room for as many tables as are needed, or for fewer
        monkeypatch.setattr("fedscout.detectors.label_skew.MAX_DRAWN_CELLS", cells)
        assert label_p_values(counts, RATE, generator, groups=sums)[0].tolist() == [p_value] * 2


@pytest.mark.parametrize("alike", [0.3, 0.7, 1.0])
def test_the_correlation_is_found(alike: float) -> None:
    """Two rows share the subject's label with probability alike², else they are independent: ρ = alike²."""
    generator = np.random.default_rng(1)
    counts, sums = sums_of(drawn(generator, 20, generator.integers(1, 9, 200), 0.3, alike), 2)
    np.testing.assert_allclose(correlations(counts, sums), alike**2, atol=0.03)


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


# -- Near copies: what is counted, what independent rows would show, and who is warned ---------------------------------


def among_themselves(rows: np.ndarray) -> NearCopies:
    return count_near_copies(rows, rows, among=True)


def subjects(num_features: int, spread: float, rows_each: int = 5, seed: int = 0) -> np.ndarray:
    """Return 200 subjects of deviation 1 and their rows, which scatter by `spread` around them."""
    generator = np.random.default_rng(seed)
    centres = np.repeat(generator.normal(size=(200, num_features)), rows_each, axis=0)
    return np.asarray(centres + spread * generator.normal(size=centres.shape))


def test_a_leap_by_hand() -> None:
    """Distances 1, 3, 4, …: 1/3 is a leap for every q; of 10, 11, … the ratios are 10/11 and more: none is."""
    others = np.array([1.0, *np.arange(3.0, 35.0)])[:, None]
    found = count_near_copies(np.zeros((1, 1)), others)
    assert found.shares.tolist() == [1, 1, 1, 1]
    even = count_near_copies(np.zeros((1, 1)), np.arange(10.0, 43.0)[:, None])
    assert even.shares.tolist() == [0, 0, 0, 0]


def test_an_equal_row_is_a_copy_and_a_row_is_none_of_itself() -> None:
    rows = np.random.default_rng(0).normal(size=(40, 12))
    assert count_near_copies(rows, rows).shares.tolist() == [1.0] * len(LEAPS)
    assert among_themselves(rows).shares[0] < 0.1
    assert among_themselves(np.repeat(rows, 2, axis=0)).shares.tolist() == [1.0] * len(LEAPS)


@pytest.mark.parametrize("num_features", [1, 2, 3, 5])
def test_independent_rows_show_what_is_expected_of_them(num_features: int) -> None:
    """Rows in the middle half of a cube, so that few meet its border, among all rows of the cube."""
    generator = np.random.default_rng(1)
    rows, others = 0.25 + 0.5 * generator.random((1000, num_features)), generator.random((4000, num_features))
    found = count_near_copies(rows, others)
    np.testing.assert_allclose(found.shares, found.expected, atol=0.06)
    assert found.sums[2] / found.sums[1] == pytest.approx(num_features, rel=0.1)


@pytest.mark.parametrize(("num_features", "spread"), [(5, 0.1), (10, 0.2), (30, 0.1), (30, 0.5)])
def test_rows_of_subjects_are_seen(num_features: int, spread: float) -> None:
    assert among_themselves(subjects(num_features, spread)).too_many


def coded_table(generator: np.random.Generator, num_rows: int) -> np.ndarray:
    """Return columns that are independent of each other: six categories, a column a level, and a whole number."""
    levels = (2, 3, 4, 5, 2, 3)
    codes = [generator.choice(k, num_rows, p=generator.dirichlet(np.ones(k))) for k in levels]
    columns = [np.eye(k)[code] for k, code in zip(levels, codes, strict=True)]
    return np.hstack([*columns, generator.integers(0, 10, num_rows)[:, None] / 5])


@pytest.mark.parametrize("num_rows", [100, 600, 3000])
def test_of_columns_that_are_shuffled_the_expected_share_is_the_share(num_rows: int) -> None:
    """Rows of few categories coincide though they are independent."""
    for seed in range(5):
        generator = np.random.default_rng(seed)
        for rows in (coded_table(generator, num_rows), np.round(2 * generator.normal(size=(num_rows, 4)))):
            test, train = rows[: num_rows // 5][:100], rows[num_rows // 5 :]
            for found in (count_near_copies(rows[:100], rows, among=True), count_near_copies(test, train)):
                assert not found.too_many
                clearest = found.clearest
                assert found.expected[clearest] == pytest.approx(found.shares[clearest], abs=0.2)


@pytest.mark.parametrize("num_rows", [300, 600])
def test_categories_that_depend_on_each_other_are_no_copies(num_rows: int) -> None:
    """Six categories that all follow a seventh in four of five rows: rows coincide oftener than by column."""
    for seed in range(5):
        generator = np.random.default_rng(seed)
        common = generator.integers(0, 4, num_rows)
        columns = []
        for k in (2, 3, 4, 5, 2, 3):
            own = np.where(generator.random(num_rows) < 0.8, common % k, generator.integers(0, k, num_rows))
            columns.append(np.eye(k)[own])
        rows = np.hstack(columns)
        assert not count_near_copies(rows[:100], rows, among=True).too_many
        assert not count_near_copies(rows[: num_rows // 5], rows[num_rows // 5 :]).too_many


@pytest.mark.parametrize("num_rows", [99, 600])
def test_three_frames_of_a_sequence_are_found_beside_categories(num_rows: int) -> None:
    for seed in range(5):
        generator = np.random.default_rng(seed)
        scenes = np.hstack([coded_table(generator, num_rows // 3), generator.normal(size=(num_rows // 3, 4))])
        frames = np.repeat(scenes, 3, axis=0)
        frames[:, -4:] += 0.02 * generator.normal(size=(num_rows, 4))
        frames = frames[generator.permutation(num_rows)]
        assert among_themselves(frames).too_many
        assert count_near_copies(frames[:60], frames[60:]).too_many


def test_columns_of_one_category_stay_together() -> None:
    """Levels exclude each other; the next category's first level does not, nor does a number join."""
    first, second = np.eye(3)[[0, 1, 2, 0, 1]], np.eye(2)[[0, 0, 1, 1, 0]]
    rows = np.hstack([first, second, np.arange(5.0)[:, None]])
    assert columns_together(rows).tolist() == [0, 0, 0, 1, 1, 2]


@pytest.mark.parametrize("among", [True, False])
def test_blocks_are_read_as_one(monkeypatch: pytest.MonkeyPatch, among: bool) -> None:
    rows = subjects(6, 0.1)
    whole = count_near_copies(rows[:50], rows if among else rows[50:], among)
    monkeypatch.setattr(calculated, "BLOCK_ROWS", 130)
    parts = count_near_copies(rows[:50], rows if among else rows[50:], among)
    np.testing.assert_array_equal(parts.shares, whole.shares)
    np.testing.assert_allclose(parts.sums[7:], whole.sums[7:], atol=10)
    assert parts.sums[1] == pytest.approx(whole.sums[1])


@pytest.mark.parametrize("name", ["digits", "wine", "breast_cancer"])
@pytest.mark.parametrize("num_clients", [4, 10])
def test_clients_of_independent_rows_give_no_warning(name: str, num_clients: int) -> None:
    rows = load_dataset(DatasetRequest(dataset=name)).features
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(rows))
        answers = [let_out(near_copies(inputs(samples(rows[own])))) for own in np.array_split(order, num_clients)]
        assert not NearCopies.pooled(answers).too_many
    parts = [let_out(near_copies(inputs(samples(subjects(6, 0.1, seed=seed)[:90])))) for seed in range(3)]
    few = let_out(near_copies(inputs(samples(np.zeros((10, 3))))))  # say nothing
    pooled = NearCopies.pooled([*parts, few])
    assert (pooled.num_rows, pooled.too_many) == (270, True)


# -- Whether every calibrated p-value is uniform where clients are alike -----------------------------------------------
#
# Kolmogorov-Smirnov over simulated federations. Of each counts the smallest p-value of its clients, corrected over
# them, which is what raises an alarm. Rows are independent draws of one distribution, dealt to clients. Clients'
# answers are those of their own halves on such rows; what is simulated are the distances of trained models.
#
# A p-value may be too large, as Holm's is with few clients and tests of counts are with few rows. It must not be too
# small: anywhere (the one-sided statistic of Kolmogorov and Smirnov), nor at the rate of one detector.


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
    norms, answers = [], {}
    for client, (features, labels) in enumerate(federation):
        data = samples(features, labels)
        terms = inputs(data, NUM_CLASSES, {"per_deviation": per_deviation(within)}, {"by_class": True}, min_release)
        norms.append(let_out(CLIENT_QUERIES["row_norms"](terms), min_release)["norms"].astype(float))
        own = inputs(data, NUM_CLASSES, comparison.arrays(), {"shifted": False}, min_release)
        answers[client] = Agreement.read(let_out(CLIENT_QUERIES["label_agreement"](own), min_release))
    features_p = float(holm(shifts.p_values(excess_variance(norms))).min())
    tests = (count_test(answers), score_test(answers, comparison))
    counts_p, scores_p = (1.0 if test is None else min(test.p_values.values()) for test in tests)
    return features_p, counts_p, scores_p


def is_not_too_small(p_values: list[float]) -> None:
    """Fail if p-values are smaller than uniform ones hardly ever are, throughout or at the detector's rate."""
    assert kstest(p_values, "uniform", alternative="greater").pvalue > UNSURE
    assert sum(p <= RATE for p in p_values) <= most_alarms(len(p_values), RATE)


ROWS = [
    pytest.param(4, 60, 200, marks=pytest.mark.slow),
    pytest.param(100, 60, 40, marks=pytest.mark.slow),
    pytest.param(1000, 60, 200, marks=pytest.mark.stress),
]
"""Clients, rows of each, federations."""


@pytest.mark.sampled(2)
@pytest.mark.timeout(1800)  # a federation of a thousand clients takes a second, three on a busy machine
@pytest.mark.parametrize(("skewed", "min_release"), [(False, 5), (True, 5), (True, 1)])
@pytest.mark.parametrize(("clients", "rows", "federations"), ROWS)
def test_feature_skew_and_agreement(clients: int, rows: int, federations: int, skewed: bool, min_release: int) -> None:
    generator = np.random.default_rng(clients)
    found = [smallest_row_ps(dealt(generator, clients, rows, skewed), min_release) for _ in range(federations)]
    for p_values in zip(*found, strict=True):
        is_not_too_small(list(p_values))


@pytest.mark.parametrize("clients", [4, 10, pytest.param(100, marks=pytest.mark.slow)])
def test_distances_of_models(monkeypatch: pytest.MonkeyPatch, clients: int) -> None:
    """Exact, so that they must not be too large either; distances are log-normal, six parts independent.

    A p-value that counts permutations is uniform however many are drawn; its own scatter, 0.016 at most with the fewest
    that the test draws, is lost in the steps of 0.003 and the bounds above 0.1 of so many federations.
    """
    monkeypatch.setattr(outliers, "DRAWN_CELLS", outliers.DRAWN_CELLS // 10)
    generator = np.random.default_rng(clients)
    found = [outliers.exchange_p_values(generator.normal(size=(6, clients)), 0.0).min() for _ in range(300)]
    is_not_too_small(found)
    assert kstest(found, "uniform").pvalue > UNSURE
