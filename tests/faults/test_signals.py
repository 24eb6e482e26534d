"""SIGTERM and SIGHUP: one line, the right exit code, no process left, and the same command goes on.

A signal may come to the command alone (`kill`), to its process group (`timeout`, a terminal that is closed) or to all
processes that it has started (a batch system).
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.experiments.cli.conftest import Cli
from tests.experiments.cli.processes import Command
from tests.faults.undisturbed import LOCAL, NUM_TRIALS, STUDY, Outcome, trial_files
from tests.ray_processes import works_as

pytestmark = [pytest.mark.stress]

ON_RAY = ("run", *STUDY, "engine.num_hosts=2", "--out", "out", "--json")
IN_ONE_PROCESS = ("run", *STUDY, LOCAL, "--out", "out", "--json")


def assert_ended(command: Command, number: signal.Signals) -> None:
    """Hold that a command ended with the code of a signal, and one line that names it."""
    code, printed, err = command.end()
    assert (code, printed, len(err.splitlines())) == (128 + number, "", 1)
    assert f" {number.name};" in err


def started(command: Command) -> list[psutil.Process]:
    return psutil.Process(command.process.pid).children(recursive=True)


def send_to_all(command: Command, number: int) -> None:
    for process in [*started(command), psutil.Process(command.process.pid)]:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_in_one_process(tmp_path: Path, cli: Cli, undisturbed: Outcome, number: signal.Signals) -> None:
    with Command(tmp_path, *IN_ONE_PROCESS) as command:
        command.wait_until(lambda: len(trial_files(tmp_path / "out")) >= 1)
        command.process.send_signal(number)
        with suppress(ProcessLookupError):
            command.process.send_signal(number)  # `timeout` sends it twice
        assert_ended(command, number)
    assert len(trial_files(tmp_path / "out")) < NUM_TRIALS
    done = cli(*IN_ONE_PROCESS)
    assert (done.code, done.err) == (0, "")
    assert Outcome.of(tmp_path / "out") == undisturbed


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_on_ray_at_work(tmp_path: Path, cli: Cli, undisturbed: Outcome) -> None:
    """One study, ended again and again until it is done."""
    out = tmp_path / "out"
    for number, wanted in ((signal.SIGTERM, 1), (signal.SIGHUP, 3)):
        with Command(tmp_path, *ON_RAY) as command:
            command.wait_until(lambda wanted=wanted: len(trial_files(out)) >= wanted)
            os.killpg(command.process.pid, number)
            assert_ended(command, number)
            assert command.left_over() == []
        assert wanted <= len(trial_files(out)) < NUM_TRIALS

    with Command(tmp_path, *ON_RAY) as command:
        command.wait_until(lambda: len(trial_files(out)) >= 5)
        send_to_all(command, signal.SIGTERM)  # Ray can't end in good order then, and is not waited for
        code, printed, _ = command.end()
        assert command.left_over() == []
    assert code != 0
    assert printed == ""

    done = cli(*IN_ONE_PROCESS)
    assert (done.code, done.err) == (0, "")
    assert Outcome.of(out) == undisturbed


@pytest.mark.ray
def test_while_ray_starts(tmp_path: Path) -> None:
    with Command(tmp_path, *ON_RAY) as command:
        command.wait_until(lambda: bool(started(command)))
        os.killpg(command.process.pid, signal.SIGTERM)
        assert_ended(command, signal.SIGTERM)
        assert command.left_over() == []
    assert trial_files(tmp_path / "out") == []


@pytest.mark.ray
@pytest.mark.parametrize("seconds", [0.1, 0.3, 1, 2, 4, 8])
def test_two_of_them_at_any_time(tmp_path: Path, seconds: float) -> None:
    """Ctrl-C twice: while the program loads, while Ray starts, at work."""
    with Command(tmp_path, *ON_RAY) as command:
        command.wait_until(lambda: has_begun(command))
        time.sleep(seconds)
        command.wait_until(lambda: True)
        for _ in range(2):
            os.killpg(command.process.pid, signal.SIGINT)
            time.sleep(0.05)
        code, printed, err = command.end()
        assert (code, printed, len(err.splitlines())) == (130, "", 1)
        assert command.left_over() == []


@pytest.mark.ray
def test_an_end_without_cleaning_up_leaves_no_process(tmp_path: Path) -> None:
    """As where that takes longer than is waited for."""
    hasty = "from fedscout.engine.runtime import processes as signals; signals.GRACE_SECONDS = 0.0"
    with Command(tmp_path, *ON_RAY, before=hasty) as command:
        command.wait_for_process(lambda process: works_as(process, "ray::HostActor"))
        command.interrupt()
        code, printed, err = command.end()
        assert (code, printed, len(err.splitlines())) == (130, "", 1)
        assert command.left_over() == []


def has_begun(command: Command) -> bool:
    """Whether a command hears signals: Python itself, before it runs a program, dies of them."""
    handled = Path(f"/proc/{command.process.pid}/status").read_text().partition("SigCgt:")[2].split()[0]
    return bool(int(handled, 16) >> (signal.SIGHUP - 1) & 1)


def test_a_signal_that_the_caller_switched_off_stays_off(tmp_path: Path, undisturbed: Outcome) -> None:
    """As `nohup` does with SIGHUP."""
    kept = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        command = Command(tmp_path, *IN_ONE_PROCESS)
    finally:
        signal.signal(signal.SIGHUP, kept)
    with command:
        command.wait_until(lambda: len(trial_files(tmp_path / "out")) >= 1)
        command.process.send_signal(signal.SIGHUP)
        code, _, err = command.end()
    assert (code, err) == (0, "")
    assert Outcome.of(tmp_path / "out") == undisturbed
