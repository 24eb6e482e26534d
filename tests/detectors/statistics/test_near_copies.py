"""Near copies: what is counted, what independent rows would show, and who is warned."""

from __future__ import annotations

import numpy as np
import pytest

from fedscout.detectors import near_copies as calculated
from fedscout.detectors.near_copies import LEAPS, NearCopies, columns_together, count_near_copies, near_copies
from fedscout.experiments.data.dataset import DatasetRequest
from fedscout.experiments.data.loaders.table import load_dataset
from tests.detectors.federations import inputs, let_out, samples


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
    assert found.num_with_copies.tolist() == [1, 1, 1, 1]
    even = count_near_copies(np.zeros((1, 1)), np.arange(10.0, 43.0)[:, None])
    assert even.num_with_copies.tolist() == [0, 0, 0, 0]


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
    assert found.harmonics / found.log_ratios == pytest.approx(num_features, rel=0.1)


def test_neither_scale_nor_place_matters() -> None:
    rows = subjects(6, 0.3)
    found, moved = among_themselves(rows), among_themselves(1000 * rows + 5)
    np.testing.assert_array_equal(found.num_with_copies, moved.num_with_copies)
    assert found.log_ratios == pytest.approx(moved.log_ratios)


@pytest.mark.parametrize(("num_features", "spread"), [(5, 0.1), (10, 0.2), (30, 0.1), (30, 0.5)])
def test_rows_of_subjects_are_seen(num_features: int, spread: float) -> None:
    assert among_themselves(subjects(num_features, spread)).too_many


@pytest.mark.parametrize("num_features", [1, 2, 5, 30])
def test_independent_rows_give_no_warning(num_features: int) -> None:
    assert not any(among_themselves(subjects(num_features, 0.1, rows_each=1, seed=seed)).too_many for seed in range(20))


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
    np.testing.assert_array_equal(parts.num_with_copies, whole.num_with_copies)
    np.testing.assert_allclose(parts.num_shuffled, whole.num_shuffled, atol=10)
    assert parts.log_ratios == pytest.approx(whole.log_ratios)


@pytest.mark.parametrize("name", ["digits", "wine", "breast_cancer"])
@pytest.mark.parametrize("num_clients", [4, 10])
def test_clients_of_independent_rows_give_no_warning(name: str, num_clients: int) -> None:
    rows = load_dataset(DatasetRequest(dataset=name)).features
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(rows))
        answers = [let_out(near_copies(inputs(samples(rows[own])))) for own in np.array_split(order, num_clients)]
        assert not NearCopies.pooled(answers).too_many


def test_clients_sums_add_up() -> None:
    parts = [subjects(6, 0.1, seed=seed)[:90] for seed in range(3)]
    pooled = NearCopies.pooled(let_out(near_copies(inputs(samples(part)))) for part in parts)
    assert pooled.num_rows == 270
    assert pooled.too_many


def test_few_rows_say_nothing() -> None:
    found = NearCopies.pooled([let_out(near_copies(inputs(samples(np.zeros((10, 3))))))])
    assert found.num_rows == 0
    assert not found.too_many
