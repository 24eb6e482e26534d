"""FedBuff's order of events by hand, its limits, and the same bits for any hosts and after a stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord

from fedscout.engine.client.host import ClientHost
from fedscout.engine.data.devices import Device
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import StrategyError
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.grid.ray_grid import RayGrid, start_hosts
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.messages.contents import claim_task_identity
from fedscout.engine.messages.keys import SIMULATED_SECONDS_KEY
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.trial import run_trial
from fedscout.strategies import FedAvgSpec, StrategySpec, space_of
from fedscout.strategies.methods.averaging import FedBuffSpec
from tests.engine.choices import FEDAVG, spec_of
from tests.engine.federations import QUERIES, uneven_federation
from tests.engine.trials.test_resume import assert_going_on, assert_same
from tests.kits.refusals import refused
from tests.strategies.rounds import grid_of, reply_of

FAST, MIDDLE, SLOW = 2, 3, 4
"""Node ids of three clients."""


def events(
    spec: FedBuffSpec, seconds: Mapping[int, float], changes: Mapping[int, float], num_rounds: int
) -> list[tuple[list[int], float, float]]:
    """Play rounds of three clients of one parameter; return who was asked, how long each took, and its model."""
    claim_task_identity()
    strategy, model = spec.build(Cohort(3, 3, 0.1)), np.zeros(1, np.float32)
    played = []
    for server_round in range(1, num_rounds + 1):
        record = ArrayRecord({"flat": Array(model)})
        messages = list(strategy.configure_train(server_round, record, ConfigRecord(), grid_of(3)))
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            reply = reply_of(message, model + changes[node])
            reply.content.metric_records["metrics"][SIMULATED_SECONDS_KEY] = seconds[node]
            replies.append(reply)
        arrays, metrics = strategy.aggregate_train(server_round, replies)
        model = arrays["flat"].numpy()
        asked = sorted(message.metadata.dst_node_id for message in messages)
        played.append((asked, float(metrics[SIMULATED_SECONDS_KEY]), float(model[0])))  # type: ignore[arg-type]
    return played


def test_the_order_of_events_by_hand() -> None:
    """Clients take 1, 2.5 and 10 s and add 1, 10 and 100; each arrival makes a model (K = 1).

    Arrivals: fast at 1 and 2, middle at 2.5 with two models made meanwhile, fast at 3 (sent out at 2, one model since),
    fast at 4, middle at 5 (sent out at 2.5; two since) and fast at 5, of which that goes first that was sent out first.
    """
    found = events(FedBuffSpec(buffer_size=1), {FAST: 1, MIDDLE: 2.5, SLOW: 10}, {FAST: 1, MIDDLE: 10, SLOW: 100}, 7)
    assert [asked for asked, _, _ in found] == [[2, 3, 4], [2], [2], [3], [2], [2], [3]]
    assert np.cumsum([lasted for _, lasted, _ in found]).tolist() == [1, 2, 2.5, 3, 4, 5, 5]
    steps = [1, 1, 10 / sqrt(3), 1 / sqrt(2), 1, 10 / sqrt(3), 1 / sqrt(2)]
    np.testing.assert_allclose([model for _, _, model in found], np.cumsum(steps), rtol=1e-6)


def test_a_buffer_of_two_by_hand() -> None:
    """Fast at 1 and middle at 2.5 make the first model, both again at 3.5 and 5 the second, and at 6 and 7.5 the third.

    Then they would be back at 8.5 and 10; slow arrives at 10, too, and was sent out first, with three models since.
    """
    spec = FedBuffSpec(buffer_size=2, server_learning_rate=0.5)
    found = events(spec, {FAST: 1, MIDDLE: 2.5, SLOW: 10}, {FAST: 1, MIDDLE: 10, SLOW: 100}, 4)
    assert [asked for asked, _, _ in found] == [[2, 3, 4], [2, 3], [2, 3], [2, 3]]
    assert [lasted for _, lasted, _ in found] == [2.5] * 4
    steps = [0.5 * 11 / 2] * 3 + [0.5 * (1 + 100 / sqrt(4)) / 2]
    np.testing.assert_allclose([model for _, _, model in found], np.cumsum(steps), rtol=1e-6)


def timed(devices: Mapping[int, Device]) -> Federation:
    return replace(uneven_federation(), devices=devices)


def settings(spec: StrategySpec, **changes: object) -> TrialSettings:
    return replace(spec_of(FEDAVG, num_rounds=4, num_sampled=5), strategy=spec, **changes)  # type: ignore[arg-type]


def result_of(federation: Federation, asked: TrialSettings) -> Trial:
    return run_trial(asked, LocalGrid(ClientHost(federation, QUERIES), session=asked.session))


@pytest.mark.parametrize("seconds", [[1.0] * 7, [1.0, 5.0, 2.0, 9.0, 3.0, 1.0, 4.0]])
def test_waiting_for_everybody_is_fedavg(seconds: Sequence[float]) -> None:
    """With K = all and η_g = 1, whatever the durations; and it lasts as long."""
    federation = timed({client: Device(shift_seconds=each) for client, each in enumerate(seconds)})
    ours = result_of(federation, settings(FedBuffSpec(buffer_size=5)))
    theirs = result_of(federation, settings(FedAvgSpec(sample_scaling="uniform")))
    assert ours.status == theirs.status == "completed"
    np.testing.assert_allclose(ours.vector, theirs.vector, atol=1e-6)
    assert FedBuffSpec(buffer_size=5).equivalent(Cohort(7, 5, 0.1)) == FedAvgSpec(sample_scaling="uniform")


def slow_and_fast() -> Federation:
    return timed({client: Device(seconds_per_step=0.1 * client, mean_seconds=1.0) for client in range(7)})


def test_a_buffer_is_full_before_the_slowest_is_there() -> None:
    ours = result_of(slow_and_fast(), settings(FedBuffSpec(buffer_size=2)))
    theirs = result_of(slow_and_fast(), settings(FedAvgSpec()))
    assert ours.round_seconds[0] < theirs.round_seconds[0], "the same clients draw the same latencies"
    assert ours.num_rounds == 4
    assert ours.seconds["simulated"] == pytest.approx(sum(ours.round_seconds))


@pytest.mark.stress
@pytest.mark.ray
@pytest.mark.timeout(120)
def test_two_hosts_give_what_one_gives(ray_session: None) -> None:
    asked = settings(FedBuffSpec())
    hosts = start_hosts(slow_and_fast(), QUERIES, 2)
    try:
        by_ray = run_trial(asked, RayGrid(hosts, asked.session))
    finally:
        hosts.stop()
    local = result_of(slow_and_fast(), asked)
    assert_same(by_ray, local)
    assert by_ray.round_seconds == local.round_seconds


def test_updates_on_their_way_survive_a_stop(tmp_path: Path) -> None:
    host = ClientHost(slow_and_fast(), QUERIES)
    again, at_once = assert_going_on(settings(FedBuffSpec()), host, tmp_path, stopped_in=3)
    assert again.round_seconds == at_once.round_seconds


def test_no_more_updates_than_clients_in_training() -> None:
    for size, cohort, named in (
        (6, Cohort(7, 5, 0.1), "buffer_size"),
        (1, Cohort(7, 1, 0.1), "2"),
        (2, Cohort(7, 5, 0.1, chosen=True), "policy"),
    ):
        assert named in FedBuffSpec(buffer_size=size).faults(cohort)[0]


def test_where_there_is_no_clock_it_can_not_be_chosen() -> None:
    still, ticking = Cohort(7, 5, 0.1, has_clock=False), Cohort(7, 5, 0.1, has_clock=True)
    assert FedBuffSpec().faults(ticking) == FedBuffSpec().faults(Cohort(7, 5, 0.1)) == []
    with refused(StrategyError, key="fedbuff", given="none"):
        space_of(still, kinds=["fedavg", "fedbuff"])
    assert "fedbuff" in space_of(ticking, kinds=["all"]).kinds
    everything = space_of(still, kinds=["all"])
    assert "fedbuff" not in everything.kinds
    assert "clock" in everything.absent["fedbuff"]
