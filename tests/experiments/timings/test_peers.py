"""Peers do our work, report it, and leave nothing behind."""

from __future__ import annotations

import ast
import json
import os
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.grid.ray_grid import RayGrid, start_hosts
from fedscout.engine.messages.calls import Session
from fedscout.engine.trials.record import TrialSettings
from fedscout.engine.trials.trial import run_trial
from fedscout.experiments.timings import peer_runs
from fedscout.experiments.timings.engine import TRAINING, work_federation
from fedscout.experiments.timings.peer_runs import PEERS, PFL_PYTHON, PROGRAMS, MissingPeer, Peer, PeerTiming, run_peer
from fedscout.experiments.timings.peers import bare_loop
from fedscout.experiments.timings.peers.work import (
    BATCH_SIZE,
    FEATURE_SHAPES,
    Task,
    WorkName,
    client_tensors,
    initial_model,
    model,
)
from fedscout.strategies import FedAvgSpec, parse_strategy
from tests.engine.federations import QUERIES
from tests.engine.trials.test_resume import assert_same
from tests.experiments.cli.processes import REPOSITORY
from tests.marked_processes import MarkedProcesses, short_folder

BARE, _, PFL = PEERS
PEER_SECONDS = 200.0


@pytest.mark.parametrize("name", FEATURE_SHAPES)
def test_peers_have_the_bits_of_our_data_and_the_shapes_of_our_model(name: WorkName) -> None:
    federation = work_federation(name, num_clients=2, num_samples=5)
    for client, rows in enumerate(federation.partition.rows.reshape(2, 5)):
        features, labels = client_tensors(name, client, 5)
        assert np.array_equal(features.numpy(), federation.features[rows])
        assert np.array_equal(labels.numpy(), federation.labels[rows])
    ours, theirs = work_federation(name, 1, 1).model().state_dict(), model(name).state_dict()
    assert {key: value.shape for key, value in ours.items()} == {key: value.shape for key, value in theirs.items()}


@pytest.mark.parametrize(("name", "num_clients"), [("dense", 3), ("lenet", 2), ("textcnn", 2)])
def test_where_an_epoch_is_one_batch_the_bare_loop_gives_our_model(name: WorkName, num_clients: int) -> None:
    """A batch's mean gradient does not depend on the order of rows, so only the last bits may differ.

    Parameters are below 1, where float32 rounds to 6e-8, and each round adds up a few such errors.
    """
    num_samples, num_rounds = BATCH_SIZE // 2, 2
    spec = TrialSettings(
        strategy=parse_strategy("fedavg"),
        num_rounds=num_rounds,
        num_sampled=num_clients,
        keep_model=True,
        session=Session(training=TRAINING, evaluate_on="train", test_fraction=0.0),
    )
    grid = LocalGrid(work_federation(name, num_clients, num_samples), session=spec.session)
    result = run_trial(spec, grid)

    import torch

    net, clients = model(name), [client_tensors(name, client, num_samples) for client in range(num_clients)]
    initial = grid.facts.layout.split(grid.initial_vector(seed=0))
    net.load_state_dict({key: torch.from_numpy(value.copy()) for key, value in initial.items()})
    accuracies = [bare_loop.one_round(net, model(name), clients) for _ in range(num_rounds)]

    assert result.vector is not None
    theirs = grid.facts.layout.join({key: value.numpy() for key, value in net.state_dict().items()})
    assert not np.allclose(theirs, grid.initial_vector(seed=0), rtol=0, atol=1e-4), "nothing was trained"
    np.testing.assert_allclose(result.vector, theirs, rtol=0, atol=1e-6)
    assert list(result.round_accuracy) == pytest.approx(accuracies)


def test_the_bare_loop_learns() -> None:
    net, clients = initial_model("dense"), [client_tensors("dense", client, 64) for client in range(3)]
    accuracies = [bare_loop.one_round(net, model("dense"), clients) for _ in range(25)]
    assert accuracies[-1] > accuracies[0] + 0.05, "labels are linear in the features"


@pytest.mark.stress
def test_the_bare_loop_reports_every_round_and_begins_anew_after_its_warm_up() -> None:
    task = Task("dense", clients=2, samples=8, rounds=3, workers=1)
    result = run_peer(BARE, task, PEER_SECONDS)
    net, clients = initial_model("dense"), [client_tensors("dense", client, 8) for client in range(2)]
    accuracies = [bare_loop.one_round(net, model("dense"), clients) for _ in range(3)]

    assert isinstance(result, PeerTiming), result
    assert len(result.round_seconds) == 3
    assert min(result.round_seconds) > 0
    assert result.accuracy == pytest.approx(accuracies[-1])
    assert set(result.versions) == {"torch"}


def test_pfl_is_missing_until_its_interpreter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PFL_PYTHON, raising=False)
    result = run_peer(PFL, Task("dense", 1, 1, 1, 1), PEER_SECONDS)
    assert isinstance(result, MissingPeer)
    assert "pip install 'pfl[pytorch]'" in result.missing
    assert PFL_PYTHON in result.missing


def test_a_named_interpreter_must_be_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(PFL_PYTHON, "python")  # from the working directory
    result = run_peer(PFL, Task("dense", 1, 1, 1, 1), PEER_SECONDS)
    assert isinstance(result, MissingPeer)
    assert result.missing.startswith(PFL_PYTHON)
    assert f"got '{tmp_path / 'python'}'" in result.missing


