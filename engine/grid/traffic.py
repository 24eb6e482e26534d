"""What train messages carry between a server and its clients, as a federation over a network would send it.

Counted are the values that travel (`fedscout.engine.messages.travelling_values`): down to each client that is asked, up
from each that answered. That replies are summed on the hosts here changes nothing: each client's vectors are counted.
Scalars, such as the numbers of rows and steps, and what a transport adds are not counted either. A
selection policy may have clients receive the model that only measure it, which counts, and withhold tensors, which do
not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedscout.engine.grid.jobs import Job
from fedscout.engine.messages.host_calls import TrainResults
from fedscout.engine.messages.travelling_values import BYTES_A_VALUE


def bytes_down(job: Job[Any], shared: int) -> int:
    """Return the bytes of a job's train messages, of models of which so many values travel."""
    companions = sum(vector.size for vector in job.companions.values())
    return len(job.messages) * (shared + companions) * BYTES_A_VALUE


def bytes_up(results: Sequence[TrainResults], shared: int) -> int:
    """Return the bytes of the clients' answers."""
    companions = max(map(_num_companion_values, results), default=0)  # where sums are together, one result knows
    values = sum(len(one.clients) * (shared + companions) - one.num_withheld for one in results)
    return values * BYTES_A_VALUE


def _num_companion_values(result: TrainResults) -> int:
    """Return the values of one client's companions."""
    summed = [total.size for total in result.companion_totals.values()]
    return sum(summed) + sum(len(rows[0]) for rows in result.companions.values() if len(rows))
