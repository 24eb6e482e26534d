"""`fedscout sweep` as a command: what it prints, where it writes, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedscout.experiments.studies import workflow
from tests.experiments.cli.conftest import SMALL, Cli

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


# `fedscout sweep study.yaml`: a user's own experiment, what it writes, continues and refuses.


STUDY = """
title: two strategies
settings: {federation.dataset: wine, federation.num_clients: 4, training.num_rounds: 2, model.hidden: [4]}
axes: {federation.partition.alpha: [0.1, 1]}
mean_over: {training.local_epochs: [1, 2]}
rows:
  FedAvg: {}
  FedAdam: {settings: {strategy: {kind: fedadam, eta: 0.05}}}
reference: FedAvg
seeds: 3
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    return path


@pytest.mark.slow
def test_an_experiment_is_run_into_runs_and_continued(cli: Cli, study: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs" / "study"
    asked = ("sweep", study.name, "engine.grid=local", "--columns", "alpha=0.1", "--seeds", "2")
    assert cli(*asked).code == 0
    assert {"study.json", "study.md", "study.svg"} <= {path.name for path in out.iterdir()}
    first = json.loads((out / "study.json").read_text())
    assert (first["rows"], first["columns"]) == (["FedAvg", "FedAdam"], ["alpha=0.1"])
    assert len(first["parts"]) == 4
    again = cli(*asked, "--json")
    assert again.err == ""  # nothing is measured again
    assert again.document["cells"] == first["cells"]
    listed = cli("sweep", study.name, "engine.grid=local", "--seeds", "2", "--dry-run", "--json").document
    assert [cell["finished"] for cell in listed["cells"]] == [True] * 4 + [False] * 4


@pytest.mark.parametrize(
    "arguments",
    [
        ("study.yaml", "study.yaml"),
        ("study.yaml", "--rows", "FedProx"),
        ("study.yaml", "training.num_ronuds=3"),
        ("study.yaml", "--seeds", "1"),
        ("seed=0,1", "--rows", "FedAvg"),
    ],
)
@pytest.mark.usefixtures("study")
def test_mistakes_are_told_before_anything_is_done(cli: Cli, arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = cli("sweep", *arguments)
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err
    assert not list(tmp_path.rglob("*.parquet"))
