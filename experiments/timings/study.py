"""The whole job: from a command to a confirmed choice, ours and the same trainings one after another in Flower.

Where other work comes and goes on a machine, figures of different hours can't be compared. So everything is measured in
turn: ours, each other way, and that as often as asked for.

One study from command to result, ours or on another program, with what it took.

Ours is `fedscout run` as a user calls it, as a process of its own: imports, hosts, detection, search, confirmation and
report. The other program gets the same rows, model, seeds, rounds and trainings, and detects nothing.

Whole studies, for people.

Which studies are held beside other programs: the demo's digits, and the same digits as pictures for LeNet.

Nothing has to be fetched for either. The pictures are the 8 x 8 digits with every pixel drawn as 4 x 4, so that LeNet-5
has the 32 x 32 that it was made for. That is an easy task of few rows (1,797); what is measured is time.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Literal

import numpy as np
from pydantic import BaseModel, ValidationError

from fedscout.engine.errors import EngineError
from fedscout.engine.runtime.files import read_json_object
from fedscout.engine.trials.log import TrialLog
from fedscout.engine.trials.record import Trial
from fedscout.experiments.config import load_config
from fedscout.experiments.data.dataset import DatasetRequest
from fedscout.experiments.data.loaders.table import load_dataset
from fedscout.experiments.federation import build_federation
from fedscout.experiments.studies.checks import num_processors
from fedscout.experiments.studies.run_folder import RESULT_FILE
from fedscout.experiments.timings.peer_plan import plan_of, write_plan
from fedscout.experiments.timings.peer_runs import MissingPeer, Peer, peer_answer
from fedscout.experiments.timings.peers.study_plan import StudyPlan
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


WorkName = Literal["digits", "lenet"]

PICTURES_FILE = "digit_pictures.npz"
PIXELS = 8
ENLARGED = 4
"""Pixels a side for one."""


def _digits(_: Path) -> list[str]:
    return ["federation.dataset=digits"]


def _lenet(folder: Path) -> list[str]:
    path = folder / PICTURES_FILE
    if not path.exists():
        digits = load_dataset(DatasetRequest(dataset="digits"))
        pictures = digits.features.reshape(-1, PIXELS, PIXELS).repeat(ENLARGED, axis=1).repeat(ENLARGED, axis=2)
        np.savez(path, x=pictures, y=digits.labels)
    return [f"federation.dataset={path}", "model.kind=lenet"]


_WORKS: Mapping[WorkName, Callable[[Path], list[str]]] = {"digits": _digits, "lenet": _lenet}


def work_settings(name: WorkName, folder: Path) -> list[str]:
    """Return the settings of a work's study, all others being the defaults; what it reads lies in the folder."""
    return _WORKS[name](folder)


Note = Callable[[str], None]

FLOWER = Peer("flower", "flower_study", "pip install 'fedscout[peers]'")
WAYS = {"each": "flower, a simulation a training", "one": "flower, one simulation for all"}
"""How trainings are run there, by what the peer's command line calls it."""


@dataclass(frozen=True)
class StudyBenchConfig:
    """What is measured.

    Attributes:
        settings: Of the study, over those of the work.
        grids: Values of `engine.grid`; the first is the one that others are compared with.
        ways: Keys of `WAYS`.
        repeats: Turns.
        peer_trainings: That are made there at most; None makes all.
        peer_seconds: After which a peer is given up.
    """

    settings: Sequence[str] = ()
    grids: Sequence[str] = ("auto",)
    ways: Sequence[str] = tuple(WAYS)
    repeats: int = 1
    peer_trainings: int | None = None
    peer_seconds: float = 3600.0


class StudyReport(BaseModel, frozen=True):
    """What a benchmark gives.

    Attributes:
        title: The federation, with its model.
        searched: Trainings of the search, FedAvg's included; tuning those of FedAvg's rate, confirming those on fresh
            seeds; each of so many rounds.
        ours: Runs by `engine.grid`.
        peers: Runs by way, or why there are none; a way that failed once has none.
    """

    title: str
    searched: int
    tuning: int
    confirming: int
    rounds: int
    processors: int
    ours: dict[str, tuple[StudyRun, ...]]
    peers: dict[str, tuple[StudyRun, ...] | MissingPeer]


def measure_study(work: WorkName, bench_config: StudyBenchConfig, note: Note = lambda _: None) -> StudyReport:
    """Measure a work's study; `note` is told what is being done.

    Raises:
        ConfigurationError: If a setting is wrong, or can't be repeated by a peer.
        EngineError: If our study fails.
    """
    with tempfile.TemporaryDirectory(prefix="fs-", ignore_cleanup_errors=True) as name:
        return _Measurement(work, bench_config, Path(name), note).report()


