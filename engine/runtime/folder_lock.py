"""A folder for one process at a time, by a lock that ends with the process that holds it, however it ends.

The lock is `flock` on a file in the folder. It holds between processes of one machine, and between machines on file
systems that pass it on: NFS (as Linux mounts it, unless `nolock` or `local_lock` is given), Lustre mounted with
`flock`, GPFS, CephFS. A file system that knows no locks is refused.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedscout.engine.errors import Fault, LogError
from fedscout.engine.runtime.atomic_file import is_unfinished
from fedscout.engine.runtime.orphan_processes import OWN_MARK, end_orphans

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
                raise LogError(f"{folder} is in use by process {pid or 'unknown'} on {host or 'unknown'}") from error
            raise LogError(f"--out must be on a file system with locks, got {folder}: {error.strerror}") from error
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
