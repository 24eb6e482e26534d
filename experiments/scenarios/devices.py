"""Effects on availability and devices: latency, dropout and device speeds. Data are unchanged.

`latency`: a shift plus an exponential time, in simulated seconds: the usual model of a slow worker (K. Lee, M. Lam, R.
Pedarsani, D. Papailiopoulos and K. Ramchandran, "Speeding Up Distributed Machine Learning Using Codes", IEEE
Transactions on Information Theory 64 (3), 2018). With `per_row` both times are per row that the client holds, as in X.
Chang et al., "FLASH: Federated Learning Across Simultaneous Heterogeneities", arXiv:2402.08769, 2024.

`dropout`: rounds are missed independently of other rounds and clients.

`devices`: speeds and bandwidths of clients, equal for all, log-normally distributed, by device classes with shares, or
from a file with one row per client and its number from 0 in the column `client`. A client's round then takes its number
of steps times the seconds per step, the transfer times of what it receives and sends at its bandwidths, and its latency
(`fedscout.engine.data.federation`). With `sigma` σ > 0 each client's value is the given one times e^{σz}, z standard
normal and drawn for each value and client, so the given one is the median. Each class has its share of the clients,
rounded, and its members are drawn.

If several effects set the same value of a client, the last one applies; `latency` overrides `latency_seconds`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedscout.engine.errors import DataError
from fedscout.engine.text import listed
from fedscout.experiments.data.columns import as_numbers
from fedscout.experiments.data.files import START_VARIABLE
from fedscout.experiments.data.table_files import plain_cells, read_csv, read_parquet
from fedscout.experiments.scenarios.base import EffectRequest, ScenarioEffect, ScenarioPlan

if TYPE_CHECKING:
    import pyarrow as pa


class LatencyEffect(ScenarioEffect):
    """Client latency: a fixed and a random time per round, in simulated seconds; the last such effect applies."""

    takes_time: ClassVar[bool] = True

    kind: Literal["latency"] = "latency"
    shift_seconds: float = Field(default=0.0, ge=0, description="shortest duration of a round")
    mean_seconds: float = Field(ge=0, description="mean of the exponential time added to it")
    per_row: bool = Field(default=False, description="whether both times are per row of the client")

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the times of each client."""
        sizes = request.partition.sizes
        timings = {}
        for client in clients:
            scale = int(sizes[client]) if self.per_row else 1
            timings[client] = {"shift_seconds": self.shift_seconds * scale, "mean_seconds": self.mean_seconds * scale}
        facts = {name: [fields[name] for fields in timings.values()] for name in ("shift_seconds", "mean_seconds")}
        return ScenarioPlan(timings=timings, facts=facts)


class DropoutEffect(ScenarioEffect):
    """Client dropout: a client misses rounds at random; the last such effect applies."""

    kind: Literal["dropout"] = "dropout"
    probability: float = Field(ge=0, lt=1, description="probability that the client misses a round")

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the dropout probability of each client."""
        return ScenarioPlan(dropout=dict.fromkeys(clients, self.probability), facts={"probability": self.probability})


CLIENT = "client"
SUFFIXES = (".csv", ".parquet")


def read_devices(
    path: str, clients: Sequence[int], columns: tuple[str, ...]
) -> tuple[Mapping[int, Mapping[str, float]], str]:
    """Return the device values of clients in a file, by client and column, and the SHA-256 of the file.

    Args:
        path: Path of a CSV or Parquet file; a relative one is resolved against the working directory of the command.
        clients: Clients that the file must contain; it may contain others.
        columns: Allowed columns in addition to `client`; at least one must be present.

    Raises:
        DataError: If it can't be read, has other columns, lacks a client, or a value is not a number or out of range.
    """
    file = Path(os.environ.get(START_VARIABLE, "")) / Path(path).expanduser()
    table = _read(file)
    names = [name for name in table.column_names if name != CLIENT]
    if CLIENT not in table.column_names or not names or not {*names} <= {*columns}:
        raise DataError.of(
            file, f"have only the columns {CLIENT} and some of {', '.join(columns)}", listed(table.column_names)
        )
    values = {name: as_numbers(plain_cells(table[name])) for name in table.column_names}
    for name, numbers in values.items():
        is_invalid = ~np.isfinite(numbers) | (numbers <= 0 if name.startswith("bytes") else numbers < 0)
        if is_invalid.any():
            must = f"have numbers {'above' if name.startswith('bytes') else 'from'} 0 in the column {name}"
            raise DataError.of(file, must, f"{numbers[is_invalid][0]:g}")
    row_of = {client: row for row, client in enumerate(values[CLIENT].tolist())}
    if len(row_of) < len(table) or not {*clients} <= row_of.keys():
        missing = [str(client) for client in clients if client not in row_of]
        given = f"none for {listed(missing)}" if missing else f"{len(table)} rows of {len(row_of)} clients"
        raise DataError.of(file, "have one row for every client, by its number from 0", given)
    values_by_client = {client: {name: float(values[name][row_of[client]]) for name in names} for client in clients}
    return values_by_client, hashlib.sha256(file.read_bytes()).hexdigest()


def _read(place: Path) -> pa.Table:
    if place.suffix.lower() not in SUFFIXES or not place.is_file():
        raise DataError.of("the file of devices", f"exist and end in {' or '.join(SUFFIXES)}", place)
    return read_csv(place) if place.suffix.lower() == ".csv" else read_parquet(place)


FIELDS = {
    "seconds_per_step": "seconds_per_step",
    "bytes_per_second_down": "bytes_per_second_down",
    "bytes_per_second_up": "bytes_per_second_up",
    "latency_seconds": "shift_seconds",
}
"""Fields of a `Device` by their configuration keys."""


class DeviceClass(BaseModel):
    """A class of devices; values that are not set are unchanged."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    share: float = Field(gt=0, le=1, description="fraction of the clients; all fractions add up to 1")
    seconds_per_step: float | None = Field(default=None, ge=0)
    bytes_per_second_down: float | None = Field(default=None, gt=0)
    bytes_per_second_up: float | None = Field(default=None, gt=0)
    latency_seconds: float | None = Field(default=None, ge=0)


