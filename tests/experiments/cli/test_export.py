"""`fedscout export`: what it prints, and how it answers mistakes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from tests.experiments.cli.conftest import Cli
from tests.experiments.reports.exports.conftest import write_study


@pytest.fixture(autouse=True)
def _study(tmp_path: Path) -> None:
    """Leave a study of four trials in `out`."""
    write_study(tmp_path / "out", "search.budget=3", "search.confirmation_seeds=0")


def test_optuna_is_the_default_and_the_viewer_is_named(cli: Cli, tmp_path: Path) -> None:
    shown = cli("export", "out").silent.out
    assert "4 trials of wine-" in shown
    assert "optuna-dashboard out/exports/optuna.log" in shown
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "out" / "exports" / "optuna.log")))
    (name,) = optuna.get_all_study_names(storage)
    assert len(optuna.load_study(study_name=name, storage=storage).trials) == 4


def test_a_sqlite_file_may_be_named(cli: Cli, tmp_path: Path) -> None:
    assert "optuna-dashboard sqlite:///all.db" in cli("export", "out", "--path", "all.db").silent.out
    assert (tmp_path / "all.db").read_bytes().startswith(b"SQLite format 3")


def test_mistakes_are_one_line_and_code_2(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "notes.log").write_text("buy milk\n")
    cli("export", "nothing").refuses("the folder", "got nothing")
    cli("export", "out", "--path", "notes.log").refuses("notes.log", "Optuna")
    cli("export", "out", "--to", "excel").refuses("", "'--to'", "'excel'")


@pytest.mark.parametrize("target", ["mlflow", "tensorboard"])
def test_a_missing_package_is_named_and_nothing_is_left(cli: Cli, tmp_path: Path, target: str) -> None:
    if importlib.util.find_spec(target) is not None:
        pytest.skip(f"{target} is installed")
    cli("export", "out", "--to", target).refuses("", f"pip install 'fedscout[{target}]'")
    assert not (tmp_path / "out" / "exports").exists()
