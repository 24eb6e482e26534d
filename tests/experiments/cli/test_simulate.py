"""`fedscout simulate`: from a diagnosis to a file that every command takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.experiments.cli.conftest import SMALL, Cli

QUICK = ("engine.grid=local", "detection.outlier_repetitions=2", "detection.outlier_min_flags=2")
STUDY = (
    *QUICK,
    "training.num_rounds=2",
    "search.budget=2",
    "search.generation_size=2",
    "search.confirmation_seeds=0",
)


@pytest.fixture
def diagnosis(cli: Cli, tmp_path: Path) -> Path:
    """Of four clients that hold the wine data."""
    assert cli("detect", *SMALL, "federation.partition.alpha=1", "--out", tmp_path / "real").code == 0
    return tmp_path / "real" / "report.json"


@pytest.mark.slow
def test_a_look_alike_is_compared_written_and_searched(cli: Cli, tmp_path: Path, diagnosis: Path) -> None:
    made = cli("simulate", "--like", diagnosis, "federation.dataset=digits", *STUDY, "--out", tmp_path / "alike")
    assert (made.code, made.err) == (0, "")
    assert "digits, like report.json, 4 clients" in made.out
    assert "label divergence (JS, bits), mean" in made.out
    written = yaml.safe_load((tmp_path / "alike" / "federation.yaml").read_text())
    assert written["federation"] == {"dataset": "digits", "like": str(tmp_path / "alike" / "diagnosis.json")}
    assert written["detection"] == {"outlier_repetitions": 2, "outlier_min_flags": 2}
    diagnosis.unlink()
    ran = cli("run", tmp_path / "alike" / "federation.yaml", "--out", tmp_path / "study", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["federation"]["name"] == "digits, like diagnosis.json, 4 clients"
    report = json.loads((tmp_path / "alike" / "report.json").read_text())
    assert report["clients"] == json.loads((tmp_path / "study" / "report.json").read_text())["clients"]


def test_json_has_both_sides_and_another_diagnosis_is_another_study(cli: Cli, tmp_path: Path, diagnosis: Path) -> None:
    arguments = ("simulate", "--like", diagnosis, "federation.dataset=wine", *QUICK, "--out", tmp_path / "alike")
    document = json.loads(cli(*arguments, "--json").out)
    rows = {row["measure"]: (row["diagnosed"], row["look_alike"]) for row in document["measures"]}
    assert rows["clients that told"] == (4, 4)
    divergences = rows["label divergence (JS, bits), mean"]
    assert abs(divergences[0] - divergences[1]) < 0.05
    assert {verdict["decision"] for verdict in document["verdicts"]} == {
        "label skew",
        "feature skew",
        "outlier clients",
    }

    detected = ("detect", tmp_path / "alike" / "federation.yaml", "--out", tmp_path / "detected")
    assert cli(*detected).code == 0
    path = tmp_path / "alike" / "diagnosis.json"
    other = json.loads(path.read_text())
    other["clients"][0]["label_counts"][0] -= other["clients"][0]["label_counts"][0] and 1
    path.write_text(json.dumps(other))
    again = cli(*detected)
    assert again.code == 2
    assert "holds a study of other data and can't be continued" in again.err


def test_mistakes_are_one_line_and_leave_nothing(cli: Cli, tmp_path: Path, diagnosis: Path) -> None:
    out = tmp_path / "alike"
    wrong = cli("simulate", "--like", tmp_path / "none.json", "federation.dataset=wine", "--out", out)
    assert (wrong.code, len(wrong.err.splitlines())) == (2, 1)
    assert "federation.like must be a report" in wrong.err
    twice = cli("simulate", "--like", diagnosis, f"federation.like={diagnosis}", "--out", out)
    assert "must be left out where --like says it" in twice.err
    few = cli("simulate", "--like", diagnosis, "federation.dataset=breast_cancer", "--out", out)
    assert "at least as many classes as were diagnosed, 3, got 2 of 'breast_cancer'" in few.err
    assert not out.exists()
