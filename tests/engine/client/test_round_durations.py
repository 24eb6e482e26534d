"""What a round costs a client in simulated time, by hand, and that hosts and driver tell the same."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.client.updates import WithheldTensors
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Release
from fedscout.engine.data.devices import Device, RoundWork
from fedscout.engine.data.split import num_training_rows, split_client
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.grid.selection import expected_seconds, least_seconds, probe_seconds
from fedscout.engine.messages.calls import Assignment, HostCall, ReportRequest, RoundSelection
from fedscout.engine.messages.contents import flat_record
from fedscout.engine.messages.keys import ROUND_KEY, SEED_KEY
from fedscout.engine.seeds import stream
from fedscout.engine.training.loop import batch_bounds
from fedscout.strategies.methods.drift import ScaffoldSpec
from tests.engine.choices import FEDAVG, spec_of
from tests.engine.federations import ONE_ROW, QUERIES, uneven_federation
from tests.engine.grid.test_local_grid import messages
from tests.engine.results import local_result

ROUNDS = 3
DEVICE = Device(seconds_per_step=0.5, bytes_per_second_down=1000.0, bytes_per_second_up=250.0, shift_seconds=2.0)


def test_a_round_by_hand() -> None:
    """2 + 10·0.5 + 4000/1000 + 4000/250 = 27; a probe of two epochs' steps: (2 + 5)/6 + 4."""
    work = RoundWork(num_steps=10, bytes_down=4000, bytes_up=4000)
    assert DEVICE.least_seconds(work) == 27.0
    assert replace(DEVICE, mean_seconds=3.0).expected_seconds(work) == 30.0
    assert DEVICE.probe_seconds(work, local_epochs=2) == pytest.approx(7 / 6 + 4)
    assert Device().expected_seconds(work) == 0.0


@pytest.mark.parametrize("batch_size", [1, 2, 7, 32])
def test_steps_are_those_that_training_makes(batch_size: int) -> None:
    rows = np.arange(1, 100)
    training = LocalTraining(local_epochs=3, batch_size=batch_size)
    assert training.num_steps(rows).tolist() == [3 * len(batch_bounds(count, batch_size)) for count in rows.tolist()]


@pytest.mark.parametrize(("test", "validation"), [(0.2, 0.0), (0.25, 0.5), (0.0, 0.3), (0.9, 0.9)])
def test_training_rows_are_those_of_the_split(test: float, validation: float) -> None:
    rows = np.arange(1, 60)
    drawn = [len(split_client(np.zeros(count, np.int64), 0, 0, test, validation).train) for count in rows.tolist()]
    assert num_training_rows(rows, test, validation).tolist() == drawn


@pytest.mark.parametrize("strategy", [FEDAVG, ScaffoldSpec()])
def test_hosts_and_driver_tell_the_same_and_bytes_are_those_of_the_log(strategy: object) -> None:
    """The slowest client is the one with most rows; with bandwidth alone a round takes the log's bytes of a client."""
    settings = spec_of(strategy, num_rounds=ROUNDS)  # type: ignore[arg-type]
    plain = uneven_federation()
    federation = replace(plain, devices=dict.fromkeys(range(plain.num_clients), DEVICE))
    facts = ClientHost(federation, QUERIES).facts()
    expected = expected_seconds(facts, settings.session)
    result = local_result(settings, federation)
    assert result.round_seconds is not None
    if strategy is FEDAVG:  # which is sent nothing beside the model
        assert result.round_seconds == (float(expected.max()),) * ROUNDS
    num_answered = int(np.count_nonzero(plain.partition.sizes))
    up = replace(plain, devices={0: Device(bytes_per_second_up=1.0)})
    moved = local_result(settings, up)
    assert moved.round_seconds == (moved.bytes_up / num_answered,) * ROUNDS
    down = local_result(settings, replace(plain, devices={0: Device(bytes_per_second_down=1.0)}))
    assert sum(down.round_seconds) == ROUNDS * down.bytes_down / settings.num_sampled


def test_a_clock_changes_no_bit_of_the_training() -> None:
    federation = uneven_federation()
    timed = replace(federation, devices={1: DEVICE})
    settings = replace(spec_of(FEDAVG, num_rounds=ROUNDS), keep_model=True)
    first, second = local_result(settings, federation).vector, local_result(settings, timed).vector
    assert first.tobytes() == second.tobytes()


def test_a_latency_alone_is_drawn_as_ever() -> None:
    federation = replace(uneven_federation(), devices={1: Device(shift_seconds=1.5, mean_seconds=4.0)})
    result = local_result(spec_of(FEDAVG, num_rounds=ROUNDS), federation)
    drawn = [1.5 + 4.0 * float(stream(3, "latency", r, 1).exponential()) for r in range(1, ROUNDS + 1)]
    assert result.round_seconds == tuple(drawn)


