"""Global random generators, seeded for one call of a strategy and then put back.

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
def seeded_global_random(seed: int, purpose: str, server_round: int) -> Iterator[None]:
    """Seed the global generators from (seed, purpose, round) inside the block; outside it nothing changes."""
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 - what strategies use
    value = integer(seed, f"flower-{purpose}", server_round)
    random.seed(value)
    np.random.seed(value % 2**32)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
