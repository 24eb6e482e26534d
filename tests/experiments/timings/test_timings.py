"""The benchmarks of the engine: what is timed and told, what peers do and leave, and the cost model of a cluster."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import nullcontext
from importlib.metadata import requires
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from packaging.requirements import Requirement

from fedscout.engine.config import EngineConfig
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import Session
from fedscout.engine.trials.record import TrialSettings
from fedscout.engine.trials.trial import run_trial
from fedscout.experiments.cli.bench import scaling
from fedscout.experiments.timings import engine
from fedscout.experiments.timings.peers import bare_loop, work
from fedscout.strategies import FedAvgSpec, parse_strategy
from tests.code_size import PACKAGES, REPOSITORY
from tests.engine.results import local_result, ray_result, started_hosts
from tests.engine.trials.test_resume import assert_same
from tests.kits.refusals import refused
from tests.marked_processes import MarkedProcesses, short_folder
from tests.test_layers import imported


def finished_bench(*arguments: str, seconds: float) -> Any:
    """Run `fedscout bench` as a process to its end, and end what it has left.

    Returns:
        What it wrote, and the JSON at its end; the names of processes that outlived it, of those of them that had to be
        killed, and of what is in its folder for temporary files.
    """
    with short_folder() as folder, MarkedProcesses() as processes:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "TMPDIR": str(folder)}
        command = [sys.executable, "-m", "fedscout.experiments.cli.main", "bench", *arguments, "--json"]
        process = processes.start(command, environment, folder / "log", cwd=folder)
        code = process.wait(seconds)
        text = (folder / "log").read_text(errors="replace")
        assert code == 0, text
        alive = [one.name() for one in processes.alive()]
        processes.end()
        files = [entry.name for entry in folder.iterdir() if entry.name != "log"]
    document = json.loads(text[text.index("\n{") :])
    return SimpleNamespace(text=text, document=document, alive=alive, stubborn=processes.stubborn, files=files)


# The benchmark does the work that it claims to time.


@pytest.mark.slow
def test_rounds_are_trained_and_timed() -> None:
    specs = [parse_strategy("fedavg"), parse_strategy("fedmedian")]
    few, many = (
        engine.time_engine(work.Task("dense", 3, 64, rounds, workers=1), specs, EngineConfig(grid="local"))[1]
        for rounds in (1, 25)
    )
    improved = many["fedscout, fedavg"].accuracy - few["fedscout, fedavg"].accuracy
    assert improved > 0.05, "labels are linear in the features: more rounds must fit them better"
    hosts, timings = engine.time_engine(work.Task("dense", 3, 64, 2, workers=1), specs, EngineConfig(grid="local"))
    assert (hosts, [*timings]) == (1, ["fedscout, fedavg", "fedscout, fedmedian"])
    for timing in timings.values():
        assert len(timing.round_seconds) == 2
        seconds = fmean(timing.round_seconds)
        parts = sum(spent for phase, spent in timing.phases.items() if phase != "hosts")
        assert 0 < parts <= seconds


def test_the_last_scoring_belongs_to_the_first_round_and_rounds_that_are_not_told_of_count_the_same() -> None:
    assert engine.whole_rounds([10.0, 11.0, 13.0, 16.0, 16.5], rounds=3) == (1.5, 2.0, 3.0)
    assert engine.whole_rounds([10.0, 15.0, 16.0], rounds=3) == (2.0, 2.0, 2.0)


# A benchmark's report: what is joined, and what is compared with what.


def times(*round_seconds: float) -> engine.RoundTimes:
    return engine.RoundTimes(round_seconds=round_seconds, accuracy=0.75)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stand in for what takes time, and note its order and the peers' tasks."""
    noted = SimpleNamespace(order=[], tasks=[])
    results = {"bare-loop": [times(3.0, 4.0), times(5.0), "no result"], "flower": ["no result"]}

    def ours(*arguments: Any) -> tuple[int, dict[str, engine.RoundTimes]]:
        noted.order.append("ours")
        seconds = {"fedavg": (1.0, 2.0, 6.0), "fedmedian": (2.0, 5.0, 11.0)}
        return 2, {f"fedscout, {spec.kind}": times(*seconds[spec.kind]) for spec in arguments[1]}

    def peer(name: str, task: work.Task) -> engine.RoundTimes | str:
        noted.order.append(name)
        noted.tasks.append(task)
        return results[name].pop(0)

    monkeypatch.setattr(engine, "time_engine", ours)
    monkeypatch.setattr(engine, "run_peer", peer)
    return noted


