"""Whole studies beside Flower's: equal work is asked for, it is measured with all it starts, and nothing is left."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.training.loop import batch_bounds
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.trial import run_trial
from fedscout.experiments.config import StudyConfig, load_config
from fedscout.experiments.federation import build_federation
from fedscout.experiments.timings import study
from fedscout.experiments.timings.peer_plan import plan_of, write_plan
from fedscout.experiments.timings.peer_runs import MissingPeer
from fedscout.experiments.timings.peers import flower_study
from fedscout.experiments.timings.peers.flower_study import EnoughError, Measured, Training
from fedscout.experiments.timings.peers.flower_study_clients import batch_starts, descend
from fedscout.experiments.timings.peers.study_plan import StudyPlan, read_plan, read_split
from fedscout.experiments.timings.study import (
    MEASURED,
    PeerAnswer,
    PeerStudy,
    StudyBenchConfig,
    StudyReport,
    StudyRun,
    Usage,
    WorkName,
    measure_study,
    peer_run,
    whole_rounds,
    work_settings,
)
from fedscout.strategies import parse_strategy
from tests.experiments.cli.processes import REPOSITORY
from tests.kits.refusals import refused
from tests.marked_processes import MarkedProcesses, short_folder

FRESH = (11, 12)
FURTHER = 7


def trial(phase: str, seed: int = 0, learning_rate: float = 0.2) -> Trial:
    return Trial(phase=phase, seed=seed, learning_rate=learning_rate)


TRIALS = (
    trial("baseline"),
    *(trial("search") for _ in range(3)),
    *(trial("tuned-baseline", 0, rate) for rate in (0.1, 0.4)),
    *(trial("tuned-baseline", FURTHER, rate) for rate in (0.2, 0.4)),
    *(trial("confirmation", seed, rate) for seed in FRESH for rate in (0.2, 0.2, 0.4)),
)
"""Of a study in the order of its log."""


def work(name: WorkName, folder: Path, *settings: str) -> tuple[StudyConfig, Federation]:
    config = load_config([*work_settings(name, folder), *settings])
    return config, build_federation(config.federation, config.model)


def plan_in(folder: Path, trials: Sequence[Trial] = TRIALS) -> tuple[StudyPlan, StudyConfig, Federation]:
    config, federation = work("digits", folder)
    plan = plan_of(config, federation, trials, workers=2)
    write_plan(folder, plan, federation, config.training.test_fraction)
    return plan, config, federation


def test_a_plan_has_the_trainings_of_the_log(tmp_path: Path) -> None:
    plan, _, _ = plan_in(tmp_path)
    assert plan == read_plan(tmp_path)
    assert plan.num_trainings == len(TRIALS)
    assert (plan.searched, plan.num_tuning, plan.num_confirmation) == (3, 4, 6)
    assert (plan.tuning_rates, plan.finalists, plan.tuning_seeds) == ((0.1, 0.4), 2, (FURTHER,))
    assert (plan.confirmation_seeds, plan.contestants) == (FRESH, 3)


def test_a_peer_scores_every_client_on_the_rows_of_our_trial(tmp_path: Path) -> None:
    """Our trained model has the same accuracy there on each client, under every seed; what is left is trained on."""
    plan, config, federation = plan_in(tmp_path)
    features, labels = torch.from_numpy(federation.features), federation.labels
    net = plan.net()
    for seed in plan.seeds:
        split = read_split(tmp_path, seed, plan.clients)
        session = config.training.session(seed)
        settings = TrialSettings(
            strategy=parse_strategy("fedavg"), num_rounds=3, num_sampled=plan.clients, keep_model=True, session=session
        )
        grid = LocalGrid(federation, session=session)
        ours = run_trial(settings, grid)
        assert ours.vector is not None
        weights = grid.facts.layout.split(ours.vector)
        net.load_state_dict({key: torch.from_numpy(value.copy()) for key, value in weights.items()})
        said = net(features).argmax(dim=1).numpy()
        assert list(ours.client_accuracy) == [np.mean(said[test] == labels[test]) for _, test in split]
        for client, (train, test) in enumerate(split):
            assert sorted([*train, *test]) == sorted(federation.partition.client(client))


@pytest.mark.parametrize("name", ["digits", "lenet"])
def test_a_peer_has_the_model_and_the_bits_of_our_rows(name: WorkName, tmp_path: Path) -> None:
    config, federation = work(name, tmp_path)
    plan = plan_of(config, federation, (), workers=1)
    write_plan(tmp_path, plan, federation, 0.2)
    ours, theirs = federation.model().state_dict(), plan.net().state_dict()
    assert [value.shape for value in ours.values()] == [value.shape for value in theirs.values()]
    assert np.array_equal(np.load(tmp_path / "features.npy"), federation.features)
    assert np.array_equal(np.load(tmp_path / "labels.npy"), federation.labels)


def test_pictures_are_the_digits_enlarged(tmp_path: Path) -> None:
    _, digits = work("digits", tmp_path)
    _, pictures = work("lenet", tmp_path)
    assert pictures.features.shape == (1797, 1, 32, 32)
    assert np.array_equal(pictures.features[:, 0, 1::4, 2::4].reshape(1797, 64), digits.features)
    assert np.array_equal(pictures.labels, digits.labels)


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("training.momentum=0.9", "training.momentum"),
        ("model.norm=batch", "the model"),
        ("search.kind=racing", "search.kind"),
    ],
)
def test_what_a_peer_cannot_repeat_is_refused(setting: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "run_ours", lambda _: pytest.fail("it was trained"))
    with refused(ConfigurationError, key=key):
        measure_study("digits", StudyBenchConfig(settings=[setting]))


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_batches_are_cut_as_ours(batch_size: int) -> None:
    for num_rows in range(1, 100):
        assert batch_starts(num_rows, batch_size) == [start for start, _ in batch_bounds(num_rows, batch_size)]


def test_a_client_of_a_peer_follows_the_gradient_and_fedprox_pulls_it_back(tmp_path: Path) -> None:
    """By hand in float64: w1 = w0 - r g(w0), w2 = w1 - r (g(w1) + mu (w1 - w0)); rows are equal, and so are batches."""
    plan, _, _ = plan_in(tmp_path)
    rate, mu, one = 0.1, 0.5, plan.batch_size
    features, labels = torch.rand(1, 64).double().repeat(2 * one, 1), torch.full((2 * one,), 3)
    net = torch.nn.Linear(64, 10).double()
    began = [weights.detach().clone() for weights in net.parameters()]
    by_hand = [weights.clone() for weights in began]
    for _ in range(2):
        logits = features[0] @ by_hand[0].T + by_hand[1]
        error = logits.softmax(dim=0) - torch.nn.functional.one_hot(labels[0], 10)
        gradients = [torch.outer(error, features[0]), error]
        by_hand = [
            here - rate * (gradient + mu * (here - there))
            for here, gradient, there in zip(by_hand, gradients, began, strict=True)
        ]
    descend(net, features, labels, plan, rate, mu)
    for trained, expected in zip(net.parameters(), by_hand, strict=True):
        torch.testing.assert_close(trained.detach(), expected, rtol=1e-12, atol=1e-12)


class Trainer:
    """Stands in for simulations: FedAvg is worth its rate, another strategy more, the later the more."""

    def __init__(self) -> None:
        self.asked: list[Training] = []
        self.worth: list[float] = []

    def __call__(self, training: Training) -> float:
        self.asked.append(training)
        is_fedavg = training.strategy == "fedavg"
        self.worth.append(training.learning_rate if is_fedavg else 0.5 + 0.01 * len(self.asked))
        return self.worth[-1]


def test_a_peer_makes_the_planned_trainings_and_confirms_its_winner(tmp_path: Path) -> None:
    plan, _, _ = plan_in(tmp_path)
    train = Trainer()
    found = flower_study.study(plan, train)
    assert len(train.asked) == plan.num_trainings
    assert train.asked[0] == Training("fedavg", {}, plan.search_seed, plan.learning_rate)
    assert {one.seed for one in train.asked[: 1 + plan.searched]} == {plan.search_seed}
    tuning = train.asked[1 + plan.searched :][: plan.num_tuning]
    assert [(one.learning_rate, one.seed) for one in tuning] == [(0.1, 0), (0.4, 0), (0.4, FURTHER), (0.2, FURTHER)]
    assert {one.strategy for one in tuning} == {"fedavg"}
    confirmed = train.asked[-plan.num_confirmation :]
    assert [one.seed for one in confirmed] == [seed for seed in FRESH for _ in range(3)]
    best = max(range(1, 1 + plan.searched), key=train.worth.__getitem__)
    for one in (confirmed[0], confirmed[3]):
        assert (one.strategy, one.parameters) == (train.asked[best].strategy, train.asked[best].parameters)
    assert found["winner"] == train.asked[best].strategy
    assert (found["tuned_rate"], found["confirmed"]["tuned-fedavg"]) == (0.4, [0.4, 0.4])


def test_a_peer_stops_where_enough_is_measured(tmp_path: Path) -> None:
    plan, _, _ = plan_in(tmp_path)
    train, measured = Trainer(), Measured(at_most=2)
    with pytest.raises(EnoughError):
        flower_study.study(plan, measured.around(train))
    assert len(train.asked) == len(measured.seconds) == 2


ASKED = PeerStudy(Path(), trainings=10, rounds=4, at_most=10, seconds=1.0)
VERSIONS = {"flwr": "1"}


def test_a_study_of_which_all_was_measured_takes_what_was_measured() -> None:
    answer = PeerAnswer(
        training_seconds=(2.0,) * 10, winner="krum", confirmed={"winner": (0.5, 1.0)}, versions=VERSIONS
    )
    run = peer_run(answer, ASKED, Usage(wall_seconds=25.0, processor_seconds=40.0))
    assert (run.wall_seconds, run.processor_seconds, run.measured, run.rounds) == (25.0, 40.0, 10, 40)
    assert (run.winner, run.confirmed) == ("krum", {"winner": 0.75})


def test_trainings_that_were_not_made_count_as_the_middle_one() -> None:
    """30 s were measured, 5 s of them of no training; seven are left at 4 s each."""
    answer = PeerAnswer(training_seconds=(17.0, 4.0, 4.0), versions=VERSIONS)
    run = peer_run(answer, ASKED, Usage(wall_seconds=30.0, processor_seconds=15.0))
    assert (run.wall_seconds, run.processor_seconds) == (30.0 + 7 * 4.0, 15.0 * 58 / 30)
    assert (run.measured, run.trainings, run.rounds, whole_rounds(run)) == (3, 10, 12, 40)


def study_run(wall_seconds: float, processor_seconds: float = 8.0, **changes: Any) -> StudyRun:
    fields = {
        "trainings": 4,
        "measured": 4,
        "rounds": 8,
        "winner": "fedadam",
        "confirmed": {"winner": 0.9, "fedavg": 0.75},
    }
    return StudyRun(wall_seconds=wall_seconds, processor_seconds=processor_seconds, **fields | changes)


def test_ours_and_peers_take_turns_and_a_way_that_failed_has_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    found = {"each": [study_run(5.0), study_run(6.0)], "one": [MissingPeer(missing="no result within 1 s")]}

    def ours(settings: Sequence[str]) -> tuple[StudyRun, tuple[Trial, ...]]:
        order.append(settings[-1])
        return study_run(1.0), TRIALS

    def peer(_: Any, way: str, asked: PeerStudy) -> StudyRun | MissingPeer:
        order.append(way)
        assert (asked.trainings, asked.at_most) == (len(TRIALS), 3)
        assert read_plan(asked.folder).num_trainings == len(TRIALS)
        return found[way].pop(0)

    monkeypatch.setattr(study, "run_ours", ours)
    monkeypatch.setattr(study, "run_peer_study", peer)
    told: list[str] = []
    bench_config = StudyBenchConfig(grids=("auto", "ray"), repeats=2, peer_trainings=3)
    result = measure_study("digits", bench_config, told.append)

    grids = ["engine.grid=auto", "engine.grid=ray"]
    assert order == [*grids, "each", "one", *grids, "each"]
    assert told[0] == "repetition 1 of 2: fedscout, engine.grid=auto"
    assert [run.wall_seconds for run in result.peers["each"]] == [5.0, 6.0]  # type: ignore[union-attr]
    assert (result.searched, result.tuning, result.confirming) == (4, 4, 6)


ORPHAN = """
import os, pathlib, sys, time
note = pathlib.Path({note!r})
if os.fork() == 0:
    if os.fork() == 0:
        while time.process_time() < {seconds}:
            pass
        note.with_suffix(".new").write_text(str(os.getpid()))
        note.with_suffix(".new").rename(note)
        time.sleep(600)
    os._exit(0)
