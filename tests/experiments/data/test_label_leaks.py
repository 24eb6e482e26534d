"""A column that tells the label is suspected, one that is independent of it is not."""

from __future__ import annotations

import numpy as np
import pytest

from fedscout.experiments.data.columns import CategoryColumn, NumberColumn
from fedscout.experiments.data.own_columns import SUSPECTED, goodman_kruskal_lambda, suspicion

ROWS = np.arange(400)


def labels(shares: list[float]) -> np.ndarray:
    return np.random.default_rng(0).choice(len(shares), len(ROWS), p=shares)


def test_the_share_is_that_of_the_mistakes_saved() -> None:
    """By hand: 30 rows of class 0 and 30 of class 1; one cell of 10 rows is mixed half and half, so no row is told."""
    classes = np.repeat([0, 1], 30)
    codes = np.repeat([0, 2, 1], [25, 10, 25])
    assert goodman_kruskal_lambda(codes, classes) == (25 + 25 - 30) / 30
    assert goodman_kruskal_lambda(classes, classes) == 1
    assert (
        goodman_kruskal_lambda(np.zeros(60, np.int64), classes) == -1
    )  # a tie of 29 and 30 others votes for the other class


def test_names_that_all_differ_tell_nothing() -> None:
    assert goodman_kruskal_lambda(ROWS, labels([0.7, 0.3])) == 0


@pytest.mark.parametrize("shares", [[0.5, 0.5], [0.9, 0.1], [0.2] * 5])
def test_copies_are_suspected(shares: list[float]) -> None:
    classes = labels(shares)
    names = tuple("abcde"[: len(shares)])
    noise = np.random.default_rng(1).normal(size=len(ROWS)) * 0.01
    copies = [
        CategoryColumn("x", classes, names),
        NumberColumn("x", classes.astype(float)),
        NumberColumn("x", classes + noise),
    ]
    assert [suspicion(copy, classes, names, ROWS) for copy in copies] == ["predicts the label nearly exactly"] * 3


def test_a_running_number_that_orders_the_classes_is_suspected() -> None:
    classes = np.repeat([1, 0, 2], [150, 150, 100])
    assert suspicion(NumberColumn("x", ROWS.astype(float)), classes, ("a", "b", "c"), ROWS)


def test_gaps_that_tell_a_class_are_suspected() -> None:
    classes = labels([0.4, 0.3, 0.3])
    numbers = np.where(classes == 2, np.nan, np.random.default_rng(2).normal(size=len(ROWS)))
    assert suspicion(NumberColumn("x", numbers), classes, ("a", "b", "c"), ROWS) == (
        "separates class c from the others nearly exactly"
    )


def test_too_few_rows_of_other_classes_say_nothing() -> None:
    classes = np.where(ROWS < 19, 1, 0)
    assert goodman_kruskal_lambda(classes, classes) == -np.inf


@pytest.mark.parametrize("shares", [[0.5, 0.5], [0.95, 0.05], [0.4, 0.3, 0.2, 0.1]])
def test_independent_columns_are_far_from_suspected(shares: list[float]) -> None:
    """Of 3000 columns, none comes half as near as it takes."""
    generator = np.random.default_rng(3)
    classes = labels(shares)
    found = []
    for _ in range(1000):
        column = generator.permutation(ROWS)
        found += [
            goodman_kruskal_lambda(column // 5, classes),
            goodman_kruskal_lambda(column // 40, classes),
            goodman_kruskal_lambda(column % 2, classes),
        ]
    assert max(found) < SUSPECTED / 2
