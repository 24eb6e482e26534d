"""Activations: closed forms, and backward passes that are autograd's."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, exp, sqrt, tanh

import pytest
import torch
from torch import Tensor, nn

from fedscout.engine.models.dense import ACTIVATIONS, activation_of

POINTS = [-30.0, -2.0, -0.5, -1e-3, 0.25, 1.0, 3.0, 30.0]
CLOSED_FORMS: dict[str, Callable[[float], float]] = {
    "relu": lambda x: max(x, 0.0),
    "leaky_relu": lambda x: x if x > 0 else 0.01 * x,
    "elu": lambda x: x if x > 0 else exp(x) - 1,
    "gelu": lambda x: x * (1 + erf(x / sqrt(2))) / 2,
    "silu": lambda x: x / (1 + exp(-x)),
    "tanh": tanh,
    "sigmoid": lambda x: 1 / (1 + exp(-x)),
}


def points() -> Tensor:
    return torch.tensor(POINTS, dtype=torch.float64)


def test_every_activation_has_its_closed_form() -> None:
    assert set(CLOSED_FORMS) == set(ACTIVATIONS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_layer_and_function_are_the_closed_form(name: str) -> None:
    expected = torch.tensor([CLOSED_FORMS[name](x) for x in POINTS], dtype=torch.float64)

    torch.testing.assert_close(ACTIVATIONS[name].layer()(points()), expected, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(ACTIVATIONS[name].apply(points()), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_pull_is_the_derivative(name: str) -> None:
    """By central differences of the closed form, between its kinks."""
    step = 1e-5
    slopes = [(CLOSED_FORMS[name](x + step) - CLOSED_FORMS[name](x - step)) / (2 * step) for x in POINTS]
    kept = points()
    ACTIVATIONS[name].apply(kept)

    found = ACTIVATIONS[name].pull(torch.full_like(kept, 3.0), kept)

    torch.testing.assert_close(found, 3 * torch.tensor(slopes, dtype=torch.float64), rtol=1e-6, atol=1e-6)


OTHERS = (nn.LeakyReLU(0.2), nn.ELU(2.0), nn.GELU("tanh"), nn.Softplus(), nn.Identity())


@pytest.mark.parametrize(
    ("layer", "known"), [*((each.layer(), each) for each in ACTIVATIONS.values()), *((other, None) for other in OTHERS)]
)
def test_a_layer_is_known_as_what_it_is_and_no_other(layer: nn.Module, known: object) -> None:
    assert activation_of(layer) is known
