"""Ctrl-C that waits, and children that end."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
import torch

from fedscout.engine.runtime.processes import (
    ENDING_SIGNALS,
    end_children_with,
    ended_by_signals,
    keep_freed_memory,
    own_process_groups,
    signal_exit,
    signals_held_back,
)

REPOSITORY = Path(__file__).resolve().parents[3]
SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
PARENT_OF_SLEEPER = [
    sys.executable,
    "-c",
    f"import subprocess; p = subprocess.Popen({SLEEPER!r}); print(p.pid, flush=True); p.wait()",
]


def test_an_interruption_takes_effect_after_the_block() -> None:
    steps = []

    def work() -> None:
        with signals_held_back():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("whole block")
        steps.append("never")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == ["whole block"]


def test_other_threads_may_use_it() -> None:
    done = []

    def work() -> None:
        with signals_held_back():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_children_and_theirs_end_however_the_block_does(error: type[BaseException] | None) -> None:
    calls = []
    with subprocess.Popen(SLEEPER) as elder:
        with suppress(ValueError, KeyboardInterrupt), end_children_with(lambda: calls.append("asked")):
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
    import psutil

    try:
        process = psutil.Process(pid)
        process.wait(timeout=10)
    except psutil.NoSuchProcess:
        return False
    except psutil.TimeoutExpired:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


@pytest.fixture
def handlers() -> Iterator[None]:
    """Put the handlers of ending signals back."""
    kept = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("first", ENDING_SIGNALS)
def test_the_first_signal_interrupts_and_no_other(first: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedscout.engine.runtime.processes.GRACE_SECONDS", 3600.0)
    cleaned = []

    def work() -> None:
        try:
            signal.raise_signal(first)
        finally:
            for number in ENDING_SIGNALS:
                signal.raise_signal(number)
            cleaned.append(True)

    try:
        with pytest.raises(KeyboardInterrupt), ended_by_signals() as received:
            work()
    finally:
        for watch in threading.enumerate():
            if isinstance(watch, threading.Timer):
                watch.cancel()
    assert cleaned == [True]
    assert received == [first, *ENDING_SIGNALS]
    signal.raise_signal(first)  # on the way to the exit, too


def ended(script: str) -> tuple[int, str]:
    """Return the exit code of a script, and the one line that it writes."""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, check=False, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return done.returncode, line


def test_cleaning_up_that_hangs_is_not_waited_for() -> None:
    script = (
        "import os, signal, time\n"
        "from fedscout.engine.runtime import processes as signals\n"
        "signals.GRACE_SECONDS = 0.2\n"
        "with signals.ended_by_signals():\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    finally:\n"
        "        time.sleep(600)\n"
    )
    code, line = ended(script)
    assert code == 128 + signal.SIGTERM
    assert "SIGTERM" in line


def test_exit_codes_are_those_of_shells() -> None:
    assert [signal_exit(number)[0] for number in ENDING_SIGNALS] == [130, 143, 129]


@pytest.mark.usefixtures("handlers")
def test_a_block_that_is_held_back_sets_no_handlers_for_ending_signals() -> None:
    mine = signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    before = signal.getsignal(signal.SIGTERM)
    with signals_held_back():
        assert signal.signal(signal.SIGTERM, lambda *_: None) is before
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.signal(signal.SIGUSR1, mine) is signal.SIG_IGN


def test_a_signal_that_made_the_block_fail_is_told_rather_than_its_error() -> None:
    def work() -> None:
        with signals_held_back():
            os.kill(os.getpid(), signal.SIGINT)
            raise ConnectionError("a process of the block got the signal, too")

    with pytest.raises(KeyboardInterrupt):
        work()


@pytest.mark.parametrize("apart", [True, False])
def test_children_are_in_a_group_of_their_own_if_asked(apart: bool) -> None:
    with own_process_groups() if apart else nullcontext():
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


@pytest.mark.parametrize(("signalled", "code", "named"), [(False, 1, "Ray died"), (True, 143, "SIGTERM")])
def test_a_command_that_was_told_to_end_says_so_whatever_died_meanwhile(signalled: bool, code: int, named: str) -> None:
    found, line = ended(SIGNAL_AND_DEATH.format(signalled=signalled))
    assert found == code
    assert named in line


@pytest.mark.usefixtures("handlers")
def test_without_a_signal_the_handlers_are_put_back_and_what_is_off_stays_off() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    with ended_by_signals() as received:
        signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGTERM) is not before[signal.SIGTERM]
    assert received == []
    assert {number: signal.getsignal(number) for number in ENDING_SIGNALS} == before


# -- Memory that is freed and asked for again comes without the system's help ------------------------------------------


BLOCK_BYTES, BLOCKS, PAGE_BYTES = 20 * 2**20, 4, resource.getpagesize()


def page_faults_of_a_step() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.zeros(BLOCK_BYTES // 4) for _ in range(BLOCKS)]
    del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_freed_blocks_stay() -> None:
    if not keep_freed_memory():
        pytest.skip("another C library than glibc")
    page_faults_of_a_step()

    faults = [page_faults_of_a_step() for _ in range(5)]

    assert min(faults) < BLOCK_BYTES // PAGE_BYTES
