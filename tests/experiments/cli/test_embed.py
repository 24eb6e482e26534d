"""`fedscout embed`: from pictures or texts to a data set that the other commands take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from fedscout.experiments.embeddings.networks import ResNet18Features
from tests.experiments.cli.conftest import Cli


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    """Pictures by hospital and class."""
    draw = np.random.default_rng(0)
    for hospital in ("north", "south"):
        for number, kind in enumerate(("ill", "well")):
            folder = tmp_path / "eyes" / hospital / kind
            folder.mkdir(parents=True)
            for place in range(12):
                pixels = draw.integers(0, 100, (24, 24, 3)) + 100 * number
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{place}.png")
    return tmp_path / "eyes"


@pytest.mark.slow
def test_from_pictures_to_a_diagnosis(cli: Cli, hospitals: Path, tmp_path: Path) -> None:
    asked = ("embed", f"federation.dataset={hospitals}/", "--random", "0")
    told = cli(*asked, "--size", "32", "--json").document
    assert (told["computed"], told["rows"], told["by"]["random_seed"]) == (True, 48, 0)
    assert "random features" in cli(*asked, "--size", "32").ok.out
    assert not cli(*asked, "--size", "32", "--json").document["computed"]
    assert cli(*asked, "--size", "64", "--json").document["computed"]
    report = cli("detect", *told["use"].split(), "engine.grid=local", "--json").document["report"]
    assert (report["num_features"], report["num_clients"]) == (512, 2)


def test_by_a_file_of_weights(cli: Cli, hospitals: Path, tmp_path: Path) -> None:
    torch.save(ResNet18Features().state_dict(), tmp_path / "resnet18.pt")
    shown = cli("embed", f"federation.dataset={hospitals}/", "--weights", "resnet18.pt", "--size", "32").ok.out
    assert all(name in shown for name in ("48 pictures", "resnet18.pt", "embedded.npz"))
    assert np.load(tmp_path / "embedded.npz")["x"].shape == (48, 512)


@pytest.mark.parametrize("lost", ["record", "damaged record", "file", "damaged file"])
def test_what_is_not_whole_is_computed_again(cli: Cli, hospitals: Path, tmp_path: Path, lost: str) -> None:
    asked = ("embed", f"federation.dataset={hospitals}/", "--random", "0", "--size", "32", "--json")
    assert [cli(*asked).document["computed"] for _ in range(2)] == [True, False]
    path = tmp_path / f"random-features.npz{'.json' if 'record' in lost else ''}"
    before = (tmp_path / "random-features.npz").read_bytes()
    path.write_bytes(b"junk") if "damaged" in lost else path.unlink()
    assert cli(*asked).document["computed"]
    assert (tmp_path / "random-features.npz").read_bytes() == before


def test_a_file_of_another_program_is_left_alone(cli: Cli, hospitals: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("{}")
    cli("embed", f"federation.dataset={hospitals}/", "--random", "0", "--size", "32", "--out", "mine.npz")
    assert (tmp_path / "mine.json").read_text() == "{}"


def test_only_pictures_and_texts_are_embedded(cli: Cli) -> None:
    cli("embed", "federation.dataset=wine", "--random", "0").refuses("federation.dataset", "got 'wine'")


@pytest.fixture
def notes(tmp_path: Path) -> tuple[str, ...]:
    """A table of texts, vectors of their words, and a tokenizer that knows these."""
    words = {"[UNK]": 0, "fine": 1, "poor": 2, "day": 3}
    lines = [f"{'fine' if place % 2 else 'poor'} day {place},{place % 2},{place % 3}" for place in range(60)]
    (tmp_path / "notes.csv").write_text("\n".join(["text,mood,site", *lines]) + "\n")
    made = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    rows = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["rows", "tokens"])
    states = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["rows", "tokens", 8])
    look_up = helper.make_node("Gather", ["vectors", "input_ids"], ["last_hidden_state"])
    vectors = numpy_helper.from_array(np.eye(4, 8, dtype=np.float32), "vectors")
    graph = helper.make_graph([look_up], "transformer", [rows], [states], [vectors])
    network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(network, tmp_path / "network.onnx")
    named = ("federation.dataset=notes.csv", "federation.text_column=text", "federation.label=mood")
    return ("embed", *named, "federation.client_column=site", "--weights", "network.onnx")


def test_from_texts_to_a_choice(cli: Cli, notes: tuple[str, ...]) -> None:
    asked = (*notes, "--tokenizer", "tokenizer.json", "--out", "notes.npz", "--json")
    told = cli(*asked).document
    assert (told["computed"], told["rows"], told["by"]["tokenizer"]["file"]) == (True, 60, "tokenizer.json")
    assert not cli(*asked).document["computed"]
    trained = cli("train", *told["use"].split(), "engine.grid=local", "training.num_rounds=30", "--json").document
    assert trained["trial"]["fitness"] > 0.9


def test_what_goes_with_texts_and_what_with_pictures(cli: Cli, notes: tuple[str, ...], hospitals: Path) -> None:
    torch.save(ResNet18Features().state_dict(), hospitals.parent / "resnet18.pt")
    cli(*notes[:-1], str(hospitals.parent / "resnet18.pt")).refuses("--tokenizer", "tokenizer.json")
    beside = cli("embed", f"federation.dataset={hospitals}/", *notes[-2:], "--tokenizer", "tokenizer.json")
    beside.refuses("--tokenizer", "left out", "eyes")
