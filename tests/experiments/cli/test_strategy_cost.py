"""`fedscout bench engine --strategies` on a tiny federation, in this process."""

from __future__ import annotations

from statistics import median

import pytest

from tests.experiments.cli.conftest import Cli

TINY = ("bench", "engine", "--clients", "8", "--samples", "8", "--rounds", "1", "--repeats", "2")


def test_each_strategy_is_measured_beside_fedavg_on_a_net_that_it_can_train(cli: Cli) -> None:
    costs = cli(*TINY, "--strategies", "fedbn,fedlc,{kind: ditto, personal_pull: 1}", "--json").document["costs"]
    assert [(cost["strategy"], cost["batch_norm"]) for cost in costs] == [
        ("fedlc(calibration=1.0)", False),
        ("ditto(personal_pull=1.0)", False),
        ("fedbn", True),
    ]
    assert all(len(cost["ratios"]) == 2 and min(cost["ratios"]) > 0 for cost in costs)


def test_the_table_tells_the_median_of_the_ratios_and_why_one_is_missing(cli: Cli) -> None:
    done = cli(*TINY, "--strategies", "fedexp,{kind: krum, num_malicious_nodes: 7}").ok
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.out.splitlines() if line.startswith("|")]
    assert [cells[0] for cells in lines[2:]] == ["fedexp(epsilon=0.001)", "krum(num_malicious_nodes=7)"]
    least, most = map(float, lines[2][2].split(" … "))
    assert float(lines[2][1]) == pytest.approx(median((least, most)), abs=0.011)
    assert lines[3][1] == "–"
    assert "num_malicious_nodes of krum" in lines[3][5]


def test_an_unknown_strategy_is_one_line(cli: Cli) -> None:
    cli(*TINY, "--strategies", "fedfoo").refuses("", "fedfoo")
