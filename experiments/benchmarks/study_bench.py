"""The whole job: from a command to a confirmed choice, ours and the same trainings one after another in Flower.

Where other work comes and goes on a machine, figures of different hours can't be compared. So everything is measured in
turn: ours, each other way, and that as often as asked for.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from fedscout.engine.trials.trial_record import Trial
from fedscout.experiments.benchmarks.peer_plan import plan_of, write_plan
from fedscout.experiments.benchmarks.peer_runs import MissingPeer, Peer
from fedscout.experiments.benchmarks.peers.study_plan import StudyPlan
from fedscout.experiments.benchmarks.study_runs import PeerStudy, StudyRun, run_ours, run_peer_study
from fedscout.experiments.benchmarks.study_work import WorkName, work_settings
from fedscout.experiments.config.config_file import load_config
from fedscout.experiments.federations.assembly.build_federation import build_federation
from fedscout.experiments.studies.grid_choice import num_processors

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
