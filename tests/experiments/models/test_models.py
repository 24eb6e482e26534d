"""Models: layers as asked for, built from torch's random state, checked before anything starts."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from engine.errors import ConfigurationError, DataError
from experiments.models import MODELS, ModelRequest
from experiments.models.settings import ModelSettings

SHAPES = [(kind, shape) for kind in MODELS for shape in [(7,), (3, 8, 8), (1, 28, 28), (3, 32, 32), (3, 16, 40)]]


def takes(kind: str, shape: tuple[int, ...]) -> bool:
    return kind != "lenet" or (len(shape) == 3 and min(shape[1:]) >= 16)


@pytest.mark.parametrize(("kind", "shape"), [(kind, shape) for kind, shape in SHAPES if takes(kind, shape)])
def test_logits_for_rows_of_a_shape_that_fits(kind: str, shape: tuple[int, ...]) -> None:
    import torch

    factory = MODELS[kind](ModelRequest(feature_shape=shape, num_classes=5))
    assert factory()(torch.zeros(4, *shape)).shape == (4, 5)


@pytest.mark.parametrize("shape", [shape for kind, shape in SHAPES if kind == "lenet" and not takes(kind, shape)])
def test_lenet_refuses_what_is_no_image_or_too_small(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=r"needs images of shape \(channels, height, width\) with at least 16 pixels"):
        MODELS["lenet"](ModelRequest(shape, 5))


def test_lenet_is_the_published_one_on_32_pixels() -> None:
    """LeCun et al. 1998, section II: 6 and 16 maps of 5 x 5, 120, 84 and 10 units; here with full connections."""
    counted = sum(p.numel() for p in MODELS["lenet"](ModelRequest((1, 32, 32), 10))().parameters())
    convolutions = (25 + 1) * 6 + (6 * 25 + 1) * 16
    assert counted == convolutions + (16 * 25 + 1) * 120 + (120 + 1) * 84 + (84 + 1) * 10


def num_parameters(kind: str, hidden: tuple[int, ...] = (64, 32)) -> int:
    factory = MODELS[kind](ModelRequest(feature_shape=(254,), num_classes=2, settings=ModelSettings(hidden=hidden)))
    return sum(parameter.numel() for parameter in factory().parameters())


def test_layers_are_those_asked_for() -> None:
    # weights + biases of each layer
    assert num_parameters("dense") == (254 * 64 + 64) + (64 * 32 + 32) + (32 * 2 + 2)
    assert num_parameters("dense", hidden=(3,)) == (254 * 3 + 3) + (3 * 2 + 2)
    assert num_parameters("linear") == 254 * 2 + 2
    assert num_parameters("auto") == num_parameters("dense")


def test_dense_net_is_not_linear_and_linear_one_is() -> None:
    import torch

    inputs = torch.linspace(-3, 3, 7)[:, None]
    for kind, expected in (("linear", True), ("dense", False)):
        torch.manual_seed(0)
        outputs = MODELS[kind](ModelRequest((1,), 2))()(inputs)
        second_differences = outputs[2:] - 2 * outputs[1:-1] + outputs[:-2]
        assert bool((second_differences.abs() < 1e-5).all()) is expected


@pytest.mark.parametrize("kind", MODELS)
def test_factory_travels_and_follows_the_seed(kind: str) -> None:
    import torch

    factory = MODELS[kind](ModelRequest((1, 28, 28), 3))
    twin = pickle.loads(pickle.dumps(factory))
    assert twin == factory
    vectors = []
    for build, seed in ((factory, 1), (twin, 1), (factory, 2)):
        torch.manual_seed(seed)
        vectors.append(torch.nn.utils.parameters_to_vector(build().parameters()))
    assert torch.equal(vectors[0], vectors[1])
    assert not torch.equal(vectors[0], vectors[2])


@pytest.mark.parametrize("hidden", [(), (0,), (8, -1)])
def test_widths_are_checked(hidden: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError, match=r"model\.hidden .* got \["):
        MODELS["dense"](ModelRequest((4,), 2, ModelSettings.model_construct(hidden=hidden)))


@pytest.mark.parametrize(("shape", "num_classes"), [((), 2), ((0,), 2), ((3, 0), 2), ((4,), 1)])
def test_shapes_are_checked(shape: tuple[int, ...], num_classes: int) -> None:
    with pytest.raises(DataError, match="at least"):
        ModelRequest(shape, num_classes)


def test_nothing_heavy_is_imported_until_it_is_needed() -> None:
    script = (
        "import sys, experiments.build; from experiments.models import MODELS, ModelRequest;"
        "MODELS['auto'](ModelRequest((4,), 2));"
        "print([name for name in ('torch', 'ray', 'sklearn', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
