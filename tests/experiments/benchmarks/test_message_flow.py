"""The simulated round takes what can be added up by hand."""

from __future__ import annotations

import json

import pytest

from fedscout.engine.messages.added_sums import FROM_NODES
from fedscout.experiments.benchmarks.engine.cost_model import Network, RoundSize
from fedscout.experiments.benchmarks.engine.message_flow import FlowCosts, flow_lines, simulate, simulated
from fedscout.experiments.cli.bench import flow

FREE = FlowCosts(per_call=0.0, per_client=0.0, per_megabyte=0.0, host=0.0)
INSTANT = Network(gigabits_per_second=1e9, latency_seconds=0.0)
MEGABYTE = 250_000
"""Parameters of a model of 10^6 bytes; a sum is twice as large."""


def size(hosts: int, parameters: int = MEGABYTE) -> RoundSize:
    return RoundSize(hosts=hosts, clients=hosts, parameters=parameters)


def test_calls_wait_for_the_driver_alone() -> None:
    """Half of a call to each host, then half for each answer."""
    costs = FREE.model_copy(update={"per_call": 0.01})
    flat = simulate(size(8), 1, INSTANT, costs)

    assert flat.seconds == pytest.approx(8 * 0.01)
    assert flat.busiest == "driver"
    assert simulate(size(9), 3, INSTANT, costs).seconds == pytest.approx(9 * 0.005 + 3 * 0.005)


def test_flat_sums_are_added_one_after_the_other_and_those_of_groups_side_by_side() -> None:
    """Each sum of 2 MB takes 2 s: 16 of them at the driver; or 3 at each of four hosts at once, then 4."""
    costs = FREE.model_copy(update={"per_megabyte": 1.0})

    assert simulate(size(16), 1, INSTANT, costs).seconds == pytest.approx(32.0)
    assert simulate(size(16), 4, INSTANT, costs).seconds == pytest.approx(6.0 + 8.0)


def test_a_model_is_passed_on_and_sums_come_through_one_link() -> None:
    """Copies of 1 s each, from 1 node to 3 more: at 1, 2 and 2 s; sums of 2 s each come in one after the other."""
    link = Network(gigabits_per_second=8e-3, latency_seconds=0.0)
    flat = simulate(size(3), 1, link, FREE)

    assert flat.seconds == pytest.approx(1.0 + 3 * 2.0)
    assert flat.busy["driver's link in"] == pytest.approx(6.0)
    assert flat.busiest == "driver's link in"


def test_the_driver_holds_a_sum_a_group() -> None:
    assert simulate(size(100), 1, INSTANT).store_bytes == 100 * 2_000_000
    assert simulate(size(100), 10, INSTANT).store_bytes == 10 * 2_000_000


def test_groups_pay_from_where_they_are_used_on() -> None:
    rounds = simulated([FROM_NODES, 100, 1000], 1000, Network())

    assert all(one.groups.seconds < 0.75 * one.flat.seconds for one in rounds)


def test_the_command_shows_each_round(capsys: pytest.CaptureFixture[str]) -> None:
    flow(nodes="4,9", clients=100, gigabits=10.0, latency_ms=0.5, as_json=True)
    document = json.loads(capsys.readouterr().out)

    assert [(one["size"]["hosts"], one["size"]["clients"]) for one in document["rounds"]] == 3 * [(4, 100), (9, 100)]
    assert len(flow_lines(simulated([4, 9], 100, Network()))) == 2 + 6 + 2
