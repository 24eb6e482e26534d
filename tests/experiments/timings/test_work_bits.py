"""The larger models have the same bits on any number of hosts, as small dense nets do."""

from __future__ import annotations

import pytest

from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.grid.ray_grid import RayGrid, start_hosts
from fedscout.engine.messages.calls import Session
from fedscout.engine.trials.record import TrialSettings
from fedscout.engine.trials.trial import run_trial
from fedscout.experiments.timings.engine import work_federation
from fedscout.experiments.timings.peers.work import WorkName
from fedscout.strategies import FedAvgSpec
from tests.engine.federations import QUERIES
from tests.engine.trials.test_resume import assert_same

CLIENTS = 3
TRAINING = LocalTraining(batch_size=32, learning_rate=0.05, momentum=0.9)


@pytest.mark.stress
@pytest.mark.ray
@pytest.mark.parametrize(("name", "samples"), [("lenet", 75), ("textcnn", 75), ("resnet18", 8)])
def test_two_hosts_give_the_bits_of_one_process(ray_session: None, name: WorkName, samples: int) -> None:
    federation = work_federation(name, CLIENTS, samples)
    settings = TrialSettings(
        strategy=FedAvgSpec(), num_rounds=2, num_sampled=CLIENTS, session=Session(training=TRAINING, seed=1)
    )
    hosts = start_hosts(federation, QUERIES, 2)
    try:
        by_ray = run_trial(settings, RayGrid(hosts, settings.session))
    finally:
        hosts.stop()

    assert by_ray.error is None
    assert len({*by_ray.round_loss}) == 2
    assert_same(by_ray, run_trial(settings, LocalGrid(federation, QUERIES, session=settings.session)))
