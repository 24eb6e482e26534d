"""`fedscout bench detection-cost` on a tiny federation, in this process."""

from __future__ import annotations

import json

import pytest

from tests.experiments.cli.conftest import Cli

TINY = ("bench", "detection-cost", "--local", "--samples", "20", "--repeats", "1", "--clients", "3")


@pytest.mark.slow
def test_json_holds_a_measurement_for_each_number_of_clients(cli: Cli) -> None:
    done = cli(*TINY, "--clients", "4", "--json")
    assert (done.code, done.err) == (0, "")
    costs = json.loads(done.out)["costs"]
    assert [cost["clients"] for cost in costs] == [3, 4]
    for cost in costs:
        assert cost["round_equivalents"] == pytest.approx(cost["seconds"] / cost["round_seconds"])


def test_a_line_tells_clients_hosts_and_rounds(cli: Cli) -> None:
    done = cli(*TINY)
    assert (done.code, done.err) == (0, "")
    (line,) = done.out.splitlines()
    assert line.startswith("dense, 3 clients of 20, 1 hosts: ")
    assert " rounds of " in line


def test_fewer_clients_than_can_be_compared_are_refused(cli: Cli) -> None:
    done = cli("bench", "detection-cost", "--local", "--clients", "2")
    assert done.code == 2
    assert "x>=3" in done.err


@pytest.mark.slow
def test_modules_are_told_one_a_line_beside_the_whole(cli: Cli) -> None:
    done = cli(*TINY, "--modules", "--json")
    assert (done.code, done.err) == (0, "")
    (cost,) = json.loads(done.out)["costs"]
    assert len(cost["seconds"]) == 5
    assert all(seconds > 0 for seconds in cost["seconds"].values())
    assert cost["seconds"]["label skew"] < cost["seconds"]["whole detection, merged exchanges"]
