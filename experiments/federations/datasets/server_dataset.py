"""Rows for the server from another data set than the clients', such as a public one of the same columns.

It is read as the clients' data are, with their label, columns left out and limits. Its rows must look like theirs: of
the same kind and shape, and of a table the same columns in the same order. Labels are matched by the names of classes;
one that the clients' data lack is refused where the server keeps labels, one that the server's lack does no harm.

Each side is on the scale that its own rows give it: a table is standardised by its own means and deviations, pixels
have the scale of images. So nothing of the clients' rows reaches the server, but a shift or another spread of the
server's columns as a whole is taken out; and few rows make a rough scale.

Token numbers come from each data set's own words, so tokens are refused. That no client holds one of these rows is not
looked up.
"""

from __future__ import annotations

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.data.server_data import ServerData
from fedscout.engine.errors import DataError, Fault, UserError
from fedscout.experiments.federations.datasets.dataset import Dataset
from fedscout.experiments.federations.datasets.dataset_request import DatasetLoader, DatasetRequest
from fedscout.experiments.federations.datasets.server_rows import stratified

KEY = "federation.server_dataset"
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
        raise DataError([f"{KEY}={name} can't be read: {fault}" for fault in error.faults]) from error


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
            Fault("federation.server_rows", f"be at most the {other.num_rows} rows of {KEY}={other.name}", num_rows)
        )
    rows = np.sort(stratified(other.labels, num_rows, generator))
    return ServerData(other.features[rows], None if labels is None else labels[rows])


def _check_rows(clients: Dataset, other: Dataset) -> None:
    if "tokens" in (clients.kind, other.kind):
        raise DataError(Fault(KEY, "be left out for tokens, whose numbers mean other words there", repr(other.name)))
    wanted, given = _row_text(clients), _row_text(other)
    if wanted != given:
        raise DataError(
            Fault(
                KEY,
                f"hold rows like those of data set {clients.name!r}, of which one is {wanted}",
                f"{given} of {other.name!r}",
            )
        )
    if clients.feature_names != other.feature_names:
        pairs = zip(clients.feature_names, other.feature_names, strict=True)
        theirs, its = next(pair for pair in pairs if pair[0] != pair[1])
        raise DataError(
            Fault(
                KEY,
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
                KEY,
                (f"hold no other classes than data set {clients.name!r} where federation.server_labels=true"),
                f"{', '.join(unknown[:NAMES_SHOWN])}{more} of {other.name!r}",
            )
        )
    return np.array([numbers[name] for name in other.class_names], np.int64)[other.labels]
