"""A Ray cluster of several raylets on this machine, whose nodes can be killed and replaced.

Usage: `python -m tests.faults.raylets NODES`; prints the cluster's address, and keeps it until standard
input ends.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

QUICK_DETECTION = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 3,
}
"""Ray waits about fifteen seconds for a raylet that does not answer; here it has ended for certain."""

NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20}


@contextmanager
def cluster_of(num_nodes: int) -> Iterator[Any]:
    """Start raylets of one CPU, connect to the first, and at last end all processes that were started."""
    import ray
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # a socket's path must be short
    os.environ["RAY_TMPDIR"] = folder  # so that no other Ray on this machine finds it
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's future default; it warns of the present
    cluster = Cluster()
    try:
        cluster.add_node(**NODE, include_dashboard=False, _system_config=QUICK_DETECTION)
        for _ in range(num_nodes - 1):
            cluster.add_node(**NODE)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
    finally:
        started = psutil.Process().children(recursive=True)
        ray.shutdown()
        with suppress(Exception):  # of nodes that were killed
            cluster.shutdown()
        for process in started:
            with suppress(psutil.Error):
                process.kill()
        del os.environ["RAY_TMPDIR"]
        shutil.rmtree(folder, ignore_errors=True)


def raylet_of(node: Any) -> psutil.Process:
    """Return the raylet of one of the cluster's nodes."""
    return psutil.Process(node.all_processes["raylet"][0].process.pid)


def agent_of(node: Any) -> psutil.Process:
    """Return an agent of a node, with which its raylet ends; it may still be starting."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for process in raylet_of(node).children():
            with suppress(psutil.NoSuchProcess):
                if process.name().startswith("ray::DashboardAgent"):
                    return process
        time.sleep(0.1)
    raise TimeoutError("the node has no agent")


def kill_node(cluster: Any, node: Any) -> list[int]:
    """Kill a node and everything on it at once, as when its machine fails; return the processes' ids."""
    raylet = raylet_of(node)
    processes = [raylet, *raylet.children(recursive=True)]
    cluster.worker_nodes.remove(node)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    return [process.pid for process in processes]


def num_alive() -> int:
    """Return how many nodes Ray believes alive."""
    import ray

    return sum(node["Alive"] for node in ray.nodes())


def wait_for_nodes(number: int) -> None:
    """Wait until Ray has noticed that only so many nodes are left."""
    deadline = time.monotonic() + 60
    while num_alive() != number:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{num_alive()} nodes are alive, not {number}")
        time.sleep(0.1)


def main(num_nodes: int) -> None:
    """Keep a cluster for other processes."""
    out = sys.stdout
    with cluster_of(num_nodes) as cluster:
        print(cluster.address, file=out, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]))
