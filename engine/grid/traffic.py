"""What train messages carry between a server and its clients, as a federation over a network would send it.

Counted are the float32 values of the model and of every companion: down to each client that is asked, up from each that
answered. That replies are summed on the hosts here changes nothing: each client's vectors are counted. Elements of the
model that an algorithm keeps at home (`ClientAlgorithm.at_home`) are not: messages hold them here, as Flower's
strategies want whole models, but as values that nobody trained. Scalars, such as the numbers of rows and steps, and
what a transport adds are not counted either. A selection policy may have clients receive the model that only measure
it, which counts, and withhold tensors, which do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedscout.engine.contracts.client_algorithm import ClientAlgorithm
from fedscout.engine.grid.jobs import Job
from fedscout.engine.messages.host_calls import TrainResults
from fedscout.engine.model.parameter_layout import ParameterLayout

BYTES_A_VALUE = 4


def num_shared(layout: ParameterLayout, algorithm: ClientAlgorithm | None) -> int:
    """Return how many values of a model travel."""
    at_home = None if algorithm is None else algorithm.at_home(layout)
    return layout.size - (0 if at_home is None else int(np.count_nonzero(at_home)))


def bytes_down(job: Job[Any], shared: int) -> int:
    """Return the bytes of a job's train messages, of models of which so many values travel."""
    companions = sum(vector.size for vector in job.companions.values())
    return len(job.messages) * (shared + companions) * BYTES_A_VALUE


def bytes_up(results: Sequence[TrainResults], shared: int) -> int:
    """Return the bytes of the clients' answers."""
    values = sum(len(one.clients) * (shared + _num_companion_values(one)) - one.num_withheld for one in results)
    return values * BYTES_A_VALUE


def _num_companion_values(result: TrainResults) -> int:
    """Return the values of one client's companions."""
    summed = [total.size for total in result.companion_totals.values()]
    return sum(summed) + sum(int(rows.shape[1]) for rows in result.companions.values())
