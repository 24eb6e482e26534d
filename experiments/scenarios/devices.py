"""Effects on availability and devices: latency, dropout and device speeds. Data are unchanged.

`latency`: a shift plus an exponential time, in simulated seconds: the usual model of a slow worker (K. Lee, M. Lam, R.
Pedarsani, D. Papailiopoulos and K. Ramchandran, "Speeding Up Distributed Machine Learning Using Codes", IEEE
Transactions on Information Theory 64 (3), 2018). With `per_row` both times are per row that the client holds, as in X.
Chang et al., "FLASH: Federated Learning Across Simultaneous Heterogeneities", arXiv:2402.08769, 2024.

`dropout`: rounds are missed independently of other rounds and clients.

`devices`: speeds and bandwidths of clients, equal for all, log-normally distributed, or by device classes with shares.
A client's round then takes its number of steps times the seconds per step, the transfer times of what it receives and
sends at its bandwidths, and its latency (`fedscout.engine.data.devices`). With `sigma` σ > 0 each client's value is the
given one times e^{σz}, z standard normal and drawn for each value and client, so the given one is the median. Each
class has its share of the clients, rounded, and its members are drawn.

If several effects set the same value of a client, the last one applies; `latency` overrides `latency_seconds`.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedscout.experiments.scenarios.base import EffectRequest, ScenarioEffect, ScenarioPlan


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

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        values = [name for name in FIELDS if getattr(self, name) is not None]
        if bool(values) == bool(self.classes):
            received = "both" if values else "neither"
            raise ValueError(f"must give either values ({', '.join(FIELDS)}) or classes, got {received}")
        if self.sigma and self.classes:
            raise ValueError(f"sigma must be left out where classes is given, got {self.sigma:g}")
        total = sum(device_class.share for device_class in self.classes or ())
        if self.classes and abs(total - 1) > 1e-6:
            raise ValueError(f"classes must have shares that add up to 1, got {total:g}")
        return self

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the device of each client."""
        if self.classes is not None:
            values_by_client = self._values_by_class(self.classes, clients, request)
        else:
            values_by_client = {client: self._drawn(client, request) for client in clients}
        timings = {
            client: {FIELDS[name]: value for name, value in values_by_client[client].items()} for client in clients
        }
        return ScenarioPlan(timings=timings, facts={"devices": [values_by_client[client] for client in clients]})

    def _drawn(self, client: int, request: EffectRequest) -> dict[str, float]:
        """Return a client's values: the configured ones, or log-normal ones with these medians."""
        factors = np.exp(self.sigma * request.stream("device values", client).standard_normal(len(FIELDS)))
        values = zip(FIELDS, (getattr(self, name) for name in FIELDS), factors.tolist(), strict=True)
        return {name: value * factor for name, value, factor in values if value is not None}

    def _values_by_class(
        self, classes: tuple[DeviceClass, ...], clients: tuple[int, ...], request: EffectRequest
    ) -> dict[int, dict[str, float]]:
        """Return each client's values: those of its class."""
        order = request.stream("device classes").permutation(clients)
        ends = np.rint(np.cumsum([device_class.share for device_class in classes]) * len(clients)).astype(np.int64)
        values_by_client: dict[int, dict[str, float]] = {}
        for device_class, members in zip(classes, np.split(order, ends[:-1]), strict=True):
            values = device_class.model_dump(exclude={"share"}, exclude_none=True)
            values_by_client |= dict.fromkeys(members.tolist(), values)
        return values_by_client
