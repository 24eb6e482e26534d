"""Models: layers as asked for, checked before anything starts; in training nothing passes from client to client."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.algorithm import ClientUpdate, TrainRequest
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.federation import EmbeddingSource, Federation
from fedscout.engine.errors import ConfigurationError, DataError
from fedscout.engine.models.flat import new_model
from fedscout.engine.seeds import stream
from fedscout.engine.training.backends import LoopTrainer
from fedscout.engine.training.loop import RowsWork
from fedscout.experiments.data.dataset import DataKind
from fedscout.experiments.models.networks import ResidualBlock, ResidualNet
from fedscout.experiments.models.request import ModelRequest, ModelSettings
from fedscout.experiments.models.table import KINDS, MODELS, automatic_kind, build_model, embedding_source
from tests.experiments.models.requests import SMALL, VOCABULARY, learnable_federation, request, with_settings
from tests.kits.refusals import refused


def test_every_model_is_tried() -> None:
    assert {asked.settings.kind for asked in SMALL.values()} == set(KINDS)


@pytest.mark.parametrize("name", SMALL)
def test_logits_for_any_number_of_rows_where_they_are(name: str) -> None:
    asked = SMALL[name]
    module = build_model(asked)().eval()
    for num_rows in (1, 3):
        assert module(torch.ones(num_rows, *asked.feature_shape)).shape == (num_rows, asked.num_classes)
    # On a device without memory, as PyTorch refuses an operation on tensors of several devices there, too.
    logits = module.to("meta")(torch.ones(4, *asked.feature_shape, device="meta"))
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
    factory = build_model(request(kind, shape, "image", num_classes=5))
    with torch.device("meta"):
        assert factory()(torch.zeros(4, *shape)).shape == (4, 5)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        *[("lenet", shape) for shape in [(7,), (1, 15, 16), (1, 16, 15)]],
        *[(kind, shape) for kind in ("cnn2", "cnn4") for shape in [(3, 3, 8), (1, 4, 3), (4, 4)]],
        ("resnet18", (4, 4)),
    ],
)
def test_what_is_no_image_or_too_small_is_refused(kind: str, shape: tuple[int, ...]) -> None:
    with refused(DataError, key="model.kind", given=f"rows of shape {shape}"):
        build_model(request(kind, shape))


@pytest.mark.parametrize(
    ("kind", "data_kind"),
    [
        *[(kind, "tokens") for kind in ("linear", "dense", "dense_large", "lenet", "cnn2", "resnet18", "dqn")],
        ("embedding_classifier", "tokens"),
        ("embedding_classifier", "image"),
        *[(kind, other) for kind in ("embedding_bag", "textcnn", "char_lstm") for other in ("table", "image")],
    ],
)
def test_rows_that_a_model_cannot_read_are_refused(kind: str, data_kind: str) -> None:
    asked = replace(request(kind, (6,)), data_kind=data_kind, vocabulary_size=9 if data_kind == "tokens" else 0)
    with refused(DataError, key="model.kind"):
        build_model(asked)


# `docs/models.md` says which settings a model reads, and how many parameters it has.

DOCUMENT = (Path(__file__).resolve().parents[3] / "docs" / "models.md").read_text()


def documented_readers() -> dict[str, set[str]]:
    """Return which models read a setting."""
    table = DOCUMENT.partition("| key | read by |")[2].partition("\n\n")[0]
    found: dict[str, set[str]] = {}
    setting = ""
    for line in table.splitlines()[2:]:
        key, kinds = line.split("|")[1:3]
        setting = key.strip(" `").removeprefix("model.") or setting
        found.setdefault(setting, set()).update(re.findall(r"`(\w+)`", kinds))
    return found


GIVEN = {"hidden": (3,), "norm": "batch", "activation": "tanh", "embedding_size": 2, "dropout": 0.1}
READERS = documented_readers()


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("setting", GIVEN)
def test_a_setting_is_read_as_documented_or_refused(kind: str, setting: str) -> None:
    plain = with_settings(SMALL[kind], kind=kind)
    value = (16, 16, 16, 16) if (kind, setting) == ("resnet18", "hidden") else GIVEN[setting]
    asked = with_settings(plain, kind=kind, **{setting: value})
    if kind in READERS[setting]:
        assert build_model(asked) != build_model(plain)
        return
    with refused(ConfigurationError, key=f"model.{setting}") as caught:
        build_model(asked)
    assert len(caught.value.faults) == 1


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("dense", {"norm": "group"}),
        ("resnet18", {"norm": "none"}),
        ("cnn2", {"hidden": (9, 8)}),
        ("textcnn", {"hidden": (9, 8)}),
        ("resnet18", {"hidden": (16, 16, 16)}),
        ("resnet18", {"hidden": (16, 16, 16, 24)}),
        ("resnet18", {"norm": "batch", "hidden": (8, 8)}),
    ],
)
def test_a_value_that_a_model_does_not_know(kind: str, settings: dict[str, Any]) -> None:
    key, value = list(settings.items())[-1]
    with refused(ConfigurationError, key=f"model.{key}", given=value if isinstance(value, str) else list(value)):
        build_model(with_settings(SMALL[kind], kind=kind, **settings))


@pytest.mark.parametrize("kind", ["transformer", "", "nets", "nets:", ":Net", "my nets:Net", "a..b:Net", "nets:Net()"])
def test_an_unknown_name(kind: str) -> None:
    with refused(ConfigurationError, key="model.kind", names=repr(kind)):
        build_model(request(kind, (4,)))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_shapes_are_checked(shape: tuple[int, ...]) -> None:
    with refused(DataError, key="a row", given=f"rows of shape {shape}"):
        ModelRequest(shape, 2)
    with refused(DataError, key="the classes of a model", given=1):
        ModelRequest((4,), 1)


@pytest.mark.parametrize("name", SMALL)
def test_factory_travels_and_follows_the_seed(name: str) -> None:
    factory = build_model(SMALL[name])
    twin = pickle.loads(pickle.dumps(factory))
    assert twin == factory
    vectors = []
    for build, seed in ((factory, 1), (twin, 1), (factory, 2)):
        torch.manual_seed(seed)
        vectors.append(torch.nn.utils.parameters_to_vector(build().parameters()))
    assert torch.equal(vectors[0], vectors[1])
    assert not torch.equal(vectors[0], vectors[2])


def test_activation_and_dropout_stand_behind_every_hidden_layer() -> None:
    asked = with_settings(SMALL["dense_large"], kind="dense_large", activation="elu", dropout=0.3)
    found = [type(layer).__name__ for layer in build_model(asked)()]
    assert found == ["Linear", "BatchNorm1d", "ELU", "Dropout"] * 5 + ["Linear"]


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


# The model that is chosen where none is named.


@pytest.mark.parametrize(
    ("data_kind", "shape", "vocabulary_size", "num_classes", "kind"),
    [
        ("table", (11,), 0, 6, "dense"),
        ("table", (3, 32, 32), 0, 6, "dense"),
        ("image", (1, 16, 16), 0, 10, "lenet"),
        ("image", (1, 16, 15), 0, 10, "cnn2"),
        ("image", (1, 4, 40), 0, 10, "cnn2"),
        ("image", (1, 3, 40), 0, 10, "dense"),
        ("image", (64,), 0, 10, "dense"),
        ("tokens", (80,), 67, 65, "char_lstm"),  # as many characters as Shakespeare uses
        ("tokens", (32,), 10_000, 2, "embedding_bag"),
        ("tokens", (32,), 300, 2, "embedding_bag"),  # a small vocabulary, but the classes are no tokens
        ("tokens", (32,), 50_000, 49_000, "embedding_bag"),
    ],
)
def test_choice(data_kind: DataKind, shape: tuple[int, ...], vocabulary_size: int, num_classes: int, kind: str) -> None:
    asked = ModelRequest(shape, num_classes, data_kind=data_kind, vocabulary_size=vocabulary_size)
    assert automatic_kind(asked) == kind
    assert build_model(asked) == build_model(replace(asked, settings=ModelSettings(kind=kind)))


# What detectors compare of which data.


IMAGES = ModelRequest((3, 16, 16), 10, ModelSettings(kind="lenet"), "image")
TABLE = ModelRequest((8,), 2, ModelSettings(kind="dense"))


def test_images_are_compared_by_the_model_s_last_hidden_layer_and_tables_as_they_are() -> None:
    lenet = build_model(IMAGES)
    assert embedding_source("auto", IMAGES, lenet) == EmbeddingSource(lenet, penultimate=True)
    assert embedding_source("features", IMAGES, lenet) is None
    assert embedding_source("auto", TABLE, build_model(TABLE)) is None
    with refused(ConfigurationError, key="federation.embedding"):
        embedding_source("pixels", TABLE, build_model(TABLE))


def test_a_network_of_one_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_extractor.py").write_text(
        "from torch import nn\n\ndef flat(num_features):\n    return nn.Linear(num_features, 7)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    source = embedding_source("my_extractor:flat", TABLE, build_model(TABLE))
    assert not source.penultimate
    assert sum(parameter.numel() for parameter in source.network().parameters()) == 8 * 7 + 7


# Numbers of parameters, each derived by hand from the layers: weights + biases.


def layers_of(*widths: int) -> int:
    """Return the number of parameters of dense layers: weights and biases."""
    return sum(wide * narrow + narrow for wide, narrow in pairwise(widths))


# One LSTM layer of width h on inputs of width i has four gates, each with weights (i + h) h and, in torch, two biases.
LSTM_8_256 = 4 * (8 + 256) * 256 + 4 * 2 * 256
LSTM_256_256 = 4 * (256 + 256) * 256 + 4 * 2 * 256

# ResNet-18: 3 x 3 convolutions without bias, each followed by a scale and a shift a channel; so are 1 x 1 shortcuts.
STEM = 9 * 3 * 64 + 2 * 64
WIDTH_64 = 4 * (9 * 64 * 64 + 2 * 64)
WIDTH_128 = (9 * 64 * 128 + 2 * 128) + 3 * (9 * 128 * 128 + 2 * 128) + (64 * 128 + 2 * 128)
WIDTH_256 = (9 * 128 * 256 + 2 * 256) + 3 * (9 * 256 * 256 + 2 * 256) + (128 * 256 + 2 * 256)
WIDTH_512 = (9 * 256 * 512 + 2 * 512) + 3 * (9 * 512 * 512 + 2 * 512) + (256 * 512 + 2 * 512)
CONVOLUTIONS = sum((9 * maps + 1) * more for maps, more in pairwise((3, 32, 32, 64, 64)))
LARGE = 1024 + 512 + 256 + 128 + 64
RESNET_18 = STEM + WIDTH_64 + WIDTH_128 + WIDTH_256 + WIDTH_512 + 513 * 10


# Kind and kind of data, shape and classes, settings; numbers in parameters, and means and variances that are kept.
Count = tuple[str, DataKind, tuple[int, ...], int, dict[str, object], int, int]
COUNTS: list[Count] = [
    ("linear", "table", (254,), 2, {}, 254 * 2 + 2, 0),
    ("dense", "table", (254,), 2, {}, (254 * 64 + 64) + (64 * 32 + 32) + (32 * 2 + 2), 0),
    ("dense", "table", (254,), 2, {"hidden": (3,), "norm": "batch"}, (254 * 3 + 3) + 2 * 3 + (3 * 2 + 2), 2 * 3),
    ("dense_large", "table", (39,), 2, {}, layers_of(39, 1024, 512, 256, 128, 64, 2) + 2 * LARGE, 2 * LARGE),
    # LeCun et al. 1998, section II: 6 and 16 maps of 5 x 5, 120, 84 and 10 units; here with full connections
    ("lenet", "image", (1, 32, 32), 10, {}, (25 + 1) * 6 + (6 * 25 + 1) * 16 + layers_of(16 * 25, 120, 84, 10), 0),
    ("cnn2", "image", (1, 28, 28), 10, {}, 1_663_370, 0),  # McMahan et al. 2017, section 3
    ("cnn4", "image", (3, 32, 32), 10, {}, CONVOLUTIONS + layers_of(64 * 8 * 8, 512, 10), 0),
    ("resnet18", "image", (3, 32, 32), 10, {}, RESNET_18, 0),  # group normalisation keeps no statistics
    # the stem, four convolutions a width, and three shortcuts
    ("resnet18", "image", (3, 32, 32), 10, {"norm": "batch"}, RESNET_18, 2 * (64 + 4 * 960 + (128 + 256 + 512))),
    ("embedding_bag", "tokens", (32,), 2, {}, 10_000 * 32 + (32 * 2 + 2), 0),
    ("textcnn", "tokens", (32,), 2, {}, 10_000 * 100 + (3 + 4 + 5) * 100 * 100 + 3 * 100 + (300 * 2 + 2), 0),
    ("char_lstm", "tokens", (80,), 65, {}, 66 * 8 + LSTM_8_256 + LSTM_256_256 + 257 * 65, 0),
    ("embedding_classifier", "table", (384,), 2, {}, layers_of(384, 2), 0),
    ("embedding_classifier", "table", (384,), 2, {"hidden": (16,)}, layers_of(384, 16, 2), 0),
    ("dqn", "table", (4,), 2, {}, layers_of(4, 64, 64, 2), 0),
]


@pytest.mark.parametrize("row", COUNTS)
def test_numbers_that_a_model_holds(row: Count) -> None:
    kind, data_kind, shape, num_classes, chosen, parameters, statistics = row
    vocabulary_size = {"table": 0, "image": 0, "tokens": 66 if kind == "char_lstm" else 10_000}[data_kind]
    settings = ModelSettings.model_validate({"kind": kind, **chosen})
    with torch.device("meta"):  # without memory for them
        module = build_model(ModelRequest(shape, num_classes, settings, data_kind, vocabulary_size))()
    assert sum(prod(parameter.shape) for parameter in module.parameters()) == parameters
    assert sum(prod(buffer.shape) for buffer in module.buffers() if buffer.is_floating_point()) == statistics


def test_documented_numbers_of_parameters_are_those_of_all_models() -> None:
    documented = re.findall(r"^\| `(\w+)` \| .* \| ([\d,]+) \| .* \|$", DOCUMENT, re.MULTILINE)
    counted = {kind: parameters for kind, _, _, _, chosen, parameters, _ in COUNTS if not chosen}
    assert {kind: int(number.replace(",", "")) for kind, number in documented} == counted
    assert set(counted) == set(MODELS)


# In local training: gradients reach every layer, and nothing passes from client to client.


TRAINING = LocalTraining(local_epochs=2, batch_size=8, optimizer="adam", learning_rate=0.003)


@pytest.mark.parametrize("name", SMALL)
def test_the_gradient_reaches_every_parameter(name: str) -> None:
    asked = SMALL[name]
    federation = learnable_federation(asked)
    model = new_model(build_model(asked), seed=3)
    model.module.train()

    outputs = model.outputs(torch.from_numpy(federation.features))
    torch.nn.functional.cross_entropy(outputs, torch.from_numpy(federation.labels)).backward()

    without = [name for name, parameter in model.module.named_parameters() if not parameter.grad.abs().sum() > 0]
    assert without == []


@pytest.mark.parametrize(
    "name", [name for name in SMALL if not name.startswith("resnet18 ")] + ["resnet18 with batch norm"]
)
def test_a_client_s_result_does_not_depend_on_who_was_trained_before(name: str) -> None:
    """Statistics, counters, states of layers and random numbers: all start anew with each client."""
    federation = learnable_federation(SMALL[name])
    received = torch.from_numpy(ClientHost(federation, {}).initial_vector(0))

    alone = trained(federation, received, [1])[0]
    after_another = trained(federation, received, [0, 1])[1]

    np.testing.assert_array_equal(alone.vector, after_another.vector)
    assert alone.loss == after_another.loss
    assert np.any(alone.vector != received.numpy())


def trained(federation: Federation, received: torch.Tensor, clients: list[int]) -> list[ClientUpdate]:
    trainer = LoopTrainer(new_model(federation.model, seed=5))
    works = [
        RowsWork(client, stream(0, "batches", client), {}, federation.client_data(client).own) for client in clients
    ]
    with torch.random.fork_rng(devices=[]):
        answers = trainer.train(TrainRequest(received, TRAINING, initial_loss=True), works)
        updates = [update for block in answers for _, update in block]
    for update in updates:
        assert isinstance(update, ClientUpdate), update
    return updates


def test_padding_stays_zero_and_is_not_read() -> None:
    """A text's output does not change with the padding behind it, and the vector of padding is not trained."""
    for name in ("embedding_bag", "textcnn", "char_lstm"):
        federation = learnable_federation(SMALL[name])
        received = torch.from_numpy(ClientHost(federation, {}).initial_vector(0))
        model = new_model(federation.model, seed=0)
        model.load(torch.from_numpy(trained(federation, received, [0])[0].vector))
        model.module.eval()
        (vectors,) = [part for part in model.module.modules() if isinstance(part, torch.nn.Embedding)]
        assert torch.all(vectors.weight[0] == 0)
        assert torch.all(vectors.weight[1:].abs().sum(dim=1) > 0)

        text = torch.tensor([[3.0, 1.0, 4.0, 1.0, 5.0]])
        padded = torch.cat([text, torch.zeros(1, 6)], dim=1)
        torch.testing.assert_close(model.module(text), model.module(padded))
        other = torch.cat([text, torch.full((1, 6), VOCABULARY - 1.0)], dim=1)
        assert not torch.allclose(model.module(text), model.module(other))
        assert torch.isfinite(model.module(torch.zeros(2, 6))).all()


