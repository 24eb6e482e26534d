"""`fedscout bench choice` on one federation, and what it says to mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedscout.experiments.benchmarks.choice.trial_table import write_table
from tests.experiments.benchmarks.made_up_tables import by_rate, federation
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
        (("--replay", "published", "--quick"), "--quick must be left out with --replay, which trains nothing"),
        (
            ("--replay", "published", "--federation", "federation.dataset=wine", "--fresh-seeds", "3"),
            "--federation and --fresh-seeds must be left out with --replay, which trains nothing",
        ),
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


SILENT = """
from fedscout.search.searcher import Searcher

class Silent(Searcher):
    def ask(self, num_proposals):
        return []
"""


def test_a_searcher_of_the_working_directory_joins_a_replay(cli: Cli, tmp_path: Path) -> None:
    write_table(tmp_path / "t.parquet", [federation(by_rate)])
    (tmp_path / "silent_here.py").write_text(SILENT)
    shown = cli("bench", "choice", "--replay", "t.parquet", "--chooser", "silent_here:Silent")
    assert shown.code == 0, shown.err
    assert "| silent_here:Silent | 0.0 | 0 | 3.00 [3.00, 3.00] | 1.00 [1.00, 1.00] |" in shown.out
    refused = cli("bench", "choice", "--replay", "t.parquet", "--chooser", "silent_here:Loud")
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
