"""The grid over `ClientHost` actors on Ray: one laptop or a cluster, by where the actors are.

The federation is put into the object store once (once a node, that is); hosts read it without a copy. Hosts are
handles and can be passed to any number of trial tasks, whose calls they serve in turn. A host that dies is restarted
by Ray from the same federation and its unanswered calls are repeated, with the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from engine.errors import EngineError
from engine.federation import Federation, FloatArray
from engine.grid import HostGrid
from engine.host_calls import FederationFacts, HostCall
from engine.queries import QueryTable
from engine.session import Session

INLINE_BYTES = 100_000
"""Larger models are put into the object store once a job instead of travelling with each call."""

RESTARTS = 100
START_SECONDS = 180.0


@dataclass(frozen=True)
class RayHosts:
    """Handles of running hosts. Picklable; passed to trial tasks.

    Attributes:
        actors: One handle a host.
        facts: Of the federation they serve.
        federation: Reference that keeps the data in the object store, from which a lost host is rebuilt.
    """

    actors: tuple[Any, ...]
    facts: FederationFacts
    federation: Any

    def stop(self) -> None:
        """End the hosts."""
        for actor in self.actors:
            ray.kill(actor)


def start_hosts(federation: Federation, queries: QueryTable, num_hosts: int) -> RayHosts:
    """Start hosts on the connected Ray cluster, spread over its nodes.

    Args:
        federation: Placed in the object store once.
        queries: The aggregates that clients are willing to give.
        num_hosts: How many; more than CPUs is allowed and slower.

    Raises:
        EngineError: If they are not up in time, as when other work holds the cluster's CPUs.
    """
    from engine.host_actor import HostActor  # torch, which a driver or a trial task does without

    cpus = ray.cluster_resources().get("CPU", 1.0)
    share = min(1.0, cpus / num_hosts)
    share = share if share == 1.0 else max(0.001, np.floor(share * 1000) / 1000)
    options: dict[str, Any] = {
        "num_cpus": float(share),
        "max_restarts": RESTARTS,
        "max_task_retries": RESTARTS,
        "scheduling_strategy": "SPREAD",
    }
    reference = ray.put(federation)
    actor = ray.remote(HostActor).options(**options)
    actors = tuple(actor.remote([reference], queries) for _ in range(num_hosts))
    return RayHosts(actors=actors, facts=_first_facts(actors, cpus), federation=reference)


def _first_facts(actors: Sequence[Any], cpus: float) -> FederationFacts:
    """Wait until all hosts answer; end them if they do not."""
    asked = [actor.facts.remote() for actor in actors]
    ready, waiting = ray.wait(asked, num_returns=len(asked), timeout=START_SECONDS)
    try:
        if waiting:
            raise EngineError(
                f"{len(actors)} hosts must be up within {START_SECONDS:.0f} s, {len(ready)} were; of the cluster's "
                f"{cpus:g} CPUs {ray.available_resources().get('CPU', 0.0):g} are free"
            )
        facts: FederationFacts = ray.get(asked[0])
    except (RayError, EngineError) as error:
        for actor in actors:
            ray.kill(actor)
        raise EngineError(_lost(error)) from error
    return facts


def _lost(error: Exception) -> str:
    first = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return first if isinstance(error, EngineError) else f"a host was lost: {first}"


class RayGrid(HostGrid[Any]):
    """A grid over running hosts. Cheap to make: every trial has its own, over shared hosts.

    Args:
        hosts: From `start_hosts`.
        session: What the trial fixes.
        merge_on_hosts: See `HostGrid`.
    """

    def __init__(self, hosts: RayHosts, session: Session | None = None, merge_on_hosts: bool = True) -> None:
        super().__init__(hosts.facts, len(hosts.actors), session=session, merge_on_hosts=merge_on_hosts)
        self._hosts = hosts
        self._sent: tuple[FloatArray, Any] | None = None

    def initial_vector(self, seed: int) -> FloatArray:
        """Return the initial model of a seed, shape `(params,)`."""
        vector: FloatArray = self._result(self._hosts.actors[0].initial_vector.remote(seed))
        return vector

    def _start(self, host: int, method: str, call: HostCall) -> Any:
        reference = None
        if call.vector is not None and call.vector.nbytes > INLINE_BYTES:
            if self._sent is None or self._sent[0] is not call.vector:
                self._sent = (call.vector, ray.put(call.vector))
            reference = self._sent[1]
            call = replace(call, vector=None)
        return self._hosts.actors[host].perform.remote(method, call, reference)

    def _wait(self, handles: Sequence[Any], timeout: float | None) -> bool:
        if not handles:
            return True
        _, waiting = ray.wait(list(handles), num_returns=len(handles), timeout=timeout)
        return not waiting

    def _result(self, handle: Any) -> Any:
        try:
            return ray.get(handle)
        except RayError as error:
            raise EngineError(_lost(error)) from error
