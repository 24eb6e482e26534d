"""Bounds of a count of false alarms, given the rate at which they should occur."""

from __future__ import annotations

from scipy.stats import binom

SURE = 0.001
"""A count outside of the bounds has at most this probability on each side if the rate is right."""


def most_alarms(num_federations: int, rate: float) -> int:
    """Return the largest count that the rate still explains."""
    return int(binom.ppf(1 - SURE, num_federations, rate))


def fewest_alarms(num_federations: int, rate: float) -> int:
    """Return the smallest count that the rate still explains."""
    return int(binom.ppf(SURE, num_federations, rate))
