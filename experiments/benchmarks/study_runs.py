"""One study from command to result, ours or on another program, with what it took.

Ours is `fedscout run` as a user calls it, as a process of its own: imports, hosts, detection, search, confirmation and
report. The other program gets the same rows, model, seeds, rounds and trainings, and detects nothing.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from pydantic import BaseModel, ValidationError

from fedscout.engine.errors import EngineError
from fedscout.engine.runtime.json_file import read_json_object
from fedscout.engine.trials.trial_log import TrialLog
from fedscout.engine.trials.trial_record import Trial
from fedscout.experiments.benchmarks.peer_runs import MissingPeer, Peer, peer_answer
from fedscout.experiments.studies.run_folder import RESULT_FILE
from fedscout.strategies import parameter_columns

MEASURED = str(Path(__file__).with_name("measured_command.py"))
LAST_WORDS = 2000
STOP_SECONDS = 30.0


class Usage(BaseModel, frozen=True):
    """What a command took, with all that it started."""

    wall_seconds: float
    processor_seconds: float


class StudyRun(Usage):
    """A study that was run.

    Attributes:
        place: Where ours trained, `local` or `ray`; empty of others.
        trainings: That the study consists of.
        measured: That were made; where that is fewer, the seconds are estimated from these.
        rounds: Of all trainings that were made.
        winner: The strategy that was confirmed; empty if not all trainings were made.
        confirmed: Mean accuracy on the fresh seeds, by role.
    """

    place: str = ""
    trainings: int
    measured: int
    rounds: int
    winner: str = ""
    confirmed: Mapping[str, float] = {}


@dataclass(frozen=True)
class OurStudy:
    """Our run, and the trials of its log, from which others learn what to do."""

    run: StudyRun
    trials: tuple[Trial, ...]


def run_ours(settings: Sequence[str]) -> OurStudy:
    """Run a study of ours in a folder that is then removed.

    Raises:
        EngineError: If it fails, with what it said.
    """
    with tempfile.TemporaryDirectory(prefix="fs-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        out = folder / "study"
        usage = _measured([*_program(), "run", *settings, "--out", str(out)], folder)
        document = read_json_object(out / RESULT_FILE)
        trials = tuple(sorted(TrialLog(out, parameter_columns()).read(), key=lambda trial: trial.trial))
    confirmation = document["confirmation"] or {"contestants": []}
    run = StudyRun(
        **usage.model_dump(),
        place=document["timings"]["engine"]["ran_on"],
        trainings=len(trials),
        measured=len(trials),
        rounds=sum(trial.num_rounds for trial in trials),
        winner=next((one["strategy"] for one in confirmation["contestants"]), ""),
        confirmed=_of_roles({one["role"]: one["own"] for one in confirmation["contestants"]}),
    )
    return OurStudy(run, trials)


def _program() -> list[str]:
    return [sys.executable, "-m", "fedscout.experiments.cli.main"]


def _measured(command: Sequence[str], folder: Path) -> Usage:
    """Run a command; what it says goes to a file, and is told if it fails."""
    usage, log = folder / "usage.json", folder / "log"
    with log.open("wb") as said:
        process = subprocess.Popen(  # noqa: S603  # our own program
            [sys.executable, MEASURED, str(usage), *command],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        code = process.wait()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)  # upon which it ends all that was started
            process.wait(STOP_SECONDS)
    if code != 0:
        words = log.read_text(errors="replace")[-LAST_WORDS:].strip()
        raise EngineError(f"our study ended with code {code} and said: {words}")
    return Usage.model_validate_json(usage.read_text())


def _of_roles(scores: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the means; what ours calls the challenger is the winner of its search."""
    return {"winner" if role == "challenger" else role: fmean(values) for role, values in scores.items() if values}


@dataclass(frozen=True)
class PeerStudy:
    """What another program is asked for.

    Attributes:
        folder: Of the study, as `peers/study_plan.py` describes it.
        trainings: That the study consists of.
        rounds: Of each.
        at_most: Trainings that are made; those that are left are estimated.
        seconds: After which it is given up.
    """

    folder: Path
    trainings: int
    rounds: int
    at_most: int
    seconds: float


class PeerAnswer(BaseModel):
    """What `peers/flower_study.py` says."""

    training_seconds: tuple[float, ...]
    winner: str = ""
    confirmed: dict[str, tuple[float, ...]] = {}
    versions: dict[str, str]


def run_peer_study(peer: Peer, way: str, asked: PeerStudy) -> StudyRun | MissingPeer:
    """Run the study on another program; `way` says whether trainings share a simulation."""
    with tempfile.TemporaryDirectory(prefix="fs-", ignore_cleanup_errors=True) as name:
        usage = Path(name) / "usage.json"
        arguments = [str(asked.folder), way, str(asked.at_most)]
        answer = peer_answer(peer, arguments, asked.seconds, before=[sys.executable, MEASURED, str(usage)])
        if isinstance(answer, MissingPeer):
            return answer
        try:
            return peer_run(PeerAnswer.model_validate_json(answer), asked, _usage(usage))
        except ValidationError:
            return MissingPeer(missing=f"its answer holds no trainings: {answer}")


def _usage(path: Path) -> Usage:
    return Usage.model_validate_json(path.read_text())


def peer_run(answer: PeerAnswer, asked: PeerStudy, usage: Usage) -> StudyRun:
    """Return what the whole study takes: what was measured, and where trainings are left, the middle one's for each.

    The middle one, as the first training in a simulation that others share has its start in it. Processor seconds are
    those that were measured, times as much as the wall seconds.
    """
    measured = len(answer.training_seconds)
    left = asked.trainings - measured
    wall_seconds = usage.wall_seconds + (left * median(answer.training_seconds) if left else 0.0)
    return StudyRun(
        wall_seconds=wall_seconds,
        processor_seconds=usage.processor_seconds * wall_seconds / usage.wall_seconds,
        trainings=asked.trainings,
        measured=measured,
        rounds=measured * asked.rounds,
        winner=answer.winner,
        confirmed=_of_roles(answer.confirmed),
    )
