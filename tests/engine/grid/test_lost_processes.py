"""Processes that die in the middle of a trial: it ends with the same bits, or with a reason."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from fedscout.engine.client.host import ClientHost
from fedscout.engine.data.client import Answer, QueryInputs, RowAggregate
from fedscout.engine.errors import EngineError
from fedscout.engine.grid.ray_grid import RayGrid, RayHosts, start_hosts
from fedscout.engine.messages.contents import node_of
from fedscout.engine.trials.checkpoint import CheckpointStore
from fedscout.engine.trials.ray_runner import RayRunner
from tests.engine.choices import FEDAVG, Variates, spec_of
from tests.engine.federations import SIZES, uneven_federation
from tests.engine.grid.test_local_grid import answered, failed
from tests.engine.results import local_result, ray_result
from tests.engine.trials.test_resume import assert_same

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(120)]


def slow_counts(inputs: QueryInputs) -> Answer:
    """A query that takes a tenth of a second a client."""
    time.sleep(0.1)
    return {"rows": RowAggregate(np.array([len(inputs.data)]), len(inputs.data))}


@pytest.fixture(scope="module")
def mortal_hosts(ray_session: None) -> Iterator[RayHosts]:
    started = start_hosts(uneven_federation(), {"slow": slow_counts}, 2)
    yield started
    started.stop()


def process_of(hosts: RayHosts, index: int) -> int:
    import ray

    return int(ray.get(hosts.actors[index].process_id.remote()))


def kill_after(hosts: RayHosts, rounds: int, index: int) -> Callable[[int], None]:
    """Return what kills a host once that many rounds are done."""

    def on_round(done: int) -> None:
        if done == rounds:
            os.kill(process_of(hosts, index), signal.SIGKILL)

    return on_round


@pytest.mark.stress
def test_a_host_killed_between_rounds_changes_nothing(mortal_hosts: RayHosts, host: ClientHost) -> None:
    spec = spec_of(replace(FEDAVG, algorithm=Variates()), num_rounds=4)
    before = process_of(mortal_hosts, 0)

    result = ray_result(spec, mortal_hosts, on_round=kill_after(mortal_hosts, 2, 0))

    assert process_of(mortal_hosts, 0) != before
    assert_same(result, local_result(spec, host))


@pytest.mark.stress
def test_a_host_killed_at_work_repeats_it(mortal_hosts: RayHosts, host: ClientHost) -> None:
    """Its clients need at least 0.2 s; it dies after 0.1."""
    content = RecordDict({"arrays": ArrayRecord(), "config": ConfigRecord({"function": "slow"})})
    messages = [Message(content, node_of(client), "query") for client in range(len(SIZES))]
    victim = process_of(mortal_hosts, 1)
    grid = RayGrid(mortal_hosts)

    ids = list(grid.push_messages(messages))
    time.sleep(0.1)
    assert list(grid.pull_messages(ids)) == []
    os.kill(victim, signal.SIGKILL)
    deadline = time.monotonic() + 60
    replies: list[Message] = []
    while not replies and time.monotonic() < deadline:
        time.sleep(0.05)
        replies = list(grid.pull_messages(ids))

    rows = {client: int(content["arrays"]["rows"].numpy()[0]) for client, content in answered(replies).items()}
    assert rows == {client: size for client, size in enumerate(SIZES) if size >= 5}
    assert len(failed(replies)) == len(SIZES) - len(rows)
    assert process_of(mortal_hosts, 1) != victim


class Diary(FedAvg):
    """Writes down every round that it configures; in round 3, the first time, it has a mishap."""

    def __init__(self, diary: str, **counts: Any) -> None:
        super().__init__(**counts)
        self.diary = Path(diary)

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        with self.diary.open("a") as file:
            file.write(f"{server_round}\n")
        if server_round == 3 and self.diary.read_text().count("3") == 1:
            self.mishap(grid)
        return super().configure_train(server_round, arrays, config, grid)

    def mishap(self, grid: Any) -> None:
        raise NotImplementedError


class DiesOnce(Diary):
    """Its own process dies."""

    def mishap(self, grid: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def test_hosts_lost_for_good_are_no_result_of_the_trial(mortal_hosts: RayHosts) -> None:
    """The last test of these hosts: they are ended, not killed, so nothing brings them back."""
    spec = spec_of(FEDAVG)
    rounds: list[int] = []

    def stop(done: int) -> None:
        rounds.append(done)
        mortal_hosts.stop()

    with pytest.raises(EngineError, match="host"):
        ray_result(spec, mortal_hosts, on_round=stop)
    assert rounds == [1]

    runner = RayRunner(mortal_hosts, CheckpointStore(None), parallel=1)
    with pytest.raises(EngineError, match="task"):
        list(runner.run([spec]))
