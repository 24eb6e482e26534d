"""The cost model finds a linear law from which the times were made, predicts by it, and says when it cannot."""

from __future__ import annotations

import json
import os
import re
import sys

import numpy as np
import pytest

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.cli.bench import scaling
from fedscout.experiments.timings.scaling import (
    NODE_BYTES,
    QUANTITIES,
    SPARE_BYTES,
    CostModel,
    Network,
    RoundSize,
    check,
    fit,
    measure_scaling,
    memory_fault,
    report_lines,
)
from tests.experiments.cli.processes import REPOSITORY
from tests.kits.refusals import refused
from tests.marked_processes import MarkedProcesses, short_folder

LAW = CostModel(constant=0.002, per_host=0.0005, per_client=0.00002, per_megabyte=0.001)


def grid(*hosts: int) -> list[RoundSize]:
    """Return the bench's three works on each number of hosts."""
    return [
        RoundSize(hosts=number, clients=clients, parameters=parameters)
        for number in hosts
        for clients, parameters in ((number, 46), (1000, 46), (number, 268_290))
    ]


def times(sizes: list[RoundSize], law: CostModel = LAW) -> list[float]:
    return [law.seconds(size) for size in sizes]


def test_the_terms_are_those_of_the_formula() -> None:
    """10 hosts, 100 clients, 50,000 parameters of 12 bytes a host: 6 MB."""
    size = RoundSize(hosts=10, clients=100, parameters=50_000)

    assert size.megabytes == pytest.approx(6.0)
    assert LAW.seconds(size) == pytest.approx(0.002 + 0.005 + 0.002 + 0.006)


def test_a_linear_law_is_found() -> None:
    sizes = grid(2, 4, 8)

    model = fit(sizes, times(sizes))

    for name, value in LAW.model_dump().items():
        assert getattr(model, name) == pytest.approx(value, rel=1e-9), name


def test_no_coefficient_is_negative() -> None:
    """Times that fall with the hosts would by a plain fit give a negative cost of a host."""
    sizes = grid(2, 4, 8)
    falling = [0.1 / size.hosts for size in sizes]

    assert min(fit(sizes, falling).model_dump().values()) >= 0


def test_errors_count_relative_to_the_time() -> None:
    """Short rounds weigh as much as long ones: scaling all times scales the model alone."""
    sizes = grid(2, 4, 8)
    noise = np.random.default_rng(0).uniform(0.8, 1.25, len(sizes))
    noisy = [float(time * factor) for time, factor in zip(times(sizes), noise, strict=True)]

    model, slower = fit(sizes, noisy), fit(sizes, [1000 * time for time in noisy])

    for size, time in zip(sizes, noisy, strict=True):
        assert slower.seconds(size) == pytest.approx(1000 * model.seconds(size), rel=1e-6)
        assert 0.6 < model.seconds(size) / time < 1.6


def test_a_held_out_size_is_predicted() -> None:
    sizes = grid(2, 4, 8, 16)

    predictions = check(sizes, times(sizes))

    assert [each.size for each in predictions] == grid(16)
    assert [each.error for each in predictions] == pytest.approx([0, 0, 0], abs=1e-9)


def test_a_law_that_is_not_linear_is_found_out() -> None:
    """Times with the square of the hosts: the largest size takes more than a linear model says."""
    sizes = grid(2, 4, 8, 16)
    quadratic = [LAW.seconds(size) + 0.001 * size.hosts**2 for size in sizes]

    predictions = check(sizes, quadratic)

    assert all(each.error < -0.2 for each in predictions if each.size.parameters == 46)


def test_two_sizes_can_t_be_checked_and_one_not_fitted() -> None:
    assert check(grid(2, 4), times(grid(2, 4))) == []
    with refused(ConfigurationError, key="the sizes", given="3 of rank 3"):
        fit(grid(2), times(grid(2)))


def test_the_network_is_bytes_over_bandwidth_and_a_round_trip() -> None:
    """100 hosts and 250,000 parameters of 12 bytes: 300 MB, or 2.4 Gbit."""
    size = RoundSize(hosts=100, clients=100, parameters=250_000)

    assert Network(gigabits_per_second=10, latency_seconds=0).seconds(size) == pytest.approx(0.24)
    assert Network(gigabits_per_second=1, latency_seconds=0.01).seconds(size) == pytest.approx(2.4 + 0.01)


# `fedscout bench scaling` measures what it says, on as many nodes as it says, and stops before memory runs out.


SMALL, LARGE = 46, 268_290
"""8·4 + 4 + 4·2 + 2, and 8·512 + 512 + 512·512 + 512 + 512·2 + 2."""


def test_without_memory_nothing_is_measured_and_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    started: list[int] = []
    monkeypatch.setattr("fedscout.experiments.timings.scaling.memory_in_use", lambda: (0, SPARE_BYTES))
    monkeypatch.setattr("fedscout.experiments.timings.scaling._growing_hosts", lambda: FakeHosts(started))

    assert memory_fault(4, 4 * NODE_BYTES + SPARE_BYTES) is None
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
