"""Samples of a data set, and rows that only the server holds.

Fewer rows than a data set has: without its smallest natural clients, or a random sample.

Classes without a row among those that stay are left out and the others numbered anew; how many, is on record.
Statistics that the loader took (standardisation, vocabulary) are those of all rows.

Rows for the server from another data set than the clients', such as a public one of the same columns.

It is read as the clients' data are, with their label, columns left out and limits. Its rows must look like theirs: of
the same kind and shape, and of a table the same columns in the same order. Labels are matched by the names of classes;
one that the clients' data lack is refused where the server keeps labels, one that the server's lack does no harm.

Each side is on the scale that its own rows give it: a table is standardised by its own means and deviations, pixels
have the scale of images. So nothing of the clients' rows reaches the server, but a shift or another spread of the
server's columns as a whole is taken out; and few rows make a rough scale.

Token numbers come from each data set's own words, so tokens are refused. That no client holds one of these rows is not
looked up.

Rows for the server, taken out of a data set before it is dealt, so that no client can hold one of them.

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
from fedscout.engine.data.federation import ServerData
from fedscout.engine.data.split import spread_over_classes
from fedscout.engine.errors import DataError, Fault, UserError
from fedscout.experiments.data.dataset import (
    Dataset,
    DatasetLoader,
    DatasetRequest,
    distinct_texts,
    duplicate_rows,
    present_classes,
)


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


ROWS_KEY = "federation.server_rows"


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
                ROWS_KEY,
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
                ROWS_KEY,
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


DATASET_KEY = "federation.server_dataset"
OF_THE_CLIENTS: dict[str, object] = {
    "client_column": None,
    "group_column": None,
    "split": None,
    "degraded_from": None,
    "min_client_rows": 1,
    "max_rows": None,
}
"""What is asked of the clients' data alone, as nobody asks for it."""

NAMES_SHOWN = 4


def load_server_dataset(request: DatasetRequest, name: str, load: DatasetLoader) -> Dataset:
    """Return the server's data set.

    Args:
        request: Of the clients' data set.
        name: Of the server's, as the user gave it.
        load: Reads what a request names.

    Raises:
        DataError: If it can't be read.
    """
    try:
        return load(request.model_copy(update={**OF_THE_CLIENTS, "dataset": name}))
    except UserError as error:
        raise DataError([f"{DATASET_KEY}={name} can't be read: {fault}" for fault in error.faults]) from error


def rows_of_another(
    clients: Dataset, other: Dataset, asked: float | None, labelled: bool, generator: np.random.Generator
) -> ServerData:
    """Return rows of another data set for the server of some clients.

    Args:
        clients: Their data set, with all rows that any of them holds.
        other: The server's.
        asked: A number of its rows, a share in (0, 1) of them, or None for all; drawn of each class in proportion.
        labelled: Whether the server keeps labels.
        generator: Draws them.

    Raises:
        DataError: If a row of it is unlike those of the clients, or it has not so many.
    """
    _check_rows(clients, other)
    labels = _as_theirs(clients, other) if labelled else None
    num_rows = other.num_rows if asked is None else max(1, round(asked * other.num_rows)) if asked < 1 else int(asked)
    if num_rows > other.num_rows:
        raise DataError(
            Fault(
                "federation.server_rows",
                f"be at most the {other.num_rows} rows of {DATASET_KEY}={other.name}",
                num_rows,
            )
        )
    rows = np.sort(stratified(other.labels, num_rows, generator))
    return ServerData(other.features[rows], None if labels is None else labels[rows])


def _check_rows(clients: Dataset, other: Dataset) -> None:
    if "tokens" in (clients.kind, other.kind):
        raise DataError(
            Fault(DATASET_KEY, "be left out for tokens, whose numbers mean other words there", repr(other.name))
        )
    wanted, given = _row_text(clients), _row_text(other)
    if wanted != given:
        raise DataError(
            Fault(
                DATASET_KEY,
                f"hold rows like those of data set {clients.name!r}, of which one is {wanted}",
                f"{given} of {other.name!r}",
            )
        )
    if clients.feature_names != other.feature_names:
        pairs = zip(clients.feature_names, other.feature_names, strict=True)
        theirs, its = next(pair for pair in pairs if pair[0] != pair[1])
        raise DataError(
            Fault(
                DATASET_KEY,
                f"hold the columns of data set {clients.name!r} in the same order",
                f"{its!r} of {other.name!r} where {theirs!r} stands",
            )
        )


def _row_text(dataset: Dataset) -> str:
    shape = " x ".join(map(str, dataset.features.shape[1:]))
    return f"{dataset.kind} of {shape} numbers"


def _as_theirs(clients: Dataset, other: Dataset) -> IntArray:
    """Return the labels of the server's rows, numbered as the clients' are."""
    numbers = {name: number for number, name in enumerate(clients.class_names)}
    if unknown := [name for name in other.class_names if name not in numbers]:
        more = f" and {len(unknown) - NAMES_SHOWN} more" if len(unknown) > NAMES_SHOWN else ""
        raise DataError(
            Fault(
                DATASET_KEY,
                (f"hold no other classes than data set {clients.name!r} where federation.server_labels=true"),
                f"{', '.join(unknown[:NAMES_SHOWN])}{more} of {other.name!r}",
            )
        )
    return np.array([numbers[name] for name in other.class_names], np.int64)[other.labels]
