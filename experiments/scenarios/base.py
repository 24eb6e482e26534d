"""What an effect is: parameters, what they need, and what they make of the chosen clients.

An effect is a frozen value, told apart by `kind`. Random numbers that it draws beforehand, such as who is affected,
come from a stream of (seed, kind, how many effects of this kind come before). So another effect in the list changes
neither who is affected by this one nor how much. Random numbers of a client's corruption come from the engine, by
client and place among the client's transforms.

Which clients an effect is for: some by index, a share of all, so many, or all.

A share and a number are drawn by seed: the first ones of a random order of all clients. So a larger share holds the
clients of a smaller one, and a study over shares adds clients without exchanging them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.algorithm import UpdateAttack
from fedscout.engine.data.client import ClientTransform, Partition
from fedscout.engine.data.devices import Device
from fedscout.engine.seeds import stream
from fedscout.experiments.data.dataset import DataKind

SHARE_EXAMPLE = 0.3
PUBLISHED_AFFECTED_CLIENT = 2


def _check(value: Any) -> Any:
    """Return the choice as it is stored; indices ascending."""
    if value is None or value == "all":
        return value
    if isinstance(value, float) and 0 < value <= 1:
        return value
    if isinstance(value, list | tuple) and value and all(type(index) is int and index >= 0 for index in value):
        if len(set(value)) == len(value):
            return tuple(sorted(value))
        raise ValueError(f"must name each client once, got {list(value)}")
    given = list(value) if isinstance(value, tuple) else value
    hint = ""
    if type(value) is int:
        hint = f"; write [{value}] for client {value}" if value != 1 else "; write [1] for client 1, all for all"
    raise ValueError(
        f"must be a list of client indices, such as [2], a share above 0 and up to 1.0, such as {SHARE_EXAMPLE}, or "
        f"all, got {given!r}{hint}"
    )


ClientChoice = Annotated[tuple[int, ...] | float | Literal["all"] | None, BeforeValidator(_check)]


def choose_clients(
    choice: Sequence[int] | float | str | None, count: int | None, num_clients: int, generator: np.random.Generator
) -> tuple[int, ...]:
    """Return the chosen clients, ascending.

    Args:
        choice: Indices, a share in `(0, 1]`, `"all"`, or None: the client that published scenarios affect,
            the third, or the last of fewer, unless `count` is given.
        count: So many, drawn; None where `choice` says who.
        num_clients: Clients of the federation, more than any index.
        generator: Draws shares and counts.
    """
    if count is not None:
        return _drawn(count, num_clients, generator)
    match choice:
        case None:
            return (min(PUBLISHED_AFFECTED_CLIENT, num_clients - 1),)
        case str():
            return tuple(range(num_clients))
        case float():
            return _drawn(max(1, round(choice * num_clients)), num_clients, generator)
        case _:
            return tuple(choice)


def _drawn(count: int, num_clients: int, generator: np.random.Generator) -> tuple[int, ...]:
    return tuple(sorted(generator.permutation(num_clients)[:count].tolist()))


@dataclass(frozen=True)
class EffectRequest:
    """The federation that an effect meets.

    Attributes:
        partition: The rows of each client.
        labels: int64 in `[0, num_classes)`, shape `(num_rows,)`.
        num_classes: Number of classes, >= 2.
        feature_shape: Shape of one row's features.
        seed: Of the federation.
        data_kind: What a row is.
        feature_unit: One standard deviation of a feature in the stored scale.
        occurrence: How many effects of the same kind come before.
        predicts_quantity: Whether labels are tenths of a quantity that is predicted.
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
        """Numbers in one row."""
        return prod(self.feature_shape)

    def client_labels(self, client: int) -> IntArray:
        """Return the labels of one client before any effect, shape `(num_rows_of_client,)`."""
        return self.labels[self.partition.client(client)]

    def stream(self, purpose: str, *indices: int) -> np.random.Generator:
        """Return a generator of this effect's own."""
        return stream(self.seed, f"scenario {purpose}", self.occurrence, *indices)


@dataclass(frozen=True)
class ScenarioPlan:
    """What one effect does, or several one after the other.

    Attributes:
        transforms: Corruption of a client's local data, applied in order.
        affected_clients: Clients whose data or updates it changes.
        dropout: Probability in `[0, 1)` that a client misses a round, of clients that may.
        timings: Of clients whose rounds take simulated time, the fields of their `Device` that are set.
        attacks: What is done to the update that a client sends, in order.
        partition: Who holds which rows where that changes; each client has as many as before. None changes nothing.
        facts: What it came to, for the record.
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
        """What the clients' rounds cost."""
        return {client: Device(**fields) for client, fields in self.timings.items()}


class ScenarioEffect(BaseModel):
    """What is done to some clients. The first line of a subclass's docstring describes it to users."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    needs_measurements: ClassVar[bool] = False
    """Whether features must be measurements, and not numbers of words."""

    moves_rows: ClassVar[bool] = False
    """Whether rows change hands, which they do ahead of every corruption."""

    needs_classes: ClassVar[bool] = False
    """Whether it changes labels, which must be classes."""

    takes_time: ClassVar[bool] = False
    """Whether the clients' rounds take simulated time."""

    kind: str
    clients: ClientChoice = Field(
        default=None, description="indices such as [2], a share such as 0.3 drawn by seed, or all; nothing means [2]"
    )
    num_clients: int | None = Field(default=None, ge=1, description="in place of clients: so many, drawn by seed")

    @model_validator(mode="after")
    def _one_way_to_choose(self) -> Self:
        if self.clients is not None and self.num_clients is not None:
            raise ValueError(f"must leave num_clients out where clients says who, got num_clients={self.num_clients}")
        return self

    def faults(self, request: EffectRequest) -> list[str]:
        """Return what does not fit the federation; each fault begins with the key."""
        found = []
        if self.num_clients is not None and self.num_clients > request.num_clients:
            found.append(
                f"num_clients must be at most the number of clients, {request.num_clients}, got {self.num_clients}"
            )
        if isinstance(self.clients, tuple) and self.clients[-1] >= request.num_clients:
            outside = [client for client in self.clients if client >= request.num_clients]
            found.append(
                f"clients must be below the number of clients, {request.num_clients}, got "
                f"{', '.join(map(str, outside))}; they are counted from 0"
            )
        if self.needs_classes and request.predicts_quantity:
            found.append(f"kind must not be {self.kind} where a quantity is predicted, as it changes classes")
        if self.needs_measurements and request.data_kind == "tokens":
            found.append(
                f"kind must not be {self.kind} for tokens, which are numbers of words or characters, of which it would "
                "make others; label_flip, poisoning, feature_drop and concept_shift work on tokens"
            )
        return found

    def chosen(self, request: EffectRequest) -> tuple[int, ...]:
        """Return the clients that the effect is for, ascending."""
        generator = request.stream(f"{self.kind} clients")
        return choose_clients(self.clients, self.num_clients, request.num_clients, generator)

    @abstractmethod
    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return what is done to the chosen clients of a federation without faults."""


def with_rows(clients: tuple[int, ...], request: EffectRequest) -> tuple[int, ...]:
    """Return those clients that hold any rows."""
    sizes = request.partition.sizes
    return tuple(client for client in clients if sizes[client])
