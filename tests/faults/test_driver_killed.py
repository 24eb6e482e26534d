"""`kill -9` of the command at any moment, then the same command again: log and result are those of the undisturbed run.

Moments that are too short to be met from outside are met from inside: the command kills itself.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from tests.commands import ran_python
from tests.experiments.cli.conftest import Cli, without_progress
from tests.experiments.cli.processes import Command
from tests.faults.undisturbed import LOCAL, NUM_TRIALS, STUDY, Outcome, trial_files

pytestmark = [pytest.mark.stress]

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
def test_killed_in_writing(tmp_path: Path, cli: Cli, undisturbed: Outcome, moment: str) -> None:
    arguments = ("run", *STUDY, LOCAL, "--out", str(tmp_path / "out"))
    killed = ran_python("-c", KILLED_AT, moment, *arguments)
    assert killed.returncode == -signal.SIGKILL
    assert len(trial_files(tmp_path / "out")) == MOMENTS[moment]

    done = cli(*arguments)

    assert (done.code, done.warnings) == (0, "")
    assert Outcome.of(tmp_path / "out") == undisturbed


def runs(command: Command, name: str) -> bool:
    """Whether a process of that name is in the command's tree."""
    tree = psutil.Process(command.process.pid).children(recursive=True)
    with suppress(psutil.NoSuchProcess):
        return any(process.name().startswith(name) for process in tree)
    return False


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_killed_again_and_again_on_ray(tmp_path: Path, undisturbed: Outcome) -> None:
    """While Ray starts, in detection and in the confirmation; what each run left, the next one ends."""
    out = tmp_path / "out"
    moments: tuple[Callable[[Command], bool], ...] = (
        lambda command: runs(command, "raylet"),
        lambda command: runs(command, "ray::HostActor"),
        lambda command: len(trial_files(out)) >= NUM_TRIALS - 2,
    )
    with ExitStack() as stack:  # which ends what is left at last
        killed: list[Command] = []

        def start() -> Command:
            command = stack.enter_context(
                Command(tmp_path, "run", *STUDY, "engine.num_hosts=2", "--out", "out", "--json")
            )
            command.wait_until(lambda: runs(command, "raylet"))
            return command

        for is_time in moments:
            command = start()
            command.wait_until(lambda now=is_time, of=command: now(of))
            for earlier in killed:
                assert earlier.alive() == []  # Ray's agents would wait for a minute
            killed.append(command)
            command.process.kill()
            command.end()
        code, _, err = start().end()
    assert (code, without_progress(err)) == (0, "")
    assert Outcome.of(out) == undisturbed
