"""`ClientHost` as a Ray actor."""

from __future__ import annotations

import os
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING, Any

import ray

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.client_algorithm import ClientState
from fedscout.engine.data.client_query import QueryTable
from fedscout.engine.grid.watchdog import perform_watched
from fedscout.engine.host_device import CPU, HostDevice
from fedscout.engine.messages.added_sums import Answer, with_one_sum
from fedscout.engine.messages.host_calls import FederationFacts, HostCall, Part, TrainResults, state_bytes
from fedscout.engine.runtime.ray_internals import HeadNotes

if TYPE_CHECKING:
    from fedscout.engine.client.gathered_updates import GatheredUpdates


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
        call = _completed(call, vector, owners, states)
        if call.session.round_timeout_seconds is None:
            return self._perform(method, call)
        return perform_watched(self._perform, method, call, HeadNotes())

    def train_apart(
        self,
        large_bytes: int,
        parts: Sequence[Part],
        call: HostCall,
        vector: FloatArray | None,
        owners: Sequence[int],
        *states: ClientState,
    ) -> Iterator[Any]:
        """Train, and yield for each client what of it lies beside the results, as soon as it is trained, then these.

        Each is an object of its own, which Ray stores before the next is asked for, so that this process has but one
        block of clients' models. Results say whose they were; for clients that have not trained there is None, and so
        for a state that is not large and comes with the results.

        Args:
            large_bytes: From which a state is large.
            parts: What lies beside the results; of each client in this order.
            call: As for `perform`, like all others.
            vector: The model.
            owners: Whose states these are.
            states: What they kept.
        """
        call, missing = _completed(call, vector, owners, states), len(call.clients)
        training = self._training(call)
        while True:
            try:
                answers = next(training)
            except StopIteration as end:
                done = end.value
                break
            for lying in answers.taken(parts, large_bytes):
                yield from map(lying.get, parts)
                missing -= 1
        yield from repeat(None, missing * len(parts))
        yield done

    def _training(self, call: HostCall) -> Generator[GatheredUpdates | _Whole, None, Any]:
        """Train, and yield from what parts may be taken; return the rest."""
        if call.session.round_timeout_seconds is None:
            return (yield from self._host.training(call))
        done: Any = perform_watched(self._perform, "train", call, HeadNotes())  # which ends this process, or returns
        yield _Whole(done)
        return done

    def _perform(self, method: str, call: HostCall) -> Any:
        return getattr(self._host, method)(call)

    def with_one_sum(self, *answers: Answer) -> list[Answer]:
        """Return answers of several hosts, of which one holds the sum of all."""
        return with_one_sum(answers)

    def process_id(self) -> int:
        """Return the operating system's id of this host's process."""
        return os.getpid()


def _completed(
    call: HostCall, vector: FloatArray | None, owners: Sequence[int], states: Sequence[ClientState]
) -> HostCall:
    """Return a call with what came beside it."""
    if vector is not None:
        call = replace(call, vector=vector)
    return replace(call, states={**call.states, **dict(zip(owners, states, strict=True))}) if owners else call


class _Whole:
    """Results of a training that is done, of which parts may be taken as while it goes on.

    Args:
        done: Those of one part of the clients after the other; taken parts are no more among them.
    """

    def __init__(self, done: Sequence[TrainResults]) -> None:
        self._done = done

    def taken(self, parts: Collection[Part], large_bytes: int) -> Iterator[Mapping[Part, Any]]:
        """Yield each client's parts; see `GatheredUpdates.taken`."""
        for results in self._done:
            vectors: dict[int, Any] = {}
            if "vectors" in parts:
                vectors, results.vectors = dict(zip(results.clients, results.vectors or (), strict=True)), None
            if "states" in parts:
                results.large = [c for c, state in results.states.items() if state_bytes(state) >= large_bytes]
            results.slots = [*results.clients]
            for client in results.slots:
                state = results.states.pop(client) if client in results.large else None
                yield {"vectors": vectors.pop(client, None), "states": state}
