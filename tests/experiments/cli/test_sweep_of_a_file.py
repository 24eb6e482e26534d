"""`fedscout sweep study.yaml`: a user's own experiment, what it writes, continues and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.experiments.cli.conftest import Cli

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
