"""End-to-end benchmark of a study: fedscout compared with the same trainings run sequentially in Flower.

On a machine with other load, timings from different hours are not comparable, so measurements are interleaved: each
repetition runs fedscout and then every peer variant.

fedscout is measured as `fedscout run` in a process of its own: imports, hosts, detection, search, confirmation and
report. Flower gets the same rows, model, seeds, rounds and trainings, and runs no detection.

Two tasks need no download: the demo's digits, and the same digits as images for LeNet-5, with each pixel of the 8 x 8
images enlarged to 4 x 4 to give the 32 x 32 pixels for which LeNet-5 was designed. The latter is an easy task with few
rows (1,797); the benchmark measures time.
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
from fedscout.experiments.studies.run_folder import RESULT_FILE
from fedscout.experiments.studies.runner import num_processors
from fedscout.experiments.timings.peer_plan import plan_of, write_plan
from fedscout.experiments.timings.peer_runs import MissingPeer, Peer, peer_answer

MEASURED = str(Path(__file__).with_name("measured_command.py"))
MAX_STDERR_CHARACTERS = 2000
STOP_SECONDS = 30.0


class Usage(BaseModel, frozen=True):
    """Resource usage of a command and its child processes."""

    wall_seconds: float
    processor_seconds: float


class StudyRun(Usage):
    """A completed study.

    Attributes:
        place: Where fedscout trained, `local` or `ray`; empty for peers.
        trainings: Number of trainings in the study.
        measured: Number of trainings that were run; if fewer, the seconds are estimated from these.
        rounds: Total rounds of the trainings that were run.
        winner: The confirmed strategy; empty if not all trainings were run.
        confirmed: Mean accuracy on the fresh seeds, by role.
    """

    place: str = ""
    trainings: int
    measured: int
    rounds: int
    winner: str = ""
    confirmed: Mapping[str, float] = {}


def run_ours(settings: Sequence[str]) -> tuple[StudyRun, tuple[Trial, ...]]:
    """Return a study run by fedscout in a temporary folder, and its trials, from which the peers' plan is made.

    Raises:
        EngineError: If it fails, with its output.
    """
    with tempfile.TemporaryDirectory(prefix="fs-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        out = folder / "study"
        program = [sys.executable, "-m", "fedscout.experiments.cli.main"]
        usage = _measured([*program, "run", *settings, "--out", str(out)], folder)
        document = read_json_object(out / RESULT_FILE)
        trials = tuple(sorted(TrialLog(out).read(), key=lambda trial: trial.trial))
    confirmation = document["confirmation"] or {"contestants": []}
    run = StudyRun(
        **usage.model_dump(),
        place=document["timings"]["engine"]["ran_on"],
        trainings=len(trials),
        measured=len(trials),
        rounds=sum(trial.num_rounds for trial in trials),
        winner=next((candidate["strategy"] for candidate in confirmation["contestants"]), ""),
        confirmed=_means_by_role({candidate["role"]: candidate["own"] for candidate in confirmation["contestants"]}),
    )
    return run, trials


def _measured(command: Sequence[str], folder: Path) -> Usage:
    """Return the resource usage of a command; its output is reported only if it fails."""
    usage, log = folder / "usage.json", folder / "log"
    with log.open("wb") as log_file:
        process = subprocess.Popen(  # noqa: S603  # our own program
            [sys.executable, MEASURED, str(usage), *command],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
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
        output = log.read_text(errors="replace")[-MAX_STDERR_CHARACTERS:].strip()
        raise EngineError(f"fedscout's study exited with code {code}: {output}")
    return Usage.model_validate_json(usage.read_text())


def _means_by_role(scores: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return mean scores by role, with "challenger" renamed to "winner"."""
    return {"winner" if role == "challenger" else role: fmean(values) for role, values in scores.items() if values}


@dataclass(frozen=True)
class PeerStudy:
    """A study for a peer to run.

    Attributes:
        folder: Folder of the study, as `peers/study_plan.py` describes it.
        trainings: Number of trainings in the study.
        rounds: Rounds per training.
        at_most: Maximum number of trainings to run; the time of the others is estimated.
        seconds: Time limit.
    """

    folder: Path
    trainings: int
    rounds: int
    at_most: int
    seconds: float


class PeerAnswer(BaseModel):
    """Output of `peers/flower_study.py`."""

    training_seconds: tuple[float, ...]
    winner: str = ""
    confirmed: dict[str, tuple[float, ...]] = {}
    versions: dict[str, str]


