"""Answers of several hosts with one exact sum among them.

Sums are of integers, whose addition is associative: in whatever groups they are added, the total has the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.messages.host_calls import TrainResults

FROM_NODES = 32
FROM_BYTES = 2**20
"""Hosts on so many nodes, or more, whose sums are so large or larger, add them among themselves in groups of √n.

The driver then holds √n sums in place of n: in a simulation of the messages a round of 32 nodes with a model of a
megabyte takes a third of the time. On one node, where sums need not travel, 16 hosts took a tenth longer in groups.
"""

Answer = TrainResults | list[TrainResults]
"""Of a call; with a limit of time it may be in several parts."""


def group_size(num_hosts: int, num_nodes: int, sum_bytes: int) -> int:
    """Return how many hosts add their sums before these go to the driver; 1 if each goes there by itself."""
    return isqrt(num_hosts) if num_nodes >= FROM_NODES and sum_bytes >= FROM_BYTES else 1


def with_one_sum(answers: Sequence[Answer]) -> list[Answer]:
    """Return the same answers, of which one holds the sum of all and the others say that theirs is there.

    Args:
        answers: Of merged calls; they are changed.
    """
    parts = [part for answer in answers for part in (answer if isinstance(answer, list) else [answer])]
    first, *others = [part for part in parts if part.total is not None] or [TrainResults()]
    if not others:
        return [*answers]
    totals = _Added(first)
    for part in others:
        totals.add(part)
        part.total, part.companion_totals, part.sum_elsewhere = None, {}, True
    first.total, first.companion_totals = totals.total, totals.companions
    return [*answers]


def added_to(before: Answer, answer: Answer) -> list[TrainResults]:
    """Return the parts of two answers, the earlier one's first, with one sum among them; both are changed."""
    with_one_sum([answer, before])
    return [part for one in (before, answer) for part in (one if isinstance(one, list) else [one])]


class _Added:
    """The sums of a part, which may be changed if they can be, and of those that are added."""

    def __init__(self, first: TrainResults) -> None:
        assert first.total is not None
        self.total: IntArray = np.require(first.total, requirements="W")
        self.companions = {n: np.require(total, requirements="W") for n, total in first.companion_totals.items()}

    def add(self, part: TrainResults) -> None:
        """Add those of another part."""
        assert part.total is not None
        self.total += part.total
        for name, total in part.companion_totals.items():
            if name in self.companions:
                self.companions[name] += total
            else:
                self.companions[name] = total.copy()
