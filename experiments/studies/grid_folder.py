"""The folder of a grid of studies or cells: who may use it, and atomic writes of its files."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fedscout.engine.errors import EngineError, LogError
from fedscout.engine.runtime.files import (
    UNUSABLE,
    folder_lock,
    folder_made,
    not_written,
    read_json_object,
    remove_unfinished,
    write_atomically,
)

STUDIES = "studies"


class GridFolder:
    """The folder of a grid, as an absolute path."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write one of the folder's JSON files atomically."""
        self.write_text(name, json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a text file of the folder atomically."""
        self.write(name, lambda temporary: temporary.write_text(text))

    def write(self, name: str, write: Callable[[Path], object]) -> None:
        """Write a file of the folder atomically; `write` writes the content to the path that it receives.

        Raises:
            EngineError: If writing fails, for example on a full disk.
        """
        path = self.path / name
        try:
            write_atomically(path, write)
        except OSError as error:
            raise EngineError(not_written(path, error)) from error


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the content of a JSON file; None if it is missing or can't be read."""
    try:
        return read_json_object(path)
    except (OSError, ValueError):
        return None


@contextmanager
def locked_folder(path: Path) -> Iterator[GridFolder]:
    """Yield a folder, created if missing, that this process alone uses.

    Raises:
        LogError: If it is not writable or is in use.
    """
    path = path.absolute()
    with ExitStack() as stack:
        try:
            stack.enter_context(folder_made(path))
        except OSError as error:
            raise LogError(UNUSABLE.format(path=path, reason=error.strerror)) from error
        stack.enter_context(folder_lock(path))
        remove_unfinished(path)
        yield GridFolder(path)


def refuse_others(path: Path, own: Collection[str] = ()) -> None:
    """Check that a folder holds nothing, or is missing, besides hidden files and files of these names.

    Raises:
        LogError: If it holds anything else, or can't be read.
    """
    try:
        names = {entry.name for entry in path.iterdir()} if path.exists() else set()
    except OSError as error:
        raise LogError(UNUSABLE.format(path=path, reason=error.strerror)) from error
    others = sorted(name for name in names - {*own} if not name.startswith("."))
    if others:
        must = "be a new or empty folder, or that of an earlier command"
        raise LogError.of("--out", must, f"{path} with {', '.join(others[:5])}")
