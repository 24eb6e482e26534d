"""JPEG: what is lost follows from the standard's table, worked out here by the cosine transform itself."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.fft import dctn

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from fedscout.experiments.scenarios.features import JpegCompression
from fedscout.experiments.scenarios.table import parse_effects

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


@pytest.mark.parametrize("channels", [1, 3])
def test_less_quality_loses_more_and_the_best_hardly_anything(channels: int) -> None:
    pixels = smooth_pictures(40, channels, side=16)
    if channels == 3:
        pixels = np.repeat(pixels[:, :1], 3, axis=1)  # without colour, of which half the resolution would go
    errors = [np.square(compressed(pixels, quality) - pixels).mean() for quality in (100, 90, 50, 20, 5, 1)]
    assert errors == sorted(errors)
    assert errors[0] < 0.5  # rounding of coefficients and of pixels: 1/12 each, and more for colour
    assert errors[-1] > 100


def test_at_the_worst_quality_a_faint_block_keeps_its_mean_alone() -> None:
    pixels = smooth_pictures(20, contrast=10)
    step = steps(1)[0, 0]
    assert np.abs(coefficients(pixels).reshape(20, 64)[:, 1:]).max() < step / 2
    after = compressed(pixels + 20, 1)
    expected = np.rint((pixels + 20 - 128).mean(axis=(2, 3), keepdims=True) * 8 / step) * step / 8 + 128
    np.testing.assert_allclose(after, np.broadcast_to(expected, after.shape), atol=0.5)


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


@pytest.mark.parametrize("quality", [0, 101])
def test_qualities_are_those_of_the_library(quality: int) -> None:
    with pytest.raises(ValidationError, match="quality"):
        parse_effects({"kind": "jpeg", "quality": quality})


def test_a_table_has_no_pictures() -> None:
    config = FederationConfig.model_validate({"dataset": "digits", "scenario": {"kind": "jpeg", "quality": 50}})
    with pytest.raises(ConfigurationError, match=r"^federation\.scenario\.0\.kind .*jpeg.* table$"):
        build_federation(config, ModelConfig())
