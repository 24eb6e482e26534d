"""Corruption: noise with the moments asked for, labels wrong at the rate asked for, arguments untouched."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.fft import dctn

from fedscout.engine.data.client import ClientTransform
from fedscout.experiments.scenarios.features import FeatureDrop, FeatureNoise, JpegCompression
from fedscout.experiments.scenarios.labels import RandomLabelFlip, RenameLabels, ShiftLabels

TRANSFORMS = [
    FeatureNoise(1.0, 0.5),
    RandomLabelFlip(0.3),
    ShiftLabels(),
    FeatureDrop(2),
    FeatureDrop(2, "mean"),
    RenameLabels((2, 0, 3, 1)),
]


def rows(num_rows: int, num_classes: int, shape: tuple[int, ...] = (3,)) -> tuple[np.ndarray, np.ndarray]:
    features = np.linspace(-2, 2, num_rows * int(np.prod(shape)), dtype=np.float32).reshape(num_rows, *shape)
    return features, np.arange(num_rows, dtype=np.int64) % num_classes


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
@pytest.mark.parametrize("shape", [(3,), (4, 4, 2)])
@pytest.mark.parametrize("num_rows", [0, 1, 50])
def test_contract(transform: ClientTransform, shape: tuple[int, ...], num_rows: int) -> None:
    features, labels = rows(num_rows, 4, shape)
    features.setflags(write=False)
    labels.setflags(write=False)
    results = [
        copy(features, labels, 4, np.random.default_rng(3))
        for copy in (transform, pickle.loads(pickle.dumps(transform)))
    ]
    for new_features, new_labels in results:
        assert (new_features.shape, new_features.dtype) == (features.shape, np.float32)
        assert (new_labels.shape, new_labels.dtype) == (labels.shape, np.int64)
        assert ((new_labels >= 0) & (new_labels < 4)).all()
        assert not np.shares_memory(new_features, features)
        assert not np.shares_memory(new_labels, labels)
        np.testing.assert_array_equal(new_features, results[0][0])
        np.testing.assert_array_equal(new_labels, results[0][1])


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 0.1), (0.0, 0.5), (1.0, 0.1), (-0.1, 0.1), (1.0, 0.0)])
def test_noise_has_the_moments_asked_for(mean: float, deviation: float) -> None:
    features, labels = rows(2000, 2, (50,))
    noisy, same = FeatureNoise(mean, deviation)(features, labels, 2, np.random.default_rng(0))
    noise = noisy.astype(np.float64) - features

    # The mean of n Gaussian numbers has standard error σ/√n, their deviation σ/√(2n); sums are rounded to float32.
    num = noise.size
    rounding = 1e-6
    assert noise.mean() == pytest.approx(mean, abs=5 * deviation / np.sqrt(num) + rounding)
    assert noise.std() == pytest.approx(deviation, abs=5 * deviation / np.sqrt(2 * num) + rounding)
    np.testing.assert_array_equal(same, labels)


def test_noise_is_independent_between_columns() -> None:
    features, labels = np.zeros((4000, 10), np.float32), np.zeros(4000, np.int64)
    noise, _ = FeatureNoise(0.0, 1.0)(features, labels, 2, np.random.default_rng(1))
    correlations = np.corrcoef(noise, rowvar=False)[np.triu_indices(10, 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(4000)  # standard error of a correlation near zero: 1/√n


@given(st.integers(0, 200), st.integers(2, 12), st.floats(0, 1), st.integers(0, 1000))
def test_random_flip_hits_exactly_the_rate(num_rows: int, num_classes: int, rate: float, seed: int) -> None:
    features, labels = rows(num_rows, num_classes)
    same, flipped = RandomLabelFlip(rate)(features, labels, num_classes, np.random.default_rng(seed))
    assert (flipped != labels).sum() == round(rate * num_rows)
    np.testing.assert_array_equal(same, features)


def test_random_flip_prefers_no_row_and_no_class() -> None:
    num_rows, num_classes, rate = 30_000, 4, 0.3
    features, labels = rows(num_rows, num_classes)
    _, flipped = RandomLabelFlip(rate)(features, labels, num_classes, np.random.default_rng(0))

    wrong = flipped != labels
    for part in np.array_split(wrong, 10):
        assert part.mean() == pytest.approx(rate, abs=5 * np.sqrt(rate * (1 - rate) / len(part)))
    for new in range(num_classes):
        came_from = np.bincount(labels[wrong & (flipped == new)], minlength=num_classes)
        assert came_from[new] == 0
        # 30 % of 7,500 rows of each other class, a third of them to this one.
        assert np.delete(came_from, new) == pytest.approx(750, abs=5 * np.sqrt(7500 * 0.1 * 0.9))


@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_shift_leaves_no_label_and_is_consistent(num_classes: int) -> None:
    features, labels = rows(100, num_classes)
    same, shifted = ShiftLabels()(features, labels, num_classes, np.random.default_rng(0))
    mapping = {(int(old), int(new)) for old, new in zip(labels, shifted, strict=True)}

    assert len(mapping) == num_classes  # one new class for each old one …
    assert {new for _, new in mapping} == set(range(num_classes))  # … and each used once …
    assert all(old != new for old, new in mapping)  # … none its own
    np.testing.assert_array_equal(same, features)


@given(st.integers(1, 30), st.integers(0, 30), st.integers(0, 1000))
def test_drop_empties_so_many_features_and_the_same_in_all_rows(num_features: int, num_dropped: int, seed: int) -> None:
    features = np.random.default_rng(seed).normal(5, 1, (8, num_features)).astype(np.float32)
    labels = np.zeros(8, np.int64)
    less, same = FeatureDrop(num_dropped)(features, labels, 2, np.random.default_rng(seed))

    empty = (less == 0).all(axis=0)
    assert empty.sum() == min(num_dropped, num_features)
    np.testing.assert_array_equal(less[:, ~empty], features[:, ~empty])
    np.testing.assert_array_equal(same, labels)


def test_a_stuck_feature_keeps_its_mean_and_loses_its_variance() -> None:
    features, labels = rows(50, 2, (6,))
    less, _ = FeatureDrop(6, "mean")(features, labels, 2, np.random.default_rng(0))
    # One rounding to float32 of a mean of numbers up to 2.
    np.testing.assert_allclose(less, np.broadcast_to(features.astype(np.float64).mean(axis=0), (50, 6)), atol=2e-7)
    assert (less == less[0]).all()


def test_renaming_is_a_permutation_of_the_classes() -> None:
    features, labels = rows(100, 4)
    same, renamed = RenameLabels((2, 0, 3, 1))(features, labels, 4, np.random.default_rng(0))
    assert renamed[:4].tolist() == [2, 0, 3, 1]
    np.testing.assert_array_equal(np.argsort([2, 0, 3, 1])[renamed], labels)
    np.testing.assert_array_equal(same, features)


# JPEG: what is lost follows from the standard's table, worked out here by the cosine transform itself.


# ITU-T T.81, Annex K, table K.1: luminance.
TABLE = np.array([
    [16, 11, 10, 16, 24, 40, 51, 61],
    [12, 12, 14, 19, 26, 58, 60, 55],
    [14, 13, 16, 24, 40, 57, 69, 56],
    [14, 17, 22, 29, 51, 87, 80, 62],
    [18, 22, 37, 56, 68, 109, 103, 77],
    [24, 35, 55, 64, 81, 104, 113, 92],
    [49, 64, 78, 87, 103, 121, 120, 101],
    [72, 92, 95, 98, 112, 100, 103, 99],
])  # fmt: skip


def steps(quality: int) -> np.ndarray:
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    return np.clip((TABLE * percent + 50) // 100, 1, 255)


def coefficients(pixels: np.ndarray) -> np.ndarray:
    """Return the cosine transform of blocks of 8 × 8 pixels, 0 to 255."""
    return dctn(pixels.astype(np.float64) - 128, axes=(-2, -1), norm="ortho")


def compressed(pixels: np.ndarray, quality: int) -> np.ndarray:
    """Return pixels, 0 to 255, after the effect."""
    features = (pixels / 255).astype(np.float32)
    labels = np.zeros(len(pixels), np.int64)
    after, _ = JpegCompression(quality)(features, labels, 2, np.random.default_rng(0))
    return np.rint(after * 255)


def smooth_pictures(num_rows: int, channels: int = 1, side: int = 8, contrast: float = 80) -> np.ndarray:
    """Return waves with some grain, as pictures are; pure noise is not what the table is for."""
    generator = np.random.default_rng(0)
    y, x = np.mgrid[:side, :side]
    waves = generator.uniform(0, 0.6, (2, num_rows, channels, 1, 1))
    grain = generator.normal(0, 8, (num_rows, channels, side, side))
    return np.clip(np.rint(128 + contrast * np.sin(waves[0] * x + waves[1] * y) + grain), 0, 255)


@pytest.mark.parametrize("quality", [5, 10, 25])
def test_a_grey_block_is_what_the_standard_makes_of_it(quality: int) -> None:
    pixels = smooth_pictures(100, contrast=40)  # nothing is cut off at black or white
    step, before, after = steps(quality), coefficients(pixels), coefficients(compressed(pixels, quality))
    # Pixels are rounded after all, 64 of them by up to a half: no coefficient is further off than their norm.
    rounding = 4
    assert (np.abs(after - np.rint(after / step) * step) <= rounding).all()  # whole steps of the table
    assert (np.abs(after - before) <= step / 2 + rounding).all()  # and the nearest ones


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 5, 7)])
def test_pictures_keep_their_shape_their_range_and_their_owner(shape: tuple[int, ...]) -> None:
    features = np.random.default_rng(1).normal(0.5, 1, (4, *shape)).astype(np.float32)  # beyond [0, 1], too
    features.setflags(write=False)
    labels = np.arange(4)
    after, same = JpegCompression(30)(features, labels, 4, np.random.default_rng(0))
    assert (after.shape, after.dtype) == (features.shape, np.float32)
    assert 0 <= after.min() <= after.max() <= 1
    np.testing.assert_array_equal(same, labels)
    again, _ = JpegCompression(30)(features, labels, 4, np.random.default_rng(7))
    np.testing.assert_array_equal(after, again)
    empty, _ = JpegCompression(30)(features[:0], labels[:0], 4, np.random.default_rng(0))
    assert empty.shape == (0, *shape)
