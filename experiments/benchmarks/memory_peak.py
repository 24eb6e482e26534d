"""How much memory this process and all that it started hold together, sampled while they work.

The proportional set size (PSS) of a process counts a page that n processes share as 1/n of it, so a sum over processes
counts every page once: also those of libraries, and of the object store, which all of Ray's processes map.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import psutil  # type: ignore[import-untyped]
from pydantic import BaseModel

from fedscout.engine.errors import ConfigurationError

SAMPLE_SECONDS = 0.25

HOST_TITLE = "ray::HostActor"
"""Ray titles an actor's process by its class."""

Part = Literal["driver", "hosts", "ray"]


class MemoryPeak(BaseModel, frozen=True):
    """The sample with the largest sum.

    Attributes:
        parts: Of the driver, of the hosts, and of everything else that was started, which is Ray's.
        samples: How many were taken.
        data_bytes: Of the clients' rows, which are somewhere among them; 0 if nobody said.
    """

    pss_bytes: int = 0
    parts: dict[Part, int] = {"driver": 0, "hosts": 0, "ray": 0}
    samples: int = 0
    data_bytes: int = 0

    def joined(self, other: MemoryPeak) -> MemoryPeak:
        """Return the larger of two, with the samples of both."""
        larger = max(self, other, key=lambda each: each.pss_bytes)
        return larger.model_copy(update={"samples": self.samples + other.samples})


class MemoryWatch:
    """Holds the peak of what was sampled so far."""

    def __init__(self) -> None:
        self.peak = MemoryPeak()

    def sample(self) -> None:
        """Take a sample of all processes now."""
        parts = memory_by_part()
        self.peak = self.peak.joined(MemoryPeak(pss_bytes=sum(parts.values()), parts=parts, samples=1))


@contextmanager
def watched_memory() -> Iterator[MemoryWatch]:
    """Sample from a thread as long as the block lasts, at least at its beginning and at its end.

    Raises:
        ConfigurationError: If this system does not tell proportional set sizes.
    """
    if not Path("/proc/self/smaps_rollup").exists():
        raise ConfigurationError(
            "memory is measured by /proc/PID/smaps_rollup, which Linux has and this system has not"
        )
    watch, ended = MemoryWatch(), threading.Event()

    def run() -> None:
        while not ended.wait(SAMPLE_SECONDS):
            watch.sample()

    thread = threading.Thread(target=run, name="memory-watch", daemon=True)
    watch.sample()
    thread.start()
    try:
        yield watch
    finally:
        ended.set()
        thread.join()
        watch.sample()


def memory_by_part(pid: int | None = None) -> dict[Part, int]:
    """Return the proportional set sizes of a process, by default this one, and all below it, in bytes by part."""
    driver = psutil.Process(pid)
    parts: dict[Part, int] = {"driver": _pss_bytes(driver), "hosts": 0, "ray": 0}
    for process in driver.children(recursive=True):
        with suppress(psutil.Error):  # one that has just ended holds nothing
            is_host = "".join(process.cmdline()[:1]).startswith(HOST_TITLE)
            parts["hosts" if is_host else "ray"] += _pss_bytes(process)
    return parts


def _pss_bytes(process: psutil.Process) -> int:
    return int(process.memory_full_info().pss)
