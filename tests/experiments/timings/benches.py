"""`fedscout bench` as a process of its own."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import Any

from tests.commands import REPOSITORY
from tests.marked_processes import MarkedProcesses, short_folder


@dataclass(frozen=True)
class FinishedBench:
    """What a successful one left.

    Attributes:
        text: All that it wrote.
        alive: Names of processes that it has started and that outlive it.
        stubborn: Names of those of them that had to be killed.
        files: Names of what is in its folder for temporary files.
    """

    text: str
    alive: list[str]
    stubborn: list[str]
    files: list[str]

    @property
    def document(self) -> Any:
        """The JSON at its end."""
        return json.loads(self.text[self.text.index("\n{") :])


def finished_bench(*arguments: str, seconds: float) -> FinishedBench:
    """Run a bench to its end, and end what it has left."""
    with short_folder() as folder, MarkedProcesses() as processes:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "TMPDIR": str(folder)}
        command = [sys.executable, "-m", "fedscout.experiments.cli.main", "bench", *arguments, "--json"]
        process = processes.start(command, environment, folder / "log", cwd=folder)
        code = process.wait(seconds)
        text = (folder / "log").read_text(errors="replace")
        assert code == 0, text
        alive = [one.name() for one in processes.alive()]
        processes.end()
        files = [entry.name for entry in folder.iterdir() if entry.name != "log"]
    return FinishedBench(text, alive, processes.stubborn, files)
