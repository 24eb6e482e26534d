"""A study's folder on the node that drives the study: brought there, and back as it grows.

All that a study leaves in its folder it renames into place (`atomic_file`), so every file that is there is whole, and
what has come back is a folder that goes on wherever the study is begun again. A process that was given up and still
sends harms nothing: it does the same work, and its files are those of the next one. Hidden files stay where they are:
locks, and what is half written.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple

from fedscout.engine.errors import EngineError
from fedscout.engine.runtime.atomic_file import folder_made, not_written, write_atomically
from fedscout.engine.runtime.folder_lock import LOCK, folder_lock
from fedscout.experiments.studies.sweeps.sweep_folder import await_release

SECONDS_BETWEEN = 2.0
"""What a study that is begun again on another node may have to repeat."""

PREFIX = f"fedscout-study-{socket.gethostname()}-"


class FolderKeeper:
    """Reads and writes folders of studies on the sweep's node, and holds those that are lent."""

    def __init__(self) -> None:
        self._held: dict[Path, ExitStack] = {}

    def lend(self, folder: Path) -> dict[str, bytes]:
        """Hold a study's folder, and return its files.

        Raises:
            LogError: If it can't be had.
        """
        if folder not in self._held:
            await_release(folder)
        self._hold(folder)
        return {name: (folder / name).read_bytes() for name in _files_in(folder)}

    def keep(self, folder: Path, changed: Mapping[str, bytes], gone: Sequence[str], last: bool) -> None:
        """Write and remove files of a folder that is lent, and let it go with the last ones.

        Raises:
            EngineError: If one can't be written.
            LogError: If this process was begun anew, and can't have the folder again.
        """
        self._hold(folder)
        for name, content in changed.items():
            try:
                write_atomically(folder / name, partial(_write, content))
            except OSError as error:
                raise EngineError(not_written(folder / name, error)) from error
        for name in gone:
            (folder / name).unlink(missing_ok=True)
        if last:
            self._held.pop(folder).close()

    def _hold(self, folder: Path) -> None:
        if folder in self._held:
            return
        with ExitStack() as stack:
            stack.enter_context(folder_made(folder))
            stack.enter_context(folder_lock(folder))
            stack.callback(_remove_if_empty, folder)
            self._held[folder] = stack.pop_all()


def _write(content: bytes, path: Path) -> None:
    path.write_bytes(content)


def _remove_if_empty(folder: Path) -> None:
    """Remove a folder in which a study found nothing out, as the study itself does."""
    if {entry.name for entry in folder.iterdir()} <= {LOCK}:
        (folder / LOCK).unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()


class State(NamedTuple):
    """What tells a file from the one that it replaces."""

    written_ns: int
    num_bytes: int
    inode: int


def _files_in(folder: Path) -> dict[str, State]:
    """Return the files of a folder in the order in which they were written: a result comes last."""
    found = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(place) / name
            with suppress(FileNotFoundError):
                if not name.startswith(".") and path.is_file():
                    status = path.stat()
                    state = State(status.st_mtime_ns, status.st_size, status.st_ino)
                    found[path.relative_to(folder).as_posix()] = state
    return dict(sorted(found.items(), key=lambda file: file[1]))


class _Mirror:
    """Sends back what changes in a folder."""

    def __init__(self, keeper: Any, folder: Path, here: Path) -> None:
        self._keeper, self._folder, self._here = keeper, folder, here
        self._sent = _files_in(here)

    def send(self, last: bool = False) -> None:
        """Send what changed since the last time."""
        there = _files_in(self._here)
        changed = {}
        for name in [name for name in there if self._sent.get(name) != there[name]]:
            with suppress(FileNotFoundError):
                changed[name] = (self._here / name).read_bytes()
        gone = [name for name in self._sent if name not in there]
        if changed or gone or last:
            _answer(self._keeper.keep.remote(self._folder, changed, gone, last))
        self._sent = there

    def send_until(self, over: Event) -> None:
        """Send again and again; what fails is sent with the rest."""
        while not over.wait(SECONDS_BETWEEN):
            with suppress(Exception):
                self.send()


@contextmanager
def lent_folder(keeper: Any, folder: Path) -> Iterator[Path]:
    """Give a study's folder here as it is on the sweep's node, and send what changes back; at the end all of it.

    Args:
        keeper: Handle of the `FolderKeeper`.
        folder: On the sweep's node, absolute.

    Raises:
        LogError: If the folder can't be had.
        EngineError: If it can't be written in the end.
    """
    _remove_left_behind()
    files = _answer(keeper.lend.remote(folder))
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-") as place:
        here = Path(place) / folder.name
        for name, content in files.items():
            (here / name).parent.mkdir(parents=True, exist_ok=True)
            (here / name).write_bytes(content)
        mirror, over = _Mirror(keeper, folder, here), Event()
        sending = Thread(target=mirror.send_until, args=(over,), name="mirror", daemon=True)
        sending.start()
        try:
            yield here
        finally:
            over.set()
            sending.join()
            mirror.send(last=True)


def _answer(call: Any) -> Any:
    import ray
    from ray.exceptions import RayTaskError

    try:
        return ray.get(call)
    except RayTaskError as error:
        raise error.cause or error from None


def _remove_left_behind() -> None:
    """Remove what killed processes of this machine have left."""
    import psutil  # type: ignore[import-untyped]  # Ray brings it along

    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        pid = left.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
