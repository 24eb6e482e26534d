"""Ray changes where the work is done, and not one bit of what comes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.client_table import SettingsCell, SettingsLookup, SettingsTable
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.grid import ray_grid
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.grid.ray_grid import RayCall, RayGrid, RayHosts
from fedscout.engine.messages.calls import EngineNeeds, Session
from fedscout.engine.messages.contents import flat_record
from fedscout.engine.metrics import Auroc
from fedscout.engine.trials.checkpoint import CheckpointStore
from fedscout.engine.trials.ray_runner import RayRunner
from tests.engine.choices import FEDADAM, FEDAVG, FLOWER_CHOICES, Choice, RaisingFedAvg, Variates, spec_of
from tests.engine.federations import uneven_federation
from tests.engine.grid.test_local_grid import answered, failed, messages
from tests.engine.results import local_result, ray_result, started_hosts
from tests.engine.trials.test_resume import assert_same

pytestmark = [pytest.mark.ray, pytest.mark.timeout(120)]

NO_STORE = CheckpointStore(None)
TRAINING = LocalTraining(local_epochs=2, batch_size=8, learning_rate=0.1)
CELLS = [(0.0, 10, 0.3, 4, 1), (0.0, 30, 0.05, 8, 3), (1.0, 10, 0.1, 8, 2), (1.0, 30, 0.2, 16, 1)]
TABLE = SettingsLookup(SettingsTable(tuple(SettingsCell(*cell) for cell in CELLS), threshold=0.4), epsilon=1.0)
TRIALS = {
    "merged": spec_of(FEDAVG),
    "adaptive, sampled": spec_of(FEDADAM, num_sampled=4, num_rounds=4),
    "individual": spec_of(FLOWER_CHOICES["krum"]),
    "named": spec_of(FLOWER_CHOICES["fedmedian"]),
    "with client states": spec_of(replace(FEDAVG, algorithm=Variates())),
    "failing": spec_of(Choice(RaisingFedAvg)),
    "loop": spec_of(FEDAVG, backend="loop"),
    "with a table": spec_of(FEDAVG, client_table=TABLE),
    "few of them scored": spec_of(replace(FEDAVG, algorithm=Variates()), num_scored=3),
    "with a metric": spec_of(FEDAVG, metric=Auroc(), worst_clients=True),
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(1, marks=pytest.mark.stress), 2, pytest.param(4, marks=pytest.mark.stress)],
    ids=str,
)
def hosts(ray_session: None, request: pytest.FixtureRequest) -> Iterator[RayHosts]:
    with started_hosts(uneven_federation(), request.param) as started:
        yield started


def ask_all(grid: HostGrid[Any]) -> list[tuple[dict[int, RecordDict], dict[int, str]]]:
    """Send every client a train, an evaluate and a query message, two rounds of each."""
    vector = grid.initial_vector(3)
    answers = []
    for server_round in (1, 2):
        model = {"arrays": flat_record(vector * server_round), "config": {"server-round": server_round}}
        offset = ArrayRecord({"offset": Array(np.full(3, 0.5 * server_round))})
        question = {"arrays": offset, "config": {"function": "label-counts"}}
        for kind, content in (("train", model), ("evaluate", model), ("query", question)):
            replies = list(grid.send_and_receive(messages(grid, kind, **content)))
            answers.append((answered(replies), failed(replies)))
    return answers


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("inline", [True, False], ids=["inline", "object store"])
@pytest.mark.parametrize("merge_on_hosts", [True, False])
@pytest.mark.parametrize("replies", ["merged", "individual"])
def test_replies_are_those_of_the_local_grid(
    hosts: RayHosts, host: ClientHost, monkeypatch: pytest.MonkeyPatch, replies: str, merge_on_hosts: bool, inline: bool
) -> None:
    if not inline:
        monkeypatch.setattr("fedscout.engine.grid.ray_grid.INLINE_BYTES", 0)
    session = Session(seed=3, training=TRAINING, needs=EngineNeeds(replies=replies))

    by_ray = ask_all(RayGrid(hosts, session, merge_on_hosts))
    by_local = ask_all(LocalGrid(host, session=session))

    assert by_ray == by_local


def test_a_stored_model_is_the_round_s(hosts: RayHosts, host: ClientHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rounds, each with a new array that may take the place of the last in memory."""
    monkeypatch.setattr("fedscout.engine.grid.ray_grid.INLINE_BYTES", 0)
    spec = spec_of(FEDAVG, num_rounds=12)
    assert_same(ray_result(spec, hosts), local_result(spec, host))


@pytest.mark.stress
def test_whole_trials_side_by_side_are_those_of_the_local_grid(hosts: RayHosts, host: ClientHost) -> None:
    """Three at a time, each with its own client states, over the same hosts."""
    told: list[Mapping[str, int]] = []
    runner = RayRunner(hosts, NO_STORE, parallel=3)
    specs = [replace(spec, phase=name) for name, spec in TRIALS.items()]

    results = dict(runner.run(specs, told.append))

    assert sorted(results) == list(range(len(specs)))
    keys = {spec.key for spec in specs}
    for position, result in results.items():
        assert_same(result, local_result(specs[position], host))
    assert all(key in keys and 0 < rounds <= 4 for board in told for key, rounds in board.items())


def test_a_strategy_that_can_t_be_built_is_a_result(hosts: RayHosts) -> None:
    spec = spec_of(Choice(FEDAVG.flower, {"no_such_argument": 1}))

    ((_, result),) = RayRunner(hosts, NO_STORE, parallel=1).run([spec])

    assert result.status == "failed"
    assert "TypeError" in str(result.error)


# -- Hosts that add their sums in groups change no bit, nor does a group that fails ------------------------------------


CHOICES = {"merged": FEDAVG, "adaptive": FEDADAM, "with client states": replace(FEDAVG, algorithm=Variates())}


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Groups of two, whatever the number of hosts, and a record of those that were asked for."""
    asked: list[Any] = []
    monkeypatch.setattr(ray_grid, "group_size", lambda *_: 2)
    original = RayGrid._add_in_groups

    def noted(grid: RayGrid, calls: list[RayCall]) -> None:
        original(grid, calls)
        asked.extend(call.group for call in calls)

    monkeypatch.setattr(RayGrid, "_add_in_groups", noted)
    return asked


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
@pytest.mark.parametrize("seconds", [None, 60.0], ids=["no limit", "limited"])
def test_groups_have_the_local_bits(hosts: RayHosts, groups: list[Any], choice: Choice, seconds: float | None) -> None:
    spec = spec_of(choice, num_sampled=4, round_timeout_seconds=seconds)
    assert_same(ray_result(spec, hosts), local_result(spec, uneven_federation()))
    assert groups
    assert None not in groups


@pytest.mark.slow
def test_of_a_failed_group_each_is_fetched(hosts: RayHosts, groups: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(FEDAVG)
    original = RayGrid._add_in_groups

    def failing(grid: RayGrid, calls: list[RayCall]) -> None:
        original(grid, calls)
        for call in calls:
            call.group = hosts.actors[0].initial_vector.remote("no seed")

    monkeypatch.setattr(RayGrid, "_add_in_groups", failing)
    assert_same(ray_result(spec, hosts), local_result(spec, uneven_federation()))
