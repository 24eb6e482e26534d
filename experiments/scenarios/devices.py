"""Effects on availability and devices.

Effects on when a client answers: rounds that it misses, and rounds that take it long. Data stay as they are.

Latency is a shift plus an exponential time, in simulated seconds: the usual model of a slow worker (K. Lee, M. Lam,
R. Pedarsani, D. Papailiopoulos and K. Ramchandran, "Speeding Up Distributed Machine Learning Using Codes", IEEE
Transactions on Information Theory 64 (3), 2018). With `per_row` both times are per row that the client holds, as in
X. Chang et al., "FLASH: Federated Learning Across Simultaneous Heterogeneities", arXiv:2402.08769, 2024. Rounds are
missed independently of other rounds and clients.

Where two effects of a kind name a client, the later one counts.

What clients' machines and links are like: alike, drawn log-normally, of classes with shares, or read from a file.

A client's round then takes its steps times the seconds of one, what it receives and sends by its bandwidths, and its
latency (`fedscout.engine.data.devices`). With `sigma` σ > 0 each client's value is the given one times e^{σz}, z
standard normal and drawn for each value and client, so the given one is the median. Classes hold as many of the
clients as their shares say, rounded, and who is of which is drawn. Effects stack: of each value of a client the last
effect that sets it counts, and `latency` sets `latency_seconds` anew.

Devices of clients from a table: one row a client, which its number from 0 in the column `client` names.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedscout.engine.errors import DataError, Fault
from fedscout.engine.text import listed
from fedscout.experiments.data.columns import as_numbers
from fedscout.experiments.data.files import START_VARIABLE
from fedscout.experiments.data.table_files import plain_cells, read_csv, read_parquet
from fedscout.experiments.scenarios.base import EffectRequest, ScenarioEffect, ScenarioPlan

if TYPE_CHECKING:
    import pyarrow as pa


class LatencyEffect(ScenarioEffect):
    """A round takes a client a fixed time and a random one, in simulated seconds; the last such effect counts."""

    takes_time: ClassVar[bool] = True

    kind: Literal["latency"] = "latency"
    shift_seconds: float = Field(default=0.0, ge=0, description="that every round takes at least")
    mean_seconds: float = Field(ge=0, description="mean of the exponential time on top")
    per_row: bool = Field(default=False, description="whether both are times for each of the client's rows")

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return each client's times."""
        sizes = request.partition.sizes
        timings = {}
        for client in clients:
            scale = int(sizes[client]) if self.per_row else 1
            timings[client] = {"shift_seconds": self.shift_seconds * scale, "mean_seconds": self.mean_seconds * scale}
        facts = {name: [fields[name] for fields in timings.values()] for name in ("shift_seconds", "mean_seconds")}
        return ScenarioPlan(timings=timings, facts=facts)


class DropoutEffect(ScenarioEffect):
    """A client misses rounds at random; the last such effect counts."""

    kind: Literal["dropout"] = "dropout"
    probability: float = Field(ge=0, lt=1, description="that the client misses a round")

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return each client's probability."""
        return ScenarioPlan(dropout=dict.fromkeys(clients, self.probability), facts={"probability": self.probability})


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


FIELDS = {
    "seconds_per_step": "seconds_per_step",
    "bytes_per_second_down": "bytes_per_second_down",
    "bytes_per_second_up": "bytes_per_second_up",
    "latency_seconds": "shift_seconds",
}
"""Of a `Device`, by what users call them."""


class DeviceClass(BaseModel):
    """A class of devices; what is not given stays as it is."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    share: float = Field(gt=0, le=1, description="part of the clients; the shares of all classes add up to 1")
    seconds_per_step: float | None = Field(default=None, ge=0)
    bytes_per_second_down: float | None = Field(default=None, gt=0)
    bytes_per_second_up: float | None = Field(default=None, gt=0)
    latency_seconds: float | None = Field(default=None, ge=0)


class DevicesEffect(ScenarioEffect):
    """Steps, and what a client receives and sends, take it simulated seconds; of each value the last one counts."""

    takes_time: ClassVar[bool] = True

    kind: Literal["devices"] = "devices"
    seconds_per_step: float | None = Field(default=None, ge=0, description="of an optimiser step")
    bytes_per_second_down: float | None = Field(default=None, gt=0, description="bandwidth from the server")
    bytes_per_second_up: float | None = Field(default=None, gt=0, description="bandwidth to the server")
    latency_seconds: float | None = Field(default=None, ge=0, description="that every round takes beside")
    sigma: float = Field(
        default=0.0,
        ge=0,
        le=10,
        description="above 0: values are medians of log-normal ones, whose logarithms deviate so",
    )
    classes: tuple[DeviceClass, ...] | None = Field(
        default=None, description="in place of values: classes, such as [{share: 0.5, seconds_per_step: 0.1}, …]"
    )
    path: str | None = Field(
        default=None, description="in place of values: a CSV or Parquet file with a column client, and one a value"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        values = [name for name in FIELDS if getattr(self, name) is not None]
        sources = [*(["values"] if values else []), *(name for name in ("classes", "path") if getattr(self, name))]
        if len(sources) != 1:
            given = " and ".join(values if sources == ["values"] else sources) or "none"
            raise ValueError(f"must give one of values ({', '.join(FIELDS)}), classes and path, got {given}")
        if self.sigma and not values:
            raise ValueError(f"sigma must be left out where {sources[0]} says what clients have, got {self.sigma:g}")
        total = sum(each.share for each in self.classes or ())
        if self.classes and abs(total - 1) > 1e-6:
            raise ValueError(f"classes must have shares that add up to 1, got {total:g}")
        return self

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return each client's device.

        Raises:
            DataError: If the file is at fault.
        """
        digest = {}
        if self.path is not None:
            found, digest["sha256"] = read_devices(self.path, clients, tuple(FIELDS))
        elif self.classes is not None:
            found = self._dealt(self.classes, clients, request)
        else:
            found = {client: self._drawn(client, request) for client in clients}
        timings = {client: {FIELDS[name]: value for name, value in found[client].items()} for client in clients}
        return ScenarioPlan(timings=timings, facts={"devices": [dict(found[client]) for client in clients], **digest})

    def _drawn(self, client: int, request: EffectRequest) -> dict[str, float]:
        """Return a client's values: the given ones, or log-normal ones of which these are the medians."""
        factors = np.exp(self.sigma * request.stream("device values", client).standard_normal(len(FIELDS)))
        values = zip(FIELDS, (getattr(self, name) for name in FIELDS), factors.tolist(), strict=True)
        return {name: value * factor for name, value, factor in values if value is not None}

    def _dealt(
        self, classes: tuple[DeviceClass, ...], clients: tuple[int, ...], request: EffectRequest
    ) -> dict[int, Mapping[str, float]]:
        """Return each client's values: those of its class."""
        order = request.stream("device classes").permutation(clients)
        ends = np.rint(np.cumsum([each.share for each in classes]) * len(clients)).astype(np.int64)
        found: dict[int, Mapping[str, float]] = {}
        for each, members in zip(classes, np.split(order, ends[:-1]), strict=True):
            values = each.model_dump(exclude={"share"}, exclude_none=True)
            found |= dict.fromkeys(members.tolist(), values)
        return found
