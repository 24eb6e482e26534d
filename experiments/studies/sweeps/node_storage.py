"""A folder on the command's node as the storage of a study on another: whole files go there and back as values of Ray.

An actor on the command's node writes them, and holds the lock of each study's folder until the study ends. A process
that was given up and still writes harms nothing: it does the same work, and its files are those of the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedscout.engine.errors import EngineError
from fedscout.engine.runtime.atomic_file import folder_made, not_written, write_atomically
from fedscout.engine.runtime.folder_lock import LOCK, folder_lock
from fedscout.experiments.studies.sweeps.sweep_folder import await_release


class FolderActor:
    """Reads and writes folders of studies on its node."""

    def __init__(self) -> None:
        self._held: dict[Path, ExitStack] = {}

    def names(self, folder: Path) -> list[str]:
        """Hold a folder, and return the names of its files.

        Raises:
            LogError: If it can't be had.
        """
        if folder not in self._held:
            await_release(folder)
            with ExitStack() as stack:
                stack.enter_context(folder_made(folder))
                stack.enter_context(folder_lock(folder))
                self._held[folder] = stack.pop_all()
        files = (path for path in sorted(folder.rglob("*")) if path.is_file())
        return [path.relative_to(folder).as_posix() for path in files]

    def read(self, folder: Path, name: str) -> bytes:
        """Return a file's content."""
        return (folder / name).read_bytes()

    def write(self, folder: Path, name: str, content: bytes) -> None:
        """Write a file.

        Raises:
            EngineError: If it can't be written.
        """
        path = folder / name
        try:
            write_atomically(path, partial(Path.write_bytes, data=content))
        except OSError as error:
            raise EngineError(not_written(path, error)) from error

    def remove(self, folder: Path, name: str) -> None:
        """Remove a file, if it is there."""
        (folder / name).unlink(missing_ok=True)

    def release(self, folder: Path) -> None:
        """Let a folder go, and remove it if nothing was found out in it."""
        held = self._held.pop(folder, None)
        if held is not None:
            if {entry.name for entry in folder.iterdir()} <= {LOCK}:
                (folder / LOCK).unlink(missing_ok=True)
                folder.rmdir()
            held.close()


@dataclass(frozen=True)
class NodeStorage:
    """A study's folder on the node of a `FolderActor`.

    Attributes:
        actor: Its handle.
        folder: Absolute.
    """

    actor: Any
    folder: Path

    def __str__(self) -> str:
        return str(self.folder)

    def below(self, name: str) -> NodeStorage:
        """Return the storage of a folder in this one."""
        return replace(self, folder=self.folder / name)

    def names(self) -> Sequence[str]:
        """Return the names of all files."""
        found: list[str] = _answer(self.actor.names.remote(self.folder))
        return found

    def read(self, name: str) -> bytes:
        """Return a file's content."""
        content: bytes = _answer(self.actor.read.remote(self.folder, name))
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write a file; its readers see all of it or nothing."""
        _answer(self.actor.write.remote(self.folder, name, content))

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        _answer(self.actor.remove.remote(self.folder, name))

    def release(self) -> None:
        """Let others have the folder."""
        _answer(self.actor.release.remote(self.folder))


def _answer(call: Any) -> Any:
    import ray
    from ray.exceptions import RayTaskError

    try:
        return ray.get(call)
    except RayTaskError as error:
        raise error.cause or error from None
