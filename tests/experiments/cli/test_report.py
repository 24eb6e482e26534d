"""`fedscout report` and `plot`, and the report that a study leaves."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.experiments.cli.conftest import SMALL, Cli
from tests.experiments.reports.page.written_study import write_study


@pytest.mark.slow
def test_a_study_leaves_its_report_and_names_it(cli: Cli) -> None:
    done = cli("run", *SMALL, "--out", "out")
    assert done.code == 0
    assert "not written" not in done.err
    assert "fedscout report out --open" in done.out
    result, text = json.loads(Path("out/result.json").read_text()), Path("out/report.html").read_text()
    for score in result["confirmation"]["contestants"][0]["own"]:
        assert f"<td>{score:.4f}</td>" in text
    assert result["config_hash"] in text
    Path("out/report.html").unlink()
    assert cli("report", "out").out.strip() == "Report: out/report.html"
    assert Path("out/report.html").is_file()


@pytest.mark.slow
def test_what_train_search_and_a_quantity_leave_can_be_shown(cli: Cli) -> None:
    few = [*SMALL, "search.budget=2", "search.confirmation_seeds=0"]
    quantity = ["federation.dataset=diabetes", "federation.partition.kind=iid"]
    for name, command in (("train", few), ("search", few), ("run", [*few, *quantity])):
        done = cli(name, *command, "--out", name)
        assert done.code == 0
        assert "not written" not in done.err
        assert cli("report", name).code == 0
    shown = {
        name: re.sub(r"<script.*", "", Path(f"{name}/report.html").read_text(), flags=re.DOTALL)
        for name in ("train", "search", "run")
    }
    assert "was trained" in shown["train"]
    assert "fedscout train" in shown["train"]
    assert "detectors were not asked" in shown["search"]
    assert "R²" in shown["run"]


@pytest.mark.slow
def test_pictures_become_files(cli: Cli, tmp_path: Path) -> None:
    write_study(tmp_path / "out")
    done = cli("plot", "out", "--format", "svg", "--what", "confirmation")
    assert (done.code, done.out.strip()) == (0, "out/figures/confirmation.svg")


def test_two_studies_side_by_side(cli: Cli, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_study(tmp_path / name)
    done = cli("report", "one", "--compare", "two")
    assert (done.code, done.out.strip()) == (0, "Report: one/comparison.html")


def test_mistakes_are_one_line_and_code_2(cli: Cli, tmp_path: Path) -> None:
    write_study(tmp_path / "out")
    for arguments, text in (
        (("report", "nothing"), "must hold a study"),
        (("report", "out", "--compare", "nothing"), "must hold a study"),
        (("plot", "out", "--what", "curves"), "learning-curves"),
    ):
        done = cli(*arguments)
        assert done.code == 2
        assert text in done.err
        assert len(done.err.splitlines()) == 1
