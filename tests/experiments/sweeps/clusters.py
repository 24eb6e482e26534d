"""Sweeps on several raylets of one machine: a cluster that another process keeps, and what of it can be seen."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

from tests.experiments.cli.processes import REPOSITORY

ZOMBIE = psutil.STATUS_ZOMBIE
WORKER = "ray::Worker"
"""Beginning of the name of a worker, busy or not."""


@dataclass(frozen=True)
class Raylets:
    """A cluster of raylets of one CPU.

    Attributes:
        address: By which a sweep connects.
        keeper: The process that keeps it.
    """

    address: str
    keeper: psutil.Process

    def all(self) -> list[psutil.Process]:
        """Return the raylets that live."""
        return [one for one in self.keeper.children() if one.name() == "raylet" and one.status() != ZOMBIE]

    def server(self) -> psutil.Process:
        """Return the server of the head."""
        (server,) = (one for one in self.keeper.children() if one.name() == "gcs_server")
        return server

    def workers_a_raylet(self) -> list[int]:
        """Return how many workers each raylet has."""
        return [len(_workers_of(raylet)) for raylet in self.all()]


def _workers_of(raylet: psutil.Process) -> list[psutil.Process]:
    found = []
    with suppress(psutil.NoSuchProcess):
        for child in raylet.children():
            with suppress(psutil.NoSuchProcess):
                if child.name().startswith(WORKER):
                    found.append(child)
    return found


@contextmanager
def raylets(number: int) -> Iterator[Raylets]:
    """Keep a cluster for the time of a block, and end all that it has started."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.faults.raylets", str(number)],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "PYTHONPATH": str(REPOSITORY / "src"),
            "RAY_prestart_worker_first_driver": "0",  # a process a CPU that nobody needs here
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        keeper, started = psutil.Process(process.pid), []
        try:
            yield Raylets(process.stdout.readline().strip(), keeper)
            started = keeper.children(recursive=True)
            process.stdin.close()
            process.wait(60)
        finally:
            with suppress(psutil.NoSuchProcess):
                started += keeper.children(recursive=True)
            for one in [*started, keeper]:
                with suppress(psutil.NoSuchProcess):
                    one.kill()
