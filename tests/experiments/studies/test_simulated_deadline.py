"""A deadline that no client can meet is refused before anything trains, and one that some client can meet is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedscout.engine.data.device import Device
from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.studies.simulated_deadline import check_deadline
from fedscout.strategies.methods.averaging import FedAvgSpec
from tests.engine.federations import uneven_federation


def config(deadline_seconds: float | None) -> StudyConfig:
    return StudyConfig.model_validate({"training": {"simulated_deadline_seconds": deadline_seconds}})


def test_the_fastest_client_decides() -> None:
    plain = uneven_federation()
    devices = {client: Device(shift_seconds=10.0 + client, mean_seconds=5.0) for client in range(plain.num_clients)}
    federation = replace(plain, devices=devices)
    check_deadline(config(10.0), federation, FedAvgSpec())
    with pytest.raises(ConfigurationError, match=r"got 9.9: the fastest, client 0, takes 10 s or more"):
        check_deadline(config(9.9), federation, FedAvgSpec())
    with pytest.raises(ConfigurationError, match="the fastest, client 1, takes 11 s"):
        check_deadline(config(10.0), replace(federation, unseen=frozenset({0})), FedAvgSpec())
    check_deadline(config(None), federation, FedAvgSpec())
    check_deadline(config(1e-9), plain, FedAvgSpec())


def test_what_a_strategy_tells_its_clients_counts() -> None:
    """With a second a step, fewer epochs meet a deadline that more do not."""
    plain = uneven_federation(sizes=(100, 100))
    federation = replace(plain, devices=dict.fromkeys(range(2), Device(seconds_per_step=1.0)))
    steps = -(-80 // StudyConfig().training.batch_size)
    check_deadline(config(steps), federation, FedAvgSpec())
    with pytest.raises(ConfigurationError, match="takes 6 s"):
        check_deadline(config(steps), federation, FedAvgSpec(client_local_epochs=2))
