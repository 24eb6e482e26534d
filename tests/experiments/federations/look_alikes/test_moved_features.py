"""Moved features: lengths, distances, scales and noise are those that the report asks for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from fedscout.detectors.report import ClientFeatures
from fedscout.engine.data.federation import Federation
from fedscout.experiments.federations.datasets.dataset import Dataset
from fedscout.experiments.federations.look_alikes.diagnosed import read_diagnosed
from fedscout.experiments.federations.look_alikes.moved_features import MovedFeatures, moved_features
from tests.experiments.federations.look_alikes.reports import built, report_on, written

COUNTS = ((15,) * 10,) * 5


def moves(folder: Path, *told: tuple[tuple[float, ...], float | None, float | None]) -> dict[int, MovedFeatures]:
    """Return what becomes of clients of 150 rows by shift, spread and gain; two more are as most are."""
    told = (*told, ((0.0,), 1.0, 1.0), ((0.0,), 1.0, 1.0), ((0.0,), 1.0, 1.0))[:5]
    features = tuple(ClientFeatures(client=c, shift=s, spread=w, gain=g) for c, (s, w, g) in enumerate(told))
    federation = like(folder, features)
    return {client: step for client, (step,) in federation.transforms.items() if isinstance(step, MovedFeatures)}


def like(folder: Path, features: tuple[ClientFeatures, ...]) -> Federation:
    path = written(report_on(*COUNTS, features=features), folder)
    return built(f"federation.like={path}", "federation.dataset=digits")


def distance(one: MovedFeatures, other: MovedFeatures) -> float:
    """Return the root mean square over the features that vary, in deviations within a class."""
    varying = one.unit > 0
    return float(np.sqrt((((one.offset - other.offset)[varying] / one.unit[varying]) ** 2).mean()))


def test_shifts_have_their_length_and_clients_their_distance(tmp_path: Path) -> None:
    told = ((0.6, 0.8), 1.0, 1.0), ((-0.6, 0.8), 1.0, 1.0)
    first, second = (moves(tmp_path, *told)[client] for client in (0, 1))
    assert_allclose([first.shift, second.shift], 1)
    assert_allclose(distance(first, second), 1.2)
    assert (first.scale, first.noise) == (1, 0)
    assert not first.offset[first.unit == 0].any(), "a pixel that is always white stays so"
    rows = np.random.default_rng(0).normal(size=(20, 1, 8, 8)).astype(np.float32)
    moved, labels = first(rows, np.arange(20), 20, np.random.default_rng(1))
    assert_allclose((moved - rows).reshape(20, 64), np.tile(first.offset, (20, 1)), atol=1e-5)
    assert (moved.dtype, moved.shape, labels.tolist()) == (np.float32, rows.shape, [*range(20)])


@pytest.mark.parametrize(
    ("spread", "gain", "scale", "noise"),
    [
        (3.0, 3.0, 3.0, 0.0),
        (0.2, 0.2, 0.2, 0.0),
        (2.0, 1.0, 1.0, 3**0.5),
        (2.0, None, 2.0, 0.0),
        (0.5, 1.0, 0.5, 0.0),
        (1.3, 0.5, 0.5, 1.2),
        (1.0, -1.0, 0.0, 1.0),
    ],
)
def test_factor_and_noise_follow_from_spread_and_gain(
    tmp_path: Path, spread: float, gain: float | None, scale: float, noise: float
) -> None:
    move = moves(tmp_path, ((0.0,), spread, gain))[0]
    assert_allclose([move.scale, move.noise], [scale, noise])
    rows = np.random.default_rng(0).normal(size=(4000, 64)).astype(np.float32)
    moved, _ = move(rows, np.zeros(4000, np.int64), 10, np.random.default_rng(1))
    varying = move.unit > 0
    wanted = np.sqrt(scale**2 * rows.var(axis=0) + (noise * move.unit) ** 2)[varying]
    assert_allclose(moved.std(axis=0)[varying], wanted, rtol=0.1)


def test_what_chance_may_bring_is_left_alone_and_wide_clients_are_the_unit(tmp_path: Path) -> None:
    assert moves(tmp_path, ((0.05, 0.05), 1.15, 0.9)) == {}, "150 rows"
    half = [((0.5,), 0.5, 0.5), *[((0.0,), 0.5, 0.5)] * 4]
    assert_allclose(moves(tmp_path, *half)[0].shift, 1, err_msg="everyone's deviation is twice a usual client's")


def test_axes_beyond_the_proxys_features_are_cut_and_lengths_kept(tmp_path: Path) -> None:
    features = (ClientFeatures(client=0, shift=(0.3, 0.3, 0.3, 0.4), spread=1, gain=1),)
    diagnosed = read_diagnosed(written(report_on((10, 90), (80, 10), features=features), tmp_path))
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(200, 2)).astype(np.float32)
    labels = np.arange(200) % 2
    proxy = Dataset(name="two", features=rows, labels=labels, class_names=("a", "b"), feature_names=(), source="")
    move = moved_features(diagnosed, proxy, generator)[0]
    assert_allclose(move.shift, np.sqrt(3 * 0.09 + 0.16))
    assert_allclose(np.sqrt(((move.offset / move.unit) ** 2).mean()), move.shift)


def test_a_report_without_it_moves_nobody(tmp_path: Path) -> None:
    federation = like(tmp_path, ())
    assert not federation.transforms
    assert "Feature shift is not reproduced" in federation.facts["like"]["notes"][0]
