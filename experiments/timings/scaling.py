"""Scaling of a round's overhead with nodes, clients and model size, on clusters of many raylets on one machine.

Local training is almost free (a few rows per client), so a round's time is the engine's overhead: sending the model,
calls, partial sums, aggregation, evaluation. Every raylet has one CPU and one host. All raylets share the cores of this
machine, so work that nodes of a real cluster do in parallel is serialized. Hence three quantities:

- `wall`: time of the fastest round, an overestimate for nodes with their own cores, more so under other load.
- `driver`: CPU time of the driver, which does not shrink with more nodes.
- `hosts`: CPU time of all hosts together, which is parallel on real nodes.

CPU times hardly depend on other load. A round on real nodes is estimated as the driver's CPU time plus that of one
host. The network adds its round trip, and the time of all megabytes over the driver's link in the worst case.

A round's cost is fitted as a linear function of hosts, clients and bytes:

    seconds = constant + per_host * hosts + per_client * clients + per_megabyte * megabytes

The coefficients are >= 0 and minimize the sum of squared *relative* errors, since sizes span two decades (non-negative
least squares: Lawson & Hanson, Solving Least Squares Problems, 1974, ch. 23).

Hosts are reused across sizes and given one federation after the other, as starting a process takes longer than
measuring it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from fedscout.engine.config import EngineConfig
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.federation import Federation
from fedscout.engine.messages.calls import DoubleArray
from fedscout.engine.runtime.processes import end_children_with
from fedscout.engine.runtime.ray import forget_token, memory_in_use, own_token, ray_runtime
from fedscout.experiments.models.request import ModelRequest, ModelSettings
from fedscout.experiments.models.table import dense
from fedscout.experiments.timings.engine import run_rounds, work_federation
from fedscout.strategies import FedAvgSpec

NODE_BYTES = 500 * 2**20
"""Memory of a raylet, its agents and a host with torch."""

SPARE_BYTES = 2**30
"""Memory that must stay free."""

STORE_BYTES = 100 * 2**20
START_SECONDS = 300.0
WARM_UP_ROUNDS = 3
PASSES = 3
"""Repetitions of all tasks of a size, so that a temporary disturbance does not affect all measurements of one."""

BYTES_PER_PARAMETER = 12
"""Sent by and to a host in a round: the model (4), which is evaluated and trained, and the partial sum (8)."""

TERMS = ("constant", "per host", "per client", "per megabyte")
QUANTITIES = ("wall", "driver", "hosts")


class RoundSize(NamedTuple):
    """The variables of a round's cost: hosts (one per node), training and scored clients, model parameters."""

    hosts: int
    clients: int
    parameters: int

    @property
    def megabytes(self) -> float:
        """Traffic to and from all hosts in a round, in 10^6 bytes."""
        return self.hosts * self.parameters * BYTES_PER_PARAMETER / 1e6

    @property
    def terms(self) -> list[float]:
        """The factors of the coefficients, in the order of `TERMS`."""
        return [1.0, self.hosts, self.clients, self.megabytes]


def fit(sizes: Sequence[RoundSize], seconds: Sequence[float]) -> DoubleArray:
    """Return the coefficients, in the order of `TERMS`, fitted to measured rounds, whose seconds must be > 0."""
    from scipy.optimize import nnls

    matrix = np.array([size.terms for size in sizes], dtype=np.float64)
    largest = matrix.max(axis=0)
    solution, _ = nnls(matrix / largest / np.asarray(seconds)[:, None], np.ones(len(seconds)))
    return np.asarray(solution / largest)


FEATURES, CLASSES, CLIENT_ROWS = 8, 2, 4
SMALL, LARGE = (4,), (512, 512)
"""Hidden layers: 46 parameters, or 268,290 (1.07 MB), which go through the object store."""


@dataclass(frozen=True)
class _Work:
    """A task: number of clients, and hidden layers of the model."""

    clients: int
    hidden: tuple[int, ...]

    def size(self, num_hosts: int) -> RoundSize:
        """Return the size of a round, with the weights and biases of all layers."""
        widths = (FEATURES, *self.hidden, CLASSES)
        return RoundSize(num_hosts, self.clients, sum((inputs + 1) * outputs for inputs, outputs in pairwise(widths)))

    def federation(self) -> Federation:
        model = dense(ModelRequest((FEATURES,), CLASSES, ModelSettings(hidden=self.hidden)))
        return replace(work_federation("tiny", self.clients, CLIENT_ROWS), model=model)


def works(nodes: int, clients: int) -> list[_Work]:
    """Return the tasks for a number of nodes: one client per host, many clients, and a large model."""
    return [_Work(nodes, SMALL), _Work(clients, SMALL), _Work(nodes, LARGE)]


Row = dict[str, Any]
"""A row of a printed table, by heading."""


