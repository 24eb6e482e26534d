"""Code of anybody's is interrupted when its time is over, and nothing else is."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from fedscout.engine.errors import TrialError
from fedscout.engine.trials.trial import time_limit

LONG = 60.0


def compute() -> None:
    until = time.monotonic() + LONG
    while time.monotonic() < until:
        sum(range(1000))


def careless() -> None:
    while True:
        with suppress(Exception):
            time.sleep(LONG)


@pytest.mark.parametrize("code", [partial(time.sleep, LONG), compute, partial(threading.Event().wait, LONG), careless])
def test_what_takes_too_long_is_interrupted(code: Callable[[], None]) -> None:
    started = time.monotonic()
    with pytest.raises(TrialError, match="too long"), time_limit(0.05, "it took too long"):
        code()
    assert time.monotonic() - started < LONG


def test_code_that_survives_the_interruption_gets_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedscout.engine.trials.trial.RETRY_SECONDS", 0.05)
    survived = []

    def stubborn() -> None:
        for _ in range(2):
            try:
                time.sleep(LONG)
            except BaseException:
                survived.append(True)
        time.sleep(LONG)

    with pytest.raises(TrialError), time_limit(0.05, "it took too long"):
        stubborn()
    assert survived == [True, True]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_errors_of_the_block_come_through(error: type[BaseException]) -> None:
    with pytest.raises(error), time_limit(LONG, "never"):
        raise error


def test_what_ends_in_time_is_left_alone_and_so_is_what_follows() -> None:
    threads = threading.active_count()
    with time_limit(None, "never"):
        assert threading.active_count() == threads
    with time_limit(0.05, "never"):
        pass
    assert threading.active_count() == threads
    assert signal.getsignal(signal.SIGVTALRM) is signal.SIG_DFL
    time.sleep(0.1)


def test_limits_do_not_nest() -> None:
    """The outer one holds: the inner code is a part of what it limits."""
    with pytest.raises(TrialError, match="outer"), time_limit(0.05, "outer"), time_limit(0.01, "inner"):
        time.sleep(LONG)


def test_other_threads_are_not_limited() -> None:
    done = []

    def work() -> None:
        with time_limit(0.01, "never"):
            time.sleep(0.05)
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]
