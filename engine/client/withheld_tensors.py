"""Tensors that clients do not send, as a selection policy may ask of slow ones: the server keeps its own values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedscout.engine.contracts.client_update import ClientUpdate
from fedscout.engine.messages.host_calls import HostCall
from fedscout.engine.messages.message_keys import ROUND_KEY, SEED_KEY
from fedscout.engine.model.parameter_layout import ParameterLayout
from fedscout.engine.seeds import stream
from fedscout.engine.training.local_training import Outcome


class WithheldTensors:
    """What the clients of one call do not send.

    Args:
        call: With assignments, if a policy makes any.
        layout: Of the model.

    Attributes:
        num_values: Of their models, over all clients so far.
    """

    def __init__(self, call: HostCall, layout: ParameterLayout) -> None:
        assigned = {} if call.watched is None else call.watched.assigned
        self._shares = {client: each.withheld for client, each in assigned.items() if each.withheld}
        self._call = call
        self._layout = layout
        self.num_values = 0

    def of(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """Return what clients send: tensors that they withhold are as they were received."""
        if not self._shares:
            return outcomes
        return [
            (work, self._without(work.client, update) if isinstance(update, ClientUpdate) else update)
            for work, update in outcomes
        ]

    def _without(self, client: int, update: ClientUpdate) -> ClientUpdate:
        if client not in self._shares:
            return update
        elements = self._elements(client)
        self.num_values += int(elements.sum())
        assert self._call.vector is not None
        return replace(update, vector=np.where(elements, self._call.vector, update.vector))

    def num_values_of(self, client: int) -> int:
        """Return how many values of its model a client does not send."""
        return int(self._elements(client).sum()) if client in self._shares else 0

    def _elements(self, client: int) -> npt.NDArray[np.bool_]:
        """Return whether a client withholds each value of the model."""
        config, names = self._call.config, [slot.name for slot in self._layout.parameters]
        generator = stream(config[SEED_KEY], "withheld", config[ROUND_KEY], client)
        drawn = {names[k] for k in generator.choice(len(names), int(self._shares[client] * len(names)), replace=False)}
        return self._layout.elements(lambda slot: slot.name in drawn)
