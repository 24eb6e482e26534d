"""Deal by weights: the clients share the rows of each class in proportion to their weights for it. All rows are used.

With equal class counts, and weights that add up to the same for every class, all clients have the same size and a
client's label distribution is its row of weights, normalised. Otherwise a client's share of a class also follows its
frequency, as in a Dirichlet partition, and no class is left over. Rows that move to fill up clients below `min_size`
are on record.

The FedCust method matches clients to proxies whose classes are sampled from Gaussian, Poisson and Dirichlet
distributions, but how they are sampled is not published. This is a reconstruction: client k has an own class c_k, all
classes in turn, and a weight for each class by its distance from c_k on the ring of classes (so that the first class
has two neighbours like any other):

- `gaussian`: the normal density with standard deviation σ (`class_sigma`, in classes) at y − c_k, wrapped around the
  ring. With σ → 0 a client has one class, with σ → ∞ the partition is IID.
- `poisson`: for the class that follows c_k by j the Poisson probability of j with mean λ (`class_rate`), wrapped. With
  λ → 0 a client has one class. A wrapped Poisson distribution with mean λ + λ' is that with mean λ, convolved on the
  ring with another, so larger λ is never stronger skew, and λ → ∞ is IID; λ beyond the number of classes comes close.
"""

from __future__ import annotations

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.experiments.federations.partitions.fill_up import fill_up
from fedscout.experiments.federations.partitions.partition_request import Deal, PartitionRequest
from fedscout.experiments.federations.partitions.shares import FloatVector


def gaussian(request: PartitionRequest) -> Deal:
    """Deal by wrapped normal weights."""
    request.require_min_size()
    return _deal_turned(request, wrapped_normal(len(request.class_counts), request.settings.class_sigma))


def poisson(request: PartitionRequest) -> Deal:
    """Deal by wrapped Poisson weights."""
    request.require_min_size()
    return _deal_turned(request, wrapped_poisson(len(request.class_counts), request.settings.class_rate))


def wrapped_normal(num_classes: int, sigma: float) -> FloatVector:
    """Return the logarithms of the normal density at 0, 1, …, wrapped around the ring, up to a constant."""
    reach = int(10 * sigma / num_classes) + 1
    turns = np.arange(-reach, reach + 1)[:, None] * num_classes
    exponents = -((np.arange(num_classes)[None, :] + turns) ** 2) / (2 * sigma**2)
    return np.asarray(np.logaddexp.reduce(exponents, axis=0), dtype=np.float64)


def wrapped_poisson(num_classes: int, rate: float) -> FloatVector:
    """Return the logarithms of the Poisson probabilities of 0, 1, …, wrapped around the ring."""
    from scipy.special import gammaln

    num_turns = int((rate + 12 * np.sqrt(rate) + 50) / num_classes) + 1
    counts = np.arange(num_turns * num_classes)
    exponents = (counts * np.log(rate) - rate - gammaln(counts + 1)).reshape(num_turns, num_classes)
    return np.asarray(np.logaddexp.reduce(exponents, axis=0), dtype=np.float64)


def owners_by_log_weights(labels: IntArray, log_weights: FloatVector, generator: np.random.Generator) -> IntArray:
    """Return the client of each row, shape `(num_rows,)`.

    Logarithms keep a class whose weights are all tiny with the clients that want it most.

    Args:
        labels: In `[0, num_classes)`, shape `(num_rows,)`.
        log_weights: Natural logarithms, shape `(num_clients, num_classes)`; at least one of a class is finite.
        generator: Draws the rows, and who profits from rounding.
    """
    owners = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        weights = np.exp(log_weights[:, label] - log_weights[:, label].max())
        # In an order of their own for each class, or rounding would favour the same clients in all of them.
        clients = generator.permutation(len(weights))
        edges = np.cumsum(weights[clients])
        # Equally spaced points, shifted at random: a client gets its expected number of rows, rounded up or down.
        points = (np.arange(len(rows)) + generator.random()) / len(rows) * edges[-1]
        last = np.nextafter(edges[-1], 0)  # where rounding has carried a point to the very end
        owners[rows] = clients[np.searchsorted(edges, np.minimum(points, last), side="right")]
    return owners


def _deal_turned(request: PartitionRequest, kernel: FloatVector) -> Deal:
    """Deal by a kernel over the ring of classes, turned to each client's own class; fill up clients left too small.

    The clients' own classes are all classes in turn, in an order that is drawn, so that every class is in demand
    equally often (to one client).

    Args:
        request: Gives the clients, and draws their classes.
        kernel: Logarithm of the weight of the class that lies j classes after a client's own, shape `(num_classes,)`.
    """
    num_clients, num_classes = request.require_num_clients(), len(kernel)
    order = request.generator.permutation(num_classes)
    own = order[np.arange(num_clients) % num_classes]
    steps = (np.arange(num_classes)[None, :] - own[:, None]) % num_classes
    owners = owners_by_log_weights(request.labels, kernel[steps], request.generator)
    num_moved = fill_up(owners, num_clients, request.settings.min_size, request.generator)
    return request.deal_owners(owners, num_rows_moved=num_moved)
