"""The benchmark does the work that it claims to time."""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest

from fedscout.engine.config import EngineConfig
from fedscout.experiments.timings.engine import time_engine, whole_rounds, work_federation
from fedscout.experiments.timings.peers.work import FEATURE_SHAPES, NUM_CLASSES, Task, WorkName
from fedscout.strategies import parse_strategy


@pytest.mark.parametrize("work", FEATURE_SHAPES)
def test_every_client_has_its_own_rows_and_all_classes_occur(work: WorkName) -> None:
    federation = work_federation(work, num_clients=3, num_samples=60)
    assert federation.features.shape == (180, *FEATURE_SHAPES[work])
    assert sorted(federation.partition.rows) == list(range(180))
    assert federation.partition.sizes.tolist() == [60, 60, 60]
    assert len(np.unique(federation.labels)) == NUM_CLASSES[work]
    again = work_federation(work, num_clients=2, num_samples=60)
    assert np.array_equal(again.features, federation.features[:120])


@pytest.mark.slow
def test_rounds_are_trained_and_timed() -> None:
    specs = [parse_strategy("fedavg"), parse_strategy("fedmedian")]
    few, many = (
        time_engine(Task("dense", 3, 64, rounds, workers=1), specs, EngineConfig(grid="local"))[1] for rounds in (1, 25)
    )
    improved = many["fedscout, fedavg"].accuracy - few["fedscout, fedavg"].accuracy
    assert improved > 0.05, "labels are linear in the features: more rounds must fit them better"
    hosts, timings = time_engine(Task("dense", 3, 64, 2, workers=1), specs, EngineConfig(grid="local"))
    assert (hosts, [*timings]) == (1, ["fedscout, fedavg", "fedscout, fedmedian"])
    for timing in timings.values():
        assert len(timing.round_seconds) == 2
        seconds = fmean(timing.round_seconds)
        parts = sum(spent for phase, spent in timing.phases.items() if phase != "hosts")
        assert 0 < parts <= seconds


def test_the_last_scoring_belongs_to_the_first_round_and_rounds_that_are_not_told_of_count_the_same() -> None:
    assert whole_rounds([10.0, 11.0, 13.0, 16.0, 16.5], rounds=3) == (1.5, 2.0, 3.0)
    assert whole_rounds([10.0, 15.0, 16.0], rounds=3) == (2.0, 2.0, 2.0)
