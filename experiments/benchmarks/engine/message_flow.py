"""The messages of a round between one driver and many hosts, simulated one by one: what is busy longest.

    the driver calls every host ─► the model goes out ─► hosts work ─► sums come back and are added
        flat     each sum to the driver
        groups   the hosts' sums to the first of their group of √n, the groups' sums to the driver

Whatever serves does one thing after the other, in the order of arrival: the driver's processor, each node's link
inward and its link outward, each host's processor. A model is passed on: a node fetches it from whichever node that
holds it is free first, as Ray's object store does. Ray's scheduler is not on the way: calls go from the driver to
running actors.

What a call and an addition take is measured (`fedscout bench scaling`, docs/benchmarks.md). Nodes have cores and links
of their own, of the driver's speed. Not simulated: Ray's heartbeats, lost messages, other trials.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from math import isqrt
from typing import Literal

from pydantic import BaseModel, Field

from fedscout.experiments.benchmarks.engine.cost_model import Network, RoundSize
from fedscout.experiments.reports.markdown_table import markdown_table

MODEL_BYTES, SUM_BYTES = 4, 8
"""Of a parameter."""

SIMULATED = (46, 268_290, 11_172_810)
"""Parameters: those of `bench scaling`, and of a ResNet-18."""

Server = Literal["driver", "driver's link in", "a host's link", "a host"]


class FlowCosts(BaseModel, frozen=True):
    """What messages cost a processor; 2026-11-21, see docs/benchmarks.md.

    Attributes:
        per_call: The driver's seconds for a host's call and its answer.
        per_client: Its seconds for a client's part in them.
        per_megabyte: Seconds to take and add 10^6 bytes of a sum, here as on a host.
        host: A host's seconds for a call, without local work.
    """

    per_call: float = Field(default=0.655e-3, ge=0)
    per_client: float = Field(default=4.8e-6, ge=0)
    per_megabyte: float = Field(default=1.89e-3, ge=0)
    host: float = Field(default=3.5e-3, ge=0)


class Flow(BaseModel, frozen=True):
    """A simulated round.

    Attributes:
        seconds: From the first call to the new model.
        busy: For how many of them what serves was busy; of links and hosts the busiest.
        store_bytes: Of sums that may lie in the driver's object store at once.
    """

    seconds: float
    busy: dict[Server, float]
    store_bytes: int

    @property
    def busiest(self) -> Server:
        """What saturates first."""
        return max(self.busy, key=lambda server: self.busy[server])

    @property
    def busy_share(self) -> float:
        """For what part of the round it is busy, in `[0, 1]`."""
        return self.busy[self.busiest] / self.seconds


class SimulatedRound(BaseModel, frozen=True):
    """One round, with the sums of all hosts going to the driver, and with those of groups."""

    size: RoundSize
    flat: Flow
    groups: Flow


class _Queue:
    """Serves one thing after the other."""

    def __init__(self) -> None:
        self.free_at = self.busy = 0.0

    def serve(self, ready: float, seconds: float) -> float:
        """Return when something is done that comes at `ready` and takes so long."""
        self.free_at = max(ready, self.free_at) + seconds
        self.busy += seconds
        return self.free_at


def simulate(size: RoundSize, group_size: int, network: Network, costs: FlowCosts | None = None) -> Flow:
    """Simulate one round.

    Args:
        size: Of the round, a host a node.
        group_size: Hosts whose sums are added before they go to the driver; 1 is flat.
        network: Between any two nodes.
        costs: Of processors.
    """
    costs = costs or FlowCosts()
    driver, link_in = _Queue(), _Queue()
    links, hosts = ([_Queue() for _ in range(size.hosts)] for _ in range(2))
    call = costs.per_call / 2
    sum_megabytes = size.parameters * SUM_BYTES / 1e6
    adding, travel = costs.per_megabyte * sum_megabytes, sum_megabytes * 8e-3 / network.gigabits_per_second
    called = [driver.serve(0.0, call) for _ in range(size.hosts)]
    trained = [
        host.serve(ready, costs.host) for host, ready in zip(hosts, _model_arrivals(size, called, network), strict=True)
    ]
    driver.serve(0.0, costs.per_client * size.clients)
    sums = sorted(
        _group_sum(trained, start, group_size, links, hosts, (travel, adding, network.latency_seconds))
        for start in range(0, size.hosts, group_size)
    )
    for ready in sums:
        driver.serve(link_in.serve(ready, travel) + network.latency_seconds, call + adding)
    return Flow(
        seconds=driver.free_at,
        busy={
            "driver": driver.busy,
            "driver's link in": link_in.busy,
            "a host's link": max(link.busy for link in links),
            "a host": max(host.busy for host in hosts),
        },
        store_bytes=len(sums) * size.parameters * SUM_BYTES,
    )


def _model_arrivals(size: RoundSize, called: Sequence[float], network: Network) -> list[float]:
    """Return when each host has the model, which every node that has it passes on, one copy at a time."""
    copying = size.parameters * MODEL_BYTES * 8e-9 / network.gigabits_per_second
    holders, arrivals = [0.0], []  # from when on each link outward is free
    for ready in called:
        sent = max(ready, heapq.heappop(holders)) + copying
        arrivals.append(sent + network.latency_seconds)
        heapq.heappush(holders, sent)
        heapq.heappush(holders, arrivals[-1])
    return arrivals


def _group_sum(
    trained: Sequence[float],
    start: int,
    group_size: int,
    links: Sequence[_Queue],
    hosts: Sequence[_Queue],
    times: tuple[float, float, float],
) -> float:
    """Return when the sum of the group that begins at a host is ready there."""
    travel, adding, latency = times
    ready = trained[start]
    for other in sorted(trained[start + 1 : start + group_size]):
        ready = hosts[start].serve(max(ready, links[start].serve(other, travel) + latency), adding)
    return ready


def simulated(nodes: Sequence[int], clients: int, network: Network) -> list[SimulatedRound]:
    """Simulate rounds of growing clusters with models of three sizes."""
    sizes = [
        RoundSize(hosts=number, clients=max(clients, number), parameters=parameters)
        for parameters in SIMULATED
        for number in nodes
    ]
    return [
        SimulatedRound(size=size, flat=simulate(size, 1, network), groups=simulate(size, isqrt(size.hosts), network))
        for size in sizes
    ]


def flow_lines(rounds: Sequence[SimulatedRound]) -> list[str]:
    """Return a table for people."""
    header = ("nodes", "parameters", "flat, ms", "groups of √n, ms", "sums at the driver, MB")
    rows = []
    for one in rounds:
        both = (one.flat, one.groups)
        times = (f"{1000 * flow.seconds:.0f} ({flow.busiest} {flow.busy_share:.0%})" for flow in both)
        stored = " and ".join(f"{flow.store_bytes / 1e6:.0f}" for flow in both)
        rows.append((str(one.size.hosts), str(one.size.parameters), *times, stored))
    return [*markdown_table(header, rows), "", "In brackets what is busy longest, and for what part of the round."]
