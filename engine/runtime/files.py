"""Atomic file writes, JSON files, folder locks and remote storage.

A file is written so that a reader, or the next run after a crash, sees all of it or nothing.

A folder is locked for one process by `flock` on a file in it, which is released when the process ends in any way. The
lock works between processes of one machine, and between machines on file systems that propagate it: NFS (as Linux
mounts it, unless `nolock` or `local_lock` is given), Lustre mounted with `flock`, GPFS, CephFS. A file system without
locks is rejected.

A storage is an object store or another node. It is mounted as a scratch folder: its files are read once, and from then
on each file that `write_atomically` writes or `remove_file` removes there is also written or removed in the storage
before the call returns. So programs work on paths, nothing is copied in the background, and the files written by a
killed process are there when the folder is mounted again. `FileStorage` is any file system of `pyarrow.fs`, such as
`s3://bucket/folder?region=eu-central-1`. A put into an object store is atomic; elsewhere a file is written under a
temporary name and moved. Object stores have no locks: two commands that write to one address repeat each other's work,
and leave files of the same content.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

from fedscout.engine.errors import ConfigurationError, EngineError, Fault, LogError, first_line
from fedscout.engine.runtime.processes import OWN_MARK, end_orphans

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNFINISHED = re.compile(r"\..*\.\d+\.tmp", re.DOTALL)


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write to a hidden file next to `path`, flush it to disk, and rename it into place; create its folder.

    A file in a folder mounted from a storage (`storage`) is also in the storage when this returns.
    """
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
    with folder_made(path.parent):
        try:
            write(temporary)
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
            upload(path)
        except OSError as error:
            if error.filename == str(temporary):
                error.filename = str(path)  # the name that a user knows
            raise
        finally:
            with suppress(OSError):  # which would hide the error of a failed write
                temporary.unlink(missing_ok=True)


def remove_file(path: Path) -> None:
    """Remove a file, if it exists, also from its storage."""
    path.unlink(missing_ok=True)
    if (mount := _mount_of(path)) is not None:
        mount[0].remove(mount[1])


def move_file(path: Path, target: Path) -> None:
    """Rename a file, also in its storage."""
    path.rename(target)
    upload(target)
    remove_file(path)


def json_text(content: Mapping[str, Any]) -> str:
    """Return the canonical text of a JSON file; equal documents give equal texts."""
    return json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n"


@contextmanager
def folder_made(folder: Path) -> Iterator[None]:
    """Create a folder and its parents; if the block fails, remove those that are still empty."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for each in missing:
            with suppress(OSError):
                each.rmdir()
        raise


def not_written(path: Path, error: OSError) -> Fault:
    """Return the fault of a failed write, with the free space if the disk is full."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    hint = None
    if error.errno in _DISK_FULL:
        existing = next(folder for folder in path.absolute().parents if folder.is_dir())
        hint = f"{shutil.disk_usage(existing).free / 1e9:.3g} GB are free there"
    return Fault(path, problem=f"can't be written: {reason}", hint=hint)


