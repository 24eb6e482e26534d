"""Chaos: processes of a running study are killed at random, and the study must come out as if nothing had happened.

Hosts, trials' processes and the command itself, which is then called again, are killed with -9 at moments drawn from a
seed. Afterwards every row of the log and the result, both without their timings, must be those of the same study in one
process that nobody disturbed.

The moments are numbers of finished rounds, so the kills are spread over the whole study on a fast machine as on a slow
one; some strike right after another, or while the command starts again. Every round leaves a checkpoint: that is what
carries the study forward.

Usage: `make chaos`, or `python -m tests.faults.chaos [--kills 50] [--seed 1]`.
"""

from __future__ import annotations

import argparse
import collections
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from fedscout.engine.trials.checkpoint import read_checkpoint
from tests.commands import ran_python
from tests.experiments.cli.processes import Command
from tests.faults.conftest import LOCAL, NUM_TRIALS, STUDY, Outcome, trial_files
from tests.ray_processes import works_as

PROGRAM = "fedscout.experiments.cli.main"
STALL_SECONDS = 240.0
STARTS = 5
"""Ray gives up its own start after 30 s, which a busy machine may need; the command is then called again."""

POLL_SECONDS = 0.02

Kind = Literal["trial", "host", "driver"]
WEIGHTS: dict[Kind, int] = {"trial": 5, "host": 3, "driver": 2}
TITLES: dict[Kind, str] = {"host": "ray::HostActor", "trial": "ray::_run"}
"""What Ray calls the processes."""


class ChaosError(Exception):
    """The disturbed study failed, hangs, or is not the undisturbed one."""


@dataclass(frozen=True)
class Kill:
    """One kill to come.

    Attributes:
        kind: Of the process.
        after_round: Of all rounds of the study.
        after_seconds: More.
    """

    kind: Kind
    after_round: int
    after_seconds: float


