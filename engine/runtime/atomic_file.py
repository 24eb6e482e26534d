"""Write a file so that a reader, or the next run after a crash, sees all of it or nothing."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedscout.engine.errors import EngineError
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


def not_written(path: Path, error: OSError) -> str:
    """Return what could not be written and why, with the room that is left where that is the reason."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    text = f"{path} can't be written: {reason}"
    if error.errno not in _NO_ROOM:
        return text
    there = next(folder for folder in path.absolute().parents if folder.is_dir())
    return f"{text}; {_readable(shutil.disk_usage(there).free)} are free there"


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
