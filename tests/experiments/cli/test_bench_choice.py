"""`fedscout bench choice` on one federation, and a searcher of the working directory."""

from __future__ import annotations

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
    shown = cli("bench", "choice", *TINY).ok
    assert shown.out.strip() == (tmp_path / "out" / "choice" / "trainings.md").read_text().strip()
    (found,) = cli("bench", "choice", *TINY, "--json").document["tables"]
    costs = {cell["row"]: cell["figures"]["cost, trainings"] for cell in found["cells"]}
    assert costs == {"FedAvg": [0, 0], "tuned FedAvg": [6, 6], "oracle": [0, 0]}


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
    arguments = ("replay", *column, "--searcher", "silent_here:Silent", "--out", "out", "--json")
    (table,) = cli("bench", "choice", *arguments).document["tables"]
    cells = {cell["row"]: cell["values"] for cell in table["cells"]}
    assert cells["silent_here:Silent"] == cells["FedAvg"]
