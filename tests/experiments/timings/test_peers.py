"""Peers do our work, report it, and leave nothing behind."""

from __future__ import annotations

import ast
import json
import os
import re
from importlib.metadata import requires
from pathlib import Path

import numpy as np
import psutil
import pytest
from packaging.requirements import Requirement

from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import Session
from fedscout.engine.trials.record import TrialSettings
from fedscout.engine.trials.trial import run_trial
from fedscout.experiments.timings import engine
from fedscout.experiments.timings.engine import PEERS, PROGRAMS, TRAINING, RoundTimes, run_peer, work_federation
from fedscout.experiments.timings.peers import bare_loop
from fedscout.experiments.timings.peers.work import (
    BATCH_SIZE,
    FEATURE_SHAPES,
    NUM_CLASSES,
    Task,
    WorkName,
    client_tensors,
    initial_model,
    model,
)
from fedscout.strategies import parse_strategy
from tests.commands import REPOSITORY
from tests.experiments.timings.benches import finished_bench

PEER_SECONDS = 200.0


@pytest.mark.parametrize("name", FEATURE_SHAPES)
def test_peers_have_the_bits_of_our_data_and_the_shapes_of_our_model(name: WorkName) -> None:
    federation = work_federation(name, num_clients=2, num_samples=60)
    assert np.array_equal(federation.partition.rows, np.arange(120))
    assert len(np.unique(federation.labels)) == NUM_CLASSES[name]
    for client, rows in enumerate(federation.partition.rows.reshape(2, 60)):
        features, labels = client_tensors(name, client, 60)
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
    assert list(result.rounds["accuracy"]) == pytest.approx(accuracies)


@pytest.mark.stress
def test_the_bare_loop_reports_every_round_and_begins_anew_after_its_warm_up() -> None:
    task = Task("dense", clients=2, samples=8, rounds=3, workers=1)
    result = run_peer("bare-loop", task, PEER_SECONDS)
    net, clients = initial_model("dense"), [client_tensors("dense", client, 8) for client in range(2)]
    accuracies = [bare_loop.one_round(net, model("dense"), clients) for _ in range(3)]

    assert isinstance(result, RoundTimes), result
    assert len(result.round_seconds) == 3
    assert min(result.round_seconds) > 0
    assert result.accuracy == pytest.approx(accuracies[-1])
    assert set(result.versions) == {"torch"}


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
    monkeypatch.setattr(engine, "PROGRAMS", folder)
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
def test_all_processes_of_a_peer_end_when_it_fails(
    programs: Path, tmp_path: Path, ending: str, seconds: float, missing: str
) -> None:
    note = tmp_path / "note"
    (programs / "odd.py").write_text(STARTS_A_DAEMON.format(note=str(note)) + ending)

    result = run_peer("odd", Task("dense", 1, 1, 1, 1), seconds)

    assert result == missing
    peer, daemon, folder = note.read_text().split(maxsplit=2)
    assert not any(_runs(int(pid)) for pid in (peer, daemon))
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("program", "names"),
    [
        ("import a_library_of_nobody", ("'a_library_of_nobody'", ": pip install 'fedscout[peers]'")),
        ("print('hello')", (": {}",)),
        ("print('{\"round_seconds\": []}')", (': {"round_seconds": []}',)),
    ],
    ids=["not-installed", "no-answer", "no-rounds"],
)
def test_a_peer_without_a_result_says_why(programs: Path, program: str, names: tuple[str, ...]) -> None:
    (programs / "odd.py").write_text(program)
    result = run_peer("odd", Task("dense", 1, 1, 1, 1), PEER_SECONDS)
    assert isinstance(result, str)
    assert all(name in result for name in names)


def _runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_peer_is_set_up_by_nobody_but_itself(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("RAY_max_direct_call_object_size", "1")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    seen = tmp_path / "seen"
    (programs / "odd.py").write_text(f"import json, os\njson.dump(dict(os.environ), open({str(seen)!r}, 'w'))")

    run_peer("odd", Task("dense", 1, 1, 1, 1), PEER_SECONDS)

    environment = json.loads(seen.read_text())
    assert not {"RAY_ADDRESS", "RAY_max_direct_call_object_size"} & set(environment)
    assert environment["OMP_NUM_THREADS"] == "1"
    assert str(REPOSITORY) not in environment["PYTHONPATH"].split(os.pathsep)


def test_peers_import_nothing_of_ours() -> None:
    """They may run where nothing of it is installed; what they import of each other is relative."""
    ours = {"engine", "detectors", "strategies", "search", "experiments"}
    files = sorted(PROGRAMS.glob("*.py"))
    assert {file.stem for file in files} >= {peer.replace("-", "_") for peer in PEERS}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level <= 1, file
                names = [] if node.level else [str(node.module)]
            assert not {name.split(".")[0] for name in names} & ours, file


def test_the_simulation_that_flower_asks_for_runs_on_the_ray_of_the_lock() -> None:
    lock = dict(
        match.groups() for match in re.finditer(r"(?m)^(\S+)==(\S+)$", (REPOSITORY / "constraints.txt").read_text())
    )
    asked = [Requirement(text) for text in requires("flwr") or []]
    rays = [one for one in asked if one.name == "ray" and one.marker and one.marker.evaluate({"extra": "simulation"})]
    assert rays
    assert all(one.specifier.contains(lock["ray"]) for one in rays)


@pytest.mark.stress
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_all_simulators_that_are_installed_train_the_same_model_and_end() -> None:
    """Where an epoch is one batch, their accuracies are equal: same data, same initial model, same mean."""
    size = ["--clients", "3", "--samples", str(BATCH_SIZE), "--rounds", "3"]
    done = finished_bench("engine", "--local", *size, "--peers", seconds=500)
    programs = done.document["programs"]
    assert (done.alive, done.files, done.document["missing"]) == ([], [], {})
    assert {*programs} == {"fedscout, fedavg", "bare-loop", "flower"}
    for name in ("bare-loop", "flower"):
        assert len(programs[name]["round_seconds"]) == 3
        assert programs[name]["accuracy"] == pytest.approx(programs["bare-loop"]["accuracy"], abs=1e-9)
    assert done.text.startswith("fedscout: repetition 1 of 1: fedscout\nfedscout: repetition 1 of 1: bare-loop\n")
