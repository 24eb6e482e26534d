"""What hosts train on, by what is asked for, what is there and what clients do."""

from __future__ import annotations

import pytest

from fedscout.engine.config import CPU, EngineConfig, HostDevice
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.config import load_config
from fedscout.experiments.federation import build_federation
from fedscout.experiments.studies.runner import device_for
from tests.kits.refusals import refused


@pytest.fixture(scope="module", params=["cartpole", "wine"])
def federation(request: pytest.FixtureRequest) -> Federation:
    config = load_config([f"federation.dataset={request.param}", "federation.num_clients=2"])
    return build_federation(config.federation, config.model)


def test_clients_that_play_do_so_on_cores(federation: Federation) -> None:
    plays = federation.task is not None
    assert device_for(federation, EngineConfig(), has_gpu=True) == (CPU if plays else HostDevice.gpu())
    assert device_for(federation, EngineConfig(), has_gpu=False) == CPU
    if plays:
        with refused(ConfigurationError, key="engine.device"):
            device_for(federation, EngineConfig(device="cuda"), has_gpu=True)
    else:
        assert device_for(federation, EngineConfig(device="cuda"), has_gpu=True) == HostDevice.gpu()
