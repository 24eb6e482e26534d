"""Files: whole or not there; Ctrl-C that waits, and children that end."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path

import psutil
import pytest
import torch
from pyarrow.fs import LocalFileSystem, S3FileSystem

from fedscout.engine.errors import ConfigurationError
from fedscout.engine.runtime import files, processes
from tests.commands import ran


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_file_is_replaced_at_once(tmp_path: Path) -> None:
    target = tmp_path / "folder" / "file"
    files.write_atomically(target, lambda path: path.write_bytes(b"old"))

    def write(path: Path) -> None:
        path.write_bytes(b"new")
        assert target.read_bytes() == b"old"
        assert path.name.startswith(".")

    files.write_atomically(target, write)

    assert target.read_bytes() == b"new"
    assert files_below(tmp_path) == ["folder/file"]


@pytest.mark.parametrize("at", ["writing", "flushing"])
def test_a_crash_changes_nothing(at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "folder" / "file"

    def crash(_: int) -> None:
        raise OSError("disk full")

    def write(path: Path) -> None:
        path.write_bytes(b"half a")
        if at == "writing":
            crash(0)

    for there in ([], ["folder/file"]):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", crash)
            with pytest.raises(OSError, match="disk"):
                files.write_atomically(target, write)
        assert files_below(tmp_path) == there
        assert not there or target.read_bytes() == b"old"
        files.write_atomically(target, lambda path: path.write_bytes(b"old"))


# -- A mounted storage holds what was written, as soon as it was, and gives it back; nothing else goes there -----------


@pytest.fixture(scope="module")
def s3() -> Iterator[S3FileSystem]:
    """A stand-in for S3 on this machine."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        keys = {"access_key": "a", "secret_key": "b", "region": "us-east-1"}
        yield S3FileSystem(**keys, endpoint_override=f"http://{host}:{port}", allow_bucket_creation=True)
    finally:
        server.stop()


