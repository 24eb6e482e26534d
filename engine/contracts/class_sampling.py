"""How a client's classes may have been sampled: by a Gaussian, a Poisson or a Dirichlet distribution, and which fits.

FedCust also describes a client by the parameter of the distribution that its classes would come from (Gaussian β,
Poisson λ, Dirichlet α), found by χ² or Bhattacharyya distance; how classes are sampled it does not say. As in the
partitions of the same names, this is a reconstruction. Shares of C classes are

- gaussian: the normal density of standard deviation β at the distance from a class of the client's own, wrapped around
  the ring of classes; poisson: the Poisson probability, of mean λ, of the steps from that class onwards, wrapped. The
  class of its own is the one that fits best.
- dirichlet: the expected shares of a symmetric Dirichlet(α) in descending order, whichever classes they are. With G_1
  ≥ … ≥ G_C the ordered values of C independent Gamma(α), the k-th is E G_k / (C α), as the sum of Gammas is independent
  of their shares; E G_k = ∫ P(G_k > x) dx.

Small parameters are one class, large ones all alike. Clients of a given entropy are made likewise, for tables of which
it is an axis, though a client measures its own, and nothing is matched:

- entropy: the geometric shares θ^k whose 1 − H(p)/log C is the parameter: 0 is all alike, 1 one class. Of all shares
  with their mean rank they have the most entropy.

Distances of n_y rows of N, with shares q_y:

- χ² = Σ (n_y − N q_y)² / (N q_y)            Pearson's; a row where hardly one is expected weighs much
- Bhattacharyya = −log Σ √(q_y n_y / N)

A client's parameter is the nearest of `NUM_CANDIDATES`, evenly spaced in log space. That is the measure of likeness for
them altogether, so an axis of a table of parameters is logarithmic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import log
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Sampling = Literal["gaussian", "poisson", "dirichlet", "entropy"]
Distance = Literal["chi_square", "bhattacharyya"]

Shares = npt.NDArray[np.float64]

NUM_CANDIDATES = 101

_LEAST: Mapping[Sampling, float] = {"gaussian": 0.25, "poisson": 0.01, "dirichlet": 0.001}
"""One class with nearly all rows: less of it nobody could tell."""

_ONE_CLASS = 700.0
"""A decay by which every class but one is lost to rounding."""

_TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, order=True)
class ClassSampling:
    """A distribution from which a client's classes come.

    Attributes:
        kind: Of the distribution.
        parameter: β, λ or α, > 0, or the missing share of entropy, in [0, 1].
    """

    kind: Sampling
    parameter: float

    @property
    def is_turned(self) -> bool:
        """Whether shares go around the ring of classes from one of the client's own; else their order says nothing."""
        return self.kind in ("gaussian", "poisson")

    def shares(self, num_classes: int) -> Shares:
        """Return the shares of the classes from the client's own one onwards, or in descending order."""
        if self.kind == "dirichlet":
            return ordered_dirichlet(num_classes, self.parameter)
        if self.kind == "entropy":
            return geometric_shares(num_classes, self.parameter)
        kernel = wrapped_normal if self.kind == "gaussian" else wrapped_poisson
        weights = np.exp(kernel(num_classes, self.parameter))
        return np.asarray(weights / weights.sum())


def sampling_parameter(kind: Sampling, distance: Distance, label_counts: npt.NDArray[Any]) -> float:
    """Return the parameter whose shares are nearest to a client's; of equally near ones the smallest.

    Args:
        kind: Of the distribution.
        distance: By which.
        label_counts: Of its rows, shape `(classes,)`.

    Raises:
        ValueError: If there are fewer than two classes, or no row.
    """
    num_classes, num_rows = len(label_counts), int(label_counts.sum())
    if num_classes < 2 or not num_rows:
        raise ValueError(f"a class sampling needs rows and two classes or more, got {num_rows} of {num_classes}")
    parameters, shares = _candidates(kind, num_classes)
    return float(parameters[int(np.argmin(sampling_distances(kind, distance, label_counts, shares)))])


def sampling_distances(kind: Sampling, distance: Distance, label_counts: npt.NDArray[Any], shares: Shares) -> Shares:
    """Return how far a client's rows are from each of some samplings, shape `(samplings,)`.

    Args:
        kind: Of all of them.
        distance: By which.
        label_counts: Of the client's rows, shape `(classes,)`, with a positive sum.
        shares: Of each sampling, shape `(samplings, classes)`.
    """
    counts = np.asarray(label_counts, np.float64)
    if kind == "dirichlet":
        arranged = np.sort(counts)[None, ::-1]
    else:
        steps = np.arange(len(counts))
        arranged = counts[(steps[:, None] + steps[None, :]) % len(counts)]  # a row for each class of its own
    return np.asarray(DISTANCES[distance](arranged, shares).min(axis=0))


