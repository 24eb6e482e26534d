"""Which host serves which client.

The same one in every round, as hosts keep how clients split their rows. The largest clients go one by one to the least
loaded host. Of a great many the rest, each next to nothing beside what is dealt already, go to the hosts in turn.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property

import numpy as np

from fedscout.engine.arrays import IntArray

Shards = Mapping[int, tuple[int, ...]]
"""Clients by the host that serves them, both ascending."""

ONE_BY_ONE = 16_384
"""So many of the largest clients are weighed each."""


def balance(client_rows: IntArray, num_hosts: int) -> IntArray:
    """Assign clients to hosts, the largest first, each to the least loaded host; ties go to the lower index.

    Args:
        client_rows: Rows of each client, shape `(num_clients,)`.
        num_hosts: Hosts; none counts as one.

    Returns:
        The host of each client, shape `(num_clients,)`.
    """
    order = np.argsort(-client_rows, kind="stable")
    host_of = np.zeros(len(order), np.int64)
    loads = [(0, host) for host in range(max(1, num_hosts))]
    largest = order[:ONE_BY_ONE]
    for client, rows in zip(largest.tolist(), client_rows[largest].tolist(), strict=True):
        load, host = loads[0]
        host_of[client] = host
        heapq.heapreplace(loads, (load + rows + 1, host))
    rest = order[ONE_BY_ONE:]
    host_of[rest] = np.resize([host for _, host in sorted(loads)], len(rest))
    return host_of


def shard(clients: Iterable[int], host_of: IntArray) -> Shards:
    """Group clients by host."""
    members = np.array(sorted(clients), np.int64)
    hosts = host_of[members]
    return {int(host): tuple(members[hosts == host].tolist()) for host in np.unique(hosts)}


class HostShards:
    """The clients of a federation over its hosts.

    Args:
        client_rows: Rows of each client.
        num_hosts: Hosts.
    """

    def __init__(self, client_rows: IntArray, num_hosts: int) -> None:
        self._host_of = balance(client_rows, num_hosts)

    @cached_property
    def every(self) -> Shards:
        """All clients."""
        return shard(range(len(self._host_of)), self._host_of)

    def of(self, clients: Collection[int]) -> Shards:
        """Group some clients."""
        return self.every if len(clients) == len(self._host_of) else shard(clients, self._host_of)
