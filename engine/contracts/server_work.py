"""Work that a strategy has done on the server's side, where torch and the server's rows are.

A strategy aggregates on the driver, which has neither. What needs a model, such as distillation, is a frozen, picklable
value with one function, `run`, which a host calls: on vectors that the strategy sends along, with the model as
functions on flat vectors. A host keeps nothing of it, so the work can be repeated anywhere, bit for bit. Work that is
done on each of many models is given them one at a time, so that no host ever holds all of them.

Vectors are whole: trainable parameters, then buffers. This file needs no torch, as drivers read it, too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import IntArray
from fedscout.engine.model.parameter_layout import ParameterLayout

if TYPE_CHECKING:
    from torch import Tensor

Arrays = Mapping[str, npt.NDArray[Any]]

NO_SERVER_ROWS = "the server must hold rows for this (federation.server_rows, such as 200 or 0.1), it holds none"


@dataclass(frozen=True)
class ServerContext(ABC):
    """What work on the server may use. The model is in evaluation mode: dropout is off, statistics stay.

    Attributes:
        layout: Which part of a vector is which tensor.
        num_classes: Of the federation.
        num_rows: Rows of the server, at least one.
        labels: Of those rows, shape `(num_rows,)`; None where they are stripped.
        generator: Of this round's work; the same on every host, and after a repetition.
    """

    layout: ParameterLayout
    num_classes: int
    num_rows: int
    labels: Tensor | None
    generator: np.random.Generator

    @abstractmethod
    def outputs(self, vector: Tensor, rows: IntArray | None = None) -> Tensor:
        """Return a model's outputs (logits), without gradient, shape `(rows, num_classes)`.

        Args:
            vector: The model, shape `(layout.size,)`.
            rows: Of the server's, in `[0, num_rows)`; None means all, in order.
        """

    @abstractmethod
    def gradient(
        self, vector: Tensor, loss: Callable[[Tensor], Tensor], rows: IntArray | None = None
    ) -> tuple[float, Tensor]:
        """Return a loss and its gradient by the trainable part, shape `(layout.num_trainable,)`.

        Args:
            vector: The model, shape `(layout.size,)`; left as it is.
            loss: Of the outputs on the rows, a scalar.
            rows: As for `outputs`; they go through the model together.
        """


class ServerWork(Protocol):
    """A frozen, picklable value."""

    def run(self, context: ServerContext, arrays: Arrays) -> Arrays:
        """Return what the strategy wants to know, by name.

        Args:
            context: Model, rows and random numbers.
            arrays: What the strategy sent along; may be read-only.
        """
        ...


@runtime_checkable
class ServesWork(Protocol):
    """A grid that has a place for such work."""

    def serve(self, work: ServerWork, arrays: Arrays) -> Arrays:
        """Have the work of the present round done, and return what it returns.

        Raises:
            TrialError: If it fails.
        """
        ...

    def serve_each(self, work: ServerWork, inputs: Sequence[Arrays]) -> Iterator[Arrays]:
        """Have it done on each of some inputs, by all places there are, and yield what it returns, in order.

        None knows of the others, and each has the round's random numbers from their beginning.

        Raises:
            TrialError: If it fails for one.
        """
        ...