def test_what_a_driver_expects_is_ordered() -> None:
    federation = replace(uneven_federation(), devices={2: replace(DEVICE, mean_seconds=1.0)})
    facts, session = ClientHost(federation, QUERIES).facts(), spec_of(FEDAVG).session
    probe, least, mean = (f(facts, session) for f in (probe_seconds, least_seconds, expected_seconds))
    assert mean[2] == least[2] + 1.0
    assert 0 < probe[2] < least[2] < inf
    assert not np.delete(mean, 2).any()


def test_what_a_policy_asks_for_is_paid_for() -> None:
    """Client 0 makes twice the epochs and withholds half of its tensors; client 1 only measures the model."""
    federation = replace(uneven_federation(), devices=dict.fromkeys(range(7), DEVICE))
    host, settings = ClientHost(federation, QUERIES), spec_of(FEDAVG)
    facts, grid = host.facts(), LocalGrid(host, session=settings.session)
    grid.reports.watched = RoundSelection(
        ReportRequest(training_losses=True), (1,), {0: Assignment(epochs=2, withheld=0.5)}
    )
    list(grid.send_and_receive(messages(grid, clients=(0, 2))))
    durations, carried = grid.take_durations(), grid.take_bytes()
    usual, probes = expected_seconds(facts, settings.session), probe_seconds(facts, settings.session)
    assert (durations[1], durations[2]) == (probes[1], usual[2])
    rows = num_training_rows(facts.client_rows, settings.session.test_fraction, 0.0)
    steps = int(settings.session.training.num_steps(rows)[0])
    withheld_bytes = 2 * 4 * facts.layout.size - carried["up"]
    assert withheld_bytes > 0
    assert durations[0] == pytest.approx(usual[0] + steps * 0.5 - withheld_bytes / 250.0)


def test_who_would_measure_after_the_deadline_tells_nothing() -> None:
    """A probe takes client 1 longer than the deadline, and client 3 not; both would train late."""
    slow, quick = replace(DEVICE, bytes_per_second_down=10.0), replace(DEVICE, shift_seconds=20.0)
    federation = replace(uneven_federation(), devices={1: slow, 3: quick})
    settings = spec_of(FEDAVG, deadline_seconds=12.0)
    grid = LocalGrid(federation, QUERIES, settings.session)
    probes = probe_seconds(grid.facts, settings.session)
    assert probes[3] < 12.0 < probes[1]
    for measured_apart in (False, True):
        grid.reports.watched = RoundSelection(ReportRequest(training_losses=True), (1, 3))
        arrays = flat_record(grid.initial_vector(3))
        if measured_apart:
            grid.measure(arrays)
        list(grid.send_and_receive(messages(grid, clients=[0], arrays=arrays)))
        durations = grid.take_durations()
        assert (durations[1], durations[3]) == (probes[1], probes[3])
        report = grid.reports.take(grid.server_round, durations, 12.0)
        assert report.clients.tolist() == [0, 3]


def test_validation_rows_make_no_steps() -> None:
    """With half of the training rows kept for validation, client 0 makes so many steps less, here and there."""
    federation = replace(uneven_federation(), devices={0: Device(seconds_per_step=1.0)})
    settings = spec_of(FEDAVG, num_rounds=1)
    halved = replace(settings, session=replace(settings.session, validation_fraction=0.5))
    facts = ClientHost(federation, QUERIES).facts()
    expected = [float(expected_seconds(facts, one.session)[0]) for one in (settings, halved)]
    assert expected[1] < expected[0]
    assert [local_result(one, federation).round_seconds for one in (settings, halved)] == [(each,) for each in expected]


def test_who_misses_the_round_or_abstains_measures_nothing() -> None:
    """Clients 1, 2 and 3 are asked: the first is absent, the second holds too few rows, the third tells its loss."""
    federation = replace(uneven_federation(), dropout={1: 1 - 1e-12}, release=Release(5, "abstain"))
    settings = spec_of(FEDAVG)
    grid = LocalGrid(federation, QUERIES, settings.session)
    grid.reports.watched = RoundSelection(ReportRequest(training_losses=True), (1, ONE_ROW, 3))
    list(grid.send_and_receive(messages(grid, clients=[0])))
    report = grid.reports.take(grid.server_round, {}, 0.0)
    assert (report.clients.tolist(), report.trained.tolist()) == ([0, 3], [True, False])
    assert report.failures == {}


def test_which_tensors_are_withheld_is_drawn_for_each_client_and_round() -> None:
    """Two of four tensors of different lengths: their sum tells them apart."""
    layout, clients = ClientHost(uneven_federation(), QUERIES).facts().layout, tuple(range(7))
    watched = RoundSelection(ReportRequest(), (), dict.fromkeys(clients, Assignment(withheld=0.5)))

    def withheld(server_round: int, seed: int) -> list[int]:
        config = {ROUND_KEY: server_round, SEED_KEY: seed}
        call = HostCall(clients, spec_of(FEDAVG).session, config, watched=watched)
        return [WithheldTensors(call, layout).num_values_of(client) for client in clients]

    drawn = withheld(1, 3)
    assert drawn == withheld(1, 3)
    assert len({*drawn}) > 1
    assert drawn not in (withheld(2, 3), withheld(1, 4))
