"""Inner Dirichlet: equal sizes, mixtures with the moments of the distribution, and an end whatever α is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscout.experiments.partitions.labels import _mixtures
from tests.experiments.partitions.requests import class_counts, deal


@given(st.integers(1, 30), st.floats(1e-3, 100), st.integers(0, 999))
def test_sizes_differ_by_one_at_most(num_clients: int, alpha: float, seed: int) -> None:
    labels = np.array([0] * 100 + [1] * 20 + [2])
    partition = deal("inner_dirichlet", labels, num_clients, seed, alpha=alpha).partition
    assert partition.sizes.max() - partition.sizes.min() <= 1
    assert sorted(partition.rows.tolist()) == list(range(121))


@pytest.mark.parametrize("alpha", [0.2, 1.0, 20.0])
def test_mixtures_have_the_second_moment_of_the_distribution(alpha: float) -> None:
    # A symmetric Dirichlet(α) over C has E Σ p² = (α + 1)/(Cα + 1).
    mixtures = _mixtures(alpha, 4000, 5, np.random.default_rng(0))
    second = (mixtures**2).sum(axis=1)
    assert second.mean() == pytest.approx((alpha + 1) / (5 * alpha + 1), abs=5 * second.std() / np.sqrt(4000))


def test_counts_follow_the_mixtures_as_long_as_no_class_is_exhausted(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two clients with opposite mixtures whose sum is the class distribution: of 1,000 draws with p = 0.8, a count is
    # within five standard deviations √(1000 · 0.16) of 800.
    mixtures = np.array([[0.8, 0.2], [0.2, 0.8]])
    monkeypatch.setattr("fedscout.experiments.partitions.labels._mixtures", lambda *_: mixtures)
    labels = np.arange(2000) % 2
    counts = class_counts(labels, deal("inner_dirichlet", labels, 2).partition)
    assert np.abs(counts - 1000 * mixtures).max() < 5 * np.sqrt(1000 * 0.16)


def test_a_client_whose_classes_are_exhausted_gets_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    # Both want class 0 only, 60 rows of 100: 40 places of the two must be served from class 1.
    monkeypatch.setattr("fedscout.experiments.partitions.labels._mixtures", lambda *_: np.array([[1.0, 0.0]] * 2))
    labels = np.array([0] * 60 + [1] * 40)
    dealt = deal("inner_dirichlet", labels, 2)
    assert dealt.partition.sizes.tolist() == [50, 50]
    assert dealt.facts == {"num_rows_off_mixture": 40}


def test_vanishing_alpha_is_one_class_a_client() -> None:
    mixtures = _mixtures(1e-300, 500, 4, np.random.default_rng(0))
    assert (mixtures.max(axis=1) == 1).all()
    # Each class is drawn with p = 1/4: within five standard deviations √(500 · 3/16).
    assert np.abs(mixtures.sum(axis=0) - 125).max() < 5 * np.sqrt(500 * 3 / 16)
