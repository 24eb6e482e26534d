"""How unlike clients are in speed: the expected seconds of a round of the slowest, against the median client's.

Who waits for all waits for the slowest, so that ratio is how much longer a round takes than the half of the clients do.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedscout.detectors.report import SpeedSkew
from fedscout.engine.data.names import UNNAMED, Names


def speed_skew(expected_seconds: Mapping[int, float], names: Names = UNNAMED) -> SpeedSkew | None:
    """Return the spread, or None where nobody takes any time.

    Args:
        expected_seconds: Of a round, of every client that takes part, >= 0.
        names: Of clients, for the sentence.
    """
    if not any(expected_seconds.values()):
        return None
    slowest = max(expected_seconds, key=lambda client: (expected_seconds[client], -client))
    return SpeedSkew.of(slowest, expected_seconds[slowest], float(np.median(list(expected_seconds.values()))), names)
