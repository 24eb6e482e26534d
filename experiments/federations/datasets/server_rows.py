"""Rows for the server, taken out of a data set before it is dealt, so that no client can hold one of them.

Classes have their shares of all rows: in a random order, the i-th of a class's n rows stands at (i − 1/2)/n, and the
rows that stand first are the server's (Webster's method of apportionment). The last row of each class stays
with the clients, so classes are the same on both sides of the cut. Of one seed, fewer rows are part of more.

Rows that belong together (`federation.group_column`) go whole groups at a time, as they do when a client splits its
rows: who distils on a patient's first visit knows half of the second. Groups are visited in a random order in which
every stretch holds its share of each class, a group's class being its most frequent one, and taken as long as each
brings the number of rows nearer to the wanted one and leaves the clients a row of each class. If no group is small
enough for that, the smallest that may be taken is.

A row that the data set holds twice may be on both sides; `num_duplicate_rows` counts those.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.data.client_split import spread_over_classes
from fedscout.engine.data.server_data import ServerData
from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.datasets.dataset import Dataset
from fedscout.experiments.federations.datasets.row_sample import taken

KEY = "federation.server_rows"


def without_server_rows(
    dataset: Dataset, asked: float | None, labelled: bool, generator: np.random.Generator
) -> tuple[Dataset, ServerData | None]:
    """Return the clients' part of a data set and the server's; all and None if nothing is asked for.

    Args:
        dataset: All rows.
        asked: A number of rows, >= 1, or a share of all, in (0, 1), which is rounded to a row at least; as nearly as
            whole groups allow.
        labelled: Whether the server keeps their labels.
        generator: Draws them.

    Raises:
        DataError: If the clients would be left without a row of each class.
    """
    if asked is None:
        return dataset, None
    num_rows = max(1, round(asked * dataset.num_rows)) if asked < 1 else int(asked)
    most = dataset.num_rows - dataset.num_classes
    if num_rows > most:
        raise DataError(
            Fault(
                KEY,
                (
                    f"leave the clients a row of each class of data set {dataset.name!r}, so it must be "
                    f"at most {most} of {dataset.num_rows} rows"
                ),
                num_rows,
            )
        )
    if dataset.groups is None:
        drawn = stratified(dataset.labels, num_rows, generator)
    else:
        drawn = _whole_groups(dataset, dataset.groups, num_rows, generator)
    is_server = np.zeros(dataset.num_rows, np.bool_)
    is_server[drawn] = True
    server = ServerData(dataset.features[is_server], dataset.labels[is_server] if labelled else None)
    facts = {"num_server_rows": server.num_rows, "server_labels": labelled}
    clients = taken(dataset, np.flatnonzero(~is_server))
    return replace(clients, facts={**clients.facts, **facts}), server


def stratified(labels: IntArray, num_rows: int, generator: np.random.Generator) -> IntArray:
    """Return drawn rows, of each class in proportion, the last of each class after all others; shape `(num_rows,)`."""
    order = generator.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    counts = np.bincount(labels)
    sizes = np.repeat(counts, counts)
    places = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    turns = np.where(places + 1 < sizes, (places + 0.5) / sizes, np.inf)
    return order[np.argsort(turns, kind="stable")[:num_rows]]


def _whole_groups(dataset: Dataset, groups: IntArray, wanted: int, generator: np.random.Generator) -> IntArray:
    """Return the rows of drawn groups, about as many as wanted; of no class all.

    Raises:
        DataError: If every group holds the last rows of a class.
    """
    _, members = np.unique(groups, return_inverse=True)
    held = np.zeros((members.max() + 1, dataset.num_classes), np.int64)
    np.add.at(held, (members, dataset.labels), 1)
    sizes, left = held.sum(axis=1), held.sum(axis=0)
    spare = np.flatnonzero((held < left).all(axis=1))
    if not len(spare):
        raise DataError(
            Fault(
                KEY,
                (
                    f"leave the clients a row of each class of data set {dataset.name!r}, and each of its "
                    f"{len(sizes)} groups (federation.group_column) holds all rows of some class"
                ),
            )
        )
    drawn: list[int] = []
    for group in spread_over_classes(held.argmax(axis=1), generator):
        lacking = wanted - sizes[drawn].sum()
        if abs(lacking - sizes[group]) < abs(lacking) and (held[group] < left).all():
            drawn.append(group)
            left = left - held[group]
    return np.flatnonzero(np.isin(members, drawn or [spare[np.argmin(sizes[spare])]]))
