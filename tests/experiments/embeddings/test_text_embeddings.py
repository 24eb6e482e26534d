"""Texts and pictures by networks of other people's files: against means written out, and against torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.testing import assert_allclose
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from fedscout.engine.errors import ConfigurationError, DataError
from fedscout.experiments.embeddings.embedder import Embedder, embedder
from fedscout.experiments.embeddings.networks import standardised
from tests.kits.refusals import refused

WORDS = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "a": 4, "good": 5, "bad": 6, "day": 7}
VECTORS = np.random.default_rng(0).normal(size=(len(WORDS), 6)).astype(np.float32)
TEXTS = ["a good day", "bad", "", "a bad bad day day a"]
SIZE = 32


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
