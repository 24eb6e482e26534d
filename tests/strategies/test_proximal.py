"""Laws of the proximal term."""

from __future__ import annotations

import pickle

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord

from fedscout.engine.contracts.algorithm import asked_for
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.messages.contents import claim_task_identity
from fedscout.strategies import FedProxSpec, ProximalTerm
from fedscout.strategies.methods.averaging import PROXIMAL_MU_KEY, pull_towards
from tests.strategies.rounds import grid_of


def corrected(mu: float, start: torch.Tensor, weights: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    changed = gradient.clone()
    pull_towards(mu, weights, changed, start)
    return changed


def vectors(*shape: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    start, weights, gradient = (torch.randn(*shape, generator=generator) for _ in range(3))
    return start, weights, gradient


def test_without_weight_the_gradient_stays() -> None:
    start, weights, gradient = vectors(5)
    assert torch.equal(corrected(0.0, start, weights, gradient), gradient)


def test_at_the_start_the_gradient_stays() -> None:
    start, _, gradient = vectors(5)
    assert torch.equal(corrected(0.7, start, start.clone(), gradient), gradient)


def test_it_is_the_gradient_of_the_proximal_loss() -> None:
    start, weights, gradient = vectors(5)
    variable = weights.clone().requires_grad_()
    (0.7 / 2 * (variable - start).square().sum()).backward()
    torch.testing.assert_close(corrected(0.7, start, weights, gradient) - gradient, variable.grad)


def test_a_block_of_clients_is_each_client() -> None:
    start, weights, gradient = vectors(3, 5)
    block = corrected(0.7, start, weights, gradient)
    for client in range(3):
        assert torch.equal(block[client], corrected(0.7, start[client], weights[client], gradient[client]))


def test_it_travels() -> None:
    assert pickle.loads(pickle.dumps(ProximalTerm())) == ProximalTerm()


def test_flower_sends_the_weight_under_the_key_that_is_read() -> None:
    claim_task_identity()
    spec = FedProxSpec(proximal_mu=0.3)
    arrays = ArrayRecord({"flat": Array(torch.zeros(2).numpy())})
    (message,) = spec.build(Cohort(1, 1, 0.1)).configure_train(1, arrays, ConfigRecord(), grid_of(1))
    config = dict(message.content.config_records["config"])
    algorithm = spec.client_algorithm()
    assert asked_for(algorithm, config) == algorithm == ProximalTerm()
    assert config[PROXIMAL_MU_KEY] == 0.3
    assert asked_for(algorithm, {}) is None
