"""`fedscout` as a process of its own, with the tree of processes that it starts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from fedscout.experiments.studies.workflow import FinishedStudy
from tests.commands import REPOSITORY, environment_without

START_SECONDS = 120.0
"""Ray may take long to start on a busy machine."""

GRACE_SECONDS = 5.0
"""For processes that end because another one did."""


class Command:
    """A running `fedscout`, in a process group of its own; what is left of its tree is killed at the end.

    Args:
        folder: Working directory.
        arguments: Of the command line.
        before: A statement that its process runs first.
    """

    def __init__(self, folder: Path, *arguments: str, before: str = "") -> None:
        self._tree: dict[int, psutil.Process] = {}
        start = f"{before}\nfrom fedscout.experiments.cli.main import main\nmain()"
        program = ["-c", start] if before else ["-m", "fedscout.experiments.cli.main"]
        self.process = subprocess.Popen(
            [sys.executable, *program, *arguments],
            cwd=folder,
            env=environment_without("RAY_ADDRESS") | {"PYTHONPATH": str(REPOSITORY / "src")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.process.poll() is None:
            self.tree()
            self.process.kill()
        self.process.communicate()
        for process in self.alive():
            process.kill()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds; the command must still be running."""
        deadline = time.monotonic() + START_SECONDS
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        self.tree()

    def wait_for_process(self, is_wanted: Callable[[psutil.Process], bool]) -> psutil.Process:
        """Wait until a process of the tree is what is wanted, which it may be for moments only, and return it."""
        found: list[psutil.Process] = []

        def look() -> bool:
            self.tree()
            with contextlib.suppress(psutil.NoSuchProcess):
                found.extend(process for process in self.alive() if is_wanted(process))
            return bool(found)

        self.wait_until(look)
        return found[0]

    def tree(self) -> list[psutil.Process]:
        """Return the processes that the command started, and theirs, as they are now, and note them."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        self._tree.update({process.pid: process for process in found})
        return found

    def left_over(self) -> list[psutil.Process]:
        """Return the processes of the tree that outlive the command by more than a moment."""
        deadline = time.monotonic() + GRACE_SECONDS
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.alive()

    def alive(self) -> list[psutil.Process]:
        """Return the processes of the tree, as far as it was noted, that still run."""
        return [one for one in self._tree.values() if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]

    def interrupt(self) -> None:
        """Do what Ctrl-C in a terminal does: SIGINT to the whole group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self) -> tuple[int, str, str]:
        """Wait for the command; return its exit code, standard output and standard error."""
        out, err = self.process.communicate(timeout=240)
        return self.process.returncode, out, err

    def succeeds(self) -> str:
        """Wait for the command, which writes nothing to standard error, and return its standard output."""
        code, out, err = self.end()
        assert (code, err) == (0, "")
        return out


def lasting_result(folder: Path) -> dict[str, Any]:
    """Return the result that a study wrote, without its timings."""
    document: dict[str, Any] = json.loads((folder / "result.json").read_text())
    assert document.pop("timings")
    return document


def lasting(found: FinishedStudy) -> dict[str, Any]:
    """Return what a study found, as it is written, without its timings."""
    document: dict[str, Any] = json.loads(json.dumps(found.document))
    assert document.pop("timings")
    return document
