"""The classes of proxy data that stand for those of a diagnosed federation, and are renumbered as these are.

A report has no names of classes. Where the proxy has as many classes, they stand for the diagnosed ones in their order.
Where it has more, the most frequent ones stand for the most frequent ones, so that as few rows as possible are lost,
and rows of the others are left out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.errors import DataError
from fedscout.experiments.federations.datasets.dataset import Dataset
from fedscout.experiments.federations.datasets.row_sample import taken

KEY = "federation.like"


def with_diagnosed_classes(dataset: Dataset, class_rows: IntArray) -> Dataset:
    """Return the proxy data as rows of the diagnosed classes.

    Args:
        dataset: The proxy.
        class_rows: Rows of each diagnosed class, shape `(classes,)`.

    Raises:
        DataError: If it has too few classes, or none at all.
    """
    if dataset.targets is not None:
        raise DataError(f"{KEY} must come with data of classes, got {dataset.name!r}, of which a quantity is predicted")
    if dataset.num_classes < len(class_rows):
        raise DataError(
            f"{KEY} must come with data of at least as many classes as were diagnosed, {len(class_rows)}, got "
            f"{dataset.num_classes} of {dataset.name!r}"
        )
    if dataset.num_classes == len(class_rows):
        return dataset
    by_frequency = np.argsort(-np.bincount(dataset.labels), kind="stable")[: len(class_rows)]
    stands_for = np.empty(len(class_rows), np.int64)
    stands_for[np.argsort(-class_rows, kind="stable")] = by_frequency
    kept = taken(dataset, np.flatnonzero(np.isin(dataset.labels, by_frequency)))
    numbers = np.argsort(stands_for, kind="stable")  # of the kept classes, which are in the order of the proxy's
    names = tuple(dataset.class_names[label] for label in stands_for.tolist())
    return replace(kept, labels=numbers[kept.labels], class_names=names)
