"""Two runs on one folder: the second is refused with a line; after a kill of the first, it is not."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fedscout.engine.errors import LogError
from fedscout.engine.runtime.files import LOCK, folder_lock
from fedscout.engine.runtime.processes import MARK, OWN_MARK
from tests.experiments.cli.conftest import Cli
from tests.experiments.cli.processes import Command
from tests.faults.conftest import RUN, GoesOn, line_of, trial_files, written_at
from tests.kits.refusals import refused

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.mark.stress
def test_the_second_run_is_refused_while_the_first_lives(tmp_path: Path, cli: Cli, goes_on: GoesOn) -> None:
    out = tmp_path / "out"
    with Command(tmp_path, *RUN, "out") as first:
        first.wait_until(lambda: len(trial_files(out)) >= 1)
        first.process.send_signal(signal.SIGSTOP)  # or it might end before the second starts
        before = written_at(*out.rglob("*"))
        refused = [cli(*RUN, out), cli("search", *RUN[1:], out), cli(*RUN, out, "seed=1")]
        assert written_at(*out.rglob("*")) == before
        assert first.process.poll() is None
        first.process.kill()
        first.end()
    for done in refused:
        line = line_of(done, 2)
        assert line.startswith(f"fedscout: {out} ")
        assert line.endswith(f" {first.process.pid} on {socket.gethostname()}")
    assert goes_on() == []


def test_a_lock_lets_one_in_and_says_who(tmp_path: Path) -> None:
    with folder_lock(tmp_path):
        assert (tmp_path / LOCK).read_text() == f"{os.getpid()} {socket.gethostname()} {OWN_MARK}"
        with pytest.raises(LogError, match=f" {os.getpid()} on {socket.gethostname()}$"), folder_lock(tmp_path):
            pytest.fail("two have the lock")
    assert (tmp_path / LOCK).read_text() == ""
    with folder_lock(tmp_path):
        pass


def test_a_lock_whose_file_was_removed_meanwhile_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first holder removes its file between the second's opening and locking it."""
    flock = fcntl.flock
    removed = []

    def remove_first(lock: int, how: int) -> None:
        if not removed:
            removed.append((tmp_path / LOCK).unlink())
        flock(lock, how)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with folder_lock(tmp_path):
        monkeypatch.undo()
        with pytest.raises(LogError, match=f" {os.getpid()} on "), folder_lock(tmp_path):
            pytest.fail("two have the lock")


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with refused(LogError, key="--out"), folder_lock(tmp_path):
        pytest.fail("opened")


@pytest.mark.parametrize("text", ["", "12", "nonsense and more", "x y z", "\x00" * 30])
def test_whatever_the_lock_file_says_it_can_be_taken(tmp_path: Path, text: str) -> None:
    (tmp_path / LOCK).write_text(text)
    with folder_lock(tmp_path):
        pass


def sleeper(mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(SLEEPER, env={**os.environ, MARK: mark})


def dead_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert not psutil.pid_exists(process.pid)
    return process.pid


def wait_until_it_bears(process: subprocess.Popen[bytes], mark: str) -> None:
    """Between fork and exec it is still this program."""
    deadline = time.monotonic() + 30
    while psutil.Process(process.pid).environ().get(MARK) != mark:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_a_killed_run_left_is_ended_and_nothing_else(tmp_path: Path) -> None:
    own, other = sleeper("dead-run"), sleeper("other-run")
    try:
        wait_until_it_bears(own, "dead-run")
        for holder in (
            f"{dead_process()} {socket.gethostname()} another-mark",
            f"{dead_process()} another-machine dead-run",
            f"{os.getpid()} {socket.gethostname()} dead-run",  # a process that lives
        ):
            (tmp_path / LOCK).write_text(holder)
            with folder_lock(tmp_path):
                assert own.poll() is None
        (tmp_path / LOCK).write_text(f"{dead_process()} {socket.gethostname()} dead-run")
        with folder_lock(tmp_path):
            pass
        assert own.poll() is not None
        assert other.poll() is None
    finally:
        for process in (own, other):
            process.kill()
            process.wait()
