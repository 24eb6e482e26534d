"""Global random generators, seeded for each call of a strategy and put back after a trial.

Flower samples clients with Python's `random` and draws the noise of its differentially private strategies from NumPy's
global generator; a user's own strategy may do either.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from engine.seeds import integer


@contextmanager
def global_random_kept() -> Iterator[None]:
    """Put the global generators back after the block."""
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 - what strategies use
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002


def seed_global_random(seed: int, purpose: str, server_round: int) -> None:
    """Seed the global generators from (seed, purpose, round)."""
    value = integer(seed, f"flower-{purpose}", server_round)
    random.seed(value)
    np.random.seed(value % 2**32)  # noqa: NPY002
