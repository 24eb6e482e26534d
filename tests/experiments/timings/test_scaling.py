"""The cost model finds a linear law from which the times were made, predicts by it, and says when it cannot."""

from __future__ import annotations

import re
from contextlib import nullcontext

import numpy as np
import pytest

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.cli.bench import scaling
from fedscout.experiments.timings.engine import QUANTITIES, SPARE_BYTES, TERMS, RoundSize, fit, measure_scaling
from tests.experiments.timings.benches import finished_bench
from tests.kits.refusals import refused

LAW = (0.002, 0.0005, 0.00002, 0.001)


def grid(*hosts: int) -> list[RoundSize]:
    """Return the bench's three works on each number of hosts."""
    return [
        RoundSize(number, clients, parameters)
        for number in hosts
        for clients, parameters in ((number, 46), (1000, 46), (number, 268_290))
    ]


def times(sizes: list[RoundSize]) -> list[float]:
    return [float(np.dot(LAW, size.terms)) for size in sizes]


def test_the_terms_are_those_of_the_formula() -> None:
    """10 hosts, 100 clients, 50,000 parameters of 12 bytes a host: 6 MB."""
    assert RoundSize(10, 100, 50_000).terms == pytest.approx([1, 10, 100, 6])


def test_a_linear_law_is_found_and_no_coefficient_is_negative() -> None:
    """Times that fall with the hosts would by a plain fit give a negative cost of a host."""
    sizes = grid(2, 4, 8)
    assert fit(sizes, times(sizes)) == pytest.approx(LAW, rel=1e-9)
    assert min(fit(sizes, [0.1 / size.hosts for size in sizes])) >= 0


def test_errors_count_relative_to_the_time() -> None:
    """Short rounds weigh as much as long ones: scaling all times scales the model alone."""
    sizes = grid(2, 4, 8)
    noisy = np.array(times(sizes)) * np.random.default_rng(0).uniform(0.8, 1.25, len(sizes))
    model = fit(sizes, noisy)
    assert fit(sizes, 1000 * noisy) == pytest.approx(1000 * model, rel=1e-6)
    assert all(0.6 < model @ size.terms / time < 1.6 for size, time in zip(sizes, noisy, strict=True))


# `fedscout bench scaling` measures what it says, on as many nodes as it says, and stops before memory runs out.


SMALL, LARGE = 46, 268_290
"""8·4 + 4 + 4·2 + 2, and 8·512 + 512 + 512·512 + 512 + 512·2 + 2."""


def test_without_memory_nothing_is_measured_and_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    started: list[int] = []
    monkeypatch.setattr("fedscout.experiments.timings.engine.memory_in_use", lambda: (0, SPARE_BYTES))
    monkeypatch.setattr("fedscout.experiments.timings.engine._growing_hosts", lambda: nullcontext(started.append))
    found = measure_scaling([2, 4], 1000, 4, told.append)
    assert [re.findall(r"[\d.]+", line) for line in told] == [["2", "2", "2.0", "1.0"]]
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
    assert all(row[quantity] > 0 for row in rows for quantity in QUANTITIES)
    assert [row["cost"] for row in document["costs"]] == [*QUANTITIES]
    assert all(row[term] >= 0 for row in document["costs"] for term in TERMS)
    assert done.text.startswith("fedscout: starting 1 nodes\nfedscout: 1 nodes: ")
    assert (done.files, done.stubborn) == ([], [])
