"""Processes killed with -9, or that hang, in the middle of their work: the bits of the undisturbed result."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor, nn

from fedscout.engine.client.host import ClientHost
from fedscout.engine.data.federation import Federation
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.grid.ray_grid import RayGrid, RayHosts
from fedscout.engine.messages.contents import claim_task_identity, send_query
from fedscout.engine.trials.checkpoint import CheckpointStore
from fedscout.engine.trials.ray_runner import RayRunner
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.trial import run_trial
from tests.commands import output_of
from tests.engine.choices import FEDAVG, spec_of
from tests.engine.federations import ABLE, NUM_CLASSES, NUM_FEATURES, uneven_federation
from tests.engine.results import local_result, started_hosts
from tests.engine.trials.test_resume import assert_same
from tests.faults.mortal import Counted, Moment, MortalCount, deaths

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(240)]

COUNTED = replace(FEDAVG, algorithm=Counted())
NUM_ROUNDS = 4


@pytest.fixture(autouse=True)
def _identity() -> None:
    claim_task_identity()


@pytest.fixture
def hosts(ray_session: None) -> Iterator[RayHosts]:
    with started_hosts(uneven_federation(), 2) as started:
        yield started


@pytest.fixture(scope="module")
def host() -> ClientHost:
    return ClientHost(uneven_federation(), {})


def undisturbed(spec: TrialSettings, host: ClientHost) -> tuple[Trial, Mapping[int, Any]]:
    """Return a trial's result in this process, and what its clients kept."""
    grid = LocalGrid(host, session=spec.session)
    return run_trial(spec, grid), grid.client_states


def counts(states: Mapping[int, Any]) -> dict[int, float]:
    return {client: float(state["count"][0]) for client, state in states.items()}


def processes(hosts: RayHosts) -> list[int]:
    import ray

    return [int(process) for process in ray.get([actor.process_id.remote() for actor in hosts.actors])]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("moment", "times"), [("prepare", 1), ("correct", 1), ("finish", 1), ("correct", 4)])
def test_a_host_killed_while_it_trains_repeats_it_and_counts_once(
    hosts: RayHosts, host: ClientHost, tmp_path: Path, moment: Moment, times: int
) -> None:
    before = processes(hosts)
    mortal = MortalCount(folder=str(tmp_path), moment=moment, deaths=times)
    spec = spec_of(replace(FEDAVG, algorithm=mortal), num_rounds=NUM_ROUNDS)
    grid = RayGrid(hosts, spec.session)

    result = run_trial(spec, grid)

    expected, kept = undisturbed(spec_of(COUNTED, num_rounds=NUM_ROUNDS), host)
    assert deaths(tmp_path) == times
    assert 1 <= len(set(processes(hosts)) - set(before)) <= times
    assert_same(result, expected)
    assert counts(grid.client_states) == counts(kept) == dict.fromkeys(ABLE, NUM_ROUNDS)


@pytest.mark.stress
def test_without_its_board_a_study_knows_less_of_its_progress_alone(hosts: RayHosts, host: ClientHost) -> None:
    """The board dies as soon as it told of a round; the trials and what comes after them do not notice."""
    specs = [spec_of(FEDAVG, num_rounds=80, phase=str(number)) for number in range(2)]
    runner = RayRunner(hosts, CheckpointStore(None), parallel=2)
    killed: list[int] = []

    def kill_board(rounds: Mapping[str, int]) -> None:
        boards = [one for one in psutil.Process().children(recursive=True) if one.name().startswith("ray::_Board")]
        if rounds and boards and not killed:
            boards[0].kill()
            killed.append(boards[0].pid)

    results = dict(runner.run(specs, kill_board))

    assert killed
    expected, _ = undisturbed(specs[0], host)
    for result in results.values():
        assert_same(result, expected)


@pytest.mark.stress
def test_lost_nodes_change_nothing(tmp_path: Path) -> None:
    """On a Ray of three raylets, in a process of its own; each loss takes a node with its host for good."""
    told = json.loads(output_of("tests.faults.lost_nodes", str(tmp_path), timeout=280)[-1])

    assert told["nodes"] == {"at first": 3, "without raylet": 2, "without agent": 1}
    assert told["without raylet"] == told["undisturbed"]
    assert told["without agent"] == told["undisturbed"]
    assert told["answers lost"] == told["answers undisturbed"]
    assert told["states lost"] == {"error": "LostStatesError", "rounds": [1, 2, 3, 3, 4], "same": True}
    assert set(told["undisturbed"]["counts"].values()) == {NUM_ROUNDS}


# -- A client that hangs: its host is replaced, the others' work is done, and no trial beside it is harmed -------------


HANGS = 1
LIMIT_SECONDS = 2.0
MARK = 900.0
"""A feature value that only the client that hangs has."""


class Marked(nn.Linear):
    """Meets the marked rows in training."""

    def __init__(self) -> None:
        super().__init__(NUM_FEATURES, NUM_CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        if self.training and bool((rows[:, 0] > MARK).any()):
            self.meet()
        return super().forward(rows)


class Stuck(Marked):
    """Never comes back from them."""

    def meet(self) -> None:
        time.sleep(3600)


class Refusing(Marked):
    """Raises where the other hangs."""

    def meet(self) -> None:
        raise RuntimeError("no")


def marked_federation() -> Federation:
    federation = uneven_federation()
    features = federation.features.copy()
    features[federation.partition.client(HANGS), 0] = MARK + 1
    return replace(federation, features=features, model=Stuck)


@pytest.fixture
def stuck_hosts(ray_session: None) -> Iterator[RayHosts]:
    with started_hosts(marked_federation(), 2) as started:
        yield started


@pytest.mark.stress
def test_it_is_left_out_of_each_round_and_trials_beside_it_are_not_harmed(stuck_hosts: RayHosts) -> None:
    """Two trials at once on the same hosts: both are as if the client had failed, to the bit."""
    torch.manual_seed(0)
    specs = [spec_of(FEDAVG, num_rounds=2, seed=seed, round_timeout_seconds=LIMIT_SECONDS) for seed in (1, 2)]
    results = dict(RayRunner(stuck_hosts, CheckpointStore(None), parallel=2).run(specs))

    for position, spec in enumerate(specs):
        expected = local_result(spec, replace(marked_federation(), model=Refusing))
        found = results[position]
        reasons = {key: reason for key, reason in found.dropped_clients.items() if key.endswith(f":{HANGS}")}
        assert [*reasons] == ["1:1", "2:1"]
        assert all(reason.endswith(" 2 s (train)") for reason in reasons.values())
        assert set(found.dropped_clients) == set(expected.dropped_clients)
        assert_same(replace(found, dropped_clients={}), replace(expected, dropped_clients={}))


@pytest.mark.stress
def test_after_a_trial_s_own_time_limit_its_hosts_serve_others(stuck_hosts: RayHosts) -> None:
    """The trial is over in time, and the host that it left hanging is back soon."""
    spec = spec_of(FEDAVG, num_rounds=2, timeout_seconds=LIMIT_SECONDS)
    started = time.monotonic()

    result = run_trial(spec, RayGrid(stuck_hosts, spec.session))

    assert re.match("round 1: .* 2 s$", str(result.error))
    assert time.monotonic() - started < 10 * LIMIT_SECONDS
    answers = send_query(RayGrid(stuck_hosts), "label-counts", {"offset": np.zeros(NUM_CLASSES)})
    assert len(answers.arrays) + len(answers.refused) == stuck_hosts.facts.num_clients
    assert HANGS in answers.arrays
