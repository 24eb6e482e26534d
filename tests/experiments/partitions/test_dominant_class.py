"""Dominant class: equal sizes, the dominant share to the row, and the overall mixture for everyone else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscout.engine.errors import DataError
from tests.experiments.partitions.requests import class_counts, deal
from tests.kits.refusals import refused


@pytest.mark.slow
@given(
    st.lists(st.integers(60, 400), min_size=2, max_size=6),
    st.integers(2, 12),
    st.floats(0.5, 1),
    st.floats(0, 1),
    st.integers(0, 999),
)
def test_shares_and_sizes_are_as_asked(
    rows_of_class: list[int], num_clients: int, share: float, fraction: float, seed: int
) -> None:
    labels = np.repeat(np.arange(len(rows_of_class)), rows_of_class)
    settings = {"dominant_share": share, "dominant_fraction": fraction, "min_size": 1}
    dealt = deal("dominant_class", labels, num_clients, seed, **settings)
    counts = class_counts(labels, dealt.partition)
    sizes = counts.sum(axis=1)
    assert len(set(sizes)) == 1
    num_dominated = round(fraction * num_clients)
    assert dealt.facts["num_dominated_clients"] == num_dominated
    num_dominant = round(share * sizes[0])
    # No other class of the client reaches the dominant one unless half the rows are its own and one class has the rest.
    assert (counts[:num_dominated].max(axis=1) >= num_dominant).all()
    assert ((counts[:num_dominated] == num_dominant).sum(axis=1) >= 1).all()


def test_balanced_classes_lose_no_rows_when_all_are_dominated() -> None:
    # Ten clients, ten classes of 100 rows: 80 of one class, and 20/9 of each other one, 80 + 9 · 20/9 = 100 of a class.
    labels = np.arange(1000) % 10
    counts = class_counts(labels, deal("dominant_class", labels, 10, dominant_fraction=1.0).partition)
    assert (counts.sum(axis=1) == 100).all()
    assert (counts.max(axis=1) == 80).all()
    assert len(set(counts.argmax(axis=1))) == 10
    assert np.sort(counts, axis=1)[:, :-1].max() <= 4  # 20/9 rounded up or down, or once more where a class ran out


def test_clients_without_a_dominant_class_have_the_overall_mixture() -> None:
    labels = np.repeat(np.arange(3), [600, 300, 100])
    counts = class_counts(labels, deal("dominant_class", labels, 10, dominant_fraction=0.0).partition)
    assert counts.sum() == 1000
    assert np.abs(counts - [60, 30, 10]).max() <= 1


def test_classes_dominate_in_proportion_to_their_frequency() -> None:
    labels = np.repeat(np.arange(3), [600, 300, 100])
    partition = deal("dominant_class", labels, 10, dominant_fraction=1.0).partition
    assert np.bincount(class_counts(labels, partition).argmax(axis=1)).tolist() == [6, 3, 1]


def test_too_few_rows() -> None:
    labels = np.array([0] * 500 + [1] * 3)
    with refused(DataError, key="federation.partition.min_size"):
        deal("dominant_class", labels, 2, dominant_fraction=0.5, dominant_share=0.5, min_size=200)
