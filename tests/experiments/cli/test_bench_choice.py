"""`fedscout bench choice` on one federation, and what it says to mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.experiments.cli.conftest import Cli

FEDERATION = "federation.dataset=wine federation.num_clients=4 training.learning_rate=0.02"
TINY = (
    *("training.num_rounds=2", "model.hidden=[4]", "search.strategies=[fedavg,fedmedian]"),
    *("--federation", FEDERATION, "--quick", "--search-seeds", "1", "--fresh-seeds", "2", "--out", "out"),
    *("--chooser", "FedAvg", "--chooser", "tuned FedAvg"),
)


@pytest.mark.slow
def test_tables_and_json_tell_the_same(cli: Cli, tmp_path: Path) -> None:
    shown = cli("bench", "choice", *TINY)
    assert shown.code == 0, shown.err
    assert "| tuned FedAvg | 6.0 |" in shown.out
    assert "grid of 2 configurations" in shown.err
    found = json.loads(cli("bench", "choice", *TINY, "--json").out)
    assert found == json.loads((tmp_path / "out" / "result.json").read_text())
    assert [one["chooser"] for one in found["summary"]] == ["FedAvg", "tuned FedAvg"]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("--chooser", "nobody"), "--chooser must be one of FedAvg"),
        (("--federation", "federation.dataset=nosuch"), "dataset=nosuch: federation.dataset must be one of"),
        (("--federation", ""), "--federation must be arguments such as federation.dataset=wine, got an empty text"),
        (("strategy.kind=krum", "--quick"), "strategy must be left out of a search"),
        (("--fresh-seeds", "1"), "1 is not in the range x>=2"),
        (("--half", "development"), "--half must be given with --replay, got no --replay"),
        (("--strategies-alone", "--quick"), "--strategies-alone must be given with --replay, got no --replay"),
    ],
)
def test_mistakes_are_told_before_anything_is_done(
    cli: Cli, arguments: tuple[str, ...], fault: str, tmp_path: Path
) -> None:
    done = cli("bench", "choice", *arguments, "--out", "out")
    assert (done.code, done.out) == (2, "")
    assert fault in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "out").exists()
