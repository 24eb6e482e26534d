"""Studies that run as processes of their own while an agent does something else."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedscout.engine.errors import UserError
from fedscout.experiments.visible import visible_line

COMMAND = (sys.executable, "-m", "fedscout.experiments.cli.watched_command")
END_SECONDS = 20.0
"""A study that is told to end closes its log and its processes first."""
LAST_LINES = 5


@dataclass
class StartedStudies:
    """The commands that one server runs, each in the server's folder, and none longer than the server.

    Attributes:
        root: Working directory of all commands.
        running: By folder, each study that was started here, finished ones included.
    """

    root: Path
    running: dict[Path, subprocess.Popen[bytes]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _held: tuple[int, int] = field(default_factory=os.pipe)
    """Standard input of all commands, and the end that is this process's alone."""

    def answer(self, *arguments: str, max_seconds: float) -> Any:
        """Run a command to its end, and return its document.

        Raises:
            UserError: With what the command says of a mistake, or that it took longer and was ended.
        """
        with subprocess.Popen(  # noqa: S603
            [*COMMAND, *arguments],
            cwd=self.root,
            stdin=self._held[0],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                document, words = process.communicate(timeout=max_seconds)
            except subprocess.TimeoutExpired:
                process.terminate()
                _wait_for(process)
                late = f"{arguments[0]} must end within max_seconds={max_seconds:g}, took longer and was ended"
                raise UserError(late) from None
        if process.returncode != 0:
            lines = [line.removeprefix("fedscout: ") for line in words.splitlines() if line.strip()]
            raise UserError(lines[-LAST_LINES:] or [f"the command ended with code {process.returncode}"])
        return json.loads(document)

    def start(self, command: str, settings: Sequence[str], folder: Path) -> None:
        """Start a study, or the rest of one; what it prints goes to a file beside its folder.

        Raises:
            UserError: If one runs there already.
        """
        with self._lock:
            process = self.running.get(folder)
            if process is not None and process.poll() is None:
                raise UserError([f"a study runs in {folder.name} already; follow it, or stop it first"])
            folder.parent.mkdir(parents=True, exist_ok=True)
            with open(_words_of(folder), "wb") as words:
                self.running[folder] = subprocess.Popen(  # noqa: S603
                    [*COMMAND, command, *settings, "--out", str(folder), "--json"],
                    cwd=self.root,
                    stdin=self._held[0],
                    stdout=subprocess.DEVNULL,
                    stderr=words,
                    start_new_session=True,  # a Ctrl-C in the server's terminal is the server's
                )

    def state(self, folder: Path) -> dict[str, Any]:
        """Return how a study stands: `running`, `finished`, `failed` or `stopped`, and its last words."""
        process = self.running.get(folder)
        code = None if process is None else process.poll()
        if process is not None and code is None:
            state = "running"
        elif (folder / "result.json").is_file():
            state = "finished"
        else:
            state = "failed" if code is not None and 0 < code < 128 else "stopped"
        words = _words_of(folder)
        said = words.read_text(errors="replace").splitlines()[-LAST_LINES:] if words.is_file() else []
        return {"state": state, "exit_code": code, "last_words": [visible_line(line) for line in said]}

    def stop(self, folder: Path) -> None:
        """End a study that runs; its log stays, and the same start goes on from there."""
        process = self.running.get(folder)
        if process is None or process.poll() is not None:
            return
        process.terminate()
        _wait_for(process)

    def close(self) -> None:
        """End all that runs, all at once, as a client may kill a server that takes its time."""
        os.close(self._held[1])
        for process in self.running.values():
            _wait_for(process)
        os.close(self._held[0])


def _wait_for(process: subprocess.Popen[Any]) -> None:
    """Wait for a command that was told to end, and kill one that does not."""
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _words_of(folder: Path) -> Path:
    """Return the file of what a study prints, of a name that no file of another program has."""
    return folder.with_name(f"{folder.name}.fedscout.log")