def run_peer_study(peer: Peer, way: str, asked: PeerStudy) -> StudyRun | MissingPeer:
    """Return the study run by a peer; `way` says whether trainings share a simulation."""
    with tempfile.TemporaryDirectory(prefix="fs-", ignore_cleanup_errors=True) as name:
        usage = Path(name) / "usage.json"
        arguments = [str(asked.folder), way, str(asked.at_most)]
        answer = peer_answer(peer, arguments, asked.seconds, before=[sys.executable, MEASURED, str(usage)])
        if isinstance(answer, MissingPeer):
            return answer
        try:
            used = Usage.model_validate_json(usage.read_text())
            return peer_run(PeerAnswer.model_validate_json(answer), asked, used)
        except ValidationError:
            return MissingPeer(missing=f"its output contains no trainings: {answer}")


def peer_run(answer: PeerAnswer, asked: PeerStudy, usage: Usage) -> StudyRun:
    """Return the cost of the whole study: the measured time plus the median training's time for each training not run.

    The median is used because the first training of a shared simulation includes its start. CPU seconds are scaled by
    the same factor as wall seconds.
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
        confirmed=_means_by_role(answer.confirmed),
    )


WorkName = Literal["digits", "lenet"]

PICTURES_FILE = "digit_pictures.npz"
PIXELS = 8
ENLARGED = 4
"""Pixels per side for each original pixel."""


def work_settings(name: WorkName, folder: Path) -> list[str]:
    """Return the settings of a task's study that differ from the defaults; its data are written to the folder."""
    if name == "digits":
        return ["federation.dataset=digits"]
    path = folder / PICTURES_FILE
    if not path.exists():
        digits = load_dataset(DatasetRequest(dataset="digits"))
        pictures = digits.features.reshape(-1, PIXELS, PIXELS).repeat(ENLARGED, axis=1).repeat(ENLARGED, axis=2)
        np.savez(path, x=pictures, y=digits.labels)
    return [f"federation.dataset={path}", "model.kind=lenet"]


Note = Callable[[str], None]

FLOWER = Peer("flower", "flower_study", "pip install 'fedscout[peers]'")
WAYS = {"each": "flower, one simulation per training", "one": "flower, one simulation for all"}
"""How trainings are run there, by the name on the peer's command line."""


@dataclass(frozen=True)
class StudyBenchConfig:
    """Configuration of the benchmark.

    Attributes:
        settings: Settings of the study, which override those of the task.
        grids: Values of `engine.grid`; others are compared with the first.
        ways: Keys of `WAYS`.
        repeats: Number of repetitions.
        peer_trainings: Maximum number of trainings of a peer; None runs all.
        peer_seconds: Time limit of a peer.
    """

    settings: Sequence[str] = ()
    grids: Sequence[str] = ("auto",)
    ways: Sequence[str] = tuple(WAYS)
    repeats: int = 1
    peer_trainings: int | None = None
    peer_seconds: float = 3600.0


