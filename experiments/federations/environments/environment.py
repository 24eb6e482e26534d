"""What a user may set about an environment's physics, and what an environment says of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from fedscout.engine.contracts.client_task import ClientTask


class PhysicsConfig(BaseModel):
    """The physics of some clients; what is not given stays as published."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    clients: tuple[int, ...] | None = Field(default=None, description="whose physics; nothing means everybody's")
    gravity: float | None = Field(default=None, gt=0, le=1000, description="in m/s²; 9.8 as published")
    pole_length: float | None = Field(default=None, gt=0, le=100, description="full length of the pole in m; 1.0")
    force: float | None = Field(default=None, gt=0, le=1000, description="with which the cart is pushed, in N; 10")


@dataclass(frozen=True)
class Environment:
    """A federation of players.

    Attributes:
        task: What a client does.
        feature_shape: Of an observation.
        action_names: One name per action, in the order of the model's outputs.
        affected_clients: Whose physics differ from the published ones.
        source: Citation.
        facts: For the record.
    """

    task: ClientTask
    feature_shape: tuple[int, ...]
    action_names: tuple[str, ...]
    affected_clients: tuple[int, ...]
    source: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EnvironmentKind:
    """A line of the table.

    Attributes:
        build: From the number of clients, >= 1, and their physics, applied in order, to the environment.
        training: Settings of local training in place of the general defaults, which are made for classifying rows.
        score_name: What the score is called, such as `reward`.
        largest_score: Of which scores are shares.
    """

    build: Callable[[int, tuple[PhysicsConfig, ...]], Environment]
    training: Mapping[str, Any]
    score_name: str
    largest_score: float
