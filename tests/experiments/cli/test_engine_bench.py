"""`fedscout bench engine` on a tiny federation, in this process."""

from __future__ import annotations

from tests.experiments.cli.conftest import Cli

TINY = ("bench", "engine", "--local", "--clients", "2", "--samples", "8", "--rounds", "2")


def test_json_of_one_strategy(cli: Cli) -> None:
    document = cli(*TINY, "--json").silent.document
    assert 0 < document["min_seconds_per_round"] <= document["median_seconds_per_round"]
    assert document["seconds_per_round"] > 0
    assert (document["strategy"], len(document["round_seconds"])) == ("fedavg", 2)


def test_strategies_in_turn_beside_fedavg(cli: Cli) -> None:
    done = cli(*TINY, "--strategy", "fedavg", "--strategy", "fedmedian", "--repeats", "2").ok
    assert done.err.splitlines() == ["fedscout: repetition 1 of 2: fedscout", "fedscout: repetition 2 of 2: fedscout"]
    lines = done.out.splitlines()
    assert lines[0] == "dense, 2 clients of 8 rows, 1 hosts, 4 rounds each"
    (row,) = [line for line in lines if line.startswith("fedscout, fedmedian")]
    assert "   FedAvg " in row
