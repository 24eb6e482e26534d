"""Each module of detection is timed on its own, asks what it asks in a detection, and the shortest turn counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fedscout.engine.config import EngineConfig
from fedscout.engine.data.federation import Federation
from fedscout.experiments.studies.runner import open_runner
from fedscout.experiments.timings import detection as measurement
from fedscout.experiments.timings.detection import (
    BLOCK_ROUNDS,
    FEATURES,
    LABELS,
    MODULES,
    OUTLIERS,
    PUBLISHED_OUTLIERS,
    WHOLE,
    DetectionCost,
    detection_cost,
    table_lines,
)
from fedscout.experiments.timings.engine import TRAINING, work_federation

LOCAL = EngineConfig(grid="local")
SIZES = (20, 20, 20)


@pytest.fixture(scope="module")
def federation() -> Federation:
    return work_federation("dense", num_clients=3, num_samples=20)


def test_modules_are_what_a_detection_is_made_of(federation: Federation) -> None:
    with open_runner(federation, LOCAL, None, parallel=1) as lazy:
        found: Mapping[str, Any] = {
            name: module() for name, module in measurement._modules(lazy.started(), TRAINING, SIZES).items()
        }
    report = found[WHOLE]
    assert found[LABELS].finding == report.label_skew
    assert found[FEATURES].finding == report.feature_skew
    assert found[FEATURES].calibrated == report.calibrated[1]
    assert found[PUBLISHED_OUTLIERS].finding == report.outliers
    assert found[PUBLISHED_OUTLIERS].parts == ()
    assert found[OUTLIERS] is not None  # three parts of five rows, so that there is a test


def test_the_shortest_turn_counts(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = iter([0.1, 4.0, 2.0])
    seconds = iter([0.01, 0.02, 5.0, 7.0, 6.0, 3.0])
    monkeypatch.setattr(measurement, "round_seconds", lambda *_: next(rounds))
    monkeypatch.setattr(measurement, "_modules", lambda *_: {LABELS: int, WHOLE: int})
    monkeypatch.setattr(measurement, "_seconds", lambda _: next(seconds))
    cost = detection_cost(federation, TRAINING, LOCAL, 2, MODULES)
    assert (cost.clients, cost.hosts, cost.round_seconds) == (3, 1, 2.0)
    assert cost.seconds == {LABELS: 5.0, WHOLE: 3.0}


def test_the_table_has_rounds_of_ours_and_of_the_source() -> None:
    """By hand: 0.5 s of 0.25 s rounds; 54.5 s of 1.16 s rounds are 46.98."""
    cost = DetectionCost(
        federation="dense", clients=4, hosts=2, round_seconds=0.25, seconds={PUBLISHED_OUTLIERS: 0.5, WHOLE: 1.0}
    )
    assert table_lines([cost])[2:] == [
        f"| dense | 2 | {PUBLISHED_OUTLIERS} | 500.0 | 2.0 | 47.0 | 250.00 |",
        f"| dense | 2 | {WHOLE} | 1000.0 | 4.0 |  | 250.00 |",
    ]


# The cost of a detection is measured on whole detections and whole rounds.


def test_a_detection_trains_ten_times_so_it_costs_several_rounds(federation: Federation) -> None:
    cost = detection_cost(federation, TRAINING, LOCAL, repeats=1)
    assert (cost.clients, cost.hosts) == (3, 1)
    assert cost.rounds() > 1


def test_a_round_is_one_of_a_block(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that ticks at every look, the time from the first of eleven ends to the last is ten ticks."""
    ticks = iter(range(10**6))

    class Clock:
        perf_counter = staticmethod(lambda: float(next(ticks)))

    from fedscout.experiments.studies.runner import open_runner

    with open_runner(federation, LOCAL, None, parallel=1) as lazy:
        runner = lazy.started()
        monkeypatch.setattr(measurement, "time", Clock)
        assert measurement.round_seconds(runner, TRAINING) == 1
    assert next(ticks) == BLOCK_ROUNDS + 1