class DevicesEffect(ScenarioEffect):
    """Device speed: simulated seconds per step and bandwidths of a client; for each value the last effect applies."""

    takes_time: ClassVar[bool] = True

    kind: Literal["devices"] = "devices"
    seconds_per_step: float | None = Field(default=None, ge=0, description="duration of an optimizer step")
    bytes_per_second_down: float | None = Field(default=None, gt=0, description="bandwidth from the server")
    bytes_per_second_up: float | None = Field(default=None, gt=0, description="bandwidth to the server")
    latency_seconds: float | None = Field(default=None, ge=0, description="additional duration of every round")
    sigma: float = Field(
        default=0.0,
        ge=0,
        le=10,
        description=(
            "if above 0, values are medians of log-normal distributions with this standard deviation of the logarithm"
        ),
    )
    classes: tuple[DeviceClass, ...] | None = Field(
        default=None, description="instead of values: device classes, such as [{share: 0.5, seconds_per_step: 0.1}, …]"
    )
    path: str | None = Field(
        default=None,
        description="instead of values: a CSV or Parquet file with a column client and one column per value",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        values = [name for name in FIELDS if getattr(self, name) is not None]
        sources = [*(["values"] if values else []), *(name for name in ("classes", "path") if getattr(self, name))]
        if len(sources) != 1:
            received = " and ".join(values if sources == ["values"] else sources) or "none"
            raise ValueError(f"must give one of values ({', '.join(FIELDS)}), classes and path, got {received}")
        if self.sigma and not values:
            raise ValueError(f"sigma must be left out where {sources[0]} is given, got {self.sigma:g}")
        total = sum(device_class.share for device_class in self.classes or ())
        if self.classes and abs(total - 1) > 1e-6:
            raise ValueError(f"classes must have shares that add up to 1, got {total:g}")
        return self

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the device of each client.

        Raises:
            DataError: If the file is invalid.
        """
        digest = {}
        if self.path is not None:
            values_by_client, digest["sha256"] = read_devices(self.path, clients, tuple(FIELDS))
        elif self.classes is not None:
            values_by_client = self._values_by_class(self.classes, clients, request)
        else:
            values_by_client = {client: self._drawn(client, request) for client in clients}
        timings = {
            client: {FIELDS[name]: value for name, value in values_by_client[client].items()} for client in clients
        }
        return ScenarioPlan(
            timings=timings, facts={"devices": [dict(values_by_client[client]) for client in clients], **digest}
        )

    def _drawn(self, client: int, request: EffectRequest) -> dict[str, float]:
        """Return a client's values: the configured ones, or log-normal ones with these medians."""
        factors = np.exp(self.sigma * request.stream("device values", client).standard_normal(len(FIELDS)))
        values = zip(FIELDS, (getattr(self, name) for name in FIELDS), factors.tolist(), strict=True)
        return {name: value * factor for name, value, factor in values if value is not None}

    def _values_by_class(
        self, classes: tuple[DeviceClass, ...], clients: tuple[int, ...], request: EffectRequest
    ) -> dict[int, Mapping[str, float]]:
        """Return each client's values: those of its class."""
        order = request.stream("device classes").permutation(clients)
        ends = np.rint(np.cumsum([device_class.share for device_class in classes]) * len(clients)).astype(np.int64)
        values_by_client: dict[int, Mapping[str, float]] = {}
        for device_class, members in zip(classes, np.split(order, ends[:-1]), strict=True):
            values = device_class.model_dump(exclude={"share"}, exclude_none=True)
            values_by_client |= dict.fromkeys(members.tolist(), values)
        return values_by_client