class _Measurement:
    """One run, in a folder for what works and peers read."""

    def __init__(self, work: WorkName, bench_config: StudyBenchConfig, folder: Path, note: Note) -> None:
        self._sitting, self._folder, self._note = bench_config, folder, note
        self._settings = [*work_settings(work, folder), *bench_config.settings]
        self._config = load_config(self._settings)
        self._federation = build_federation(self._config.federation, self._config.model)
        self._ours: dict[str, tuple[StudyRun, ...]] = {}
        self._peers: dict[str, tuple[StudyRun, ...] | MissingPeer] = {}
        self._trials: tuple[Trial, ...] = ()

    def report(self) -> StudyReport:
        if self._sitting.ways:
            self._plan()  # refuses what no peer can repeat, before anything is trained
        for turn in range(self._sitting.repeats):
            told = f"turn {turn + 1} of {self._sitting.repeats}"
            for grid in self._sitting.grids:
                self._note(f"{told}: fedscout, engine.grid={grid}")
                self._run_ours(grid)
            for way in self._sitting.ways:
                if not isinstance(self._peers.get(way), MissingPeer):
                    self._note(f"{told}: {WAYS[way]}")
                    self._run_peer(way)
        phases = Counter(trial.phase for trial in self._trials)
        return StudyReport(
            title=f"{self._federation.name}, {self._federation.model}",
            searched=phases["baseline"] + phases["search"],
            tuning=phases["tuned-baseline"],
            confirming=phases["confirmation"],
            rounds=self._config.training.num_rounds,
            processors=num_processors(),
            ours=self._ours,
            peers=self._peers,
        )

    def _run_ours(self, grid: str) -> None:
        found = run_ours([*self._settings, f"engine.grid={grid}"])
        self._ours[grid] = (*self._ours.get(grid, ()), found.run)
        self._trials = self._trials or found.trials

    def _plan(self) -> StudyPlan:
        return plan_of(self._config, self._federation, self._trials, num_processors())

    def _run_peer(self, way: str) -> None:
        plan, asked = self._plan(), self._sitting.peer_trainings
        write_plan(self._folder, plan, self._federation, self._config.training.test_fraction)
        at_most = plan.num_trainings if asked is None else min(asked, plan.num_trainings)
        study = PeerStudy(self._folder, plan.num_trainings, plan.rounds, at_most, self._sitting.peer_seconds)
        known, found = self._peers.get(way, ()), run_peer_study(FLOWER, way, study)
        self._peers[way] = found if isinstance(found, MissingPeer) else (*_runs(known), found)


def _runs(known: tuple[StudyRun, ...] | MissingPeer) -> tuple[StudyRun, ...]:
    return () if isinstance(known, MissingPeer) else known


PLACES = {"local": "in one process", "ray": "on Ray"}
HEADINGS = ("wall, s", "least", "most", "CPU, s", "ms/round", "winner %", "FedAvg %", "x wall", "x CPU")
WIDTH = 10


def table_lines(report: StudyReport) -> list[str]:
    """Return the table: medians of the turns, least and most of wall seconds, and how many times ours they are."""
    compared = next(iter(report.ours.values()))
    names = [_our_name(grid, runs) for grid, runs in report.ours.items()] + [WAYS[way] for way in report.peers]
    width = max(map(len, names)) + 2
    rows = [_row(_our_name(grid, runs), width, runs, compared) for grid, runs in report.ours.items()]
    for way, found in report.peers.items():
        told = found.missing if isinstance(found, MissingPeer) else None
        rows.append(f"{WAYS[way]:{width}}{told}" if told else _row(WAYS[way], width, _runs_text(found), compared))
    return [
        f"{report.title}; {report.rounds} rounds a training",
        f"{report.searched} trainings in search, {report.tuning} to tune FedAvg, {report.confirming} to confirm; "
        f"{report.processors} processors; turns: {len(compared)}",
        "",
        " " * width + "".join(f"{heading:>{WIDTH}}" for heading in HEADINGS),
        *rows,
        *_remarks(report),
    ]


def _runs_text(found: tuple[StudyRun, ...] | MissingPeer) -> tuple[StudyRun, ...]:
    return () if isinstance(found, MissingPeer) else found


def _our_name(grid: str, runs: Sequence[StudyRun]) -> str:
    place = PLACES.get(runs[0].place, runs[0].place)
    return f"fedscout, {place}" + (" (auto)" if grid == "auto" else "")


def _row(name: str, width: int, runs: Sequence[StudyRun], compared: Sequence[StudyRun]) -> str:
    wall, own_wall = (_median(each, "wall_seconds") for each in (runs, compared))
    processor, own_processor = (_median(each, "processor_seconds") for each in (runs, compared))
    walls = [run.wall_seconds for run in runs]
    rounds = median(1000 * run.wall_seconds / whole_rounds(run) for run in runs)
    figures = [f"{wall:.1f}", f"{min(walls):.1f}", f"{max(walls):.1f}", f"{processor:.1f}", f"{rounds:.0f}"]
    figures += [_percent(runs[-1], "winner"), _percent(runs[-1], "fedavg")]
    if runs is not compared:
        figures += [f"{wall / own_wall:.1f}", f"{processor / own_processor:.1f}"]
    return f"{name:{width}}" + "".join(f"{figure:>{WIDTH}}" for figure in figures)


def whole_rounds(run: StudyRun) -> float:
    """Return the rounds of all trainings, those that were not made included."""
    return run.rounds * run.trainings / run.measured


def _median(runs: Sequence[StudyRun], figure: str) -> float:
    return float(median(getattr(run, figure) for run in runs))


def _percent(run: StudyRun, role: str) -> str:
    return f"{100 * run.confirmed[role]:.1f}" if role in run.confirmed else ""


def _remarks(report: StudyReport) -> list[str]:
    """Return what the figures do not say: what was estimated, which trainings ended early, what was chosen."""
    remarks = []
    for way, found in report.peers.items():
        for run in _runs_text(found)[:1]:
            if run.measured < run.trainings:
                remarks.append(f"{WAYS[way]}: {run.measured} of {run.trainings} trainings measured, the rest estimated")
            elif run.winner:
                remarks.append(f"{WAYS[way]}: the winner is {run.winner}")
    for runs in list(report.ours.values())[:1]:
        run, asked = runs[0], runs[0].trainings * report.rounds
        early = f"; {run.rounds} of {asked} rounds, as some trainings failed early" if run.rounds < asked else ""
        remarks.append(f"fedscout: the winner is {run.winner or 'not confirmed'}{early}; detection included")
    return ["", *remarks]
