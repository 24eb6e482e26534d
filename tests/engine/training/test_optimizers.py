"""The client optimisers are torch's, step for step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.training.loop import SGD, Adadelta, Adam, RMSprop, new_optimizer

NUM_STEPS, NUM_PARAMETERS, NUM_CLIENTS = 12, 53, 7
SETTINGS = [
    {"optimizer": "sgd"},
    {"optimizer": "sgd", "momentum": 0.9},
    {"optimizer": "sgd", "weight_decay": 0.05},
    {"optimizer": "sgd", "momentum": 0.5, "weight_decay": 0.01},
    {"optimizer": "adam"},
    {"optimizer": "adam", "weight_decay": 0.05},
    {"optimizer": "rmsprop"},
    {"optimizer": "rmsprop", "weight_decay": 0.05},
    {"optimizer": "adadelta"},
    {"optimizer": "adadelta", "weight_decay": 0.05},
]


TORCH_S: dict[str, type[torch.optim.Optimizer]] = {
    **{"sgd": torch.optim.SGD, "adam": torch.optim.Adam},
    **{"rmsprop": torch.optim.RMSprop, "adadelta": torch.optim.Adadelta},
}


def gradients(*shape: int) -> torch.Tensor:
    return torch.randn(NUM_STEPS, *shape, generator=torch.Generator().manual_seed(1))


def start(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def reference(training: LocalTraining, weights: torch.Tensor, steps: torch.Tensor) -> list[torch.Tensor]:
    """Return the weights after each step of torch's own optimiser."""
    parameter = torch.nn.Parameter(weights.clone())
    momentum = {"momentum": training.momentum} if training.optimizer == "sgd" else {}
    optimizer = TORCH_S[training.optimizer](
        [parameter], lr=training.learning_rate, weight_decay=training.weight_decay, **momentum
    )
    path = []
    for gradient in steps:
        parameter.grad = gradient.clone()
        optimizer.step()
        path.append(parameter.detach().clone())
    return path


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_one_client_takes_torch_s_steps_bit_for_bit(settings: dict[str, object]) -> None:
    training = LocalTraining(learning_rate=0.1, **settings)
    weights, steps = start(NUM_PARAMETERS), gradients(NUM_PARAMETERS)
    expected = reference(training, weights, steps)
    optimizer = new_optimizer(training)

    for gradient, after in zip(steps, expected, strict=True):
        optimizer.step(weights, gradient.clone())
        assert torch.equal(weights, after)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_block_of_clients_is_each_client_alone(settings: dict[str, object]) -> None:
    """Within two float32 steps a step: a block's vector instructions may fuse where a single row's tail does not."""
    training = LocalTraining(learning_rate=0.1, **settings)
    block, steps = start(NUM_CLIENTS, NUM_PARAMETERS), gradients(NUM_CLIENTS, NUM_PARAMETERS)
    alone = [reference(training, block[k], steps[:, k])[-1] for k in range(NUM_CLIENTS)]
    optimizer = new_optimizer(training)

    for gradient in steps:
        optimizer.step(block, gradient.clone())

    torch.testing.assert_close(block, torch.stack(alone), rtol=2 * NUM_STEPS * 2**-23, atol=2 * NUM_STEPS * 2**-23)


@pytest.mark.parametrize(("optimizer", "share"), [(Adam(0.01, 0.0), 1.0), (RMSprop(0.01), 0.1)])
def test_the_first_step_is_a_multiple_of_the_rate_in_the_gradient_s_direction(optimizer: Any, share: float) -> None:
    """Δ = −lr·g/(√v + ε). Adam's bias corrections cancel in step one, so v = g²; RMSprop's v is 0.01 g²."""
    weights, gradient = torch.zeros(3), torch.tensor([2.0, -0.5, 1e-3])

    optimizer.step(weights, gradient.clone())

    torch.testing.assert_close(weights, -0.01 * gradient / (share * gradient.abs() + 1e-8))


def test_two_steps_of_adadelta_by_hand() -> None:
    """Gradient 1, ρ = 0.9: Δ₁ = √(ε / (0.1 + ε)), u = 0.1 Δ₁², v = 0.19, Δ₂ = √((u + ε) / (0.19 + ε))."""
    weights, optimizer = torch.zeros(1, dtype=torch.float64), Adadelta(0.5)
    first = (1e-6 / (0.1 + 1e-6)) ** 0.5
    second = ((0.1 * first**2 + 1e-6) / (0.19 + 1e-6)) ** 0.5

    for _ in range(2):
        optimizer.step(weights, torch.ones(1, dtype=torch.float64))

    assert weights.item() == pytest.approx(-0.5 * (first + second), rel=1e-12)


@pytest.mark.parametrize("name", ["sgd", "adam", "rmsprop", "adadelta"])
def test_rates_of_their_own_have_the_bits_of_each_rate_alone(name: str) -> None:
    """Of as many parameters as fill vector registers, as a block's layers are laid out."""
    rates, num_parameters = [0.003, 0.1, 0.77], 64
    block, steps = start(3, num_parameters), gradients(3, num_parameters)
    alone = [block[k].clone() for k in range(3)]
    optimizer = new_optimizer(LocalTraining(optimizer=name), torch.tensor(rates, dtype=torch.float64)[:, None])
    others = [new_optimizer(LocalTraining(optimizer=name, learning_rate=rate)) for rate in rates]

    for gradient in steps:
        optimizer.step(block, gradient.clone())
        for weights, other, own in zip(alone, others, gradient, strict=True):
            other.step(weights, own.clone())

    assert torch.equal(block, torch.stack(alone))


def test_momentum_by_hand() -> None:
    """Gradient 1, lr 1, m = ½: steps of 1, 1.5, 1.75."""
    weights, optimizer = torch.zeros(1), SGD(1.0, momentum=0.5)
    path = []
    for _ in range(3):
        optimizer.step(weights, torch.ones(1))
        path.append(weights.item())

    assert path == [-1.0, -2.5, -4.25]


def test_each_client_starts_with_a_fresh_optimiser() -> None:
    training = LocalTraining(optimizer="adam")

    assert new_optimizer(training) is not new_optimizer(training)
