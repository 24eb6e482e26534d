"""What a scenario did to each client: measured on its rows, which are compared with those it would hold without.

An attack on what a client sends up is named and not measured: nothing is trained here.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

import numpy as np
from pydantic import BaseModel, ConfigDict

from fedscout.engine.contracts.update_attack import UpdateAttack
from fedscout.engine.data.client_data import ClientTransform
from fedscout.engine.data.device import Device
from fedscout.engine.data.federation import Federation
from fedscout.experiments.federations.description.holdings import Holdings


class ClientChange(BaseModel):
    """What a scenario did to one client.

    Attributes:
        client: Its number.
        steps: The transforms of its rows, in order, with their parameters.
        num_rows: Rows it holds.
        num_labels_changed: Of which so many have another label than without the scenario.
        share_numbers_changed: Share of the compared numbers of its rows that are others than without, in `[0, 1]`.
        feature_shift: Mean of what was added to a number, in standard deviations of a feature.
        feature_deviation: Standard deviation of what was added, likewise.
        dropout: Probability that it misses a round.
        latency_shift: Simulated seconds that its round takes at least; None without a device.
        latency_mean: Mean of the exponential time on top; None without a device.
        seconds_per_step: Simulated seconds of an optimiser step; None without a device.
        bytes_per_second_down: Its bandwidth from the server; None where messages take no time.
        bytes_per_second_up: To the server, likewise.
        attacks: What is done to the update that it sends, in order, with parameters.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    client: int
    steps: tuple[str, ...] = ()
    num_rows: int
    num_labels_changed: int = 0
    share_numbers_changed: float = 0.0
    feature_shift: float = 0.0
    feature_deviation: float = 0.0
    dropout: float = 0.0
    latency_shift: float | None = None
    latency_mean: float | None = None
    seconds_per_step: float | None = None
    bytes_per_second_down: float | None = None
    bytes_per_second_up: float | None = None
    attacks: tuple[str, ...] = ()

    @property
    def has_latency(self) -> bool:
        """Whether its rounds take time whatever is done in them."""
        return bool(self.latency_shift or self.latency_mean)


def changes_of(federation: Federation, holdings: Holdings) -> tuple[ClientChange, ...]:
    """Return what happened to each client whose rows, availability or updates a scenario changes, ascending."""
    clients = sorted({*holdings.changed, *federation.dropout, *federation.devices, *federation.attacks})
    return tuple(_change(federation, holdings, client) for client in clients)


def _change(federation: Federation, holdings: Holdings, client: int) -> ClientChange:
    device = federation.devices.get(client)
    return ClientChange(
        client=client,
        steps=tuple(_name(step) for step in federation.transforms.get(client, ())),
        num_rows=int(federation.partition.sizes[client]),
        dropout=federation.dropout.get(client, 0.0),
        **({} if device is None else _timings(device)),
        attacks=tuple(_name(attack) for attack in federation.attacks.get(client, ())),
        **_differences(holdings, client, float(federation.facts.get("feature_unit", 1.0))),
    )


def _timings(device: Device) -> Mapping[str, float | None]:
    down, up = device.bytes_per_second_down, device.bytes_per_second_up
    return {
        "latency_shift": device.shift_seconds,
        "latency_mean": device.mean_seconds,
        "seconds_per_step": device.seconds_per_step,
        "bytes_per_second_down": down if isfinite(down) else None,
        "bytes_per_second_up": up if isfinite(up) else None,
    }


def _name(step: ClientTransform | UpdateAttack) -> str:
    """Return a transform or an attack as its dataclass shows it; by its class where that would tell an address."""
    text = repr(step)
    return type(step).__name__ if " at 0x" in text else text


def _differences(holdings: Holdings, client: int, unit: float) -> Mapping[str, float]:
    """Compare the client's rows with the untouched ones, which are in the same order."""
    own, clean = holdings.client(client), holdings.clean(client)
    if client not in holdings.changed or len(own) == 0:
        return {}
    added = own.features[own.rows].astype(np.float64) - clean.features[clean.rows]
    return {
        "num_labels_changed": int(np.count_nonzero(own.labels[own.rows] != clean.labels[clean.rows])),
        "share_numbers_changed": float(np.count_nonzero(added) / added.size),
        "feature_shift": float(added.mean() / unit),
        "feature_deviation": float(added.std() / unit),
    }
