"""Clients whose classes come from a Gaussian, Poisson or Dirichlet sampling, and whose quantity is sampled as well.

The source compares its metrics on clients of "Gaussian β 15, Poisson λ 70, Dirichlet α .01, quantity sampled" and says
no more. Here each client draws a parameter, evenly in its logarithm between the ends of a table of that metric, and a
quantity likewise between those of the battery; then the rows of each class, by the shares of the sampling (see
`engine.contracts.class_sampling`), a Dirichlet client's being drawn themselves. A client's shares begin with the class
of which the clients before it hold least, so that all classes have rows enough.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.class_sampling import ClassSampling, Sampling
from fedscout.engine.seeds import stream
from fedscout.experiments.studies.settings_tables.settings_grid import LEVELS


def sampled_counts(kind: Sampling, quantities: Sequence[float], num_clients: int, num_classes: int) -> IntArray:
    """Return the rows of each class of each client, shape `(clients, classes)`.

    Args:
        kind: Of the sampling.
        quantities: Ends of a client's rows.
        num_clients: Of the federation.
        num_classes: Of its data.
    """
    generator = stream(0, f"sampled-clients {kind}")

    def drawn(ends: Sequence[float]) -> float:
        return float(np.exp(generator.uniform(np.log(ends[0]), np.log(ends[-1]))))

    counts = np.zeros((num_clients, num_classes), np.int64)
    for client in range(num_clients):
        parameter, quantity = drawn(LEVELS[kind]), round(drawn(quantities))
        if kind == "dirichlet":
            shares = np.sort(generator.dirichlet(np.full(num_classes, parameter)))[::-1]
            shares = np.concatenate([shares[:1], generator.permutation(shares[1:])])
        else:
            shares = ClassSampling(kind, parameter).shares(num_classes)
        counts[client] = generator.multinomial(quantity, np.roll(shares, counts.sum(axis=0).argmin()))
    return counts
