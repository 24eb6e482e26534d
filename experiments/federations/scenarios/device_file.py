"""Devices of clients from a table: one row a client, which its number from 0 in the column `client` names."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedscout.engine.errors import DataError, Fault
from fedscout.engine.fault_text import listed
from fedscout.experiments.federations.datasets.publication import START_VARIABLE
from fedscout.experiments.federations.datasets.tables.column_kinds import as_numbers
from fedscout.experiments.federations.datasets.tables.table_file import plain_cells, read_csv, read_parquet

if TYPE_CHECKING:
    import pyarrow as pa

CLIENT = "client"
SUFFIXES = (".csv", ".parquet")

DoubleArray = npt.NDArray[np.float64]


def read_devices(
    path: str, clients: Sequence[int], columns: tuple[str, ...]
) -> tuple[dict[int, Mapping[str, float]], str]:
    """Return what a file says of some clients, by client and column, and the SHA-256 of the file.

    Args:
        path: Of a CSV or a Parquet file; a relative one starts at the working directory of the command.
        clients: Who must be in it; others may be.
        columns: That it may have beside `client`, at least one of them.

    Raises:
        DataError: If it can't be read, names other columns, or lacks a client, or a number is none or out of range.
    """
    place = Path(os.environ.get(START_VARIABLE, "")) / Path(path).expanduser()
    table = _read(place)
    names = [name for name in table.column_names if name != CLIENT]
    if CLIENT not in table.column_names or not names or not {*names} <= {*columns}:
        raise DataError(
            Fault(
                place, f"have the column {CLIENT}, and others of {', '.join(columns)} alone", listed(table.column_names)
            )
        )
    row_of = _rows(place, as_numbers(plain_cells(table[CLIENT])))
    values = {name: _checked(place, name, as_numbers(plain_cells(table[name]))) for name in names}
    if missing := [client for client in clients if client not in row_of]:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise DataError(Fault(place, "have a row for every client", f"none for client {missing[0]}{more}"))
    found: dict[int, Mapping[str, float]] = {}
    for client in clients:
        found[client] = {str(name): float(values[name][row_of[client]]) for name in names}
    return found, hashlib.sha256(place.read_bytes()).hexdigest()


def _read(place: Path) -> pa.Table:
    if place.suffix.lower() not in SUFFIXES or not place.is_file():
        raise DataError(Fault("the file of devices", f"exist and end in {' or '.join(SUFFIXES)}", place))
    return read_csv(place) if place.suffix.lower() == ".csv" else read_parquet(place)


def _rows(place: Path, clients: DoubleArray) -> dict[int, int]:
    """Return the row of each client."""
    wrong = ~((clients >= 0) & (clients == np.rint(clients)))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise DataError(Fault(place, "name clients by numbers from 0", f"{clients[row]:g} in row {row + 1}"))
    row_of = {int(client): row for row, client in enumerate(clients)}
    if len(row_of) < len(clients):
        raise DataError(Fault(place, "have one row for each client", f"{len(clients)} rows of {len(row_of)} clients"))
    return row_of


def _checked(place: Path, name: str, values: DoubleArray) -> DoubleArray:
    """Return the values of a column."""
    positive = name.startswith("bytes")
    wrong = ~(np.isfinite(values) & ((values > 0) if positive else (values >= 0)))
    if wrong.any():
        row, least = int(np.flatnonzero(wrong)[0]), "above 0" if positive else "from 0"
        raise DataError(Fault(place, f"have numbers {least} in the column {name}", f"{values[row]:g} in row {row + 1}"))
    return values
