"""Models: layers as asked for, built from torch's random state, checked before anything starts."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from fedscout.engine.errors import ConfigurationError, DataError
from fedscout.engine.models.dense import ACTIVATIONS
from fedscout.experiments.models.request import ModelRequest, ModelSettings
from fedscout.experiments.models.table import MODELS, build_model
from tests.experiments.models.requests import SMALL, request, with_settings
from tests.kits.refusals import refused


def test_every_model_is_tried() -> None:
    assert {asked.settings.kind for asked in SMALL.values()} == set(MODELS)


@pytest.mark.parametrize("name", SMALL)
def test_logits_for_any_number_of_rows(name: str) -> None:
    import torch

    asked = SMALL[name]
    module = build_model(asked)().eval()
    for num_rows in (1, 3):
        assert module(torch.ones(num_rows, *asked.feature_shape)).shape == (num_rows, asked.num_classes)


@pytest.mark.parametrize("name", SMALL)
def test_every_model_goes_where_its_rows_are(name: str) -> None:
    """On a device without memory: PyTorch refuses an operation on tensors of several devices there, too."""
    import torch

    asked = SMALL[name]
    logits = build_model(asked)().to("meta")(torch.ones(4, *asked.feature_shape, device="meta"))
    assert (logits.shape, logits.device.type) == ((4, asked.num_classes), "meta")


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        *[("lenet", shape) for shape in [(1, 16, 16), (1, 28, 28), (3, 32, 32), (3, 16, 40)]],
        *[(kind, shape) for kind in ("cnn2", "cnn4") for shape in [(1, 4, 4), (1, 28, 28), (3, 5, 9)]],
        *[("resnet18", shape) for shape in [(1, 1, 1), (1, 28, 28), (2, 5, 9)]],
    ],
)
def test_images_of_every_size_that_is_large_enough(kind: str, shape: tuple[int, ...]) -> None:
    import torch

    factory = build_model(request(kind, shape, "image", num_classes=5))
    with torch.device("meta"):
        assert factory()(torch.zeros(4, *shape)).shape == (4, 5)


@pytest.mark.parametrize(
    ("kind", "shape", "smallest"),
    [
        *[("lenet", shape, 16) for shape in [(7,), (3, 8, 8), (1, 15, 16), (1, 16, 15), (16, 16)]],
        *[(kind, shape, 4) for kind in ("cnn2", "cnn4") for shape in [(7,), (3, 3, 8), (1, 4, 3), (4, 4)]],
        *[("resnet18", shape, 1) for shape in [(7,), (4, 4)]],
    ],
)
def test_what_is_no_image_or_too_small_is_refused(kind: str, shape: tuple[int, ...], smallest: int) -> None:
    with refused(DataError, key="model.kind", given=f"rows of shape {shape}") as caught:
        build_model(request(kind, shape))
    assert f" {smallest} pixels" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "data_kind"),
    [
        *[(kind, "tokens") for kind in ("linear", "dense", "dense_large", "lenet", "cnn2", "resnet18", "dqn")],
        ("embedding_classifier", "tokens"),
        ("embedding_classifier", "image"),
        *[
            (kind, other)
            for kind in ("embedding_bag", "textcnn", "char_lstm")
            for other in ("table", "image", "embedding")
        ],
    ],
)
def test_rows_that_a_model_cannot_read_are_refused(kind: str, data_kind: str) -> None:
    asked = replace(request(kind, (6,)), data_kind=data_kind, vocabulary_size=9 if data_kind == "tokens" else 0)
    with refused(DataError, key="model.kind"):
        build_model(asked)


GIVEN = {"hidden": (3,), "norm": "batch", "activation": "tanh", "embedding_size": 2, "dropout": 0.1}
READ = {
    "linear": (),
    "dense": ("hidden", "norm", "activation", "dropout"),
    "dense_large": ("activation", "dropout"),
    "lenet": ("activation",),
    "cnn2": ("hidden", "activation"),
    "cnn4": ("hidden", "activation"),
    "resnet18": ("hidden", "norm"),
    "embedding_bag": ("embedding_size",),
    "textcnn": ("hidden", "embedding_size", "dropout"),
    "char_lstm": ("hidden", "embedding_size"),
    "embedding_classifier": ("hidden",),
    "dqn": ("hidden", "activation"),
}


@pytest.mark.parametrize("kind", READ)
@pytest.mark.parametrize("setting", GIVEN)
def test_a_setting_is_either_read_or_refused(kind: str, setting: str) -> None:
    plain = with_settings(SMALL[kind], kind=kind)
    value = (16, 16, 16, 16) if (kind, setting) == ("resnet18", "hidden") else GIVEN[setting]
    asked = with_settings(plain, kind=kind, **{setting: value})
    if setting in READ[kind]:
        assert build_model(asked) != build_model(plain)
        return
    shown = list(GIVEN["hidden"]) if setting == "hidden" else value
    with refused(ConfigurationError, key=f"model.{setting}", given=shown, names=f"model.kind={kind}") as caught:
        build_model(asked)
    assert len(caught.value.faults) == 1


def test_all_settings_that_are_not_read_are_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        build_model(with_settings(SMALL["linear"], kind="linear", **GIVEN))
    assert caught.value.keys == tuple(f"model.{name}" for name in GIVEN)


@pytest.mark.parametrize(
    ("kind", "settings", "known"),
    [
        ("dense", {"norm": "group"}, "none or batch"),
        ("resnet18", {"norm": "none"}, "group or batch"),
        ("cnn2", {"hidden": (9, 8)}, "one"),
        ("textcnn", {"hidden": (9, 8)}, "one"),
        ("resnet18", {"hidden": (16, 16, 16)}, "4 multiples of 16"),
        ("resnet18", {"hidden": (16, 16, 16, 24)}, "4 multiples of 16"),
        ("resnet18", {"norm": "batch", "hidden": (8, 8)}, "4 widths"),
    ],
)
def test_a_value_that_a_model_does_not_know(kind: str, settings: dict[str, Any], known: str) -> None:
    key, value = list(settings.items())[-1]
    given = value if isinstance(value, str) else list(value)
    with refused(ConfigurationError, key=f"model.{key}", given=given, names=known) as caught:
        build_model(with_settings(SMALL[kind], kind=kind, **settings))
    assert f"model.kind={kind}" in str(caught.value)


@pytest.mark.parametrize("kind", ["transformer", "", "nets", "nets:", ":Net", "my nets:Net", "a..b:Net", "nets:Net()"])
def test_an_unknown_name(kind: str) -> None:
    with refused(ConfigurationError, key="model.kind", names=repr(kind)):
        build_model(request(kind, (4,)))


@pytest.mark.parametrize("hidden", [(), (0,), (8, -1)])
def test_widths_are_checked(hidden: tuple[int, ...]) -> None:
    with pytest.raises(ValidationError, match="hidden"):
        ModelSettings(hidden=hidden)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_shapes_are_checked(shape: tuple[int, ...]) -> None:
    with refused(DataError, key="a row", given=f"rows of shape {shape}"):
        ModelRequest(shape, 2)
    with refused(DataError, key="the classes of a model", given=1):
        ModelRequest((4,), 1)


@pytest.mark.parametrize("name", SMALL)
def test_factory_travels_and_follows_the_seed(name: str) -> None:
    import torch

    factory = build_model(SMALL[name])
    twin = pickle.loads(pickle.dumps(factory))
    assert twin == factory
    vectors = []
    for build, seed in ((factory, 1), (twin, 1), (factory, 2)):
        torch.manual_seed(seed)
        vectors.append(torch.nn.utils.parameters_to_vector(build().parameters()))
    assert torch.equal(vectors[0], vectors[1])
    assert not torch.equal(vectors[0], vectors[2])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("linear", "linear 5-2"),
        ("dense", "dense 5-8-4-2"),
        ("dense with batch norm", "dense 5-8-4-2 with batch norm"),
        ("dense with tanh and dropout", "dense 5-8-4-2 with batch norm, activation tanh, dropout 0.2"),
        ("cnn2 with gelu", "cnn2 with activation gelu"),
        ("dense_large", "dense 5-1024-512-256-128-64-2 with batch norm"),
        ("lenet", "lenet"),
        ("cnn4", "cnn4"),
        ("resnet18", "resnet18 of 16-16-32-32 channels with group norm"),
        ("embedding_bag", "embedding_bag 12-4-2"),
        ("textcnn", "textcnn of 5 maps per width, 12 tokens"),
        ("char_lstm", "char_lstm 3-7-5-2"),
        ("auto", "char_lstm 8-256-256-11"),
    ],
)
def test_factory_tells_its_name(name: str, told: str) -> None:
    assert str(build_model(SMALL[name])) == told


@pytest.mark.parametrize("kind", ["dense", "dense_large", "lenet", "cnn2", "cnn4", "dqn"])
def test_what_is_spelt_out_as_it_is_by_default_is_the_same_model(kind: str) -> None:
    plain = with_settings(SMALL[kind], kind=kind)
    spelt = {"activation": "relu", **({"dropout": 0} if kind.startswith("dense") else {})}
    assert build_model(with_settings(plain, kind=kind, **spelt)) == build_model(plain)


def test_activation_and_dropout_stand_behind_every_hidden_layer() -> None:
    asked = with_settings(SMALL["dense_large"], kind="dense_large", activation="elu", dropout=0.3)
    found = [type(layer).__name__ for layer in build_model(asked)()]
    assert found == ["Linear", "BatchNorm1d", "ELU", "Dropout"] * 5 + ["Linear"]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_can_be_asked_for(name: str) -> None:
    layers = [*build_model(with_settings(SMALL["cnn4"], kind="cnn4", activation=name))()]
    assert sum(type(layer) is ACTIVATIONS[name].layer for layer in layers) == 5


def test_an_unknown_activation_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValidationError, match="activation") as caught:
        ModelSettings(activation="swish")
    assert all(repr(name) in str(caught.value) for name in ACTIVATIONS)


def test_dense_net_is_not_linear_and_linear_one_is() -> None:
    import torch

    inputs = torch.linspace(-3, 3, 7)[:, None]
    for kind, expected in (("linear", True), ("dense", False)):
        torch.manual_seed(0)
        outputs = MODELS[kind](ModelRequest((1,), 2))()(inputs)
        second_differences = outputs[2:] - 2 * outputs[1:-1] + outputs[:-2]
        assert bool((second_differences.abs() < 1e-5).all()) is expected


@pytest.mark.slow
def test_nothing_heavy_is_imported_until_it_is_needed() -> None:
    script = (
        "import sys, fedscout.experiments.federation;"
        "from fedscout.experiments.models.table import build_model;"
        "from tests.experiments.models.requests import SMALL;"
        "[str(build_model(asked)) for asked in SMALL.values()];"
        "print([name for name in ('torch', 'ray', 'sklearn', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
