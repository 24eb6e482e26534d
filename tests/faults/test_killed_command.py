"""A command that is killed or sent a signal at any moment: the same command again ends as the undisturbed one.

Moments that are too short to be met from outside are met from inside: the command kills itself. A signal may come to
the command alone (`kill`), to its process group (`timeout`, a terminal that is closed) or to all processes that it has
started (a batch system).
"""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.commands import ran_python
from tests.experiments.cli.conftest import without_progress
from tests.experiments.cli.processes import Command
from tests.faults.chaos import chaos, plan
from tests.faults.conftest import NUM_TRIALS, RUN, STUDY, GoesOn, Outcome, trial_files
from tests.ray_processes import works_as

pytestmark = [pytest.mark.stress]


ON_RAY = ("run", *STUDY, "engine.num_hosts=2", "--out", "out", "--json")
IN_ONE_PROCESS = (*RUN, "out", "--json")
KILLED_AT = """
import os, signal, sys
from pathlib import Path

import pyarrow.parquet as pq

from fedscout.engine.trials.checkpoint import CheckpointStore
from fedscout.experiments.cli.main import main


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def half(path, *_, **__):
    Path(path).write_bytes(b"PAR1 half of it")
    die()


replace = Path.replace


def before_renaming(path, target):
    if Path(target).name.endswith(name):
        die()
    return replace(path, target)


moment, *arguments = sys.argv[1:]
if moment == "in writing a trial":
    pq.ParquetWriter = half
elif moment == "between log and checkpoint":
    CheckpointStore.discard = die
else:
    name = moment.split()[-1]
    Path.replace = before_renaming
main(arguments)
"""
MOMENTS = {
    "before renaming report.json": 0,
    "in writing a trial": 0,
    "before renaming .checkpoint": 0,
    "between log and checkpoint": 1,
    "before renaming result.json": NUM_TRIALS,
}
"""Trials that are in the log afterwards, if the study did not begin before."""


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_in_writing(tmp_path: Path, goes_on: GoesOn, moment: str) -> None:
    killed = ran_python("-c", KILLED_AT, moment, *RUN, str(tmp_path / "out"))
    assert killed.returncode == -signal.SIGKILL
    assert len(trial_files(tmp_path / "out")) == MOMENTS[moment]
    assert goes_on() == []


def named(command: Command, name: str) -> list[psutil.Process]:
    """Return the processes of that name in the command's tree."""
    with suppress(psutil.NoSuchProcess):
        return [process for process in command.tree() if process.name().startswith(name)]
    return []


# What a study's Ray can't do without is killed: one line says so, and the same command goes on.


@pytest.mark.ray
@pytest.mark.parametrize(
    ("process", "name"), [("raylet", "raylet"), ("ray::DashboardAgent", "agent"), ("gcs_server", "server")]
)
def test_one_line_says_so_and_the_study_goes_on(tmp_path: Path, goes_on: GoesOn, process: str, name: str) -> None:
    out = tmp_path / "out"
    with Command(tmp_path, "run", *STUDY, "engine.grid=ray", "--out", "out") as command:
        command.wait_until(lambda: len(trial_files(out)) > 0 and len(named(command, process)) == 1)
        named(command, process)[0].kill()
        code, stdout, stderr = command.end()
        left = command.left_over()

    assert (code, stdout, left) == (1, "", [])
    (line,) = without_progress(stderr).splitlines()
    assert f" Ray's {name} " in line
    assert 0 < len(trial_files(out)) < NUM_TRIALS
    goes_on()


# SIGTERM and SIGHUP: one line, the right exit code, no process left, and the same command goes on.


def assert_ended(command: Command, number: signal.Signals) -> None:
    """Hold that a command ended with the code of a signal, and one line that names it."""
    code, printed, err = command.end()
    assert (code, printed, len(err.splitlines())) == (128 + number, "", 1)
    assert f" {number.name};" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_in_one_process(tmp_path: Path, goes_on: GoesOn, number: signal.Signals) -> None:
    with Command(tmp_path, *IN_ONE_PROCESS) as command:
        command.wait_until(lambda: len(trial_files(tmp_path / "out")) >= 1)
        command.process.send_signal(number)
        with suppress(ProcessLookupError):
            command.process.send_signal(number)  # `timeout` sends it twice
        assert_ended(command, number)
    assert len(trial_files(tmp_path / "out")) < NUM_TRIALS
    assert goes_on() == []


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_on_ray_at_work(tmp_path: Path, goes_on: GoesOn) -> None:
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
        for process in [*command.tree(), command.process]:  # Ray can't end in good order then, and is not waited for
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM)
        code, printed, _ = command.end()
        assert command.left_over() == []
    assert code != 0
    assert printed == ""
    assert goes_on() == []


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


@pytest.mark.ray
@pytest.mark.timeout(290)
def test_a_study_killed_at_random_comes_out_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The chaos run itself, short."""
    assert {kill.kind for kill in plan(random.Random(3), 50, 3600)} == {"trial", "host", "driver"}
    told = chaos(tmp_path, seed=6, num_kills=6, rounds_per_trial=30)

    assert " 6 kills " in told
    assert capsys.readouterr().out.count("kill ") == 6
    assert len(trial_files(tmp_path / "out")) == NUM_TRIALS
