"""Random streams, each derived only from (seed, purpose, indices), and control of global random generators.

A stream never depends on the number of hosts, on the order of work or on the evaluated candidate, so every candidate of
a search uses the same split, initial model and batches (common random numbers), and any worker can repeat any unit of
work with bitwise identical results.

Global random generators are seeded for each call of a strategy and restored after a trial: Flower samples clients with
Python's `random` and draws the noise of its differentially private strategies from NumPy's global generator, and a
user's own strategy may do either. A NumPy generator that a strategy creates without a seed can't be controlled.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


def _sequence(seed: int, purpose: str, indices: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence(entropy=seed, spawn_key=(zlib.crc32(purpose.encode()), *indices))


def stream(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """Return the random generator of one purpose.

    Args:
        seed: The user's seed, >= 0.
        purpose: Purpose of the numbers, such as `"batches"`; different purposes are independent.
        indices: Further coordinates, such as round and client, each >= 0.
    """
    return np.random.default_rng(_sequence(seed, purpose, indices))


def integer(seed: int, purpose: str, *indices: int) -> int:
    """Return one integer in `[0, 2**63)` for libraries that take a seed instead of a generator."""
    return int(_sequence(seed, purpose, indices).generate_state(1, np.uint64)[0] >> np.uint64(1))


@contextmanager
def global_random_kept() -> Iterator[None]:
    """Restore the global random generators after the block."""
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
