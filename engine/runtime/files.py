"""Atomic whole-file writes, JSON files and folder locks.

Write a file so that a reader, or the next run after a crash, sees all of it or nothing.

Reading a JSON file that anybody may have written: it holds one object, or the reason why not is told.

A folder for one process at a time, by a lock that ends with the process that holds it, however it ends.

The lock is `flock` on a file in the folder. It holds between processes of one machine, and between machines on file
systems that pass it on: NFS (as Linux mounts it, unless `nolock` or `local_lock` is given), Lustre mounted with
`flock`, GPFS, CephFS. A file system that knows no locks is refused.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedscout.engine.errors import EngineError, Fault, LogError
from fedscout.engine.runtime.processes import OWN_MARK, end_orphans
from fedscout.engine.runtime.storage import hand_on, hand_on_removal

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_UNFINISHED = re.compile(r"\..*\.\d+\.tmp", re.DOTALL)


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write to a hidden file beside `path`, flush it to disk, and rename it into place; make its folder.

    A file of a folder that is kept elsewhere (`storage`) is there, too, when this returns.
    """
    with folder_made(path.parent):
        temporary = write_beside(path, write)
        try:
            temporary.replace(path)
            hand_on(path)
        finally:
            remove_quietly(temporary)


def remove_file(path: Path) -> None:
    """Remove a file, if it is there, also from where it is kept."""
    path.unlink(missing_ok=True)
    hand_on_removal(path)


def move_file(path: Path, target: Path) -> None:
    """Rename a file, also where it is kept."""
    path.rename(target)
    hand_on(target)
    hand_on_removal(path)


def json_text(content: Mapping[str, Any]) -> str:
    """Return a document as every JSON file holds it; equal documents are equal texts."""
    return json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n"


def write_beside(path: Path, write: Callable[[Path], object]) -> Path:
    """Write to a hidden file beside `path`, flush it to disk, and return it; nothing is left if that fails."""
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
    except BaseException as error:
        remove_quietly(temporary)
        if isinstance(error, OSError) and error.filename == str(temporary):
            error.filename = str(path)  # the name that a user knows
        raise
    return temporary


def remove_quietly(path: Path) -> None:
    """Remove a file, if that goes: what hinders the writing may hinder this, and is what is told."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


@contextmanager
def folder_made(folder: Path) -> Iterator[None]:
    """Make a folder and those above it; a block that fails leaves none of them that is empty."""
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for each in made:
            with suppress(OSError):
                each.rmdir()
        raise


def not_written(path: Path, error: OSError) -> Fault:
    """Return what could not be written and why, with the room that is left where that is the reason."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    hint = None
    if error.errno in _NO_ROOM:
        there = next(folder for folder in path.absolute().parents if folder.is_dir())
        hint = f"{_readable(shutil.disk_usage(there).free)} are free there"
    return Fault(path, problem=f"can't be written: {reason}", hint=hint)


def remove_unfinished(folder: Path) -> None:
    """Remove what killed processes were writing in a folder; nobody else may be writing there."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if is_unfinished(path) and (path.is_file() or path.is_symlink()):
            with suppress(OSError):
                path.unlink()


def is_unfinished(path: Path) -> bool:
    """Whether a file is called as `write_beside` calls what it has not finished."""
    return _UNFINISHED.fullmatch(path.name) is not None


FolderIdentity = tuple[int, int]


def folder_identity(folder: Path) -> FolderIdentity | None:
    """Return by what a folder is told from another of its name; None if it is not there."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def check_same_folder(folder: Path, identity: FolderIdentity | None) -> None:
    """Refuse to write into a folder that took the place of the one that was opened, or is gone.

    Raises:
        EngineError: If it is another; `identity` None is any.
    """
    if identity is not None and folder_identity(folder) != identity:
        raise EngineError(f"{folder} was moved away or removed while it was written to; what is there stays as it is")


def _readable(num_bytes: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} GB"


def read_json_object(path: Path) -> dict[str, Any]:
    """Return what a file holds.

    Raises:
        FileNotFoundError: If it is not there.
        OSError: If it can't be read.
        ValueError: If it is no file, or holds anything but one JSON object.
    """
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise ValueError("it is no file")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(content, dict):
        raise ValueError("it holds no JSON object")
    return content


LOCK = ".lock"
UNUSABLE = "--out must be a folder that can be written, got {path}: {reason}"


class UnwritableFolderError(LogError):
    """The folder can't be written."""


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the folder; end what an earlier holder left running, if it was killed on this machine.

    Raises:
        UnwritableFolderError: If it can't be written.
        LogError: If another process holds it, or if it can't be locked.
    """
    refuse_links(folder)
    lock = _open_locked(folder)
    try:
        _end_what_was_left(_holder(lock))
        _write(lock, f"{os.getpid()} {socket.gethostname()} {OWN_MARK}")
        try:
            yield
        finally:
            _write(lock, "")
    finally:
        os.close(lock)


def refuse_links(folder: Path) -> None:
    """Refuse a folder in which something is a link, by which what is written there would come to lie elsewhere.

    Raises:
        LogError: With the first of them.
    """
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        if entry.is_symlink() and not is_unfinished(entry):
            raise LogError(Fault(entry, "be no link, as what a study writes stays in its folder"))


def _open_locked(folder: Path) -> int:
    path = folder / LOCK
    while True:
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise UnwritableFolderError(UNUSABLE.format(path=folder, reason=error.strerror)) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(path, lock):
                return lock
        except OSError as error:
            pid, host, _ = _holder(lock)
            os.close(lock)
            if isinstance(error, (BlockingIOError, PermissionError)):
                raise LogError(
                    Fault(folder, problem=f"is in use by process {pid or 'unknown'} on {host or 'unknown'}")
                ) from error
            raise LogError(Fault("--out", "be on a file system with locks", f"{folder}: {error.strerror}")) from error
        os.close(lock)  # its last holder has removed the file, with all that it had made


def _is_still(path: Path, lock: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(lock).st_ino
    except FileNotFoundError:
        return False


def _holder(lock: int) -> tuple[int, str, str]:
    """Return process, machine and mark of who holds the lock, or ended without a word; zero and empty if nobody."""
    with suppress(OSError, ValueError):
        pid, host, mark = os.pread(lock, 1000, 0).decode().split()
        return int(pid), host, mark
    return 0, "", ""


def _write(lock: int, text: str) -> None:
    with suppress(OSError):  # a full disk is told by what must be written
        os.ftruncate(lock, 0)
        os.pwrite(lock, text.encode(), 0)


def _end_what_was_left(holder: tuple[int, str, str]) -> None:
    pid, host, mark = holder
    if pid and host == socket.gethostname():
        end_orphans(pid, mark)
