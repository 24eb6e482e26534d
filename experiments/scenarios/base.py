"""Effect interface: parameters and requirements of an effect, and its plan for the selected clients.

An effect is an immutable value, discriminated by `kind`. Random numbers drawn at planning time, such as the affected
clients, come from a stream keyed by (seed, kind, number of preceding effects of this kind). So another effect in the
list changes neither which clients this one affects nor how much. Random numbers of a client's corruption come from the
engine, keyed by client and position among the client's transforms.

An effect selects clients by index, a share of all, or all. A share is drawn by seed: the first clients of a random
order. So a larger share includes the clients of a smaller one, and a study over shares adds clients without exchanging
them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.algorithm import UpdateAttack
from fedscout.engine.data.client import ClientTransform, Partition
from fedscout.engine.data.federation import Device
from fedscout.engine.errors import Fault
from fedscout.engine.seeds import stream
from fedscout.experiments.data.dataset import DataKind

SHARE_EXAMPLE = 0.3


def _validated_choice(value: Any) -> Any:
    """Return the client choice in its stored form, with indices ascending."""
    if value is None or value == "all":
        return value
    if isinstance(value, float) and 0 < value <= 1:
        return value
    if isinstance(value, list | tuple) and value and all(type(index) is int and index >= 0 for index in value):
        if len(set(value)) == len(value):
            return tuple(sorted(value))
        raise ValueError(f"must name each client once, got {list(value)}")
    received = list(value) if isinstance(value, tuple) else value
    hint = ""
    if type(value) is int:
        hint = f"; write [{value}] for client {value}" if value != 1 else "; write [1] for client 1, all for all"
    raise ValueError(
        f"must be a list of client indices, such as [2], a share above 0 and up to 1.0, such as {SHARE_EXAMPLE}, or "
        f"all, got {received!r}{hint}"
    )


ClientChoice = Annotated[tuple[int, ...] | float | Literal["all"] | None, BeforeValidator(_validated_choice)]


@dataclass(frozen=True)
class EffectRequest:
    """The federation to which an effect is applied.

    Attributes:
        partition: Rows of each client.
        labels: int64 in `[0, num_classes)`, shape `(num_rows,)`.
        num_classes: Number of classes, >= 2.
        feature_shape: Shape of one row's features.
        seed: Seed of the federation.
        data_kind: Type of a row.
        feature_unit: One standard deviation of a feature in the stored scale.
        occurrence: Number of preceding effects of the same kind.
        predicts_quantity: Whether the task is regression, with labels that are deciles of the target.
    """

    partition: Partition
    labels: IntArray
    num_classes: int
    feature_shape: tuple[int, ...]
    seed: int
    data_kind: DataKind = "table"
    feature_unit: float = 1.0
    occurrence: int = 0
    predicts_quantity: bool = False

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return self.partition.num_clients

    @property
    def num_features(self) -> int:
        """Number of values in one row."""
        return prod(self.feature_shape)

    def stream(self, purpose: str, *indices: int) -> np.random.Generator:
        """Return a random generator specific to this effect."""
        return stream(self.seed, f"scenario {purpose}", self.occurrence, *indices)


@dataclass(frozen=True)
class ScenarioPlan:
    """Outcome of one effect, or of several in sequence.

    Attributes:
        transforms: Corruption of a client's local data, applied in order.
        affected_clients: Clients whose data or updates it changes.
        dropout: For clients that may miss rounds, the probability in `[0, 1)` of missing one.
        timings: For clients whose rounds take simulated time, the fields of their `Device` that are set.
        attacks: Attacks on the update that a client sends, in order.
        partition: New partition, in which each client has as many rows as before; None if unchanged.
        facts: Facts to record.
    """

    transforms: Mapping[int, tuple[ClientTransform, ...]] = field(default_factory=dict)
    affected_clients: tuple[int, ...] = ()
    dropout: Mapping[int, float] = field(default_factory=dict)
    timings: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    attacks: Mapping[int, tuple[UpdateAttack, ...]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    partition: Partition | None = None

    @property
    def devices(self) -> dict[int, Device]:
        """Device of each client whose rounds take simulated time."""
        return {client: Device(**fields) for client, fields in self.timings.items()}


class ScenarioEffect(BaseModel):
    """Effect on some clients. The first line of a subclass's docstring describes it to users."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    needs_measurements: ClassVar[bool] = False
    """Whether features must be measurements, not token numbers."""

    changes_partition: ClassVar[bool] = False
    """Whether rows move between clients; this precedes every corruption."""

    needs_classes: ClassVar[bool] = False
    """Whether it changes labels, which requires classification."""

    takes_time: ClassVar[bool] = False
    """Whether it simulates durations of the clients' rounds."""

    kind: str
    clients: ClientChoice = Field(
        default=None,
        description=(
            "affected clients: indices such as [2], a fraction such as 0.3 drawn by seed, or all; [2] by default"
        ),
    )

    def faults(self, request: EffectRequest) -> list[Fault]:
        """Return what is incompatible with the federation, by the effect's keys."""
        faults = []
        if isinstance(self.clients, tuple) and self.clients[-1] >= request.num_clients:
            outside = [client for client in self.clients if client >= request.num_clients]
            must = f"be below the number of clients, {request.num_clients}"
            faults.append(Fault("clients", must, ", ".join(map(str, outside)), "they are counted from 0"))
        if self.needs_classes and request.predicts_quantity:
            faults.append(Fault("kind", f"not be {self.kind} for regression, as it changes classes"))
        if self.needs_measurements and request.data_kind == "tokens":
            must = f"not be {self.kind} for tokens, as it would change them into other words or characters"
            hint = "label_flip, poisoning, feature_drop and concept_shift work on tokens"
            faults.append(Fault("kind", must, hint=hint))
        return faults

    def chosen(self, request: EffectRequest) -> tuple[int, ...]:
        """Return the clients selected by the effect, ascending.

        Without a choice it is the affected client of published scenarios, the third, or the last if there are fewer.
        """
        num_clients = request.num_clients
        match self.clients:
            case None:
                return (min(2, num_clients - 1),)
            case float() as share:
                order = request.stream(f"{self.kind} clients").permutation(num_clients)
                return tuple(sorted(order[: max(1, round(share * num_clients))].tolist()))
            case tuple() as indices:
                return indices
        return tuple(range(num_clients))

    @abstractmethod
    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the plan for the selected clients of a federation without faults."""


def with_rows(clients: tuple[int, ...], request: EffectRequest) -> tuple[int, ...]:
    """Return the clients that hold any rows."""
    sizes = request.partition.sizes
    return tuple(client for client in clients if sizes[client])


def same_for_all(
    clients: tuple[int, ...],
    request: EffectRequest,
    facts: Mapping[str, Any],
    *,
    transforms: tuple[ClientTransform, ...] = (),
    attack: UpdateAttack | None = None,
    changes: bool = True,
) -> ScenarioPlan:
    """Return the plan that applies the same transforms or attack to all clients.

    Args:
        clients: The selected clients.
        request: The federation.
        facts: Facts to record.
        transforms: Corruption of their rows, in order.
        attack: Attack on their updates, or None.
        changes: Whether it changes anything; if so, clients with rows are affected.
    """
    return ScenarioPlan(
        transforms=dict.fromkeys(clients, transforms) if transforms else {},
        attacks={} if attack is None else dict.fromkeys(clients, (attack,)),
        affected_clients=with_rows(clients, request) if changes else (),
        facts=facts,
    )
