"""Draws without replacement by weight: one after another, each ∝ the weights of those that are left.

Reference:
    Efraimidis, Spirakis: Weighted random sampling with a reservoir. Information Processing Letters 97(5), 2006: the
        smallest of exponential variables with the weights as rates.
"""

from __future__ import annotations

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.client_selection import DoubleArray

_LEAST = 1e-12
"""Of the largest weight; a weight of 0 is drawn after all others, and needs no case of its own."""


def draw_by_weight(weights: DoubleArray, num_drawn: int, generator: np.random.Generator) -> IntArray:
    """Return the places of what is drawn, in the order of the draws.

    Args:
        weights: Shape (things,), any scale. What is negative or no number weighs nothing; if nothing weighs anything,
            everything weighs the same.
        num_drawn: At most as many as there are things.
        generator: Gives one number for each thing, whatever the weights.
    """
    waits = generator.exponential(size=len(weights))
    rates = np.where(np.isfinite(weights), weights, 0.0)
    rates = rates / largest if (largest := rates.max(initial=0.0)) > 0 else np.ones(len(weights))
    return np.argsort(waits / np.maximum(rates, _LEAST), kind="stable")[:num_drawn]
