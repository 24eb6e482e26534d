"""`fedscout reproduce`: a study from the command to its table, and on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.experiments.cli.conftest import Cli

QUICK = ("fedpilot/advice", "--seeds", "2", "training.num_rounds=1", "training.local_epochs=1", "model.hidden=[8]")


@pytest.mark.stress
def test_a_study_is_written_and_read_again(cli: Cli, tmp_path: Path) -> None:
    done = cli("reproduce", *QUICK, "--out", "again")
    assert done.code == 0, done.err
    folder = tmp_path / "again" / "fedpilot"
    table = (folder / "advice.md").read_text()
    assert table.strip() == done.out.strip()
    assert "| statement | of | ours | verdict |" in table
    assert f"`fedscout reproduce {' '.join((QUICK[0], *QUICK[3:]))} --seeds 2`" in table
    assert (folder / "advice.svg").read_text().startswith("<svg")
    whole = (tmp_path / "again" / "all.md").read_text()
    assert table.strip() in whole
    assert "[fedpilot/advice](#fedpilotadvice)" in whole
    told = json.loads(cli("reproduce", *QUICK, "--out", "again", "--json").out)
    (study,) = told["studies"]
    first = json.loads((folder / "advice.json").read_text())
    assert {**study, "seconds": 0} == {**first, "seconds": 0}
    assert len(study["cells"]) == 16
    assert all(len(cell["values"]) == 2 for cell in study["cells"])


def test_what_can_be_run_is_listed(cli: Cli) -> None:
    listed = json.loads(cli("reproduce", "list", "--json").out)["studies"]
    assert {"choice/table6", "server-rate/fig11", "selection/table1", "client-settings/table1", "fedpilot/advice"} <= {
        one["study"] for one in listed
    }
    text = cli("reproduce", "list").out
    assert all(one["study"] in text for one in listed)


def test_mistakes_are_told_in_a_line(cli: Cli, tmp_path: Path) -> None:
    unknown = cli("reproduce", "choice/tabel6")
    assert (unknown.code, unknown.out) == (2, "")
    assert "did you mean choice/table6" in unknown.err
    wrong = cli("reproduce", "fedpilot/advice", "training.num_round=1", "--out", "again")
    assert wrong.code == 2
    assert "did you mean training.num_rounds" in wrong.err
