"""What clients keep between rounds: it, or a reference to it, goes out with a call and comes back with the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from fedscout.engine.contracts.client_algorithm import ClientState


@dataclass(frozen=True)
class StateReference:
    """Stands for a state that stays where its host put it.

    Attributes:
        reference: Of Ray's object store; who holds it keeps the state.
    """

    reference: Any


KeptState = ClientState | StateReference


def states_of(clients: Iterable[int], states: Mapping[int, KeptState]) -> dict[int, Any]:
    """Return the states of those clients that have one."""
    return {client: states[client] for client in clients if client in states} if states else {}


def keep(states: MutableMapping[int, KeptState], answered: Mapping[int, KeptState]) -> None:
    """Take over what clients keep from now on; an empty state forgets the one before."""
    for client, state in answered.items():
        if state:
            states[client] = state
        else:
            states.pop(client, None)
