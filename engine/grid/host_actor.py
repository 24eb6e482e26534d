"""`ClientHost` as a Ray actor."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import ray

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.client_algorithm import ClientState
from fedscout.engine.data.client_query import QueryTable
from fedscout.engine.grid.watchdog import perform_watched
from fedscout.engine.host_device import CPU, HostDevice
from fedscout.engine.messages.added_sums import Answer, added_to, with_one_sum
from fedscout.engine.messages.host_calls import FederationFacts, HostCall, Part
from fedscout.engine.runtime.ray_internals import HeadNotes


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
        before: Answer | None,
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
            before: The answer to other clients' part of the same call, which these results are added to.
            owners: Whose states these are.
            states: What they kept.
        """
        if "states" in parts:
            gc.collect()  # cycles of the part before may hold its clients' old states
        call = _completed(call, vector, owners, states)
        done: Any
        if call.session.round_timeout_seconds is None:
            done = yield from self._host.training(call, parts, large_bytes)
        else:  # the watchdog ends this process, or sees the end of the work
            taken: list[Any] = []

            def perform(method: str, part: HostCall) -> Any:
                if method != "train":
                    return self._perform(method, part)
                lying, results = self._host.train_apart(part, parts, large_bytes)
                taken.extend(lying)
                return results

            done = perform_watched(perform, "train", call, HeadNotes())
            yield from taken
        num_missing = len(call.clients) - sum(len(part.slots) for part in (done if isinstance(done, list) else [done]))
        yield from repeat(None, len(parts) * num_missing)
        yield done if before is None else added_to(before, done)

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
