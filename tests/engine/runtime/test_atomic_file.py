"""Files: whole or not there, also on a mounted storage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow.fs import LocalFileSystem, S3FileSystem

from fedscout.engine.errors import ConfigurationError
from fedscout.engine.runtime.files import move_file, remove_file, write_atomically
from fedscout.engine.runtime.storage import FileStorage, mounted, refresh, storage_at, storage_of, with_addresses


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


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


# -- A mounted storage holds what was written, as soon as it was, and gives it back; nothing else goes there -----------


@pytest.fixture(scope="module")
def s3() -> Iterator[S3FileSystem]:
    """A stand-in for S3 on this machine."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        keys = {"access_key": "a", "secret_key": "b", "region": "us-east-1"}
        yield S3FileSystem(**keys, endpoint_override=f"http://{host}:{port}", allow_bucket_creation=True)
    finally:
        server.stop()


@pytest.fixture(params=["local", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> FileStorage:
    if request.param == "local":
        return FileStorage(LocalFileSystem(), str(tmp_path / "kept"), "local://kept")
    filesystem: S3FileSystem = request.getfixturevalue("s3")
    filesystem.create_dir(tmp_path.name)
    return FileStorage(filesystem, f"{tmp_path.name}/kept", "s3://kept")


def write(path: Path, text: str) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(text))


def contents(storage: FileStorage) -> dict[str, str]:
    return {name: storage.read(name).decode() for name in storage.names()}


@pytest.mark.slow
def test_a_file_is_there_when_it_is_written_and_comes_back(storage: FileStorage) -> None:
    with mounted(storage) as folder:
        assert contents(storage) == {}
        write(folder / "config.json", "{}")
        write(folder / "trials" / "0.parquet", "first")
        write(folder / "trials" / "1.parquet", "second")
        (folder / ".lock").write_text("this process")
        assert contents(storage) == {"config.json": "{}", "trials/0.parquet": "first", "trials/1.parquet": "second"}
        remove_file(folder / "config.json")
        (folder / "quarantine").mkdir()
        move_file(folder / "trials" / "1.parquet", folder / "quarantine" / "1.parquet")
        expected = {"trials/0.parquet": "first", "quarantine/1.parquet": "second"}
        assert contents(storage) == expected
    assert not folder.exists()
    with mounted(storage) as again:
        there = {path.relative_to(again).as_posix(): path.read_text() for path in again.rglob("*") if path.is_file()}
        assert there == expected


@pytest.mark.slow
def test_what_another_process_writes_below_is_read_when_asked_for(storage: FileStorage) -> None:
    with mounted(storage) as folder:
        below = storage_of(folder / "studies" / "one")
        assert below == storage.below("studies/one")
        below.write("result.json", b"{}")
        refresh(folder / "studies" / "one")
        assert (folder / "studies" / "one" / "result.json").read_text() == "{}"
        assert with_addresses(f"in {folder}/studies") == f"in {storage}/studies"


def test_a_folder_of_this_machine_has_no_storage(tmp_path: Path) -> None:
    assert storage_of(tmp_path) is None
    refresh(tmp_path)
    assert storage_at(f"file://{tmp_path}") == tmp_path


@pytest.mark.parametrize("uri", ["nonsense://bucket/name", "s3://"])
def test_an_address_that_nothing_can_open_is_refused(uri: str) -> None:
    with pytest.raises(ConfigurationError):
        storage_at(uri)