def test_the_embedding_bag_adds_up_vectors_in_any_order() -> None:
    """Logits are A Σ v / √k + b over the k words of a text."""
    module = build_model(SMALL["embedding_bag"])()
    words = [3, 1, 4, 1]
    total = sum(module.embedding.weight[word] for word in words)
    expected = module.last.weight @ total / 2 + module.last.bias
    for order in (words, words[::-1]):
        torch.testing.assert_close(module(torch.tensor([[*map(float, order), 0.0]])), expected[None])


def test_textcnn_finds_a_word_wherever_it_is() -> None:
    """The maximum over time: shifting a text within zeros changes nothing (Kim 2014, eq. 3)."""
    module = build_model(SMALL["textcnn"])().eval()
    early, late = torch.zeros(1, 12), torch.zeros(1, 12)
    early[0, 1:4] = late[0, 7:10] = torch.tensor([5.0, 6.0, 7.0])
    torch.testing.assert_close(module(early), module(late))


def test_a_block_of_the_residual_net_adds_what_came_in() -> None:
    """He et al. 2016, eq. 1: y = ReLU(F(x) + x), so with F = 0 non-negative images pass unchanged."""
    block = ResidualBlock(32, 32, stride=1, batch_norm=False)
    torch.nn.init.zeros_(block.residual[-1].weight)
    images = torch.rand(2, 32, 4, 4)
    assert torch.equal(block(images), images)


def test_the_residual_net_halves_three_times() -> None:
    with torch.device("meta"):
        net = ResidualNet(3, 10, (64, 128, 256, 512), batch_norm=False)
        assert net.blocks(net.stem(torch.zeros(2, 3, 32, 32))).shape == (2, 512, 4, 4)
