"""Which of Ray's processes does what."""

from __future__ import annotations

import psutil

HOST = "ray::HostActor"
"""The title of a host."""


def works_as(process: psutil.Process, title: str) -> bool:
    """Whether a process has Ray's title; now and then Ray leaves a host without, but no other worker has torch.

    Raises:
        psutil.NoSuchProcess: If it is gone.
    """
    if process.name().startswith(title):
        return True
    if title != HOST or not any("default_worker.py" in part for part in process.cmdline()):
        return False
    return any("libtorch" in memory.path for memory in process.memory_maps())
