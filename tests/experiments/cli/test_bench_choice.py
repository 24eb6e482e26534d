"""`fedscout bench choice` on one federation, a searcher of the working directory, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.experiments.cli.conftest import Cli

COLUMN = "wine, Dirichlet 0.1, 6 clients, rate 0.02"
TINY = (
    *("trainings", "--scale", "quick", "--columns", COLUMN, "--rows", "FedAvg,tuned FedAvg,oracle", "--seeds", "2"),
    *("training.num_rounds=2", "model.hidden=[4]", "search.strategies=[fedavg,fedmedian]", "--out", "out"),
)


@pytest.mark.slow
def test_tables_and_json_tell_the_same(cli: Cli, tmp_path: Path) -> None:
    shown = cli("bench", "choice", *TINY)
    assert shown.code == 0, shown.err
    assert shown.out.strip() == (tmp_path / "out" / "choice" / "trainings.md").read_text().strip()
    (found,) = json.loads(cli("bench", "choice", *TINY, "--json").out)["tables"]
    costs = {cell["row"]: cell["figures"]["cost, trainings"] for cell in found["cells"]}
    assert costs == {"FedAvg": [0, 0], "tuned FedAvg": [6, 6], "oracle": [0, 0]}


@pytest.mark.parametrize(
    "arguments",
    [
        ("replay", "--rows", "nobody"),
        ("trainings", "--columns", "nowhere"),
        ("trainings", "--columns", COLUMN, "--rows", "FedAvg", "strategy.kind=krum"),
        ("trainings", "--seeds", "1"),
        ("trainings", "--scale", "large"),
        ("replay", "--searcher", "nowhere:Search"),
        ("trainings", "--columns", COLUMN, "--searcher", "nowhere:Search"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(cli: Cli, arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = cli("bench", "choice", *arguments, "--out", "out")
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err
    assert not list((tmp_path / "out").rglob("*.parquet"))


SILENT = """
from fedscout.search.searcher import Searcher

class Silent(Searcher):
    def ask(self, num_proposals):
        return []
"""


@pytest.mark.slow
def test_a_searcher_of_the_working_directory_joins_a_replay(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "silent_here.py").write_text(SILENT)
    column = ("--columns", "digits, iid, 10 clients", "--rows", "FedAvg")
    shown = cli("bench", "choice", "replay", *column, "--searcher", "silent_here:Silent", "--out", "out", "--json")
    assert shown.code == 0, shown.err
    cells = {cell["row"]: cell["values"] for cell in json.loads(shown.out)["tables"][0]["cells"]}
    assert cells["silent_here:Silent"] == cells["FedAvg"]
