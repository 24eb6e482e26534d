"""Columns of pure noise: no scenario touches them, and both measures are told as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.benchmarks.detection.noise_columns import (
    NoiseColumns,
    NoiseComparison,
    compare_under_noise,
    table_lines,
    with_noise_columns,
)
from tests.detectors.federations import AddNoise, FlipLabels, federation, gaussian_clients

WINE = ["federation.dataset=wine"]


class Labelled:
    """Adds a client's noise in the order in which it is drawn, so that further draws would show."""

    def __call__(
        self, features: np.ndarray, labels: np.ndarray, num_classes: int, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        return features + generator.normal(size=features.shape).astype(np.float32), labels


def own_rows(source: Federation, client: int) -> np.ndarray:
    rows = source.partition.client(client)
    features, labels = source.features[rows], source.labels[rows]
    for transform in source.transforms.get(client, ()):
        features, labels = transform(features, labels, source.num_classes, np.random.default_rng(client))
    return features


@pytest.mark.parametrize("num_noise", [0, 1, 7])
def test_the_data_are_as_without_them_and_the_noise_is_as_it_was_drawn(num_noise: int) -> None:
    plain = federation(gaussian_clients([30, 40]), transforms={1: (Labelled(), FlipLabels())})
    wide = with_noise_columns(plain, num_noise)
    width = plain.features.shape[1]
    for client in range(2):
        own = own_rows(wide, client)
        np.testing.assert_array_equal(own[:, :width], own_rows(plain, client))
        np.testing.assert_array_equal(own[:, width:], wide.features[wide.partition.client(client)][:, width:])
    assert wide.features.shape == (70, width + num_noise)


def test_skew_is_kept_to_the_first_columns() -> None:
    plain = federation(gaussian_clients([30, 40]), transforms={1: (AddNoise(5.0, 0.0),)})
    kept = with_noise_columns(plain, 0, skewed=2)
    rows = plain.features[plain.partition.client(1)]
    np.testing.assert_allclose(own_rows(kept, 1)[:, :2], rows[:, :2] + 5, rtol=1e-6)
    np.testing.assert_array_equal(own_rows(kept, 1)[:, 2:], rows[:, 2:])


def test_noise_dilutes_the_divergence_and_leaves_the_centroids() -> None:
    """The mean over 13 + 200 columns: the skewed ones weigh 13/213 of what they did, and thresholds are set at 0."""
    found = compare_under_noise([*WINE, "federation.min_release=1"], [0, 200], seeds=2)
    before, after = found.rows
    assert (found.num_features, found.num_skewed, found.num_clients) == (13, 13, 4)
    for scenario in ("iid", "feature_skew"):
        assert len(after.values["divergence"][scenario]) == 2
    means = [{name: np.mean(own) for name, own in row.values["divergence"].items()} for row in found.rows]
    gaps = [own["feature_skew"] - own["iid"] for own in means]
    assert gaps[1] == pytest.approx(gaps[0] * 13 / 213, abs=0.01)
    assert (before.found["divergence"], before.false_alarms["divergence"]) == (2, 0)


def test_rows_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "pictures.npz"
    np.savez(file, x=np.random.default_rng(0).random((40, 8, 8)), y=np.arange(40) % 2)
    with pytest.raises(ConfigurationError, match=r"federation\.dataset must be a table, got "):
        compare_under_noise([f"federation.dataset={file}"], [0], seeds=1)


def test_the_table_counts_federations_on_either_side_of_the_threshold() -> None:
    values = {name: {"iid": (1.0, 3.0), "feature_skew": (6.0, 10.0)} for name in ("divergence", "centroid_distance")}
    row = NoiseColumns(
        num_noise=5,
        values=values,
        found={"divergence": 1, "centroid_distance": 2},
        false_alarms={"divergence": 2, "centroid_distance": 0},
    )
    comparison = NoiseComparison(dataset="wine", num_clients=4, num_features=13, num_skewed=2, num_seeds=2, rows=(row,))
    title, _, _, _, line = table_lines(comparison)
    assert "the first 2 of 13 columns" in title
    span = "2 (1 to 3) | 8 (6 to 10) | 4.0"
    assert line == f"| 5 | {span} | 1/2 | 2/2 | {span} | 2/2 | 0/2 |"
