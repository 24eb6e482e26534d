"""Processes that outlive a killed command: known by a mark in their environment, ended by the next run of its folder.

When a process is killed with -9, the kernel ends Ray's daemons with it; workers notice within seconds, while Ray's
agents wait for a minute for a server that is gone. All of them inherited a random mark from the process that started
them, so they can't be mistaken for anybody else's. Processes of a cluster that was only connected to do not bear it:
there, Ray itself ends the work of a driver that died.
"""

from __future__ import annotations

import logging
import os
import secrets
from contextlib import suppress

MARK = "FEDSCOUT_RUN"
OWN_MARK = secrets.token_hex(16)
"""Of this process."""

WAIT_SECONDS = 5.0

logger = logging.getLogger("fedscout")


def mark_children() -> None:
    """Let all that this process starts from now on bear its mark."""
    os.environ[MARK] = OWN_MARK
    os.environ["SPT_NOENV"] = "1"  # or Ray's agents would write their title over their environment


def end_orphans(pid: int, mark: str) -> int:
    """End what a dead process started on this machine, and return how many; none while one of its id is alive."""
    import psutil  # type: ignore[import-untyped]  # Ray brings it along

    with suppress(psutil.NoSuchProcess):
        if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            return 0
    num_ended = end_marked(mark)
    if num_ended:
        logger.info("ended %d processes that the killed process %d had started", num_ended, pid)
    return num_ended


def end_marked(mark: str, seconds: float = WAIT_SECONDS) -> int:
    """End all other processes that bear a mark; return how many.

    All are found before the first is killed: a driver aborts when it misses its raylet, and would leave the rest.

    Args:
        mark: The mark.
        seconds: To wait until they are gone, at most.
    """
    import psutil

    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(process)
    for process in found:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(found, timeout=seconds)
    return len(found)
