"""What is seen of a cluster of one raylet that grows to four: a process of its own, apart from the session's Ray.

The process writes an `Observations` to the file that its first argument names; `test_cluster.py` judges it.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedscout.engine.data.client import Partition
from fedscout.engine.data.federation import Federation
from fedscout.engine.grid.ray_grid import RayGrid, RayHosts, start_hosts
from fedscout.engine.messages.calls import Session
from fedscout.engine.trials.checkpoint import CheckpointStore
from fedscout.engine.trials.ray_runner import RayRunner
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.trial import run_trial
from tests.engine.choices import FEDADAM, FEDAVG, FLOWER_CHOICES, Variates, spec_of

NUM_NODES, CPUS_A_NODE = 4, 4
NUM_HOSTS = 2 * NUM_NODES
NUM_CLIENTS, CLIENT_ROWS, NUM_FEATURES = 64, 16, 256
DATA_BYTES = 32 * 2**20
NUM_ROUNDS = 3
STORE_BYTES = 200 * 2**20

STUDY = (
    "federation.dataset=wine",
    "federation.num_clients=4",
    "training.num_rounds=3",
    "search.budget=2",
    "search.generation_size=2",
    "search.confirmation_seeds=2",
    "search.tuned_baseline=false",
    "detection.outlier_repetitions=2",
    "detection.outlier_min_flags=2",
)


def large_dense() -> nn.Module:
    """256·640 + 640 + 640·3 + 3 = 166,403 parameters, 666 kB: more than a call carries."""
    return nn.Sequential(nn.Linear(NUM_FEATURES, 640), nn.ReLU(), nn.Linear(640, 3))


def large_federation() -> Federation:
    """Return 64 clients of 16 rows each, and 32 MiB of features."""
    num_rows = DATA_BYTES // (4 * NUM_FEATURES)
    generator = np.random.default_rng(0)
    features = generator.normal(size=(num_rows, NUM_FEATURES)).astype(np.float32)
    rows = np.split(generator.permutation(num_rows)[: NUM_CLIENTS * CLIENT_ROWS], NUM_CLIENTS)
    return Federation(
        name="large",
        features=features,
        labels=np.argmax(features[:, :3], axis=1).astype(np.int64),
        num_classes=3,
        partition=Partition.from_lists(rows),
        model=large_dense,
    )


def _spec(choice: Any, **changes: Any) -> TrialSettings:
    return spec_of(choice, **{"num_rounds": NUM_ROUNDS, "num_sampled": NUM_CLIENTS, **changes})


TRIALS = {
    "merged": _spec(FEDAVG),
    "adaptive, sampled": _spec(FEDADAM, num_sampled=11),
    "individual": _spec(FLOWER_CHOICES["krum"]),
    "named": _spec(FLOWER_CHOICES["fedmedian"]),
    "with client states": _spec(replace(FEDAVG, algorithm=Variates())),
}


@dataclass
class Traffic:
    """What one trial of FedAvg sent and got.

    Attributes:
        models_stored: Arrays that the driver put into the object store.
        calls: Calls to hosts.
        result_bytes: Size of each call's pickled result.
    """

    models_stored: int = 0
    calls: int = 0
    result_bytes: list[int] = field(default_factory=list)


@dataclass
class Observations:
    """What was seen.

    Attributes:
        num_parameters: Of the model.
        one_node: Results by trial on one raylet with one host.
        four_nodes: Results on four raylets with eight hosts.
        hosts_on_node: Number of hosts on each of the four nodes.
        data_bytes_on_node: By how many bytes each node's object store grew when the hosts started.
        one_node_traffic: Of the trial `merged`.
        four_nodes_traffic: Of the trial `merged`.
        study_errors: Standard error of `fedscout run` on the four raylets, empty if it ended well.
    """

    num_parameters: int
    one_node: dict[str, Trial]
    four_nodes: dict[str, Trial]
    hosts_on_node: list[int]
    data_bytes_on_node: list[int]
    one_node_traffic: Traffic
    four_nodes_traffic: Traffic
    study_errors: str


class _WatchedGrid(RayGrid):
    """Counts calls and weighs their results."""

    def __init__(self, hosts: RayHosts, session: Session, traffic: Traffic) -> None:
        super().__init__(hosts, session)
        self._traffic = traffic

    def _start(self, *arguments: Any) -> Any:
        self._traffic.calls += 1
        return super()._start(*arguments)

    def _gather(self, handles: Sequence[Any], timeout: float | None) -> list[Any] | None:
        results = super()._gather(handles, timeout)
        self._traffic.result_bytes += [len(pickle.dumps(result)) for result in results or []]
        return results


def _traffic(hosts: RayHosts) -> Traffic:
    """Run the trial `merged` from this process and count."""
    import ray

    traffic, put, spec = Traffic(), ray.put, TRIALS["merged"]

    def counted(value: Any, *arguments: Any, **options: Any) -> Any:
        traffic.models_stored += isinstance(value, np.ndarray)
        return put(value, *arguments, **options)

    ray.put = counted
    try:
        run_trial(spec, _WatchedGrid(hosts, spec.session, traffic))
    finally:
        ray.put = put
    return traffic


def _results(hosts: RayHosts) -> dict[str, Trial]:
    """Run all trials as tasks, three at a time."""
    runner = RayRunner(hosts, CheckpointStore(None), parallel=3)
    names = list(TRIALS)
    return {names[position]: result for position, result in runner.run([TRIALS[name] for name in names])}


def _hosts_on_node(hosts: RayHosts) -> list[int]:
    import ray

    def node(_: Any) -> str:
        return str(ray.get_runtime_context().get_node_id())

    found = Counter(ray.get([actor.__ray_call__.remote(node) for actor in hosts.actors]))
    return [found[each["NodeID"]] for each in ray.nodes()]


def _stored_bytes() -> list[int]:
    """Return the bytes in the object store of each node."""
    import ray
    from ray._private.internal_api import node_stats

    stores = [
        node_stats(node["NodeManagerAddress"], node["NodeManagerPort"], include_memory_info=False).store_stats
        for node in ray.nodes()
    ]
    return [int(store.object_store_bytes_used) for store in stores]


def _study_errors(folder: Path, address: str) -> str:
    """Run a small study on the cluster, by nothing but its address."""
    command = [sys.executable, "-m", "fedscout.experiments.cli.main", "run", *STUDY, f"engine.address={address}"]
    done = subprocess.run([*command, "--out", str(folder)], check=False, capture_output=True, text=True, timeout=240)
    return "" if done.returncode == 0 else f"exit code {done.returncode}: {done.stderr}"


@contextmanager
def _cluster() -> Iterator[Any]:
    """Start a cluster of one raylet and connect to it; Ray's order of ending is disconnect first."""
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": CPUS_A_NODE, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def observe(study_folder: Path) -> Observations:
    """Do on one raylet and on four what is to be compared."""
    federation = large_federation()
    with _cluster() as cluster:
        one_host = start_hosts(federation, {}, 1)
        one_node, one_node_traffic = _results(one_host), _traffic(one_host)

        for _ in range(NUM_NODES - 1):
            cluster.add_node(num_cpus=CPUS_A_NODE, object_store_memory=STORE_BYTES)
        cluster.wait_for_nodes()
        before = _stored_bytes()
        one_host.stop()
        hosts = start_hosts(federation, {}, NUM_HOSTS)
        grown = [after - earlier for after, earlier in zip(_stored_bytes(), before, strict=True)]
        hosts_on_node = _hosts_on_node(hosts)
        four_nodes, four_nodes_traffic = _results(hosts), _traffic(hosts)
        hosts.stop()
        return Observations(
            num_parameters=hosts.facts.layout.size,
            one_node=one_node,
            four_nodes=four_nodes,
            hosts_on_node=hosts_on_node,
            data_bytes_on_node=grown,
            one_node_traffic=one_node_traffic,
            four_nodes_traffic=four_nodes_traffic,
            study_errors=_study_errors(study_folder, cluster.address),
        )


def main() -> None:
    """Observe, and write down what was seen."""
    file, study_folder = map(Path, sys.argv[1:])
    file.write_bytes(pickle.dumps(observe(study_folder)))
