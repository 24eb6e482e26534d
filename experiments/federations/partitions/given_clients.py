"""Clients as they are given, with their number: by the data, or by the user.

`natural`: each client owns the rows that the data say are its own. All rows are used.

`counts`: by a client × class matrix, client k gets `counts[k][y]` rows of class y, drawn at random. The matrix is a
nested list, or the path of a CSV file without a header, one line a client. Rows beyond the counts are not used.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.errors import ConfigurationError, DataError, Fault
from fedscout.experiments.federations.datasets.dataset import distinct_texts
from fedscout.experiments.federations.partitions.partition_request import Deal, PartitionRequest

KEY = "federation.partition.counts"


def natural(request: PartitionRequest) -> Deal:
    """Give each natural client its rows; clients are numbered in alphabetical order of their names.

    Raises:
        DataError: If the data name no clients, or their number is not the one given.
    """
    if request.client_ids is None:
        raise DataError(
            Fault(
                ("federation.partition.kind=natural needs data with natural clients: federation.client_column"),
                "name the column that holds them",
                "nothing",
            )
        )
    names, owners = distinct_texts(request.client_ids)
    if request.num_clients not in {None, len(names)}:
        raise DataError(
            Fault(
                "federation.num_clients",
                f"be left out or be {len(names)}, the number of natural clients",
                request.num_clients,
            )
        )
    return request.deal_owners(owners, len(names), client_names=tuple(names.tolist()))


def counts(request: PartitionRequest) -> Deal:
    """Deal the rows that the matrix names.

    Raises:
        ConfigurationError: If there is no matrix, or the file can't be read as one.
        DataError: If it does not fit the data: too many rows of a class, an empty client, another number of clients.
    """
    matrix = _matrix(request.settings.counts)
    faults = _faults(request, matrix)
    if faults:
        raise DataError(faults)
    return request.deal_counts(matrix)


def _matrix(given: tuple[tuple[int, ...], ...] | Path | None) -> IntArray:
    if given is None:
        raise ConfigurationError(
            Fault(
                KEY,
                (
                    "hold a row of class counts a client, or the path of a CSV file of them, where "
                    "federation.partition.kind=counts"
                ),
                "nothing",
            )
        )
    return np.array(_read(given) if isinstance(given, Path) else given, dtype=np.int64)


def _read(file: Path) -> list[list[int]]:
    if file.exists() and not file.is_file():  # a pipe would be waited for
        raise ConfigurationError(Fault(KEY, "be a CSV file", f"{file}, which is a pipe, a device or a folder"))
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            table = [(number, cells) for number, cells in enumerate(csv.reader(lines), start=1) if cells]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(f"{KEY} must be a CSV file that can be read, got {file}: {error}") from error
    if not table:
        raise ConfigurationError(Fault(f"{KEY}: {file}", "hold a line of class counts a client", "none"))
    rows = []
    for number, cells in table:
        if len(cells) != len(table[0][1]) or not all(cell.strip().isdecimal() for cell in cells):
            raise ConfigurationError(
                Fault(
                    f"{KEY}: {file}, line {number}",
                    f"hold {len(table[0][1])} whole numbers >= 0, without a header",
                    repr(",".join(cells)[:80]),
                )
            )
        rows.append([int(cell) for cell in cells])
    return rows


def _faults(request: PartitionRequest, matrix: IntArray) -> list[str]:
    available = request.class_counts
    if request.num_clients not in {None, len(matrix)}:
        return [
            Fault(
                "federation.num_clients",
                f"be left out or be {len(matrix)}, the number of rows of {KEY}",
                request.num_clients,
            )
        ]
    if matrix.shape[1] != len(available):
        return [Fault(KEY, f"have {len(available)} columns, one a class", matrix.shape[1])]
    asked = matrix.sum(axis=0)
    faults: list[str] = [
        Fault(KEY, f"not ask for more rows of class {label} than there are, {available[label]}", asked[label])
        for label in np.flatnonzero(asked > available)
    ]
    empty = np.flatnonzero(matrix.sum(axis=1) == 0)
    if len(empty):
        faults.append(Fault(KEY, "give every client a row", f"none for client {empty[0]}"))
    return faults
