"""Measures wall time and CPU time of a command with all its child processes.

    python measured_command.py USAGE COMMAND…

runs the command, writes `{"wall_seconds": …, "processor_seconds": …}` to the file USAGE, kills remaining child
processes, and exits with the command's exit code. It imports nothing of the package, and also measures other programs.

The CPU time of a process is lost if no parent waits for it, as for Ray's workers. Descendants of the command are
therefore sampled twice a second; what a process uses after its last sample is missing, except for the command itself.
On Linux, orphaned processes become children of this program; elsewhere they are lost.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]

SAMPLE_SECONDS = 0.5
PR_SET_CHILD_SUBREAPER = 36
"""Of `prctl`, see `man 2 prctl`."""


class ProcessorSeconds:
    """CPU time of every descendant process at its last sample."""

    def __init__(self) -> None:
        self._used: dict[tuple[int, float], float] = {}

    def sample(self) -> None:
        """Sample all descendants."""
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):  # it has ended meanwhile
                times = process.cpu_times()
                self._used[process.pid, process.create_time()] = times.user + times.system

    @property
    def total(self) -> float:
        """CPU time of all processes together."""
        return sum(self._used.values())


def end_descendants() -> None:
    """Kill all descendants of this process and wait for them."""
    while True:
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                process.kill()
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def main(usage: Path, command: list[str]) -> int:
    """Run and measure a command; return its exit code."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    used, ended = ProcessorSeconds(), threading.Event()

    def watch() -> None:
        while not ended.wait(SAMPLE_SECONDS):
            used.sample()

    watcher = threading.Thread(target=watch, daemon=True)
    began = time.perf_counter()
    process = subprocess.Popen(command)  # noqa: S603  # given by who starts this program
    watcher.start()
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and still there to be looked at
        wall_seconds = time.perf_counter() - began
        ended.set()
        watcher.join()
        used.sample()
        usage.write_text(json.dumps({"wall_seconds": wall_seconds, "processor_seconds": used.total}))
        return process.wait()
    finally:
        ended.set()
        watcher.join()
        end_descendants()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
