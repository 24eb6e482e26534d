"""How many hosts share a GPU: as many as keep it busy and fit into its memory, found by one round of training.

A host alone leaves a GPU idle while it prepares the next kernel. What share of the time kernels run tells how many
hosts have a use for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray

from fedscout.engine.data.client_query import QueryTable
from fedscout.engine.data.federation import Federation
from fedscout.engine.grid.tried_round import tried_round
from fedscout.engine.host_device import HostDevice
from fedscout.engine.messages.session import Session

MOST_HOSTS = 8
"""On one GPU: each has a context of its own, of some hundred megabytes."""

TASK_CPUS = 0.0001
"""The least that Ray counts."""

MOST_TRIED = 256
"""Clients of a round that is tried: each of their kernels is an event of the profiler's."""

MEMORY_SHARE = 0.8
"""Of a GPU's memory, for all hosts together."""


@dataclass(frozen=True)
class GpuUse:
    """What one host alone makes of a GPU.

    Attributes:
        busy_share: Of the time, that kernels run, in `[0, 1]`.
        host_bytes: Memory that the host takes.
        gpu_bytes: Memory that there is.
    """

    busy_share: float
    host_bytes: int
    gpu_bytes: int

    def num_hosts(self, cpus_each: float) -> int:
        """Return how many hosts a GPU is for, with so many CPUs beside it; at least one."""
        wanted = round(1 / max(self.busy_share, 1 / MOST_HOSTS))
        fitting = int(MEMORY_SHARE * self.gpu_bytes // max(1, self.host_bytes))
        return max(1, min(wanted, fitting, int(cpus_each)))


def measured_use(federation: Federation, queries: QueryTable, device: HostDevice, session: Session) -> GpuUse:
    """Train one epoch with one host of some clients, and return what it made of its device; a core is always busy."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from fedscout.engine.client.client_host import ClientHost

    host = ClientHost(federation, queries, device)
    seen = [client for client in range(federation.num_clients) if client not in federation.unseen]
    clients = seen[:: max(1, -(-len(seen) // MOST_TRIED))]
    tried_round(host, session, clients)
    if not device.on_gpu:
        return GpuUse(1.0, 1, 1)
    with profile(activities=[ProfilerActivity.CUDA]) as events:
        seconds = tried_round(host, session, clients).seconds
    busy = 1e-6 * sum(event.self_device_time_total for event in events.key_averages())
    free, total = torch.cuda.mem_get_info()
    return GpuUse(min(1.0, busy / seconds), total - free, total)


def hosts_on_gpus(
    federation: Federation, queries: QueryTable, device: HostDevice, session: Session, cpus_each: float
) -> int:
    """Return how many hosts a GPU of the connected cluster is for.

    Args:
        federation: Whose clients train.
        queries: The aggregates that clients are willing to give.
        device: Of hosts.
        session: Of the training that is to come.
        cpus_each: CPUs for each GPU.
    """
    trial: Any = ray.remote(max_calls=1)(measured_use)  # its process ends with it, and lets go of the GPU
    task = trial.options(num_cpus=TASK_CPUS, num_gpus=1.0 if device.on_gpu else 0.0)
    use: GpuUse = ray.get(task.remote(federation, queries, device, session))
    return use.num_hosts(cpus_each)
