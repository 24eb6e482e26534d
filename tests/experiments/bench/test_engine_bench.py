"""The benchmark does the work that it claims to time."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.bench.engine_bench import time_engine
from experiments.bench.engine_work import WORKS, WorkName, work_federation
from experiments.engine_config import EngineConfig
from strategies import parse_strategy


@pytest.mark.parametrize("work", ["dense", "lenet"])
def test_every_client_has_its_own_rows_and_all_classes_occur(work: WorkName) -> None:
    federation = work_federation(work, num_clients=3, num_samples=60)
    assert federation.features.shape == (180, *WORKS[work].feature_shape)
    assert sorted(federation.partition.rows) == list(range(180))
    assert federation.partition.sizes.tolist() == [60, 60, 60]
    assert len(np.unique(federation.labels)) == WORKS[work].num_classes
    again = work_federation(work, num_clients=2, num_samples=60)
    assert np.array_equal(again.features, federation.features[:120])


def test_rounds_are_trained_and_timed() -> None:
    specs = [parse_strategy("fedavg"), parse_strategy("fedmedian")]
    few, many = (
        time_engine("dense", 3, 64, rounds, specs, EngineConfig(grid="local"))[0].accuracy for rounds in (1, 25)
    )
    assert many > few + 0.05, "labels are linear in the features: more rounds must fit them better"
    timings = time_engine("dense", 3, 64, 2, specs, EngineConfig(grid="local"))
    assert [timing.strategy for timing in timings] == ["fedavg", "fedmedian"]
    for timing in timings:
        assert timing.hosts == 1
        parts = sum(seconds for phase, seconds in timing.phases.items() if phase != "hosts")
        assert 0 < parts <= timing.seconds_per_round
