"""The simulated clock tells the same for any number of hosts, and after a trial goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from flwr.serverapp.strategy import FedAvg

from fedscout.engine.client.host import ClientHost
from fedscout.engine.data.devices import Device
from fedscout.engine.data.federation import Federation
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.trials.checkpoint import CheckpointStore
from fedscout.engine.trials.trial import run_trial
from tests.engine.choices import FEDAVG, Choice, spec_of
from tests.engine.federations import QUERIES, uneven_federation
from tests.engine.grid.test_local_grid import messages
from tests.engine.results import local_result, ray_result, started_hosts
from tests.engine.trials.test_resume import assert_same
from tests.engine.trials.test_trial import Whole


def timed() -> Federation:
    """Return clients of which each has a device of its own, some miss rounds, and some come late."""
    plain = uneven_federation()
    devices = {
        client: Device(0.1 * client, 1e4, 1e3 * (1 + client), shift_seconds=client, mean_seconds=2.0)
        for client in range(1, plain.num_clients)
    }
    return replace(plain, devices=devices, dropout={2: 0.5})


SETTINGS = spec_of(FEDAVG, num_rounds=4, num_sampled=5, deadline_seconds=9.0)


@pytest.mark.stress
@pytest.mark.ray
@pytest.mark.timeout(120)
def test_two_hosts_tell_what_one_tells(ray_session: None) -> None:
    with started_hosts(timed(), 2) as hosts:
        by_ray = ray_result(SETTINGS, hosts)
    local = local_result(SETTINGS, timed())
    assert_same(by_ray, local)
    assert by_ray.round_seconds == local.round_seconds
    assert 0 < min(local.round_seconds) <= max(local.round_seconds) == 9.0


def test_a_trial_that_goes_on_has_all_rounds(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    grid = LocalGrid(ClientHost(timed(), QUERIES), session=SETTINGS.session)
    run_trial(replace(SETTINGS, num_rounds=2, full_rounds=4, whole=False), grid, store)
    again = local_result(SETTINGS, grid.host, store)
    at_once = local_result(SETTINGS, grid.host)
    assert again.round_seconds == at_once.round_seconds
    assert len(again.round_seconds or ()) == 4


def test_a_strategy_with_its_own_start_has_a_clock_too() -> None:
    federation = replace(timed(), dropout={})
    driven, whole = (
        local_result(asked, federation)
        for asked in (replace(SETTINGS, strategy=Choice(kind), num_sampled=7) for kind in (FedAvg, Whole))
    )
    assert driven.round_seconds == whole.round_seconds
    assert len(whole.round_seconds or ()) == 4


def test_durations_are_of_all_who_were_asked_and_handed_over_once() -> None:
    """Also of client 2, which misses the round, and of those that come late; one without a device takes no time."""
    grid = LocalGrid(replace(timed(), dropout={2: 1 - 1e-12}), QUERIES, SETTINGS.session)
    grid.send_and_receive(messages(grid))
    durations = grid.take_durations()
    assert sorted(durations) == [*range(7)]
    assert durations[0] == 0.0 < durations[2]
    assert max(durations.values()) > 9.0
    assert grid.take_durations() == {}
