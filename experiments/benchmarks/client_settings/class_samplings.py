"""The source's other metrics of a client, for a published table: the class sampling that fits its classes best.

FedCust describes a client also by the parameter of the distribution that its classes would come from (Gaussian β,
Poisson λ, Dirichlet α), found by χ² or Bhattacharyya distance; how classes are sampled it does not say. As in the
partitions of the same names, this is a reconstruction. Shares of C classes are

- gaussian: the normal density of standard deviation β at the distance from a class of the client's own, wrapped around
  the ring of classes; poisson: the Poisson probability, of mean λ, of the steps from that class onwards, wrapped. The
  class of its own is the one that fits best.
- dirichlet: the expected shares of a symmetric Dirichlet(α) in descending order, whichever classes they are. With G_1
  ≥ … ≥ G_C the ordered values of C independent Gamma(α), the k-th is E G_k / (C α), as the sum of Gammas is independent
  of their shares; E G_k = ∫ P(G_k > x) dx.

Distances of n_y rows of N, with shares q_y: χ² = Σ (n_y − N q_y)² / (N q_y), and −log Σ √(q_y n_y / N).

A metric is the logarithm of the nearest of `NUM_CANDIDATES` parameters, as it is ratios that make clients unlike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import IntArray
from fedscout.experiments.federations.partitions.class_weights import wrapped_normal, wrapped_poisson

Shares = npt.NDArray[np.float64]

NUM_CANDIDATES = 101
LEAST: Mapping[str, float] = {"gaussian": 0.25, "poisson": 0.01, "dirichlet": 0.001}
"""One class with nearly all rows: less of it nobody could tell."""

DIGITS = 9
"""Of a distance; where candidates are equally near to so many, the smallest counts."""

_TINY = float(np.finfo(np.float64).tiny)


def chi_square(counts: Shares, shares: Shares) -> Shares:
    """Return Pearson's χ² of counts, shape `(m, classes)`, to shares, shape `(n, classes)`: shape `(m, n)`."""
    expected = np.maximum(counts.sum(axis=1).max() * shares, _TINY)
    with np.errstate(over="ignore"):
        return np.asarray((counts**2) @ (1 / expected).T - 2 * counts @ np.ones_like(expected).T + expected.sum(axis=1))


def bhattacharyya(counts: Shares, shares: Shares) -> Shares:
    """Return −log Σ √(p q) of counts, shape `(m, classes)`, to shares, shape `(n, classes)`: shape `(m, n)`."""
    likeness = np.sqrt(counts / counts.sum(axis=1, keepdims=True)) @ np.sqrt(shares).T
    return np.asarray(-np.log(np.clip(likeness, _TINY, 1.0)))


def fitted(kind: str, distance: Callable[[Shares, Shares], Shares], label_counts: IntArray, _: int) -> float:
    """Return the logarithm of the parameter whose shares are nearest to a client's rows of each class."""
    parameters, shares = _candidates(kind, len(label_counts))
    counts = np.asarray(label_counts, np.float64)
    steps = np.arange(len(counts))
    turned = counts[(steps[:, None] + steps[None, :]) % len(counts)]  # a row for each class of its own
    arranged = np.sort(counts)[None, ::-1] if kind == "dirichlet" else turned
    distances = np.round(distance(arranged, shares).min(axis=0), DIGITS)
    return float(np.log(parameters[int(np.argmin(distances))]))


gaussian = partial(fitted, "gaussian", chi_square)
poisson = partial(fitted, "poisson", chi_square)
dirichlet = partial(fitted, "dirichlet", chi_square)
gaussian_bhattacharyya = partial(fitted, "gaussian", bhattacharyya)
poisson_bhattacharyya = partial(fitted, "poisson", bhattacharyya)
dirichlet_bhattacharyya = partial(fitted, "dirichlet", bhattacharyya)


@lru_cache(maxsize=16)
def _candidates(kind: str, num_classes: int) -> tuple[Shares, Shares]:
    """Return parameters, ascending, and the shares of each, shape `(candidates, num_classes)`.

    The largest leave classes alike: a ring once the spread is its length.
    """
    most = {"gaussian": num_classes, "poisson": num_classes**2, "dirichlet": 1000.0}[kind]
    parameters = np.geomspace(LEAST[kind], most, NUM_CANDIDATES)
    return parameters, np.array([shares_of(kind, value, num_classes) for value in parameters.tolist()])


def shares_of(kind: str, parameter: float, num_classes: int) -> Shares:
    """Return the shares of the classes from the client's own one onwards, or in descending order."""
    if kind == "dirichlet":
        return ordered_dirichlet(num_classes, parameter)
    weights = np.exp({"gaussian": wrapped_normal, "poisson": wrapped_poisson}[kind](num_classes, parameter))
    return np.asarray(weights / weights.sum())


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
