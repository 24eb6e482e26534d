"""What clients' machines and links are like: alike, drawn log-normally, of classes with shares, or read from a file.

A client's round then takes its steps times the seconds of one, what it receives and sends by its bandwidths, and its
latency (`fedscout.engine.data.device`). With `sigma` σ > 0 each client's value is the given one times e^{σz}, z
standard normal and drawn for each value and client, so the given one is the median. Classes hold as many of the
clients as their shares say, rounded, and who is of which is drawn. Effects stack: of each value of a client the last
effect that sets it counts, and `latency` sets `latency_seconds` anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedscout.experiments.federations.scenarios.device_file import read_devices
from fedscout.experiments.federations.scenarios.effect import EffectRequest, ScenarioEffect, ScenarioPlan

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
        default=None,
        description="in place of values: a CSV or Parquet file with a column client, and one a value",
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
