"""Random streams, each derived from (seed, purpose, indices) and from nothing else.

A stream never depends on the number of hosts, on the order of work or on the candidate under evaluation, so every
candidate of a search meets the same split, initial model and batches (common random numbers) and any worker can
repeat any piece of work bit for bit.
"""

from __future__ import annotations

import zlib

import numpy as np


def _sequence(seed: int, purpose: str, indices: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence(entropy=seed, spawn_key=(zlib.crc32(purpose.encode()), *indices))


def stream(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """Return the generator of one purpose.

    Args:
        seed: The user's seed, >= 0.
        purpose: What the numbers are for, such as `"batches"`; different purposes are independent.
        indices: Further coordinates, such as round and client, each >= 0.
    """
    return np.random.default_rng(_sequence(seed, purpose, indices))


def integer(seed: int, purpose: str, *indices: int) -> int:
    """Return one integer in `[0, 2**63)` for libraries that take a seed instead of a generator."""
    return int(_sequence(seed, purpose, indices).generate_state(1, np.uint64)[0] >> np.uint64(1))
