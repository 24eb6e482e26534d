"""Which rows the clients of a descent read in each step, as arrays of one shape for all of them: step, lane, row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.training.local_training import RowsWork, epoch_orders
from fedscout.engine.training.vectorised_training import schedule

ROW_STEP = 16
"""Of which a lane's rows are a multiple: few shapes, and whole vectors of whatever is computed of a row."""


def lane_rows(num_rows: int, training: LocalTraining) -> int:
    """Return the rows of a lane's batches for a client of so many rows; a last single row joins its predecessor."""
    joins = training.batch_size > 1 and num_rows > training.batch_size and num_rows % training.batch_size == 1
    largest = min(num_rows, training.batch_size) + joins
    return -(-largest // ROW_STEP) * ROW_STEP


@dataclass(frozen=True)
class LanePlan:
    """Clients in lanes, those with most steps first; further lanes have nobody.

    Attributes:
        order: The client of each lane that has one, as its position among the works.
        rows: Numbers of rows in the clients' source; any where nothing counts. Shape `(steps, lanes, rows)`.
        shares: Weight of each in its batch's mean, 0 for padding, float32, likewise.
        sizes: Rows that count, float64, shape `(steps, lanes)`.
    """

    order: IntArray
    rows: IntArray
    shares: FloatArray
    sizes: npt.NDArray[np.float64]

    @classmethod
    def of(cls, works: Sequence[RowsWork], training: LocalTraining, num_lanes: int, num_rows: int) -> Self:
        """Draw the batches of some clients.

        Args:
            works: At most as many as lanes, each with rows, whose batches have at most `num_rows`.
            training: Epochs and batches of those that have no settings of their own.
            num_lanes: Side by side.
            num_rows: Of every batch, padding included.
        """
        own = [work.training or training for work in works]
        plans = [
            schedule(len(work.data), each.batch_size, each.local_epochs, num_rows)
            for work, each in zip(works, own, strict=True)
        ]
        order = np.argsort([-len(plan) for plan in plans], kind="stable")
        shape = len(plans[order[0]]), num_lanes
        rows, shares = np.zeros((*shape, num_rows), np.int64), np.zeros((*shape, num_rows), np.float32)
        sizes = np.zeros(shape)
        for lane, position in enumerate(order):
            work, plan = works[position], plans[position]
            orders = list(epoch_orders(len(work.data), own[position].local_epochs, work.generator))
            rows[: len(plan), lane] = work.data.rows[np.concatenate(orders)[plan.places]].reshape(-1, num_rows)
            shares[: len(plan), lane] = plan.shares.reshape(-1, num_rows)
            sizes[: len(plan), lane] = plan.sizes
        return cls(order, rows, shares, sizes)

    @property
    def num_steps(self) -> IntArray:
        """Of each work, in their order."""
        steps: IntArray = np.count_nonzero(self.sizes, axis=0)[np.argsort(self.order)]
        return steps

    @property
    def num_active(self) -> list[int]:
        """How many lanes, the first, have a batch in each step."""
        return [int(number) for number in np.count_nonzero(self.sizes, axis=1)]
