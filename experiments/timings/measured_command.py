"""A command with all that it starts: how long it takes, and how many processor seconds.

    python measured_command.py USAGE COMMAND…

runs the command, writes `{"wall_seconds": …, "processor_seconds": …}` to the file USAGE, ends what the command left
behind, and ends with its exit code. This file imports nothing of the program, and measures others as well as ours.

What a process has used is lost where nobody waits for it, as for the workers of Ray. So the processes below the command
are looked at twice a second; what one used after it was last seen is missing, the command itself excepted. On Linux
those whose parent has ended stay below this program; elsewhere they are lost from sight.
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
    """What every process below this one has used when it was last seen."""

    def __init__(self) -> None:
        self._used: dict[tuple[int, float], float] = {}

    def sample(self) -> None:
        """Look at all of them."""
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):  # it has ended meanwhile
                times = process.cpu_times()
                self._used[process.pid, process.create_time()] = times.user + times.system

    @property
    def total(self) -> float:
        """Of all processes together."""
        return sum(self._used.values())


def end_descendants() -> None:
    """Kill all processes below this one, and wait for them."""
    while True:
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                process.kill()
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def main(usage: Path, command: list[str]) -> int:
    """Run and measure; return the command's exit code."""
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
