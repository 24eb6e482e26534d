"""Four raylets give the bits of one; data lie once on a node, models travel once a job, partial sums come back."""

from __future__ import annotations

import os
import pickle
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import nn

from fedscout.engine.data.client import Partition
from fedscout.engine.data.federation import Federation
from fedscout.engine.grid.ray_grid import INLINE_BYTES, RayGrid, RayHosts, start_hosts
from fedscout.engine.messages.calls import Session
from fedscout.engine.trials.checkpoint import CheckpointStore
from fedscout.engine.trials.ray_runner import RayRunner
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.trial import run_trial
from tests.engine.choices import FEDADAM, FEDAVG, FLOWER_CHOICES, Variates, spec_of
from tests.engine.trials.test_resume import assert_same
from tests.marked_processes import MarkedProcesses, short_folder

NUM_NODES, CPUS_A_NODE = 4, 4
NUM_HOSTS = 2 * NUM_NODES
NUM_CLIENTS, CLIENT_ROWS, NUM_FEATURES = 64, 16, 256
DATA_BYTES = 32 * 2**20
NUM_ROUNDS = 3
STORE_BYTES = 200 * 2**20


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


class _WatchedGrid(RayGrid):
    """Counts calls and weighs their results."""

    def __init__(self, hosts: RayHosts, session: Session, traffic: SimpleNamespace) -> None:
        super().__init__(hosts, session)
        self._traffic = traffic

    def _start(self, *arguments: Any) -> Any:
        self._traffic.calls += 1
        return super()._start(*arguments)

    def _gather(self, handles: Sequence[Any], timeout: float | None) -> list[Any] | None:
        results = super()._gather(handles, timeout)
        self._traffic.result_bytes += [len(pickle.dumps(result)) for result in results or []]
        return results


def _traffic(hosts: RayHosts) -> SimpleNamespace:
    """Run the trial `merged` from this process; count arrays put into the store, calls, and bytes of their results."""
    import ray

    traffic = SimpleNamespace(models_stored=0, calls=0, result_bytes=[])
    put, spec = ray.put, TRIALS["merged"]

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


def stored_bytes() -> list[int]:
    """Return the bytes in the object store of each node."""
    import ray
    from ray._private.internal_api import node_stats

    stores = [
        node_stats(node["NodeManagerAddress"], node["NodeManagerPort"], include_memory_info=False).store_stats
        for node in ray.nodes()
    ]
    return [int(store.object_store_bytes_used) for store in stores]


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


def observe() -> SimpleNamespace:
    """Do on one raylet with one host, and on four with eight hosts, what is to be compared."""
    federation = large_federation()
    with _cluster() as cluster:
        one_host = start_hosts(federation, {}, 1)
        one_node, one_node_traffic = _results(one_host), _traffic(one_host)

        for _ in range(NUM_NODES - 1):
            cluster.add_node(num_cpus=CPUS_A_NODE, object_store_memory=STORE_BYTES)
        cluster.wait_for_nodes()
        before = stored_bytes()
        one_host.stop()
        hosts = start_hosts(federation, {}, NUM_HOSTS)
        grown = [after - earlier for after, earlier in zip(stored_bytes(), before, strict=True)]
        hosts_on_node = _hosts_on_node(hosts)
        four_nodes, four_nodes_traffic = _results(hosts), _traffic(hosts)
        hosts.stop()
        return SimpleNamespace(
            num_parameters=hosts.facts.layout.size,
            one_node=one_node,
            four_nodes=four_nodes,
            hosts_on_node=hosts_on_node,
            data_bytes_on_node=grown,
            one_node_traffic=one_node_traffic,
            four_nodes_traffic=four_nodes_traffic,
        )


def main() -> None:
    """Observe, and write down what was seen."""
    Path(sys.argv[1]).write_bytes(pickle.dumps(observe()))


# -- Four raylets give the bits of one; data lie once on a node, models travel once a job, partial sums come back ------


REPOSITORY = Path(__file__).resolve().parents[3]
OBSERVE_SECONDS = 270.0

pytestmark = [pytest.mark.stress, pytest.mark.ray, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def seen() -> Iterator[SimpleNamespace]:
    """Yield what was observed, and the processes that had to be killed."""
    with short_folder() as folder, MarkedProcesses() as processes:
        code = "from tests.engine.grid.test_cluster import main; main()"
        process = processes.start(
            [sys.executable, "-c", code, str(folder / "seen")],
            # Ray notes its latest address below RAY_TMPDIR, where nobody else looks for one to join.
            environment={
                **os.environ,
                "PYTHONPATH": str(REPOSITORY / "src"),
                "RAY_TMPDIR": str(folder),
                "RAY_prestart_worker_first_driver": "0",  # a process a CPU that nobody needs here
            },
            log=folder / "log",
            cwd=REPOSITORY,
        )
        assert process.wait(OBSERVE_SECONDS) == 0, (folder / "log").read_text(errors="replace")
        processes.end()
        observed = vars(pickle.loads((folder / "seen").read_bytes()))
        yield SimpleNamespace(**observed, left_over=processes.stubborn)


@pytest.mark.parametrize("name", TRIALS)
def test_four_raylets_give_the_bits_of_one(seen: SimpleNamespace, name: str) -> None:
    one, four = seen.one_node[name], seen.four_nodes[name]

    assert four.status == "completed"
    assert four.num_rounds == NUM_ROUNDS
    assert_same(four, one)
    assert len({result.vector.tobytes() for result in seen.four_nodes.values()}) == len(TRIALS), "no trial does nothing"


def test_hosts_are_spread_over_the_nodes(seen: SimpleNamespace) -> None:
    """One node has CPUs for half of them."""
    assert seen.hosts_on_node == [NUM_HOSTS // NUM_NODES] * NUM_NODES


def test_data_lie_once_on_each_node(seen: SimpleNamespace) -> None:
    """Two hosts a node share them; what else is in a store, models and answers, is small beside 32 MiB."""
    assert [round(grown / DATA_BYTES) for grown in seen.data_bytes_on_node] == [1] * NUM_NODES


def test_a_large_model_is_stored_once_a_job(seen: SimpleNamespace) -> None:
    """A round is two jobs at most, training and evaluation, for any number of hosts."""
    assert 4 * seen.num_parameters > INLINE_BYTES
    assert NUM_ROUNDS <= seen.four_nodes_traffic.models_stored <= 2 * NUM_ROUNDS
    assert seen.four_nodes_traffic.models_stored == seen.one_node_traffic.models_stored


def test_a_call_a_host_and_one_partial_sum_come_back(seen: SimpleNamespace) -> None:
    """A sum is an int64 a parameter. A host's 8 clients' own models would be four times that."""
    one, four = seen.one_node_traffic, seen.four_nodes_traffic
    partial_sum = 8 * seen.num_parameters

    assert NUM_CLIENTS // NUM_HOSTS * 4 * seen.num_parameters == 4 * partial_sum
    assert one.calls <= 2 * NUM_ROUNDS
    assert four.calls == NUM_HOSTS * one.calls
    for num_hosts, traffic in ((1, one), (NUM_HOSTS, four)):
        assert len(traffic.result_bytes) == traffic.calls
        assert max(traffic.result_bytes) < 1.1 * partial_sum
        assert sum(size > 0.5 * partial_sum for size in traffic.result_bytes) == NUM_ROUNDS * num_hosts


def test_the_cluster_ends_with_its_process(seen: SimpleNamespace) -> None:
    assert seen.left_over == []
