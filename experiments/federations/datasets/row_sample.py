"""Fewer rows than a data set has: without its smallest natural clients, or a random sample.

Classes without a row among those that stay are left out and the others numbered anew; how many, is on record.
Statistics that the loader took (standardisation, vocabulary) are those of all rows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.datasets.dataset import Dataset, distinct_texts, duplicate_rows, present_classes


def without_small_clients(dataset: Dataset, min_client_rows: int) -> Dataset:
    """Return a data set without the natural clients that have too few rows; itself if there are none.

    Args:
        dataset: All rows.
        min_client_rows: Fewest rows of a client that stays.

    Raises:
        DataError: If more than one row is asked for and no natural clients are known, or none has so many.
    """
    if min_client_rows <= 1:
        return dataset
    if dataset.client_ids is None:
        raise DataError(
            Fault(
                "federation.min_client_rows",
                (
                    f"be left out, as data set {dataset.name!r} has no natural clients or "
                    "federation.client_column does not name them"
                ),
                min_client_rows,
            )
        )
    names, owners = distinct_texts(dataset.client_ids)
    sizes = np.bincount(owners)
    large = sizes >= min_client_rows
    if not large.any():
        raise DataError(
            Fault(
                "federation.min_client_rows",
                (f"be at most {sizes.max()}, the rows of the largest client of data set {dataset.name!r}"),
                min_client_rows,
            )
        )
    if large.all():
        return dataset
    rows = np.flatnonzero(large[owners])
    return taken(
        dataset,
        rows,
        num_small_clients_left_out=len(names) - int(np.count_nonzero(large)),
        num_rows_of_small_clients=dataset.num_rows - len(rows),
    )


def sample_rows(dataset: Dataset, max_rows: int | None, generator: np.random.Generator) -> Dataset:
    """Return a data set of at most `max_rows` rows; itself if it has no more, or None is given.

    Rows are drawn uniformly, without regard to labels or natural clients, and stay in order. Of one seed, a smaller
    sample is part of a larger one.

    Args:
        dataset: All rows.
        max_rows: Most rows wanted, >= 2.
        generator: Draws them.

    Raises:
        DataError: If rows of fewer than two classes were drawn.
    """
    if max_rows is None or dataset.num_rows <= max_rows:
        return dataset
    rows = np.sort(generator.permutation(dataset.num_rows)[:max_rows])
    return taken(dataset, rows, num_rows_not_sampled=dataset.num_rows - max_rows)


def taken(dataset: Dataset, rows: IntArray, **facts: int) -> Dataset:
    """Return a data set of some rows, with those facts added.

    Args:
        dataset: All rows.
        rows: Those that stay, in their order.
        facts: For the record.

    Raises:
        DataError: If they are of fewer than two classes.
    """
    labels, class_names = present_classes(dataset.name, dataset.labels[rows], dataset.class_names)
    features = dataset.features[rows]
    lost = dataset.facts.get("num_classes_left_out", 0) + dataset.num_classes - len(class_names)
    return replace(
        dataset,
        features=features,
        labels=labels,
        class_names=class_names,
        client_ids=None if dataset.client_ids is None else dataset.client_ids[rows],
        groups=None if dataset.groups is None else dataset.groups[rows],
        targets=None if dataset.targets is None else dataset.targets[rows],
        facts={
            **dataset.facts,
            "num_rows": len(rows),
            "num_duplicate_rows": duplicate_rows(features, labels),
            "num_classes_left_out": lost,
            **facts,
        },
    )
