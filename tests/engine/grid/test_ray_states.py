"""Processes that die in a trial, and large states and models as objects: the same bits, and nothing is left."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg
from torch import Tensor

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientResults, Clients, LocalRun
from fedscout.engine.errors import EngineError
from fedscout.engine.grid import ray_grid
from fedscout.engine.grid.host_grid import StateReference
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.grid.ray_grid import RayGrid, RayHosts
from fedscout.engine.messages.calls import EngineNeeds
from fedscout.engine.messages.contents import replied_auxiliary
from fedscout.engine.messages.keys import NUM_EXAMPLES_KEY
from fedscout.engine.trials.checkpoint import CheckpointStore
from fedscout.engine.trials.ray_runner import RayRunner, start_trial
from fedscout.engine.trials.trial import run_trial
from tests.engine.choices import FEDAVG, FLOWER_CHOICES, INDIVIDUAL, Choice, Participations, Variates, spec_of
from tests.engine.federations import ABLE, huge, uneven_federation
from tests.engine.grid.test_cluster import stored_bytes
from tests.engine.results import local_result, ray_result, started_hosts
from tests.engine.trials.test_resume import assert_same
from tests.faults.mortal import Counted, MortalCount, deaths
from tests.ray_processes import NUM_HOSTS

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(120)]


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


def test_hosts_lost_for_good_are_no_result_of_the_trial(ray_session: None) -> None:
    """They are ended, not killed, so nothing brings them back."""
    spec, rounds = spec_of(FEDAVG), []
    with started_hosts(uneven_federation(), 2) as mortal:

        def stop(done: int) -> None:
            rounds.append(done)
            mortal.stop()

        with pytest.raises(EngineError, match="host"):
            ray_result(spec, mortal, on_round=stop)
        assert rounds == [1]
        with pytest.raises(EngineError, match="task"):
            [*RayRunner(mortal, CheckpointStore(None), parallel=1).run([spec])]


# -- Large states and models, an object a client: the bits of what comes by value, whoever dies, and nothing is left ---


NUM_ROUNDS = 4


@dataclass(frozen=True)
class Own(ClientAlgorithm):
    """Every client goes on from a model of its own, by which it is scored."""

    personal = True

    def train(self, run: LocalRun) -> ClientResults:
        trained = run.descend(run.kept("own", run.received))
        return ClientResults(trained, trained.vectors, {"own": trained.vectors})

    def scored(self, clients: Clients) -> Tensor:
        return clients.kept("own", clients.received)


class LosesStates(Diary):
    """The clients' states are gone."""

    def mishap(self, grid: Any) -> None:
        from ray._private.internal_api import free

        free([state.reference for state in grid.client_states.values()])


@dataclass(frozen=True)
class SendsDrift(Variates):
    """Its clients send how far they moved beside their models."""

    auxiliary = MappingProxyType({"drift": NUM_EXAMPLES_KEY})

    def train(self, run: LocalRun) -> ClientResults:
        finished = super().train(run)
        return replace(finished, auxiliary={"drift": finished.vectors - run.received})


class ByDrift(FedAvg):
    """Goes half of the first client's way, and a hundredth of each other one's."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        replies = list(replies)
        arrays, metrics = super().aggregate_train(server_round, replies)
        first, *others = (replied_auxiliary(reply.content)["drift"] for reply in replies if reply.has_content())
        moved = arrays["flat"].numpy() + np.float32(0.5) * first + np.float32(0.01) * np.sum(others, axis=0)
        return ArrayRecord({"flat": Array(moved)}), metrics


WIDE_BYTES = 4 * 300_003


@pytest.fixture(params=[ray_grid.STATES_BYTES_TOGETHER, 2 * WIDE_BYTES], ids=["all together", "two together"])
def together(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many clients of a host are trained by one call."""
    monkeypatch.setattr(ray_grid, "STATES_BYTES_TOGETHER", request.param)


@pytest.fixture(scope="module", params=NUM_HOSTS, ids=str)
def hosts(ray_session: None, request: pytest.FixtureRequest) -> Iterator[RayHosts]:
    with started_hosts(uneven_federation(model=huge), request.param) as started:
        yield started


@pytest.fixture(scope="module")
def wide_host() -> ClientHost:
    return ClientHost(uneven_federation(model=huge), {})


def settled_bytes(settled: Callable[[int], bool]) -> int:
    """Return what is stored once that is settled: Ray frees soon after, what a killed trial had in a minute."""
    gc.collect()
    deadline = time.monotonic() + 60
    while not settled(stored := sum(stored_bytes())) and time.monotonic() < deadline:
        time.sleep(0.05)
    return stored


