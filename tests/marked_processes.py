"""Processes of a test that start others in turn: all of them bear a mark, by which they are found and ended.

Ray's daemons leave the group and the session of the command that starts them, and outlive it; their environment stays.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

MARK = "FEDSCOUT_TEST_MARK"
STOP_SECONDS = 30


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """Give a new folder with a short path: Ray's sockets lie below it, and a socket's path has at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="fs-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class MarkedProcesses:
    """Commands with one mark, ended with all that they have started when the block ends.

    Attributes:
        stubborn: Names of those that had to be killed at the end.
    """

    def __init__(self) -> None:
        self.stubborn: list[str] = []
        self._mark = uuid.uuid4().hex
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.end()

    def start(
        self, command: Sequence[str], environment: dict[str, str], log: Path, cwd: Path
    ) -> subprocess.Popen[bytes]:
        """Start a command, in a session of its own."""
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env={**environment, MARK: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def alive(self) -> list[psutil.Process]:
        """Return every running process with the mark, however deep."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                if process.environ().get(MARK) == self._mark:
                    found.append(process)
        return found

    def kill(self) -> None:
        """Kill all commands and all that they have started, and what these start meanwhile."""
        while alive := self.alive():
            for process in alive:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(0.01)
        for starter in self._started:
            starter.wait(STOP_SECONDS)
        self._started.clear()

    def end(self) -> None:
        """Ask all commands to end, the latest first, then kill what is left of them and of what they started."""
        for starter in reversed(self._started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(starter.pid, signal.SIGTERM)
        for starter in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                starter.wait(STOP_SECONDS)
        _, alive = psutil.wait_procs(self.alive(), timeout=STOP_SECONDS)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                self.stubborn.append(process.name())
                process.kill()
        psutil.wait_procs(alive, timeout=STOP_SECONDS)
        for starter in self._started:
            starter.wait(STOP_SECONDS)
        self._started.clear()
