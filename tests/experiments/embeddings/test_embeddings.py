"""Features of a ResNet-18, against the same network written out by torch's functions and torchvision's names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.testing import assert_allclose
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from torch.nn import functional

from fedscout.engine.errors import ConfigurationError, DataError
from fedscout.experiments.embeddings.embedder import Embedder, embedder
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


# Texts and pictures by networks of other people's files: against means written out, and against torch.


WORDS = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "a": 4, "good": 5, "bad": 6, "day": 7}
VECTORS = np.random.default_rng(0).normal(size=(len(WORDS), 6)).astype(np.float32)
TEXTS = ["a good day", "bad", "", "a bad bad day day a"]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """Words of a small vocabulary between a mark of the beginning and one of the end."""
    made = Tokenizer(WordLevel(WORDS, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    made.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    return path


def of_unit_length(vector: np.ndarray) -> np.ndarray:
    return np.asarray(vector / np.linalg.norm(vector))


def by_file(path: Path, tokenizer: Path | None) -> Embedder:
    return embedder(path, tokenizer, None, SIZE)


def write_transformer(folder: Path, *further: str, pooled: bool = False) -> Path:
    """Write a network that looks tokens up, and may add up what it found."""
    nodes = [helper.make_node("Gather", ["vectors", "input_ids"], ["last_hidden_state"])]
    shape: list[str | int] = ["rows", "tokens", 6]
    outputs = [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, shape)]
    if pooled:
        nodes.append(helper.make_node("ReduceSum", ["last_hidden_state", "axis"], ["sentence_embedding"], keepdims=0))
        outputs.append(helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["rows", 6]))
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["rows", "tokens"]) for name in ("input_ids", *further)
    ]
    constants = [numpy_helper.from_array(VECTORS, "vectors"), numpy_helper.from_array(np.array([1]), "axis")]
    return write(folder, helper.make_graph(nodes, "transformer", inputs, outputs, constants))


def write(folder: Path, graph: onnx.GraphProto) -> Path:
    path = folder / "network.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_a_transformer_s_tokens_are_averaged_without_padding(tmp_path: Path, tokenizer: Path) -> None:
    by = by_file(write_transformer(tmp_path, "attention_mask", "token_type_ids"), tokenizer)

    together, alone = by.embedded(TEXTS), np.concatenate([by.embedded([text]) for text in TEXTS])

    assert_allclose(together, alone, rtol=1e-6)
    assert_allclose(together[1], of_unit_length(VECTORS[[2, 6, 3]].mean(axis=0)), rtol=1e-5)
    assert_allclose(together[2], of_unit_length(VECTORS[[2, 3]].mean(axis=0)), rtol=1e-5)


def test_what_a_network_pools_itself_is_taken(tmp_path: Path, tokenizer: Path) -> None:
    (found,) = by_file(write_transformer(tmp_path, pooled=True), tokenizer).embedded(["good"])
    assert_allclose(found, of_unit_length(VECTORS[[2, 5, 3]].sum(axis=0)), rtol=1e-5)


def test_a_text_longer_than_a_transformer_reads_is_cut(tmp_path: Path, tokenizer: Path) -> None:
    (found,) = by_file(write_transformer(tmp_path, pooled=True), tokenizer).embedded(["good " * 2000])
    assert_allclose(found, of_unit_length(VECTORS[2] + 510 * VECTORS[5] + VECTORS[3]), rtol=1e-4)


def test_inputs_that_no_text_has_are_refused(tmp_path: Path, tokenizer: Path) -> None:
    path = write_transformer(tmp_path, "pixel_values")
    with refused(DataError, key="network.onnx", given="the inputs input_ids, pixel_values"):
        by_file(path, tokenizer)
    with refused(DataError, key="network.onnx"):
        by_file(path, None)


@pytest.mark.parametrize("is_map", [True, False])
def test_pictures_by_a_network_in_onnx(tmp_path: Path, is_map: bool) -> None:
    kernel = np.random.default_rng(1).normal(size=(5, 3, 3, 3)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["pictures", "kernel"], ["map"])]
    output = helper.make_tensor_value_info("map", TensorProto.FLOAT, ["rows", 5, SIZE - 2, SIZE - 2])
    if not is_map:
        nodes += [
            helper.make_node("GlobalAveragePool", ["map"], ["means"]),
            helper.make_node("Flatten", ["means"], ["flat"]),
        ]
        output = helper.make_tensor_value_info("flat", TensorProto.FLOAT, ["rows", 5])
    given = helper.make_tensor_value_info("pictures", TensorProto.FLOAT, ["rows", 3, SIZE, SIZE])
    graph = helper.make_graph(nodes, "net", [given], [output], [numpy_helper.from_array(kernel, "kernel")])
    pictures = np.random.default_rng(2).random((70, 1, 20, 20)).astype(np.float32)

    found = by_file(write(tmp_path, graph), None).embedded(pictures)

    seen = standardised(torch.from_numpy(pictures), SIZE)
    expected = torch.nn.functional.conv2d(seen, torch.from_numpy(kernel)).mean(dim=(2, 3))
    assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("suffix", ["onnx", "txt"])
def test_a_file_of_something_else_is_told(tmp_path: Path, tokenizer: Path, suffix: str) -> None:
    path = tmp_path / f"weights.{suffix}"
    path.write_text("no weights")
    with refused(DataError, key=path.name):
        by_file(path, tokenizer)
    with refused(DataError, key=path.name, names="tokenizer"):
        by_file(path, path)


def test_random_weights_are_of_pictures(tokenizer: Path) -> None:
    with refused(ConfigurationError, key="--weights"):
        embedder(None, tokenizer, 0, SIZE)
