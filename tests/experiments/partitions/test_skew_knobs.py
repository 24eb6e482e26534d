"""Skew is monotone in the knob, from one extreme to the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.experiments.partitions.requests import deal, label_distance

NUM_CLIENTS, NUM_CLASSES = 10, 10
LABELS = np.repeat(np.arange(NUM_CLASSES), 300)
# Total variation distance of a client with c of C equal classes is (C − c)/C: 0.9 for one class.
ONE_CLASS = 0.9
# A kind, its knob from weak to strong, and what the distance is at both ends, if known.
LABEL_KNOBS: list[tuple[str, str, list[Any], float | None, float | None]] = [
    ("dirichlet", "alpha", [1e5, 1.0, 0.1, 0.01], 0.0, None),
    ("inner_dirichlet", "alpha", [1e5, 1.0, 0.1, 0.01], 0.0, None),
    ("pathological", "classes_per_client", [10, 7, 4, 2, 1], 0.0, ONE_CLASS),
    ("classes_per_client", "class_share", [1.0, 0.7, 0.4, 0.2, 0.1], 0.0, ONE_CLASS),
    ("heterogeneity_index", "levels", [(0.0,), (0.3,), (0.6,), (1.0,)], 0.0, ONE_CLASS),
    ("shard", "shards_per_client", [30, 10, 3, 1], None, ONE_CLASS),
    ("gaussian", "class_sigma", [100.0, 3.0, 1.0, 0.5, 0.01], 0.0, ONE_CLASS),
    ("poisson", "class_rate", [1000.0, 5.0, 1.0, 0.3, 1e-6], 0.0, ONE_CLASS),
    ("dominant_class", "dominant_share", [0.1, 0.4, 0.8, 1.0], 0.0, ONE_CLASS),
    ("dominant_class", "dominant_fraction", [0.0, 0.3, 0.6, 1.0], 0.0, 0.7),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "knob", "values", "weakest", "strongest"), LABEL_KNOBS)
def test_label_skew(kind: str, knob: str, values: list[Any], weakest: float | None, strongest: float | None) -> None:
    others = {"dominant_fraction": 1.0} if knob == "dominant_share" else {}

    def distance(value: Any) -> float:
        settings = {**others, knob: value}
        dealt = [deal(kind, LABELS, NUM_CLIENTS, seed, **settings).partition for seed in range(4)]
        return float(np.mean([label_distance(LABELS, partition) for partition in dealt]))

    distances = [distance(value) for value in values]
    assert distances == sorted(distances)
    assert distances[-1] > distances[0] + 0.1
    if weakest is not None:
        # With all clients' mixtures alike, the 300 rows of a client are rounded to whole ones or, at worst, drawn: ten
        # counts with p = 0.1, each within three of its standard deviations √(0.09/300) on average.
        assert distances[0] == pytest.approx(weakest, abs=10 * 3 * np.sqrt(0.09 / 300) / 2)
    if strongest is not None:
        assert distances[-1] == pytest.approx(strongest, abs=0.01)


def test_quantity_skew() -> None:
    def spread(alpha: float) -> float:
        sizes = [deal("quantity_skew", LABELS, NUM_CLIENTS, seed, alpha=alpha).partition.sizes for seed in range(20)]
        return float(np.mean([size.std() / size.mean() for size in sizes]))

    spreads = [spread(alpha) for alpha in (1e6, 10.0, 1.0, 0.1, 0.001)]
    assert spreads == sorted(spreads)
    # Shares of a Dirichlet(α) have the coefficient of variation √((K − 1)/(Kα + 1)): 0.001 at α = 10⁶, or a third of a
    # row; rounding moves a size of 300 by one row at most. At α → 0 one client has all but the others' five rows each.
    assert spreads[0] < 2 / 300
    sizes = np.array([5] * 9 + [2955])
    assert spreads[-1] == pytest.approx(sizes.std() / sizes.mean(), rel=0.05)


@pytest.mark.slow
def test_spread_of_the_distribution() -> None:
    def spread(sigma: float) -> float:
        settings = {"lognormal_sigma": sigma, "min_size": 2}
        sizes = [deal("distribution", LABELS, NUM_CLIENTS, seed, **settings).partition.sizes for seed in range(5)]
        return float(np.mean([size.std() for size in sizes]))

    spreads = [spread(sigma) for sigma in (0.0, 0.3, 1.0, 2.0)]
    assert spreads == sorted(spreads)
    assert spreads[0] <= 1  # equal shares: the odd row of a class is all that can differ


def test_laws_of_growing_sizes() -> None:
    labels = np.zeros(3000, np.int64)
    shares = {"linear": np.arange(1, 6), "square": np.arange(1, 6) ** 2, "exponential": np.exp(np.arange(1, 6))}
    for kind, weights in shares.items():
        sizes = deal(kind, labels, 5).partition.sizes
        # Rounded down, and what is left goes to the last.
        expected = 3000 * weights / weights.sum()
        assert (np.abs(sizes[:-1] - expected[:-1]) < 1).all()
        assert sizes.sum() == 3000
        assert deal(kind, labels, 1).partition.sizes.tolist() == [3000]