def measured(*kinds: str, repeats: int, peers: tuple[str, ...] = engine.PEERS) -> engine.EngineReport:
    task = work.Task("dense", 4, 8, 1, workers=1)
    return engine.measure_engine(
        task, [parse_strategy(kind) for kind in kinds], EngineConfig(), repeats=repeats, peers=peers
    )


def test_ours_and_peers_take_turns_and_one_without_a_result_has_no_other(turns: SimpleNamespace) -> None:
    report = measured("fedavg", repeats=3)
    assert turns.order == ["ours", "bare-loop", "flower", "ours", "bare-loop", "ours", "bare-loop"]
    assert set(turns.tasks) == {work.Task("dense", 4, 8, 1, workers=2)}
    assert report.programs["fedscout, fedavg"].round_seconds == (1.0, 2.0, 6.0) * 3
    assert {*report.programs} == {"fedscout, fedavg"}
    assert report.missing == {"bare-loop": "no result", "flower": "no result"}
    assert report.processor.endswith(f", {torch.backends.cpu.get_cpu_capability()}")


def test_all_are_compared_by_medians_with_our_fedavg_or_else_the_first(turns: SimpleNamespace) -> None:
    report = measured("fedmedian", "fedavg", repeats=2)
    assert report.programs["bare-loop"].round_seconds == (3.0, 4.0, 5.0)
    assert report.reference == "fedscout, fedavg"
    assert report.ratios == {"fedscout, fedmedian": 2.5, "fedscout, fedavg": 1.0, "bare-loop": 2.0}
    assert (report.programs["bare-loop"].median_seconds, report.programs["bare-loop"].min_seconds) == (4.0, 3.0)
    assert all(name in "\n".join(engine.report_lines(report)) for name in (*report.ratios, "no result"))
    assert measured("fedmedian", repeats=1, peers=()).reference == "fedscout, fedmedian"


# What is counted of a model's step.


def test_operations_of_lenet_are_those_counted_by_hand() -> None:
    """Backward takes each layer's product twice, by the weights and by what comes in, the first layer's once."""
    timing = next(engine.kernel_timings(turns=1))
    first_layer = 2 * 28 * 28 * 6 * 75
    forward = first_layer + 2 * (10 * 10 * 16 * 150 + 400 * 120 + 120 * 84 + 84 * 10)
    assert timing["GFLOP"] == 32 * (3 * forward - first_layer) / 1e9
    assert timing["GFLOP/s"] == pytest.approx(1e3 * timing["GFLOP"] / timing["step of 32 rows, ms"])  # type: ignore[operator]


def test_operations_of_a_block_are_those_counted_by_hand() -> None:
    """For each row every weight once forward, once by the weights, and once by the rows but for the first layer."""
    training, scoring = engine.block_timings(turns=1)
    weights = (254 * 64, 64 * 32, 32 * 2)
    assert scoring["GFLOP"] == 20 * 256 * 2 * sum(weights) / 1e9
    assert training["GFLOP"] == 20 * 256 * 2 * (3 * sum(weights) - weights[0]) / 1e9


# The larger models have the same bits on any number of hosts, as small dense nets do.


@pytest.mark.stress
@pytest.mark.ray
@pytest.mark.parametrize(("name", "samples"), [("lenet", 75), ("textcnn", 75), ("resnet18", 8)])
def test_two_hosts_give_the_bits_of_one_process(ray_session: None, name: work.WorkName, samples: int) -> None:
    federation = engine.work_federation(name, 3, samples)
    training = LocalTraining(batch_size=32, learning_rate=0.05, momentum=0.9)
    settings = TrialSettings(FedAvgSpec(), 2, num_sampled=3, session=Session(training=training, seed=1))
    with started_hosts(federation, 2) as hosts:
        by_ray = ray_result(settings, hosts)
    assert by_ray.error is None
    assert len({*by_ray.rounds["loss"]}) == 2
    assert_same(by_ray, local_result(settings, federation))


PEER_SECONDS = 200.0


