"""How much memory this process and all that it started hold together, sampled while they work.

The proportional set size (PSS) of a process counts a page that n processes share as 1/n of it, so the sum over processes
counts every page once. Ray's object store, which all of them map, and the libraries are no exception.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from engine.errors import ConfigurationError

SAMPLE_SECONDS = 0.25

Part = Literal["driver", "hosts", "ray"]

HOST_TITLE = b"ray::HostActor"
"""Ray titles the process of an actor by its class."""


class MemoryPeak(BaseModel):
    """The sample with the largest sum.

    Attributes:
        pss_bytes: Of all processes together.
        parts: Of the driver, of the hosts, and of everything else that Ray runs.
        samples: How many were taken.
    """

    model_config = ConfigDict(frozen=True)

    pss_bytes: int
    parts: dict[Part, int]
    samples: int


def larger(one: MemoryPeak, other: MemoryPeak) -> MemoryPeak:
    """Return the larger of two peaks, with the samples of both."""
    peak = max(one, other, key=lambda each: each.pss_bytes)
    return peak.model_copy(update={"samples": one.samples + other.samples})


class MemoryWatch:
    """Samples from a thread; see `watched_memory`."""

    def __init__(self) -> None:
        self._largest: dict[Part, int] = {}
        self._samples = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-watch", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Take a last sample, and end."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            self._sample()

    def sample(self) -> None:
        """Take a sample now."""
        parts = memory_parts()
        self._samples += 1
        if sum(parts.values()) > sum(self._largest.values()):
            self._largest = parts

    _sample = sample

    @property
    def peak(self) -> MemoryPeak:
        """The largest so far."""
        return MemoryPeak(pss_bytes=sum(self._largest.values()), parts=self._largest, samples=self._samples)


def memory_parts() -> dict[Part, int]:
    return {}
