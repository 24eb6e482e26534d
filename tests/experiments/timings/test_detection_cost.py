"""The cost of a detection is measured on whole detections and whole rounds."""

from __future__ import annotations

import pytest

from fedscout.engine.config import EngineConfig
from fedscout.engine.data.federation import Federation
from fedscout.experiments.timings import detection as measurement
from fedscout.experiments.timings.detection import BLOCK_ROUNDS, detection_cost
from fedscout.experiments.timings.engine import TRAINING, work_federation

LOCAL = EngineConfig(grid="local")


@pytest.fixture(scope="module")
def federation() -> Federation:
    return work_federation("dense", num_clients=3, num_samples=20)


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
