"""How many rows of each class a proxy client holds whose classes come from a sampling.

They are the sampling's expected shares of its rows, rounded by the largest remainder. What is drawn is the client's own
class, or which class has the largest share, the next and so on.
"""

from __future__ import annotations

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.class_sampling import ClassSampling


def sampled_rows(sampling: ClassSampling, quantity: int, num_classes: int) -> IntArray:
    """Return the rows of a client's own class and those after it, or in descending order; shape `(num_classes,)`."""
    expected = sampling.shares(num_classes) * quantity
    counts = np.floor(expected + 1e-9).astype(np.int64)
    remainders = np.round(expected - counts, 9)
    counts[np.argsort(-remainders, kind="stable")[: quantity - int(counts.sum())]] += 1
    return counts


def arrangements(sampling: ClassSampling, counts: IntArray, class_rows: IntArray) -> list[int]:
    """Return the classes that can be a client's own, or have its largest share; none where no arrangement can be.

    Args:
        sampling: Of the counts.
        counts: As `sampled_rows` gives them.
        class_rows: What there is of each class, shape `(num_classes,)`.
    """
    if sampling.is_turned:
        return [own for own in range(len(counts)) if (np.roll(counts, own) <= class_rows).all()]
    if (np.sort(counts) > np.sort(class_rows)).any():
        return []
    return np.flatnonzero(class_rows >= counts.max()).tolist()


def sampled_shares(
    sampling: ClassSampling, quantity: int, class_rows: IntArray, generator: np.random.Generator
) -> IntArray:
    """Draw how many rows of each class a client holds, shape `(num_classes,)`; there must be an arrangement."""
    counts = sampled_rows(sampling, quantity, len(class_rows))
    if sampling.is_turned:
        return np.asarray(np.roll(counts, generator.choice(arrangements(sampling, counts, class_rows))))
    shares = np.zeros(len(class_rows), np.int64)
    free = np.ones(len(class_rows), np.bool_)
    for count in np.sort(counts)[::-1]:  # the more a share asks for, the fewer classes have it
        chosen = generator.choice(np.flatnonzero(free & (class_rows >= count)))
        shares[chosen], free[chosen] = count, False
    return shares
