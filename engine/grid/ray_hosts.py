"""Hosts as Ray actors: started with the federation placed once, watched, replaced, ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedscout.engine.data.client_query import QueryTable
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import EngineError
from fedscout.engine.grid.host_actor import HostActor
from fedscout.engine.host_device import CPU, HostDevice
from fedscout.engine.messages.host_calls import FederationFacts

RESTARTS = 100
START_SECONDS = 180.0
HOST_CPUS = 0.0001
"""The least that Ray counts. Of an actor that takes nothing Ray ignores on which node it shall be."""


RESERVED_SHARE = 0.9
"""Of a host's CPU; in the rest hosts of lost nodes find room."""


GPU_SHARE_HELD = 0.95
"""Of a host's part of a GPU; the rest is for reservations, and for rounding."""


HEAD_START_SECONDS = 0.5
"""What is done meanwhile starts so much later, or it would take the processes that Ray has ready."""


_HOST: Any = ray.remote(HostActor)
"""Made once: Ray sends each remote class that is made to its head, and keeps it there."""


@dataclass(frozen=True)
class RayHosts:
    """Handles of running hosts. Picklable; passed to trial tasks.

    Attributes:
        actors: One handle a host.
        facts: Of the federation they serve.
        federation: Reference that keeps the data in the object store, from which a lost host is rebuilt.
        reservation: Placement group that holds their CPUs, if there is one.
        num_nodes: Over how many nodes they were spread.
    """

    actors: tuple[Any, ...]
    facts: FederationFacts
    federation: Any
    reservation: PlacementGroup | None = None
    num_nodes: int = 1

    def stop(self) -> None:
        """End the hosts, and let their CPUs go."""
        _end(self.actors, self.reservation)


def start_hosts(
    federation: Federation,
    queries: QueryTable,
    num_hosts: int,
    meanwhile: Callable[[], None] = lambda: None,
    device: HostDevice = CPU,
    gpu_share: float = 0.0,
) -> RayHosts:
    """Start hosts on the connected Ray cluster, spread over its nodes.

    Args:
        federation: Placed in the object store once.
        queries: The aggregates that clients are willing to give.
        num_hosts: How many; more than CPUs is allowed and slower.
        meanwhile: Done while they start.
        device: On which they train.
        gpu_share: Of a GPU, for each.

    Raises:
        EngineError: If they are not up in time, as when other work holds the cluster's CPUs.
    """
    cpus = ray.cluster_resources().get("CPU", 1.0)
    reservation = _reserve(num_hosts, cpus, on_gpus=gpu_share > 0)
    nodes = placement_group_table(reservation)["bundles_to_node_id"]
    reference = ray.put(federation)
    actors = tuple(
        _HOST.options(
            num_cpus=HOST_CPUS,
            num_gpus=_counted(GPU_SHARE_HELD * gpu_share),
            max_restarts=RESTARTS,
            max_task_retries=RESTARTS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=nodes[host], soft=True),
        ).remote([reference], queries, device)
        for host in range(num_hosts)
    )
    try:
        ray.wait([actor.process_id.remote() for actor in actors], num_returns=num_hosts, timeout=HEAD_START_SECONDS)
        meanwhile()
        facts = _first_facts(actors)
    except BaseException:
        _end(actors, reservation)
        raise
    return RayHosts(actors, facts, reference, reservation, len({*nodes.values()}))


def _end(actors: Sequence[Any], reservation: PlacementGroup | None) -> None:
    for actor in actors:
        ray.kill(actor)
    if reservation is not None:
        remove_placement_group(reservation)


def _counted(share: float) -> float:
    """Return a share as Ray counts it, in ten thousandths, rounded down."""
    return float(np.floor(share / HOST_CPUS) * HOST_CPUS)


def _reserve(num_hosts: int, cpus: float, on_gpus: bool = False) -> PlacementGroup:
    """Hold the CPUs of hosts, spread over the nodes in proportion to what is free there.

    The hosts themselves hold next to none. If a node is lost, its part of the reservation waits for another node, maybe
    for ever; its hosts do not, and are restarted on the nodes that are left. A GPU is held by its hosts, as that is how
    Ray tells each which one is its own; hosts of a lost one wait until another has room.

    Raises:
        EngineError: If the CPUs are not free in time.
    """
    held = {"CPU": max(HOST_CPUS, _counted(RESERVED_SHARE * min(1.0, cpus / num_hosts)))}
    if on_gpus:  # the least, so that each lies on a node that has one
        held["GPU"] = HOST_CPUS
    reservation: PlacementGroup = placement_group([held] * num_hosts, strategy="SPREAD")
    if not reservation.wait(START_SECONDS):
        remove_placement_group(reservation)
        raise EngineError(
            f"the CPUs of {num_hosts} hosts must be free within {START_SECONDS:.0f} s; of the cluster's {cpus:g} "
            f"{ray.available_resources().get('CPU', 0.0):g} are"
        )
    return reservation


def _first_facts(actors: Sequence[Any]) -> FederationFacts:
    """Wait until all hosts answer."""
    asked = [actor.facts.remote() for actor in actors]
    ready, waiting = ray.wait(asked, num_returns=len(asked), timeout=START_SECONDS)
    if waiting:
        raise EngineError(f"{len(asked)} hosts must be up within {START_SECONDS:.0f} s, {len(ready)} were")
    try:
        facts: FederationFacts = ray.get(asked[0])
    except RayError as error:
        raise EngineError(lost_host(error)) from error
    return facts


def lost_host(error: RayError) -> str:
    """Return why a host is lost, in a line."""
    return f"a host was lost: {next(iter(str(error).strip().splitlines()), type(error).__name__)}"