@pytest.mark.parametrize("name", work.FEATURE_SHAPES)
def test_peers_have_the_bits_of_our_data_and_the_shapes_of_our_model(name: work.WorkName) -> None:
    federation = engine.work_federation(name, num_clients=2, num_samples=60)
    assert np.array_equal(federation.partition.rows, np.arange(120))
    assert len(np.unique(federation.labels)) == work.NUM_CLASSES[name]
    for client, rows in enumerate(federation.partition.rows.reshape(2, 60)):
        features, labels = work.client_tensors(name, client, 60)
        assert np.array_equal(features.numpy(), federation.features[rows])
        assert np.array_equal(labels.numpy(), federation.labels[rows])
    ours, theirs = engine.work_federation(name, 1, 1).model().state_dict(), work.model(name).state_dict()
    assert {key: value.shape for key, value in ours.items()} == {key: value.shape for key, value in theirs.items()}


@pytest.mark.parametrize(("name", "num_clients"), [("dense", 3), ("lenet", 2), ("textcnn", 2)])
def test_where_an_epoch_is_one_batch_the_bare_loop_gives_our_model(name: work.WorkName, num_clients: int) -> None:
    """A batch's mean gradient does not depend on the order of rows, so only the last bits may differ.

    Parameters are below 1, where float32 rounds to 6e-8, and each round adds up a few such errors.
    """
    num_samples, num_rounds = work.BATCH_SIZE // 2, 2
    spec = TrialSettings(
        strategy=parse_strategy("fedavg"),
        num_rounds=num_rounds,
        num_sampled=num_clients,
        keep_model=True,
        session=Session(training=engine.TRAINING, evaluate_on="train", test_fraction=0.0),
    )
    grid = LocalGrid(engine.work_federation(name, num_clients, num_samples), session=spec.session)
    result = run_trial(spec, grid)

    net, clients = work.model(name), [work.client_tensors(name, client, num_samples) for client in range(num_clients)]
    initial = grid.facts.layout.split(grid.initial_vector(seed=0))
    net.load_state_dict({key: torch.from_numpy(value.copy()) for key, value in initial.items()})
    accuracies = [bare_loop.one_round(net, work.model(name), clients) for _ in range(num_rounds)]

    theirs = grid.facts.layout.join({key: value.numpy() for key, value in net.state_dict().items()})
    assert not np.allclose(theirs, grid.initial_vector(seed=0), rtol=0, atol=1e-4), "nothing was trained"
    np.testing.assert_allclose(result.vector, theirs, rtol=0, atol=1e-6)
    assert list(result.rounds["accuracy"]) == pytest.approx(accuracies)


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

    assert engine.run_peer("odd", work.Task("dense", 1, 1, 1, 1), seconds) == missing
    peer, daemon, folder = note.read_text().split(maxsplit=2)
    alive = [psutil.Process(int(pid)) for pid in (peer, daemon) if psutil.pid_exists(int(pid))]
    assert {process.status() for process in alive} <= {psutil.STATUS_ZOMBIE}
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
    result = engine.run_peer("odd", work.Task("dense", 1, 1, 1, 1), PEER_SECONDS)
    assert all(name in result for name in names)


