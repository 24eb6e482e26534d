"""A metric: how good a model is on test rows, larger is better.

It has two halves, as a detector does. `statistics` turns outputs and labels of some rows into sums over these rows, on
a client's side; `value` turns such sums into the score. The sums are whole numbers or exact fractions, so they add up
over chunks, clients and hosts without rounding, in any order, and the score has the same bits for any number of hosts.

**Pooled.** The score of a federation is that of the sums over all its clients' test rows, each row predicted by the
model that its client would use: not the mean of the clients' scores, which for these metrics is another number, and
none where a client has rows of one class. The score of a client is that of its own rows.

**What leaves a client** is its score, one number like its accuracy, and its sums, which hosts add to those of other
clients before they answer: who drives a trial reads the sum over all clients alone. As all scores of models, they do
not pass the gate for answers (`fedscout.engine.data.release`): below `min_release` rows of a class it would leave out
whole rows of the table, and the score would be that of other rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

Outputs = npt.NDArray[np.floating[Any]]
Sums = npt.NDArray[Any]
"""Of whole numbers or of fractions."""


class Metric(ABC):
    """How good a model is on rows. A picklable value.

    Attributes:
        name: As in `training.metric`.
    """

    name: ClassVar[str]

    @abstractmethod
    def statistics(self, outputs: Outputs, labels: npt.NDArray[Any]) -> Sums:
        """Return the sums over some rows, of one shape whatever the rows are.

        Args:
            outputs: Of the model, before any softmax, shape `(rows, num_outputs)`.
            labels: What is right, shape `(rows,)`.
        """

    @abstractmethod
    def value(self, sums: Sums) -> float:
        """Return the score; NaN where these rows have none."""

    def value_of_client(self, sums: Sums) -> float:
        """Return the score of one client's rows; NaN where they have none."""
        return self.value(sums)


def add(sums: Iterable[Sums | None]) -> Sums | None:
    """Return the total of those that there are; None if there are none."""
    total: Sums | None = None
    for each in sums:
        if each is not None:
            wide = each if each.dtype == object else each.astype(np.promote_types(each.dtype, np.int32))
            total = wide if total is None else total + wide
    return total


def narrowed(sums: Sums) -> Sums:
    """Return sums in the smallest type that holds them, as a host keeps those of all its clients until it adds them."""
    if sums.dtype.kind not in "iu" or not sums.size:
        return sums
    return sums.astype(np.promote_types(np.min_scalar_type(sums.min()), np.min_scalar_type(sums.max())))
