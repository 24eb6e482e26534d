"""Memory is summed over all processes, every page once.

Measured on small processes: the share of a large library that a process counts as its own changes whenever anybody
else on the machine loads or leaves that library.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from fedscout.experiments.timings import engine as memory
from fedscout.experiments.timings.engine import MemoryPeak, Part, memory_by_part, watched_memory

MIB = 2**20
BLOCK = 64 * MIB
INTERPRETER = 24 * MIB
"""More than a Python without libraries takes."""

OWN_PAGES = "block = bytearray(b'x') * {size}"
SHARED_PAGES = "import mmap; file = open({path!r}, 'r+b'); block = mmap.mmap(file.fileno(), 0); sum(block[::4096])"
TELL = "; print('ready', flush=True); input()"

DRIVER = """
import subprocess, sys
{code}
host = subprocess.Popen(
    [{title!r}, "-c", {host_code!r}], executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE
)
host.stdout.readline()
print("ready", flush=True)
input()
"""

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")


@contextmanager
def running(code: str) -> Iterator[int]:
    """A Python that has run this code and waits; what it started ends with it, as its standard input closes."""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process:
        try:
            assert process.stdout.readline() == b"ready\n"
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize(("title", "part"), [("ray::HostActor", "hosts"), ("ray::IDLE", "ray"), ("raylet", "ray")])
def test_what_a_process_below_the_driver_holds_is_its_part(title: str, part: Part) -> None:
    code = DRIVER.format(code="", title=title, host_code=OWN_PAGES.format(size=BLOCK) + TELL)
    with running(code) as pid:
        parts = memory_by_part(pid)
    assert BLOCK <= parts.pop(part) < BLOCK + INTERPRETER
    assert 0 < parts.pop("driver") < INTERPRETER
    assert list(parts.values()) == [0]


def test_pages_that_processes_share_count_once() -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.truncate(BLOCK)
        touch = SHARED_PAGES.format(path=file.name)
        with running(touch + TELL) as pid:
            alone = memory_by_part(pid)
        with running(DRIVER.format(code=touch, title="ray::HostActor", host_code=touch + TELL)) as pid:
            both = memory_by_part(pid)
    assert alone["driver"] >= BLOCK
    for part in ("driver", "hosts"):
        assert BLOCK // 2 <= both[part] < BLOCK // 2 + INTERPRETER, "half of the pages each"


def test_a_process_that_has_ended_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ended = psutil.Process(process.pid)
    process.communicate()
    monkeypatch.setattr(psutil.Process, "children", lambda *_, **__: [ended])
    parts = memory_by_part()
    assert parts.pop("driver") > 0
    assert list(parts.values()) == [0, 0]


def test_a_watch_keeps_the_peak_of_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    now: dict[Part, int] = {"driver": 1, "hosts": 1, "ray": 1}
    monkeypatch.setattr(memory, "memory_by_part", lambda: dict(now))
    with watched_memory() as watch:
        assert watch.peak == MemoryPeak(pss_bytes=3, parts=now, samples=1)
        now["hosts"] = 7
        deadline = time.monotonic() + 60
        while watch.peak.pss_bytes < 9 and time.monotonic() < deadline:
            time.sleep(0.02)
        now["hosts"] = 2
    assert (watch.peak.pss_bytes, watch.peak.parts["hosts"]) == (9, 7)
    assert watch.peak.samples >= 3, "at the beginning, in between and at the end"


def test_of_two_peaks_the_larger_stays_with_the_samples_of_both() -> None:
    small = MemoryPeak(pss_bytes=3, parts={"driver": 1, "hosts": 1, "ray": 1}, samples=4)
    large = MemoryPeak(pss_bytes=5, parts={"driver": 5, "hosts": 0, "ray": 0}, samples=1)
    for joined in (small.joined(large), large.joined(small)):
        assert joined == large.model_copy(update={"samples": 5})
