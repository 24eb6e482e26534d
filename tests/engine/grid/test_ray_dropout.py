"""Dropout leaves out the same on any number of hosts. By itself, as hosts of another module's would hold the CPUs."""

from __future__ import annotations

import pytest

from fedscout.engine.contracts.config import LocalTraining
from tests.engine.choices import FEDAVG, spec_of
from tests.engine.federations import dropping, uneven_federation
from tests.engine.results import local_result, ray_result, started_hosts
from tests.engine.trials.test_resume import assert_same

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(120)]


@pytest.mark.stress
def test_two_hosts_leave_out_what_one_does(ray_session: None) -> None:
    federation = uneven_federation(dropping)
    training = LocalTraining(local_epochs=2, batch_size=8, learning_rate=0.5, optimizer="adadelta")
    spec = spec_of(FEDAVG, training=training)
    with started_hosts(federation, 2) as hosts:
        assert_same(ray_result(spec, hosts), local_result(spec, federation))
