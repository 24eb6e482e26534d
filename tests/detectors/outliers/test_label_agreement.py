"""Label agreement: the discriminant in closed form, and what a client counts."""

from __future__ import annotations

import numpy as np
import pytest

from fedscout.detectors.calibrated_feature_skew import within_covariance
from fedscout.detectors.label_agreement import Agreement, Discriminant, discriminant, label_agreement
from tests.detectors.federations import inputs, let_out, samples
from tests.detectors.skew.test_calibrated_feature_skew import draw, measure


def of_one_axis(sums: list[float], counts: list[int]) -> Discriminant:
    """Return a discriminant of one feature, which is its axis."""
    return Discriminant(np.array([[1.0]]), np.array(sums)[:, None], np.array(counts))


OTHERS = of_one_axis([0.0, 400.0], [100, 100])
"""The other clients' classes have the means 0 and 4."""


def answer(
    features: list[float], labels: list[int], known: Discriminant = OTHERS, shifted: bool = False, min_release: int = 5
) -> Agreement:
    data = samples(np.array(features)[:, None], np.array(labels))
    asked = inputs(data, len(known.counts), known.arrays(), {"shifted": shifted}, min_release)
    return Agreement.read(let_out(label_agreement(asked), min_release))


def count(
    features: list[float], labels: list[int], min_release: int = 5, shifted: bool = False
) -> tuple[list[int], list[int]]:
    """Return groups, and those that agree."""
    own = answer(features, labels, min_release=min_release, shifted=shifted)
    return own.groups.tolist(), own.agreeing.tolist()


def test_groups_of_rows_agree_on_their_side_of_the_middle() -> None:
    """The five rows of class 0 that lie farthest have the mean 1.3, although one is beyond 2; those of class 1 1.5."""
    features = [2.5] + [1.0] * 4 + [0.0] * 6 + [1.5] * 5 + [5.0] * 5
    assert count(features, [0] * 11 + [1] * 10) == ([2, 2], [2, 1])


def test_rows_are_judged_one_by_one_where_they_may_be_told() -> None:
    """One row of each class lies beyond 2, on the other side."""
    features = [-1.5, -1, 0, 0, 0, 2.5, 1.5, 4, 4, 4, 4.5, 6]
    assert count(features, [0] * 6 + [1] * 6, min_release=1) == ([6, 6], [5, 5])


def test_swapped_labels_do_not_agree() -> None:
    assert count([0, 0.1, -0.1, 0, 0.2, 4, 4.1, 3.9, 4, 4], [1] * 5 + [0] * 5) == ([1, 1], [0, 0])


def test_a_shift_of_skewed_features_is_no_disagreement() -> None:
    """All rows lie ten higher, so far that all would be of class 1; only who is told to takes that off."""
    features, labels = [10, 10.1, 9.9, 10, 10.2, 14, 14.1, 13.9, 14, 14], [0] * 5 + [1] * 5
    assert count(features, labels, shifted=True) == ([1, 1], [1, 1])
    assert count(features, labels) == ([1, 1], [0, 1])


def test_ties_count_for_nobody() -> None:
    """All rows lie in the middle between two means, or the two means are one."""
    assert count([2.0] * 5 + [4.0] * 5, [0] * 5 + [1] * 5) == ([0, 1], [0, 1])
    own = answer([0.0] * 5 + [4.0] * 5, [0] * 5 + [1] * 5, of_one_axis([400.0, 400.0, 0.0], [100, 100, 100]))
    assert (own.groups.tolist(), own.agreeing.tolist()) == ([1, 0, 0], [0, 0, 0])


def test_other_shares_of_the_classes_are_no_shift() -> None:
    """Rows one higher, four of five of class 1: as a whole they lie 2.2 higher, of which labels explain all but 1."""
    own = answer([1.0] * 5 + [5.0] * 20, [0] * 5 + [1] * 20, shifted=True)
    assert own.scores == pytest.approx([0, 0], abs=1e-9)
    assert own.agreeing.tolist() == own.groups.tolist() == [1, 4]  # of five rows each


def test_a_client_may_lack_the_last_class() -> None:
    known = of_one_axis([0.0, 400.0, 800.0], [100, 100, 100])
    own = answer([0.0] * 6 + [4.0] * 6, [0] * 6 + [1] * 6, known)
    assert own.rows.tolist() == [6, 6, 0]
    assert own.agreeing.tolist() == own.groups.tolist() == [1, 1, 0]
    assert own.spread == 0


def test_small_classes_are_not_told_of() -> None:
    """Three rows are too few, and alone among those left out; so the first nine are left out as well."""
    known = of_one_axis([0.0, 400.0, 800.0], [100, 100, 100])
    own = answer([0.0] * 9 + [4.0] * 3 + [8.0] * 20, [0] * 9 + [1] * 3 + [2] * 20, known)
    assert own.rows.tolist() == [0, 0, 20]
    assert own.agreeing[1] == own.scores[0] == own.scores[1] == 0


def test_nothing_in_common_is_all_zero() -> None:
    own = answer([0.0] * 9, [0] * 9, of_one_axis([0.0, 400.0], [0, 100]))
    assert (own.rows.sum(), own.spread, own.freedom_of(1)) == (0, 0, 0)


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


def test_labels_that_say_nothing_lose_all() -> None:
    """Both classes lie at the centre: T = −Σ n_c |g_c|² = −20 · 4."""
    own = answer([1.0, 3.0] * 10, [0] * 10 + [1] * 10)
    assert own.scores.sum() == pytest.approx(-80)
    assert OTHERS.information.tolist() == [4, 4]


def test_rows_that_stay_where_they_are_are_not_shifted() -> None:
    """All labels are the one class above: the rows as a whole lie at the centre, so their labels are what is wrong.

    The label-adjusted shift is 2 − 4, the rows' own 0: nothing is taken off, and T = 20 (2 − 4) 2.
    """
    own = answer([1.0, 3.0] * 10, [1] * 20, shifted=True)
    assert own.scores.sum() == pytest.approx(-80)


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
    assert discriminant_of(members).axes.shape == (8, 2)
    for features, _ in members:
        features[:, 3] = 7.0
    assert discriminant_of(members).axes.shape == (8, 2)
    assert discriminant_of(members).axes[3].tolist() == [0, 0]


@pytest.mark.parametrize(("apart", "is_compared"), [(0.01, False), (1.0, True)])
def test_classes_are_compared_if_their_means_differ_beyond_chance(apart: float, is_compared: bool) -> None:
    """A hundredth of a deviation is a seventh of the standard error of their distance; one is seven of them."""
    low = np.tile([0.0, 2.0], 50)[:, None]
    labels = np.repeat([0, 1], 50)
    features = (low + apart * labels[:, None]).astype(np.float32)
    assert (discriminant_of([(features, labels)] * 2, num_classes=2) is not None) == is_compared


def test_one_class_has_no_discriminant() -> None:
    assert discriminant_of([draw(np.random.default_rng(1), [60, 0, 0]) for _ in range(3)]) is None


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
