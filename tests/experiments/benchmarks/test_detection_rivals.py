"""Detection among clients that miss exchanges, and models that are scored on the server's rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedscout.detectors import CLIENT_QUERIES, DetectionConfig, HeterogeneityReport
from fedscout.detectors.detection.detect import detect
from fedscout.detectors.outliers.outliers import flag_distant
from fedscout.engine.client.client_host import ClientHost
from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.data.federation import Federation
from fedscout.engine.data.server_data import ServerData
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.message_contents import TrainAnswers
from fedscout.engine.messages.session import Session
from fedscout.engine.trials.trial_runner import LocalRunner
from fedscout.experiments.benchmarks.detection.absent_clients import REASON, AbsentClients
from fedscout.experiments.benchmarks.detection.battery_federations import DataSource
from fedscout.experiments.benchmarks.detection.detection_battery import BatteryPlan, battery_plan, run_battery
from fedscout.experiments.benchmarks.detection.detection_battery_table import table_lines
from fedscout.experiments.benchmarks.detection.shared_set import SharedLosses, by_loss
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


def test_losses_on_the_server_s_rows_are_cross_entropies() -> None:
    """A model of zeros gives each of two classes the probability one half: ln 2."""
    source = replace(
        federation(gaussian_clients([20] * 3)),
        server=ServerData(np.ones((7, 6), np.float32), np.array([0, 1, 0, 1, 1, 1, 0])),
    )
    grid = LocalGrid(source, CLIENT_QUERIES)
    zeros = np.zeros((2, grid.facts.layout.size), np.float32)
    np.testing.assert_allclose(grid.serve(SharedLosses(), {"models": zeros})["losses"], np.log(2), rtol=1e-6)


def test_the_client_of_the_largest_loss_is_flagged_and_who_has_none_diverged() -> None:
    losses = np.array([0.3, 0.2, 0.9, 0.4, np.inf])
    answers = TrainAnswers((0, 1, 2, 3, 7), np.ones((5, 4), np.float32), np.full(5, 10), {})
    comparison = by_loss(lambda _: losses)(answers, np.random.default_rng(0), DetectionConfig())
    assert comparison is not None
    assert comparison.diverged == (7,)
    assert flag_distant(comparison, 90) == (2, 7)


def test_two_models_are_too_few_to_compare() -> None:
    answers = TrainAnswers((0, 1), np.ones((2, 4), np.float32), np.full(2, 10), {})
    assert by_loss(lambda models: np.ones(len(models)))(answers, np.random.default_rng(0), DetectionConfig()) is None


def test_samples_grow_with_the_clients_where_data_suffice() -> None:
    assert [DataSource("a", 2000, 100).sampled(number) for number in (4, 20, 100)] == [2000, 2000, 10_000]
    assert DataSource("a", 2000).sampled(100) == 2000
    assert DataSource("a").sampled(100) is None


@pytest.mark.slow
def test_a_battery_with_absent_clients_and_the_rival() -> None:
    """Both stand in the plan, the server holds labelled rows, and the rival's counts stand beside the calibrated."""
    plan = battery_plan(True, ["breast_cancer"], [6], ["label_poisoning"], 1, (), absent=0.2, shared_set=True)
    assert isinstance(plan, BatteryPlan)
    assert "federation.server_labels=true" in plan.settings
    (run,) = run_battery(plan).runs
    assert run.shared_votes is not None
    assert run.shared_exchanged is not None
    assert any("scored on rows of the server" in line for line in table_lines(run_battery(plan)))
