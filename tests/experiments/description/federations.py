"""Federations whose heterogeneity is known, and no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.data.client import ClientTransform, Partition
from fedscout.engine.data.federation import Federation


class NoModel:
    """Stands for a model where none may be built."""

    def __call__(self) -> Any:
        raise AssertionError("a description builds no model")


def federation_of(
    labels: npt.ArrayLike,
    clients: Sequence[npt.ArrayLike],
    num_classes: int,
    features: npt.NDArray[np.floating] | None = None,
    transforms: Mapping[int, tuple[ClientTransform, ...]] | None = None,
    **others: Any,
) -> Federation:
    """Return a federation of these rows; features are noise of a fixed seed where none are given.

    Args:
        labels: Of all rows.
        clients: Row numbers of each client.
        num_classes: Number of classes.
        features: Of all rows.
        transforms: Of clients that a scenario corrupts.
        others: Further fields of the federation.
    """
    values = np.asarray(labels, dtype=np.int64)
    noise = np.random.default_rng(0).normal(size=(len(values), 3)) if features is None else features
    return Federation(
        name="test",
        features=np.asarray(noise, np.float32),
        labels=values,
        num_classes=num_classes,
        partition=Partition.from_lists(clients),
        model=NoModel(),
        transforms=transforms or {},
        **others,
    )


def by_counts(counts: npt.ArrayLike, **others: Any) -> Federation:
    """Return a federation in which client k holds `counts[k, c]` rows of class c."""
    matrix = np.asarray(counts)
    labels = np.concatenate([np.repeat(np.arange(matrix.shape[1]), row) for row in matrix])
    bounds = np.concatenate([[0], np.cumsum(matrix.sum(axis=1))])
    clients = [np.arange(start, end) for start, end in pairwise(bounds)]
    return federation_of(labels, clients, matrix.shape[1], **others)
