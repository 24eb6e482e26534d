"""How many values travel between a server and a client, as a federation over a network would send them.

Counted are the float32 values of the model and of every companion. Elements of the model that an algorithm keeps at
home (`ClientAlgorithm.at_home`) are not: messages hold them here, as Flower's strategies want whole models, but as
values that nobody trained.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.client_algorithm import ClientAlgorithm
from fedscout.engine.model.parameter_layout import ParameterLayout

BYTES_A_VALUE = 4


def num_shared(layout: ParameterLayout, algorithm: ClientAlgorithm | None) -> int:
    """Return how many values of a model travel."""
    at_home = None if algorithm is None else algorithm.at_home(layout)
    return layout.size - (0 if at_home is None else int(np.count_nonzero(at_home)))


def client_bytes_down(layout: ParameterLayout, algorithm: ClientAlgorithm | None, beside: Iterable[FloatArray]) -> int:
    """Return the bytes that one client is sent, with these companions beside the model."""
    return BYTES_A_VALUE * (num_shared(layout, algorithm) + sum(vector.size for vector in beside))


def client_bytes_up(layout: ParameterLayout, algorithm: ClientAlgorithm | None) -> int:
    """Return the bytes that one client answers: the model and the companions that its algorithm declares."""
    num_companions = 0 if algorithm is None else len(algorithm.companions)
    return BYTES_A_VALUE * (num_shared(layout, algorithm) + num_companions * layout.size)
