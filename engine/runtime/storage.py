"""Remote storage of folders: an object store, or another node. Whole files are transferred as values.

A storage is mounted as a scratch folder: its files are read once, and from then on each file that `write_atomically`
writes or `remove_file` removes there is also written or removed in the storage before the call returns. So programs
work on paths, nothing is copied in the background, and the files written by a killed process are there when the folder
is mounted again.

`FileStorage` is any file system of `pyarrow.fs`, such as `s3://bucket/folder?region=eu-central-1`. A put into an object
store is atomic; elsewhere a file is written under a temporary name and moved. Object stores have no locks: two commands
that write to one address repeat each other's work, and leave files of the same content.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

from fedscout.engine.errors import ConfigurationError, LogError, first_line

PREFIX = f"fedscout-{socket.gethostname()}-"
OBJECT_STORES = ("s3", "gcs", "abfs")


class Storage(Protocol):
    """Files of a folder by their relative names, with `/` between folders."""

    def below(self, name: str) -> Self:
        """Return the storage of a subfolder."""

    def names(self) -> Sequence[str]:
        """Return the names of all files."""

    def read(self, name: str) -> bytes:
        """Return a file's content."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically."""

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""


@dataclass(frozen=True)
class FileStorage:
    """A folder of a `pyarrow.fs.FileSystem`.

    Attributes:
        filesystem: The file system.
        path: Path of the folder in it.
        address: Address for messages, without options.
    """

    filesystem: Any
    path: str
    address: str

    def __str__(self) -> str:
        return self.address

    def below(self, name: str) -> FileStorage:
        """Return the storage of a subfolder."""
        return replace(self, path=f"{self.path}/{name}", address=f"{self.address}/{name}")

    def names(self) -> list[str]:
        """Return the names of all files."""
        from pyarrow.fs import FileSelector, FileType

        entries = self.filesystem.get_file_info(FileSelector(self.path, recursive=True, allow_not_found=True))
        return [entry.path.removeprefix(f"{self.path}/") for entry in entries if entry.type == FileType.File]

    def read(self, name: str) -> bytes:
        """Return a file's content."""
        with self.filesystem.open_input_stream(f"{self.path}/{name}") as stream:
            content: bytes = stream.read()
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically."""
        target = f"{self.path}/{name}"
        is_atomic = self.filesystem.type_name in OBJECT_STORES
        folder, _, last = target.rpartition("/")
        place = target if is_atomic else f"{folder}/.{last}.{os.getpid()}.tmp"
        if not is_atomic:
            self.filesystem.create_dir(folder, recursive=True)
        with self.filesystem.open_output_stream(place) as stream:
            stream.write(content)
        if not is_atomic:
            self.filesystem.move(place, target)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        from pyarrow.fs import FileType

        if self.filesystem.get_file_info(f"{self.path}/{name}").type == FileType.File:
            self.filesystem.delete_file(f"{self.path}/{name}")


def is_address(text: str) -> bool:
    """Return whether a text is a URI instead of a path."""
    return "://" in text


def storage_at(uri: str) -> FileStorage | Path:
    """Return the storage of a URI, or the path of a `file://` URI.

    Raises:
        ConfigurationError: If `pyarrow.fs` can't open it, or it names no folder.
    """
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    try:
        filesystem, path = FileSystem.from_uri(uri)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigurationError.of(
            "--out", "be a path or a URI of pyarrow.fs", f"{uri}: {first_line(error)}"
        ) from error
    if not path.strip("/"):
        raise ConfigurationError.of("--out", "name a folder", uri)
    if filesystem.type_name == "local":
        return Path(path)
    parts = urlsplit(uri)  # the address is told and logged: no options, no credentials
    place = parts.netloc.rpartition("@")[2]
    return FileStorage(filesystem, path.rstrip("/"), f"{parts.scheme}://{place}{parts.path}".rstrip("/"))


_mounts: dict[Path, Storage] = {}
"""Storages by their scratch folders, of this process."""


@contextmanager
def mounted(storage: Storage, name: str = "out") -> Iterator[Path]:
    """Yield a scratch folder of this name that is mounted from a storage, for the duration of the block.

    Raises:
        LogError: If the storage can't be read.
    """
    _remove_left_behind()
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-") as place:
        folder = Path(place).resolve() / name
        folder.mkdir()
        with mounted_at(folder, storage):
            refresh(folder)
            yield folder


@contextmanager
def mounted_at(folder: Path, storage: Storage | None) -> Iterator[None]:
    """Mount a folder whose writes go to a storage, as in the process that mounted it; None does nothing."""
    if storage is None or folder in _mounts:
        yield
        return
    _mounts[folder] = storage
    try:
        yield
    finally:
        del _mounts[folder]


def refresh(folder: Path) -> None:
    """Read into a mounted folder what others have written to its storage; do nothing for other folders.

    Raises:
        LogError: If it can't be read.
    """
    storage = storage_of(folder)
    if storage is None:
        return
    try:
        names = [name for name in storage.names() if not any(part.startswith(".") for part in name.split("/"))]
        for name in names:  # hidden files are locks and what is half written
            content = storage.read(name)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    except OSError as error:
        raise LogError.of("--out", "be a readable storage", f"{storage}: {first_line(error)}") from error


def storage_of(path: Path) -> Storage | None:
    """Return the storage of a folder in a mounted one; None if it is not mounted."""
    mount = _mount_of(path)
    if mount is None:
        return None
    storage, name = mount
    return storage.below(name) if name else storage


def upload(path: Path) -> None:
    """Write a file's content to its storage, if it has one."""
    mount = _mount_of(path)
    if mount is not None:
        mount[0].write(mount[1], path.read_bytes())


def remove_uploaded(path: Path) -> None:
    """Remove a file from its storage, if it has one."""
    mount = _mount_of(path)
    if mount is not None:
        mount[0].remove(mount[1])


def with_addresses(text: str) -> str:
    """Return a text with scratch folders replaced by their storages' addresses."""
    for folder, storage in _mounts.items():
        text = text.replace(str(folder), str(storage))
    return text


def _mount_of(path: Path) -> tuple[Storage, str] | None:
    if not _mounts:
        return None
    path = path.absolute()
    for folder, storage in _mounts.items():
        if path.is_relative_to(folder):
            name = path.relative_to(folder).as_posix()
            return storage, "" if name == "." else name
    return None


def _remove_left_behind() -> None:
    """Remove scratch folders of killed processes of this machine."""
    import psutil  # type: ignore[import-untyped]  # Ray brings it along

    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        pid = left.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            rmtree(left, ignore_errors=True)