STARTS_A_DAEMON = """
import os, subprocess, sys, time
daemon = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
with open({note!r}, "w") as note:
    note.write(f"{{os.getpid()}} {{daemon.pid}} {{os.getcwd()}}")
"""


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of peers that a test writes."""
    folder = tmp_path / "peers"
    folder.mkdir()
    monkeypatch.setattr(peer_runs, "PROGRAMS", folder)
    return folder


@pytest.mark.stress
@pytest.mark.parametrize(
    ("ending", "seconds", "missing"),
    [
        pytest.param("time.sleep(600)", 10.0, "no result within 10 s", marks=pytest.mark.slow),
        ("raise ValueError('no')", PEER_SECONDS, "it exited with code 1: ValueError: no"),
    ],
    ids=["too-long", "raises"],
)
def test_a_failed_peer_ends(programs: Path, tmp_path: Path, ending: str, seconds: float, missing: str) -> None:
    note = tmp_path / "note"
    (programs / "odd.py").write_text(STARTS_A_DAEMON.format(note=str(note)) + ending)

    result = run_peer(Peer("odd", "odd", "pip install it"), Task("dense", 1, 1, 1, 1), seconds)

    assert result == MissingPeer(missing=missing)
    peer, daemon, folder = note.read_text().split(maxsplit=2)
    assert not any(_runs(int(pid)) for pid in (peer, daemon))
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("program", "names"),
    [
        ("import a_library_of_nobody", ("'a_library_of_nobody'", ": pip install it")),
        ("print('hello')", (": {}",)),
        ("print('{\"round_seconds\": []}')", (': {"round_seconds": []}',)),
    ],
    ids=["not-installed", "no-answer", "no-rounds"],
)
def test_a_peer_without_a_result_says_why(programs: Path, program: str, names: tuple[str, ...]) -> None:
    (programs / "odd.py").write_text(program)
    result = run_peer(Peer("odd", "odd", "pip install it"), Task("dense", 1, 1, 1, 1), PEER_SECONDS)
    assert isinstance(result, MissingPeer)
    assert all(name in result.missing for name in names)


def _runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_peer_is_set_up_by_nobody_but_itself(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("RAY_max_direct_call_object_size", "1")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    seen = tmp_path / "seen"
    (programs / "odd.py").write_text(f"import json, os\njson.dump(dict(os.environ), open({str(seen)!r}, 'w'))")

    run_peer(Peer("odd", "odd", ""), Task("dense", 1, 1, 1, 1), PEER_SECONDS)

    environment = json.loads(seen.read_text())
    assert not {"RAY_ADDRESS", "RAY_max_direct_call_object_size"} & set(environment)
    assert environment["OMP_NUM_THREADS"] == "1"
    assert str(REPOSITORY) not in environment["PYTHONPATH"].split(os.pathsep)


def test_peers_import_nothing_of_ours() -> None:
    """They may run where nothing of it is installed; what they import of each other is relative."""
    ours = {"engine", "detectors", "strategies", "search", "experiments"}
    files = sorted(PROGRAMS.glob("*.py"))
    assert {file.stem for file in files} >= {peer.module for peer in PEERS}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level <= 1, file
                names = [] if node.level else [str(node.module)]
            assert not {name.split(".")[0] for name in names} & ours, file


@pytest.mark.stress
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_all_simulators_that_are_installed_train_the_same_model_and_end() -> None:
    """Where an epoch is one batch, their accuracies are equal: same data, same initial model, same mean."""
    size = ["--clients", "3", "--samples", str(BATCH_SIZE), "--rounds", "3"]
    arguments = ["bench", "engine", "--local", *size, "--peers", "--peer-seconds", "250", "--json"]
    with short_folder() as folder, MarkedProcesses() as processes:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "TMPDIR": str(folder)}
        command = [sys.executable, "-m", "fedscout.experiments.cli.main", *arguments]
        process = processes.start(command, environment, folder / "log", cwd=folder)
        code = process.wait(500)
        text = (folder / "log").read_text(errors="replace")
        assert code == 0, text
        alive = [one.name() for one in processes.alive()]
        left = [entry.name for entry in folder.iterdir() if entry.name != "log"]

    document = json.loads(text[text.index("\n{") :])
    peers = document["peers"]
    assert (alive, left) == ([], [])
    assert set(peers) == {"bare-loop", "flower", "pfl"}
    assert ("missing" in peers["pfl"]) == (PFL_PYTHON not in os.environ)
    results = [result for result in peers.values() if "missing" not in result]
    assert "missing" not in peers["flower"], peers["flower"]
    for result in results:
        assert len(result["round_seconds"]) == 3
        assert result["accuracy"] == pytest.approx(peers["bare-loop"]["accuracy"], abs=1e-9)
        for figure, ratio in result["times_ours"].items():
            assert ratio == pytest.approx(result[figure] / document[figure])
    assert text.startswith("fedscout: repetition 1 of 1: fedscout\nfedscout: repetition 1 of 1: bare-loop\n")


# The larger models have the same bits on any number of hosts, as small dense nets do.


CLIENTS = 3
LONGER_TRAINING = LocalTraining(batch_size=32, learning_rate=0.05, momentum=0.9)


@pytest.mark.stress
@pytest.mark.ray
@pytest.mark.parametrize(("name", "samples"), [("lenet", 75), ("textcnn", 75), ("resnet18", 8)])
def test_two_hosts_give_the_bits_of_one_process(ray_session: None, name: WorkName, samples: int) -> None:
    federation = work_federation(name, CLIENTS, samples)
    settings = TrialSettings(
        strategy=FedAvgSpec(),
        num_rounds=2,
        num_sampled=CLIENTS,
        session=Session(training=LONGER_TRAINING, seed=1),
    )
    hosts = start_hosts(federation, QUERIES, 2)
    try:
        by_ray = run_trial(settings, RayGrid(hosts, settings.session))
    finally:
        hosts.stop()

    assert by_ray.error is None
    assert len({*by_ray.round_loss}) == 2
    assert_same(by_ray, run_trial(settings, LocalGrid(federation, QUERIES, session=settings.session)))
