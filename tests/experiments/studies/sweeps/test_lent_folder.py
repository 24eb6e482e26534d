"""A folder that is lent is the same at both ends, whatever is done to its files, and nobody else has it meanwhile."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedscout.engine.errors import EngineError, LogError
from fedscout.engine.runtime.folder_lock import folder_lock
from fedscout.experiments.studies.sweeps import lent_folder as lending
from fedscout.experiments.studies.sweeps.lent_folder import FolderKeeper, lent_folder


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A keeper in this process, whose methods are called as an actor's are."""
    own = FolderKeeper()
    monkeypatch.setattr(lending, "_answer", lambda answer: answer)
    return SimpleNamespace(lend=SimpleNamespace(remote=own.lend), keep=SimpleNamespace(remote=own.keep))


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def filled(folder: Path) -> Path:
    (folder / "trials").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "trials" / "0.parquet").write_text("first")
    return folder


def test_what_changes_there_changes_here(tmp_path: Path, keeper: Any) -> None:
    folder = filled(tmp_path / "study")
    with lent_folder(keeper, folder) as there:
        assert contents(there) == contents(folder)
        (there / "trials" / "1.parquet").write_text("second")
        (there / "trials" / ".2.parquet.tmp").write_text("half")
        (there / "config.json").unlink()
    assert contents(folder) == {"trials/0.parquet": "first", "trials/1.parquet": "second"}
    assert not there.exists()


def test_it_comes_back_while_the_study_runs(tmp_path: Path, keeper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending, "SECONDS_BETWEEN", 0.01)
    folder = filled(tmp_path / "study")
    with lent_folder(keeper, folder) as there:
        (there / "result.json").write_text("{}")
        deadline = time.monotonic() + 60
        while not (folder / "result.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_nobody_else_has_it_meanwhile(tmp_path: Path, keeper: Any) -> None:
    folder = tmp_path / "study"
    with lent_folder(keeper, folder), pytest.raises(LogError, match="in use"), folder_lock(folder):
        pass
    with folder_lock(tmp_path):
        pass
    assert not folder.exists()  # as nothing was found out


def test_it_is_begun_again_with_what_came_back(tmp_path: Path, keeper: Any) -> None:
    """The process that had it has died, and let nothing go."""
    folder = filled(tmp_path / "study")
    keeper.lend.remote(folder)
    keeper.keep.remote(folder, {"trials/1.parquet": b"second"}, [], False)
    with lent_folder(keeper, folder) as there:
        assert contents(there)["trials/1.parquet"] == "second"


def test_a_folder_that_can_t_be_written_is_told(tmp_path: Path, keeper: Any) -> None:
    folder = filled(tmp_path / "study")

    def study() -> None:
        with lent_folder(keeper, folder) as there:
            (there / "config.json").unlink()
            (there / "config.json").mkdir()
            (there / "config.json" / "file").write_text("in a folder of a file's name")

    with pytest.raises(EngineError, match=r"config.json/file can't be written"):
        study()


def test_what_killed_processes_left_is_removed(tmp_path: Path, keeper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending.tempfile, "tempdir", str(tmp_path))
    left, others = tmp_path / f"{lending.PREFIX}{2**22 + 1}-abc", tmp_path / "fedscout-study-elsewhere-1-abc"
    for folder in (left, others):
        folder.mkdir()
    with lent_folder(keeper, tmp_path / "study"):
        assert not left.exists()
    assert others.exists()
