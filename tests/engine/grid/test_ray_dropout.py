"""Dropout leaves out the same on any number of hosts. By itself, as hosts of another module's would hold the CPUs."""

from __future__ import annotations

import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.grid.ray_grid import RayGrid, start_hosts
from fedscout.engine.trials.trial import run_trial
from tests.engine.choices import FEDAVG, spec_of
from tests.engine.federations import QUERIES, dropping, uneven_federation
from tests.engine.trials.test_resume import assert_same

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(120)]


@pytest.mark.stress
def test_two_hosts_leave_out_what_one_does(ray_session: None) -> None:
    federation = uneven_federation(dropping)
    training = LocalTraining(local_epochs=2, batch_size=8, learning_rate=0.5, optimizer="adadelta")
    spec = spec_of(FEDAVG, training=training)
    hosts = start_hosts(federation, QUERIES, 2)
    try:
        result = run_trial(spec, RayGrid(hosts, spec.session))
    finally:
        hosts.stop()

    assert_same(result, run_trial(spec, LocalGrid(ClientHost(federation, QUERIES), session=spec.session)))
