"""Ctrl-C that waits, and children that end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from experiments.orderly_end import children_ended_by, signals_held_back

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


def test_without_an_interruption_nothing_changes() -> None:
    handler = signal.getsignal(signal.SIGINT)
    with signals_held_back():
        assert signal.getsignal(signal.SIGINT) is not handler
    assert signal.getsignal(signal.SIGINT) is handler


def test_an_error_of_the_block_comes_through() -> None:
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), signals_held_back():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is handler


def test_other_threads_may_use_it() -> None:
    done = []

    def work() -> None:
        with signals_held_back():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_children_and_theirs_end_however_the_block_does(error: type[BaseException] | None) -> None:
    calls = []
    with subprocess.Popen(SLEEPER) as elder:
        with suppress(ValueError, KeyboardInterrupt), children_ended_by(lambda: calls.append("asked")):
            child = subprocess.Popen(PARENT_OF_SLEEPER, stdout=subprocess.PIPE, text=True)
            assert child.stdout is not None
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