def chi_square(counts: Shares, shares: Shares) -> Shares:
    """Return Pearson's χ² of counts, shape `(m, classes)`, to shares, shape `(n, classes)`: shape `(m, n)`."""
    expected = np.maximum(counts.sum(axis=1).max() * shares, _TINY)
    with np.errstate(over="ignore"):
        return np.asarray((counts**2) @ (1 / expected).T - 2 * counts @ np.ones_like(expected).T + expected.sum(axis=1))


def bhattacharyya(counts: Shares, shares: Shares) -> Shares:
    """Return −log Σ √(p q) of counts, shape `(m, classes)`, to shares, shape `(n, classes)`: shape `(m, n)`."""
    likeness = np.sqrt(counts / counts.sum(axis=1, keepdims=True)) @ np.sqrt(shares).T
    return np.asarray(-np.log(np.clip(likeness, _TINY, 1.0)))


DISTANCES: Mapping[Distance, Callable[[Shares, Shares], Shares]] = {
    "chi_square": chi_square,
    "bhattacharyya": bhattacharyya,
}


@lru_cache(maxsize=16)
def _candidates(kind: Sampling, num_classes: int) -> tuple[Shares, Shares]:
    """Return parameters, ascending, and the shares of each, shape `(candidates, num_classes)`.

    The largest leave classes alike: a ring once the spread is its length.
    """
    most = {"gaussian": num_classes, "poisson": num_classes**2, "dirichlet": 1000.0}[kind]
    parameters = np.geomspace(_LEAST[kind], most, NUM_CANDIDATES)
    return parameters, np.array([ClassSampling(kind, value).shares(num_classes) for value in parameters.tolist()])


@lru_cache(maxsize=1024)
def ordered_dirichlet(num_classes: int, alpha: float) -> Shares:
    """Return the expected shares of a symmetric Dirichlet(α) in descending order, shape `(num_classes,)`."""
    from scipy.special import betainc, gammainc

    ends = np.log(alpha + 20 * np.sqrt(alpha) + 50)
    logs = np.linspace(-20.0, ends, 1001)
    below = gammainc(alpha, np.exp(logs))  # P(a Gamma <= x)
    places = np.arange(1, num_classes + 1)[:, None]  # the k-th largest exceeds x if k of them do
    exceeds = betainc(places, num_classes - places + 1, 1 - below[None, :])
    means = np.trapezoid(exceeds * np.exp(logs), logs, axis=1)
    return np.asarray(means / means.sum(), np.float64)


@lru_cache(maxsize=1024)
def geometric_shares(num_classes: int, missing: float) -> Shares:
    """Return shares in descending order, each the same multiple of the one before, shape `(num_classes >= 2,)`.

    Args:
        num_classes: C.
        missing: 1 − H/log C that they have, in [0, 1].
    """
    from scipy.optimize import brentq
    from scipy.special import softmax

    def shares(decay: float) -> Shares:
        return np.asarray(softmax(-decay * np.arange(num_classes)), np.float64)

    def excess(decay: float) -> float:
        return missing_entropy(shares(decay)) - missing

    return shares(0.0 if excess(0.0) >= 0 else brentq(excess, 0.0, _ONE_CLASS, xtol=1e-12))


def missing_entropy(weights: npt.NDArray[Any]) -> float:
    """Return 1 − H(p)/log C, p the shares of C classes: 0 where all are equal, 1 with one.

    Args:
        weights: Shares, or rows of each class, shape `(classes,)`.

    Raises:
        ValueError: If there are fewer than two classes, or no row.
    """
    num_classes, total = len(weights), weights.sum()
    if num_classes < 2 or not total:
        raise ValueError(f"an entropy of labels needs rows and two classes or more, got {total:g} of {num_classes}")
    shares = weights[weights > 0] / total
    return max(0.0, 1 + float(shares @ np.log(shares)) / log(num_classes))


def wrapped_normal(num_classes: int, sigma: float) -> Shares:
    """Return the logarithms of the normal density at 0, 1, …, wrapped around the ring, up to a constant."""
    reach = int(10 * sigma / num_classes) + 1
    turns = np.arange(-reach, reach + 1)[:, None] * num_classes
    exponents = -((np.arange(num_classes)[None, :] + turns) ** 2) / (2 * sigma**2)
    return np.asarray(np.logaddexp.reduce(exponents, axis=0), dtype=np.float64)


def wrapped_poisson(num_classes: int, rate: float) -> Shares:
    """Return the logarithms of the Poisson probabilities of 0, 1, …, wrapped around the ring."""
    from scipy.special import gammaln

    num_turns = int((rate + 12 * np.sqrt(rate) + 50) / num_classes) + 1
    counts = np.arange(num_turns * num_classes)
    exponents = (counts * np.log(rate) - rate - gammaln(counts + 1)).reshape(num_turns, num_classes)
    return np.asarray(np.logaddexp.reduce(exponents, axis=0), dtype=np.float64)
