"""Flower samples clients with Python's global generator; here it is seeded for one call and then put back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from engine.seeds import integer


@contextmanager
def seeded_flower_random(seed: int, purpose: str, server_round: int) -> Iterator[None]:
    """Seed the global generator from (seed, purpose, round) inside the block; outside it nothing changes."""
    state = random.getstate()
    random.seed(integer(seed, f"flower-{purpose}", server_round))
    try:
        yield
    finally:
        random.setstate(state)