def test_a_peer_is_set_up_by_nobody_but_itself(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("RAY_max_direct_call_object_size", "1")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    seen = tmp_path / "seen"
    (programs / "odd.py").write_text(f"import json, os\njson.dump(dict(os.environ), open({str(seen)!r}, 'w'))")

    engine.run_peer("odd", work.Task("dense", 1, 1, 1, 1), PEER_SECONDS)

    environment = json.loads(seen.read_text())
    assert not {"RAY_ADDRESS", "RAY_max_direct_call_object_size"} & set(environment)
    assert environment["OMP_NUM_THREADS"] == "1"
    assert str(REPOSITORY) not in environment["PYTHONPATH"].split(os.pathsep)


def test_peers_import_nothing_of_ours() -> None:
    """They may run where nothing of it is installed; what they import of each other is relative."""
    files = sorted(engine.PROGRAMS.glob("*.py"))
    assert {file.stem for file in files} >= {peer.replace("-", "_") for peer in engine.PEERS}
    for file in files:  # relative imports of what lies above them can't be resolved
        modules = {module.split(".")[0] for _, module, _ in imported(file.read_text(), "peers")}
        assert modules.isdisjoint({"fedscout", *PACKAGES})


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
    size = ["--clients", "3", "--samples", str(work.BATCH_SIZE), "--rounds", "3"]
    done = finished_bench("engine", "--local", *size, "--peers", seconds=500)
    programs = done.document["programs"]
    assert (done.alive, done.files, done.document["missing"]) == ([], [], {})
    assert {*programs} == {"fedscout, fedavg", "bare-loop", "flower"}
    for name in ("bare-loop", "flower"):
        assert len(programs[name]["round_seconds"]) == 3
        assert programs[name]["accuracy"] == pytest.approx(programs["bare-loop"]["accuracy"], abs=1e-9)


LAW = (0.002, 0.0005, 0.00002, 0.001)
SIZES = [
    engine.RoundSize(hosts, clients, parameters)
    for hosts in (2, 4, 8)
    for clients, parameters in ((hosts, 46), (1000, 46), (hosts, 268_290))
]
LAWFUL = [float(np.dot(LAW, size.terms)) for size in SIZES]


def test_the_terms_are_those_of_the_formula() -> None:
    """10 hosts, 100 clients, 50,000 parameters of 12 bytes a host: 6 MB."""
    assert engine.RoundSize(10, 100, 50_000).terms == pytest.approx([1, 10, 100, 6])


def test_a_linear_law_is_found_and_no_coefficient_is_negative() -> None:
    """Times that fall with the hosts would by a plain fit give a negative cost of a host."""
    assert engine.fit(SIZES, LAWFUL) == pytest.approx(LAW, rel=1e-9)
    assert min(engine.fit(SIZES, [0.1 / size.hosts for size in SIZES])) >= 0


def test_errors_count_relative_to_the_time() -> None:
    """Short rounds weigh as much as long ones: scaling all times scales the model alone."""
    noisy = np.array(LAWFUL) * np.random.default_rng(0).uniform(0.8, 1.25, len(SIZES))
    model = engine.fit(SIZES, noisy)
    assert engine.fit(SIZES, 1000 * noisy) == pytest.approx(1000 * model, rel=1e-6)
    assert all(0.6 < model @ size.terms / time < 1.6 for size, time in zip(SIZES, noisy, strict=True))


# `fedscout bench scaling` measures what it says, on as many nodes as it says, and stops before memory runs out.


SMALL, LARGE = 46, 268_290
"""8·4 + 4 + 4·2 + 2, and 8·512 + 512 + 512·512 + 512 + 512·2 + 2."""


def test_without_memory_nothing_is_measured_and_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    started: list[int] = []
    monkeypatch.setattr("fedscout.experiments.timings.engine.memory_in_use", lambda: (0, engine.SPARE_BYTES))
    monkeypatch.setattr("fedscout.experiments.timings.engine._growing_hosts", lambda: nullcontext(started.append))
    found = engine.measure_scaling([2, 4], 1000, 4, told.append)
    assert len(told) == 1
    assert (found, started) == ({"rounds": [], "costs": []}, [])


@pytest.mark.parametrize("nodes", ["4,2", "2,2", "0,1", "two", "", "1,,2"])
def test_numbers_of_nodes_must_ascend(nodes: str) -> None:
    with refused(ConfigurationError, key="--nodes"):
        scaling(nodes=nodes)


@pytest.mark.stress
@pytest.mark.ray
@pytest.mark.timeout(300)
def test_clusters_of_one_and_two_nodes_are_measured_and_ended() -> None:
    done = finished_bench("scaling", "--nodes", "1,2", "--clients", "20", "--rounds", "4", seconds=270)
    document = done.document
    rows = document["rounds"]
    assert [(row["nodes"], row["clients"], row["parameters"]) for row in rows] == [
        (hosts, clients, parameters)
        for hosts in (1, 2)
        for clients, parameters in ((hosts, SMALL), (20, SMALL), (hosts, LARGE))
    ]
    assert all(row[quantity] > 0 for row in rows for quantity in engine.QUANTITIES)
    assert [row["cost"] for row in document["costs"]] == [*engine.QUANTITIES]
    assert all(row[term] >= 0 for row in document["costs"] for term in engine.TERMS)
    assert (done.files, done.stubborn) == ([], [])
