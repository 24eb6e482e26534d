"""Client queries: the fixed table of aggregates a client is willing to compute over its own data.

A query is a pure function of the client's local data and of what the message carries. The host looks it up by name;
nothing else ever runs on a client's data in answer to a query message. It says how many rows are behind each number,
and what of its answer leaves the client is decided by `fedscout.engine.data.release`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.data.client_data import Samples
from fedscout.engine.data.release import Answer

LABEL_COUNTS = "label_counts"
"""The query that strategies may ask as detectors do: its answer `counts` is the client's rows of each class, shape
`(num_classes,)`, as far as they may leave it."""

Outputs = Callable[[FloatArray], Iterator[FloatArray]]
"""From a model's flat vector to its softmax outputs on the client's rows, chunk by chunk, `(rows, num_classes)`."""


DoubleArray = npt.NDArray[np.float64]
RowProducts = Callable[[DoubleArray], DoubleArray]


def products_on_a_core(rows: DoubleArray) -> DoubleArray:
    """Return XᵀX, shape `(d, d)` from rows of shape `(rows, d)`."""
    return rows.T @ rows


def _no_model(vector: FloatArray) -> Iterator[FloatArray]:
    raise ValueError(f"no model here takes a vector of {len(vector)} parameters")


@dataclass(frozen=True)
class QueryInputs:
    """What a query may read.

    Attributes:
        data: The client's local rows as it has them; read it with `chunks()` to bound memory.
        num_classes: Classes of the federation.
        arrays: The arrays of the message.
        config: The scalars of the message.
        outputs: Runs the federation's model over the client's rows, for queries about outputs.
        min_release: Fewest rows behind a number that leaves the client; for queries about parts of its rows.
        groups: The group of each row, shape `(num_rows,)`; None where rows are independent.
        cross_products: XᵀX of rows X, wherever the host has the most room for it.
    """

    data: Samples
    num_classes: int
    arrays: Mapping[str, npt.NDArray[np.generic]]
    config: Mapping[str, Any]
    outputs: Outputs = _no_model
    min_release: int = 1
    groups: IntArray | None = None
    cross_products: RowProducts = products_on_a_core

    def by_class(self, name: str, num_classes: int) -> npt.NDArray[np.float64]:
        """Return an array of the message that holds something of each class, as float64.

        Args:
            name: Of the array.
            num_classes: Its length. With fewer, whether the query fails would tell which classes the client holds.

        Raises:
            ValueError: If it has another length.
        """
        values = self.arrays[name].astype(np.float64)
        if values.ndim == 0 or len(values) != num_classes:
            raise ValueError(f"{name} must hold something of {num_classes} classes, got shape {values.shape}")
        return values


ClientQuery = Callable[[QueryInputs], Answer]
QueryTable = Mapping[str, ClientQuery]
