"""Numbers of parameters, each derived by hand from the layers: weights + biases."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from fedscout.engine.models.flat import FlatModel
from fedscout.experiments.data.dataset import DataKind
from fedscout.experiments.models.request import ModelRequest, ModelSettings
from fedscout.experiments.models.table import build_model

# One LSTM layer of width h on inputs of width i has four gates, each with weights (i + h) h and, in torch, two biases.
LSTM_8_256 = 4 * (8 + 256) * 256 + 4 * 2 * 256
LSTM_256_256 = 4 * (256 + 256) * 256 + 4 * 2 * 256

# ResNet-18: 3 x 3 convolutions without bias, each followed by a scale and a shift a channel; so are 1 x 1 shortcuts.
STEM = 9 * 3 * 64 + 2 * 64
WIDTH_64 = 4 * (9 * 64 * 64 + 2 * 64)
WIDTH_128 = (9 * 64 * 128 + 2 * 128) + 3 * (9 * 128 * 128 + 2 * 128) + (64 * 128 + 2 * 128)
WIDTH_256 = (9 * 128 * 256 + 2 * 256) + 3 * (9 * 256 * 256 + 2 * 256) + (128 * 256 + 2 * 256)
WIDTH_512 = (9 * 256 * 512 + 2 * 512) + 3 * (9 * 512 * 512 + 2 * 512) + (256 * 512 + 2 * 512)
RESNET_18 = STEM + WIDTH_64 + WIDTH_128 + WIDTH_256 + WIDTH_512 + 513 * 10

COUNTS = [
    ("linear", "table", (254,), 2, {}, 254 * 2 + 2),
    ("dense", "table", (254,), 2, {}, (254 * 64 + 64) + (64 * 32 + 32) + (32 * 2 + 2)),
    ("dense", "table", (254,), 2, {"hidden": (3,)}, (254 * 3 + 3) + (3 * 2 + 2)),
    ("dense", "table", (254,), 2, {"hidden": (3,), "norm": "batch"}, (254 * 3 + 3) + 2 * 3 + (3 * 2 + 2)),
    (
        "dense_large",
        "table",
        (39,),
        2,
        {},
        (39 * 1024 + 1024)
        + (1024 * 512 + 512)
        + (512 * 256 + 256)
        + (256 * 128 + 128)
        + (128 * 64 + 64)
        + (64 * 2 + 2)
        + 2 * (1024 + 512 + 256 + 128 + 64),
    ),
    (  # LeCun et al. 1998, section II: 6 and 16 maps of 5 x 5, 120, 84 and 10 units; here with full connections
        "lenet",
        "image",
        (1, 32, 32),
        10,
        {},
        (25 + 1) * 6 + (6 * 25 + 1) * 16 + (16 * 25 + 1) * 120 + (120 + 1) * 84 + (84 + 1) * 10,
    ),
    ("cnn2", "image", (1, 28, 28), 10, {}, 1_663_370),  # McMahan et al. 2017, section 3
    (
        "cnn4",
        "image",
        (3, 32, 32),
        10,
        {},
        (9 * 3 + 1) * 32
        + (9 * 32 + 1) * 32
        + (9 * 32 + 1) * 64
        + (9 * 64 + 1) * 64
        + (64 * 8 * 8 + 1) * 512
        + (512 + 1) * 10,
    ),
    ("resnet18", "image", (3, 32, 32), 10, {}, RESNET_18),
    ("resnet18", "image", (3, 32, 32), 10, {"norm": "batch"}, RESNET_18),
    ("embedding_bag", "tokens", (32,), 2, {}, 10_000 * 32 + (32 * 2 + 2)),
    ("textcnn", "tokens", (32,), 2, {}, 10_000 * 100 + (3 + 4 + 5) * 100 * 100 + 3 * 100 + (300 * 2 + 2)),
    ("char_lstm", "tokens", (80,), 65, {}, 10_000 * 8 + LSTM_8_256 + LSTM_256_256 + 257 * 65),
    ("embedding_classifier", "embedding", (384,), 2, {}, 384 * 2 + 2),
    ("embedding_classifier", "embedding", (384,), 2, {"hidden": (16,)}, (384 * 16 + 16) + (16 * 2 + 2)),
    ("dqn", "table", (4,), 2, {}, (4 * 64 + 64) + (64 * 64 + 64) + (64 * 2 + 2)),
]
EACH = pytest.mark.parametrize(("kind", "data_kind", "shape", "num_classes", "settings", "expected"), COUNTS)


def tensors_of(
    kind: str, data_kind: DataKind, shape: tuple[int, ...], num_classes: int, settings: dict[str, object]
) -> tuple[int, int]:
    """Return numbers in parameters and in floating-point buffers, without memory for them."""
    import torch

    chosen = ModelSettings.model_validate({"kind": kind, **settings})
    asked = ModelRequest(shape, num_classes, chosen, data_kind, 10_000 if data_kind == "tokens" else 0)
    with torch.device("meta"):
        module = build_model(asked)()
    buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
    return sum(prod(p.shape) for p in module.parameters()), sum(prod(buffer.shape) for buffer in buffers)


@EACH
def test_number_of_parameters(
    kind: str, data_kind: DataKind, shape: tuple[int, ...], num_classes: int, settings: dict[str, object], expected: int
) -> None:
    assert tensors_of(kind, data_kind, shape, num_classes, settings)[0] == expected


@pytest.mark.slow
@EACH
def test_named_arrays_are_flowers_record_of_the_state_dict(
    kind: str, data_kind: DataKind, shape: tuple[int, ...], num_classes: int, settings: dict[str, object], expected: int
) -> None:
    from flwr.app import ArrayRecord

    chosen = ModelSettings.model_validate({"kind": kind, **settings})
    module = build_model(ModelRequest(shape, num_classes, chosen, data_kind, 10_000 if data_kind == "tokens" else 0))()
    flowers = {name: array.numpy() for name, array in ArrayRecord(module.state_dict()).items()}
    model = FlatModel(module)

    arrays = model.layout.split(model.vector.numpy())

    assert model.layout.num_trainable == expected
    assert [(name, a.shape, a.dtype) for name, a in arrays.items()] == [
        (name, a.shape, a.dtype) for name, a in flowers.items()
    ]
    for name, array in flowers.items():
        np.testing.assert_array_equal(arrays[name], array)


@pytest.mark.parametrize(
    ("kind", "data_kind", "shape", "settings", "num_normalised"),
    [
        ("dense", "table", (5,), {"norm": "batch"}, 64 + 32),
        ("dense_large", "table", (5,), {}, 1024 + 512 + 256 + 128 + 64),
        ("resnet18", "image", (3, 8, 8), {}, 0),  # group normalisation keeps no statistics
        # the stem, four convolutions a width, and three shortcuts
        ("resnet18", "image", (3, 8, 8), {"norm": "batch"}, 64 + 4 * (64 + 128 + 256 + 512) + (128 + 256 + 512)),
    ],
)
def test_batch_normalisation_keeps_a_mean_and_a_variance_a_channel(
    kind: str, data_kind: DataKind, shape: tuple[int, ...], settings: dict[str, object], num_normalised: int
) -> None:
    assert tensors_of(kind, data_kind, shape, 10, settings)[1] == 2 * num_normalised
