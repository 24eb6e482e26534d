"""Detection among clients that miss exchanges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedscout.detectors import CLIENT_QUERIES, DetectionConfig, HeterogeneityReport
from fedscout.detectors.detect import detect
from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.federation import Federation
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import Session
from fedscout.engine.trials.runner import LocalRunner
from fedscout.experiments.suites.detection import REASON, AbsentClients
from tests.detectors.federations import federation, gaussian_clients


def report_of(source: Federation, probability: float, seed: int = 0) -> tuple[HeterogeneityReport, AbsentClients]:
    runner = AbsentClients(LocalRunner(ClientHost(source, CLIENT_QUERIES)), probability, seed)
    grid = runner.grid(Session())
    grouped = source.groups is not None
    return detect(grid, grid.initial_vectors, LocalTraining(), DetectionConfig(), seed=0, grouped=grouped), runner


def test_nobody_absent_changes_nothing() -> None:
    source = federation(gaussian_clients([40] * 4))
    plain = LocalGrid(source, CLIENT_QUERIES)
    expected = detect(plain, plain.initial_vectors, LocalTraining(), DetectionConfig(), seed=0)
    report, _ = report_of(source, 0.0)
    assert report.model_dump(exclude={"timings"}) == expected.model_dump(exclude={"timings"})


def test_who_misses_the_first_exchange_takes_no_part() -> None:
    """Labels are compared as if there were the others alone, and the report says who told nothing."""
    clients = gaussian_clients([40] * 12)
    report, runner = report_of(federation(clients), 0.3)
    absent = runner.absent(0, 12)
    assert 0 < len(absent) < 9
    assert report.withheld == dict.fromkeys(absent, REASON)
    there = [client for client in range(12) if client not in absent]
    assert [facts.client for facts in report.clients] == there
    alone, _ = report_of(federation([clients[client] for client in there]), 0.0)
    assert report.calibrated[0].p_value == alone.calibrated[0].p_value
    assert report.label_skew.value == alone.label_skew.value


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_whoever_is_absent_when_there_is_a_report(seed: int, grouped: bool) -> None:
    """Every exchange has other clients; all that was measured is decided, and nobody who told nothing is flagged."""
    source = federation(gaussian_clients([40] * 12))
    source = replace(source, groups=np.arange(480) // 4) if grouped else source
    report, _ = report_of(source, 0.4, seed)
    assert len(report.calibrated) == 3
    told = {facts.client for facts in report.clients}
    assert all(set(finding.flagged_clients) <= told for finding in (*report.findings, *report.calibrated))
