"""A folder of the command's node as a storage: what is written elsewhere is here, and nobody else has it meanwhile."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedscout.engine.errors import EngineError, LogError
from fedscout.engine.runtime.files import folder_lock, remove_file, write_atomically
from fedscout.engine.runtime.storage import mounted
from fedscout.experiments.sweeps import workers
from fedscout.experiments.sweeps.workers import FolderActor, NodeStorage


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeStorage:
    """The storage of `study`, with an actor in this process."""
    own: Any = FolderActor()
    monkeypatch.setattr(workers, "_answer", lambda answer: answer)
    methods = ("names", "read", "write", "remove", "release")
    return NodeStorage(
        SimpleNamespace(**{name: SimpleNamespace(remote=getattr(own, name)) for name in methods}), tmp_path / "study"
    )


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def write(path: Path, text: str) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(text))


def test_what_is_written_there_is_here(storage: NodeStorage) -> None:
    (storage.folder / "trials").mkdir(parents=True)
    (storage.folder / "trials" / "0.parquet").write_text("first")
    with mounted(storage) as there:
        assert contents(there) == {"trials/0.parquet": "first"}
        write(there / "trials" / "1.parquet", "second")
        write(there / "config.json", "{}")
        assert contents(storage.folder) == contents(there)
        remove_file(there / "config.json")
    assert contents(storage.folder) == {"trials/0.parquet": "first", "trials/1.parquet": "second"}


def test_nobody_else_has_it_until_it_is_released(storage: NodeStorage) -> None:
    with mounted(storage), pytest.raises(LogError), folder_lock(storage.folder):
        pass
    with mounted(storage):  # begun again, as the process that had it has died
        pass
    storage.release()
    assert not storage.folder.exists()  # as nothing was found out


def test_what_can_t_be_written_here_is_an_error_there(storage: NodeStorage) -> None:
    (storage.folder / "config.json").mkdir(parents=True)
    (storage.folder / "config.json" / "file").write_text("in a folder of a file's name")
    with mounted(storage) as there, pytest.raises(EngineError):
        storage.write("config.json", b"{}")
    assert not there.exists()