os.wait()
while not note.exists():
    time.sleep(0.01)
sys.exit(3)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere orphans are lost from sight")
def test_what_orphans_use_is_counted_and_they_are_ended(tmp_path: Path) -> None:
    note, usage, seconds = tmp_path / "note", tmp_path / "usage", 1.0
    program = ORPHAN.format(note=str(note), seconds=seconds)
    code = subprocess.run([sys.executable, MEASURED, str(usage), sys.executable, "-c", program], check=False).returncode
    used = Usage.model_validate_json(usage.read_text())
    assert code == 3
    assert seconds - 0.02 <= used.processor_seconds <= 2 * seconds, "the kernel counts in hundredths"
    assert used.wall_seconds >= seconds
    assert not psutil.pid_exists(int(note.read_text()))


MEASURES = """
from fedscout.experiments.timings.study import StudyBenchConfig, measure_study
settings = ["training.num_rounds=2", "search.budget=1", "search.tuned_baseline=false", "search.confirmation_seeds=2"]
print(measure_study("digits", StudyBenchConfig(settings, ways=("one",), peer_trainings=3)).model_dump_json())
"""


@pytest.mark.stress
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_a_study_of_ours_and_flowers_own_are_measured_and_end() -> None:
    with short_folder() as folder, MarkedProcesses() as processes:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "TMPDIR": str(folder)}
        process = processes.start([sys.executable, "-c", MEASURES], environment, folder / "log", cwd=folder)
        code = process.wait(500)
        text = (folder / "log").read_text(errors="replace")
        assert code == 0, text
        alive = [one.name() for one in processes.alive()]
        cache = f"torchinductor_{getpass.getuser()}"  # of torch
        left = {entry.name for entry in folder.iterdir()} - {"log", cache}

    assert (alive, left) == ([], set())
    found = StudyReport.model_validate(json.loads(text.splitlines()[-1]))
    (ours,), theirs = found.ours["auto"], found.peers["one"]
    assert not isinstance(theirs, MissingPeer), theirs
    assert (ours.trainings, ours.measured, ours.rounds) == (6, 6, 12)
    assert set(ours.confirmed) == {"winner", "fedavg"}
    assert (theirs[0].trainings, theirs[0].measured, theirs[0].rounds) == (6, 3, 6)
    assert theirs[0].processor_seconds > 0
