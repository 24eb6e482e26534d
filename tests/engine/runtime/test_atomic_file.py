"""All of a file or nothing of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedscout.engine.runtime.files import write_atomically


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_file_appears_whole_in_a_folder_made_for_it(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a" / "b" / "file", lambda path: path.write_bytes(b"content"))

    assert files_below(tmp_path) == ["a/b/file"]
    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"content"


def test_a_file_is_replaced_at_once(tmp_path: Path) -> None:
    target = tmp_path / "folder" / "file"
    write_atomically(target, lambda path: path.write_bytes(b"old"))

    def write(path: Path) -> None:
        path.write_bytes(b"new")
        assert target.read_bytes() == b"old"
        assert path.name.startswith(".")

    write_atomically(target, write)

    assert target.read_bytes() == b"new"
    assert files_below(tmp_path) == ["folder/file"]


@pytest.mark.parametrize("existing", [None, b"old"])
def test_a_crash_in_writing_changes_nothing(tmp_path: Path, existing: bytes | None) -> None:
    target = tmp_path / "folder" / "file"
    if existing is not None:
        write_atomically(target, lambda path: path.write_bytes(existing))

    def crash(path: Path) -> None:
        path.write_bytes(b"half a")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk"):
        write_atomically(target, crash)

    assert files_below(tmp_path) == ([] if existing is None else ["folder/file"])
    assert existing is None or target.read_bytes() == existing


def test_a_crash_before_the_rename_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError("no sync")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="sync"):
        write_atomically(tmp_path / "folder" / "file", lambda path: path.write_bytes(b"content"))

    assert files_below(tmp_path) == []