def remove_unfinished(folder: Path) -> None:
    """Remove unfinished files of killed processes in a folder; no other process may be writing there."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if is_unfinished(path) and (path.is_file() or path.is_symlink()):
            with suppress(OSError):
                path.unlink()


def is_unfinished(path: Path) -> bool:
    """Return whether a file has the name of an unfinished file of `write_atomically`."""
    return _UNFINISHED.fullmatch(path.name) is not None


FolderIdentity = tuple[int, int]


def folder_identity(folder: Path) -> FolderIdentity | None:
    """Return the identity of a folder, which differs for another folder of the same path; None if it is missing."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def check_same_folder(folder: Path, identity: FolderIdentity | None) -> None:
    """Check that a folder is still the one that was opened.

    Raises:
        EngineError: If it was replaced or removed; `identity` None accepts any folder.
    """
    if identity is not None and folder_identity(folder) != identity:
        raise EngineError(f"{folder} was moved or removed while it was being written; files there are left unchanged")


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        FileNotFoundError: If it does not exist.
        OSError: If it can't be read.
        ValueError: If it is no regular file, or holds anything but one JSON object.
    """
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise ValueError("it is not a file")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(content, dict):
        raise ValueError("it holds no JSON object")
    return content


LOCK = ".lock"
UNUSABLE = "--out must be a folder that can be written, got {path}: {reason}"


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock the folder, after killing orphans of an earlier holder that was killed on this machine.

    Raises:
        LogError: If it can't be written, another process holds the lock, or the folder can't be locked.
    """
    refuse_links(folder)
    lock = _open_locked(folder)
    try:
        pid, host, mark = _holder(lock)
        if pid and host == socket.gethostname():
            end_orphans(pid, mark)
        _write(lock, f"{os.getpid()} {socket.gethostname()} {OWN_MARK}")
        try:
            yield
        finally:
            _write(lock, "")
    finally:
        os.close(lock)


def refuse_links(folder: Path) -> None:
    """Check that a folder contains no symbolic links, which would redirect writes out of it.

    Raises:
        LogError: For the first link.
    """
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        if entry.is_symlink() and not is_unfinished(entry):
            raise LogError.of(entry, "not be a link, as a study writes only to its own folder")


def _open_locked(folder: Path) -> int:
    path = folder / LOCK
    while True:
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise LogError(UNUSABLE.format(path=folder, reason=error.strerror)) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if path.stat().st_ino == os.fstat(lock).st_ino:
                    return lock
        except OSError as error:
            pid, host, _ = _holder(lock)
            os.close(lock)
            if isinstance(error, (BlockingIOError, PermissionError)):
                raise LogError.of(
                    folder, problem=f"is in use by process {pid or 'unknown'} on {host or 'unknown'}"
                ) from error
            raise LogError.of("--out", "be on a file system with locks", f"{folder}: {error.strerror}") from error
        os.close(lock)  # its last holder has removed the file, with all that it had made


def _holder(lock: int) -> tuple[int, str, str]:
    """Return the process id, host and mark of the lock's current or killed holder; zero and empty without one."""
    with suppress(OSError, ValueError):
        pid, host, mark = os.pread(lock, 1000, 0).decode().split()
        return int(pid), host, mark
    return 0, "", ""


def _write(lock: int, text: str) -> None:
    with suppress(OSError):  # a full disk is reported where a file must be written
        os.ftruncate(lock, 0)
        os.pwrite(lock, text.encode(), 0)


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
        raise ConfigurationError.of("--out", "be a path or URI of pyarrow.fs", f"{uri}: {first_line(error)}") from error
    if not path.strip("/"):
        raise ConfigurationError.of("--out", "name a folder", uri)
    if filesystem.type_name == "local":
        return Path(path)
    parts = urlsplit(uri)  # the address appears in messages and logs: no options, no credentials
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
    storage, name = _mount_of(path) or (None, "")
    return storage if storage is None or not name else storage.below(name)


def upload(path: Path) -> None:
    """Write a file's content to its storage, if it has one."""
    if (mount := _mount_of(path)) is not None:
        mount[0].write(mount[1], path.read_bytes())


def with_addresses(text: str) -> str:
    """Return a text with scratch folders replaced by their storages' addresses."""
    for folder, storage in _mounts.items():
        text = text.replace(str(folder), str(storage))
    return text


def _mount_of(path: Path) -> tuple[Storage, str] | None:
    for folder, storage in _mounts.items():
        if (absolute := path.absolute()).is_relative_to(folder):
            name = absolute.relative_to(folder).as_posix()
            return storage, "" if name == "." else name
    return None


def _remove_left_behind() -> None:
    """Remove scratch folders of killed processes of this machine."""
    import psutil  # type: ignore[import-untyped]  # Ray brings it along

    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        pid = left.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