class StudyReport(BaseModel, frozen=True):
    """Benchmark results.

    Attributes:
        title: The federation, with its model.
        searched: Trainings of the search, including FedAvg.
        tuning: Trainings that tune FedAvg's learning rate.
        confirming: Trainings on fresh seeds.
        rounds: Rounds per training.
        processors: Number of processors.
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
    """Return the benchmark results of a task's study; `note` is called with a line of progress.

    Raises:
        ConfigurationError: If a setting is wrong, or not supported by a peer.
        EngineError: If fedscout's study fails.
    """
    ours: dict[str, tuple[StudyRun, ...]] = {}
    peers: dict[str, tuple[StudyRun, ...] | MissingPeer] = {}
    trials: tuple[Trial, ...] = ()
    with tempfile.TemporaryDirectory(prefix="fs-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        settings = [*work_settings(work, folder), *bench_config.settings]
        config = load_config(settings)
        federation = build_federation(config.federation, config.model)
        if bench_config.ways:
            plan_of(config, federation, (), num_processors())  # refuses what no peer can repeat, before any training
        for turn in range(bench_config.repeats):
            progress = f"repetition {turn + 1} of {bench_config.repeats}"
            for grid in bench_config.grids:
                note(f"{progress}: fedscout, engine.grid={grid}")
                run, logged = run_ours([*settings, f"engine.grid={grid}"])
                ours[grid], trials = (*ours.get(grid, ()), run), trials or logged
            for way in bench_config.ways:
                previous = peers.get(way, ())
                if isinstance(previous, MissingPeer):
                    continue
                note(f"{progress}: {WAYS[way]}")
                plan = plan_of(config, federation, trials, num_processors())
                write_plan(folder, plan, federation, config.training.test_fraction)
                at_most = min(bench_config.peer_trainings or plan.num_trainings, plan.num_trainings)
                asked = PeerStudy(folder, plan.num_trainings, plan.rounds, at_most, bench_config.peer_seconds)
                result = run_peer_study(FLOWER, way, asked)
                peers[way] = result if isinstance(result, MissingPeer) else (*previous, result)
    phases = Counter(trial.phase for trial in trials)
    return StudyReport(
        title=f"{federation.name}, {federation.model}",
        searched=phases["baseline"] + phases["search"],
        tuning=phases["tuned-baseline"],
        confirming=phases["confirmation"],
        rounds=config.training.num_rounds,
        processors=num_processors(),
        ours=ours,
        peers=peers,
    )


PLACES = {"local": "in one process", "ray": "on Ray"}
HEADINGS = ("wall, s", "min", "max", "CPU, s", "ms/round", "winner %", "FedAvg %", "x wall", "x CPU")
WIDTH = 10


def table_lines(report: StudyReport) -> list[str]:
    """Return the results as a table: medians over repetitions, range of wall seconds, and ratios to fedscout."""
    compared = next(iter(report.ours.values()))
    names = [_our_name(grid, runs) for grid, runs in report.ours.items()] + [WAYS[way] for way in report.peers]
    width = max(map(len, names)) + 2
    rows = [_row(_our_name(grid, runs), width, runs, compared) for grid, runs in report.ours.items()]
    for way, result in report.peers.items():
        rows.append(
            f"{WAYS[way]:{width}}{result.missing}"
            if isinstance(result, MissingPeer)
            else _row(WAYS[way], width, result, compared)
        )
    return [
        f"{report.title}; {report.rounds} rounds per training",
        f"{report.searched} trainings in search, {report.tuning} to tune FedAvg, {report.confirming} to confirm; "
        f"{report.processors} processors; repetitions: {len(compared)}",
        "",
        " " * width + "".join(f"{heading:>{WIDTH}}" for heading in HEADINGS),
        *rows,
        *_remarks(report),
    ]


def _our_name(grid: str, runs: Sequence[StudyRun]) -> str:
    place = PLACES.get(runs[0].place, runs[0].place)
    return f"fedscout, {place}" + (" (auto)" if grid == "auto" else "")


def _row(name: str, width: int, runs: Sequence[StudyRun], compared: Sequence[StudyRun]) -> str:
    wall, compared_wall = (_median(each, "wall_seconds") for each in (runs, compared))
    processor, compared_processor = (_median(each, "processor_seconds") for each in (runs, compared))
    walls = [run.wall_seconds for run in runs]
    rounds = median(1000 * run.wall_seconds / whole_rounds(run) for run in runs)
    figures = [f"{wall:.1f}", f"{min(walls):.1f}", f"{max(walls):.1f}", f"{processor:.1f}", f"{rounds:.0f}"]
    figures += [_percent(runs[-1], "winner"), _percent(runs[-1], "fedavg")]
    if runs is not compared:
        figures += [f"{wall / compared_wall:.1f}", f"{processor / compared_processor:.1f}"]
    return f"{name:{width}}" + "".join(f"{figure:>{WIDTH}}" for figure in figures)


def whole_rounds(run: StudyRun) -> float:
    """Return the rounds of all trainings, including those that were not run."""
    return run.rounds * run.trainings / run.measured


def _median(runs: Sequence[StudyRun], figure: str) -> float:
    return float(median(getattr(run, figure) for run in runs))


def _percent(run: StudyRun, role: str) -> str:
    return f"{100 * run.confirmed[role]:.1f}" if role in run.confirmed else ""


def _remarks(report: StudyReport) -> list[str]:
    """Return remarks on estimates, trainings that ended early, and winners."""
    remarks = []
    for way, result in report.peers.items():
        for run in () if isinstance(result, MissingPeer) else result[:1]:
            if run.measured < run.trainings:
                remarks.append(f"{WAYS[way]}: {run.measured} of {run.trainings} trainings measured, the rest estimated")
            elif run.winner:
                remarks.append(f"{WAYS[way]}: the winner is {run.winner}")
    for runs in list(report.ours.values())[:1]:
        run, planned_rounds = runs[0], runs[0].trainings * report.rounds
        early = (
            f"; {run.rounds} of {planned_rounds} rounds, as some trainings failed early"
            if run.rounds < planned_rounds
            else ""
        )
        remarks.append(f"fedscout: the winner is {run.winner or 'not confirmed'}{early}; detection included")
    return ["", *remarks]
