"""Draws by weight without replacement, against the product of their conditional probabilities."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest

from fedscout.strategies.selection.policies import draw_by_weight

NUM_DRAWS = 20_000


def test_each_draw_is_by_the_weights_of_those_left() -> None:
    """P(i, j) = w_i / 6 · w_j / (6 − w_i) for weights 1, 2, 3."""
    weights, generator = np.array([1.0, 2.0, 3.0]), np.random.default_rng(0)
    seen = Counter(tuple(draw_by_weight(weights, 2, generator).tolist()) for _ in range(NUM_DRAWS))
    for first, second in permutations(range(3), 2):
        expected = weights[first] / 6 * weights[second] / (6 - weights[first])
        deviation = np.sqrt(expected * (1 - expected) / NUM_DRAWS)
        assert abs(seen[first, second] / NUM_DRAWS - expected) < 4 * deviation


@pytest.mark.parametrize("nothing", [0.0, -1.0, np.nan, np.inf])
def test_what_weighs_nothing_comes_last(nothing: float) -> None:
    generator = np.random.default_rng(0)
    assert all(draw_by_weight(np.array([nothing, 1.0, 2.0]), 3, generator)[-1] == 0 for _ in range(100))


def test_if_nothing_weighs_anything_all_weigh_the_same() -> None:
    zero, one = (draw_by_weight(np.full(9, weight), 9, np.random.default_rng(3)) for weight in (0.0, 1.0))
    assert zero.tolist() == one.tolist()


def test_the_scale_does_not_count() -> None:
    weights = np.array([1.0, 5.0, 2.0, 8.0])
    small, large = (draw_by_weight(weights * scale, 4, np.random.default_rng(1)) for scale in (2.0**-900, 2.0**900))
    assert small.tolist() == large.tolist()
