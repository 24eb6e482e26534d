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
    done = cli("run", *SMALL, "--out", "out").ok
    assert "report" not in done.warnings
    assert "fedscout report out --open" in done.out
    result, text = json.loads(Path("out/result.json").read_text()), Path("out/report.html").read_text()
    for score in result["confirmation"]["contestants"][0]["own"]:
        assert f"<td>{score:.4f}</td>" in text
    assert result["config_hash"] in text
    Path("out/report.html").unlink()
    assert "out/report.html" in cli("report", "out").ok.out
    assert Path("out/report.html").is_file()


@pytest.mark.slow
def test_what_train_search_and_a_quantity_leave_can_be_shown(cli: Cli) -> None:
    few = [*SMALL, "search.budget=2", "search.confirmation_seeds=0"]
    quantity = ["federation.dataset=diabetes", "federation.partition.kind=iid"]
    for name, command in (("train", few), ("search", few), ("run", [*few, *quantity])):
        assert "report" not in cli(name, *command, "--out", name).ok.warnings
        assert cli("report", name).ok
    shown = {
        name: re.sub(r"<script.*", "", Path(f"{name}/report.html").read_text(), flags=re.DOTALL)
        for name in ("train", "search", "run")
    }
    assert "fedscout train" in shown["train"]
    assert "Detection did not run" in shown["search"]
    assert "R²" in shown["run"]


@pytest.mark.slow
def test_pictures_become_files(cli: Cli, tmp_path: Path) -> None:
    write_study(tmp_path / "out")
    shown = cli("plot", "out", "--format", "svg", "--what", "confirmation").ok.out
    assert shown.strip() == "out/figures/confirmation.svg"


def test_mistakes_are_one_line_and_code_2(cli: Cli, tmp_path: Path) -> None:
    write_study(tmp_path / "out")
    cli("report", "nothing").refuses("the folder", "got nothing")
    cli("plot", "out", "--what", "curves").refuses("--what", "curves", "learning-curves")
