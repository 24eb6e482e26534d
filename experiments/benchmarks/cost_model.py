"""What a round costs beyond its local work, as a linear function of hosts, clients and bytes, fitted and checked.

    seconds = constant + per_host * hosts + per_client * clients + per_megabyte * megabytes

The coefficients are >= 0 and minimise the sum of squared *relative* errors, since sizes span two decades (non-negative
least squares: Lawson & Hanson, Solving Least Squares Problems, 1974, ch. 23). A model is checked by leaving out the
largest number of hosts, fitting the rest, and predicting what was left out.

A network is not measured here, but added by a formula: see `Network`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, Field

from fedscout.engine.errors import ConfigurationError, Fault

BYTES_PER_PARAMETER = 12
"""Of a host in a round: the model (4), which is evaluated and trained on, and the partial sum (8)."""

ROUND_TRIPS = 1
"""Of a round: the evaluation of its model travels with the next round's training."""

TERMS = 4


class RoundSize(BaseModel, frozen=True):
    """What a round's cost depends on: hosts, one a node, clients that train and are scored, the model's parameters."""

    hosts: int = Field(ge=1)
    clients: int = Field(ge=1)
    parameters: int = Field(ge=1)

    @property
    def megabytes(self) -> float:
        """What goes to and comes from all hosts in a round, in 10^6 bytes."""
        return self.hosts * self.parameters * BYTES_PER_PARAMETER / 1e6


class Network(BaseModel, frozen=True):
    """A network between the driver's node and the others.

    Everything is counted as if it passed the driver's link, one host after the other. That is the worst case: a model
    larger than a call carries is passed on between the nodes, and once to a node with several hosts.

    Attributes:
        gigabits_per_second: Of the driver's link.
        latency_seconds: From a call to its answer, without the work.
    """

    gigabits_per_second: float = Field(default=10.0, gt=0)
    latency_seconds: float = Field(default=0.0005, ge=0)

    def seconds(self, size: RoundSize) -> float:
        """Return what the network adds to a round."""
        return size.megabytes * 8e-3 / self.gigabits_per_second + ROUND_TRIPS * self.latency_seconds


class CostModel(BaseModel, frozen=True):
    """Seconds of a round by its size; see the module."""

    constant: float
    per_host: float
    per_client: float
    per_megabyte: float

    def seconds(self, size: RoundSize) -> float:
        """Return the predicted time of a round."""
        return float(np.dot(_terms(size), list(self.model_dump().values())))


class Prediction(BaseModel, frozen=True):
    """Seconds of a round that were predicted from others, and that were measured."""

    size: RoundSize
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Relative error; 0.1 is 10 % too much."""
        return self.predicted / self.measured - 1.0


def _terms(size: RoundSize) -> list[float]:
    return [1.0, size.hosts, size.clients, size.megabytes]


def fit(sizes: Sequence[RoundSize], seconds: Sequence[float]) -> CostModel:
    """Return the model of measured rounds, which took so many seconds > 0.

    Raises:
        ConfigurationError: If the sizes do not tell the terms apart.
    """
    from scipy.optimize import nnls

    matrix = np.array([_terms(size) for size in sizes], dtype=np.float64).reshape(-1, TERMS)
    scaled = matrix / np.abs(matrix).max(axis=0, initial=1e-300)
    rank = int(np.linalg.matrix_rank(scaled)) if len(sizes) else 0
    if rank < TERMS:
        raise ConfigurationError(
            Fault(
                "the sizes",
                f"tell hosts, clients, bytes and a constant apart (rank {TERMS})",
                f"{len(sizes)} of rank {rank}",
                "name at least two numbers of nodes",
            )
        )
    times = np.asarray(seconds, dtype=np.float64)
    largest = matrix.max(axis=0)
    solution, _ = nnls(matrix / largest / times[:, None], np.ones(len(times)))
    return CostModel(**dict(zip(CostModel.model_fields, (solution / largest).tolist(), strict=True)))


def check(sizes: Sequence[RoundSize], seconds: Sequence[float]) -> list[Prediction]:
    """Return predictions for the largest number of hosts by the model of all others; none below three numbers."""
    largest = max(size.hosts for size in sizes)
    if len({size.hosts for size in sizes}) < 3:
        return []
    known = [index for index, size in enumerate(sizes) if size.hosts < largest]
    model = fit([sizes[index] for index in known], [seconds[index] for index in known])
    return [
        Prediction(size=size, predicted=model.seconds(size), measured=measured)
        for size, measured in zip(sizes, seconds, strict=True)
        if size.hosts == largest
    ]
