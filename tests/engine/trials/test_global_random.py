"""Flower's sampling is seeded for each call, and leaves no trace after a trial."""

from __future__ import annotations

import random

import numpy as np
import pytest

from fedscout.engine.seeds import global_random_kept, seed_global_random


def drawn(seed: int, purpose: str, server_round: int) -> list[int]:
    with global_random_kept():
        seed_global_random(seed, purpose, server_round)
        return random.sample(range(1000), 20)


def draw_and_fail() -> None:
    with global_random_kept():
        seed_global_random(0, "train", 1)
        random.random()
        raise ZeroDivisionError


def test_inside_the_draws_depend_on_seed_purpose_and_round() -> None:
    reference = drawn(1, "train", 5)
    random.random()

    assert drawn(1, "train", 5) == reference
    others = [drawn(2, "train", 5), drawn(1, "evaluate", 5), drawn(1, "train", 6)]
    assert all(other != reference for other in others)


def test_outside_nothing_changes_even_after_an_error() -> None:
    before = random.getstate()

    drawn(0, "train", 1)
    assert random.getstate() == before
    with pytest.raises(ZeroDivisionError):
        draw_and_fail()
    assert random.getstate() == before


def test_numpy_s_global_generator_is_treated_alike() -> None:
    """Flower's differentially private strategies draw their noise from it."""

    def noise(server_round: int) -> list[float]:
        with global_random_kept():
            seed_global_random(1, "aggregate", server_round)
            return list(np.random.normal(size=3))  # noqa: NPY002 - what strategies use

    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    assert noise(4) == noise(4) != noise(5)
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002