def measure_scaling(
    nodes: Sequence[int], clients: int, rounds: int, note: Callable[[str], None] = lambda _: None
) -> dict[str, list[Row]]:
    """Return tables of measured rounds on growing clusters and of fitted costs.

    Costs need two numbers of nodes. Sizes for which memory is missing are left out with a note.

    Args:
        nodes: Numbers of raylets, ascending.
        clients: Clients of the task with many clients.
        rounds: Measured rounds per size.
        note: Called with a line of progress.
    """
    measured: list[tuple[RoundSize, DoubleArray]] = []
    with _growing_hosts() as grow:
        for current, num_nodes in zip([0, *nodes], nodes, strict=False):
            used, total = memory_in_use()
            needed = (num_nodes - current) * NODE_BYTES + SPARE_BYTES
            if needed > total - used:
                sizes = f"{needed / 2**30:.1f} GiB of memory, {(total - used) / 2**30:.1f} are available"
                note(f"stopped before {num_nodes} nodes: {num_nodes - current} more need {sizes}")
                break
            note(f"starting {num_nodes} nodes")
            actors, tasks = grow(num_nodes), works(num_nodes, clients)
            passes = [[_measured(work, actors, rounds) for work in tasks] for _ in range(PASSES)]
            least = np.min(passes, axis=0)
            measured += zip([work.size(num_nodes) for work in tasks], least, strict=True)
            note(f"{num_nodes} nodes: {', '.join(f'{1000 * wall:.1f}' for wall in least[:, 0])} ms per round")
    return tables_of(measured)


def tables_of(measured: Sequence[tuple[RoundSize, DoubleArray]]) -> dict[str, Any]:
    """Return the measured rounds and fitted costs as rows of tables in milliseconds."""
    sizes = [size for size, _ in measured]
    rounds = [
        {"nodes": size.hosts, "clients": size.clients, "parameters": size.parameters}
        | dict(zip(QUANTITIES, 1000 * seconds, strict=True))
        for size, seconds in measured
    ]
    if len({size.hosts for size in sizes}) < 2:
        return {"rounds": rounds, "costs": []}
    times = zip(QUANTITIES, zip(*(seconds for _, seconds in measured), strict=True), strict=True)
    costs = [{"cost": name, **dict(zip(TERMS, (1000 * fit(sizes, own)).tolist(), strict=True))} for name, own in times]
    return {"rounds": rounds, "costs": costs}


@contextmanager
def _growing_hosts() -> Iterator[Callable[[int], list[Any]]]:
    """Yield a function that grows a cluster to a number of nodes and returns its hosts, one per node.

    The cluster is shut down when the block ends. Ray records the address of the latest cluster below RAY_TMPDIR, for
    others to join, so the cluster uses a temporary RAY_TMPDIR.
    """
    from ray.cluster_utils import Cluster

    from fedscout.engine.grid.ray_grid import start_hosts

    settings = {"RAY_prestart_worker_first_driver": "0"}
    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    actors: list[Any] = []
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fs-", ignore_cleanup_errors=True))
        stack.enter_context(patch.dict(os.environ, {**settings, "RAY_TMPDIR": folder}))
        stack.callback(forget_token)
        stack.enter_context(own_token())  # a cluster's nodes listen to other machines
        cluster = Cluster(shutdown_at_exit=False)
        stack.enter_context(end_children_with(cluster.shutdown))
        cluster.add_node(**node)
        stack.enter_context(ray_runtime(EngineConfig(address=cluster.address)))

        def grow(num_nodes: int) -> list[Any]:
            for _ in range(num_nodes - len(cluster.worker_nodes) - 1):
                cluster.add_node(wait=False, **node)
            cluster.wait_for_nodes(timeout=START_SECONDS)
            # The nodes that were there before have no CPU to spare, so that each new one gets a host.
            actors.extend(start_hosts(_Work(1, SMALL).federation(), {}, num_nodes - len(actors)).actors)
            return actors

        yield grow


def _measured(work: _Work, actors: list[Any], rounds: int) -> list[float]:
    """Return the seconds of a round of one trial by quantity, after assigning a federation to the hosts."""
    import ray

    from fedscout.engine.grid.ray_grid import RayGrid, RayHosts

    federation = ray.put(work.federation())
    ray.get([actor.__ray_call__.remote(_reinitialize, [federation]) for actor in actors])
    hosts = RayHosts(tuple(actors), ray.get(actors[0].facts.remote()), federation, num_nodes=len(actors))
    ends: list[tuple[float, float]] = []
    before = _cpu_seconds(actors)
    run_rounds(
        lambda session: RayGrid(hosts, session),
        FedAvgSpec(),
        work.clients,
        LocalTraining(),
        WARM_UP_ROUNDS + rounds,
        lambda _: ends.append((time.perf_counter(), time.process_time())),
    )
    hosts_seconds = _cpu_seconds(actors) - before
    times = np.diff(ends[WARM_UP_ROUNDS - 1 :], axis=0)
    return [float(times[:, 0].min()), float(np.median(times[:, 1])), hosts_seconds / (WARM_UP_ROUNDS + rounds)]


def _cpu_seconds(actors: list[Any]) -> float:
    """Return the total CPU time used by all hosts."""
    import ray

    return float(sum(ray.get([actor.__ray_call__.remote(lambda _: time.process_time()) for actor in actors])))


def _reinitialize(host: Any, federation: list[Any]) -> None:
    """Reinitialize a running host with another federation."""
    type(host).__init__(host, federation, {})
