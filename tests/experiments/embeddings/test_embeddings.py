"""Features of a ResNet-18, against the same network written out by torch's functions and torchvision's names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from fedscout.engine.errors import ConfigurationError, DataError
from fedscout.experiments.embeddings.embedder import embedder
from fedscout.experiments.embeddings.networks import MEAN, ResNet18Features, load_weights, standardised
from tests.kits.refusals import refused

SIZE = 32


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    """Random weights, statistics of batch normalisation included, by torchvision's names and with its classifier."""
    shapes: dict[str, tuple[int, ...]] = {"conv1.weight": (64, 3, 7, 7), "fc.weight": (1000, 512), "fc.bias": (1000,)}
    norms = {"bn1": 64}
    before = 64
    for stage, width in enumerate((64, 128, 256, 512), 1):
        for block in (0, 1):
            name = f"layer{stage}.{block}"
            shapes[f"{name}.conv1.weight"] = (width, before if block == 0 else width, 3, 3)
            shapes[f"{name}.conv2.weight"] = (width, width, 3, 3)
            norms |= {f"{name}.bn1": width, f"{name}.bn2": width}
            if block == 0 and stage > 1:
                shapes[f"{name}.downsample.0.weight"] = (width, before, 1, 1)
                norms[f"{name}.downsample.1"] = width
        before = width
    draw = torch.Generator().manual_seed(1)
    found = {name: 0.05 * torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    for name, width in norms.items():
        for part in ("weight", "bias", "running_mean", "running_var"):
            found[f"{name}.{part}"] = 0.5 + torch.rand(width, generator=draw)
    return found


def written_out(given: dict[str, Tensor], pictures: Tensor) -> Tensor:
    """ResNet-18 by torch's functions, from table 1 of the paper."""

    def norm(name: str, values: Tensor) -> Tensor:
        mean, variance, weight, bias = (
            given[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
        )
        return functional.batch_norm(values, mean, variance, weight, bias)

    values = functional.conv2d(pictures, given["conv1.weight"], stride=2, padding=3)
    values = functional.max_pool2d(norm("bn1", values).clamp(min=0), 3, stride=2, padding=1)
    for stage in range(1, 5):
        for block in (0, 1):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            inner = functional.conv2d(values, given[f"{name}.conv1.weight"], stride=stride, padding=1)
            inner = functional.conv2d(norm(f"{name}.bn1", inner).clamp(min=0), given[f"{name}.conv2.weight"], padding=1)
            if f"{name}.downsample.0.weight" in given:
                values = functional.conv2d(values, given[f"{name}.downsample.0.weight"], stride=stride)
                values = norm(f"{name}.downsample.1", values)
            values = (norm(f"{name}.bn2", inner) + values).clamp(min=0)
    return values.mean(dim=(2, 3))


@pytest.mark.parametrize("name", ["resnet18.safetensors", "resnet18.pt"])
def test_it_is_the_network_of_the_paper(weights: dict[str, Tensor], tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    (save_file if path.suffix == ".safetensors" else torch.save)(weights, path)
    pictures = np.random.default_rng(0).random((5, 3, 40, 40), dtype=np.float32)
    found = embedder(path, None, None, SIZE).embedded(pictures)
    expected = written_out(weights, standardised(torch.from_numpy(pictures), SIZE))
    assert found.shape == (5, 512)
    assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_pictures_are_seen_as_imagenet_s() -> None:
    gray = torch.full((1, 1, 8, 8), MEAN[0])
    seen = standardised(gray, SIZE)
    assert seen.shape == (1, 3, SIZE, SIZE)
    expected = [(MEAN[0] - mean) / deviation for mean, deviation in zip(MEAN, (0.229, 0.224, 0.225), strict=True)]
    assert_allclose(seen[0].mean(dim=(1, 2)), expected, atol=1e-6)


def test_rows_do_not_depend_on_each_other() -> None:
    pictures = np.random.default_rng(0).random((70, 1, 16, 16), dtype=np.float32)
    by = embedder(None, None, 3, SIZE)
    assert_allclose(by.embedded(pictures[60:]), by.embedded(pictures)[60:], rtol=1e-4, atol=1e-4)


def test_equal_pictures_have_equal_features() -> None:
    pictures = np.full((3, 3, 16, 16), 0.5, np.float32)
    first, *others = embedder(None, None, 3, SIZE).embedded(pictures)
    assert all((other == first).all() for other in others)


def without(name: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda weights: {key: value for key, value in weights.items() if key != name}


@pytest.mark.parametrize(
    "change",
    [
        without("layer3.1.conv2.weight"),
        lambda weights: weights | {"layer9": torch.ones(1)},
        lambda weights: weights | {"bn1.bias": torch.ones(3)},
        lambda _: [1, 2],
        lambda weights: {"model": weights},
    ],
)
def test_another_network_s_weights_are_refused(
    weights: dict[str, Tensor], tmp_path: Path, change: Callable[[dict[str, Tensor]], object]
) -> None:
    torch.save(change(weights), tmp_path / "weights.pth")
    with refused(DataError, key="weights.pth"):
        load_weights(ResNet18Features(), tmp_path / "weights.pth")


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.pt", "weights.onnx", "gone.pt"])
def test_what_is_no_file_of_weights_is_told_in_a_line(tmp_path: Path, name: str) -> None:
    if name != "gone.pt":
        (tmp_path / name).write_bytes(b"nothing of the kind")
    with refused(DataError, key="--weights" if name == "weights.onnx" else name, names=name) as told:
        load_weights(ResNet18Features(), tmp_path / name)
    assert "\n" not in str(told.value)


def test_one_of_weights_and_random_must_be_given() -> None:
    for weights, seed in ((None, None), (Path("weights.pt"), 0)):
        with refused(ConfigurationError, key="--weights"):
            embedder(weights, None, seed, SIZE)
