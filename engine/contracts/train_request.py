"""What a train message asks of its clients, and what one client brings to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscout.engine.contracts.client_algorithm import ClientAlgorithm, ClientState
from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.contracts.settings_lookup import SettingsLookup

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TrainRequest:
    """The same for all clients of a message.

    Attributes:
        received: The global vector, shape `(layout.size,)`.
        training: Epochs, batches, optimiser; of a task, the task says what an epoch is.
        algorithm: What the strategy has its clients do; None is plain local training.
        table: By which each chooses settings of its own in place of `training`'s.
        config: The message's configuration, for the algorithm.
        integers: Integer buffers of the received model, by name.
        companions: Vectors that came beside the model, by name.
        initial_loss: Whether to measure the received model on the training rows first.
        num_classes: Of the federation.
        seed: The trial's.
        server_round: From 1.
    """

    received: Tensor
    training: LocalTraining
    algorithm: ClientAlgorithm | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    integers: Mapping[str, Tensor] = field(default_factory=dict)
    companions: Mapping[str, Tensor] = field(default_factory=dict)
    initial_loss: bool = False
    num_classes: int = 0
    seed: int = 0
    server_round: int = 1
    table: SettingsLookup | None = None


@dataclass(frozen=True)
class ClientWork:
    """One client's part of a round.

    Attributes:
        client: Its index.
        generator: Draws the batches; from (seed, round, client).
        state: What the client kept: the algorithm's entries, and a task's own.
        epochs: Local epochs are so many times those of the others.
    """

    client: int
    generator: np.random.Generator
    state: ClientState
    epochs: int = field(default=1, kw_only=True)
