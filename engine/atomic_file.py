"""Write a file so that a reader, or the next run after a crash, sees all of it or nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write to a hidden file beside `path`, flush it to disk, and rename it into place.

    Args:
        path: The final file; its folder is made if missing.
        write: Writes the content to the path it is given.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
