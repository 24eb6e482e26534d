"""`fedscout sweep` as a command: what it prints, where it writes, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedscout.experiments.studies import workflow
from tests.experiments.cli.conftest import SMALL, Cli
from tests.experiments.sweeps.sweeps import written

SETTINGS = (*(one for one in SMALL if not one.startswith("federation.num_clients")), "search.confirmation_seeds=0")


@pytest.mark.slow
def test_json_stands_alone_on_standard_output(cli: Cli, tmp_path: Path) -> None:
    document = cli("sweep", *SETTINGS, "federation.num_clients=4,5", "--out", "out", "--json").silent.document
    assert document.pop("out") == str(tmp_path / "out")
    assert document == json.loads((tmp_path / "out" / "summary.json").read_text())
    assert document["studies"] == {"total": 2, "completed": 2, "failed": 0, "lost": 0}
    assert [group["values"] for group in document["groups"]] == [
        {"federation.num_clients": 4},
        {"federation.num_clients": 5},
    ]


@pytest.mark.slow
def test_a_failed_study_is_named_and_the_others_count(cli: Cli, tmp_path: Path) -> None:
    done = cli("sweep", *SETTINGS, "federation.num_clients=4,500", "--out", "out").ok
    (line,) = done.err.splitlines()
    assert line.startswith("fedscout: federation.num_clients=500 failed: federation.num_clients ")
    fitness = {row["chooser"]: f"{row['fitness'] or 0:.4f}" for row in written(tmp_path / "out")}
    table = tmp_path / "out" / "table.parquet"
    for name in ("1 of 2 ", fitness["fedavg"], fitness["search best"], f"Table: {table}"):
        assert name in done.out


def test_without_any_completed_study_the_command_fails(cli: Cli) -> None:
    done = cli("sweep", *SETTINGS, "federation.num_clients=500,600", "--out", "out")
    assert done.code == 2
    assert len(done.err.splitlines()) == 2


def test_a_lost_study_makes_the_exit_code_1(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(workflow, "build_federation", lose)
    done = cli("sweep", *SETTINGS, "seed=0,1", "--out", "out")
    assert done.code == 1
    assert done.err.splitlines() == [
        "fedscout: seed=0 lost: RuntimeError: a defect",
        "fedscout: seed=1 lost: RuntimeError: a defect",
        done.err.splitlines()[-1],
    ]


def test_a_dry_run_lists_the_studies_and_makes_nothing(cli: Cli, tmp_path: Path) -> None:
    shown = cli("sweep", *SETTINGS, "federation.num_clients=4,5", "seed=0,1", "--dry-run").silent.out
    assert shown.split()[0] == "4"
    assert shown.count(" new ") == 4
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_dry_run_knows_what_is_finished(cli: Cli) -> None:
    assert cli("sweep", *SETTINGS, "seed=0", "--out", "out", "--json").ok
    first, second = cli("sweep", *SETTINGS, "seed=0,1", "--out", "out", "--dry-run", "--json").document["studies"]
    assert (first["finished"], first["trials"], first["planned_trials"]) == (True, 4, 4)
    assert (second["finished"], second["trials"], second["values"]) == (False, 0, {"seed": 1})


def test_every_fault_is_told_before_anything_is_made(cli: Cli, tmp_path: Path) -> None:
    done = cli("sweep", *SETTINGS, "seed=0,x", "federation.num_clients=0,4", "training.learning_rat=1")
    assert (done.code, done.out) == (2, "")
    subjects = [line.split()[1] for line in done.err.splitlines()]
    assert subjects == ["federation.num_clients", "training.learning_rat", "seed"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_default_folder_is_found_again_with_more_values(cli: Cli, tmp_path: Path) -> None:
    assert cli("sweep", *SETTINGS, "seed=0,1", "--json").ok
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("sweep-wine-")
    listed = cli("sweep", *SETTINGS, "seed=0,1,2", "--dry-run", "--json").document["studies"]
    assert [study["finished"] for study in listed] == [True, True, False]