@pytest.fixture(params=["local", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> files.FileStorage:
    if request.param == "local":
        return files.FileStorage(LocalFileSystem(), str(tmp_path / "kept"), "local://kept")
    filesystem: S3FileSystem = request.getfixturevalue("s3")
    filesystem.create_dir(tmp_path.name)
    return files.FileStorage(filesystem, f"{tmp_path.name}/kept", "s3://kept")


def write(path: Path, text: str) -> None:
    files.write_atomically(path, lambda temporary: temporary.write_text(text))


def contents(storage: files.FileStorage) -> dict[str, str]:
    return {name: storage.read(name).decode() for name in storage.names()}


@pytest.mark.slow
def test_a_file_is_there_when_it_is_written_and_comes_back(storage: files.FileStorage) -> None:
    with files.mounted(storage) as folder:
        assert contents(storage) == {}
        write(folder / "config.json", "{}")
        write(folder / "trials" / "0.parquet", "first")
        write(folder / "trials" / "1.parquet", "second")
        (folder / ".lock").write_text("this process")
        assert contents(storage) == {"config.json": "{}", "trials/0.parquet": "first", "trials/1.parquet": "second"}
        files.remove_file(folder / "config.json")
        (folder / "quarantine").mkdir()
        files.move_file(folder / "trials" / "1.parquet", folder / "quarantine" / "1.parquet")
        expected = {"trials/0.parquet": "first", "quarantine/1.parquet": "second"}
        assert contents(storage) == expected
    assert not folder.exists()
    with files.mounted(storage) as again:
        there = {path.relative_to(again).as_posix(): path.read_text() for path in again.rglob("*") if path.is_file()}
        assert there == expected


@pytest.mark.slow
def test_what_another_process_writes_below_is_read_when_asked_for(storage: files.FileStorage) -> None:
    with files.mounted(storage) as folder:
        below = files.storage_of(folder / "studies" / "one")
        assert below == storage.below("studies/one")
        below.write("result.json", b"{}")
        files.refresh(folder / "studies" / "one")
        assert (folder / "studies" / "one" / "result.json").read_text() == "{}"
        assert files.with_addresses(f"in {folder}/studies") == f"in {storage}/studies"


def test_a_folder_of_this_machine_has_no_storage(tmp_path: Path) -> None:
    assert files.storage_of(tmp_path) is None
    files.refresh(tmp_path)
    assert files.storage_at(f"file://{tmp_path}") == tmp_path


@pytest.mark.parametrize("uri", ["nonsense://bucket/name", "s3://"])
def test_an_address_that_nothing_can_open_is_refused(uri: str) -> None:
    with pytest.raises(ConfigurationError):
        files.storage_at(uri)


# -- Ctrl-C that waits, and children that end --------------------------------------------------------------------------


SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
PARENT_OF_SLEEPER = [
    sys.executable,
    "-c",
    f"import subprocess; p = subprocess.Popen({SLEEPER!r}); print(p.pid, flush=True); p.wait()",
]


@pytest.mark.parametrize("fails", [False, True])
def test_an_interruption_takes_effect_after_the_block_and_in_place_of_its_error(fails: bool) -> None:
    steps = []

    def work() -> None:
        with processes.signals_held_back():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("whole block")
            if fails:
                raise ConnectionError("a process of the block got the signal, too")
        steps.append("never")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == ["whole block"]


def test_other_threads_may_use_it() -> None:
    def work() -> bool:
        with processes.signals_held_back():
            return True

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result()


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_children_and_theirs_end_however_the_block_does(error: type[BaseException] | None) -> None:
    calls = []
    with subprocess.Popen(SLEEPER) as elder:
        with suppress(ValueError, KeyboardInterrupt), processes.end_children_with(lambda: calls.append("asked")):
            child = subprocess.Popen(PARENT_OF_SLEEPER, stdout=subprocess.PIPE, text=True)
            grandchild = int(child.stdout.readline())
            if error is not None:
                raise error
        assert calls == ["asked"]
        assert child.wait(timeout=10) == -signal.SIGKILL
        child.stdout.close()
        assert not runs(grandchild)
        assert elder.poll() is None  # not the block's
        elder.kill()


def runs(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        with suppress(psutil.TimeoutExpired):
            process.wait(timeout=10)
        return process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.fixture
def handlers() -> Iterator[None]:
    """Put the handlers of ending signals back."""
    kept = {number: signal.getsignal(number) for number in processes.ENDING_SIGNALS}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("first", processes.ENDING_SIGNALS)
def test_the_first_signal_interrupts_and_no_other(first: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedscout.engine.runtime.processes.GRACE_SECONDS", 3600.0)
    cleaned = []

    def work() -> None:
        try:
            signal.raise_signal(first)
        finally:
            for number in processes.ENDING_SIGNALS:
                signal.raise_signal(number)
            cleaned.append(True)

    try:
        with pytest.raises(KeyboardInterrupt), processes.ended_by_signals() as received:
            work()
    finally:
        for watch in threading.enumerate():
            if isinstance(watch, threading.Timer):
                watch.cancel()
    assert cleaned == [True]
    assert processes.signal_exit(first)[0] == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}[first]
    assert received == [first, *processes.ENDING_SIGNALS]
    signal.raise_signal(first)  # on the way to the exit, too


@pytest.mark.usefixtures("handlers")
def test_a_block_that_is_held_back_sets_no_handlers_for_ending_signals() -> None:
    mine = signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    before = signal.getsignal(signal.SIGTERM)
    with processes.signals_held_back():
        assert signal.signal(signal.SIGTERM, lambda *_: None) is before
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.signal(signal.SIGUSR1, mine) is signal.SIG_IGN


@pytest.mark.parametrize("apart", [True, False])
def test_children_are_in_a_group_of_their_own_if_asked(apart: bool) -> None:
    with processes.own_process_groups() if apart else nullcontext():
        child = subprocess.Popen(SLEEPER, preexec_fn=lambda: None)  # noqa: PLW1509 - as Ray's
    try:
        assert (os.getpgid(child.pid) == child.pid) == apart
        assert os.getpgid(child.pid) == (child.pid if apart else os.getpgid(0))
    finally:
        child.kill()
        child.wait()


SIGNAL_AND_DEATH = """
import signal
from fedscout.engine.runtime.processes import end_at_once, ended_by_signals
try:
    with ended_by_signals():
        if {signalled}:
            signal.raise_signal(signal.SIGTERM)
        end_at_once(1, "Ray died")
except KeyboardInterrupt:
    end_at_once(1, "Ray died")
"""


CLEANING_UP_THAT_HANGS = """
import signal, time
from fedscout.engine.runtime import processes
processes.GRACE_SECONDS = 0.2
with processes.ended_by_signals():
    try:
        signal.raise_signal(signal.SIGTERM)
    finally:
        time.sleep(600)
"""


@pytest.mark.parametrize(
    ("script", "code", "named"),
    [
        (SIGNAL_AND_DEATH.format(signalled=False), 1, "Ray died"),
        (SIGNAL_AND_DEATH.format(signalled=True), 143, "SIGTERM"),
        (CLEANING_UP_THAT_HANGS, 143, "SIGTERM"),
    ],
    ids=["death", "signal and death", "cleaning up that hangs"],
)
def test_a_command_that_was_told_to_end_says_so_whatever_died_or_hangs(script: str, code: int, named: str) -> None:
    done = ran(sys.executable, "-c", script)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (code, "")
    assert named in line


@pytest.mark.usefixtures("handlers")
def test_without_a_signal_the_handlers_are_put_back_and_what_is_off_stays_off() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    before = {number: signal.getsignal(number) for number in processes.ENDING_SIGNALS}
    with processes.ended_by_signals() as received:
        signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGTERM) is not before[signal.SIGTERM]
    assert received == []
    assert {number: signal.getsignal(number) for number in processes.ENDING_SIGNALS} == before


# -- Memory that is freed and asked for again comes without the system's help ------------------------------------------


BLOCK_BYTES, BLOCKS, PAGE_BYTES = 20 * 2**20, 4, resource.getpagesize()


def page_faults_of_a_step() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.zeros(BLOCK_BYTES // 4) for _ in range(BLOCKS)]
    del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_freed_blocks_stay() -> None:
    if not processes.keep_freed_memory():
        pytest.skip("another C library than glibc")
    page_faults_of_a_step()

    faults = [page_faults_of_a_step() for _ in range(5)]

    assert min(faults) < BLOCK_BYTES // PAGE_BYTES
