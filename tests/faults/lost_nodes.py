"""Nodes of a Ray cluster killed under a trial; a process of its own, as it has a Ray of its own.

A raylet is killed while a host of its node trains, an agent (with which its raylet ends) between two rounds, and a
raylet whose node holds the only copy of answers that nobody has fetched, or of what its clients keep. No node is
replaced: who is left takes over.

Usage: `python -m tests.faults.lost_nodes FOLDER`; the last line printed is JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedscout.engine.client.host import ClientHost
from fedscout.engine.errors import LostStatesError
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.grid.ray_grid import RayGrid, RayHosts, start_hosts
from fedscout.engine.messages.calls import Session
from fedscout.engine.messages.contents import claim_task_identity, flat_record, node_of
from fedscout.engine.trials.checkpoint import CheckpointStore
from fedscout.engine.trials.record import Trial
from fedscout.engine.trials.trial import run_trial
from tests.engine.choices import FEDAVG, INDIVIDUAL, Variates, rounds_of, spec_of
from tests.engine.federations import huge, uneven_federation
from tests.faults.mortal import Counted, MortalCount
from tests.faults.raylets import NODE, agent_of, cluster_of, kill_node, num_alive, raylet_of, wait_for_nodes

NUM_ROUNDS = 4


def told(result: Trial, grid: HostGrid[Any]) -> dict[str, Any]:
    """Return all of a result that may not depend on what was lost."""
    return {
        "status": result.status,
        "error": result.error,
        "rounds": repr(rounds_of(result)),
        "fitness": result.fitness,
        "vector": hashlib.sha256(result.vector.tobytes()).hexdigest(),
        "counts": {str(client): float(state["count"][0]) for client, state in grid.client_states.items()},
    }


def answers(replies: Any) -> dict[str, str]:
    """Return a digest of each client's trained model."""
    digests = {}
    for reply in replies:
        if reply.has_content():
            (record,) = reply.content.array_records.values()
            content = b"".join(array.numpy().tobytes() for array in record.values())
            digests[str(reply.metadata.src_node_id)] = hashlib.sha256(content).hexdigest()
    return digests


def without_raylet(hosts: RayHosts, node: Any, folder: Path) -> dict[str, Any]:
    """Kill a raylet, and the host that trains there, in the middle of a step."""
    mortal = MortalCount(folder=str(folder), raylet=raylet_of(node).pid)
    spec = spec_of(replace(FEDAVG, algorithm=mortal), num_rounds=NUM_ROUNDS)
    grid = RayGrid(hosts, spec.session)
    return told(run_trial(spec, grid, CheckpointStore(folder / "checkpoints", 1)), grid)


def without_agent(hosts: RayHosts, node: Any) -> dict[str, Any]:
    """Kill an agent of a node between two rounds, and wait until Ray has given the node up."""
    spec = spec_of(replace(FEDAVG, algorithm=Counted()), num_rounds=NUM_ROUNDS)
    grid = RayGrid(hosts, spec.session)
    left = num_alive() - 1

    def kill(done: int) -> None:
        if done == 2:
            agent_of(node).kill()
            wait_for_nodes(left)

    return told(run_trial(spec, grid, on_round=kill), grid)


def lost_answers(cluster: Any) -> tuple[dict[str, str], dict[str, str]]:
    """Kill the node where a host has finished its work and keeps the answers; return them and the undisturbed ones."""
    import ray
    from flwr.app import ConfigRecord, Message, RecordDict

    federation = uneven_federation(model=huge)
    session = Session(seed=3, needs=INDIVIDUAL)
    local = LocalGrid(ClientHost(federation, {}), session=session)
    node = cluster.add_node(**NODE)
    hosts = start_hosts(federation, {}, num_alive())
    content = RecordDict({"arrays": flat_record(local.initial_vector(3)), "config": ConfigRecord({"server-round": 1})})
    messages = [Message(content, node_of(client), "train") for client in range(federation.num_clients)]
    grid = RayGrid(hosts, session)
    ids = list(grid.push_messages(messages))
    homes = {ray.get(actor.process_id.remote()) for actor in hosts.actors}  # answered after the training before it
    left = num_alive() - 1
    assert homes & set(kill_node(cluster, node))
    wait_for_nodes(left)
    deadline = time.monotonic() + 150  # Ray takes a minute to place a host anew once three nodes are lost
    replies: list[Any] = []
    while not replies and time.monotonic() < deadline:
        replies = list(grid.pull_messages(ids))
        time.sleep(0.05)
    hosts.stop()
    return answers(replies), answers(local.send_and_receive(messages))


def lost_states(cluster: Any, folder: Path) -> dict[str, Any]:
    """Kill the node where a third of the clients' large states lie, after round 3; go on from round 2."""
    federation = uneven_federation(model=huge)
    spec = spec_of(replace(FEDAVG, algorithm=Variates()), num_rounds=NUM_ROUNDS)
    expected = run_trial(spec, LocalGrid(ClientHost(federation, {}), session=spec.session))
    node = cluster.add_node(**NODE)
    hosts = start_hosts(federation, {}, num_alive())
    left = num_alive() - 1
    rounds: list[int] = []

    def kill(done: int) -> None:
        rounds.append(done)
        if done == 3 and rounds.count(3) == 1:
            kill_node(cluster, node)
            wait_for_nodes(left)

    store, error = CheckpointStore(folder / "states", every_rounds=2), ""
    try:
        result = run_trial(spec, RayGrid(hosts, spec.session), store, kill)
    except LostStatesError as lost:
        error = type(lost).__name__
        result = run_trial(spec, RayGrid(hosts, spec.session), store, kill)
    hosts.stop()
    same = bool((result.vector == expected.vector).all()) and rounds_of(result) == rounds_of(expected)
    return {"error": error, "rounds": rounds, "same": same}


def main(folder: Path) -> Mapping[str, Any]:
    """Lose one node after the other; return what came out each time."""
    claim_task_identity()
    spec = spec_of(replace(FEDAVG, algorithm=Counted()), num_rounds=NUM_ROUNDS)
    local = LocalGrid(ClientHost(uneven_federation(), {}), session=spec.session)
    found: dict[str, Any] = {"undisturbed": told(run_trial(spec, local), local)}
    with cluster_of(3) as cluster:
        hosts = start_hosts(uneven_federation(), {}, 3)
        first, second = cluster.worker_nodes
        alive = {"at first": num_alive()}
        found["without raylet"] = without_raylet(hosts, first, folder)
        wait_for_nodes(2)
        alive["without raylet"] = num_alive()
        found["without agent"] = without_agent(hosts, second)
        alive["without agent"] = num_alive()
        hosts.stop()
        found["answers lost"], found["answers undisturbed"] = lost_answers(cluster)
        found["states lost"] = lost_states(cluster, folder)
    return {**found, "nodes": alive}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
