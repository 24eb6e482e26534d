"""`fedscout reproduce`: a study from the command to its table, and on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.experiments.cli.conftest import Cli

QUICK = ("fedpilot/advice", "--seeds", "2", "training.num_rounds=1", "training.local_epochs=1", "model.hidden=[8]")


@pytest.mark.stress
def test_a_study_is_written_and_read_again(cli: Cli, tmp_path: Path) -> None:
    done = cli("reproduce", *QUICK, "--out", "again").ok
    folder = tmp_path / "again" / "fedpilot"
    table = (folder / "advice.md").read_text()
    assert table.strip() == done.out.strip()
    assert "| statement | of | ours | verdict |" in table
    assert f"`fedscout reproduce {' '.join((QUICK[0], *QUICK[3:]))} --seeds 2`" in table
    assert (folder / "advice.svg").read_text().startswith("<svg")
    whole = (tmp_path / "again" / "all.md").read_text()
    assert table.strip() in whole
    assert "[fedpilot/advice](#fedpilotadvice)" in whole
    (study,) = cli("reproduce", *QUICK, "--out", "again", "--json").document["studies"]
    first = json.loads((folder / "advice.json").read_text())
    assert {**study, "seconds": 0} == {**first, "seconds": 0}
    assert len(study["cells"]) == 16
    assert all(len(cell["values"]) == 2 for cell in study["cells"])


def test_what_can_be_run_is_listed(cli: Cli) -> None:
    listed = cli("reproduce", "list", "--json").document["studies"]
    names = {one["study"] for one in listed}
    assert {
        "choice/table6",
        "server-rate/fig11",
        "selection/table1",
        "client-settings/table1",
        "fedpilot/advice",
    } <= names
    text = cli("reproduce", "list").out
    assert all(name in text for name in names)


def test_mistakes_are_told_in_a_line(cli: Cli, tmp_path: Path) -> None:
    cli("reproduce", "choice/tabel6").refuses("", "choice/tabel6", "choice/table6 or")
    cli("reproduce", "fedpilot/advice", "training.num_round=1").refuses(
        "", "training.num_round ", "training.num_rounds"
    )
