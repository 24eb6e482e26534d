"""Laws of the proximal term."""

from __future__ import annotations

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord

from fedscout.engine.contracts.algorithm import algorithm_if_configured
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.messages.contents import claim_task_identity
from fedscout.strategies import FedProxSpec, ProximalTerm
from fedscout.strategies.methods.averaging import PROXIMAL_MU_KEY
from tests.strategies.rounds import grid_of


def test_flower_sends_the_weight_under_the_key_that_is_read() -> None:
    claim_task_identity()
    spec = FedProxSpec(proximal_mu=0.3)
    arrays = ArrayRecord({"flat": Array(torch.zeros(2).numpy())})
    (message,) = spec.build(Cohort(1, 1, 0.1)).configure_train(1, arrays, ConfigRecord(), grid_of(1))
    config = dict(message.content.config_records["config"])
    algorithm = spec.client_algorithm()
    assert algorithm_if_configured(algorithm, config) == algorithm == ProximalTerm()
    assert config[PROXIMAL_MU_KEY] == 0.3
    assert algorithm_if_configured(algorithm, {}) is None
