"""`fedscout bench scaling` measures what it says, on as many nodes as it says, and stops before memory runs out."""

from __future__ import annotations

import json
import os
import re
import sys

import pytest

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.cli.bench import scaling
from fedscout.experiments.timings.scaling import (
    NODE_BYTES,
    QUANTITIES,
    SPARE_BYTES,
    CostModel,
    Forecast,
    MeasuredRounds,
    Network,
    Prediction,
    RoundSize,
    ScalingReport,
    measure_scaling,
    memory_fault,
    report_lines,
)
from tests.experiments.cli.processes import REPOSITORY
from tests.kits.refusals import refused
from tests.marked_processes import MarkedProcesses, short_folder

SMALL, LARGE = 46, 268_290
"""8·4 + 4 + 4·2 + 2, and 8·512 + 512 + 512·512 + 512 + 512·2 + 2."""

MODEL = CostModel(constant=0.001, per_host=0.002, per_client=0.0, per_megabyte=0.0)


def size(hosts: int) -> RoundSize:
    return RoundSize(hosts=hosts, clients=hosts, parameters=SMALL)


def test_nodes_are_started_while_memory_lasts() -> None:
    assert memory_fault(4, 4 * NODE_BYTES + SPARE_BYTES) is None
    fault = memory_fault(4, 4 * NODE_BYTES + SPARE_BYTES - 1)
    assert re.findall(r"[\d.]+", fault or "") == ["4", "3.0", "3.0"]


def test_without_memory_nothing_is_measured_and_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    started: list[int] = []
    monkeypatch.setattr("fedscout.experiments.timings.scaling.memory_in_use", lambda: (0, SPARE_BYTES))
    monkeypatch.setattr("fedscout.experiments.timings.scaling._growing_hosts", lambda: FakeHosts(started))

    report = measure_scaling([2, 4], 1000, 4, 100, Network(), told.append)

    assert re.findall(r"[\d.]+", report.stopped or "") == ["2", "2", "2.0", "1.0"]
    assert told == [report.stopped]
    assert (report.measurements, report.models, report.forecasts, started) == ((), {}, (), [])
    assert report.stopped in report_lines(report)


class FakeHosts:
    """In place of a cluster that must not grow."""

    def __init__(self, started: list[int]) -> None:
        self.started = started

    def __enter__(self) -> object:
        return self.started.append

    def __exit__(self, *_: object) -> None:
        pass


def test_the_report_states_models_checks_and_forecasts() -> None:
    models = dict.fromkeys(QUANTITIES, MODEL)
    measured = [MeasuredRounds(size=size(n), seconds=dict.fromkeys(QUANTITIES, 0.001 + 0.002 * n)) for n in (2, 4, 8)]
    report = ScalingReport(
        measurements=tuple(measured),
        stopped=None,
        cores=2,
        models=models,
        checked={"driver": (Prediction(size=size(8), predicted=0.0187, measured=0.017),)},
        network=Network(),
        forecasts=(Forecast(size=size(100), shared_cores=0.201, driver=0.1, host=0.03, network=0.004),),
    )

    lines = report_lines(report)

    assert "  8        8          46    17.0     (17.0)    17.0     (17.0)    17.0     (17.0)" in "\n".join(lines)
    assert "wall   = 1 + 2 per host + 0 per client + 0 per MB" in lines
    assert [line for line in lines if all(name in line for name in ("driver", "8 nodes", "+10 %"))]
    (forecast,) = [line.split() for line in lines if line.startswith("  100")]
    assert forecast == ["100", "100", "46", "134.0", "100.0", "30.0", "4.0", "201.0"]
    assert "2 cores" in lines[-1]


@pytest.mark.parametrize("nodes", ["4,2", "2,2", "0,1", "two", "", "1,,2"])
def test_numbers_of_nodes_must_ascend(nodes: str) -> None:
    with refused(ConfigurationError, key="--nodes"):
        scaling(nodes=nodes)


@pytest.mark.stress
@pytest.mark.ray
@pytest.mark.timeout(300)
def test_clusters_of_one_and_two_nodes_are_measured_and_ended() -> None:
    arguments = ["bench", "scaling", "--nodes", "1,2", "--clients", "20", "--rounds", "4", "--target", "50", "--json"]
    with short_folder() as folder, MarkedProcesses() as processes:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "TMPDIR": str(folder)}
        command = [sys.executable, "-m", "fedscout.experiments.cli.main", *arguments]
        process = processes.start(command, environment, folder / "log", cwd=folder)
        code = process.wait(270)
        text = (folder / "log").read_text(errors="replace")
        assert code == 0, text
        processes.end()
        left = [entry.name for entry in folder.iterdir() if entry.name != "log"]

    document = json.loads(text[text.index("\n{") :])
    sizes = [each["size"] for each in document["measurements"]]
    assert sizes == [
        {"hosts": hosts, "clients": clients, "parameters": parameters}
        for hosts in (1, 2)
        for clients, parameters in ((hosts, SMALL), (20, SMALL), (hosts, LARGE))
    ]
    assert all(each["seconds"][quantity] > 0 for each in document["measurements"] for quantity in QUANTITIES)
    assert document["stopped"] is None
    assert [each["size"]["hosts"] for each in document["forecasts"]] == [50, 50, 50]
    large = RoundSize(hosts=50, clients=50, parameters=LARGE)
    forecast, hosts_model = document["forecasts"][2], CostModel(**document["models"]["hosts"])
    assert RoundSize(**forecast["size"]) == large
    assert forecast["host"] == pytest.approx(hosts_model.seconds(large) / 50)
    assert text.startswith("fedscout: starting 1 nodes\nfedscout: 1 nodes: ")
    assert (left, processes.stubborn) == ([], [])