@pytest.mark.stress
def test_one_state_a_client_lies_there_between_rounds_and_none_after_the_trial(hosts: RayHosts) -> None:
    """Beside the states there are the model that was sent and the one that came of it: nothing grows with rounds."""
    spec = spec_of(replace(FEDAVG, algorithm=Variates()), num_rounds=NUM_ROUNDS)
    without = settled_bytes(lambda stored: stored < WIDE_BYTES)
    between: list[int] = []

    def models(stored: int) -> int:
        return round((stored - without) / WIDE_BYTES)

    def note(_: int) -> None:
        between.append(models(settled_bytes(lambda stored: models(stored) <= len(ABLE) + 2)))

    ray_result(spec, hosts, on_round=note)
    after = settled_bytes(lambda stored: stored <= without)

    assert between == [len(ABLE) + 2] * NUM_ROUNDS
    assert after <= without


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("together")
@pytest.mark.parametrize("num_sampled", [7, 3])
@pytest.mark.parametrize("algorithm", [Variates(), Own()], ids=["trains", "is scored"])
def test_states_by_reference_have_the_bits_of_states_by_value(
    hosts: RayHosts, wide_host: ClientHost, algorithm: ClientAlgorithm, num_sampled: int
) -> None:
    spec = spec_of(replace(FEDAVG, algorithm=algorithm), num_rounds=NUM_ROUNDS, num_sampled=num_sampled)
    grid, local = RayGrid(hosts, spec.session), LocalGrid(wide_host, session=spec.session)
    seen: list[Any] = []

    result = run_trial(spec, grid, on_round=lambda _: seen.append((dict(grid.client_states), grid.state_values())))

    assert_same(result, run_trial(spec, local))
    references, values = seen[-1]
    assert {type(state) for state in references.values()} == {StateReference}
    assert values.keys() == local.client_states.keys()
    for client, state in local.client_states.items():
        assert all(np.array_equal(values[client][name], array) for name, array in state.items())


@pytest.mark.stress
@pytest.mark.parametrize("limit", [None, 60.0], ids=["no limit", "limit"])
@pytest.mark.parametrize("name", ["krum", "fedmedian", "states", "states, each alone", "drift", "drift, each alone"])
def test_large_models_that_come_one_by_one_have_the_bits_of_those_in_this_process(
    hosts: RayHosts, wide_host: ClientHost, name: str, limit: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name.endswith("each alone"):
        monkeypatch.setattr(ray_grid, "STATES_BYTES_TOGETHER", 1)
    with_states = replace(FEDAVG, wants=INDIVIDUAL, algorithm=Variates())
    by_drift = Choice(ByDrift, wants=INDIVIDUAL, algorithm=SendsDrift())
    choice = by_drift if name.startswith("drift") else FLOWER_CHOICES.get(name, with_states)
    spec = spec_of(choice, round_timeout_seconds=limit)
    assert_same(ray_result(spec, hosts), local_result(spec, wide_host))


def test_an_empty_state_forgets_a_large_one(hosts: RayHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_grid, "LARGE_STATE_BYTES", 1)
    spec = spec_of(replace(FEDAVG, algorithm=Participations(forget_at=2)), num_rounds=3)
    grid = RayGrid(hosts, spec.session)
    kept: list[list[int]] = []

    run_trial(spec, grid, on_round=lambda _: kept.append(sorted(grid.client_states)))

    assert kept == [list(ABLE), [], list(ABLE)]


@pytest.mark.stress
def test_a_host_killed_between_rounds_takes_no_state_with_it(hosts: RayHosts, wide_host: ClientHost) -> None:
    """The checkpoint folder is none: a trial that lost a state could not go on."""
    import ray

    spec = spec_of(replace(FEDAVG, algorithm=Variates()), num_rounds=NUM_ROUNDS)

    def kill(done: int) -> None:
        if done == 2:
            os.kill(ray.get(hosts.actors[0].process_id.remote()), signal.SIGKILL)

    assert_same(ray_result(spec, hosts, on_round=kill), local_result(spec, wide_host))


@pytest.mark.stress
@pytest.mark.usefixtures("together")
@pytest.mark.parametrize("wants", [FEDAVG.wants, INDIVIDUAL], ids=["large states", "large models"])
def test_a_host_killed_while_it_trains_repeats_it_and_counts_once(
    hosts: RayHosts, wide_host: ClientHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wants: EngineNeeds
) -> None:
    if wants is not INDIVIDUAL:
        monkeypatch.setattr(ray_grid, "LARGE_STATE_BYTES", 1)
    algorithms = (MortalCount(folder=str(tmp_path)), Counted())
    choices = (replace(FEDAVG, wants=wants, algorithm=algorithm) for algorithm in algorithms)
    mortal, sound = (spec_of(choice, num_rounds=NUM_ROUNDS) for choice in choices)

    assert_same(ray_result(mortal, hosts), local_result(sound, wide_host))
    assert deaths(tmp_path) == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mishap", [LosesStates, DiesOnce])
def test_lost_states_are_restored(hosts: RayHosts, wide_host: ClientHost, tmp_path: Path, mishap: type[FedAvg]) -> None:
    import ray

    diary = tmp_path / "diary"
    diary.touch()
    choice = Choice(mishap, {"diary": str(diary)}, algorithm=Variates())
    store = CheckpointStore(tmp_path / "checkpoints", every_rounds=1)

    result = ray.get(start_trial(hosts, spec_of(choice, num_rounds=NUM_ROUNDS), store))

    assert diary.read_text().split() == ["1", "2", "3", "3", "4"]
    assert_same(result, local_result(spec_of(replace(FEDAVG, algorithm=Variates()), num_rounds=NUM_ROUNDS), wide_host))