def plan(generator: random.Random, num_kills: int, num_rounds: int) -> list[Kill]:
    """Draw the kills of a study of `num_rounds` rounds in all, in its first half: a slow machine strikes late.

    One in four comes shortly after the one before; if that was the command's, while it starts again.
    """
    kills: list[Kill] = []
    for after_round in sorted(generator.sample(range(1, num_rounds // 2), num_kills)):
        kind = generator.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
        if kills and generator.random() < 0.25:
            longest = 6.0 if kills[-1].kind == "driver" else 0.5
            kills.append(Kill(kind, kills[-1].after_round, generator.uniform(0, longest)))
        else:
            kills.append(Kill(kind, after_round, generator.uniform(0, 0.05)))
    return kills


def rounds_done(out: Path, rounds_per_trial: int) -> int:
    """Return how many rounds of a study are in its log and its checkpoints."""
    done = rounds_per_trial * len(trial_files(out))
    for path in out.glob("checkpoints/*.checkpoint"):
        with suppress(Exception):  # it vanishes while it is read
            done += int(read_checkpoint(path)[0]["state"]["server_round"])
    return done


@dataclass
class Disturbed:
    """A study that is being disturbed.

    Attributes:
        folder: Where it runs; its output goes to `out` in there.
        arguments: Of the command.
        rounds_per_trial: Of the study.
        stack: Ends what was started and still runs.
    """

    folder: Path
    arguments: Sequence[str]
    rounds_per_trial: int
    stack: ExitStack
    _failed_starts: int = 0
    _began: float = field(default_factory=time.monotonic)

    def start(self) -> None:
        """Call the command, for the first time or again."""
        self._command = self.stack.enter_context(Command(self.folder, *self.arguments))

    def finished(self) -> bool:
        """Whether the command ended well.

        Raises:
            ChaosError: If it ended otherwise; we did not kill it.
        """
        code = self._command.process.poll()
        if code not in (None, 0):
            _, _, err = self._command.end()
            if "timed out during startup" not in err[-400:] or self._failed_starts >= STARTS:
                raise ChaosError(f"the command ended with exit code {code}: {err[-2000:]}")
            self._failed_starts += 1
            print("Ray could not start in time; the command is called again", flush=True)
            self.start()
        return code == 0

    def rounds(self) -> int:
        """Return how many rounds are done."""
        return rounds_done(self.folder / "out", self.rounds_per_trial)

    def wait(self, until_round: int) -> None:
        """Wait until so many rounds are done, or the study is.

        Raises:
            ChaosError: If it stands still.
        """
        last, since = self.rounds(), time.monotonic()
        while last < until_round and not self.finished():
            time.sleep(POLL_SECONDS)
            now = self.rounds()
            if now > last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > STALL_SECONDS:
                raise ChaosError(f"no round was finished for {STALL_SECONDS:.0f} s after round {last}")

    def strike(self, kill: Kill, generator: random.Random) -> str:
        """Kill a process, as soon as there is one of the kind; return what was killed and when.

        Raises:
            ChaosError: If the study ended before.
        """
        self.wait(kill.after_round)
        time.sleep(kill.after_seconds)
        deadline = time.monotonic() + STALL_SECONDS
        while not self.finished():
            if killed := self._kill_process(kill.kind, generator):
                return f"{time.monotonic() - self._began:6.1f} s, round {self.rounds():4}: {kill.kind} {killed}"
            if time.monotonic() > deadline:
                raise ChaosError(f"there was no {kill.kind} to kill for {STALL_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)
        raise ChaosError("the study ended before all kills were spent; give it more --rounds")

    def _kill_process(self, kind: Kind, generator: random.Random) -> str:
        process = self._command.process
        with suppress(psutil.NoSuchProcess):
            tree = self._command.tree()
            if kind == "driver":
                process.kill()
                process.wait()
                self.start()
                return str(process.pid)
            victims = [one for one in tree if works_as(one, TITLES[kind])]
            if victims:
                victim = generator.choice(sorted(victims, key=lambda one: one.pid))
                victim.kill()
                return str(victim.pid)
        return ""


def chaos(folder: Path, seed: int, num_kills: int, rounds_per_trial: int) -> str:
    """Run a study twice, once undisturbed; return what was found.

    Args:
        folder: For both.
        seed: Of kinds, moments and victims.
        num_kills: How many processes are killed.
        rounds_per_trial: Length of each of the study's eight trials.

    Raises:
        ChaosError: If anything but timings differs.
    """
    generator = random.Random(seed)
    kills = plan(generator, num_kills, NUM_TRIALS * rounds_per_trial)
    arguments = ["run", *STUDY, f"training.num_rounds={rounds_per_trial}", "--json"]
    ran_python("-m", PROGRAM, *arguments, LOCAL, "--out", "undisturbed", cwd=folder, timeout=3600).check_returncode()
    with ExitStack() as stack:
        study = Disturbed(folder, [*arguments, "engine.num_hosts=2", "--out", "out"], rounds_per_trial, stack)
        study.start()
        for number, kill in enumerate(kills, 1):
            print(f"kill {number:2} of {num_kills}: {study.strike(kill, generator)}", flush=True)
        study.wait(NUM_TRIALS * rounds_per_trial + 1)
    if (folder / "out" / "quarantine").exists() or Outcome.of(folder / "out") != Outcome.of(folder / "undisturbed"):
        raise ChaosError("log or result are not those of the undisturbed study")
    kinds = collections.Counter(kill.kind for kill in kills)
    spent = ", ".join(f"{number} of a {kind}" for kind, number in sorted(kinds.items()))
    return f"seed {seed}: after {num_kills} kills ({spent}) log and result are those of the undisturbed study"


def main() -> None:
    """Read the command line, and say what happens."""
    parser = argparse.ArgumentParser(prog="chaos", description="Kill processes of a study at random.")
    parser.add_argument("--kills", type=int, default=50, help="how many")
    parser.add_argument("--seed", type=int, default=None, help="of what is killed when; nothing draws one")
    parser.add_argument("--rounds", type=int, default=None, help="of each trial; nothing means 24 a kill, at least 30")
    given = parser.parse_args()
    seed = secrets.randbelow(10**6) if given.seed is None else given.seed
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    print(f"chaos: seed {seed}, {given.kills} kills, in {folder}", flush=True)
    try:
        print("chaos:", chaos(folder, seed, given.kills, given.rounds or max(30, 24 * given.kills)))
    except ChaosError as error:
        sys.exit(f"chaos: seed {seed}: {error}; see {folder}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
