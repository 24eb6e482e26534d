"""How many proxy rows of each class each client gets: the diagnosed shares in the diagnosed sizes, or all smaller.

Client k of n_k diagnosed rows gets round(s n_k) rows, at least one, divided over classes by its shares p_k with the
largest remainder; s is 1, or the largest that the rows of every class allow. So sizes stay in proportion, and a share
is off by less than a row. A client that told nothing gets so few rows that it tells nothing again, in everyone's
shares.

Where a part of a client's labels is wrong, the client sees the diagnosed counts all the same: the rows behind its
wrong labels are of the other classes, in everyone's shares of these (`wrong_labels` beside).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.errors import DataError
from fedscout.experiments.federations.look_alikes.diagnosed import KEY, Diagnosed
from fedscout.experiments.federations.partitions.shares import FloatVector, whole_rows

SMALLER = 0.999
"""A scale that would ask for too many rows by rounding is tried this much smaller."""


@dataclass(frozen=True)
class DealtCounts:
    """Rows of each client.

    Attributes:
        seen: By the label that the client sees, shape `(clients, classes)`.
        rows: By the class that the rows are of, likewise.
        confusions: Of clients with wrong labels, rows by class and label, shape `(classes, classes)`.
        scale: Rows over diagnosed rows, in `(0, 1]`.
    """

    seen: IntArray
    rows: IntArray
    confusions: dict[int, IntArray]
    scale: float


def dealt_counts(
    diagnosed: Diagnosed, available: IntArray, untold_rows: int, generator: np.random.Generator
) -> DealtCounts:
    """Return how many rows of each class each client gets.

    Args:
        diagnosed: What is to be reproduced.
        available: Rows of each class of the proxy, shape `(classes,)`.
        untold_rows: Rows of a client that told nothing.
        generator: Decides between equal remainders.

    Raises:
        DataError: If the proxy has too few rows of some class for all clients.
    """
    wanted_rows, scale = diagnosed.completed(available), 1.0
    asked = wanted_rows.sum(axis=0)
    while True:
        wanted = asked > 0
        scale *= min(1.0, float((available[wanted] / asked[wanted]).min()))
        dealt = _dealt(wanted_rows, diagnosed.wrong, scale, untold_rows, generator)
        asked = dealt.rows.sum(axis=0)
        if (asked <= available).all():
            return dealt
        if (dealt.seen.sum(axis=1)[diagnosed.told] == 1).all():
            lacking = int(np.argmax(asked - available))
            raise DataError(
                f"{KEY} must come with data of enough rows of each class to give every client one, got "
                f"{available[lacking]} rows of class {lacking} for {diagnosed.num_clients} clients"
            )
        scale *= SMALLER


def _dealt(
    wanted: IntArray, wrong: Sequence[float], scale: float, untold_rows: int, generator: np.random.Generator
) -> DealtCounts:
    everyone = wanted.sum(axis=0) / wanted.sum()
    seen = np.zeros_like(wanted)
    confusions = {}
    for client, (own, rate) in enumerate(zip(wanted, wrong, strict=True)):
        total = int(own.sum())
        size = max(1, round(scale * total)) if total else untold_rows
        seen[client] = whole_rows(own / total if total else everyone, size, generator)
        if rate:
            confusions[client] = _confusion(seen[client], rate, everyone, generator)
    rows = seen.copy()
    for client, confusion in confusions.items():
        rows[client] = confusion.sum(axis=1)
    return DealtCounts(seen, rows, confusions, scale)


def _confusion(seen: IntArray, rate: float, everyone: FloatVector, generator: np.random.Generator) -> IntArray:
    """Return rows by class and label whose labels add up to what the client sees, shape `(classes, classes)`."""
    wrong = whole_rows(seen / seen.sum(), round(rate * int(seen.sum())), generator)
    confusion = np.diag(seen - wrong)
    for label in np.flatnonzero(wrong):
        others = np.where(np.arange(len(seen)) == label, 0.0, everyone)
        if others.sum() > 0:
            confusion[:, label] += whole_rows(others / others.sum(), int(wrong[label]), generator)
        else:
            confusion[label, label] += wrong[label]
    return confusion
