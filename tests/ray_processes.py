"""Hosts on Ray in tests: how many there are, and which of Ray's processes is one."""

from __future__ import annotations

import psutil
import pytest

NUM_HOSTS = [pytest.param(1, marks=pytest.mark.stress), 2]
"""Of tests that hold the local grid's bits; `test_ray_grid` holds those of four hosts in the gate, too."""

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
