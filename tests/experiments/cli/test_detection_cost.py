"""`fedscout bench detection-cost` on a tiny federation, in this process."""

from __future__ import annotations

import pytest

from tests.experiments.cli.conftest import Cli

TINY = ("bench", "detection-cost", "--local", "--samples", "20", "--repeats", "1", "--clients", "3")


@pytest.mark.slow
def test_json_holds_a_measurement_for_each_number_of_clients(cli: Cli) -> None:
    costs = cli(*TINY, "--clients", "4", "--json").silent.document["costs"]
    assert [cost["clients"] for cost in costs] == [3, 4]
    for cost in costs:
        assert cost["seconds"]["whole detection, merged exchanges"] > cost["round_seconds"]


def test_a_line_tells_clients_hosts_and_rounds(cli: Cli) -> None:
    line = cli(*TINY).silent.out.splitlines()[-1]
    assert line.startswith("| dense, 3 clients of 20 | 1 | whole detection, merged exchanges | ")


def test_fewer_clients_than_can_be_compared_are_refused(cli: Cli) -> None:
    cli("bench", "detection-cost", "--local", "--clients", "2").refuses("", "'--clients'", "x>=3")


@pytest.mark.slow
def test_modules_are_told_one_a_line_beside_the_whole(cli: Cli) -> None:
    (cost,) = cli(*TINY, "--modules", "--json").silent.document["costs"]
    assert len(cost["seconds"]) == 5
    assert all(seconds > 0 for seconds in cost["seconds"].values())
    assert cost["seconds"]["label skew"] < cost["seconds"]["whole detection, merged exchanges"]
