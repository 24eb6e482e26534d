"""Memory: what Ray says when it runs out becomes a line, and nothing of a finished study stays behind."""

from __future__ import annotations

import json
import re
import sys
import threading

import pytest

from fedscout.engine.errors import EngineError
from fedscout.engine.runtime import ray
from fedscout.engine.runtime.ray import memory_fault, readable_memory_errors, warn_of_memory_shortage
from tests.commands import output_of, ran

KILLED = (
    "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 192.0.2.2, ID: e04a87) "
    "was 4.74GB / 23.54GB (0.201537), which exceeds the memory usage threshold of 0.010000; Object store memory usage: "
    "[- objects spillable: 0]; Ray killed 1 worker(s) based on the killing policy: [(Task: job ID=01000000, lease "
    "ID=01, task name=HostActor.__init__, required resources={}, pid=8451, actual memory used=0.04GB, worker ID=89f6)]"
)

SHORT_OF_MEMORY = """
import time
import ray
from fedscout.engine.runtime.ray import readable_memory_errors
from fedscout.engine.errors import EngineError


def busy():
    time.sleep(600)


class Host:
    def work(self):
        time.sleep(600)


ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
         object_store_memory=80 * 2**20)
starts = {
    "busy": lambda: ray.remote(busy).options(num_cpus=0, max_retries=10).remote(),
    "Host.__init__": lambda: ray.remote(Host).options(max_restarts=0).remote().work.remote(),
}
try:
    for start in starts.values():
        try:
            with readable_memory_errors():
                ray.get(start())
        except EngineError as error:
            print(error)
finally:
    ray.shutdown()
"""


def test_what_ray_says_is_put_in_a_line() -> None:
    line = str(memory_fault(f"EngineError: a host was lost: {KILLED}"))
    values = r"HostActor.* 0\.04GB.* 4\.74GB .* 23\.54GB .* 0\.01\b.*engine\.num_hosts.*search\.generation_size"
    assert re.search(values, line)


def test_other_errors_are_left_as_they_are() -> None:
    assert memory_fault("a host was lost: the actor died") is None
    error = EngineError("2 hosts must be up within 180 s")
    with pytest.raises(EngineError) as caught, readable_memory_errors():
        raise error
    assert caught.value is error
    with pytest.raises(ZeroDivisionError), readable_memory_errors():
        raise ZeroDivisionError


def test_errors_of_ray_become_ours() -> None:
    from ray.exceptions import ObjectStoreFullError, OutOfDiskError, RayError

    for kind in (ObjectStoreFullError, OutOfDiskError):
        with pytest.raises(EngineError, match=r"engine\.object_store_bytes"), readable_memory_errors():
            raise kind("some text")
    with pytest.raises(EngineError, match=r": first line$"), readable_memory_errors():
        raise RayError("first line\nsecond line")


def warned(used: int, total: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is told while so much memory is in use, looked at five times at least."""
    monkeypatch.setattr(ray, "WATCH_SECONDS", 0.001)
    looked = threading.Semaphore(0)

    def in_use() -> tuple[int, int]:
        looked.release()
        return used, total

    with warn_of_memory_shortage(in_use):
        for _ in range(1 if used > 0.95 * total else 5):
            assert looked.acquire(timeout=30)
    return [record.getMessage() for record in caplog.records]


def test_a_shortage_is_told_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert warned(95 * 2**30, 100 * 2**30, caplog, monkeypatch) == []
    (line,) = warned(96 * 2**30, 100 * 2**30, caplog, monkeypatch)
    assert re.search(r" 96\.0 of 100\.0 GB .* 0\.95\b.*engine\.num_hosts", line)


@pytest.mark.stress
@pytest.mark.ray
def test_processes_that_ray_ends_for_want_of_memory() -> None:
    """A threshold of one percent, above which every machine is; tasks are tried once more."""
    settings = {"memory_usage_threshold": "0.01", "memory_monitor_refresh_ms": "100", "task_oom_retries": "1"}
    environment = {f"RAY_{name}": value for name, value in settings.items()}
    done = ran(sys.executable, "-c", SHORT_OF_MEMORY, timeout=240, **environment)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(",")[0].split()[-1] for line in lines] == ["busy", "Host.__init__"]
    assert all("engine.num_hosts" in line for line in lines)


# Study after study in one process: nothing of a finished study stays behind.


NUM_STUDIES, WARM = 10, 3
BYTES_PER_STUDY = 2**20
"""Allocators settle over the first dozens of studies, by less than this, and then stop; what is exact is the number of
objects. A host's process left behind would be 200 times as much, and shows among the processes, too."""


def held_after_each(grid: str) -> list[dict[str, int]]:
    """Return what a process holds after each of its studies; with all that it started, it ends with the test."""
    lines = output_of("tests.faults.many_studies", "--studies", str(NUM_STUDIES), "--grid", grid, timeout=270)
    held = [json.loads(line) for line in lines]
    assert [entry["study"] for entry in held] == list(range(NUM_STUDIES))
    return held


def assert_the_process_is_flat(held: list[dict[str, int]]) -> None:
    warm, last = held[WARM], held[-1]
    studies = last["study"] - warm["study"]
    assert last["objects"] - warm["objects"] < studies, "each study leaves Python objects behind"
    assert last["files"] <= warm["files"] + 2
    assert last["import_path"] == warm["import_path"]
    assert last["resident_bytes"] - warm["resident_bytes"] < studies * BYTES_PER_STUDY


@pytest.mark.stress
def test_in_one_process_nothing_stays() -> None:
    assert_the_process_is_flat(held_after_each("local"))


@pytest.mark.stress
@pytest.mark.ray
def test_on_one_ray_nothing_stays() -> None:
    """Ray keeps a spare worker or two; actors, references and exported code are counted exactly."""
    held = held_after_each("ray")

    assert_the_process_is_flat(held)
    kept = "actors", "busy", "references", "store_bytes"
    assert {tuple(entry[name] for name in kept) for entry in held} == {(0, 0, 0, 0)}
    assert {entry["exported"] for entry in held[1:]} == {held[0]["exported"]}
    assert max(entry["processes"] for entry in held) <= held[0]["processes"] + 2
