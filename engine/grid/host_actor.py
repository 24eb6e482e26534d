"""`ClientHost` as a Ray actor."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import ray

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.client_algorithm import ClientState
from fedscout.engine.data.client_query import QueryTable
from fedscout.engine.grid.client_states import state_bytes
from fedscout.engine.grid.watchdog import perform_watched
from fedscout.engine.host_device import CPU, HostDevice
from fedscout.engine.messages.added_sums import Answer, with_one_sum
from fedscout.engine.messages.host_calls import FederationFacts, HostCall, TrainResults
from fedscout.engine.runtime.ray_internals import HeadNotes

Part = Literal["vectors", "states"]

BESIDE: tuple[Part, ...] = get_args(Part)
"""What may lie beside the results of a training, in the order in which it comes."""


class HostActor:
    """A `ClientHost` in a process of its own, whose model may come through the object store instead of with the call.

    Args:
        federation: A list of one reference. Inside a list it is fetched here, when the actor is started or restarted,
            and stays alive as long as the caller keeps it.
        queries: The aggregates that clients are willing to give.
        device: Where they train.
    """

    def __init__(self, federation: list[Any], queries: QueryTable, device: HostDevice = CPU) -> None:
        from fedscout.engine.client.client_host import ClientHost  # torch, which who makes a handle does without

        self._host = ClientHost(ray.get(federation[0]), queries, device)

    def facts(self) -> FederationFacts:
        """Return what the driver must know."""
        return self._host.facts()

    def initial_vector(self, seed: int) -> FloatArray:
        """Return the initial model of a seed, shape `(params,)`."""
        return self._host.initial_vector(seed)

    def perform(
        self, method: str, call: HostCall, vector: FloatArray | None, owners: Sequence[int] = (), *states: ClientState
    ) -> Any:
        """Do one call.

        Args:
            method: `train`, `evaluate` or `query`.
            call: What is asked.
            vector: Stands in for the call's own where that is None.
            owners: Clients whose states come beside the call.
            states: Theirs.
        """
        if vector is not None:
            call = replace(call, vector=vector)
        if owners:
            call = replace(call, states={**call.states, **dict(zip(owners, states, strict=True))})
        if call.session.round_timeout_seconds is None:
            return self._perform(method, call)
        return perform_watched(self._perform, method, call, HeadNotes())

    def train_apart(
        self,
        large_bytes: int,
        parts: Collection[Part],
        call: HostCall,
        vector: FloatArray | None,
        owners: Sequence[int],
        *states: ClientState,
    ) -> Iterator[Any]:
        """Train, and yield the results, then for each of the call's clients its model, then for each its new state.

        Each is an object of its own, which Ray stores before the next is asked for; None of who has none, or has a
        state that is not large and comes with the results.

        Args:
            large_bytes: From which a state is large.
            parts: Which of the two lie beside the results.
            call: As for `perform`, like all others.
            vector: The model.
            owners: Whose states these are.
            states: What they kept.
        """
        done = self.perform("train", call, vector, owners, *states)
        apart = [
            _taken_out(part, large_bytes, done if isinstance(done, list) else [done])
            for part in BESIDE
            if part in parts
        ]
        yield done
        del done
        for of_clients in apart:
            for client in call.clients:
                yield of_clients.pop(client, None)

    def _perform(self, method: str, call: HostCall) -> Any:
        return getattr(self._host, method)(call)

    def with_one_sum(self, *answers: Answer) -> list[Answer]:
        """Return answers of several hosts, of which one holds the sum of all."""
        return with_one_sum(answers)

    def process_id(self) -> int:
        """Return the operating system's id of this host's process."""
        return os.getpid()


def _taken_out(part: Part, large_bytes: int, done: Sequence[TrainResults]) -> dict[int, Any]:
    """Take models, or large states, out of the results of a training, and return them by client."""
    found: dict[int, Any] = {}
    for results in done:
        if part == "vectors":
            found |= zip(results.clients, results.vectors or (), strict=True)
            results.vectors = None
        else:
            results.large = [c for c, state in results.states.items() if state_bytes(state) >= large_bytes]
            found |= {client: results.states.pop(client) for client in results.large}
    return found
