"""Quantity skew: sizes as drawn, labels at random."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscout.experiments.partitions.base import whole_rows
from tests.experiments.partitions.requests import deal


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(0, 500), st.integers(0, 99))
def test_whole_rows_add_up_and_are_within_one(weights: list[float], num_rows: int, seed: int) -> None:
    shares = np.array(weights) + 1e-3
    shares /= shares.sum()
    counts = whole_rows(shares, num_rows, np.random.default_rng(seed))
    assert counts.sum() == num_rows
    assert np.abs(counts - shares * num_rows).max() < 1 + 1e-6


@pytest.mark.parametrize("alpha", [1e-9, 0.1, 1.0])
def test_minimum_size_is_reached_whatever_alpha(alpha: float) -> None:
    for seed in range(20):
        sizes = deal("quantity_skew", np.zeros(100, np.int64), 10, seed, alpha=alpha, min_size=9).partition.sizes
        assert sizes.min() >= 9
        assert sizes.sum() == 100


@pytest.mark.slow
def test_shares_have_the_second_moment_of_the_distribution() -> None:
    # A symmetric Dirichlet(α) over K has E Σ p² = (α + 1)/(Kα + 1); of 10⁴ rows, rounding is 10⁻⁴ of a share.
    seconds = []
    for seed in range(100):
        partition = deal("quantity_skew", np.zeros(10_000, np.int64), 5, seed, alpha=0.5, min_size=1).partition
        seconds.append(((partition.sizes / 10_000) ** 2).sum())
    error = np.std(seconds) / np.sqrt(len(seconds))
    assert np.mean(seconds) == pytest.approx(1.5 / 3.5, abs=5 * error + 2e-3)
